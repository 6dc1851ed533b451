//! Datagrams that are written and read in place, between two sockets that are connected to each other: over
//! memory and over the kernel.

mod in_place;

use in_place::*;
use onecopy_testing::{alone, asleep, writable};
use onecopy_unix::{Config, ReceivedFlags, Transport, View};
use onecopy_unix_dgram::Datagram;
use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::Write;
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

#[test]
fn what_is_written_in_place_is_read_in_place() {
    alone!();
    for (way, (a, b)) in ways("both") {
        let shares = a.path().is_shared_memory();
        let before = (a.stats(), b.stats());
        let mut sum = 0;
        for len in [5, 0, 1, 4096, 8, 0, 60_000] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            assert_eq!(send_in_place(&a, &bytes).unwrap(), len, "{way}");
            assert_eq!(b.readable_bytes().unwrap(), len);
            let (view, received, from) = b.recv_borrowed(1 << 20).unwrap();
            assert_eq!(from, a.local_addr().unwrap(), "{way}");
            assert_eq!((received.len, received.full, received.flags), (len, len, ReceivedFlags::empty()));
            assert_eq!(b.stats().user_copied_out - before.1.user_copied_out, sum, "{way}: not yet looked at");
            sum += len as u64;
            assert_eq!(seen(&view), bytes, "{way}");
        }
        let (there, back) = (a.stats(), b.stats());
        assert_eq!(there.sent - before.0.sent, sum, "{way}");
        assert_eq!(back.received - before.1.received, sum, "{way}");
        // One copy in; out of it only what `seen` copies; and none by the kernel where memory is shared.
        assert_eq!(there.user_copied_in - before.0.user_copied_in, sum, "{way}");
        assert_eq!(back.user_copied_out - before.1.user_copied_out, sum, "{way}");
        let kernel = if shares { 0 } else { sum };
        assert_eq!(there.kernel_copied - before.0.kernel_copied, kernel, "{way}");
        assert!(empty(&b));
    }
}

