//! Datagrams in view: how long they stay, what they hold, and what poll(2) says meanwhile.

mod in_place;

use in_place::*;
use onecopy_testing::{alone, asleep, descriptors, readable, writable};
use onecopy_unix::{ReceivedFlags, SocketAddr};
use onecopy_unix_dgram::Datagram;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::net::Shutdown;

/// What is in view stays when the socket is dropped or connected elsewhere, or the peer is gone. The socket is
/// closed all the same: its name is free.
#[test]
fn a_view_outlives_its_socket() {
    alone!();
    for (way, (a, b)) in ways("outlives") {
        let own = b.local_addr().unwrap();
        let other = Datagram::bind(abstract_("outlives-other")).unwrap();
        a.send_with_flags(b"kept", NOW).unwrap();
        a.send_with_flags(b"and this", NOW).unwrap();
        let (mut first, ..) = b.recv_borrowed(99).unwrap();
        let (second, ..) = b.recv_borrowed(99).unwrap();
        drop(b);
        assert_eq!(errno(a.send_with_flags(b"x", NOW)), Errno::CONNREFUSED, "{way}");
        if own != SocketAddr::unnamed() {
            drop(Datagram::bind(&own).unwrap());
        }
        assert_eq!((seen(&first), seen(&second)), (b"kept".to_vec(), b"and this".to_vec()), "{way}");
        first.advance(2);
        assert_eq!(seen(&first), b"pt", "{way}");
        drop(a);
        drop(first);
        let (read, write) = rustix::pipe::pipe().unwrap();
        assert_eq!(second.write_to(&write).unwrap(), 8);
        let mut buffer = [0; 8];
        rustix::io::read(&read, &mut buffer).unwrap();
        assert_eq!(&buffer, b"and this", "{way}");
        drop(second);

        // The same where the receiver connects to another socket.
        for (way, (a, b)) in ways("outlives-connect") {
            a.send_with_flags(b"kept", NOW).unwrap();
            let (view, ..) = b.recv_borrowed(99).unwrap();
            b.connect(other.local_addr().unwrap()).unwrap();
            assert_eq!(errno(a.send_with_flags(b"x", NOW)), Errno::PERM, "{way}");
            drop(a);
            assert_eq!(seen(&view), b"kept", "{way}");
            drop(view);
            b.send_with_flags(b"other", NOW).unwrap();
            assert_eq!(borrow(&other, 9).0, b"other", "{way}");
        }
    }
}

/// A receiver that closes or connects elsewhere while its views hold all the room has received everything: the
/// peer is told of no reset.
#[test]
fn views_that_hold_all_room_are_no_loss() {
    alone!();
    let other = Datagram::bind(abstract_("loss-other")).unwrap();
    for closes in [true, false] {
        let (a, b) = upgraded("loss");
        assert!(writable(&a) && !readable(&b));
        let mut views = Vec::new();
        while a.send_with_flags(&[7; 5000], NOW).is_ok() {
            views.push(b.recv_borrowed_with_flags(5000, LOOK).unwrap().0);
        }
        assert!(views.len() > 2 && !writable(&a));
        if closes {
            drop(b);
            assert_eq!(errno(a.send_with_flags(b"x", NOW)), Errno::CONNREFUSED);
            continue;
        }
        b.connect(other.local_addr().unwrap()).unwrap();
        assert_eq!(errno(a.recv_with_flags(&mut [0; 9], LOOK)), Errno::AGAIN);
        assert_eq!(errno(a.send_with_flags(b"x", NOW)), Errno::PERM);
        assert!(views.iter().all(|view| seen(view) == [7; 5000]));
    }
}

/// POLLIN says whether there is something to receive, and POLLOUT whether there is room, while views are held.
#[test]
fn readiness_is_told_while_views_are_held() {
    alone!();
    for (way, (a, b)) in ways("ready") {
        if !a.path().is_shared_memory() {
            continue; // over the kernel a view holds no room
        }
        assert!(writable(&a) && !readable(&b), "{way}");
        for round in 0..5 {
            let mut views = Vec::new();
            let piece = a.max_datagram() / 5;
            for i in 0..4 {
                assert!(writable(&a), "{way}, round {round}, {i}");
                assert_eq!(send_in_place(&a, &vec![i; piece]).unwrap(), piece);
                assert!(readable(&b));
                views.push(b.recv_borrowed_with_flags(piece, LOOK).unwrap().0);
                assert!(!readable(&b), "{way}, round {round}, {i}");
            }
            assert_eq!(errno(a.send_with_flags(&vec![9; piece], NOW)), Errno::AGAIN, "{way}");
            assert!(!writable(&a), "{way}: the views hold all room");
            assert_eq!(errno(a.reserve_with_flags(piece, NOW)), Errno::AGAIN, "{way}");
            assert_eq!(errno(b.recv_borrowed_with_flags(9, LOOK)), Errno::AGAIN, "{way}");
            let last = views.pop().unwrap();
            drop(last);
            assert!(!writable(&a), "{way}: it was behind others");
            std::thread::scope(|s| {
                let waits = asleep(s, || {
                    a.reserve(piece).and_then(|mut slot| {
                        slot.copy_from(b"came");
                        slot.commit()
                    })
                });
                drop(views.remove(0));
                assert_eq!(waits.join().unwrap().unwrap(), 4);
            });
            assert!(readable(&b));
            assert_eq!(borrow(&b, 9).0, b"came");
            for (i, view) in views.drain(..).enumerate() {
                assert_eq!(seen(&view), vec![i as u8 + 1; piece], "{way}");
            }
            assert!(writable(&a) && !readable(&b), "{way}, round {round}");
        }
    }
}

/// A view has no place for descriptors: they are closed, and the receive says so.
#[test]
fn descriptors_of_a_borrowed_datagram_are_closed() {
    alone!();
    for (way, (a, b)) in ways("rights") {
        let before = descriptors();
        for _ in 0..3 {
            a.send_fds_with_flags(b"with", &[a.as_fd(), b.as_fd()], NOW).unwrap();
            a.send_with_flags(b"without", NOW).unwrap();
            let (bytes, received) = borrow(&b, 99);
            assert_eq!((bytes.as_slice(), received.flags), (&b"with"[..], ReceivedFlags::CTRUNC), "{way}");
            let (bytes, received) = borrow(&b, 99);
            assert_eq!(
                (bytes.as_slice(), received.flags),
                (&b"without"[..], ReceivedFlags::empty()),
                "{way}"
            );
        }
        // (A channel may be there by now: one descriptor at each end.)
        assert!(descriptors() <= before + 2, "{way}");
    }
}

/// A receive that waits is woken by a commit, and by the end.
#[test]
fn a_borrow_waits() {
    alone!();
    for (way, (a, b)) in ways("waiting") {
        std::thread::scope(|s| {
            let waits =
                asleep(s, || b.recv_borrowed(99).map(|(view, received, _)| (seen(&view), received.len)));
            assert_eq!(send_in_place(&a, b"woken").unwrap(), 5);
            assert_eq!(waits.join().unwrap().unwrap(), (b"woken".to_vec(), 5), "{way}");
            let waits = asleep(s, || b.recv_borrowed(99).map(|(view, received, _)| (view.len(), received)));
            b.shutdown(Shutdown::Read).unwrap();
            let (len, received) = waits.join().unwrap().unwrap();
            assert!(len == 0 && received.is_end(), "{way}: {received:?}");
        });
    }
}
