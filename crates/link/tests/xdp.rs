//! A real socket of AF_XDP, on a veth pair in network namespaces of the test's own: it needs root, and says so where it has not.

mod veth;

use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use onecopy_link::xdp::{Hook, Xdp, XdpConfig, XdpError};
use onecopy_link::{Link, Medium, Packet};
use onecopy_sys::interface;
use onecopy_sys::netns::Namespace;
use onecopy_testing::{LONG, alone, internet_sum};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::process::Command;
use veth::{World, ip};

impl World {
    /// Its other end is 10.78.0.1.
    fn new() -> Option<World> {
        World::of(&["10.78.0.1/24"])
    }

    fn open(&self, config: XdpConfig) -> Result<Xdp, XdpError> {
        self.here.run(|| Xdp::open(config)).unwrap()
    }

    /// A socket of the kernel's at the other end, and its neighbour: nobody is asked who 10.78.0.2 is.
    fn socket(&self, xdp: &Xdp) -> UdpSocket {
        let mac = xdp.hardware_address().map(|byte| format!("{byte:02x}")).join(":");
        ip(&self.there, &format!("neigh replace 10.78.0.2 lladdr {mac} dev far"));
        let socket = self.there.run(|| UdpSocket::bind("10.78.0.1:7000").unwrap()).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        socket
    }

    /// A datagram from 10.78.0.2:9000 to 10.78.0.1:7000, with its checksums.
    fn datagram(&self, xdp: &Xdp, payload: impl Into<Segment<Chain>>) -> Packet {
        let far = self.there.run(|| interface::hardware_address("far")).unwrap().unwrap().unwrap();
        let payload = payload.into();
        let chain = payload.payload();
        let len = 8 + chain.len() as u16;
        let mut head = [far, xdp.hardware_address()].concat();
        head.extend([8, 0, 0x45, 0]);
        head.extend((20 + len).to_be_bytes());
        head.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 78, 0, 2, 10, 78, 0, 1]);
        let sum = !internet_sum(&head[14..34]);
        head[24..26].copy_from_slice(&sum.to_be_bytes());
        head.extend(9000_u16.to_be_bytes());
        head.extend(7000_u16.to_be_bytes());
        head.extend(len.to_be_bytes());
        head.extend([0, 0]);
        let mut covered = [&head[26..34], &[0, 17], &len.to_be_bytes(), &head[34..42]].concat();
        covered.extend(chain.host().unwrap().to_vec());
        let sum = !internet_sum(&covered);
        head[40..42].copy_from_slice(&sum.to_be_bytes());
        Packet::new(&head, payload).unwrap()
    }
}

/// What `ip link` says of an interface.
fn shown(namespace: &Namespace, name: &str) -> String {
    let run = || Command::new("ip").args(["-d", "link", "show", name]).output().unwrap().stdout;
    String::from_utf8(namespace.run(run).unwrap()).unwrap()
}

/// Waits for the next packet that `wanted` is true of.
fn next(xdp: &mut Xdp, wanted: impl Fn(&Packet) -> bool) -> Packet {
    loop {
        while let Some(packet) = xdp.receive(0) {
            if wanted(&packet) {
                return packet;
            }
        }
        let limit = Timespec { tv_sec: LONG.as_secs() as i64, tv_nsec: 0 };
        let mut fds = [PollFd::new(&*xdp, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&limit)).unwrap();
        assert_eq!(ready, 1, "nothing came: {xdp:?}");
    }
}

fn is_udp(packet: &Packet) -> bool {
    packet.head().len() == 42 && packet.head()[23] == 17
}

fn payload(bytes: &[u8]) -> Chain {
    let pool =
        onecopy_pool::PagePool::new(onecopy_pool::PoolConfig::new(), onecopy_pool::provider::Heap::new())
            .unwrap();
    let mut chain = Chain::new();
    for part in bytes.chunks(4096) {
        let mut page = pool.alloc().unwrap();
        page.bytes_mut().unwrap()[..part.len()].copy_from_slice(part);
        chain.append(onecopy_chain::Fragment::new(page, 0, part.len()).unwrap()).unwrap();
    }
    chain
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| ((n + seed) * 7 + (n >> 8)) as u8).collect()
}

/// Echoes datagrams of `sizes` at the other end.
fn echo(world: &World, xdp: &mut Xdp, sizes: &[usize]) {
    let socket = world.socket(xdp);
    for (at, size) in sizes.iter().enumerate() {
        let sent = bytes(*size, at);
        xdp.transmit(0, world.datagram(xdp, payload(&sent)));
        let mut buffer = vec![0; 65536];
        let (n, from) = socket.recv_from(&mut buffer).unwrap();
        assert!(buffer[..n] == sent, "{size} bytes there: {xdp:?}");
        assert_eq!(from.to_string(), "10.78.0.2:9000");
        socket.send_to(&buffer[..n], from).unwrap();
        let packet = next(xdp, is_udp);
        assert!(packet.payload().payload().host().unwrap().to_vec() == sent, "{size} bytes back: {xdp:?}");
    }
}

