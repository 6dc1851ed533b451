//! A stack over AF_XDP against the kernel's sockets, on a veth pair in network namespaces of the test's own: it needs root, and says so where it has not.

#[path = "../../link/tests/veth/mod.rs"]
mod veth;

use onecopy_link::xdp::XdpConfig;
use onecopy_net::devmem::{Frag, Path, Why};
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::udp::Socket;
use onecopy_net::{BuildError, Driver, Stack, Transport, Wait};
use onecopy_pool::{DeviceId, DeviceMemory};
use onecopy_sys::interface;
use onecopy_testing::{LONG, alone, internet_sum};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use veth::{World, ip};

impl World {
    /// Its other end is 10.79.0.1, and fd79::1.
    fn new() -> Option<World> {
        World::of(&["10.79.0.1/24", "fd79::1/64"])
    }

    fn stack(&self, config: XdpConfig, wait: Wait, driver: Driver) -> Stack {
        let builder = Stack::builder().xdp_with(config).address("10.79.0.2/24").address("fd79::2/64");
        self.here.run(|| builder.wait(wait).driver(driver).build()).unwrap().unwrap()
    }

    fn plain(&self) -> Stack {
        self.stack(XdpConfig::new("near").frames(2048), Wait::Block, Driver::Thread)
    }
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

fn counter(stack: &Stack, name: &str) -> u64 {
    let all = stack.link_counters();
    all.iter().find(|(one, _)| *one == name).unwrap_or_else(|| panic!("{all:?}")).1
}

/// Sends back all that comes by the kernel's socket, until its end.
fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match stream.read(&mut buffer).unwrap() {
            0 => return,
            n => stream.write_all(&buffer[..n]).unwrap(),
        }
    }
}

/// Sends `data` on ours, and receives it again.
fn talk(stream: &Stream, data: &[u8]) {
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(stream.send(data).unwrap(), data.len());
            stream.shutdown(Shutdown::Write).unwrap();
        });
        let (mut received, mut stream) = (Vec::new(), stream);
        stream.read_to_end(&mut received).unwrap();
        assert!(received == data, "{} bytes of {}", received.len(), data.len());
    });
}

#[test]
fn tcp_goes_both_ways_against_the_kernel_s() {
    alone!();
    let Some(world) = World::new() else { return };
    let data = pattern(3 << 20);
    for (generic, wait, driver) in [
        (false, Wait::Block, Driver::Thread),
        (false, Wait::Adaptive, Driver::Caller),
        (false, Wait::Spin, Driver::Thread),
        (true, Wait::Block, Driver::Caller),
    ] {
        let config = XdpConfig::new("near").frames(4096).generic(generic);
        let stack = world.stack(config, wait, driver);
        for (theirs, ours) in [("10.79.0.1:0", "10.79.0.2:7001"), ("[fd79::1]:0", "[fd79::2]:7001")] {
            // We connect.
            let listener = world.there.run(|| TcpListener::bind(theirs).unwrap()).unwrap();
            let to = listener.local_addr().unwrap();
            let other = thread::spawn(move || echo(listener.accept().unwrap().0));
            let stream = Stream::connect(&stack, to).unwrap();
            talk(&stream, &data);
            other.join().unwrap();
            // They do.
            let listener = Listener::bind(&stack, at(ours)).unwrap();
            let client = world.there.run(|| {
                let client = thread::spawn(move || echo(TcpStream::connect(ours).unwrap()));
                let (stream, _) = listener.accept().unwrap();
                talk(&stream, &data);
                client
            });
            client.unwrap().join().unwrap();
        }
        let of = |name| counter(&stack, name);
        // As few packets as there may be: the longest, which the other end does not cut.
        let least = 4 * data.len() as u64 / 65_536;
        assert!(of("received") >= least && of("unfinished") > 100, "{:?}", stack.link_counters());
        assert_eq!((of("foreign"), of("astray"), of("not_taken"), of("full")), (0, 0, 0, 0));
        assert_eq!((of("kernel_bad_frames"), of("kernel_bad_packets")), (0, 0));
        assert!(of("copied_bytes") >= 4 * data.len() as u64);
    }
}

