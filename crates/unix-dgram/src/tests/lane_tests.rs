//! What a fan-in receiver owes to threads that wait for it and to its other senders, at the moments when that
//! is hard.

use crate::Datagram;
use crate::fan_in::readiness::CONTROLS;
use crate::fan_in::receiver::{SILENCE, name_for_many};
use crate::pairing::line::seqpacket;
use crate::pairing::state::BROKEN;
use crate::wire::control_message::ControlMessage;
use onecopy_sync::atomic::Ordering::{Relaxed, Release};
use onecopy_testing::readable;
use onecopy_unix::failpoint;
use onecopy_unix::{Carrier, RecvFlags, SendFlags, SocketAddr};
use rustix::fd::AsFd;
use rustix::fd::OwnedFd;
use std::cell::Cell;
use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::Arc;

const NOW: SendFlags = SendFlags::DONTWAIT;
const LOOK: RecvFlags = RecvFlags::DONTWAIT;
const PLAIN: rustix::net::RecvFlags = rustix::net::RecvFlags::DONTWAIT;

fn abstract_(what: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("onecopy-lanes-{what}-{}", std::process::id())).unwrap()
}

pub fn receiver(what: &str) -> (Datagram, SocketAddr) {
    let name = abstract_(what);
    (Datagram::bind(&name).unwrap(), name)
}

fn connected(name: &SocketAddr) -> Datagram {
    let sender = Datagram::unbound().unwrap();
    sender.connect(name).unwrap();
    sender
}

/// Makes a sender that has a lane.
pub fn laned(to: &Datagram, name: &SocketAddr) -> Datagram {
    let sender = connected(name);
    for i in 0..60 {
        sender.send_with_flags(&[i], NOW).unwrap();
        let mut buffer = [0; 9];
        assert_eq!((to.recv_with_flags(&mut buffer, LOOK).unwrap(), buffer[0]), (1, i));
    }
    assert_eq!(sender.path().send, Carrier::SharedMemory);
    sender
}

/// A program receives once each time it finds the socket readable, or asks how much there is. It gets
/// everything, also while a sender switches: the sender's switch takes effect behind what it sent before.
#[test]
fn a_switch_is_met_by_who_polls() {
    onecopy_testing::alone!();
    for behind in 0..4u8 {
        for asks in [false, true] {
            let (b, name) = receiver("switch");
            drop(connected(&name));
            assert!(!readable(&b));
            let a = connected(&name);
            (0..behind).for_each(|i| assert_eq!(a.send_with_flags(&[i], NOW).unwrap(), 1));
            for i in behind..100 {
                a.send_with_flags(&[i], NOW).unwrap();
                if asks {
                    assert_eq!(b.readable_bytes().unwrap(), 1, "{behind} behind, before {i}");
                }
                assert!(readable(&b), "{behind} behind, before {i}");
                let mut buffer = [0; 64];
                assert_eq!((b.recv_with_flags(&mut buffer, LOOK).unwrap(), buffer[0]), (1, i - behind));
            }
            for i in 100 - behind..100 {
                assert!(readable(&b), "{behind} behind, before {i}");
                let mut buffer = [0; 64];
                assert_eq!((b.recv_with_flags(&mut buffer, LOOK).unwrap(), buffer[0]), (1, i));
            }
            assert_eq!(a.path().send, Carrier::SharedMemory);
            assert!(!readable(&b));
        }
    }
}

/// A sender rings between the look into its lane and the look into the queue.
#[test]
fn a_bell_at_the_wrong_moment_is_not_lost() {
    onecopy_testing::alone!();
    let (b, name) = receiver("moment");
    let (a, c) = (laned(&b, &name), Arc::new(laned(&b, &name)));
    assert!(!readable(&b));
    for i in 0..10 {
        a.send_with_flags(&[i], NOW).unwrap();
        let rings = Arc::clone(&c);
        failpoint::at("lanes are empty", move || assert_eq!(rings.send_with_flags(b"c!", NOW).unwrap(), 2));
        let mut buffer = [0; 64];
        assert_eq!((b.recv_with_flags(&mut buffer, LOOK).unwrap(), buffer[0]), (1, i));
        assert!(readable(&b));
        assert_eq!(b.recv_with_flags(&mut buffer, LOOK).unwrap(), 2);
        assert!(!readable(&b));
    }
}

