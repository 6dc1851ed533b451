//! Room that is reserved for a datagram: whom it keeps out, and where it goes if its socket, its peer, or the
//! way between them changes before it is committed.

mod in_place;

use in_place::*;
use onecopy_testing::{alone, asleep, readable};
use onecopy_unix::{Carrier, Config, SocketAddr};
use onecopy_unix_dgram::Datagram;
use rustix::io::Errno;
use std::net::Shutdown;
use std::time::Duration;

#[test]
fn a_slot_that_is_dropped_sends_nothing() {
    alone!();
    for (way, (a, b)) in ways("dropped") {
        assert!(empty(&b));
        let mut slot = a.reserve(100).unwrap();
        assert_eq!(slot.copy_from(b"never"), 5);
        drop(slot);
        assert!(empty(&b), "{way}");
        a.send_with_flags(b"one", NOW).unwrap();
        let mut slot = a.reserve(1000).unwrap();
        assert_eq!(slot.copy_from(b"two"), 3);
        assert_eq!(borrow(&b, 99).0, b"one", "{way}");
        assert!(empty(&b), "{way}: nothing of a slot is seen before its commit");
        assert_eq!(slot.commit().unwrap(), 3);
        assert!(readable(&b));
        assert_eq!(borrow(&b, 99).0, b"two", "{way}");
        assert!(empty(&b));
    }
}

/// A slot in the ring keeps other senders out, and lets them in when it is over.
#[test]
fn other_senders_wait_for_a_slot() {
    alone!();
    for (way, (a, b)) in ways("waits") {
        let in_ring = a.path().is_shared_memory();
        for commits in [true, false] {
            let mut slot = a.reserve(10).unwrap();
            slot.copy_from(b"slot");
            if !in_ring {
                // What is in a buffer of this process keeps nobody out.
                a.send_with_flags(b"first", NOW).unwrap();
                assert_eq!(send_in_place(&a, b"second").unwrap(), 6);
                assert_eq!(slot.commit().unwrap(), 4);
                for bytes in [&b"first"[..], b"second", b"slot"] {
                    assert_eq!(borrow(&b, 99).0, bytes, "{way}");
                }
                continue;
            }
            assert_eq!(errno(a.send_with_flags(b"x", NOW)), Errno::AGAIN);
            assert_eq!(errno(a.reserve_with_flags(1, NOW)), Errno::AGAIN);
            a.set_write_timeout(Some(Duration::from_millis(1))).unwrap();
            assert_eq!(errno(a.send(b"x")), Errno::AGAIN);
            assert_eq!(errno(a.reserve(1)), Errno::AGAIN);
            a.set_write_timeout(None).unwrap();
            std::thread::scope(|s| {
                let sender = asleep(s, || a.send(b"sent"));
                let other = asleep(s, || {
                    a.reserve(9).and_then(|mut slot| {
                        slot.copy_from(b"reserved");
                        slot.commit()
                    })
                });
                assert!(empty(&b), "{way}");
                if commits {
                    slot.commit().unwrap();
                    assert_eq!(borrow(&b, 99).0, b"slot", "{way}");
                } else {
                    drop(slot);
                }
                assert_eq!((sender.join().unwrap().unwrap(), other.join().unwrap().unwrap()), (4, 8));
            });
            let mut got = [borrow(&b, 99).0, borrow(&b, 99).0];
            got.sort();
            assert_eq!(got, [b"reserved".to_vec(), b"sent".to_vec()], "{way}");
            assert!(empty(&b));
        }
    }
}

/// A thread that was turned away by a slot, and waits for an edge, gets one when the slot is over.
#[test]
fn who_was_turned_away_by_a_slot_gets_an_edge() {
    use rustix::event::epoll;
    alone!();
    let (a, b) = Datagram::pair().unwrap();
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let edges = epoll::EventFlags::OUT | epoll::EventFlags::ET;
    epoll::add(&poll, &a, epoll::EventData::new_u64(1), edges).unwrap();
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let edge = || {
        let mut events = Vec::with_capacity(4);
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&now)).unwrap() > 0
    };
    assert!(edge());
    for commits in [true, false] {
        let slot = a.reserve(10).unwrap();
        assert!(!edge());
        assert_eq!(errno(a.send_with_flags(b"x", NOW)), Errno::AGAIN);
        assert!(!edge(), "the slot is still there");
        if commits {
            slot.commit().unwrap();
            assert_eq!(borrow(&b, 9).0, b"");
            while edge() {}
            let slot = a.reserve(10).unwrap();
            assert_eq!(errno(a.reserve_with_flags(10, NOW)), Errno::AGAIN);
            drop(slot);
        } else {
            drop(slot);
        }
        assert!(edge());
        a.send_with_flags(b"x", NOW).unwrap();
        assert_eq!(borrow(&b, 9).0, b"x");
        while edge() {}
    }
}

