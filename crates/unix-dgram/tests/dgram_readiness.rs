//! poll(2) says that a datagram socket is readable if and only if there is a datagram, at every step of an
//! upgrade. Messages of onecopy alone never make a queue readable.

use onecopy_testing::{alone, readable};
use onecopy_unix::{Carrier, RecvFlags, SendFlags, SocketAddr};
use onecopy_unix_dgram::Datagram;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixDatagram};

const NOW: SendFlags = SendFlags::DONTWAIT;
const LOOK: RecvFlags = RecvFlags::DONTWAIT;

fn text(what: &str) -> String {
    format!("onecopy-test-ready-{what}-{}", std::process::id())
}

fn abstract_(what: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(text(what)).unwrap()
}

/// Returns two sockets with names that are connected to each other.
fn met(what: &str) -> [Datagram; 2] {
    let names = ["a", "b"].map(|end| abstract_(&format!("{what}-{end}")));
    let ends = [0, 1].map(|i| Datagram::bind(&names[i]).unwrap());
    ends[0].connect(&names[1]).unwrap();
    ends[1].connect(&names[0]).unwrap();
    ends
}

/// Receives, and checks that nothing is there.
fn finds_nothing(socket: &Datagram) {
    assert!(!readable(socket));
    assert!(socket.recv_with_flags(&mut [0; 99], LOOK).unwrap_err().would_block());
    assert_eq!(socket.readable_bytes().unwrap(), 0);
    assert!(!readable(socket));
}

/// A random choice of steps. Each seed has its own.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

#[test]
fn two_that_send_nothing_are_never_readable() {
    alone!();
    let [a, b] = met("nothing");
    for _ in 0..3000 {
        finds_nothing(&a);
        finds_nothing(&b);
    }
    assert!(!a.path().is_shared_memory() && !b.path().is_shared_memory());
}

/// Two sockets upgrade to shared memory. Both send and both receive, in any order, and each step is checked.
#[test]
fn two_that_meet_are_readable_for_datagrams_and_for_nothing_else() {
    alone!();
    let mut shared = 0;
    for seed in 0..60 {
        let ends = met(&format!("steps-{seed}"));
        let (mut dice, mut there) = (Dice(seed), [0u8; 2]);
        let mut next = [[0u8; 2]; 2];
        for step in 0..300 {
            let (who, other) = if dice.roll(2) == 0 { (0, 1) } else { (1, 0) };
            match dice.roll(5) {
                0 | 1 => match ends[who].send_with_flags(&[next[who][0]], NOW) {
                    Ok(_) => (next[who][0], there[other]) = (next[who][0].wrapping_add(1), there[other] + 1),
                    Err(error) => assert!(error.would_block(), "{error}"),
                },
                2 => {
                    let peeked = ends[who].recv_with_flags(&mut [0; 9], LOOK | RecvFlags::PEEK).is_ok();
                    assert_eq!(peeked, there[who] > 0, "seed {seed}, step {step}");
                }
                _ => {
                    let mut buffer = [0; 9];
                    let got = ends[who].recv_with_flags(&mut buffer, LOOK).is_ok();
                    assert_eq!(got, there[who] > 0, "seed {seed}, step {step}");
                    if got {
                        assert_eq!(buffer[0], next[other][1], "seed {seed}, step {step}");
                        (next[other][1], there[who]) = (next[other][1].wrapping_add(1), there[who] - 1);
                    }
                }
            }
            for (end, there) in ends.iter().zip(there) {
                assert_eq!(readable(end), there > 0, "seed {seed}, step {step}");
            }
        }
        shared += ends.iter().filter(|end| end.path().send == Carrier::SharedMemory).count();
    }
    assert!(shared > 60, "{shared} of 120 directions");
}

/// One socket only ever receives, and the other only ever sends.
#[test]
fn one_way_is_readable_for_datagrams_and_for_nothing_else() {
    alone!();
    for behind in 0..6u8 {
        let [a, b] = met(&format!("one-way-{behind}"));
        for i in 0..200u8 {
            a.send_with_flags(&[i], NOW).unwrap();
            assert!(readable(&b) && !readable(&a));
            if i >= behind {
                let mut buffer = [0; 9];
                assert_eq!((b.recv_with_flags(&mut buffer, LOOK).unwrap(), buffer[0]), (1, i - behind));
                assert_eq!(readable(&b), behind > 0);
            }
        }
        assert_eq!((a.path().send, b.path().send), (Carrier::SharedMemory, Carrier::Kernel));
        for _ in 0..behind {
            assert_eq!(b.recv_with_flags(&mut [0; 9], LOOK).unwrap(), 1);
        }
        finds_nothing(&b);
        finds_nothing(&a);
    }
}

