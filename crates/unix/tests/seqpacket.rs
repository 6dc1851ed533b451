//! Seqpacket sockets of this crate against each other and against the kernel's, in one process.
#![allow(missing_docs, reason = "a test")]

use onecopy_unix::*;
use std::io::{IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::time::Duration;

const NONE: RecvFlags = RecvFlags::empty();
const QUIET: SendFlags = SendFlags::empty();
const NOW: RecvFlags = RecvFlags::DONTWAIT;

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed).wrapping_mul(2654435761) >> 13) as u8).collect()
}

fn small() -> Config {
    Config { receive_buffer: Some(4096), send_buffer: Some(4096), ..Config::default() }
}

fn stream_records() -> Config {
    Config { records: Records::Stream, ..small() }
}

fn name(test: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("onecopy-seq-{test}-{}", std::process::id())).unwrap()
}

fn both(test: &str, config: &Config) -> (SeqPacket, SeqPacket) {
    let listener = SeqListener::bind_with(name(test), config).unwrap();
    let client = SeqPacket::connect_with(name(test), config).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Returns a connected pair through a listener, upgraded in both directions.
fn connected(test: &str, config: &Config) -> (SeqPacket, SeqPacket) {
    let (client, server) = both(test, config);
    for _ in 0..3 {
        for (from, to) in [(&client, &server), (&server, &client)] {
            from.send_with_flags(b"u", QUIET | SendFlags::EOR).unwrap();
            assert_eq!(to.recv(&mut [0; 9]).unwrap(), 1);
        }
    }
    assert!(client.path().is_shared_memory() && server.path().is_shared_memory());
    (client, server)
}

fn events(socket: &SeqPacket) -> (bool, bool) {
    use rustix::event::PollFlags;
    let flags = PollFlags::IN | PollFlags::OUT;
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(socket.as_fd(), flags)];
    let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&zero)).unwrap();
    (fds[0].revents().contains(PollFlags::IN), fds[0].revents().contains(PollFlags::OUT))
}

fn errno(result: Result<usize>) -> i32 {
    result.unwrap_err().raw_os_error()
}

#[test]
fn records_keep_their_borders_on_every_way() {
    let kernel = Config { transport: Transport::Kernel, ..Config::default() };
    for (i, (a, b)) in [
        SeqPacket::pair().unwrap(),
        SeqPacket::pair_with(&kernel).unwrap(),
        connected("borders", &Config::default()),
        both("borders-early", &Config::default()),
    ]
    .into_iter()
    .enumerate()
    {
        let mut buffer = [0; 16];
        for record in [&b"first"[..], b"", b"third, which is cut", b"x"] {
            assert_eq!(a.send(record).unwrap(), record.len(), "{i}");
        }
        assert_eq!(b.recv_with_flags(&mut buffer, RecvFlags::PEEK).unwrap(), 5);
        assert_eq!(b.recv(&mut buffer).unwrap(), 5);
        assert_eq!(&buffer[..5], b"first");
        let empty = b.recv_record(&mut buffer).unwrap();
        assert_eq!((empty.len, empty.is_end()), (0, false), "{i}");
        let peeked = b.recv_with_flags(&mut buffer, RecvFlags::PEEK | RecvFlags::TRUNC).unwrap();
        assert_eq!(peeked, 19);
        let cut = b.recv_record(&mut buffer).unwrap();
        assert_eq!((cut.len, cut.full, cut.flags), (16, 19, ReceivedFlags::TRUNC));
        assert_eq!(b.readable_bytes().unwrap(), 1, "{i}");
        assert_eq!(b.recv(&mut []).unwrap(), 0);
        assert_eq!(
            errno(b.recv_with_flags(&mut buffer, NOW)),
            11,
            "a record is gone even if nothing of it was wanted"
        );
        drop(a);
        assert!(b.recv_record(&mut buffer).unwrap().is_end(), "{i}");
    }
}