/// Its sender's checksums are finished, and ours are right: each is looked at by either side.
#[test]
fn checksums_are_made_and_looked_at() {
    alone!();
    let Some(world) = World::new() else { return };
    world.there.run(|| interface::set_tx_checksum("far", false)).unwrap().unwrap();
    let config = XdpConfig::new("near").frames(2048).unfinished(false);
    let stack = world.stack(config, Wait::Block, Driver::Thread);
    let listener = world.there.run(|| TcpListener::bind("10.79.0.1:0").unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    let other = thread::spawn(move || echo(listener.accept().unwrap().0));
    talk(&Stream::connect(&stack, to).unwrap(), &pattern(1 << 20));
    other.join().unwrap();
    assert_eq!(counter(&stack, "unfinished"), 0);
    drop(stack);
    // Where they are not, nothing is taken that was not said to be all right.
    world.there.run(|| interface::set_tx_checksum("far", true)).unwrap().unwrap();
    let stack =
        world.stack(XdpConfig::new("near").frames(2048).unfinished(false), Wait::Block, Driver::Thread);
    let socket = Socket::bind(&stack, at("10.79.0.2:7000")).unwrap();
    let peer = world.there.run(|| UdpSocket::bind("10.79.0.1:0").unwrap()).unwrap();
    // (ICMP, and ARP before it, have their own checksums always.)
    socket.send_to(b"?", peer.local_addr().unwrap()).unwrap();
    peer.set_read_timeout(Some(LONG)).unwrap();
    let (_, from) = peer.recv_from(&mut [0; 8]).unwrap();
    let before = counter(&stack, "received");
    peer.send_to(b"unfinished", from).unwrap();
    while counter(&stack, "received") == before {
        thread::yield_now();
    }
    socket.set_nonblocking(true).unwrap();
    assert!(socket.recv_from(&mut [0; 16]).is_err(), "its checksum is wrong");
    world.there.run(|| interface::set_tx_checksum("far", false)).unwrap().unwrap();
    socket.set_nonblocking(false).unwrap();
    peer.send_to(b"finished", from).unwrap();
    let mut buffer = [0; 16];
    let (n, _) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..n], b"finished");
}

#[test]
fn udp_goes_both_ways_and_ping_is_answered() {
    alone!();
    let Some(world) = World::new() else { return };
    let stack = world.plain();
    let ours = Socket::bind(&stack, at("10.79.0.2:7000")).unwrap();
    let theirs = world.there.run(|| UdpSocket::bind("10.79.0.1:7000").unwrap()).unwrap();
    theirs.set_read_timeout(Some(LONG)).unwrap();
    for len in [0, 1, 1472] {
        let data = pattern(len);
        let mut buffer = vec![0; 65536];
        theirs.send_to(&data, "10.79.0.2:7000").unwrap();
        let (n, from) = ours.recv_from(&mut buffer).unwrap();
        assert!(buffer[..n] == data, "{len} bytes here");
        ours.send_to(&data, from).unwrap();
        let (n, _) = theirs.recv_from(&mut buffer).unwrap();
        assert!(buffer[..n] == data, "{len} bytes there");
    }
    // What comes in fragments is put together.
    for len in [1473, 9000, 40000] {
        let (data, mut buffer) = (pattern(len), vec![0; 65536]);
        theirs.send_to(&data, "10.79.0.2:7000").unwrap();
        let (n, _) = ours.recv_from(&mut buffer).unwrap();
        assert!(buffer[..n] == data, "{len} bytes here");
    }
    let answer = world.there.run(|| {
        let socket = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(ipproto::ICMP),
        )
        .unwrap();
        let mut echo = vec![8, 0, 0, 0, 1, 2, 0, 3];
        echo.extend(pattern(1000));
        let sum = !internet_sum(&echo);
        echo[2..4].copy_from_slice(&sum.to_be_bytes());
        rustix::net::sendto(&socket, &echo, SendFlags::empty(), &at("10.79.0.2:0")).unwrap();
        let mut buffer = vec![0; 2048];
        let (n, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty()).unwrap();
        buffer[20..n].to_vec()
    });
    let answer = answer.unwrap();
    assert_eq!((answer[0], &answer[4..8]), (0, &[1, 2, 0, 3][..]));
    assert!(answer[8..] == pattern(1000));
}

