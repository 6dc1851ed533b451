//! Datagrams that are written and read in place, at a receiver of many; and what forks do to slots and views.

use onecopy_sys::fork::{Ended, child};
use onecopy_testing::{alone, asleep, readable, writable};
use onecopy_unix::{Carrier, Config, ReceivedFlags, RecvFlags, SendFlags, SocketAddr, View};
use onecopy_unix_dgram::Datagram;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::net::Shutdown;

const NOW: SendFlags = SendFlags::DONTWAIT;
const LOOK: RecvFlags = RecvFlags::DONTWAIT;

fn abstract_(what: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("onecopy-in-place-many-{what}-{}", std::process::id())).unwrap()
}

/// A receiver of many, with its name.
fn receiver(what: &str) -> (Datagram, SocketAddr) {
    let name = abstract_(what);
    let receiver = Datagram::bind(&name).unwrap();
    receiver.set_read_timeout(Some(onecopy_testing::LONG)).unwrap();
    (receiver, name)
}

/// A sender with a lane. What it sends to get the lane is received.
fn laned_with(receiver: &Datagram, name: &SocketAddr, config: &Config) -> Datagram {
    let sender = Datagram::unbound_with(config).unwrap();
    sender.connect(name).unwrap();
    for i in 0..60 {
        sender.send_with_flags(&[i], NOW).unwrap();
        assert_eq!(borrow(receiver, 9), [i]);
    }
    assert_eq!(sender.path().send, Carrier::SharedMemory);
    sender
}

fn laned(receiver: &Datagram, name: &SocketAddr) -> Datagram {
    laned_with(receiver, name, &Config::default())
}

fn errno<T>(result: onecopy_unix::Result<T>) -> Errno {
    match result {
        Ok(_) => panic!("no error"),
        Err(error) => Errno::from_raw_os_error(error.raw_os_error()),
    }
}

fn seen(view: &View) -> Vec<u8> {
    let mut bytes = vec![0; view.len()];
    assert_eq!(view.copy_to(&mut bytes), view.len());
    bytes
}

fn borrow(socket: &Datagram, max: usize) -> Vec<u8> {
    seen(&socket.recv_borrowed(max).unwrap().0)
}

fn send_in_place(socket: &Datagram, bytes: &[u8]) -> onecopy_unix::Result<usize> {
    let mut slot = socket.reserve_with_flags(bytes.len(), NOW)?;
    assert_eq!(slot.copy_from(bytes), bytes.len());
    slot.commit()
}

fn empty(socket: &Datagram) -> bool {
    !readable(socket) && errno(socket.recv_borrowed_with_flags(9, LOOK)) == Errno::AGAIN
}

#[test]
fn lanes_are_written_and_read_in_place() {
    alone!();
    let (b, name) = receiver("both");
    let sender = abstract_("both-sender");
    let a = laned(&b, &name);
    a.bind_to(&sender).unwrap();
    a.send_with_flags(b"named", NOW).unwrap();
    assert_eq!(borrow(&b, 9), b"named");
    assert!(empty(&b));
    let before = (a.stats(), b.stats());
    let mut sum = 0;
    for len in [5, 0, 4096, 60_000, 0] {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        assert_eq!(send_in_place(&a, &bytes).unwrap(), len);
        assert_eq!(b.readable_bytes().unwrap(), len);
        assert!(readable(&b));
        let (view, received, from) = b.recv_borrowed_with_flags(1 << 20, LOOK).unwrap();
        assert_eq!((received.len, received.full, received.flags), (len, len, ReceivedFlags::empty()));
        assert_eq!(from, sender);
        assert_eq!(b.stats().user_copied_out - before.1.user_copied_out, sum, "not yet looked at");
        sum += len as u64;
        assert_eq!(seen(&view), bytes);
        assert!(empty(&b), "a view leaves nothing to receive");
    }
    let (there, back) = (a.stats(), b.stats());
    assert_eq!(there.sent - before.0.sent, sum);
    assert_eq!(there.user_copied_in - before.0.user_copied_in, sum);
    assert_eq!((there.kernel_copied, back.kernel_copied), (before.0.kernel_copied, before.1.kernel_copied));
    assert_eq!(back.received - before.1.received, sum);
    assert_eq!(back.user_copied_out - before.1.user_copied_out, sum);
    a.send_fds_with_flags(b"with a descriptor", &[a.as_fd()], NOW).unwrap();
    a.send_with_flags(b"next", NOW).unwrap();
    let (view, received, _) = b.recv_borrowed_with_flags(4, LOOK).unwrap();
    assert_eq!((seen(&view), received.full), (b"with".to_vec(), 17));
    assert_eq!(received.flags, ReceivedFlags::TRUNC | ReceivedFlags::CTRUNC);
    assert_eq!(borrow(&b, 9), b"next");
}

