//! One end in several processes that are not parent and child. They existed before the end did, and receive
//! it over a socket.

mod deaths;
mod tokens;

use super::{PATIENCE, Random, Wire, alone, count_whole, pair, send, small, wild};
use crate::failpoint::arm;
use crate::{Config, Listener, RecvFlags, SendFlags, SeqPacket, SocketAddr, Stream, Wait};
use onecopy_ring::page::MEMBERS;
use onecopy_sys::fork::{Child, Ended, child};
use onecopy_sys::scm::{self, Space};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

const KILLED: Ended = Ended::Killed(9);
const NOW: RecvFlags = RecvFlags::DONTWAIT;

/// A socket to another process.
pub struct Line(OwnedFd);

impl Line {
    pub fn pair() -> (Line, Line) {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Line(a), Line(b))
    }

    /// Sends descriptors, and drops them.
    pub fn give(&self, fds: Vec<OwnedFd>) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        scm::send(&self.0, &[IoSlice::new(b"!")], &fds, None, net::SendFlags::empty()).unwrap();
    }

    fn say(&self, byte: u8) {
        net::send(&self.0, &[byte], net::SendFlags::NOSIGNAL).unwrap();
    }

    fn hear(&self) -> u8 {
        let mut byte = [0];
        let (_, n) = net::recv(&self.0, &mut byte, net::RecvFlags::empty()).unwrap();
        assert_eq!(n, 1);
        byte[0]
    }

    pub fn take(&self) -> Vec<OwnedFd> {
        let mut byte = [0];
        let slices = &mut [IoSliceMut::new(&mut byte)];
        let came = scm::recv(&self.0, slices, Space::All, net::RecvFlags::empty()).unwrap();
        assert!(came.bytes == 1 && !came.control_cut);
        came.fds
    }
}

/// A process that exists before the ends do, and the socket over which it receives them.
pub struct Stranger {
    pub child: Child,
    pub line: Line,
}

impl Stranger {
    pub fn new(work: impl FnOnce(&Line) -> i32) -> Stranger {
        let (line, theirs) = Line::pair();
        let child = child(|| work(&theirs)).unwrap();
        Stranger { child, line }
    }

    fn ends_well(self) {
        assert_eq!(self.child.wait(), Ended::Returned(0));
    }
}

fn stream(line: &Line) -> Stream {
    let stream = Stream::from_fds_with(line.take(), &passable()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn records(line: &Line) -> SeqPacket {
    SeqPacket::from_fds_with(line.take(), &passable()).unwrap()
}

/// Returns a configuration for ends that can be passed on, with rings of 4096 bytes.
fn passable() -> Config {
    Config { passable: true, ..small() }
}

fn errno<T>(done: crate::Result<T>) -> i32 {
    done.err().map_or(0, |error| error.raw_os_error())
}

#[test]
fn senders_that_are_strangers_do_not_interleave() {
    alone!();
    const EACH: usize = 200;
    for len in [64, 1000, 3000, 9000] {
        let strangers: Vec<_> = (1..3u8)
            .map(|id| {
                Stranger::new(|line| {
                    let a = stream(line);
                    (0..EACH).for_each(|_| send(&a, &vec![id; len]));
                    0
                })
            })
            .collect();
        let (a, b) = pair(&passable());
        // Some bytes are on the way.
        send(&a, &vec![3; len.min(3000)]);
        strangers.iter().for_each(|stranger| stranger.line.give(a.share_fds().unwrap()));
        let counts = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                assert_eq!(count_whole(&b, len.min(3000), 1)[3], 1);
                count_whole(&b, len, EACH * 3)
            });
            (0..EACH).for_each(|_| send(&a, &vec![3; len]));
            reader.join().unwrap()
        });
        assert_eq!(counts[1..4], [EACH; 3], "{len}");
        strangers.into_iter().for_each(Stranger::ends_well);
        assert_eq!((a.stats().protocol_errors, b.stats().protocol_errors), (0, 0));
    }
}