/// More arrives than there are frames, and nobody takes it: what is read, of whatever connection, arrives all the same.
#[test]
fn sockets_that_nobody_reads_keep_no_frames_from_the_others() {
    alone!();
    let Some(world) = World::new() else { return };
    // Without segmentation by the device each packet takes a frame of its own.
    world.there.run(|| interface::set_tx_checksum("far", false)).unwrap().unwrap();
    let stack = world.stack(XdpConfig::new("near").frames(256), Wait::Block, Driver::Thread);
    let listener = world.there.run(|| TcpListener::bind("10.79.0.1:0").unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    let (data, pulse) = (&pattern(512 << 10), pattern(100_000));
    let lost = |name| counter(&stack, name);
    thread::scope(|scope| {
        let full: Vec<Stream> = (0..16)
            .map(|_| {
                let stream = Stream::connect(&stack, to).unwrap();
                let mut sender = listener.accept().unwrap().0;
                scope.spawn(move || sender.write_all(data).unwrap());
                stream
            })
            .collect();
        while lost("copied_out") == 0 {
            thread::yield_now();
        }
        // What we send arrives meanwhile: its acknowledgements come.
        let other = Stream::connect(&stack, to).unwrap();
        let mut receiver = listener.accept().unwrap().0;
        other.send(&pulse).unwrap();
        let mut got = vec![0; pulse.len()];
        receiver.read_exact(&mut got).unwrap();
        assert!(got == pulse);
        // Once somebody reads one of them, all of it comes, while the others wait.
        for mut full in &full {
            let mut received = vec![0; data.len()];
            full.read_exact(&mut received).unwrap();
            assert!(received == *data);
        }
    });
    assert_eq!((lost("foreign"), lost("astray")), (0, 0));
}

/// Receives to the end, all of it in the device's memory.
fn placed(stream: &Stream, memory: &DeviceMemory) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let frags = stream.recv_frags(1 << 20).unwrap();
        if frags.is_empty() {
            return all;
        }
        assert!(frags.linear().is_none(), "{} bytes are in the host's memory", frags.len());
        for Frag { offset, len, .. } in frags.device() {
            let begin = all.len();
            all.resize(begin + *len as usize, 0);
            memory.read_at(*offset, &mut all[begin..]).unwrap();
        }
    }
}

/// Payload lies in frames of the umem, and the device copies it from there: as on a TAP whose kernel does not put it there itself.
#[test]
fn payload_lands_in_a_device_s_memory_and_none_is_sent_from_it() {
    alone!();
    let Some(world) = World::new() else { return };
    let data = pattern(2 << 20);
    for generic in [false, true] {
        let config = XdpConfig::new("near").frames(2048).generic(generic).zero_copy(false);
        let stack = world.stack(config, Wait::Block, Driver::Thread);
        let memory = DeviceMemory::opaque(1024, DeviceId(3)).unwrap();
        stack.set_queues(2).unwrap();
        let bound = ["10.79.0.2:7001", "[fd79::2]:7001"];
        bound.iter().for_each(|to| stack.steer(at(to), 1).unwrap());
        let binding = stack.bind_rx(&memory, &[1]).unwrap();
        assert_eq!(binding.path(), Path::Staged(Why::Link));
        for to in bound {
            let listener = Listener::bind(&stack, at(to)).unwrap();
            let sent = data.clone();
            let client =
                world.there.run(|| thread::spawn(move || TcpStream::connect(to).unwrap().write_all(&sent)));
            let (stream, _) = listener.accept().unwrap();
            assert!(placed(&stream, &memory) == data, "{to}");
            client.unwrap().join().unwrap().unwrap();
            let (stats, all) = (stream.stats(), data.len() as u64);
            // To a frame, and from there to the device.
            assert_eq!((stats.received, stats.user_copied_out, stats.kernel_copied), (all, 0, 2 * all));
            assert_eq!(stream.tokens_held(), 0);
        }
        let queue = stack.queue_stats(1).unwrap();
        // (What came twice is placed twice.)
        assert!(queue.placed_bytes >= 2 * data.len() as u64, "{queue:?}");
        assert_eq!(memory.copied().into, queue.placed_bytes, "each once, by the device");
        assert_eq!(
            (queue.unsplit, queue.starved, queue.foreign, queue.failed, queue.landed),
            (0, 0, 0, 0, 0)
        );
        assert!(
            memory.free() + 4096 >= memory.len(),
            "all pages are home, but for the one that pieces are cut from"
        );
        // What nobody steers is the host's.
        let listener = Listener::bind(&stack, at("10.79.0.2:7002")).unwrap();
        let client =
            world.there.run(|| thread::spawn(|| echo(TcpStream::connect("10.79.0.2:7002").unwrap())));
        talk(&listener.accept().unwrap().0, &data);
        client.unwrap().join().unwrap();
        assert_eq!(stack.queue_stats(1).unwrap().placed, queue.placed);
        // It takes no memory that the CPU cannot read.
        let source = DeviceMemory::opaque(64, DeviceId(4)).unwrap();
        let error = stack.bind_tx(&source).unwrap_err();
        assert_eq!((error.raw_os_error(), stack.device_refusals().tx_unsupported), (95, 1));
        let why = error.reason().unwrap();
        assert!(why.contains("a Tap with its offloads") && why.contains("Transport::Kernel"), "{why}");
        assert_eq!(source.free(), source.len());
        assert_eq!((counter(&stack, "foreign"), counter(&stack, "astray")), (0, 0));
    }
}

