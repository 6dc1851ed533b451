//! Streams of this crate against each other, in one process.
#![allow(missing_docs, reason = "a test")]

use onecopy_testing::{asleep, readable, writable};
use onecopy_unix::*;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed).wrapping_mul(2654435761) >> 13) as u8).collect()
}

fn small() -> Config {
    Config { receive_buffer: Some(4096), send_buffer: Some(4096), ..Config::default() }
}

fn name(test: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("onecopy-test-{test}-{}", std::process::id())).unwrap()
}

/// Returns a connected pair through a listener, upgraded in both directions.
fn connected(test: &str, config: &Config) -> (Stream, Stream) {
    let listener = Listener::bind_with(name(test), config).unwrap();
    let client = Stream::connect_with(name(test), config).unwrap();
    let (server, _) = listener.accept().unwrap();
    let mut byte = [0];
    client.send(b"a").unwrap();
    server.recv(&mut byte).unwrap();
    server.send(b"b").unwrap();
    client.recv(&mut byte).unwrap();
    client.send(b"c").unwrap();
    server.recv(&mut byte).unwrap();
    server.send(b"d").unwrap();
    client.recv(&mut byte).unwrap();
    assert_eq!(byte, *b"d");
    assert!(client.path().is_shared_memory() && server.path().is_shared_memory());
    (client, server)
}

#[test]
fn a_pair_carries_bytes_both_ways() {
    let (a, b) = Stream::pair().unwrap();
    assert!(a.path().is_shared_memory());
    a.send(b"there").unwrap();
    b.send(b"back").unwrap();
    let mut buffer = [0; 16];
    assert_eq!(b.recv_with_flags(&mut buffer, RecvFlags::PEEK).unwrap(), 5);
    assert_eq!(b.recv(&mut buffer).unwrap(), 5);
    assert_eq!(&buffer[..5], b"there");
    assert_eq!(a.recv(&mut buffer).unwrap(), 4);
    assert_eq!(&buffer[..4], b"back");
}

#[test]
fn megabytes_pass_through_a_small_ring_unharmed() {
    for wait in [Wait::Adaptive, Wait::Block, Wait::Spin] {
        let (a, b) = Stream::pair_with(&Config { wait, ..small() }).unwrap();
        // Spinning threads that share a CPU with others wait for their time slices.
        let data = pattern(1, if wait == Wait::Spin { 100_000 } else { 3 << 20 });
        let copy = data.clone();
        let sender = std::thread::spawn(move || {
            let mut a = a;
            for piece in copy.chunks(100_003) {
                a.write_all(piece).unwrap();
            }
        });
        let mut got = Vec::new();
        (&b).read_to_end(&mut got).unwrap();
        sender.join().unwrap();
        assert!(got == data, "{wait:?}");
    }
}

#[test]
fn a_receiver_that_spins_lets_others_look_and_give_back() {
    let (a, b) = Stream::pair_with(&Config { wait: Wait::Spin, ..small() }).unwrap();
    // The ring is exactly full. A send without room would park a filler, and the receiver naps for that.
    let full = vec![7; a.capacity().0];
    assert_eq!(a.send(&full).unwrap(), full.len());
    let mut view = b.recv_borrowed(full.len()).unwrap();
    assert_eq!(view.len(), full.len(), "all of the room is borrowed");
    let (a, b) = (&a, &b);
    std::thread::scope(|scope| {
        scope.spawn(move || assert_eq!(b.recv(&mut [0]).unwrap(), 1));
        scope.spawn(move || assert_eq!(a.send(&[8]).unwrap(), 1));
        std::thread::sleep(Duration::from_millis(20));
        // Each of these calls takes the lock that the spinning thread holds. Without them the three would
        // wait for each other.
        b.readable_bytes().unwrap();
        view.advance(1);
        drop(view);
    });
}