/// A sender sends descriptors and misbehaves at the same moment. They do not come with another sender's
/// datagram.
#[test]
fn what_a_liar_sends_comes_with_nothing_else() {
    onecopy_testing::alone!();
    let (b, name) = receiver("planted");
    b.set_pass_credentials(true).unwrap();
    let (liar, honest) = (laned(&b, &name), laned(&b, &name));
    liar.send_fds_with_flags(b"liar", &[b.as_fd()], NOW).unwrap();
    let ring = liar.socket().lane().unwrap().connection().tx_ring().unwrap().clone();
    ring.header().reader.0.filler.store(u32::MAX, Relaxed);
    ring.header().reader.0.parked.store(onecopy_ring::doorbell::PARKED, Release);
    let plain = Datagram::unbound().unwrap();
    for (from, datagram) in [(&honest, &b"honest"[..]), (&plain, b"kernel")] {
        from.send_to_with_flags(datagram, &name, NOW).unwrap();
        let mut buffer = [0; 9];
        let (received, with, _) = b.recv_fds_with_flags(&mut buffer, LOOK).unwrap();
        assert_eq!(&buffer[..received.len], datagram);
        assert!(with.fds.is_empty() && !with.truncated);
    }
    assert_eq!(b.stats().protocol_errors, 1);
}

/// A receiver without a descriptor left gets its datagrams without their descriptors, as from the kernel, and
/// keeps the lane.
#[test]
fn a_receiver_that_can_open_no_more_loses_no_datagram() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    onecopy_testing::alone!();
    let child = onecopy_sys::fork::child(|| {
        let (b, name) = receiver("no-more");
        let (a, c) = (laned(&b, &name), laned(&b, &name));
        let (old, look) = (getrlimit(Resource::Nofile), LOOK);
        let next = |flags| {
            let mut buffer = [0; 9];
            b.recv_fds_with_flags(&mut buffer, flags)
                .map(|(_, with, _)| (buffer[0], with.fds.len(), with.truncated))
        };
        for round in 0..3 {
            // The first of these go before the channel is known.
            for i in 1..4 {
                a.send_fds_with_flags(&[i], &[b.as_fd()], NOW).unwrap();
                c.send_with_flags(&[10 + i], NOW).unwrap();
            }
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..old }).unwrap();
            let mut got: Vec<_> = (0..6).map(|_| next(look).unwrap()).collect();
            got.sort_unstable();
            let all = (1..4).map(|i| (i, 0, true)).chain((11..14).map(|i| (i, 0, false)));
            assert_eq!(got, all.collect::<Vec<_>>(), "round {round}");
            assert!(next(look).unwrap_err().would_block());
            setrlimit(Resource::Nofile, old).unwrap();
            a.send_fds_with_flags(&[9], &[b.as_fd()], NOW).unwrap();
            assert_eq!(next(look).unwrap(), (9, 1, false));
        }
        // A peek that has no room for copies returns an error and takes nothing. Other lanes still have their
        // turns.
        a.send_fds_with_flags(&[1], &[b.as_fd()], NOW).unwrap();
        let peek = look | RecvFlags::PEEK;
        assert_eq!(next(peek).unwrap(), (1, 1, false));
        c.send_with_flags(&[2], NOW).unwrap();
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..old }).unwrap();
        assert_eq!(next(peek).unwrap_err().raw_os_error(), rustix::io::Errno::MFILE.raw_os_error());
        assert_eq!(next(look).unwrap(), (2, 0, false));
        assert_eq!(next(look).unwrap(), (1, 1, false));
        assert_eq!((b.stats().protocol_errors, a.path().send), (0, Carrier::SharedMemory));
        0
    });
    assert_eq!(child.unwrap().wait(), onecopy_sys::fork::Ended::Returned(0));
}