#[test]
fn a_stack_that_is_dropped_leaves_nothing() {
    alone!();
    let Some(world) = World::new() else { return };
    let shown = || {
        let run = || Command::new("ip").args(["-d", "link", "show", "near"]).output().unwrap().stdout;
        String::from_utf8(world.here.run(run).unwrap()).unwrap()
    };
    let mut before = None;
    for _ in 0..3 {
        let stack = world.plain();
        assert!(shown().contains("xdp"), "{}", shown());
        let listener = world.there.run(|| TcpListener::bind("10.79.0.1:0").unwrap()).unwrap();
        let stream = Stream::connect(&stack, listener.local_addr().unwrap()).unwrap();
        stream.send(b"last").unwrap();
        drop((stream, stack));
        let mut got = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"last");
        assert!(!shown().contains("xdp"), "{}", shown());
        // (The first stack of a process leaves it what all have in common.)
        let now = onecopy_testing::descriptors();
        assert_eq!(now, *before.get_or_insert(now));
    }
}

#[test]
fn what_cannot_be_is_said() {
    let builder = || Stack::builder().xdp("no-such-device").address("10.79.0.2/24");
    let said = |built: Result<Stack, BuildError>| built.err().unwrap().to_string();
    assert!(said(builder().build()).contains("no-such-device"));
    assert!(said(builder().shards(2).build()).contains("one shard"));
    assert!(said(builder().mtu(1400).build()).contains("ip link set"));
    assert!(said(builder().transport(Transport::Kernel).build()).contains("Builder::xdp"));
    // What is asked for wrongly the kernel's sockets do not mend.
    assert!(said(builder().transport(Transport::Auto).build()).contains("no-such-device"));
    let kind = std::io::Error::from(builder().shards(2).build().err().unwrap()).kind();
    assert_eq!(kind, std::io::ErrorKind::InvalidInput);
}

/// What the kernel did not take since the interface was down leaves when it is up again, though the descriptor tells of nothing and nobody calls. When the interface is gone,
/// so is the stack.
#[test]
fn what_waits_for_the_interface_leaves_without_a_call() {
    alone!();
    let Some(world) = World::new() else { return };
    // Nothing but ours passes: no solicitations that would wake the stack.
    let quiet = || std::fs::write("/proc/sys/net/ipv6/conf/far/disable_ipv6", "1").unwrap();
    world.there.run(quiet).unwrap();
    let stack = world.plain();
    let theirs = world.there.run(|| UdpSocket::bind("10.79.0.1:7009").unwrap()).unwrap();
    theirs.set_read_timeout(Some(LONG)).unwrap();
    let ours = Socket::bind(&stack, at("10.79.0.2:7010")).unwrap();
    let to = theirs.local_addr().unwrap();
    let mut buffer = [0; 64];
    ours.send_to(b"before", to).unwrap();
    assert_eq!(theirs.recv(&mut buffer).unwrap(), 6);
    for round in 1..4 {
        ip(&world.here, "link set near down");
        ours.send_to(&vec![7; round], to).unwrap();
        assert!(counter(&stack, "down") > 0);
        ip(&world.here, "link set near up");
        assert_eq!(theirs.recv(&mut buffer).unwrap(), round);
    }
    assert!(stack.is_up());
    ip(&world.here, "link del near");
    let began = Instant::now();
    while stack.is_up() {
        assert!(began.elapsed() < LONG, "{:?}", stack.link_counters());
        let _ = ours.send_to(b"gone", to);
        thread::yield_now();
    }
}

/// Nobody sends, nothing comes, and the descriptor is silent: it is found out all the same, by the stack's own thread, by one that waits, and by a program that drives.
#[test]
fn an_interface_that_is_gone_is_missed_though_nothing_is_sent() {
    alone!();
    for (driver, waits) in [(Driver::Thread, false), (Driver::Thread, true), (Driver::Caller, false)] {
        let Some(world) = World::new() else { return };
        let stack = world.stack(XdpConfig::new("near").frames(2048), Wait::Block, driver);
        let socket = Socket::bind(&stack, at("10.79.0.2:7011")).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(1500))).unwrap();
        thread::scope(|scope| {
            if waits {
                scope.spawn(|| socket.recv(&mut [0; 8]).unwrap_err());
            }
            ip(&world.here, "link del near");
            let began = Instant::now();
            while stack.is_up() {
                assert!(began.elapsed() < LONG, "{driver:?} {waits}: {:?}", stack.link_counters());
                match driver {
                    Driver::Thread => thread::sleep(Duration::from_millis(10)),
                    Driver::Caller => {
                        let fd = stack.poll_fd().unwrap();
                        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
                        let limit = Timespec::try_from(LONG).unwrap();
                        assert_eq!(poll(&mut fds, Some(&limit)), Ok(1), "it does not say when to look");
                        while stack.drive(Duration::ZERO).unwrap() {}
                    }
                }
            }
        });
        // It looks no more, for ever.
        assert_eq!(stack.next_deadline(), None);
    }
}