#[test]
fn datagrams_go_both_ways_in_every_mode() {
    alone!();
    for generic in [false, true] {
        let Some(world) = World::new() else { return };
        let mut xdp = world.open(XdpConfig::new("near").frames(1024).generic(generic)).unwrap();
        let hook = if generic { Hook::Generic } else { Hook::Driver };
        assert_eq!((xdp.hook(), xdp.name(), xdp.queue()), (hook, "near", 0), "{xdp:?}");
        assert!(!xdp.is_zero_copy() && xdp.takes_unfinished(), "{xdp:?}");
        let has = xdp.capabilities();
        assert_eq!((has.medium, has.mtu, has.checksum), (Medium::Ethernet, 1500, false));
        assert!(shown(&world.here, "near").contains("xdp"), "{}", shown(&world.here, "near"));
        echo(&world, &mut xdp, &[0, 1, 17, 18, 19, 100, 1472]);
        let stats = xdp.stats();
        assert_eq!((stats.transmitted, stats.copied_bytes), (7, 1627), "{stats:?}");
        assert!(stats.received >= 7 && stats.unfinished >= 7, "veth leaves checksums to us: {stats:?}");
        assert_eq!((stats.foreign, stats.astray, stats.full, stats.not_taken), (0, 0, 0, 0));
        assert_eq!((stats.kernel_bad_frames, stats.kernel_bad_packets), (0, 0));
        drop(xdp);
        assert!(!shown(&world.here, "near").contains("xdp"), "the program is gone with it");
    }
}

#[test]
fn packets_longer_than_a_frame_go_in_several() {
    alone!();
    let Some(world) = World::new() else { return };
    ip(&world.there, "link set far mtu 9000");
    ip(&world.here, "link set near mtu 9000");
    let mut xdp = world.open(XdpConfig::new("near").frames(1024)).unwrap();
    if !xdp.takes_several_frames() {
        return println!("lacking: packets in several frames (Linux 6.6): {}", xdp.describe());
    }
    assert_eq!(xdp.capabilities().mtu, 9000);
    echo(&world, &mut xdp, &[100, 3798, 3799, 4054, 4055, 8192, 8972]);
    let stats = xdp.stats();
    assert!(stats.received_several >= 4, "{stats:?}");
    assert_eq!((stats.foreign, stats.astray, stats.kernel_bad_packets), (0, 0, 0));
}

/// What was received is sent from where it lies, if that is asked for: as what forwards does.
#[test]
fn what_was_received_goes_back_from_there() {
    alone!();
    let Some(world) = World::new() else { return };
    let config = XdpConfig::new("near").frames(1024).by_reference(true);
    let mut xdp = world.open(config).unwrap();
    if !xdp.takes_several_frames() {
        return println!("lacking: packets in several frames (Linux 6.6): {}", xdp.describe());
    }
    let socket = world.socket(&xdp);
    for at in 0..600 {
        let sent = bytes(1200, at);
        socket.send_to(&sent, "10.78.0.2:9000").unwrap();
        let received = next(&mut xdp, is_udp).into_parts().1;
        let copied = xdp.stats().copied_bytes;
        let packet = world.datagram(&xdp, received);
        xdp.transmit(0, packet);
        let mut buffer = [0; 2048];
        let (n, from) = socket.recv_from(&mut buffer).unwrap();
        assert!(buffer[..n] == sent && from.port() == 9000, "{xdp:?}");
        assert_eq!(xdp.stats().copied_bytes, copied);
    }
    while xdp.receive(0).is_some() {}
    assert_eq!(xdp.stats().by_reference, 600, "{xdp:?}");
}

