//! Many datagram sockets that send to one. Each has its own lane there, and none can starve another.

use onecopy_testing::{alone, descriptors, readable, writable};
use onecopy_unix::{Carrier, Config, RecvFlags, SendFlags, SocketAddr};
use onecopy_unix_dgram::Datagram;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::time::Duration;

const NOW: SendFlags = SendFlags::DONTWAIT;
const LOOK: RecvFlags = RecvFlags::DONTWAIT;

fn abstract_(what: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("onecopy-test-many-{what}-{}", std::process::id())).unwrap()
}

fn errno<T: std::fmt::Debug>(result: onecopy_unix::Result<T>) -> Errno {
    Errno::from_raw_os_error(result.unwrap_err().raw_os_error())
}

/// Returns a receiver that has senders, and its name.
fn receiver(what: &str) -> (Datagram, SocketAddr) {
    let name = abstract_(what);
    let receiver = Datagram::bind(&name).unwrap();
    receiver.set_read_timeout(Some(onecopy_testing::LONG)).unwrap();
    (receiver, name)
}

fn recv(socket: &Datagram) -> Vec<u8> {
    let mut buffer = vec![0; 4000];
    let n = socket.recv(&mut buffer).unwrap();
    buffer.truncate(n);
    buffer
}

/// Sends until the sender has a lane. Each datagram states its sender, and arrives once and in order.
fn settle(receiver: &Datagram, sender: &Datagram, who: u8) {
    for i in 0..60 {
        assert_eq!(sender.send(&[who, i]).unwrap(), 2);
        assert_eq!(recv(receiver), [who, i]);
    }
    assert_eq!(sender.path().send, Carrier::SharedMemory);
}

fn sender(receiver: &Datagram, name: &SocketAddr, who: u8) -> Datagram {
    let sender = Datagram::unbound().unwrap();
    sender.connect(name).unwrap();
    settle(receiver, &sender, who);
    sender
}