/// A slot goes to the peer that it was reserved for, or to nobody.
#[test]
fn a_slot_goes_to_no_other_peer() {
    alone!();
    for (way, (a, b)) in ways("elsewhere") {
        let named = b.local_addr().unwrap() != SocketAddr::unnamed();
        let other = Datagram::bind(abstract_(&format!("elsewhere-other-{named}-{way}"))).unwrap();
        let mut slot = a.reserve(100).unwrap();
        slot.copy_from(b"for b");
        a.connect(other.local_addr().unwrap()).unwrap();
        slot.copy_from(b", only");
        let mut second = None;
        if !a.path().is_shared_memory() && way.contains("kernel") {
            second = Some(a.reserve(10).unwrap());
        }
        assert_eq!(errno(slot.commit()), Errno::CANCELED, "{way}");
        assert!(empty(&other), "{way}");
        if let Some(mut slot) = second {
            slot.copy_from(b"for other");
            assert_eq!(slot.commit().unwrap(), 9, "{way}");
            assert_eq!(borrow(&other, 99).0, b"for other", "{way}");
        }
        a.send_with_flags(b"x", NOW).unwrap();
        assert_eq!(borrow(&other, 99).0, b"x", "{way}");
        // What the old peer is told is what a connect without a slot tells it.
        assert!(b.recv_with_flags(&mut [0; 9], LOOK).is_err(), "{way}");
        let slot = a.reserve(5).unwrap();
        a.disconnect().unwrap();
        assert_eq!(errno(slot.commit()), Errno::NOTCONN, "{way}");
        assert_eq!(errno(a.reserve(5)), Errno::NOTCONN, "{way}");
        assert!(empty(&other), "{way}");
    }
}

/// Connecting to the same peer again changes nothing.
#[test]
fn a_slot_outlives_a_connect_to_the_same_peer() {
    alone!();
    for (way, (a, b)) in ways("again") {
        let peer = b.local_addr().unwrap();
        if peer == SocketAddr::unnamed() {
            continue;
        }
        let mut slot = a.reserve(100).unwrap();
        slot.copy_from(b"to and ");
        a.connect(&peer).unwrap();
        slot.copy_from(b"fro");
        assert_eq!(slot.commit().unwrap(), 10, "{way}");
        assert_eq!(borrow(&b, 99).0, b"to and fro", "{way}");
    }
}