/// What is sent while the other end is down is lost, as on any wire, and no frame with it.
#[test]
fn frames_come_back_whatever_becomes_of_packets() {
    alone!();
    let Some(world) = World::new() else { return };
    let mut xdp = world.open(XdpConfig::new("near").frames(256)).unwrap();
    let socket = world.socket(&xdp);
    let sent = bytes(100, 0);
    for round in 0..3 {
        ip(&world.there, "link set far down");
        for _ in 0..200 {
            xdp.receive(0);
            if xdp.room(0) > 0 {
                xdp.transmit(0, world.datagram(&xdp, payload(&sent)));
            }
        }
        ip(&world.there, "link set far up");
        let mac = xdp.hardware_address().map(|byte| format!("{byte:02x}")).join(":");
        ip(&world.there, &format!("neigh replace 10.78.0.2 lladdr {mac} dev far"));
        // What it had kept leaves first, if it had.
        xdp.receive(0);
        let last = bytes(101, round);
        xdp.transmit(0, world.datagram(&xdp, payload(&last)));
        let mut buffer = [0; 256];
        while { socket.recv(&mut buffer).unwrap() } != 101 || buffer[..101] != last {}
        xdp.receive(0);
        assert_eq!(xdp.room(0), 32, "{xdp:?}");
    }
    assert_eq!((xdp.stats().full, xdp.stats().foreign), (0, 0));
}

#[test]
fn an_error_says_what_to_do() {
    alone!();
    let Some(world) = World::new() else { return };
    let case = |config: XdpConfig, errno, advice: &str| {
        let error = world.open(config).unwrap_err();
        assert_eq!(error.errno(), errno, "{error}");
        assert!(error.to_string().contains(advice), "{error}");
        assert!(std::io::Error::from(error).to_string().contains(advice));
    };
    let near = || XdpConfig::new("near").frames(256);
    case(XdpConfig::new("none"), Errno::NODEV, "`ip link` has their names");
    case(XdpConfig::new(""), Errno::INVAL, "`ip link` has their names");
    case(XdpConfig::new("lo"), Errno::INVAL, "link/ether");
    case(near().frames(300), Errno::INVAL, "a power of two");
    case(near().frames(128), Errno::INVAL, "256 to");
    case(near().queue(7), Errno::INVAL, "no such queue");
    case(near().zero_copy(true), Errno::OPNOTSUPP, "do not ask for that");
    ip(&world.here, "link set near down");
    case(near(), Errno::NETDOWN, "ip link set near up");
    ip(&world.here, "link set near up");
    case(near().generic(true).zero_copy(true), Errno::INVAL, "do not ask for both");
    let first = world.open(near()).unwrap();
    case(near(), Errno::BUSY, "another socket has that queue");
    drop(first);
    // Somebody else's program is there, and no socket.
    let other = world.here.run(|| {
        let map = onecopy_sys::bpf::socket_map(1).unwrap();
        let program = onecopy_sys::bpf::redirect_program(&map, false).unwrap();
        onecopy_sys::bpf::attach(program, interface::index("near").unwrap(), Hook::Generic).unwrap()
    });
    case(near(), Errno::EXIST, "has an XDP program");
    case(near().generic(true), Errno::BUSY, "has an XDP program");
    drop(other);
    ip(&world.there, "link set far mtu 65535");
    ip(&world.here, "link set near mtu 65535");
    case(near(), Errno::MSGSIZE, "ip link set near mtu 65258");
    ip(&world.here, "link set near mtu 1500");
    // Nobody in particular.
    let nobody = || {
        let none = rustix::thread::CapabilitySet::empty();
        let none = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, none).unwrap();
        Xdp::open(near())
    };
    let error = world.here.run(nobody).unwrap().unwrap_err();
    assert_eq!(error.errno(), Errno::PERM);
    assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
    // And after all that it is there to be had.
    world.open(near()).unwrap();
}

#[test]
fn of_several_queues_one_has_to_be_named() {
    alone!();
    let Some(world) = World::new() else { return };
    let pair =
        "link add many numrxqueues 2 numtxqueues 2 type veth peer name others numrxqueues 2 numtxqueues 2";
    ip(&world.here, pair);
    ip(&world.here, "link set many up");
    ip(&world.here, "link set others up");
    let many = || XdpConfig::new("many").frames(256);
    let error = world.open(many()).unwrap_err();
    assert!(error.to_string().contains("2 queues") && error.to_string().contains("ethtool -L"), "{error}");
    let second = world.open(many().queue(1)).unwrap();
    assert_eq!(second.queue(), 1);
}

/// Behind the driver a veth hands over whole what its other end left to the device to cut apart.
#[test]
fn udp_that_was_to_be_cut_apart_is_no_datagram() {
    alone!();
    let Some(world) = World::new() else { return };
    let mut xdp = world.open(XdpConfig::new("near").frames(1024).generic(true)).unwrap();
    let socket = world.socket(&xdp);
    // UDP_SEGMENT of SOL_UDP (udp(7)).
    let cut = |bytes| onecopy_sys::sockopt::set_int(socket.as_fd(), 17, 103, bytes);
    if cut(1000).is_err() {
        return println!("lacking: UDP_SEGMENT (Linux 4.18)");
    }
    socket.send_to(&bytes(4000, 1), "10.78.0.2:9000").unwrap();
    cut(0).unwrap();
    socket.send_to(b"one", "10.78.0.2:9000").unwrap();
    assert_eq!(next(&mut xdp, is_udp).payload().payload().host().unwrap().to_vec(), b"one");
    assert_eq!(xdp.stats().trains, 1, "{xdp:?}");
}