/// Sends a record, and then one more for each that is looked at, as a flood from another thread does.
fn flood(line: Arc<OwnedFd>, looked: Rc<Cell<u32>>) {
    let _ = rustix::net::send(&line, b"b", rustix::net::SendFlags::DONTWAIT);
    failpoint::at("before the channel", move || {
        looked.set(looked.get() + 1);
        if looked.get() < 10_000 {
            flood(line, looked);
        }
    });
}

/// A sender announces descriptors, and sends doorbells without end in their place. No call is held up.
#[test]
fn a_flood_of_bells_ends_the_lane_and_not_the_turns() {
    onecopy_testing::alone!();
    let (b, name) = receiver("flood");
    let (liar, honest) = (laned(&b, &name), laned(&b, &name));
    {
        let lane = liar.socket().lane().unwrap();
        let looked = Rc::new(Cell::new(0));
        let ring = lane.connection().tx_ring().unwrap();
        let head = ring.header().writer.0.head.load(Relaxed);
        ring.set_word(head as usize % ring.capacity(), 1 << 32 | 1 << 40);
        let size = onecopy_ring::record::least_with(ring.capacity()) as u64;
        ring.header().writer.0.head.store(head + size, Release);
        flood(Arc::new(lane.connection().fd().try_clone_to_owned().unwrap()), Rc::clone(&looked));
        honest.send_with_flags(b"honest", NOW).unwrap();
        assert_eq!(b.recv_with_flags(&mut [0; 9], LOOK).unwrap(), 6);
        assert!((1..1000).contains(&looked.get()), "{}", looked.get());
    }
    assert_eq!(b.stats().protocol_errors, 1);
    assert_eq!(honest.path().send, Carrier::SharedMemory);
}

/// FIONREAD tells the size of what is received next, whichever lane has its turn.
#[test]
fn what_is_there_is_what_comes() {
    onecopy_testing::alone!();
    let (b, name) = receiver("asked");
    let (a, plain) = (laned(&b, &name), Datagram::unbound().unwrap());
    for polls in [false, true] {
        if polls {
            assert!(!readable(&b));
        }
        for round in 0..20 {
            (0..40).for_each(|_| assert_eq!(a.send_with_flags(b"x", NOW).unwrap(), 1));
            let theirs = round % 4;
            (0..theirs).for_each(|i| {
                assert_eq!(plain.send_to_with_flags(&[7; 300][i..], &name, NOW).unwrap(), 300 - i)
            });
            for _ in 0..40 + theirs {
                let there = b.readable_bytes().unwrap();
                assert!(!polls || readable(&b));
                assert_eq!(b.recv_with_flags(&mut [0; 999], LOOK).unwrap(), there);
            }
            assert_eq!(b.readable_bytes().unwrap(), 0);
            assert!(!polls || !readable(&b));
        }
    }
}