#[test]
fn a_record_is_sent_whole_or_not_at_all() {
    let (a, b) = connected("whole", &small());
    let largest = a.max_record();
    assert_eq!(errno(a.send(&vec![1; largest + 1])), 90);
    let record = pattern(1, largest);
    assert_eq!(a.send(&record).unwrap(), largest);
    assert_eq!(errno(a.send_with_flags(b"", QUIET | SendFlags::DONTWAIT)), 11);
    let mut buffer = vec![0; largest + 10];
    assert_eq!(b.recv(&mut buffer).unwrap(), largest);
    assert_eq!(&buffer[..largest], record);
    let sizes: Vec<usize> = (0..3000).map(|i| i * 37 % 700).collect();
    let expected = sizes.clone();
    let sender = std::thread::spawn(move || {
        for (i, len) in sizes.into_iter().enumerate() {
            let record = pattern(i, len);
            let (x, y) = record.split_at(len / 3);
            assert_eq!(a.send_vectored(&[IoSlice::new(x), IoSlice::new(y)]).unwrap(), len);
        }
    });
    for (i, len) in expected.into_iter().enumerate() {
        let (x, y) = buffer.split_at_mut(100);
        let slices = &mut [IoSliceMut::new(x), IoSliceMut::new(y)];
        let (got, _) = b.recv_msg(slices, NONE).unwrap();
        assert_eq!((got.len, got.full), (len, len));
        assert_eq!(&buffer[..len], pattern(i, len));
    }
    sender.join().unwrap();
    assert!(b.recv_record(&mut buffer).unwrap().is_end());
}

