//! The kernel's sockets at the other side of a TAP of several queues, in a network namespace: it needs root and /dev/net/tun, and says so where it has neither.

use crate::world::{counter, pattern, until_over};
use onecopy_net::tcp::{Listener, Stream};
use onecopy_net::{Stack, udp};
use onecopy_sys::netns::Namespace;
use onecopy_sys::tun;
use rustix::io::Errno;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;

const OURS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const KERNELS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

fn world(shards: u32) -> Option<(Namespace, Stack)> {
    let namespace = match Namespace::new() {
        Err(Errno::PERM) => {
            println!("lacking: a network namespace (root, CAP_SYS_ADMIN)");
            return None;
        }
        namespace => namespace.unwrap(),
    };
    let build = || Stack::builder().tap("onecopy%d").address("10.77.0.2/24").shards(shards).build();
    let stack = match namespace.run(build).unwrap() {
        Err(error @ onecopy_net::BuildError::Tap(_)) => {
            println!("lacking: a TAP ({error})");
            return None;
        }
        stack => stack.unwrap(),
    };
    let up = || tun::set_address("onecopy0", KERNELS, 24).and_then(|()| tun::set_up("onecopy0"));
    namespace.run(up).unwrap().unwrap();
    Some((namespace, stack))
}

/// Gives back what comes, and ends when that has.
fn echo(mut stream: impl Read + Write, end: impl FnOnce()) {
    let mut buffer = vec![0; 50_000];
    loop {
        match stream.read(&mut buffer).unwrap() {
            0 => return end(),
            n => stream.write_all(&buffer[..n]).unwrap(),
        }
    }
}

/// Sends bytes to who gives them back, ends, and looks at what came.
fn talks(mut stream: impl Read + Write + Copy + Send, end: impl FnOnce(), bytes: &[u8]) {
    let mut reader = stream;
    thread::scope(|scope| {
        let back = scope.spawn(move || {
            let mut back = Vec::new();
            reader.read_to_end(&mut back).unwrap();
            back
        });
        stream.write_all(bytes).unwrap();
        end();
        assert!(back.join().unwrap() == bytes);
    });
}

#[test]
fn streams_both_ways() {
    for shards in [2, 4] {
        let Some((namespace, stack)) = world(shards) else { return };
        let bytes = &pattern(300_000);
        let listener = Listener::bind(&stack, (OURS, 80).into()).unwrap();
        let kernels = &namespace.run(|| TcpListener::bind((KERNELS, 80)).unwrap()).unwrap();
        let namespace = &namespace;
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..16 {
                    let (stream, _) = listener.accept().unwrap();
                    thread::spawn(move || echo(&stream, || stream.shutdown(Shutdown::Write).unwrap()));
                }
            });
            scope.spawn(|| {
                for _ in 0..16 {
                    let (stream, _) = kernels.accept().unwrap();
                    thread::spawn(move || echo(&stream, || stream.shutdown(Shutdown::Write).unwrap()));
                }
            });
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..2 {
                        let client = namespace.run(|| TcpStream::connect((OURS, 80)).unwrap()).unwrap();
                        talks(&client, || client.shutdown(Shutdown::Write).unwrap(), bytes);
                        let client = Stream::connect(&stack, (KERNELS, 80).into()).unwrap();
                        talks(&client, || client.shutdown(Shutdown::Write).unwrap(), bytes);
                    }
                });
            }
        });
        let taken: Vec<u64> =
            (0..shards).map(|shard| stack.with_shard(shard, |inet| inet.tcp_stats().passive_opens)).collect();
        assert_eq!(taken.iter().sum::<u64>(), 16);
        assert_eq!(counter(&stack, "handed_over_dropped"), 0);
        drop(listener);
        until_over(&stack);
    }
}

#[test]
fn datagrams_both_ways() {
    let Some((namespace, stack)) = world(4) else { return };
    let kernels = namespace.run(|| UdpSocket::bind((KERNELS, 7000)).unwrap()).unwrap();
    let to: SocketAddr = (KERNELS, 7000).into();
    // Some longer than a packet: the kernel cuts them.
    for (number, len) in (0..64).zip([0, 1, 1472, 5000].into_iter().cycle()) {
        let socket = udp::Socket::bind(&stack, (OURS, 9000 + number).into()).unwrap();
        socket.set(|settings| settings.dont_fragment = false).unwrap();
        let bytes = pattern(len);
        socket.send_to(&bytes, to).unwrap();
        let mut buffer = vec![0; 10_000];
        let (n, from) = kernels.recv_from(&mut buffer).unwrap();
        assert!(buffer[..n] == bytes && from == (OURS, 9000 + number).into());
        kernels.send_to(&bytes, from).unwrap();
        let (n, from) = socket.recv_from(&mut buffer).unwrap();
        assert!(buffer[..n] == bytes && from == to);
        // And where nobody is, as often as the kernel says so at once (net.ipv4.icmp_ratelimit).
        if number > 3 {
            continue;
        }
        socket.connect((KERNELS, 9).into()).unwrap();
        socket.send(b"anybody?").unwrap();
        assert_eq!(socket.recv(&mut buffer).unwrap_err().raw_os_error(), Errno::CONNREFUSED.raw_os_error());
    }
}

#[test]
fn a_device_that_was_there_before_has_to_be_of_many_queues() {
    let Some((namespace, stack)) = world(2) else { return };
    let one = namespace.run(|| Stack::builder().tap("onecopy0").address("10.77.0.3/24").build()).unwrap();
    let error = one.unwrap_err();
    assert!(error.to_string().contains("one queue or more"), "{error}");
    // Another stack of many queues shares it: each gets what the kernel brings there. (No way to run two hosts, but no error.)
    let more =
        namespace.run(|| Stack::builder().tap("onecopy0").address("10.77.0.3/24").shards(2).build()).unwrap();
    assert_eq!(more.unwrap().shards(), 2);
    let many =
        namespace.run(|| Stack::builder().tap("toomany").address("10.77.0.3/24").shards(65).build()).unwrap();
    assert!(many.unwrap_err().to_string().contains("64"), "more than there can be");
    drop(stack);
}