/// A card leaves out what nobody has asked for.
#[test]
fn the_interface_passes_on_what_the_stack_is_to_have() {
    alone!();
    let Some(world) = World::new() else { return };
    let near = || XdpConfig::new("near").frames(256);
    let own = world.here.run(|| interface::hardware_address("near")).unwrap().unwrap().unwrap();
    let modes = || shown(&world.here, "near");
    let asked = |text: &str, what: &str| text.contains(&format!("{what} 1"));
    if !asked(&modes(), "allmulti") && !modes().contains("allmulti 0") {
        return println!("lacking: an ip (iproute2) that shows allmulti");
    }
    for (config, whatever) in
        [(near(), false), (near().address(own), false), (near().address([2, 0, 0, 0, 0, 9]), true)]
    {
        let xdp = world.open(config).unwrap();
        let text = modes();
        assert_eq!((asked(&text, "allmulti"), asked(&text, "promiscuity")), (true, whatever), "{text}");
        drop(xdp);
        assert!(!asked(&modes(), "allmulti") && !asked(&modes(), "promiscuity"), "{}", modes());
    }
}

/// A process that is killed and reaped when this is dropped, in a test that fails too.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// However the process ends.
#[test]
fn a_killed_holder_leaves_no_program() {
    const CHILD: &str = "ONECOPY_XDP_HOLDER";
    if let Ok(path) = std::env::var(CHILD) {
        let namespace = Namespace::open(path).unwrap();
        let xdp = namespace.run(|| Xdp::open(XdpConfig::new("near").frames(256))).unwrap().unwrap();
        println!("open: {}", xdp.describe());
        loop {
            std::thread::park();
        }
    }
    alone!();
    let Some(world) = World::new() else { return };
    let test = "a_killed_holder_leaves_no_program";
    let child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, world.here.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Killed(child);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.0.stdout.take().unwrap()));
    while !lines.next().expect("it opens").unwrap().contains("open: AF_XDP on near") {}
    assert!(shown(&world.here, "near").contains("xdp"));
    drop(child);
    assert!(!shown(&world.here, "near").contains("xdp"), "{}", shown(&world.here, "near"));
    world.open(XdpConfig::new("near").frames(256)).unwrap();
}

/// A child of a fork has a copy of the link that does nothing, and its end is none of its parent's.
#[test]
fn a_fork_s_child_leaves_the_link_alone() {
    alone!();
    let Some(world) = World::new() else { return };
    let mut xdp = world.open(XdpConfig::new("near").frames(1024)).unwrap();
    echo(&world, &mut xdp, &[100]);
    let packet = world.datagram(&xdp, payload(&bytes(7, 0)));
    let mut both = Some((xdp, packet));
    let child = onecopy_sys::fork::child(|| {
        let (mut xdp, packet) = both.take().unwrap();
        let idle = xdp.room(0) == 0 && xdp.receive(0).is_none() && xdp.deadline().is_none();
        xdp.transmit(0, packet);
        xdp.flush(0);
        let sent = xdp.stats().transmitted;
        drop(xdp);
        i32::from(!idle || sent != 1)
    });
    assert_eq!(child.unwrap().wait(), onecopy_sys::fork::Ended::Returned(0));
    let (mut xdp, _) = both.take().unwrap();
    assert!(shown(&world.here, "near").contains("xdp"));
    echo(&world, &mut xdp, &[1, 100, 1472]);
    assert_eq!((xdp.stats().transmitted, xdp.stats().astray, xdp.stats().foreign), (4, 0, 0));
}

/// While nothing comes, the kernel is asked once a second whether the interface is there; behind that, never.
#[test]
fn an_interface_that_is_gone_is_found_out_by_a_look_in_vain() {
    alone!();
    let Some(world) = World::new() else { return };
    ip(&world.there, "link set far down");
    let mut xdp = world.open(XdpConfig::new("near").frames(256)).unwrap();
    let mut now = 5_000_000_000;
    while xdp.receive(now).is_some() {}
    assert_eq!(xdp.deadline(), Some(now + 1_000_000_000));
    ip(&world.here, "link del near");
    now += 999_999_999;
    assert!(xdp.receive(now).is_none() && !xdp.is_gone(), "it asks each time");
    now += 1;
    assert!(xdp.receive(now).is_none() && xdp.is_gone());
    assert_eq!(xdp.deadline(), None);
}