#[test]
fn receivers_that_are_strangers_get_each_record_once() {
    alone!();
    const RECORDS: u64 = 2000;
    let wire = Wire::new();
    let receive = |b: &SeqPacket| {
        let mut record = [0; 8];
        loop {
            match b.recv(&mut record) {
                Ok(8) => wire.tell(u64::from_ne_bytes(record)),
                other => return i32::from(!matches!(other, Ok(0))),
            }
        }
    };
    let strangers: Vec<_> = (0..2).map(|_| Stranger::new(|line| receive(&records(line)))).collect();
    let (a, b) = SeqPacket::pair_with(&passable()).unwrap();
    let mut words = std::thread::scope(|scope| {
        // This begins before the pipe is full.
        let ear = scope.spawn(|| (0..RECORDS).map(|_| wire.hear()).collect::<Vec<_>>());
        for i in 0..RECORDS {
            // The strangers come while the end is in use.
            if i % 500 == 200
                && let Some(stranger) = strangers.get(i as usize / 500)
            {
                stranger.line.give(b.share_fds().unwrap());
            }
            if i == 100 {
                scope.spawn(|| assert_eq!(receive(&b), 0));
            }
            a.send(&i.to_ne_bytes()).unwrap();
        }
        let words = ear.join().unwrap();
        a.shutdown(std::net::Shutdown::Write).unwrap();
        words
    });
    words.sort_unstable();
    assert!(words.into_iter().eq(0..RECORDS));
    strangers.into_iter().for_each(Stranger::ends_well);
    assert_eq!((a.stats().protocol_errors, b.stats().protocol_errors), (0, 0));
}

/// Three processes send and receive. The first stranger, which was given the end, shares it with the second.
/// This process is the broker: it passes the descriptors on and closes its copies, and holds the end itself.
#[test]
fn strangers_share_on_and_a_broker_stays_alive() {
    alone!();
    const EACH: u64 = 300;
    let wire = Wire::new();
    let (go, gone) = (Wire::new(), Wire::new());
    let trade = |b: &SeqPacket, id: u64| {
        let mut record = [0; 8];
        for i in 0..EACH {
            b.send(&(id << 32 | i).to_ne_bytes()).unwrap();
            assert_eq!(b.recv(&mut record).unwrap(), 8);
            wire.tell(u64::from_ne_bytes(record));
        }
    };
    let first = Stranger::new(|line| {
        let b = records(line);
        line.give(b.share_fds().unwrap());
        trade(&b, 1);
        go.hear();
        gone.tell(u64::from(b.end().others().has(go.hear() as u32)));
        0
    });
    let second = Stranger::new(|line| {
        trade(&records(line), 2);
        0
    });
    let (a, b) = SeqPacket::pair_with(&passable()).unwrap();
    let me = {
        first.line.give(b.share_fds().unwrap());
        second.line.give(first.line.take());
        // One token is never taken up, and one is tried by this process itself.
        drop(b.share_fds().unwrap());
        let token = b.share_fds().unwrap();
        assert_eq!(errno(SeqPacket::from_fds(token)), Errno::ALREADY.raw_os_error());
        b.end().others().sharing().unwrap().me()
    };
    let mut sent = std::thread::scope(|scope| {
        let ear = scope.spawn(|| (0..EACH * 3).map(|_| wire.hear()).collect::<Vec<_>>());
        scope.spawn(|| trade(&b, 3));
        let mut record = [0; 8];
        for i in 0..EACH * 3 {
            assert_eq!(a.recv(&mut record).unwrap(), 8);
            let word = u64::from_ne_bytes(record);
            assert!((1..4).contains(&(word >> 32)) && word as u32 as u64 <= EACH);
            a.send(&i.to_ne_bytes()).unwrap();
        }
        ear.join().unwrap()
    });
    sent.sort_unstable();
    assert!(sent.into_iter().eq(0..EACH * 3));
    go.tell(0);
    go.tell(u64::from(me));
    assert_eq!(gone.hear(), 1, "this process lost its lock");
    first.ends_well();
    second.ends_well();
    assert_eq!((a.stats().protocol_errors, b.stats().protocol_errors), (0, 0));
}

/// Returns whether either side uses the shared way.
fn is_shared(stream: &Stream) -> bool {
    let end = stream.end();
    end.rx().mutex().lock().is_shared() || end.tx().mutex().lock().is_shared()
}