/// Whoever floods keeps nobody waiting for long, though not all lanes are looked at each time; also where the program looks at each datagram before it takes it.
#[test]
fn one_of_many_lanes_is_not_kept_waiting_by_a_flood() {
    onecopy_testing::alone!();
    const MANY: usize = 30;
    let (b, name) = receiver("turns");
    let senders: Vec<Datagram> = (0..MANY).map(|_| laned(&b, &name)).collect();
    let send = |who: usize| assert_eq!(senders[who].send_with_flags(&[who as u8], NOW).unwrap(), 1);
    for peeks in [false, true] {
        let receive = || {
            let mut buffer = [0; 9];
            if peeks {
                assert_eq!(b.recv_with_flags(&mut buffer, LOOK | RecvFlags::PEEK).unwrap(), 1);
            }
            let peeked = buffer[0];
            assert_eq!(b.recv_with_flags(&mut buffer, LOOK).unwrap(), 1);
            assert!(!peeks || peeked == buffer[0], "what was looked at is what comes");
            usize::from(buffer[0])
        };
        (0..200).for_each(|_| send(3));
        for polite in (0..MANY).filter(|who| *who != 3) {
            send(polite);
            let waits = (0..).take_while(|_| receive() == 3).count();
            // One of the flood for every eight lanes that are looked at, and one more.
            assert!(waits <= MANY.div_ceil(8) + 1, "{polite} waited for {waits}");
        }
        while b.readable_bytes().unwrap() > 0 {
            assert_eq!(receive(), 3);
        }
        // Neighbours have their turns alike.
        (0..200).for_each(|_| [16, 17].into_iter().for_each(send));
        let of_one = (0..100).filter(|_| receive() == 16).count();
        assert!((45..=55).contains(&of_one), "{of_one} of 100");
        assert_eq!(of_one + (0..300).filter(|_| receive() == 16).count(), 200);
        assert_eq!(b.readable_bytes().unwrap(), 0);
    }
}