#[test]
fn a_plain_peer_never_notices() {
    use onecopy_unix::SocketAddr;
    use rustix::net::*;
    let socket =
        || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let at = format!("onecopy-seq-plain-{}", std::process::id());
    let address = SocketAddrUnix::new_abstract_name(at.as_bytes()).unwrap();
    let mut buffer = [0; 100];
    {
        let listener = SeqListener::bind(SocketAddr::from_abstract_name(&at).unwrap()).unwrap();
        let plain = socket();
        connect(&plain, &address).unwrap();
        send(&plain, b"one", SendFlags::empty()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        send(&plain, b"", SendFlags::empty()).unwrap();
        ours.send(b"two").unwrap();
        assert_eq!(ours.recv(&mut buffer).unwrap(), 3);
        assert!(!ours.recv_record(&mut buffer).unwrap().is_end());
        assert_eq!(recv(&plain, &mut buffer[..], RecvFlags::empty()).unwrap().1, 3);
        assert_eq!(ours.stats().fallbacks, 1);
    }
    let listener = socket();
    bind(&listener, &address).unwrap();
    listen(&listener, 4).unwrap();
    let ours = SeqPacket::connect(SocketAddr::from_abstract_name(&at).unwrap()).unwrap();
    ours.send(b"before").unwrap();
    let plain = accept(&listener).unwrap();
    send(&plain, b"", SendFlags::empty()).unwrap();
    send(&plain, b"back", SendFlags::empty()).unwrap();
    assert_eq!(recv(&plain, &mut buffer[..], RecvFlags::empty()).unwrap().1, 6);
    assert!(!ours.recv_record(&mut buffer).unwrap().is_end());
    assert_eq!(ours.recv(&mut buffer).unwrap(), 4);
    drop(plain);
    assert!(ours.recv_record(&mut buffer).unwrap().is_end());
}

#[test]
fn readiness_follows_the_ring() {
    let (a, b) = connected("ready", &small());
    a.set_nonblocking(true).unwrap();
    b.set_nonblocking(true).unwrap();
    let mut buffer = [0; 1000];
    assert_eq!((events(&a), events(&b)), ((false, true), (false, true)));
    for round in 0..50 {
        a.send(b"x").unwrap();
        a.send(b"y").unwrap();
        assert!(events(&b).0, "{round}");
        b.recv(&mut buffer).unwrap();
        assert!(events(&b).0, "one is left");
        b.recv(&mut buffer).unwrap();
        assert!(!events(&b).0);
        let mut sent = 0;
        while a.send(&[7; 500]).is_ok() {
            sent += 1;
        }
        assert!(!events(&a).1, "full");
        assert!(events(&b).0);
        for _ in 0..sent / 2 {
            b.recv(&mut buffer).unwrap();
        }
        assert!(events(&a).1, "room again");
        assert!(events(&b).0, "the bell that was there stays");
        for _ in sent / 2..sent {
            b.recv(&mut buffer).unwrap();
        }
        assert!(!events(&b).0);
        assert_eq!(errno(b.recv(&mut buffer)), 11);
    }
}

#[test]
fn both_sides_sleep_and_wake() {
    for wait in [Wait::Block, Wait::Adaptive] {
        let (a, b) = SeqPacket::pair_with(&Config { wait, ..small() }).unwrap();
        let sender = std::thread::spawn(move || {
            for i in 0..20_000u32 {
                a.send(&i.to_le_bytes()).unwrap();
                if i % 5000 == 0 {
                    std::thread::sleep(Duration::from_millis(3));
                }
            }
        });
        let mut buffer = [0; 8];
        for i in 0..20_000u32 {
            assert_eq!(b.recv(&mut buffer).unwrap(), 4);
            assert_eq!(buffer[..4], i.to_le_bytes());
            if i % 7000 == 0 {
                std::thread::sleep(Duration::from_millis(3));
            }
        }
        sender.join().unwrap();
    }
}

#[test]
fn a_reset_comes_before_what_is_queued_and_once() {
    let (a, b) = connected("reset", &Config::default());
    a.send(b"unread").unwrap();
    b.send(b"y").unwrap();
    drop(b);
    let mut buffer = [0; 9];
    assert_eq!(errno(a.recv(&mut buffer)), 104);
    assert_eq!(a.recv(&mut buffer).unwrap(), 1);
    assert!(a.recv_record(&mut buffer).unwrap().is_end());
    assert_eq!(errno(a.send(b"x")), 32);
    let (a, b) = SeqPacket::pair().unwrap();
    a.send(b"unread").unwrap();
    drop(b);
    assert_eq!(errno(a.send(b"x")), 104);
    assert_eq!(errno(a.send(b"x")), 32);
    assert!(a.recv_record(&mut buffer).unwrap().is_end());
    let (a, b) = SeqPacket::pair().unwrap();
    b.shutdown(Shutdown::Read).unwrap();
    assert_eq!(errno(a.send(b"x")), 32);
    b.send(b"still").unwrap();
    assert_eq!(a.recv(&mut buffer).unwrap(), 5);
}

#[test]
fn what_is_reserved_and_borrowed_is_one_record() {
    for (a, b) in [SeqPacket::pair_with(&small()).unwrap(), connected("slot", &small())] {
        for i in 0..100 {
            let mut slot = a.reserve(3000).unwrap();
            assert_eq!(slot.len(), 3000);
            let record = pattern(i, 2000 + i);
            assert_eq!(slot.copy_from(&record), record.len());
            assert_eq!(slot.commit().unwrap(), record.len());
            drop(a.reserve(100).unwrap());
            assert_eq!(a.reserve(0).unwrap().commit().unwrap(), 0);
            let (view, said) = b.recv_borrowed(1000).unwrap();
            assert_eq!((view.len(), said), (1000, ReceivedFlags::TRUNC));
            let mut start = [0; 1000];
            view.copy_to(&mut start);
            assert_eq!(start[..], record[..1000]);
            let (empty, said) = b.recv_borrowed(9).unwrap();
            assert_eq!((empty.len(), said), (0, ReceivedFlags::empty()));
        }
        drop(a);
        assert_eq!(b.recv_borrowed(9).unwrap().1, ReceivedFlags::END);
    }
}

/// A caller that got room for a record can commit it, over the kernel too. Before, the kernel's queue was
/// found full only at the commit, and the record was lost.
#[test]
fn room_over_the_kernel_is_room() {
    let (a, b) = SeqPacket::pair_with(&Config { transport: Transport::Kernel, ..small() }).unwrap();
    let record = pattern(1, 1000);
    let mut sent = 0;
    for _ in 0..3 {
        loop {
            match a.reserve_with_flags(record.len(), QUIET | SendFlags::DONTWAIT) {
                Ok(mut slot) => {
                    slot.copy_from(&record);
                    assert_eq!(slot.commit().unwrap(), record.len());
                    sent += 1;
                }
                Err(e) => break assert!(e.would_block(), "{e}"),
            }
        }
        let mut buffer = [0; 2000];
        while b.recv_with_flags(&mut buffer, NOW).is_ok_and(|n| buffer[..n] == record) {
            sent -= 1;
        }
        assert_eq!(sent, 0);
    }
}

/// A record that the kernel never takes gets no room. Before, `commit` failed and the record was lost.
#[test]
fn no_room_is_given_for_what_the_kernel_never_takes() {
    let (a, b) = SeqPacket::pair_with(&Config { transport: Transport::Kernel, ..small() }).unwrap();
    // The kernel takes less than the 256 KiB of a slot, unless this machine gives large buffers.
    let most = a.max_record().min(256 << 10);
    let refused = a.reserve(most + 1).map(|slot| slot.len());
    assert_eq!(errno(refused), rustix::io::Errno::MSGSIZE.raw_os_error());
    let record = pattern(1, most);
    let mut slot = a.reserve(most).unwrap();
    assert_eq!((slot.copy_from(&record), slot.commit().unwrap()), (most, most));
    let mut buffer = vec![0; most];
    assert_eq!(b.recv_with_flags(&mut buffer, NOW).unwrap(), most);
    assert!(buffer == record);
}

/// A server sends pieces before it has its client's ring. They are in the kernel's queue, and so is the rest
/// of one that was received in part.
#[test]
fn the_rest_of_an_early_piece_is_polled_for() {
    let (client, server) = both("early-rest", &stream_records());
    server.send(b"abc").unwrap();
    server.send_with_flags(b"defg", QUIET | SendFlags::EOR).unwrap();
    let mut buffer = [0; 9];
    for (flags, room, came, left) in
        [(RecvFlags::PEEK, 9, "abc", 7), (NONE, 2, "ab", 5), (NOW, 1, "c", 4), (NOW, 3, "def", 1)]
    {
        assert_eq!(client.recv_with_flags(&mut buffer[..room], flags).unwrap(), came.len());
        assert_eq!((&buffer[..came.len()], events(&client)), (came.as_bytes(), (true, true)));
        // The kernel's own record may have a byte in front.
        assert!((left..=left + 1).contains(&client.readable_bytes().unwrap()), "behind {came:?}");
    }
    let last = client.recv_record_with_flags(&mut buffer, NOW).unwrap();
    assert_eq!(
        (&buffer[..last.len], last.flags, events(&client)),
        (&b"g"[..], ReceivedFlags::EOR, (false, true))
    );
    assert_eq!(errno(client.recv_with_flags(&mut buffer, NOW)), 11);
}

#[test]
fn stream_records_leave_the_rest_and_stop_at_a_mark() {
    let eor = QUIET | SendFlags::EOR;
    for (a, b) in [
        SeqPacket::pair_with(&stream_records()).unwrap(),
        connected("marks", &stream_records()),
        // Here the server sends over the kernel: the client has not answered yet.
        {
            let (client, server) = both("marks-early", &stream_records());
            (server, client)
        },
    ] {
        let mut buffer = [0; 64];
        let mut said = |len: usize, flags| {
            let got = b.recv_record_with_flags(&mut buffer[..len], flags).unwrap();
            (buffer[..got.len].to_vec(), got.flags)
        };
        a.send(b"abc").unwrap();
        a.send_with_flags(b"def", eor).unwrap();
        a.send_with_flags(b"", eor).unwrap();
        a.send_with_flags(b"gh", eor).unwrap();
        assert_eq!(said(2, RecvFlags::PEEK), (b"ab".to_vec(), ReceivedFlags::empty()));
        assert_eq!(said(2, NONE), (b"ab".to_vec(), ReceivedFlags::empty()));
        assert_eq!(said(64, RecvFlags::WAITALL), (b"cdef".to_vec(), ReceivedFlags::EOR));
        assert_eq!(said(64, NONE), (vec![], ReceivedFlags::EOR));
        assert_eq!(said(1, NONE), (b"g".to_vec(), ReceivedFlags::empty()));
        assert_eq!(said(1, NONE), (b"h".to_vec(), ReceivedFlags::EOR));
        a.send(b"ij").unwrap();
        drop(a);
        assert_eq!(said(64, RecvFlags::WAITALL), (b"ij".to_vec(), ReceivedFlags::empty()));
        assert_eq!(said(64, NONE), (vec![], ReceivedFlags::END));
    }
}

#[test]
fn a_stream_record_larger_than_the_ring_passes_through() {
    let (a, b) = SeqPacket::pair_with(&stream_records()).unwrap();
    let record = pattern(3, 1 << 20);
    let copy = record.clone();
    let sender = std::thread::spawn(move || {
        assert_eq!(a.send_with_flags(&copy, QUIET | SendFlags::EOR).unwrap(), copy.len());
    });
    let mut back = vec![0; record.len() + 1];
    let got = b.recv_record_with_flags(&mut back, RecvFlags::WAITALL).unwrap();
    assert_eq!((got.len, got.flags), (record.len(), ReceivedFlags::EOR));
    assert!(back[..got.len] == record);
    sender.join().unwrap();
}

#[test]
fn ends_that_keep_records_differently_do_not_meet() {
    let listener = SeqListener::bind(name("modes")).unwrap();
    listener.set_nonblocking(true).unwrap();
    assert_eq!(SeqPacket::connect_with(name("modes"), &stream_records()).unwrap_err().raw_os_error(), 93);
    // The listener was readable: an accept that waited for the next client would stall who polls before it.
    let (gone, _) = listener.accept().unwrap();
    assert_eq!(gone.recv(&mut [0; 9]).unwrap(), 0, "its client has left by itself");
    assert_eq!(listener.accept().unwrap_err().raw_os_error(), 11);
    let plain = Config { transport: Transport::Kernel, ..stream_records() };
    assert_eq!(SeqPacket::pair_with(&plain).unwrap_err().raw_os_error(), 93);
    let client = SeqPacket::connect_with(name("modes"), &Config::default()).unwrap();
    client.send(b"x").unwrap();
    assert_eq!(listener.accept().unwrap().0.recv(&mut [0; 9]).unwrap(), 1);
    let listener = SeqListener::bind_with(name("modes-stream"), &stream_records()).unwrap();
    let _client = SeqPacket::connect_with(name("modes-stream"), &Config::default()).unwrap();
    assert_eq!(listener.accept().unwrap_err().raw_os_error(), rustix::io::Errno::CONNABORTED.raw_os_error());
}

/// A stream's listener is told by a client's name that it keeps stream records, which no stream has.
#[test]
fn a_client_with_a_strange_name_stalls_no_listener() {
    let listener = Listener::bind(name("strange")).unwrap();
    let strange = format!("onecopy-4-{:032x}-0-0-0-s", std::process::id());
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let at = |name: &[u8]| rustix::net::SocketAddrUnix::new_abstract_name(name).unwrap();
    rustix::net::bind(&socket, &at(strange.as_bytes())).unwrap();
    rustix::net::connect(&socket, &at(format!("onecopy-seq-strange-{}", std::process::id()).as_bytes()))
        .unwrap();
    rustix::net::send(&socket, b"hi", rustix::net::SendFlags::NOSIGNAL).unwrap();
    let (server, _) = listener.accept().unwrap();
    let mut got = [0; 9];
    assert_eq!(server.recv(&mut got).unwrap(), 2);
    server.send(b"ho").unwrap();
    assert_eq!(rustix::net::recv(&socket, &mut got, rustix::net::RecvFlags::empty()).unwrap().0, 2);
}

/// A client that is gone before it is accepted leaves a connection that is over. Before, with stream records,
/// accept failed with an error about this side's memory.
#[test]
fn a_client_that_has_left_is_no_error_of_the_listener() {
    for (test, config) in [("left-atomic", small()), ("left-stream", stream_records())] {
        let listener = SeqListener::bind_with(name(test), &config).unwrap();
        for leaves in [|client: &SeqPacket| client.shutdown(Shutdown::Both), |_: &SeqPacket| Ok(())] {
            let client = SeqPacket::connect_with(name(test), &config).unwrap();
            leaves(&client).unwrap();
            drop(client);
            let (server, _) = listener.accept().unwrap();
            let got = server.recv_record(&mut [0; 9]).unwrap();
            assert!(got.flags.contains(ReceivedFlags::END), "{got:?}");
            assert_eq!(errno(server.send(b"x")), rustix::io::Errno::PIPE.raw_os_error());
        }
        for how in [Shutdown::Both, Shutdown::Read] {
            let client = SeqPacket::connect_with(name(test), &config).unwrap();
            client.shutdown(how).unwrap();
            let (server, _) = listener.accept().unwrap();
            assert_eq!(errno(server.send(b"x")), rustix::io::Errno::PIPE.raw_os_error());
        }
    }
}

#[test]
fn senders_never_interleave_and_receivers_share() {
    let (a, b) = SeqPacket::pair_with(&small()).unwrap();
    let total = 4 * 3000;
    let seen = std::sync::Mutex::new(0);
    std::thread::scope(|s| {
        for t in 0..4u8 {
            let a = &a;
            s.spawn(move || (0..3000).for_each(|i| assert!(a.send(&vec![t; i % 300 + 1]).is_ok())));
        }
        for _ in 0..2 {
            s.spawn(|| {
                let mut buffer = [0; 400];
                loop {
                    let got = b.recv_record(&mut buffer).unwrap();
                    if got.len == 0 {
                        break;
                    }
                    assert!(buffer[..got.len].iter().all(|byte| *byte == buffer[0]));
                    let mut seen = seen.lock().unwrap();
                    *seen += 1;
                    if *seen == total {
                        b.shutdown(Shutdown::Both).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(*seen.lock().unwrap(), total);
}