/// A view that is held keeps only the room of its own lane. The other senders go on in their turns.
#[test]
fn a_view_of_one_lane_keeps_no_other_back() {
    alone!();
    let (b, name) = receiver("turns");
    let small = Config { send_buffer: Some(4096), ..Config::default() };
    let (a, c) = (laned_with(&b, &name, &small), laned(&b, &name));
    assert!(writable(&a) && writable(&c) && empty(&b));
    let mut views = Vec::new();
    let piece = a.max_datagram() / 3;
    while send_in_place(&a, &vec![views.len() as u8; piece]).is_ok() {
        views.push(b.recv_borrowed_with_flags(piece, LOOK).unwrap().0);
        assert!(empty(&b));
    }
    assert!(views.len() > 1 && !writable(&a), "the views hold all of its room");
    assert!(empty(&b), "and yet there is nothing to receive");
    for round in 0..200u8 {
        assert!(writable(&c));
        assert_eq!(send_in_place(&c, &[round; 500]).unwrap(), 500);
        assert!(readable(&b));
        assert_eq!(borrow(&b, 999), [round; 500]);
        assert!(empty(&b));
    }
    // The newest goes back first, which frees nothing yet.
    drop(views.pop());
    assert!(!writable(&a));
    std::thread::scope(|s| {
        let waits = asleep(s, || {
            a.reserve(piece).and_then(|mut slot| {
                slot.copy_from(b"room");
                slot.commit()
            })
        });
        assert!(views.iter().enumerate().all(|(i, view)| seen(view) == vec![i as u8; piece]));
        views.clear();
        assert_eq!(waits.join().unwrap().unwrap(), 4);
    });
    assert_eq!(borrow(&b, 9), b"room");
    assert!(writable(&a) && empty(&b));
}

/// Lanes, and the kernel's queue beside them, are borrowed from in turns, in each sender's order.
#[test]
fn views_come_in_turns() {
    alone!();
    let (b, name) = receiver("fair");
    let senders = [laned(&b, &name), laned(&b, &name)];
    let plain = Datagram::unbound().unwrap();
    let mut views = Vec::new();
    let mut next = [0u8; 3];
    for round in 0..40u8 {
        for (who, sender) in senders.iter().enumerate() {
            send_in_place(sender, &[who as u8, round]).unwrap();
        }
        plain.send_to_with_flags(&[2, round], &name, NOW).unwrap();
        for _ in 0..3 {
            let (view, ..) = b.recv_borrowed_with_flags(9, LOOK).unwrap();
            let bytes = seen(&view);
            let who = usize::from(bytes[0]);
            assert_eq!(bytes, [bytes[0], next[who]]);
            next[who] += 1;
            views.push((view, bytes));
            if views.len() > 20 {
                let (view, bytes) = views.remove(usize::from(round) % 20);
                assert_eq!(seen(&view), bytes);
            }
        }
        assert!(empty(&b), "round {round}");
    }
    assert_eq!(next, [40; 3]);
    drop(b);
    assert!(views.iter().all(|(view, bytes)| seen(view) == *bytes), "they outlive the socket");
    drop(Datagram::bind(&name).unwrap());
}