#[test]
fn the_stream_is_whole_across_the_upgrade() {
    for round in 0..20 {
        let listener = Listener::bind_with(name(&format!("upgrade{round}")), &small()).unwrap();
        let client = Stream::connect_with(name(&format!("upgrade{round}")), &small()).unwrap();
        let up = pattern(round, 400_000);
        let down = pattern(round + 7, 300_000);
        // This is sent before accept, as far as it fits.
        let early = client.send_with_flags(&up, SendFlags::DONTWAIT).unwrap();
        let (server, _) = listener.accept().unwrap();
        let (client, server, late) = (&client, &server, &up[early..]);
        let down_ref = &down;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut client = client;
                client.write_all(late).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                let mut server = server;
                for piece in down_ref.chunks(1 + round * 777) {
                    server.write_all(piece).unwrap();
                }
                server.shutdown(Shutdown::Write).unwrap();
            });
            let reader = scope.spawn(move || {
                let (mut server, mut got) = (server, Vec::new());
                server.read_to_end(&mut got).unwrap();
                got
            });
            let (mut c, mut got) = (client, Vec::new());
            c.read_to_end(&mut got).unwrap();
            assert!(got == down);
            assert!(reader.join().unwrap() == up);
        });
    }
}

#[test]
fn plain_peers_are_served_over_the_kernel() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{self, UnixListener, UnixStream};
    let abstract_name = format!("onecopy-test-plain-{}", std::process::id());
    let listener = Listener::bind(SocketAddr::from_abstract_name(&abstract_name).unwrap()).unwrap();
    let address = net::SocketAddr::from_abstract_name(&abstract_name).unwrap();
    let mut plain = UnixStream::connect_addr(&address).unwrap();
    plain.write_all(b"GET").unwrap();
    let (server, _) = listener.accept().unwrap();
    let mut buffer = [0; 100];
    assert_eq!(server.recv(&mut buffer).unwrap(), 3);
    server.send(b"200").unwrap();
    assert_eq!(plain.read(&mut buffer).unwrap(), 3);
    assert_eq!(server.stats().fallbacks, 1);

    let abstract_name = format!("onecopy-test-plain2-{}", std::process::id());
    let address = net::SocketAddr::from_abstract_name(&abstract_name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    let client = Stream::connect(SocketAddr::from_abstract_name(&abstract_name).unwrap()).unwrap();
    client.send(b"GET").unwrap();
    let (mut plain, _) = listener.accept().unwrap();
    assert_eq!(plain.read(&mut buffer).unwrap(), 3);
    plain.write_all(b"200").unwrap();
    assert_eq!(client.recv(&mut buffer).unwrap(), 3);
    assert_eq!(client.stats().fallbacks, 1);
    drop(plain);
    assert_eq!(client.recv(&mut buffer).unwrap(), 0);
}

#[test]
fn readiness_mirrors_the_ring() {
    let (a, b) = connected("readiness", &small());
    assert!(!readable(&b) && writable(&a));
    a.send(b"12345").unwrap();
    assert!(readable(&b));
    let mut two = [0; 2];
    b.recv(&mut two).unwrap();
    assert!(readable(&b), "data was left behind");
    let mut many = [0; 100];
    assert_eq!(b.recv(&mut many).unwrap(), 3);
    assert!(!readable(&b), "all was taken");
    assert_eq!(b.recv_with_flags(&mut many, RecvFlags::DONTWAIT).unwrap_err().raw_os_error(), libc_eagain());
    let mut sent = 0;
    while let Ok(n) = a.send_with_flags(&[7; 1000], SendFlags::DONTWAIT) {
        sent += n;
    }
    assert_eq!(sent, a.capacity().0);
    assert!(!writable(&a) && readable(&b));
    let mut got = 0;
    while got < sent {
        got += b.recv_with_flags(&mut many, RecvFlags::DONTWAIT).unwrap();
    }
    assert!(writable(&a) && !readable(&b));
    for _ in 0..1000 {
        a.send(b"x").unwrap();
        assert!(readable(&b));
        b.recv(&mut two).unwrap();
        assert!(!readable(&b));
    }
}

/// The low-water mark is a quarter of the ring: less room wakes no writer.
#[test]
fn who_was_full_is_writable_at_a_quarter_of_room() {
    let (a, b) = connected("low-water", &small());
    assert!(writable(&a));
    while a.send_with_flags(&[7; 1000], SendFlags::DONTWAIT).is_ok() {}
    assert!(!writable(&a));
    let mut quarter = vec![0; a.capacity().0 / 4 - 1];
    for _ in 0..2 {
        assert_eq!(b.recv_with_flags(&mut quarter, RecvFlags::DONTWAIT).unwrap(), quarter.len());
        assert!(!writable(&a));
        assert_eq!(b.recv_with_flags(&mut [0; 1], RecvFlags::DONTWAIT).unwrap(), 1);
        assert!(writable(&a));
        while a.send_with_flags(&[7; 1000], SendFlags::DONTWAIT).is_ok() {}
        assert!(!writable(&a));
    }
}