/// A datagram over the kernel leaves no room there, at each step of the upgrade. A sender through memory must
/// then have room for a doorbell.
#[test]
fn one_that_fills_the_kernels_queue_hides_none_that_follow() {
    alone!();
    for before in 0..12 {
        let [a, b] = met(&format!("filled-{before}"));
        for i in 0..before {
            let (from, to) = if i % 2 == 0 { (&a, &b) } else { (&b, &a) };
            from.send_with_flags(b"x", NOW).unwrap();
            assert_eq!(to.recv_with_flags(&mut [0; 9], LOOK).unwrap(), 1);
        }
        b.send_with_flags(b"x", NOW).unwrap();
        // Two of these have no room in memory.
        let mut there = 1 + usize::from(b.send_with_flags(&vec![7; b.max_datagram()], NOW).is_ok());
        for _ in 0..6 {
            assert!(readable(&a), "after {before}, {there} are there");
            a.recv_with_flags(&mut [0; 9], LOOK).unwrap();
            there -= 1;
            match b.send_with_flags(b"x", NOW) {
                Ok(_) => there += 1,
                Err(error) => assert!(error.would_block(), "{error}"),
            }
        }
        while there > 0 {
            assert!(readable(&a), "after {before}, {there} are there");
            a.recv_with_flags(&mut [0; 9], LOOK).unwrap();
            there -= 1;
        }
        finds_nothing(&a);
    }
}

/// A look at a socket whose ring is full is no send. What a peer that is gone had sent stays there until a
/// send.
#[test]
fn a_look_does_not_lose_what_a_peer_that_is_gone_had_sent() {
    alone!();
    let (a, b) = Datagram::pair().unwrap();
    // A frame has a header of eight bytes.
    a.send_with_flags(&vec![7; a.max_datagram()], NOW).unwrap();
    while a.send_with_flags(&[7; 8], NOW).is_ok() {}
    let (c, d) = Datagram::pair().unwrap();
    c.send_with_flags(&vec![7; c.max_datagram()], NOW).unwrap();
    for (full, peer) in [(a, b), (c, d)] {
        peer.send_with_flags(b"x", NOW).unwrap();
        drop(peer);
        assert!(readable(&full));
        assert_eq!(full.recv_with_flags(&mut [0; 9], LOOK).unwrap(), 1);
        assert!(!readable(&full));
        let errno = |error: onecopy_unix::Error| error.raw_os_error();
        assert_eq!(full.send_with_flags(b"x", NOW).map_err(errno), Err(Errno::CONNREFUSED.raw_os_error()));
    }
}

/// Datagrams that another socket does not receive take the kernel's room for doorbells.
#[test]
fn a_peer_is_told_beside_a_full_send_buffer() {
    alone!();
    let [a, b] = met("beside");
    while b.path().send != Carrier::SharedMemory || a.path().receive != Carrier::SharedMemory {
        for (from, to) in [(&a, &b), (&b, &a)] {
            from.send_with_flags(b"x", NOW).unwrap();
            assert_eq!(to.recv_with_flags(&mut [0; 9], LOOK).unwrap(), 1);
        }
    }
    finds_nothing(&a);
    let name = abstract_("beside-c");
    let _c = Datagram::bind(&name).unwrap();
    while b.send_to_with_flags(&[7; 100_000], &name, NOW).is_ok() {}
    for _ in 0..3 {
        b.send_with_flags(b"x", NOW).unwrap();
        assert!(readable(&a));
        assert_eq!(a.recv_with_flags(&mut [0; 9], LOOK).unwrap(), 1);
        finds_nothing(&a);
    }
}

/// The program gets only the descriptors that were sent with a datagram. 253 of them leave no room for
/// others.
#[test]
fn descriptors_of_the_program_are_all_that_it_gets() {
    alone!();
    let [a, b] = met("rights");
    let file = std::fs::File::open("/dev/null").unwrap();
    for i in 0..60usize {
        let count = [0, 1, 252, 253][i % 4];
        a.send_fds_with_flags(&[7], &vec![file.as_fd(); count], NOW).unwrap();
        if i % 3 == 0 {
            let (_, with, _) = b.recv_fds_with_flags(&mut [0; 9], LOOK | RecvFlags::PEEK).unwrap();
            assert_eq!((with.fds.len(), with.truncated), (count, false));
        }
        let (received, with, _) = b.recv_fds_with_flags(&mut [0; 9], LOOK).unwrap();
        assert_eq!((received.len, with.fds.len(), with.truncated), (1, count, false), "datagram {i}");
        finds_nothing(&b);
    }
    assert_eq!(a.path().send, Carrier::SharedMemory);
}

/// A receiver that has no room for descriptors for a while loses only proofs. It shares memory once there is
/// room.
#[test]
fn a_sign_that_is_lost_is_sent_again() {
    alone!();
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let child = onecopy_sys::fork::child(|| {
        let [a, b] = met("lost");
        (0..40).for_each(|_| [&a, &b].into_iter().for_each(finds_nothing));
        let old = getrlimit(Resource::Nofile);
        for i in 0..200u8 {
            let lacks = i < 10;
            a.send_with_flags(&[i], NOW).unwrap();
            setrlimit(Resource::Nofile, Rlimit { current: if lacks { Some(0) } else { old.current }, ..old })
                .unwrap();
            let mut buffer = [0; 9];
            assert_eq!((b.recv_with_flags(&mut buffer, LOOK).unwrap(), buffer[0]), (1, i));
            setrlimit(Resource::Nofile, old).unwrap();
            assert!(!lacks || a.path().send == Carrier::Kernel);
            assert!(!readable(&b));
        }
        assert_eq!(a.path().send, Carrier::SharedMemory);
        0
    });
    assert_eq!(child.unwrap().wait(), onecopy_sys::fork::Ended::Returned(0));
}