/// Senders that join and leave again without a switch to their lanes take the turns of nobody else.
#[test]
fn lanes_that_go_leave_the_turns_right() {
    onecopy_testing::alone!();
    let (b, name) = receiver("leavers");
    let mut buffer = [0; 9];
    for _ in 0..3 {
        let brief: Vec<Datagram> = (0..18)
            .map(|i| {
                let sender = connected(&name);
                assert_eq!(sender.send_with_flags(&[i], NOW).unwrap(), 1);
                assert_eq!(b.recv_with_flags(&mut buffer, LOOK).unwrap(), 1);
                sender
            })
            .collect();
        let steady = [laned(&b, &name), laned(&b, &name)];
        for sender in &steady {
            sender.send_with_flags(b"x", NOW).unwrap();
            assert_eq!(b.recv_with_flags(&mut buffer, LOOK).unwrap(), 1);
        }
        drop(brief);
        // Until it was looked who has died.
        for _ in 0..200 {
            for sender in &steady {
                sender.send_with_flags(b"x", NOW).unwrap();
                assert_eq!(b.recv_with_flags(&mut buffer, LOOK).unwrap(), 1);
            }
            assert_eq!(b.recv_with_flags(&mut buffer, LOOK).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
    }
}

/// Rings before each look into the queue, so many times.
fn ring(doorbell: [u8; 64], to: SocketAddr, times: u32) {
    failpoint::at("about to receive", move || {
        Datagram::unbound().unwrap().send_to_with_flags(&doorbell, &to, NOW).unwrap();
        if times > 1 {
            ring(doorbell, to, times - 1);
        }
    });
}

/// A receive that does not wait returns from a flood of control messages, and a sender that sends after it
/// rings.
#[test]
fn a_flood_of_words_is_left_with_lanes_armed() {
    onecopy_testing::alone!();
    let (b, name) = receiver("words");
    let a = laned(&b, &name);
    let doorbell = ControlMessage::Doorbell(b.socket().fan_in().unwrap().lock().nonce_of_all());
    let lane = a.socket().lane().unwrap();
    let header = lane.connection().tx_ring().unwrap().header();
    assert!(!header.is_armed());
    ring(doorbell.encode(), name.clone(), CONTROLS);
    assert!(b.recv_with_flags(&mut [0; 9], LOOK).unwrap_err().would_block());
    assert!(header.is_armed());
    // A program that polls is to come again.
    assert!(!readable(&b));
    ring(doorbell.encode(), name, CONTROLS);
    assert!(b.recv_with_flags(&mut [0; 9], LOOK).unwrap_err().would_block());
    assert!(readable(&b));
    assert!(b.recv_with_flags(&mut [0; 9], LOOK).unwrap_err().would_block());
    assert!(!readable(&b));
}

/// A sender has no CPU between connecting to the rendezvous listener and its hello, while others join. It is
/// sent away, and comes again.
#[test]
fn who_is_sent_away_before_its_hello_comes_again() {
    onecopy_testing::alone!();
    let (b, name) = receiver("late");
    drop(laned(&b, &name));
    let (a, b, away) = (connected(&name), Arc::new(b), Rc::new(Cell::new(false)));
    let (receiver, whose, was) = (b.clone(), name, away.clone());
    failpoint::at("connected to a rendezvous", move || {
        (0..SILENCE).for_each(|_| drop(laned(&receiver, &whose)));
        was.set(true);
    });
    for i in 0..60 {
        a.send_with_flags(&[i], NOW).unwrap();
        let mut buffer = [0; 9];
        assert_eq!((b.recv_with_flags(&mut buffer, LOOK).unwrap(), buffer[0]), (1, i));
    }
    assert!(away.get());
    assert_eq!((a.path().send, a.stats().fallbacks), (Carrier::SharedMemory, 0));
}

/// Makes a rendezvous listener in place of the receiver's, before that one listens.
fn listening(at: &Datagram) -> OwnedFd {
    let rendezvous = seqpacket().unwrap();
    let inode = rustix::fs::fstat(at.socket().fd()).unwrap().st_ino;
    rustix::net::bind(&rendezvous, &name_for_many(inode).unwrap()).unwrap();
    rustix::net::listen(&rendezvous, 1).unwrap();
    rendezvous
}

/// A sender tries a receiver that refuses everybody ever more rarely, and then no more.
#[test]
fn who_always_refuses_costs_few_tries() {
    onecopy_testing::alone!();
    let (b, name) = receiver("refuses");
    let rendezvous = Rc::new(listening(&b));
    let (a, tries) = (connected(&name), Rc::new(Cell::new(0)));
    let mut tried = Vec::new();
    for i in 0..10_000u32 {
        let (rendezvous, more) = (rendezvous.clone(), tries.clone());
        failpoint::at("connected to a rendezvous", move || {
            drop(rustix::net::accept(&*rendezvous).unwrap());
            more.set(more.get() + 1);
        });
        a.send_with_flags(&i.to_le_bytes(), NOW).unwrap();
        assert_eq!(rustix::net::recv(b.socket().fd(), &mut [0; 9][..], PLAIN).unwrap().0, 4);
        if tries.take() > 0 {
            tried.push(i);
        }
    }
    assert_eq!(tried.len(), BROKEN as usize + 1, "{tried:?}");
    let rests: Vec<u32> = tried.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(rests[0] > 1 && rests.is_sorted() && rests[4] > 1000, "{rests:?}");
    assert_eq!((a.path().send, a.stats().fallbacks), (Carrier::Kernel, 1));
}

/// A sender whose hello was not read when the line broke was not refused, and comes again soon.
#[test]
fn who_was_not_heard_comes_again_soon() {
    onecopy_testing::alone!();
    let (b, name) = receiver("unheard");
    let mut rendezvous = Some(listening(&b));
    let a = connected(&name);
    for i in 0..90 {
        a.send_with_flags(&[i], NOW).unwrap();
        let mut buffer = [0; 9];
        if i < 2 {
            // The receiver is not to listen itself before the other listener has gone.
            assert_eq!(rustix::net::recv(b.socket().fd(), &mut buffer[..], PLAIN).unwrap().0, 1);
            assert_eq!(
                rendezvous.as_ref().is_some_and(|rendezvous| rustix::net::accept(rendezvous).is_ok()),
                i == 1
            );
        } else {
            rendezvous = None;
            assert_eq!((b.recv_with_flags(&mut buffer, LOOK).unwrap(), buffer[0]), (1, i));
        }
    }
    assert_eq!((a.path().send, a.stats().fallbacks), (Carrier::SharedMemory, 0));
}
