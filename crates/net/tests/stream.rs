//! Streams between two stacks on one cable: what programs do with std's, done with these.

use onecopy_link::Tap;
use onecopy_net::tcp::fast_open::Use;
use onecopy_net::tcp::{Listener, Settings, Stream};
use onecopy_net::{Driver, RecvFlags, SendFlags, Stack, Wait};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::thread;
use std::time::Duration;

const MTU: u32 = 1500;

fn stacks_with(driver: Driver, wait: Wait) -> (Stack, Stack) {
    let (a, b) = Tap::cable(MTU).unwrap();
    let build =
        |tap, address| Stack::builder().link(tap).address(address).driver(driver).wait(wait).build().unwrap();
    (build(a, "10.0.0.1/24"), build(b, "10.0.0.2/24"))
}

fn stacks() -> (Stack, Stack) {
    stacks_with(Driver::Thread, Wait::Block)
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], port))
}

/// A connection between two stacks, the client's end first.
fn pair(a: &Stack, b: &Stack) -> (Stream, Stream) {
    let listener = Listener::bind(b, at(0)).unwrap();
    let to = listener.local_addr().unwrap();
    let client = Stream::connect(a, to).unwrap();
    let (server, from) = listener.accept().unwrap();
    assert_eq!(from, client.local_addr().unwrap());
    assert_eq!(client.peer_addr().unwrap(), to);
    (client, server)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

#[test]
fn bytes_go_both_ways_and_the_end_is_seen() {
    for driver in [Driver::Thread, Driver::Caller] {
        for wait in [Wait::Block, Wait::Adaptive, Wait::Spin] {
            let (a, b) = stacks_with(driver, wait);
            let listener = Listener::bind(&b, at(80)).unwrap();
            // Whoever drops the last handle sees to it that all is delivered.
            drop(b);
            let echo = thread::spawn(move || {
                let (mut server, _) = listener.accept().unwrap();
                let mut buffer = [0; 64 << 10];
                let mut all = 0;
                loop {
                    let n = server.read(&mut buffer).unwrap();
                    if n == 0 {
                        return all;
                    }
                    server.write_all(&buffer[..n]).unwrap();
                    all += n;
                }
            });
            let data = pattern(3 << 20);
            let client = Stream::connect(&a, at(80)).unwrap();
            let received = thread::scope(|scope| {
                scope.spawn(|| {
                    assert_eq!(client.send(&data).unwrap(), data.len());
                    client.shutdown(Shutdown::Write).unwrap();
                });
                let mut received = Vec::new();
                (&client).read_to_end(&mut received).unwrap();
                received
            });
            assert!(received == data, "{driver:?} {wait:?}");
            assert_eq!(echo.join().unwrap(), data.len());
            let stats = client.stats();
            assert_eq!((stats.sent, stats.received), (data.len() as u64, data.len() as u64));
            assert_eq!((stats.user_copied_in, stats.user_copied_out), (stats.sent, stats.received));
            // The cable's descriptor is written and read by copying calls.
            assert_eq!(stats.kernel_copied, stats.sent + stats.received);
        }
    }
}

#[test]
fn a_refused_connection_says_so() {
    let (a, _b) = stacks();
    let error = Stream::connect(&a, at(81)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert!(error.to_string().contains("start the server"), "{error}");
    let elsewhere = SocketAddr::from(([192, 0, 2, 1], 80));
    assert_eq!(Stream::connect(&a, elsewhere).unwrap_err().kind(), ErrorKind::NetworkUnreachable);
}

#[test]
fn a_connect_gives_up_at_its_limit() {
    let (a, _b) = stacks();
    // Nobody has that address, so nobody answers before the limit.
    let nobody = SocketAddr::from(([10, 0, 0, 77], 80));
    let error = Stream::connect_timeout(&a, nobody, Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[test]
fn who_was_there_before_sends_with_its_syn() {
    let (a, b) = Tap::cable(MTU).unwrap();
    let build = |tap, address, how| {
        let builder = Stack::builder().link(tap).address(address).wait(Wait::Block);
        builder.tcp(move |tcp| tcp.fast_open = how).build().unwrap()
    };
    let (a, b) = (build(a, "10.0.0.1/24", Use::CLIENT), build(b, "10.0.0.2/24", Use::SERVER));
    let listener = Listener::bind(&b, at(0)).unwrap();
    listener.set(|settings| settings.fast_open_queue = Some(4)).unwrap();
    let to = listener.local_addr().unwrap();
    let connect = || Stream::connect_with(&a, to, |settings| settings.fast_open_connect = true).unwrap();
    // The first one brings the cookie, and is made as others are.
    let first = connect();
    assert_eq!(first.info().state, 1, "established");
    drop((first, listener.accept().unwrap()));
    // The second one begins with what is sent.
    let second = connect();
    assert_eq!(b.with(|inet| inet.tcp_stats().fast_open_begun), 0);
    assert_eq!(second.send(b"hello").unwrap(), 5);
    let (server, _) = listener.accept().unwrap();
    let mut bytes = [0; 9];
    assert_eq!(server.recv(&mut bytes).unwrap(), 5);
    assert_eq!(&bytes[..5], b"hello");
    server.send(b"there").unwrap();
    assert_eq!(second.recv(&mut bytes).unwrap(), 5);
    assert_eq!(b.with(|inet| inet.tcp_stats().fast_open_begun), 1);
    assert_eq!(a.with(|inet| inet.tcp_stats().fast_open_taken), 1);
    // TCPI_OPT_SYN_DATA: what went with the SYN was acknowledged.
    assert!(second.info().options & 32 != 0, "{:?}", second.info());
}

#[test]
fn a_syn_goes_by_the_settings_that_it_is_connected_with() {
    let (a, b) = stacks();
    let listener = Listener::bind(&b, at(0)).unwrap();
    let to = listener.local_addr().unwrap();
    let change = |settings: &mut Settings| settings.max_segment = Some(700);
    let client = Stream::connect_with(&a, to, change).unwrap();
    let (server, _) = listener.accept().unwrap();
    // (Timestamps take 12 of them.)
    assert_eq!((server.info().snd_mss, client.info().snd_mss), (688, 688));
    // What a stack does not have is refused before anything is sent.
    let short = |settings: &mut Settings| settings.max_segment = Some(1);
    let refused = Stream::connect_with(&a, to, short).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
}

#[test]
fn what_does_not_wait_says_that_it_would() {
    let (a, b) = stacks();
    let (client, server) = pair(&a, &b);
    client.set_nonblocking(true).unwrap();
    let mut buffer = [0; 16];
    assert!(client.recv(&mut buffer).unwrap_err().would_block());
    server.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    assert!(server.recv(&mut buffer).unwrap_err().would_block());
    assert!(server.recv_with_flags(&mut buffer, RecvFlags::DONTWAIT).unwrap_err().would_block());
    let block = vec![0; 1 << 20];
    let mut sent = 0;
    loop {
        match client.send(&block) {
            Ok(n) => sent += n,
            Err(error) => {
                assert!(error.would_block());
                break;
            }
        }
    }
    assert!(sent > 0);
    // Whoever reads makes room.
    server.set_read_timeout(None).unwrap();
    let mut left = sent;
    let mut sink = vec![0; 1 << 16];
    while left > 0 {
        left -= server.recv(&mut sink).unwrap();
    }
    assert_eq!(server.readable_bytes().unwrap(), 0);
}

#[test]
fn peeked_bytes_stay_and_waitall_waits() {
    let (a, b) = stacks();
    let (client, server) = pair(&a, &b);
    client.send(b"hello").unwrap();
    let mut buffer = [0; 5];
    let all = RecvFlags::PEEK | RecvFlags::WAITALL;
    assert_eq!(server.recv_with_flags(&mut buffer, all).unwrap(), 5);
    assert_eq!(server.recv(&mut buffer[..2]).unwrap(), 2);
    let writer = thread::spawn(move || {
        client.send(b" wor").unwrap();
        client.send(b"ld").unwrap();
        client
    });
    let mut rest = [0; 9];
    assert_eq!(server.recv_with_flags(&mut rest, RecvFlags::WAITALL).unwrap(), 9);
    assert_eq!(&rest, b"llo world");
    drop(writer.join().unwrap());
    assert_eq!(server.recv(&mut rest).unwrap(), 0);
}

#[test]
fn in_place_nothing_is_copied() {
    let (a, b) = stacks();
    let (client, server) = pair(&a, &b);
    let data = pattern(100_000);
    let mut slot = client.reserve(data.len()).unwrap();
    let file = std::env::current_exe().and_then(std::fs::File::open).unwrap();
    let read = slot.read_from(&file, 0).unwrap();
    assert_eq!((read, slot.filled()), (data.len(), data.len()));
    assert_eq!(slot.commit().unwrap(), data.len());
    let mut received = Vec::new();
    while received.len() < data.len() {
        let view = server.recv_borrowed(1 << 20).unwrap();
        assert!(!view.is_empty());
        view.slices().for_each(|slice| received.extend_from_slice(slice));
    }
    let mut expected = vec![0; data.len()];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut expected, 0).unwrap();
    assert!(received == expected);
    assert_eq!((client.stats().user_copied_in, server.stats().user_copied_out), (0, 0));
    assert_eq!(server.stats().referenced, data.len() as u64);
}

#[test]
fn what_was_received_is_sent_on_by_reference() {
    let (a, b) = stacks();
    let (client, server) = pair(&a, &b);
    client.send_with_flags(&pattern(50_000), SendFlags::NTCOPY).unwrap();
    let mut left = 50_000;
    while left > 0 {
        let view = server.recv_borrowed(left).unwrap();
        left -= view.len();
        server.send_segment(view.into_segment(), SendFlags::empty()).unwrap();
    }
    let mut back = vec![0; 50_000];
    client.recv_with_flags(&mut back, RecvFlags::WAITALL).unwrap();
    assert!(back == pattern(50_000));
    assert_eq!((server.stats().user_copied_in, server.stats().user_copied_out), (0, 0));
}

#[test]
fn a_shut_down_listener_wakes_who_waits() {
    let (_a, b) = stacks();
    let listener = Listener::bind(&b, at(80)).unwrap();
    let other = listener.try_clone().unwrap();
    let waiting = thread::spawn(move || other.accept().unwrap_err().kind());
    // (Whether it waits already or not: it gets the same.)
    listener.shutdown().unwrap();
    assert_eq!(waiting.join().unwrap(), ErrorKind::InvalidInput);
    let taken = Listener::bind(&b, at(80)).unwrap();
    let error = Listener::bind(&b, at(80)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    drop(taken);
}

#[test]
fn many_connections_at_once() {
    let (a, b) = stacks();
    let listener = Listener::bind(&b, at(80)).unwrap();
    let server = thread::spawn(move || {
        let workers: Vec<_> = (0..32)
            .map(|_| {
                let (mut stream, _) = listener.accept().unwrap();
                thread::spawn(move || {
                    let mut all = Vec::new();
                    stream.read_to_end(&mut all).unwrap();
                    stream.write_all(&all).unwrap();
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    let clients: Vec<_> = (0..32)
        .map(|n| {
            let a = a.clone();
            thread::spawn(move || {
                let mut stream = Stream::connect(&a, at(80)).unwrap();
                let data = pattern(10_000 + n * 1000);
                stream.write_all(&data).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                let mut back = Vec::new();
                stream.read_to_end(&mut back).unwrap();
                assert!(back == data);
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    server.join().unwrap();
}

#[test]
fn nobody_connects_to_many() {
    let (a, _b) = stacks();
    for many in ["255.255.255.255:80", "10.0.0.255:80", "224.0.0.1:80"] {
        let error = Stream::connect(&a, many.parse().unwrap()).unwrap_err();
        assert_eq!(error.raw_os_error(), 101, "ENETUNREACH, at once: {many}");
    }
    // As the kernel says it (tcp_v4_connect()).
    for many in ["255.255.255.255:80", "127.255.255.255:80"] {
        let error = std::net::TcpStream::connect(many).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(101), "{many}");
    }
}

#[test]
fn what_a_view_writes_is_counted() {
    let (a, b) = stacks();
    let (client, server) = pair(&a, &b);
    client.send(&pattern(3000)).unwrap();
    let view = server.recv_borrowed(3000).unwrap();
    let before = server.stats().kernel_copied;
    let sink = std::fs::File::options().write(true).open("/dev/null").unwrap();
    let n = view.write_to(&sink).unwrap();
    assert_eq!(server.stats().kernel_copied - before, n as u64);
    // A view outlives its socket; there is nobody left to count for.
    drop(server);
    assert_eq!(view.write_to(&sink).unwrap(), n);
}

#[test]
fn nobody_sleeps_on_what_can_leave() {
    for driver in [Driver::Thread, Driver::Caller] {
        let (a, b) = stacks_with(driver, Wait::Block);
        let listener = Listener::bind(&b, at(0)).unwrap();
        let to = listener.local_addr().unwrap();
        // The reader has the last handle, and sees to it that the end is delivered.
        drop(b);
        let reader = thread::spawn(move || {
            let mut got = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut got).map(|_| got)
        });
        let mut client = Stream::connect(&a, to).unwrap();
        // The least there is: one call waits for room again and again, and gives a little each time. The cable has room for all of it.
        client.set(|settings| settings.send_buffer = Some(0)).unwrap();
        let sent = pattern(1 << 20);
        let writer = {
            let sent = sent.clone();
            thread::spawn(move || client.write_all(&sent))
        };
        let room = || a.with(|inet| inet.interface().room());
        let all = room();
        while !writer.is_finished() {
            assert_eq!(room(), all, "the lock is free, and packets wait");
        }
        writer.join().unwrap().unwrap();
        while !reader.is_finished() {
            a.drive(Duration::from_millis(1)).unwrap();
        }
        assert!(reader.join().unwrap().unwrap() == sent);
    }
}

#[test]
fn a_piece_is_all_that_is_received_where_it_is_large_enough() {
    let (a, b) = stacks();
    let (client, server) = pair(&a, &b);
    let data = pattern(40_000);
    client.send(&data).unwrap();
    while server.readable_bytes().unwrap() < data.len() {
        thread::sleep(Duration::from_millis(1));
    }
    let (mut got, mut pieces) = (Vec::new(), 0);
    while got.len() < 20_000 {
        let view = server.recv_piece_with_flags(1 << 20, 1, RecvFlags::empty()).unwrap();
        assert!(view.slices().count() == 1 && view.true_size() >= view.len());
        (got, pieces) = ([got, view.to_vec()].concat(), pieces + 1);
    }
    assert!(pieces > 1);
    let short = server.recv_piece_with_flags(10, 1, RecvFlags::empty()).unwrap();
    assert_eq!(short.len(), 10);
    let rest = server.recv_piece_with_flags(1 << 20, usize::MAX, RecvFlags::empty()).unwrap();
    assert!(rest.slices().count() > 1 && [got, short.to_vec(), rest.to_vec()].concat() == data);
}

#[test]
fn a_connect_that_does_not_wait_comes_from_where_it_was_told_to() {
    let (a, b) = stacks();
    let listener = Listener::bind(&b, at(0)).unwrap();
    let to = listener.local_addr().unwrap();
    let from: SocketAddr = "10.0.0.1:7777".parse().unwrap();
    let client = Stream::connect_nonblocking_from(&a, from, to).unwrap();
    assert_eq!(listener.accept().unwrap().1, from);
    assert_eq!(client.local_addr().unwrap(), from);
    let again = Stream::connect_nonblocking_from(&a, from, to).unwrap_err();
    assert_eq!(again.raw_os_error(), 99, "EADDRNOTAVAIL: {again}");
}