fn libc_eagain() -> i32 {
    rustix::io::Errno::AGAIN.raw_os_error()
}

#[test]
fn data_then_reset_then_the_end() {
    let (a, b) = connected("reset", &small());
    b.send(b"unread").unwrap();
    a.send(b"data").unwrap();
    drop(a);
    let mut buffer = [0; 16];
    assert_eq!(b.recv(&mut buffer).unwrap(), 4);
    let error = b.recv(&mut buffer).unwrap_err();
    assert_eq!(error.raw_os_error(), rustix::io::Errno::CONNRESET.raw_os_error());
    assert_eq!(b.recv(&mut buffer).unwrap(), 0);
}

#[test]
fn an_orderly_close_is_no_reset() {
    let (a, b) = connected("close", &small());
    a.send(b"data").unwrap();
    drop(a);
    let mut buffer = [0; 16];
    assert_eq!(b.recv(&mut buffer).unwrap(), 4);
    assert_eq!(b.recv(&mut buffer).unwrap(), 0);
    assert_eq!(b.recv(&mut buffer).unwrap(), 0);
    // A sender with room notices within a moment that the peer is gone.
    let began = Instant::now();
    while b.send_with_flags(b"x", SendFlags::DONTWAIT).is_ok() {
        assert!(began.elapsed() < onecopy_testing::LONG, "nobody notices");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_blocked_writer_is_freed_by_close_and_by_shutdown() {
    for close in [true, false] {
        let (a, b) = connected(&format!("blocked{close}"), &small());
        std::thread::scope(|scope| {
            let writer = asleep(scope, || a.send(&[1; 1 << 20]));
            let mut b = Some(b);
            if close {
                b.take();
            } else if let Some(b) = &b {
                b.shutdown(Shutdown::Read).unwrap();
            }
            let start = Instant::now();
            let sent = writer.join().unwrap().unwrap();
            assert!(start.elapsed() < onecopy_testing::LONG);
            assert_eq!(sent, a.capacity().0, "what was sent before the end is told");
            let error = a.send(b"x").unwrap_err();
            assert_eq!(error.raw_os_error(), rustix::io::Errno::PIPE.raw_os_error());
        });
    }
}

#[test]
fn timeouts_end_waits() {
    let (a, b) = connected("timeouts", &small());
    b.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    a.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
    let start = Instant::now();
    assert!(b.recv(&mut [0; 1]).unwrap_err().would_block());
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert_eq!(a.send(&vec![0; 1 << 20]).unwrap(), a.capacity().0);
    assert!(a.send(b"x").unwrap_err().would_block());
    let mut buffer = vec![0; a.capacity().0 + 1];
    assert_eq!(b.recv_with_flags(&mut buffer, RecvFlags::WAITALL).unwrap(), a.capacity().0);
}

/// The kernel looks first, and only then at the clock. A thread may have no CPU for all of its time, so these
/// calls do the same.
#[test]
fn whose_time_is_over_looks_all_the_same() {
    for wait in [Wait::Adaptive, Wait::Block, Wait::Spin] {
        let config = Config { wait, ..small() };
        let (shared, over_kernel) = (connected("looks", &config), {
            let listener = Listener::bind_with(name("looks"), &config).unwrap();
            (Stream::connect_with(name("looks"), &config).unwrap(), listener.accept().unwrap().0)
        });
        for (a, b) in [shared, over_kernel] {
            a.set_read_timeout(Some(Duration::from_nanos(1))).unwrap();
            assert!(a.recv(&mut [0; 9]).unwrap_err().would_block());
            b.send(b"last").unwrap();
            drop(b);
            assert_eq!(a.recv(&mut [0; 9]).unwrap(), 4);
            assert_eq!(a.recv(&mut [0; 9]).unwrap(), 0, "{wait:?}");
        }
    }
}

#[test]
fn reserved_room_is_sent_when_committed_and_only_then() {
    let (a, b) = connected("reserve", &small());
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let mut start = [0; 3000];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut start, 64).unwrap();
    for round in 0..10 {
        drop(a.reserve(100).unwrap());
        let mut slot = a.reserve(3000).unwrap();
        assert_eq!(slot.len(), 3000);
        assert!(
            a.send_with_flags(b"x", SendFlags::DONTWAIT).unwrap_err().would_block(),
            "the slot holds the side"
        );
        if round % 2 == 0 {
            assert_eq!(slot.read_from(&file, 64).unwrap(), 3000);
        } else {
            assert_eq!(slot.copy_from(&start), 3000);
        }
        assert!(b.recv_with_flags(&mut [0; 1], RecvFlags::DONTWAIT).unwrap_err().would_block());
        assert_eq!(slot.commit().unwrap(), 3000);
        let mut got = [0; 3000];
        assert_eq!(b.recv_with_flags(&mut got, RecvFlags::WAITALL).unwrap(), 3000);
        assert!(got == start);
    }
    assert!(b.stats().user_copied() >= 30_000 && a.stats().kernel_copied >= 15_000);
}

#[test]
fn views_lend_and_give_back() {
    let (a, b) = connected("views", &small());
    let data = pattern(3, 200_000);
    let pipe = rustix::pipe::pipe().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&a).write_all(&data).unwrap();
            a.shutdown(Shutdown::Write).unwrap();
        });
        let mut got = Vec::new();
        loop {
            let mut view = b.recv_borrowed(3000).unwrap();
            if view.is_empty() {
                break;
            }
            let mut half = vec![0; view.len() / 2];
            assert_eq!(view.copy_to(&mut half), half.len());
            got.extend_from_slice(&half);
            view.advance(half.len());
            while !view.is_empty() {
                let n = view.write_to(&pipe.1).unwrap();
                let mut piece = vec![0; n];
                std::fs::File::from(pipe.0.try_clone().unwrap()).read_exact(&mut piece).unwrap();
                got.extend_from_slice(&piece);
                view.advance(n);
            }
        }
        assert!(got == data);
    });
}

