//! Earlier errors between honest ends, or between an end and its own machine.
#![allow(missing_docs, reason = "a test")]

use onecopy_testing::LONG;
use onecopy_unix::*;
use rustix::event::{Timespec, epoll};
use std::io::{ErrorKind, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;
use std::time::{Duration, Instant};

fn name(test: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("onecopy-races-{test}-{}", std::process::id())).unwrap()
}

fn tiny() -> Config {
    Config { receive_buffer: Some(2048), send_buffer: Some(2048), ..Config::default() }
}

/// Runs `f` on its own thread, and fails if it hangs.
fn in_time<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(f()));
    result.recv_timeout(LONG).expect("it hangs")
}

fn edges(stream: &Stream, flags: epoll::EventFlags) -> OwnedFd {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(&poll, stream.as_fd(), epoll::EventData::new_u64(0), flags | epoll::EventFlags::ET).unwrap();
    poll
}

fn edge(poll: &OwnedFd, limit: Duration) -> bool {
    let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    epoll::wait(poll, &mut events, Some(&limit)).unwrap() > 0
}

#[test]
fn a_reset_is_told_across_the_upgrade() {
    let listener = Listener::bind(name("reset")).unwrap();
    let client = Stream::connect(name("reset")).unwrap();
    client.send(b"x").unwrap();
    let (server, _) = listener.accept().unwrap();
    client.readable_bytes().unwrap();
    drop(server);
    let error = client.recv(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(client.recv(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn empty_slices_before_a_byte_end() {
    for transport in [Transport::Kernel, Transport::Auto] {
        let (a, b) = Stream::pair_with(&Config { transport, ..Config::default() }).unwrap();
        let sent = in_time(move || {
            let mut slices = vec![IoSlice::new(&[]); 2000];
            slices.push(IoSlice::new(b"x"));
            a.send_vectored(&slices).unwrap()
        });
        assert_eq!(sent, 1);
        assert_eq!(b.recv(&mut [0; 8]).unwrap(), 1);
    }
}

#[test]
fn parking_again_and_again_is_no_lie() {
    let (a, b) = Stream::pair_with(&tiny()).unwrap();
    a.set_nonblocking(true).unwrap();
    b.set_nonblocking(true).unwrap();
    let end = Instant::now() + Duration::from_millis(1500);
    let sender = std::thread::spawn(move || {
        while Instant::now() < end {
            match a.reserve(4000) {
                Ok(mut slot) => {
                    slot.copy_from(&[1; 4096]);
                    slot.commit().unwrap();
                }
                Err(error) => assert!(error.would_block(), "{error}"),
            }
        }
    });
    while !sender.is_finished() {
        match b.recv(&mut [0; 4096]) {
            Ok(_) => {}
            Err(error) => assert!(error.would_block(), "{error}"),
        }
    }
    sender.join().unwrap();
    assert_eq!(b.stats().protocol_errors, 0);
}

#[test]
fn a_bell_under_way_beside_a_filler_is_no_lie() {
    let (a, b) = Stream::pair_with(&tiny()).unwrap();
    b.set_nonblocking(true).unwrap();
    let end = Instant::now() + Duration::from_millis(1500);
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    while Instant::now() < end {
                        a.send(&[0; 3000]).unwrap();
                    }
                })
            })
            .collect();
        while senders.iter().any(|sender| !sender.is_finished()) {
            match b.recv(&mut [0; 4096]) {
                Ok(_) => {}
                Err(error) => assert!(error.would_block(), "{error}"),
            }
        }
    });
    assert_eq!(b.stats().protocol_errors, 0);
}

#[test]
fn a_short_read_is_followed_by_an_edge() {
    let (a, b) = Stream::pair().unwrap();
    b.set_nonblocking(true).unwrap();
    let poll = edges(&b, epoll::EventFlags::IN);
    let total = 300_000u64;
    let sender = std::thread::spawn(move || {
        for i in 0..total {
            for _ in 0..i % 61 {
                std::hint::spin_loop();
            }
            a.send(b"q").unwrap();
        }
        a
    });
    let mut got = 0;
    let mut buffer = vec![0; 65536];
    while got < total {
        assert!(edge(&poll, LONG), "asleep with {:?} bytes readable", b.readable_bytes());
        // Bytes are borrowed or copied. epoll(7) allows waiting again after a short count.
        while let Ok(n) = if got % 2 == 0 {
            b.recv(&mut buffer)
        } else {
            b.recv_borrowed(buffer.len()).map(|view| view.len())
        } {
            got += n as u64;
            if n < buffer.len() {
                break;
            }
        }
    }
    drop(sender.join().unwrap());
}

#[test]
fn no_ring_is_larger_than_either_side_accepts() {
    let large = Config { receive_buffer: Some(4 << 20), ..Config::default() };
    let listener = Listener::bind_with(name("large"), &large).unwrap();
    let client =
        Stream::connect_with(name("large"), &Config { max_ring: 1 << 20, ..Config::default() }).unwrap();
    let (server, _) = listener.accept().unwrap();
    // The client's first rings are too small for the server, which says so. The next ones are as large as the
    // client itself accepts.
    for _ in 0..5 {
        client.send(b"there").unwrap();
        assert_eq!(server.recv(&mut [0; 8]).unwrap(), 5);
    }
    assert_eq!((client.path().send, client.capacity().0), (Carrier::SharedMemory, 1 << 20));
    server.send(b"back").unwrap();
    assert_eq!(client.recv(&mut [0; 8]).unwrap(), 4);
    assert!(client.path().is_shared_memory() && server.path().is_shared_memory());
    assert_eq!((client.stats().fallbacks, server.stats().fallbacks), (0, 0));
}

#[test]
fn a_sender_that_was_turned_away_gets_its_edge() {
    for transport in [Transport::Kernel, Transport::Auto] {
        let (a, _b) = Stream::pair_with(&Config { transport, ..Config::default() }).unwrap();
        a.set_nonblocking(true).unwrap();
        let poll = edges(&a, epoll::EventFlags::OUT);
        assert!(edge(&poll, LONG));
        let slot = a.reserve(10).unwrap();
        assert!(a.send(b"x").unwrap_err().would_block());
        drop(slot);
        assert!(edge(&poll, LONG), "{transport:?}");
        a.send(b"x").unwrap();
    }
}