/// A fan-in receiver has senders of which some are plain, some come late and some go. Each step is checked.
#[test]
fn a_receiver_of_many_is_readable_for_datagrams_and_for_nothing_else() {
    alone!();
    let mut laned = 0;
    for seed in 0..30 {
        let what = format!("many-{seed}");
        let b = Datagram::bind(abstract_(&what)).unwrap();
        let plain = UnixDatagram::unbound().unwrap();
        plain.connect_addr(&net::SocketAddr::from_abstract_name(text(&what)).unwrap()).unwrap();
        plain.set_nonblocking(true).unwrap();
        let connected = || {
            let sender = Datagram::unbound().unwrap();
            sender.connect(abstract_(&what)).unwrap();
            sender
        };
        let mut dice = Dice(1000 + seed);
        // Each sender has a number, and a count of what it has sent. The receiver counts what it has received
        // from each.
        let mut senders: Vec<(usize, Datagram)> = Vec::new();
        let (mut sent, mut received) = (vec![0u8], vec![0u8]);
        let mut there = 0;
        for step in 0..1500 {
            match dice.roll(20) {
                0 if senders.len() < 5 => {
                    senders.push((sent.len(), connected()));
                    sent.push(0);
                    received.push(0);
                }
                1 if dice.roll(10) == 0 && !senders.is_empty() => {
                    let which = dice.roll(senders.len() as u64) as usize;
                    let (_, gone) = senders.remove(which);
                    laned += usize::from(gone.path().send == Carrier::SharedMemory);
                }
                2 => {
                    if plain.send(&[0, sent[0]]).is_ok() {
                        (sent[0], there) = (sent[0].wrapping_add(1), there + 1);
                    }
                }
                3..10 if !senders.is_empty() => {
                    let (number, sender) = &senders[dice.roll(senders.len() as u64) as usize];
                    match sender.send_with_flags(&[*number as u8, sent[*number]], NOW) {
                        Ok(_) => (sent[*number], there) = (sent[*number].wrapping_add(1), there + 1),
                        Err(error) => assert!(error.would_block(), "{error}"),
                    }
                }
                10..19 => {
                    let mut buffer = [0; 9];
                    let got = b.recv_with_flags(&mut buffer, LOOK).is_ok();
                    assert_eq!(got, there > 0, "seed {seed}, step {step}");
                    if got {
                        let from = usize::from(buffer[0]);
                        assert_eq!(buffer[1], received[from], "seed {seed}, step {step}: order of {from}");
                        (received[from], there) = (received[from].wrapping_add(1), there - 1);
                    }
                }
                _ => {
                    let bytes = b.readable_bytes().unwrap();
                    assert_eq!(bytes > 0, there > 0, "seed {seed}, step {step}");
                }
            }
            assert_eq!(readable(&b), there > 0, "seed {seed}, step {step}");
            assert!(senders.iter().all(|(_, sender)| !readable(sender)), "seed {seed}, step {step}");
        }
        laned += senders.iter().filter(|(_, sender)| sender.path().send == Carrier::SharedMemory).count();
    }
    assert!(laned > 60, "{laned} lanes");
}

/// A plain sender floods the receiver, and another one switches to a lane. What the other one sends is
/// received in order, and soon.
#[test]
fn who_switches_beside_a_flood_is_received() {
    alone!();
    let b = Datagram::bind(abstract_("flood")).unwrap();
    let plain = UnixDatagram::unbound().unwrap();
    plain.connect_addr(&net::SocketAddr::from_abstract_name(text("flood")).unwrap()).unwrap();
    plain.set_nonblocking(true).unwrap();
    let a = Datagram::unbound().unwrap();
    a.connect(abstract_("flood")).unwrap();
    let (mut sent, mut received) = (0u32, 0u32);
    for round in 0..4000 {
        // The kernel's queue is never empty.
        while plain.send(b"p").is_ok() {}
        // There is room for one of our datagrams, and the flood goes on behind it.
        let mut buffer = [0; 9];
        let n = b.recv_with_flags(&mut buffer, LOOK).unwrap();
        if n == 4 {
            assert_eq!(buffer[..4], received.to_le_bytes(), "round {round}");
            received += 1;
        }
        if sent < received + 3 && a.send_with_flags(&sent.to_le_bytes(), NOW).is_ok() {
            sent += 1;
        }
        assert!(readable(&b));
    }
    assert_eq!(a.path().send, Carrier::SharedMemory);
    assert!(received > 500, "{received} of {sent}");
}