/// What a peer does between reserve and commit is told as to a send, and what it does not refuse it gets.
#[test]
fn a_slot_is_committed_as_a_send_would_be() {
    alone!();
    let other = Datagram::bind(abstract_("as-other")).unwrap();
    type Act<'a> = &'a dyn Fn(&Datagram, Datagram) -> Option<Datagram>;
    let acts: [(&str, Act<'_>); 6] = [
        ("gone", &|_, _| None),
        ("connected elsewhere", &|_, b| {
            b.connect(other.local_addr().unwrap()).unwrap();
            Some(b)
        }),
        ("connected to nobody", &|_, b| {
            b.disconnect().unwrap();
            Some(b)
        }),
        ("shut down for reading", &|_, b| {
            b.shutdown(Shutdown::Read).unwrap();
            Some(b)
        }),
        ("shut down here", &|a, b| {
            a.shutdown(Shutdown::Write).unwrap();
            Some(b)
        }),
        ("nothing", &|_, b| Some(b)),
    ];
    for (what, act) in acts {
        let mut all = Vec::new();
        for in_place in [false, true] {
            for (way, (a, b)) in ways("as") {
                if what == "connected elsewhere" && b.local_addr().unwrap() == SocketAddr::unnamed() {
                    continue; // an unnamed peer has nobody who would come back
                }
                let (b, sent) = if in_place {
                    let mut slot = a.reserve_with_flags(100, NOW).unwrap();
                    slot.copy_from(b"content");
                    let b = act(&a, b);
                    (b, slot.commit())
                } else {
                    let b = act(&a, b);
                    (b, a.send_with_flags(b"content", NOW))
                };
                let sent = sent.map_err(|error| Errno::from_raw_os_error(error.raw_os_error()));
                let got = b.as_ref().map(|b| {
                    let mut buffer = [0; 99];
                    b.recv_with_flags(&mut buffer, LOOK)
                        .map(|n| buffer[..n].to_vec())
                        .map_err(|e| e.raw_os_error())
                });
                // And the call after it.
                let then = a.send_with_flags(b"then", NOW).map_err(|error| error.raw_os_error());
                all.push((in_place, way, (sent, got, then)));
            }
        }
        let (sends, slots) = all.split_at(all.len() / 2);
        for (send, slot) in sends.iter().zip(slots) {
            assert_eq!((send.1, &send.2), (slot.1, &slot.2), "{what}");
        }
        if ["nothing", "connected to nobody"].contains(&what) {
            assert!(
                slots
                    .iter()
                    .all(|(_, _, (sent, got, _))| *sent == Ok(7) && *got == Some(Ok(b"content".to_vec()))),
                "{what}: {slots:?}"
            );
        }
        assert!(empty(&other), "{what}");
    }
}

/// Slots are reserved and committed at each moment of two sockets that come to share memory: nothing is lost,
/// doubled, or out of order.
#[test]
fn slots_are_committed_while_two_come_to_share_memory() {
    alone!();
    let mut moved = 0;
    for shift in 0..8 {
        let (a, b) = met("pairing", &Config::default());
        // Each call is a step towards memory, so the steps come at other moments then.
        (0..shift).for_each(|_| assert!(empty(&a)));
        for i in 0..80u8 {
            let mut slot = a.reserve_with_flags(30, NOW).unwrap();
            let was = a.path().send;
            slot.copy_from(&[i, 1]);
            if was == Carrier::Kernel {
                a.send_with_flags(&[i, 0], NOW).unwrap(); // the slot keeps nobody out
            }
            // The other direction goes on meanwhile, and with it the pairing.
            b.send_with_flags(&[i], NOW).unwrap();
            assert_eq!(borrow(&a, 9).0, [i]);
            if was == Carrier::Kernel {
                assert_eq!(borrow(&b, 9).0, [i, 0]);
            }
            assert_eq!(slot.commit().unwrap(), 2);
            moved += usize::from(a.path().send != was);
            assert_eq!(borrow(&b, 9).0, [i, 1]);
            assert!(empty(&b));
        }
        assert!(a.path().is_shared_memory() && b.path().is_shared_memory());
    }
    assert!(moved > 0, "no slot was reserved over the kernel and sent through memory");
}

/// A name that may or may not be the peer's ends the sharing. A slot in the ring is then sent over the kernel.
#[test]
fn a_slot_leaves_the_ring_with_its_socket() {
    alone!();
    let (path, other) =
        (std::env::temp_dir().join(name("left")), std::env::temp_dir().join(name("left-too")));
    let a = Datagram::bind(abstract_("left-a")).unwrap();
    let b = Datagram::bind(&path).unwrap();
    a.connect(&path).unwrap();
    b.connect(abstract_("left-a")).unwrap();
    for i in 0..60u8 {
        a.send_with_flags(&[i], NOW).unwrap();
        assert_eq!(borrow(&b, 9).0, [i]);
        b.send_with_flags(&[i], NOW).unwrap();
        assert_eq!(borrow(&a, 9).0, [i]);
    }
    assert!(a.path().is_shared_memory());
    std::os::unix::fs::symlink(&path, &other).unwrap();
    let mut slot = a.reserve(10).unwrap();
    slot.copy_from(b"in place");
    a.send_to_with_flags(b"first", &other, NOW).unwrap();
    let before = a.stats();
    assert_eq!(a.path().send, Carrier::Kernel);
    assert_eq!(slot.commit().unwrap(), 8);
    let after = a.stats();
    assert_eq!(after.user_copied_in - before.user_copied_in, 8, "out of the ring");
    assert_eq!(after.kernel_copied - before.kernel_copied, 8);
    assert_eq!((borrow(&b, 9).0, borrow(&b, 9).0), (b"first".to_vec(), b"in place".to_vec()));
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(&other).unwrap();
}