#[test]
fn whole_sends_never_interleave() {
    let (a, b) = connected("interleave", &small());
    std::thread::scope(|scope| {
        for letter in 0..4u8 {
            let a = &a;
            scope.spawn(move || {
                for _ in 0..50 {
                    a.send(&[letter; 5000]).unwrap();
                }
            });
        }
        let mut record = [0; 5000];
        for _ in 0..200 {
            assert_eq!(b.recv_with_flags(&mut record, RecvFlags::WAITALL).unwrap(), 5000);
            assert!(record.iter().all(|byte| *byte == record[0]));
        }
    });
}

/// A program that only sends needs no second call: the rest of a long first message brings the memory.
#[test]
fn one_long_send_moves_to_shared_memory_by_itself() {
    let listener = Listener::bind(name("one-long")).unwrap();
    let client = Stream::connect(name("one-long")).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let all = pattern(3, 4 << 20);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut got = vec![0; all.len()];
            server.read_exact(&mut got).unwrap();
            got
        });
        assert_eq!(client.send(&all).unwrap(), all.len());
        assert!(reader.join().unwrap() == all);
    });
    assert_eq!(client.path().send, Carrier::SharedMemory);
    assert!(client.stats().user_copied() > 0, "{:?}", client.stats());
}

/// The peer is gone at once, as with the kernel, and not only at the next look at the rings. Before, the
/// server's sends were lost for 40 ms.
#[test]
fn who_closes_before_its_rings_are_joined_is_gone_at_once() {
    let listener = Listener::bind(name("gone-early")).unwrap();
    let client = Stream::connect(name("gone-early")).unwrap();
    for _ in 0..2 {
        client.send(b"bye").unwrap();
    }
    let (server, _) = listener.accept().unwrap();
    drop(client);
    assert_eq!(server.recv(&mut [0; 9]).unwrap(), 6);
    let errno = server.send(b"x").unwrap_err().raw_os_error();
    assert_eq!(errno, rustix::io::Errno::PIPE.raw_os_error());
}

#[test]
fn no_largest_ring_is_too_large_to_ask_for() {
    let config = Config { max_ring: usize::MAX, ..small() };
    connected("endless", &config);
}