fn fill(sender: &Datagram, datagram: &[u8]) -> usize {
    let mut sent = 0;
    loop {
        match sender.send_with_flags(datagram, NOW) {
            Ok(_) => sent += 1,
            Err(error) if error.would_block() => return sent,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_sender_comes_to_have_a_lane() {
    alone!();
    let (b, name) = receiver("lane");
    let a = sender(&b, &name, 1);
    let before = (a.stats().kernel_copied, b.stats().kernel_copied);
    for i in 0..1000u32 {
        a.send_with_flags(&i.to_le_bytes(), NOW).unwrap();
        assert_eq!(recv(&b), i.to_le_bytes());
    }
    assert_eq!((a.stats().kernel_copied, b.stats().kernel_copied), before);
    assert_eq!(b.path().receive, Carrier::SharedMemory);
    assert_eq!((a.stats().fallbacks, b.stats().fallbacks, b.stats().protocol_errors), (0, 0, 0));
    a.send_with_flags(&[9; 3000], SendFlags::NTCOPY).unwrap();
    assert_eq!(recv(&b), [9; 3000]);
    assert_eq!(a.stats().user_copied_nt, 3000);
}

/// A sender that never stops gets only its turn. Datagrams that it has no room for are its own problem.
#[test]
fn who_floods_starves_nobody() {
    alone!();
    let (b, name) = receiver("flood");
    let (a, c) = (sender(&b, &name, 1), sender(&b, &name, 2));
    let d = Datagram::unbound().unwrap();
    let mut flood = fill(&a, &[1; 100]);
    assert!(flood > 1000, "{flood}");
    for round in 0..50u8 {
        assert_eq!(c.send_with_flags(&[2, round], NOW).unwrap(), 2, "its own room");
        d.send_to_with_flags(&[4, round], &name, NOW).unwrap();
        let mut waited = BTreeMap::new();
        for n in 0..40 {
            let got = recv(&b);
            if got[0] != 1 {
                assert_eq!(got[1], round);
                assert!(waited.insert(got[0], n).is_none());
            }
            flood += fill(&a, &[1; 100]);
        }
        assert!(waited[&2] <= 2, "{waited:?}");
        assert!(waited[&4] <= 20, "{waited:?}");
    }
    assert!(flood > 3000);
}

#[test]
fn order_of_each_sender_is_kept_while_it_switches() {
    alone!();
    let (b, name) = receiver("order");
    const EACH: u32 = 4000;
    std::thread::scope(|s| {
        for who in 0..4u32 {
            let name = &name;
            s.spawn(move || {
                let sender = Datagram::unbound().unwrap();
                sender.connect(name).unwrap();
                for i in 0..EACH {
                    sender.send(&[who.to_le_bytes(), i.to_le_bytes()].concat()).unwrap();
                }
                assert_eq!(sender.path().send, Carrier::SharedMemory);
            });
        }
        let mut next = [0u32; 4];
        for _ in 0..4 * EACH {
            let got = recv(&b);
            let [who, i] = [0, 4].map(|at| u32::from_le_bytes(got[at..at + 4].try_into().unwrap()));
            assert_eq!(next[who as usize], i, "of {who}");
            next[who as usize] += 1;
        }
    });
    assert_eq!(errno(b.recv_with_flags(&mut [0; 9], LOOK)), Errno::AGAIN);
}

#[test]
fn names_are_what_the_kernel_says() {
    alone!();
    let (b, name) = receiver("names");
    let from = |b: &Datagram| b.recv_from(&mut [0; 9]).unwrap().1;
    let unnamed = sender(&b, &name, 1);
    unnamed.send_with_flags(b"x", NOW).unwrap();
    assert_eq!(from(&b).to_string(), "unix:(unnamed)");
    let path = std::env::temp_dir().join(format!("onecopy-test-many-{}", std::process::id()));
    for own in [abstract_("names-own"), SocketAddr::from_pathname(&path).unwrap()] {
        let a = Datagram::bind(&own).unwrap();
        a.connect(&name).unwrap();
        settle(&b, &a, 2);
        a.send_with_flags(b"x", NOW).unwrap();
        assert_eq!(from(&b), own);
    }
    std::fs::remove_file(&path).unwrap();
    // A sender that is bound later is known by its name from its next datagram on.
    unnamed.send_with_flags(b"before", NOW).unwrap();
    from(&b);
    unnamed.bind_to(abstract_("names-later")).unwrap();
    unnamed.send_with_flags(b"after", NOW).unwrap();
    assert_eq!(from(&b), abstract_("names-later"));
    assert_eq!(unnamed.path().send, Carrier::SharedMemory);
}

#[test]
fn cut_peeked_and_empty_ones() {
    alone!();
    let (b, name) = receiver("peek");
    let (a, c) = (sender(&b, &name, 1), sender(&b, &name, 2));
    a.send_with_flags(b"abcdef", NOW).unwrap();
    c.send_with_flags(b"ghijkl", NOW).unwrap();
    let mut buffer = [0; 9];
    for _ in 0..2 {
        assert_eq!(b.recv_with_flags(&mut buffer[..3], RecvFlags::PEEK | RecvFlags::TRUNC).unwrap(), 6);
    }
    let peeked = buffer[0];
    assert_eq!(b.readable_bytes().unwrap(), 6);
    let (received, _) = b.recv_datagram_with_flags(&mut buffer[..3], LOOK).unwrap();
    assert_eq!((received.len, received.full, buffer[0]), (3, 6, peeked));
    assert_eq!(b.recv_with_flags(&mut buffer, LOOK).unwrap(), 6);
    a.send_with_flags(b"", NOW).unwrap();
    let (received, _) = b.recv_datagram_with_flags(&mut buffer, LOOK).unwrap();
    assert!(received.len == 0 && !received.is_end());
    assert_eq!(errno(b.recv_with_flags(&mut buffer, LOOK)), Errno::AGAIN);
    assert_eq!(errno(a.send_with_flags(&vec![0; 1 << 22], NOW)), Errno::MSGSIZE);
}

/// A receiver polls as readable exactly when there is a datagram.
#[test]
fn readiness_says_what_there_is() {
    alone!();
    let (b, name) = receiver("poll");
    let (a, c) = (sender(&b, &name, 1), sender(&b, &name, 2));
    let d = Datagram::unbound().unwrap();
    assert!(!readable(&b));
    for round in 0..40 {
        let mut sent = 0;
        for (sender, every) in [(&a, 1), (&c, 3)] {
            for _ in 0..round / every {
                sender.send_with_flags(b"x", NOW).unwrap();
                sent += 1;
            }
        }
        for _ in 0..round % 5 {
            d.send_to_with_flags(b"y", &name, NOW).unwrap();
            sent += 1;
        }
        for _ in 0..sent {
            assert!(readable(&b), "round {round}");
            assert_eq!(b.recv_with_flags(&mut [0; 9], LOOK).unwrap(), 1);
        }
        assert!(!readable(&b), "round {round}");
        assert_eq!(errno(b.recv_with_flags(&mut [0; 9], LOOK)), Errno::AGAIN);
    }
}

/// POLLOUT of a sender tells of its own room.
#[test]
fn readiness_says_what_room_there_is() {
    alone!();
    let (b, name) = receiver("room");
    let (a, c) = (sender(&b, &name, 1), sender(&b, &name, 2));
    for _ in 0..5 {
        assert!(writable(&a) && writable(&c));
        let sent = fill(&a, &[1; 1000]);
        assert!(!writable(&a) && writable(&c));
        for _ in 0..sent {
            assert_eq!(b.recv_with_flags(&mut [0; 1000], LOOK).unwrap(), 1000);
        }
        assert!(writable(&a));
    }
}

/// What turns POLLOUT off takes a descriptor. Where none is left, the sender stays writable, and that is counted.
#[test]
fn who_has_no_descriptor_left_to_be_unwritable_with_is_counted() {
    alone!();
    let (b, name) = receiver("limited");
    let (a, c) = (sender(&b, &name, 1), sender(&b, &name, 2));
    // (poll(2) takes no more descriptors than there may be.)
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(1), maximum }).unwrap();
    let sent = fill(&a, &[1; 1000]);
    assert!(writable(&a));
    assert_eq!((a.stats().left_writable, b.stats().left_writable), (1, 0));
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    for _ in 0..sent {
        assert_eq!(b.recv_with_flags(&mut [0; 1000], LOOK).unwrap(), 1000);
    }
    // The other one has what it takes, and so has this one now.
    for socket in [&a, &c] {
        fill(socket, &[1; 1000]);
        assert!(!writable(socket));
    }
    assert_eq!((a.stats().left_writable, c.stats().left_writable), (1, 0));
}

#[test]
fn a_blocked_sender_waits_for_its_own_room_only() {
    alone!();
    let (b, name) = receiver("blocked");
    let (a, c) = (sender(&b, &name, 1), sender(&b, &name, 2));
    let sent = fill(&a, &[1; 1000]);
    std::thread::scope(|s| {
        let blocked = s.spawn(|| a.send(&[3; 1000]).unwrap());
        c.send(b"c").unwrap();
        let mut got = Vec::new();
        for _ in 0..sent + 2 {
            got.push(recv(&b)[0]);
        }
        assert_eq!(blocked.join().unwrap(), 1000);
        assert!(got.iter().position(|first| *first == b'c').unwrap() <= 2);
        assert_eq!(*got.last().unwrap(), 3);
    });
    let (_full, limit) = (fill(&a, &[1; 1000]), Duration::from_millis(30));
    a.set_write_timeout(Some(limit)).unwrap();
    assert_eq!(errno(a.send(&[1; 1000])), Errno::AGAIN);
}

/// Each datagram wakes threads that sleep in a receive, whichever of them takes it.
#[test]
fn sleeping_receivers_are_woken() {
    alone!();
    let (b, name) = receiver("asleep");
    let senders: Vec<Datagram> = (0..4).map(|who| sender(&b, &name, who)).collect();
    const EACH: usize = 2000;
    std::thread::scope(|s| {
        for sender in &senders {
            s.spawn(move || {
                for i in 0..EACH {
                    sender.send(&[1]).unwrap();
                    if i % 7 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let receivers: Vec<_> =
            (0..4).map(|_| s.spawn(|| (0..EACH).for_each(|_| assert_eq!(recv(&b), [1])))).collect();
        receivers.into_iter().for_each(|receiver| receiver.join().unwrap());
    });
    assert_eq!(errno(b.recv_with_flags(&mut [0; 9], LOOK)), Errno::AGAIN);
}

/// One doorbell may have rung for several datagrams. As many receivers wake as there are datagrams.
#[test]
fn each_that_sleeps_gets_one() {
    alone!();
    let (b, name) = receiver("each");
    let a = sender(&b, &name, 1);
    for _ in 0..30 {
        std::thread::scope(|s| {
            let before = b.stats().sleeps;
            let receivers: Vec<_> = (0..3).map(|_| s.spawn(|| assert_eq!(recv(&b), [1]))).collect();
            while b.stats().sleeps < before + 3 {
                std::thread::yield_now();
            }
            for _ in 0..3 {
                a.send_with_flags(&[1], NOW).unwrap();
            }
            receivers.into_iter().for_each(|receiver| receiver.join().unwrap());
        });
    }
}

#[test]
fn what_a_sender_sent_before_it_closed_arrives() {
    alone!();
    let (b, name) = receiver("closed");
    let a = sender(&b, &name, 1);
    for i in 0..100 {
        a.send_with_flags(&[i], NOW).unwrap();
    }
    drop(a);
    for i in 0..100 {
        assert_eq!(recv(&b), [i]);
    }
    assert_eq!(errno(b.recv_with_flags(&mut [0; 9], LOOK)), Errno::AGAIN);
    assert_eq!(b.path().receive, Carrier::Kernel);
}

#[test]
fn a_receiver_that_is_gone_is_refused_once_and_then_none() {
    alone!();
    let (b, name) = receiver("gone");
    let a = sender(&b, &name, 1);
    drop(b);
    assert_eq!(errno(a.send_with_flags(b"x", NOW)), Errno::CONNREFUSED);
    assert_eq!(errno(a.send_with_flags(b"x", NOW)), Errno::NOTCONN);
    // Another socket under that name is a new receiver.
    let (b, _) = receiver("gone");
    a.connect(&name).unwrap();
    settle(&b, &a, 3);
}

#[test]
fn shutting_down_is_as_with_the_kernel() {
    alone!();
    let (b, name) = receiver("shut");
    let (a, c) = (sender(&b, &name, 1), sender(&b, &name, 2));
    c.send_with_flags(b"c", NOW).unwrap();
    c.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(errno(c.send_with_flags(b"x", NOW)), Errno::PIPE);
    assert_eq!(recv(&b), b"c");
    a.send_with_flags(b"q", NOW).unwrap();
    b.shutdown(std::net::Shutdown::Read).unwrap();
    assert_eq!(errno(a.send_with_flags(b"x", NOW)), Errno::PIPE);
    assert_eq!(recv(&b), b"q");
    assert_eq!(errno(b.recv_with_flags(&mut [0; 9], LOOK)), Errno::AGAIN);
    assert!(b.recv_datagram(&mut [0; 9]).unwrap().0.is_end());
}

/// A receiver connects to one of its senders. It still receives what it had been sent, and other senders get
/// an error.
#[test]
fn a_receiver_that_connects_to_one_of_them() {
    alone!();
    let (b, name) = receiver("chooses");
    let own = abstract_("chooses-a");
    let a = Datagram::bind(&own).unwrap();
    a.connect(&name).unwrap();
    settle(&b, &a, 1);
    let c = sender(&b, &name, 2);
    for i in 0..50 {
        a.send_with_flags(&[i], NOW).unwrap();
        c.send_with_flags(&[100 + i], NOW).unwrap();
    }
    b.connect(&own).unwrap();
    assert_eq!(errno(c.send_with_flags(b"x", NOW)), Errno::PERM);
    a.send_with_flags(&[50], NOW).unwrap();
    let got: Vec<u8> = (0..101).map(|_| recv(&b)[0]).collect();
    for (from, count) in [(0, 51), (100, 50)] {
        let its: Vec<u8> = got.iter().copied().filter(|i| (from..from + 60).contains(i)).collect();
        assert_eq!(its, (from..from + count).collect::<Vec<_>>());
    }
    // The two come to share memory as any two sockets do that are connected to each other.
    for i in 0..200 {
        a.send_with_flags(&[i], NOW).unwrap();
        assert_eq!(recv(&b), [i]);
        b.send_with_flags(&[i], NOW).unwrap();
        assert_eq!(recv(&a), [i]);
    }
    assert!(a.path().is_shared_memory() && b.path().is_shared_memory(), "{:?} {:?}", a.path(), b.path());
}

/// A sender may go on to another receiver, and gets a lane there too.
#[test]
fn a_sender_that_goes_elsewhere() {
    alone!();
    let ((b, one), (c, other)) = (receiver("first"), receiver("second"));
    let a = sender(&b, &one, 1);
    a.send_with_flags(b"last", NOW).unwrap();
    a.connect(&other).unwrap();
    settle(&c, &a, 2);
    assert_eq!(recv(&b), b"last");
    a.send_to_with_flags(b"by name", &one, NOW).unwrap();
    assert_eq!(recv(&b), b"by name");
    a.disconnect().unwrap();
    assert_eq!(errno(a.send_with_flags(b"x", NOW)), Errno::NOTCONN);
    assert_eq!(errno(b.recv_with_flags(&mut [0; 9], LOOK)), Errno::AGAIN);
}

#[test]
fn descriptors_and_credentials_come_with_theirs() {
    alone!();
    let (b, name) = receiver("rights");
    b.set_pass_credentials(true).unwrap();
    let (a, c) = (sender(&b, &name, 1), sender(&b, &name, 2));
    let (r, w) = rustix::pipe::pipe().unwrap();
    for round in 0..20u8 {
        a.send_fds_with_flags(&[round], &[w.as_fd()], NOW).unwrap();
        c.send_with_flags(b"none", NOW).unwrap();
        for _ in 0..2 {
            let mut buffer = [0; 9];
            let (received, with, _) = b.recv_fds_with_flags(&mut buffer, LOOK).unwrap();
            assert_eq!(with.fds.len(), usize::from(received.len == 1));
            assert_eq!(with.credentials.unwrap().pid, std::process::id() as i32);
            if let Some(fd) = with.fds.first() {
                rustix::io::write(fd, &[round]).unwrap();
                let mut byte = [0];
                rustix::io::read(&r, &mut byte[..]).unwrap();
                assert_eq!(byte[0], round);
            }
        }
    }
    assert_eq!((a.path().send, b.stats().protocol_errors), (Carrier::SharedMemory, 0));
    // A sender that parks has its filler in the line, which must not be taken for a channel.
    let full = fill(&c, &[7; 2000]);
    for _ in 0..full {
        assert_eq!(b.recv_with_flags(&mut [0; 9], LOOK).unwrap(), 9);
    }
    c.send_fds_with_flags(b"x", &[w.as_fd()], NOW).unwrap();
    let (_, with, _) = b.recv_fds_with_flags(&mut [0; 9], LOOK).unwrap();
    assert_eq!((with.fds.len(), b.stats().protocol_errors), (1, 0));
}

/// There are more senders than lanes. When all are gone, nothing is left of them.
#[test]
fn many_come_and_go() {
    alone!();
    let (b, name) = receiver("come-and-go");
    drop(sender(&b, &name, 0));
    assert_eq!(errno(b.recv_with_flags(&mut [0; 9], LOOK)), Errno::AGAIN);
    let before = descriptors();
    for _ in 0..3 {
        let senders: Vec<Datagram> = (0..80u8)
            .map(|who| {
                let sender = Datagram::unbound_with(&Config::default()).unwrap();
                sender.connect(&name).unwrap();
                for i in 0..20 {
                    sender.send_with_flags(&[who, i], NOW).unwrap();
                    assert_eq!(recv(&b), [who, i]);
                }
                sender
            })
            .collect();
        let laned = senders.iter().filter(|sender| sender.path().send == Carrier::SharedMemory).count();
        assert_eq!(laned, 64);
        for (who, sender) in senders.iter().enumerate() {
            sender.send_with_flags(&[who as u8], NOW).unwrap();
            // Senders without a lane share the kernel's short queue.
            assert_eq!(recv(&b), [who as u8]);
        }
        drop(senders);
        assert_eq!(errno(b.recv_with_flags(&mut [0; 9], LOOK)), Errno::AGAIN);
        assert_eq!(descriptors(), before);
    }
}

const SENDER: &str = "ONECOPY_TEST_MANY_SENDER";

/// The other process: sends numbers until it is killed.
#[test]
fn the_sender() {
    let Ok(name) = std::env::var(SENDER) else { return };
    let sender = Datagram::unbound().unwrap();
    sender.connect(SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    for n in 0u64.. {
        sender.send(&n.to_le_bytes()).unwrap();
    }
}

/// What a killed sender had sent is received in order, and nothing else is left of it.
#[test]
fn a_killed_sender_leaves_what_it_sent_and_nothing_else() {
    alone!();
    let (b, _) = receiver("killed");
    let a = sender(&b, &abstract_("killed"), 1);
    let before = descriptors();
    for round in 0..4 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_sender", "--nocapture"])
            .env(SENDER, format!("onecopy-test-many-killed-{}", std::process::id()))
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut next = 0u64;
        while next < 1000 * (round + 1) {
            assert_eq!(recv(&b), next.to_le_bytes());
            next += 1;
        }
        assert!(b.path().receive == Carrier::SharedMemory && descriptors() > before);
        child.kill().unwrap();
        child.wait().unwrap();
        let mut buffer = [0; 9];
        while let Ok(n) = b.recv_with_flags(&mut buffer, LOOK) {
            assert_eq!((n, &buffer[..8]), (8, &next.to_le_bytes()[..]));
            next += 1;
        }
        // The receiver notices within a few receives.
        for _ in 0..100 {
            a.send_with_flags(b"x", NOW).unwrap();
            assert_eq!(recv(&b), b"x");
        }
        assert_eq!(descriptors(), before);
    }
}