fn becomes_its_own(a: &Stream, b: &Stream) {
    let began = Instant::now();
    while is_shared(a) {
        assert!(began.elapsed() < PATIENCE, "it stays shared");
        send(a, b"1");
        send(b, b"2");
        assert_eq!(a.recv(&mut [0; 1]).unwrap(), 1);
        assert_eq!(b.recv(&mut [0; 1]).unwrap(), 1);
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn an_end_is_its_own_again_once_nobody_can_come_any_more() {
    alone!();
    let visitor = || {
        Stranger::new(|line| {
            let a = stream(line);
            send(&a, b"here");
            line.give(vec![]);
            line.take();
            drop(a);
            0
        })
    };
    let visitors = [(visitor(), false), (visitor(), true)];
    let (a, b) = pair(&passable());
    let token = a.share_fds().unwrap();
    let second = a.share_fds().unwrap();
    assert!(is_shared(&a) && a.end().others().are_there());
    assert_eq!(errno(a.share_fds().map(drop)), 0);
    drop(token);
    send(&a, b"shared");
    assert_eq!(b.recv(&mut [0; 9]).unwrap(), 6);
    assert!(a.end().others().are_there(), "somebody may come");
    drop(second);
    becomes_its_own(&a, &b);
    assert!(!a.end().others().are_there());
    // As many members as know of each other, and one more, which is not let in.
    let tokens: Vec<_> = (1..MEMBERS).map(|_| a.share_fds().unwrap()).collect();
    assert_eq!(errno(a.share_fds().map(drop)), Errno::USERS.raw_os_error());
    drop(tokens);
    becomes_its_own(&a, &b);
    // Then again: one member comes and goes, and one is killed.
    for (stranger, dies) in visitors {
        stranger.line.give(a.share_fds().unwrap());
        stranger.line.take();
        assert_eq!(b.recv_with_flags(&mut [0; 4], RecvFlags::WAITALL).unwrap(), 4);
        assert!(a.end().others().are_there());
        if dies {
            stranger.child.signal(9);
            assert_eq!(stranger.child.wait(), KILLED);
        } else {
            stranger.line.give(vec![]);
            stranger.ends_well();
        }
        becomes_its_own(&a, &b);
    }
    let refused = {
        let _token = a.share_fds().unwrap();
        match a.into_fds() {
            Err(refused) => refused,
            Ok(_) => panic!("it may be somebody else's"),
        }
    };
    assert_eq!(refused.error.raw_os_error(), Errno::BUSY.raw_os_error());
    becomes_its_own(&refused.socket, &b);
    let a = Stream::from_fds(refused.socket.into_fds().unwrap()).unwrap();
    send(&a, b"moved");
    assert_eq!(b.recv(&mut [0; 9]).unwrap(), 5);
}

/// A place that a guest has left is the next guest's. What is known about the first guest does not take it
/// away, neither in the giver nor in a child that has its list.
#[test]
fn the_place_of_one_who_has_gone_is_the_next_one_s() {
    alone!();
    for forked in [false, true] {
        let visit = |line: &Line| {
            let a = stream(line);
            send(&a, b"here");
            line.give(vec![]);
            line.take();
            0
        };
        let (first, second) = (Stranger::new(visit), Stranger::new(visit));
        let (a, b) = pair(&passable());
        first.line.give(a.share_fds().unwrap());
        first.line.take();
        let (go, gone) = (Wire::new(), Wire::new());
        let child = forked.then(|| {
            let child = child(|| {
                go.hear();
                // It looks, and has the list as it was.
                assert!(a.end().others().are_there());
                gone.tell(0);
                go.hear();
                0
            });
            child.unwrap()
        });
        first.line.give(vec![]);
        first.ends_well();
        let token = a.share_fds().unwrap();
        if child.is_some() {
            go.tell(0);
            gone.hear();
        } else {
            assert!(a.end().others().are_there());
        }
        drop(a);
        second.line.give(token);
        second.line.take();
        second.line.give(vec![]);
        second.ends_well();
        go.tell(0);
        if let Some(child) = child {
            assert_eq!(child.wait(), Ended::Returned(0));
        }
        assert_eq!(
            b.recv_with_flags(&mut [0; 9], RecvFlags::WAITALL).unwrap(),
            8,
            "the end came after what both have sent"
        );
        assert_eq!(b.stats().protocol_errors, 0);
    }
}

/// The giver goes before the end is taken up, and the connection goes on with the process that takes it up.
#[test]
fn what_was_shared_outlives_who_shared_it() {
    alone!();
    let (a, b) = pair(&passable());
    send(&b, b"for whom it may concern");
    let token = a.share_fds().unwrap();
    drop(a);
    let a = Stream::from_fds_with(token, &passable()).unwrap();
    assert_eq!(a.recv_with_flags(&mut [0; 99], NOW).unwrap(), 23);
    send(&a, b"thanks");
    assert_eq!(b.recv(&mut [0; 9]).unwrap(), 6);
    becomes_its_own(&a, &b);
    let token = a.share_fds().unwrap();
    drop(a);
    drop(token);
    assert_eq!(b.recv(&mut [0; 9]).unwrap(), 0, "nobody is left");
}

/// A shared end is forked, and a forked end is shared, by the parent and by the child.
#[test]
fn forks_and_strangers_hold_one_end() {
    alone!();
    const EACH: usize = 100;
    let sends = |a: &Stream, id: u8| (0..EACH).for_each(|_| send(a, &[id; 3000]));
    let before = Stranger::new(|line| {
        let a = stream(line);
        let forked = child(|| {
            sends(&a, 1);
            0
        });
        sends(&a, 2);
        i32::from(forked.unwrap().wait() != Ended::Returned(0))
    });
    let late = Stranger::new(|line| {
        sends(&stream(line), 3);
        0
    });
    let (a, b) = pair(&passable());
    before.line.give(a.share_fds().unwrap());
    let forked = child(|| {
        // The child shares it.
        late.line.give(a.share_fds().unwrap());
        sends(&a, 4);
        0
    });
    let forked = forked.unwrap();
    let counts = std::thread::scope(|scope| {
        let reader = scope.spawn(|| count_whole(&b, 3000, EACH * 5));
        sends(&a, 5);
        reader.join().unwrap()
    });
    assert_eq!(counts[1..6], [EACH; 5]);
    before.ends_well();
    late.ends_well();
    assert_eq!(forked.wait(), Ended::Returned(0));
    becomes_its_own(&a, &b);
    // This end was forked first, without a memfd for its page, so only children can have it.
    let (a, _b) = pair(&small());
    let child = child(|| {
        std::thread::sleep(PATIENCE);
        0
    });
    assert_eq!(errno(a.share_fds().map(drop)), Errno::OPNOTSUPP.raw_os_error());
    drop(child);
    let (a, _b) = pair(&small());
    let error = a.share_fds().unwrap_err();
    assert!(a.end().others().sharing().is_none(), "it is as it was");
    assert_eq!(error.raw_os_error(), Errno::OPNOTSUPP.raw_os_error());
    assert!(error.to_string().contains("Config::passable"), "{error}");
    send(&a, b"still");
}

/// An end is shared at any moment before its connection has moved to shared memory. Each process goes on with
/// it.
#[test]
fn what_is_shared_while_it_moves_to_shared_memory_goes_on() {
    alone!();
    let name = SocketAddr::from_abstract_name(format!("onecopy-sharing-{}", std::process::id())).unwrap();
    let config = passable();
    const OVER: u8 = 255;
    // A plan says which end is shared, after how many rounds, and whether the giver keeps it.
    for plan in 0..16u8 {
        let (client_s, moment, keeps) = (plan & 1 == 0, plan >> 1 & 3, plan >> 3 == 0);
        let stranger = Stranger::new(|line| {
            let one = stream(line);
            // One round for each message.
            loop {
                let byte = line.hear();
                if byte == OVER {
                    return 0;
                }
                let mut got = [0; 7];
                assert_eq!(one.recv_with_flags(&mut got, RecvFlags::WAITALL).unwrap(), 7);
                assert_eq!(got, [byte; 7], "plan {plan:b}");
                send(&one, &[byte; 9]);
                line.say(byte);
            }
        });
        let listener = Listener::bind_with(&name, &config).unwrap();
        let client = Stream::connect_with(&name, &config).unwrap();
        let (server, _) = listener.accept().unwrap();
        for end in [&client, &server] {
            end.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        let (one, other) = if client_s { (client, server) } else { (server, client) };
        let mut one = Some(one);
        let mut got = [0; 9];
        for round in 0..8 {
            if round == moment {
                stranger.line.give(one.as_ref().unwrap().share_fds().unwrap());
                one.take_if(|_| !keeps);
            }
            // Either process may receive what is under way, so all of it is of one kind.
            send(&other, &[round; 7]);
            match &one {
                Some(one) if round < moment || round % 2 == 0 => {
                    assert_eq!(one.recv_with_flags(&mut got[..7], RecvFlags::WAITALL).unwrap(), 7);
                    assert_eq!(got[..7], [round; 7], "plan {plan:b}");
                    send(one, &[round; 9]);
                }
                _ => {
                    stranger.line.say(round);
                    assert_eq!(stranger.line.hear(), round, "plan {plan:b}");
                }
            }
            assert_eq!(other.recv_with_flags(&mut got, RecvFlags::WAITALL).unwrap(), 9);
            assert_eq!(got, [round; 9], "plan {plan:b}");
        }
        drop(one);
        stranger.line.say(OVER);
        stranger.ends_well();
        assert_eq!(other.recv(&mut got).unwrap(), 0, "plan {plan:b}");
        assert_eq!(other.stats().protocol_errors, 0);
    }
}

#[test]
fn what_came_besides_bytes_is_received_by_one_of_them() {
    alone!();
    let stranger = Stranger::new(|line| {
        let b = stream(line);
        let (n, with) = b.recv_fds(&mut [0; 9]).unwrap();
        assert_eq!((n, with.fds.len()), (3, 2));
        // The bytes came by one of the channels that it was given, and these go back by the other one.
        b.send_fds(b"back", &[b.as_fd()]).unwrap();
        0
    });
    let (a, b) = pair(&passable());
    for (from, to) in [(&a, &b), (&b, &a)] {
        from.send_fds(b"x", &[b.as_fd()]).unwrap();
        assert_eq!(to.recv_fds(&mut [0; 9]).unwrap().1.fds.len(), 1);
    }
    a.send_fds(b"two", &[a.as_fd(), b.as_fd()]).unwrap();
    stranger.line.give(b.share_fds().unwrap());
    let (n, with) = a.recv_fds(&mut [0; 9]).unwrap();
    assert_eq!((n, with.fds.len()), (4, 1));
    stranger.ends_well();
    // One process has this channel and cannot give it.
    becomes_its_own(&b, &a);
    a.send_fds(b"y", &[a.as_fd()]).unwrap();
    assert_eq!(errno(b.recv_fds_with_flags(&mut [0; 1], RecvFlags::PEEK | NOW).map(drop)), 0);
    assert_eq!(errno(b.share_fds().map(drop)), Errno::BUSY.raw_os_error());
    assert_eq!(b.recv_fds_with_flags(&mut [0; 1], NOW).unwrap().1.fds.len(), 1);
    assert!(b.share_fds().is_ok());
}

/// Another process has sent the first bytes: the client has seen that no rings came with them, and looks for none later.
#[test]
fn a_server_whose_first_bytes_another_process_sent_attaches_nothing() {
    alone!();
    let name = SocketAddr::from_abstract_name(format!("onecopy-first-{}", std::process::id())).unwrap();
    let stranger = Stranger::new(|line| {
        send(&stream(line), b"from another");
        0
    });
    let listener = Listener::bind_with(&name, &passable()).unwrap();
    let client =
        Stream::connect_with(&name, &Config { transport: crate::Transport::Auto, ..small() }).unwrap();
    let (server, _) = listener.accept().unwrap();
    stranger.line.give(server.share_fds().unwrap());
    stranger.ends_well();
    let mut got = [0; 20];
    assert_eq!(client.recv(&mut got).unwrap(), 12);
    // It is alone again, and has sent nothing yet itself.
    std::thread::sleep(Duration::from_millis(40));
    for _ in 0..3 {
        send(&server, b"from the first");
        let (n, came) = client.recv_fds(&mut got).unwrap();
        assert_eq!((n, came.fds.len()), (14, 0), "nobody has sent a descriptor");
    }
    send(&client, b"back");
    assert_eq!(server.recv(&mut got).unwrap(), 4);
}