/// What the receiver does between reserve and commit is told as to a send.
#[test]
fn a_slot_on_a_lane_is_committed_as_a_send_would_be() {
    alone!();
    let other = Datagram::bind(abstract_("as-other")).unwrap();
    type Act<'a> = (&'a str, &'a dyn Fn(&Datagram, Datagram) -> Option<Datagram>);
    let acts: [Act<'_>; 6] = [
        ("gone", &|_, _| None),
        ("connected elsewhere", &|_, b| {
            b.connect(other.local_addr().unwrap()).unwrap();
            Some(b)
        }),
        ("connected here", &|a, b| {
            b.connect(a.autobind().unwrap()).unwrap();
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
        let outcome = |in_place: bool| {
            let (b, name) = receiver("as");
            let a = laned(&b, &name);
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
            let mut buffer = [0; 99];
            let got = b.as_ref().map(|b| b.recv_with_flags(&mut buffer, LOOK).map(|n| buffer[..n].to_vec()));
            let got = got.map(|got| got.map_err(|error| error.raw_os_error()));
            (sent, got, a.send_with_flags(b"then", NOW).map_err(|error| error.raw_os_error()))
        };
        let (send, slot) = (outcome(false), outcome(true));
        assert_eq!(send, slot, "{what}");
        if ["nothing", "connected here"].contains(&what) {
            assert_eq!((slot.0, slot.1), (Ok(7), Some(Ok(b"content".to_vec()))), "{what}");
        }
        assert!(empty(&other), "{what}");
    }
}

/// A sender that connects elsewhere does not take a slot of its old lane there, and may have a lane there too.
#[test]
fn a_slot_of_a_lane_goes_to_no_other_receiver() {
    alone!();
    let ((b, name), (c, other)) = (receiver("from"), receiver("to"));
    let a = laned(&b, &name);
    let mut slot = a.reserve(100).unwrap();
    slot.copy_from(b"for b");
    assert_eq!(errno(a.send_with_flags(b"x", NOW)), Errno::AGAIN, "the slot has the lane");
    a.connect(&other).unwrap();
    assert_eq!(errno(slot.commit()), Errno::CANCELED);
    assert!(empty(&b) && empty(&c));
    for i in 0..60 {
        send_in_place(&a, &[i]).unwrap();
        assert_eq!(borrow(&c, 9), [i]);
    }
    assert_eq!(a.path().send, Carrier::SharedMemory);
    assert!(empty(&b));
    // To the same receiver again: the slot stays.
    let mut slot = a.reserve(9).unwrap();
    slot.copy_from(b"again");
    a.connect(&other).unwrap();
    assert_eq!(slot.commit().unwrap(), 5);
    assert_eq!(borrow(&c, 9), b"again");
}

/// Slots that are reserved over the kernel and committed on a lane, or the other way round, in order.
#[test]
fn slots_are_committed_while_a_sender_gets_its_lane() {
    alone!();
    let mut moved = 0;
    for shift in 0..8 {
        let (b, name) = receiver("gets");
        let a = Datagram::unbound().unwrap();
        a.connect(&name).unwrap();
        (0..shift).for_each(|_| assert!(empty(&a)));
        for i in 0..80u8 {
            let mut slot = a.reserve_with_flags(30, NOW).unwrap();
            let was = a.path().send;
            slot.copy_from(&[i, 1]);
            if was == Carrier::Kernel {
                a.send_with_flags(&[i, 0], NOW).unwrap();
                assert_eq!(borrow(&b, 9), [i, 0]);
            }
            assert_eq!(slot.commit().unwrap(), 2);
            moved += usize::from(a.path().send != was);
            assert_eq!(borrow(&b, 9), [i, 1]);
            assert!(empty(&b));
        }
        assert_eq!(a.path().send, Carrier::SharedMemory);
    }
    assert!(moved > 0, "no slot was reserved over the kernel and sent on a lane");
}

fn returned(result: std::io::Result<onecopy_sys::fork::Child>) -> i32 {
    match result.unwrap().wait() {
        Ended::Returned(code) => code,
        other => panic!("{other:?}"),
    }
}

/// A child inherits no slot. The parent's is committed as if there were no child.
#[test]
fn a_child_inherits_no_slot() {
    alone!();
    let (b, name) = receiver("inherits");
    let a = laned(&b, &name);
    let (x, y) = Datagram::pair().unwrap();
    for (from, to) in [(&a, &b), (&x, &y)] {
        let mut slot = from.reserve(100).unwrap();
        slot.copy_from(b"of the ");
        let mut slot = Some(slot);
        let code = child(|| {
            let mut slot = slot.take().unwrap();
            let wrote = slot.copy_from(b"child");
            let committed = slot.commit().err().map(|error| error.raw_os_error());
            let busy = Some(Errno::BUSY.raw_os_error());
            let sent = from.send_with_flags(b"child", NOW).err().map(|error| error.raw_os_error());
            let reserved = from.reserve_with_flags(1, NOW).err().map(|error| error.raw_os_error());
            i32::from(wrote != 0 || committed != busy || sent != busy || reserved != busy)
        });
        assert_eq!(returned(code), 0);
        let mut slot = slot.unwrap();
        slot.copy_from(b"parent");
        assert_eq!(slot.commit().unwrap(), 13);
        assert_eq!(borrow(to, 99), b"of the parent");
        from.send_with_flags(b"on", NOW).unwrap();
        assert_eq!(borrow(to, 99), b"on");
        assert!(empty(to));
    }
}

/// Over the kernel both processes have the socket, and the child can reserve room of its own.
#[test]
fn a_child_reserves_room_over_the_kernel() {
    alone!();
    let (b, name) = receiver("kernels");
    let a = Datagram::unbound().unwrap();
    a.connect(&name).unwrap();
    let mut slot = Some(a.reserve(100).unwrap());
    let code = child(|| {
        let old = errno(slot.take().unwrap().commit());
        i32::from(old != Errno::BUSY) + 2 * i32::from(!matches!(send_in_place(&a, b"child"), Ok(5)))
    });
    assert_eq!(returned(code), 0);
    let mut slot = slot.unwrap();
    slot.copy_from(b"parent");
    assert_eq!(slot.commit().unwrap(), 6);
    assert_eq!((borrow(&b, 99), borrow(&b, 99)), (b"child".to_vec(), b"parent".to_vec()));
}

/// Two processes that send on one lane do not write into each other's room: a slot is a buffer there.
#[test]
fn a_slot_on_a_lane_of_two_processes_is_a_buffer() {
    alone!();
    let (b, name) = receiver("shared");
    let a = laned(&b, &name);
    let (mut go, mut wait) = std::os::unix::net::UnixStream::pair().unwrap();
    std::thread::scope(|s| {
        let forked = child(|| {
            use std::io::{Read, Write};
            let mut byte = [0];
            wait.read_exact(&mut byte).unwrap();
            for i in 0..100 {
                a.send(&[1, i]).unwrap();
            }
            wait.write_all(&byte).unwrap();
            0
        });
        let mut slot = a.reserve(100).unwrap();
        slot.copy_from(b"parent");
        use std::io::{Read, Write};
        go.write_all(&[1]).unwrap();
        let received = s.spawn(|| {
            for i in 0..100 {
                assert_eq!(borrow(&b, 9), [1, i]);
            }
        });
        go.read_exact(&mut [0]).unwrap();
        received.join().unwrap();
        assert_eq!(slot.commit().unwrap(), 6);
        assert_eq!(a.path().send, Carrier::SharedMemory);
        assert_eq!(borrow(&b, 99), b"parent");
        assert_eq!(returned(forked), 0);
    });
}

/// A fork while a view of a pair is held leaves the socket to the parent, and a child gives nothing back.
#[test]
fn a_child_gives_no_view_back() {
    alone!();
    let (b, name) = receiver("views");
    let a = laned(&b, &name);
    let (x, y) = Datagram::pair().unwrap();
    for (from, to, keeps) in [(&x, &y, true), (&a, &b, false)] {
        let mut views = Vec::new();
        let piece = from.max_datagram() / 4;
        for i in 0..3 {
            send_in_place(from, &vec![i; piece]).unwrap();
            views.push(to.recv_borrowed_with_flags(piece, LOOK).unwrap().0);
        }
        assert_eq!(errno(from.send_with_flags(&vec![9; 2 * piece], NOW)), Errno::AGAIN);
        let code = child(|| {
            let fine = views.iter().enumerate().all(|(i, view)| seen(view) == vec![i as u8; piece]);
            views.clear();
            // Who uses the socket of a pair first has it, unless the parent holds views.
            let refused = keeps && errno(to.recv_with_flags(&mut [0; 9], LOOK)) == Errno::BUSY;
            i32::from(!fine) + 2 * i32::from(refused != keeps)
        });
        assert_eq!(returned(code), 0);
        assert_eq!(errno(from.send_with_flags(&vec![9; 2 * piece], NOW)), Errno::AGAIN);
        for (i, view) in views.iter().enumerate() {
            assert_eq!(seen(view), vec![i as u8; piece]);
        }
        views.clear();
        assert_eq!(from.send_with_flags(&vec![9; 2 * piece], NOW).unwrap(), 2 * piece);
        assert_eq!(borrow(to, usize::MAX), vec![9; 2 * piece]);
        assert!(empty(to));
    }
}