/// A file is read to where the peer reads it: no copy in user space.
#[test]
fn a_file_goes_into_a_datagram() {
    alone!();
    let path = std::env::temp_dir().join(name("file"));
    std::fs::File::create(&path).unwrap().write_all(b"0123456789").unwrap();
    let file = std::fs::File::open(&path).unwrap();
    for (way, (a, b)) in ways("file") {
        let before = a.stats().user_copied_in;
        let mut slot = a.reserve(8).unwrap();
        assert_eq!(slot.read_from(&file, 3).unwrap(), 7, "{way}");
        assert_eq!((slot.read_from(&file, 10).unwrap(), slot.filled()), (0, 7), "{way}");
        assert_eq!(slot.commit().unwrap(), 7);
        assert_eq!(borrow(&b, 99).0, b"3456789", "{way}");
        assert_eq!(a.stats().user_copied_in, before, "{way}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_datagram_that_is_longer_than_asked_for_is_cut() {
    alone!();
    for (way, (a, b)) in ways("cut") {
        for max in [0, 1, 7, 8, 9] {
            a.send_with_flags(b"long one", NOW).unwrap();
            a.send_with_flags(b"next", NOW).unwrap();
            let (bytes, received) = borrow(&b, max);
            assert_eq!(bytes, b"long one"[..max.min(8)], "{way}");
            assert_eq!((received.len, received.full), (max.min(8), 8), "{way}");
            assert_eq!(received.flags.contains(ReceivedFlags::TRUNC), max < 8, "{way}");
            assert_eq!(borrow(&b, 99).0, b"next", "{way}");
        }
    }
}

/// Room and views cross the end of a small ring at every offset.
#[test]
fn datagrams_wrap_around() {
    alone!();
    let config = Config { send_buffer: Some(4096), receive_buffer: Some(4096), ..Config::default() };
    let (a, b) = Datagram::pair_with(&config).unwrap();
    let most = a.max_datagram();
    assert!(a.path().is_shared_memory() && most < 20_000);
    let mut held: VecDeque<(View, Vec<u8>)> = VecDeque::new();
    let mut wrapped = 0;
    for round in 0..3000usize {
        let len = round * 37 % (most / 4);
        let bytes: Vec<u8> = (0..len).map(|i| (i + round) as u8).collect();
        assert_eq!(send_in_place(&a, &bytes).unwrap(), len);
        let (view, received, _) = b.recv_borrowed_with_flags(usize::MAX, LOOK).unwrap();
        assert_eq!(received.full, len);
        held.push_back((view, bytes));
        if held.len() > 2 {
            // Given back out of order, which frees room in order.
            let (view, bytes) = held.remove(round % 2).unwrap();
            assert_eq!(seen(&view), bytes, "round {round}");
        }
        wrapped += len;
    }
    assert!(wrapped > 20 * most);
}

#[test]
fn what_cannot_be_sent_is_not_reserved() {
    alone!();
    for (way, (a, b)) in ways("refused") {
        let most = a.max_datagram();
        assert_eq!(errno(a.reserve(most + 1)), Errno::MSGSIZE, "{way}");
        assert_eq!(send_in_place(&a, &vec![7; most]).unwrap(), most, "{way}");
        assert_eq!(borrow(&b, usize::MAX).0, vec![7; most], "{way}");
        a.shutdown(Shutdown::Write).unwrap();
        assert_eq!(errno(a.reserve(1)), Errno::PIPE, "{way}");
    }
    assert_eq!(errno(Datagram::unbound().unwrap().reserve(1)), Errno::NOTCONN);
    let unbound = Datagram::unbound().unwrap();
    assert_eq!(errno(unbound.recv_borrowed_with_flags(1, LOOK)), Errno::AGAIN);
    unbound.set_nonblocking(true).unwrap();
    assert_eq!(errno(unbound.recv_borrowed(1)), Errno::AGAIN);
}

/// A plain receiver of many has a queue of ten. A slot waits for room there, and has no more of it at commit
/// than a send.
#[test]
fn a_plain_peer_is_sent_to_and_received_from() {
    alone!();
    let address = SocketAddr::from_abstract_name(name("plain")).unwrap();
    let plain = UnixDatagram::bind_addr(&address).unwrap();
    let a = Datagram::bind(abstract_("plain-ours")).unwrap();
    a.connect(abstract_("plain")).unwrap();
    let mut sent = 0;
    let refused = loop {
        match send_in_place(&a, &[sent; 3]) {
            Ok(_) => sent += 1,
            Err(error) => break error.raw_os_error(),
        }
    };
    assert_eq!(refused, Errno::AGAIN.raw_os_error());
    assert!(sent > 1 && !writable(&a));
    let mut buffer = [0; 9];
    for i in 0..sent {
        assert_eq!((plain.recv(&mut buffer).unwrap(), buffer[0]), (3, i));
    }
    assert!(writable(&a));
    std::thread::scope(|s| {
        (0..sent).for_each(|i| assert_eq!(send_in_place(&a, &[i]).unwrap(), 1));
        let waits = asleep(s, || {
            a.reserve(5).and_then(|mut slot| {
                slot.copy_from(b"later");
                slot.commit()
            })
        });
        for _ in 0..sent {
            plain.recv(&mut buffer).unwrap();
        }
        assert_eq!(waits.join().unwrap().unwrap(), 5);
        assert_eq!(plain.recv(&mut buffer).unwrap(), 5);
    });
    let ours = SocketAddr::from_abstract_name(name("plain-ours")).unwrap();
    plain.send_to_addr(b"back", &ours).unwrap();
    plain.send_to_addr(b"", &ours).unwrap();
    let (view, received, from) = a.recv_borrowed(3).unwrap();
    assert_eq!((seen(&view), received.full, from), (b"bac".to_vec(), 4, abstract_("plain")));
    assert_eq!(borrow(&a, 9).0, b"");
    let slot = a.reserve(5).unwrap();
    drop(plain);
    assert_eq!(errno(slot.commit()), Errno::CONNREFUSED);
    assert_eq!(errno(a.reserve(5)), Errno::NOTCONN);
}

/// Who asks for credentials gets them of a datagram that was written in place.
#[test]
fn credentials_come_with_what_was_written_in_place() {
    alone!();
    for (way, (a, b)) in ways("who") {
        let mut early = a.reserve(10).unwrap();
        b.set_pass_credentials(true).unwrap();
        early.copy_from(b"early");
        early.commit().unwrap();
        assert_eq!(borrow(&b, 9).0, b"early", "{way}");
        for _ in 0..2 {
            assert_eq!(send_in_place(&a, b"who").unwrap(), 3);
            let (_, with, _) = b.recv_fds_with_flags(&mut [0; 9], LOOK).unwrap();
            assert_eq!(with.credentials.unwrap().pid, std::process::id() as i32, "{way}");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    InPlace(usize, bool),
    Recv(usize),
    Borrow(usize, bool),
    GiveBack(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = || prop_oneof![4 => 0..200usize, 1 => 1000..3000usize];
    let step = prop_oneof![
        len().prop_map(Step::Send),
        (len(), prop::bool::weighted(0.8)).prop_map(|(len, commits)| Step::InPlace(len, commits)),
        len().prop_map(Step::Recv),
        (len(), any::<bool>()).prop_map(|(max, keeps)| Step::Borrow(max, keeps)),
        (0..8usize).prop_map(Step::GiveBack),
    ];
    prop::collection::vec(step, 1..120)
}

/// Does the steps on a pair, and compares what comes with what was sent. Every way of sending goes with every
/// way of receiving.
fn play(a: &Datagram, b: &Datagram, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut queue: VecDeque<Vec<u8>> = VecDeque::new();
    let mut views: Vec<(View, Vec<u8>)> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let content = |len: usize| -> Vec<u8> { (0..len).map(|i| (i + number * 3) as u8).collect() };
        match step {
            Step::Send(len) => match a.send_with_flags(&content(*len), NOW) {
                Ok(n) => {
                    prop_assert_eq!(n, *len);
                    queue.push_back(content(n));
                }
                Err(error) => prop_assert!(error.would_block(), "{}", error),
            },
            Step::InPlace(len, commits) => match a.reserve_with_flags(*len, NOW) {
                Ok(mut slot) => {
                    slot.copy_from(&content(*len));
                    if *commits {
                        prop_assert_eq!(slot.commit().unwrap(), *len);
                        queue.push_back(content(*len));
                    }
                }
                Err(error) => prop_assert!(error.would_block(), "{}", error),
            },
            Step::Recv(max) | Step::Borrow(max, _) => {
                prop_assert_eq!(b.readable_bytes().unwrap(), queue.front().map_or(0, Vec::len));
                let got = if let Step::Borrow(max, keeps) = step {
                    b.recv_borrowed_with_flags(*max, LOOK).map(|(view, received, _)| {
                        let bytes = seen(&view);
                        if *keeps {
                            views.push((view, bytes.clone()));
                        }
                        (bytes, received)
                    })
                } else {
                    let mut buffer = vec![0; *max];
                    b.recv_datagram_with_flags(&mut buffer, LOOK).map(|(received, _)| {
                        buffer.truncate(received.len);
                        (buffer, received)
                    })
                };
                match (got, queue.pop_front()) {
                    (Ok((bytes, received)), Some(sent)) => {
                        let cut = sent.len() > *max;
                        prop_assert_eq!(bytes, &sent[..sent.len().min(*max)]);
                        prop_assert_eq!(received.full, sent.len());
                        prop_assert_eq!(received.flags.contains(ReceivedFlags::TRUNC), cut);
                    }
                    (Err(error), None) => prop_assert!(error.would_block(), "{}", error),
                    (got, sent) => prop_assert!(false, "{got:?} of {sent:?}"),
                }
            }
            Step::GiveBack(which) => {
                if !views.is_empty() {
                    let (view, bytes) = views.remove(which % views.len());
                    prop_assert_eq!(seen(&view), bytes);
                }
            }
        }
    }
    for (view, bytes) in &views {
        prop_assert_eq!(&seen(view), bytes);
    }
    Ok(())
}

#[test]
fn calls_in_place_and_others_are_the_same() {
    alone!();
    let small = Config { send_buffer: Some(4096), receive_buffer: Some(4096), ..Config::default() };
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(300));
    let kernel = Config { transport: Transport::Kernel, ..Config::default() };
    runner
        .run(&steps(), |steps| {
            for config in [&small, &kernel] {
                let (a, b) = Datagram::pair_with(config).unwrap();
                play(&a, &b, &steps)?;
            }
            Ok(())
        })
        .unwrap();
}
