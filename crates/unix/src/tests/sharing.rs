//! One end in several processes that have no parent with it: they were there before it was, and are given it over a socket.

use super::{PATIENCE, Random, Wire, alone, pair, send, small, wild};
use crate::failpoint::arm;
use crate::{Config, Listener, Name, RecvFlags, SendFlags, SeqPacket, Stream, Wait};
use onecopy_ring::page::HOLDERS;
use onecopy_sys::fork::{Child, Ended, child};
use onecopy_sys::scm::{self, Space};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

const KILLED: Ended = Ended::Killed(9);
const NOW: RecvFlags = RecvFlags::DONTWAIT;
const QUIET: SendFlags = SendFlags::NOSIGNAL;

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

/// A process that is there before the ends are, and what it is given them over.
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

/// With rings of 4096 bytes.
fn passable() -> Config {
    Config { passable: true, ..small() }
}

fn errno<T>(done: crate::Result<T>) -> i32 {
    done.err().map_or(0, |error| error.raw_os_error())
}

/// Messages of equal bytes, by byte.
fn count_whole(stream: &Stream, len: usize, count: usize) -> [usize; 256] {
    let (mut counts, mut message) = ([0; 256], vec![0; len]);
    for _ in 0..count {
        assert_eq!(stream.recv(&mut message, RecvFlags::WAITALL).unwrap(), len);
        assert!(message.iter().all(|byte| *byte == message[0]), "senders interleaved");
        counts[message[0] as usize] += 1;
    }
    counts
}

#[test]
fn senders_that_are_strangers_do_not_interleave() {
    let _alone = alone();
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
        // (With something on the way.)
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
    let _alone = alone();
    const RECORDS: u64 = 2000;
    let wire = Wire::new();
    let receive = |b: &SeqPacket| {
        let mut record = [0; 8];
        loop {
            match b.recv(&mut record, RecvFlags::empty()) {
                Ok(8) => wire.tell(u64::from_ne_bytes(record)),
                other => return i32::from(!matches!(other, Ok(0))),
            }
        }
    };
    let strangers: Vec<_> = (0..2).map(|_| Stranger::new(|line| receive(&records(line)))).collect();
    let (a, b) = SeqPacket::pair_with(&passable()).unwrap();
    let mut words = std::thread::scope(|scope| {
        // Before the pipe is full.
        let ear = scope.spawn(|| (0..RECORDS).map(|_| wire.hear()).collect::<Vec<_>>());
        for i in 0..RECORDS {
            // They come while it is in use.
            if i % 500 == 200
                && let Some(stranger) = strangers.get(i as usize / 500)
            {
                stranger.line.give(b.share_fds().unwrap());
            }
            if i == 100 {
                scope.spawn(|| assert_eq!(receive(&b), 0));
            }
            a.send(&i.to_ne_bytes(), QUIET).unwrap();
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

/// Each of three sends and receives, one of them was shared with by one that was shared with, and by a process that holds the
/// end itself, passes on what it is for, and closes its copies.
#[test]
fn strangers_share_on_and_a_broker_stays_alive() {
    let _alone = alone();
    const EACH: u64 = 300;
    let wire = Wire::new();
    let (go, gone) = (Wire::new(), Wire::new());
    let trade = |b: &SeqPacket, id: u64| {
        let mut record = [0; 8];
        for i in 0..EACH {
            b.send(&(id << 32 | i).to_ne_bytes(), QUIET).unwrap();
            assert_eq!(b.recv(&mut record, RecvFlags::empty()).unwrap(), 8);
            wire.tell(u64::from_ne_bytes(record));
        }
    };
    let first = Stranger::new(|line| {
        let b = records(line);
        line.give(b.share_fds().unwrap());
        trade(&b, 1);
        go.hear();
        gone.tell(u64::from(b.end.is_held_by(go.hear() as u32)));
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
        // What nobody takes up, and what this process tries itself.
        drop(b.share_fds().unwrap());
        let token = b.share_fds().unwrap();
        assert_eq!(errno(SeqPacket::from_fds(token)), Errno::ALREADY.raw_os_error());
        b.end.sharing.get().unwrap().me()
    };
    let mut sent = std::thread::scope(|scope| {
        let ear = scope.spawn(|| (0..EACH * 3).map(|_| wire.hear()).collect::<Vec<_>>());
        scope.spawn(|| trade(&b, 3));
        let mut record = [0; 8];
        for i in 0..EACH * 3 {
            assert_eq!(a.recv(&mut record, RecvFlags::empty()).unwrap(), 8);
            let word = u64::from_ne_bytes(record);
            assert!((1..4).contains(&(word >> 32)) && word as u32 as u64 <= EACH);
            a.send(&i.to_ne_bytes(), QUIET).unwrap();
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

/// A stranger sends messages of ones until it dies at `point`; then this process sends messages of twos.
fn a_sender_dies(point: &'static str, namespace: bool) {
    const LEN: usize = 64;
    let full = matches!(point, "parking" | "filled" | "parked");
    let (filled, wire) = (Wire::new(), Wire::new());
    let work = |line: &Line| {
        let a = stream(line);
        arm(point, 2 - u32::from(full));
        for _ in 0..1000 {
            send(&a, &[1; LEN]);
            std::thread::sleep(Duration::from_micros(if full { 0 } else { 300 }));
        }
        1
    };
    let stranger = Stranger::new(|line| {
        if !namespace {
            return work(line);
        }
        if onecopy_sys::fork::unshare_pids().is_err() {
            return 77;
        }
        // The first process of a namespace cannot kill itself, its child can.
        let init = child(|| i32::from(child(|| work(line)).unwrap().wait() != KILLED));
        match init.unwrap().wait() {
            Ended::Returned(0) => 78,
            _ => 1,
        }
    });
    let (a, b) = pair(&passable());
    b.set_wait(Wait::Block);
    let token = a.share_fds().unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            if full {
                filled.hear();
            }
            let (mut twos, mut message) = (0, [0; LEN]);
            while twos < 40 {
                let n = b.recv(&mut message, RecvFlags::WAITALL).unwrap();
                assert_eq!(n, LEN, "{point}: the reader waited in vain");
                assert!(message.iter().all(|byte| *byte == message[0]), "{point}: half a send");
                twos += usize::from(message[0] == 2);
            }
        });
        stranger.line.give(token);
        match stranger.child.wait() {
            KILLED if !namespace => {}
            Ended::Returned(78) => {}
            Ended::Returned(77) => println!("no pid namespace could be made here: nothing was tested"),
            other => panic!("{point} is not on this way: {other:?}"),
        }
        if full {
            filled.tell(0);
        }
        for i in 0..40 {
            send(&a, &[2; LEN]);
            if i % 4 == 0 {
                std::thread::sleep(Duration::from_millis(3));
            }
        }
        reader.join().unwrap();
    });
    drop(wire);
    assert_eq!(b.stats().protocol_errors + a.stats().protocol_errors, 0, "{point}");
    send(&b, b"back");
    assert_eq!(a.recv(&mut [0; 9], RecvFlags::empty()).unwrap(), 4);
}

const SENDING: [&str; 10] = [
    "copied in",
    "published",
    "saving",
    "saved",
    "ringing",
    "announced",
    "rung",
    "parking",
    "filled",
    "parked",
];

#[test]
fn a_stranger_killed_while_it_sends_leaves_the_others_going() {
    let _alone = alone();
    SENDING.iter().for_each(|point| a_sender_dies(point, false));
}

#[test]
fn a_stranger_killed_in_another_pid_namespace_does_so_too() {
    let _alone = alone();
    ["copied in", "published", "saving", "announced", "parked"]
        .iter()
        .for_each(|point| a_sender_dies(point, true));
}

/// A stranger receives numbered records until it dies at `point`; this process gets the rest. `lost`: but one, perhaps.
fn a_receiver_dies(point: &'static str, lost: bool) {
    let wire = Wire::new();
    let stranger = Stranger::new(|line| {
        let b = records(line);
        arm(point, 3);
        let mut record = [0; 8];
        while b.recv(&mut record, RecvFlags::empty()).is_ok() {
            wire.tell(u64::from_ne_bytes(record));
        }
        1
    });
    let (a, b) = SeqPacket::pair_with(&passable()).unwrap();
    b.set_read_timeout(Some(PATIENCE)).unwrap();
    b.set_wait(Wait::Block);
    stranger.line.give(b.share_fds().unwrap());
    let mut next = 0u64;
    let mut child = Some(stranger.child);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| child.take().unwrap().wait());
        let began = Instant::now();
        while !waiter.is_finished() && next < 50 && began.elapsed() < PATIENCE {
            if a.unread_bytes().unwrap() == 0 {
                a.send(&next.to_ne_bytes(), QUIET).unwrap();
                next += 1;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(waiter.join().unwrap(), KILLED, "{point} is not on this way");
    });
    let returned = wire.hear_all();
    assert!(returned.iter().copied().eq(0..returned.len() as u64), "{point}: {returned:?}");
    let mut expected = returned.len() as u64;
    // (The one that may be lost must not be waited for.)
    let limit = next + 60;
    for number in next..limit {
        a.send(&number.to_ne_bytes(), QUIET).unwrap();
    }
    let mut first = true;
    while expected < limit {
        let mut record = [0; 8];
        assert_eq!(b.recv(&mut record, RecvFlags::empty()).unwrap(), 8, "{point}");
        let number = u64::from_ne_bytes(record);
        if std::mem::take(&mut first) && lost && number == expected + 1 {
            expected += 1;
        }
        assert_eq!(number, expected, "{point}");
        expected += 1;
    }
    assert_eq!(b.stats().protocol_errors + a.stats().protocol_errors, 0, "{point}");
}

#[test]
fn a_stranger_killed_while_it_receives_loses_at_most_what_it_was_receiving() {
    let _alone = alone();
    for (point, lost) in [
        ("copied out", false),
        ("taken", false),
        ("saving", false),
        ("saved", true),
        ("flushed", true),
        ("armed", false),
        ("bell taken", false),
    ] {
        a_receiver_dies(point, lost);
    }
}

/// Whether either side takes the shared way.
fn is_shared(stream: &Stream) -> bool {
    let end = stream.end();
    end.rx.mutex().lock().is_shared() || end.tx.mutex().lock().is_shared()
}

fn becomes_its_own(a: &Stream, b: &Stream) {
    let began = Instant::now();
    while is_shared(a) {
        assert!(began.elapsed() < PATIENCE, "it stays shared");
        send(a, b"1");
        send(b, b"2");
        assert_eq!(a.recv(&mut [0; 1], RecvFlags::empty()).unwrap(), 1);
        assert_eq!(b.recv(&mut [0; 1], RecvFlags::empty()).unwrap(), 1);
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn an_end_is_its_own_again_once_nobody_can_come_any_more() {
    let _alone = alone();
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
    assert!(is_shared(&a) && a.end().is_shared());
    assert_eq!(errno(a.share_fds().map(drop)), 0);
    drop(token);
    send(&a, b"shared");
    assert_eq!(b.recv(&mut [0; 9], RecvFlags::empty()).unwrap(), 6);
    assert!(a.end().is_shared(), "somebody may come");
    drop(second);
    becomes_its_own(&a, &b);
    assert!(!a.end().is_shared());
    // As many as know of each other, and one more, who is not let in.
    let tokens: Vec<_> = (1..HOLDERS).map(|_| a.share_fds().unwrap()).collect();
    assert_eq!(errno(a.share_fds().map(drop)), Errno::USERS.raw_os_error());
    drop(tokens);
    becomes_its_own(&a, &b);
    // And again, by one that comes and goes, and one that is killed.
    for (stranger, dies) in visitors {
        stranger.line.give(a.share_fds().unwrap());
        stranger.line.take();
        assert_eq!(b.recv(&mut [0; 4], RecvFlags::WAITALL).unwrap(), 4);
        assert!(a.end().is_shared());
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
    assert_eq!(b.recv(&mut [0; 9], RecvFlags::empty()).unwrap(), 5);
}

/// A place that a guest has left is the next one's, and what is known of the first guest takes it from nobody: neither in the giver
/// nor in a child that has its list.
#[test]
fn the_place_of_one_who_has_gone_is_the_next_one_s() {
    let _alone = alone();
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
                // It looks, with the list as it was.
                assert!(a.end().is_shared());
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
            assert!(a.end().is_shared());
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
            b.recv(&mut [0; 9], RecvFlags::WAITALL).unwrap(),
            8,
            "the end came after what both have sent"
        );
        assert_eq!(b.stats().protocol_errors, 0);
    }
}

/// The giver goes before it is taken up: the connection goes on with who comes.
#[test]
fn what_was_shared_outlives_who_shared_it() {
    let _alone = alone();
    let (a, b) = pair(&passable());
    send(&b, b"for whom it may concern");
    let token = a.share_fds().unwrap();
    drop(a);
    let a = Stream::from_fds_with(token, &passable()).unwrap();
    assert_eq!(a.recv(&mut [0; 99], NOW).unwrap(), 23);
    send(&a, b"thanks");
    assert_eq!(b.recv(&mut [0; 9], RecvFlags::empty()).unwrap(), 6);
    becomes_its_own(&a, &b);
    let token = a.share_fds().unwrap();
    drop(a);
    drop(token);
    assert_eq!(b.recv(&mut [0; 9], RecvFlags::empty()).unwrap(), 0, "nobody is left");
}

/// Forks of an end that is shared, and sharing of one that was forked: by parent and by child.
#[test]
fn forks_and_strangers_hold_one_end() {
    let _alone = alone();
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
    // Forked first, without its own page's file: only children can have it.
    let (a, _b) = pair(&small());
    let child = child(|| {
        std::thread::sleep(PATIENCE);
        0
    });
    assert_eq!(errno(a.share_fds().map(drop)), Errno::OPNOTSUPP.raw_os_error());
    drop(child);
    let (a, _b) = pair(&small());
    let error = a.share_fds().unwrap_err();
    assert!(a.end().sharing.get().is_none(), "it is as it was");
    assert_eq!(error.raw_os_error(), Errno::OPNOTSUPP.raw_os_error());
    assert!(error.to_string().contains("Config::passable"), "{error}");
    send(&a, b"still");
}

/// A connection of which an end is shared before it has moved to shared memory, at any moment: each of both goes on with it.
#[test]
fn what_is_shared_while_it_moves_to_shared_memory_goes_on() {
    let _alone = alone();
    let name = Name::abstract_(format!("onecopy-sharing-{}", std::process::id()));
    let config = passable();
    const OVER: u8 = 255;
    // By which end, and after how many rounds; and whether its giver keeps it.
    for plan in 0..16u8 {
        let (client_s, moment, keeps) = (plan & 1 == 0, plan >> 1 & 3, plan >> 3 == 0);
        let stranger = Stranger::new(|line| {
            let one = stream(line);
            // A round for each message.
            loop {
                let byte = line.hear();
                if byte == OVER {
                    return 0;
                }
                let mut got = [0; 7];
                assert_eq!(one.recv(&mut got, RecvFlags::WAITALL).unwrap(), 7);
                assert_eq!(got, [byte; 7], "plan {plan:b}");
                send(&one, &[byte; 9]);
                line.say(byte);
            }
        });
        let listener = Listener::bind_with(&name, &config).unwrap();
        let client = Stream::connect_with(&name, &config).unwrap();
        let server = listener.accept().unwrap();
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
            // (What may be under way is received by either, so it is all of one kind.)
            send(&other, &[round; 7]);
            match &one {
                Some(one) if round < moment || round % 2 == 0 => {
                    assert_eq!(one.recv(&mut got[..7], RecvFlags::WAITALL).unwrap(), 7);
                    assert_eq!(got[..7], [round; 7], "plan {plan:b}");
                    send(one, &[round; 9]);
                }
                _ => {
                    stranger.line.say(round);
                    assert_eq!(stranger.line.hear(), round, "plan {plan:b}");
                }
            }
            assert_eq!(other.recv(&mut got, RecvFlags::WAITALL).unwrap(), 9);
            assert_eq!(got, [round; 9], "plan {plan:b}");
        }
        drop(one);
        stranger.line.say(OVER);
        stranger.ends_well();
        assert_eq!(other.recv(&mut got, RecvFlags::empty()).unwrap(), 0, "plan {plan:b}");
        assert_eq!(other.stats().protocol_errors, 0);
    }
}

#[test]
fn what_came_besides_bytes_is_received_by_one_of_them() {
    let _alone = alone();
    let stranger = Stranger::new(|line| {
        let b = stream(line);
        let (n, with) = b.recv_with(&mut [0; 9], RecvFlags::empty()).unwrap();
        assert_eq!((n, with.fds.len()), (3, 2));
        // By the channel that it was given, and back by the other one.
        b.send_with(b"back", &[b.as_fd()], QUIET).unwrap();
        0
    });
    let (a, b) = pair(&passable());
    for (from, to) in [(&a, &b), (&b, &a)] {
        from.send_with(b"x", &[b.as_fd()], QUIET).unwrap();
        assert_eq!(to.recv_with(&mut [0; 9], RecvFlags::empty()).unwrap().1.fds.len(), 1);
    }
    a.send_with(b"two", &[a.as_fd(), b.as_fd()], QUIET).unwrap();
    stranger.line.give(b.share_fds().unwrap());
    let (n, with) = a.recv_with(&mut [0; 9], RecvFlags::empty()).unwrap();
    assert_eq!((n, with.fds.len()), (4, 1));
    stranger.ends_well();
    // What one process has and cannot give.
    becomes_its_own(&b, &a);
    a.send_with(b"y", &[a.as_fd()], QUIET).unwrap();
    assert_eq!(errno(b.recv_with(&mut [0; 1], RecvFlags::PEEK | NOW).map(drop)), 0);
    assert_eq!(errno(b.share_fds().map(drop)), Errno::BUSY.raw_os_error());
    assert_eq!(b.recv_with(&mut [0; 1], NOW).unwrap().1.fds.len(), 1);
    assert!(b.share_fds().is_ok());
}

/// The message of a token, and its descriptors.
fn open_token(token: &OwnedFd) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut bytes = [0; 1000];
    let came =
        scm::recv(token, &mut [IoSliceMut::new(&mut bytes)], Space::All, net::RecvFlags::DONTWAIT).unwrap();
    (bytes[..came.bytes].to_vec(), came.fds)
}

/// One that says what somebody likes.
fn forge(bytes: &[u8], fds: &[OwnedFd]) -> Vec<OwnedFd> {
    let (to, from) = Line::pair();
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    scm::send(&to.0, &[IoSlice::new(bytes)], &fds, None, net::SendFlags::empty()).unwrap();
    vec![from.0]
}

#[test]
fn a_token_that_lies_is_refused_and_leaks_nothing() {
    let _alone = alone();
    // In a process whose descriptors nobody else opens and closes. It is one that may come: the first of them holds it here.
    let stranger = Stranger::new(|line| {
        let token = &line.take()[0];
        let (bytes, fds) = open_token(token);
        let copies = || fds.iter().map(|fd| fd.try_clone().unwrap()).collect::<Vec<_>>();
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        // (The first socket of a process makes its row for who looks from outside.)
        drop(pair(&small()));
        let refused = |what: &str, bytes: &[u8], fds: &[OwnedFd], with: Errno| {
            let before = open();
            let error = Stream::from_fds(forge(bytes, fds)).unwrap_err();
            assert_eq!(error.raw_os_error(), with.raw_os_error(), "{what}: {error}");
            assert!(error.to_string().len() > 30, "{what}: {error}");
            assert_eq!(open(), before, "{what}");
        };
        for count in 0..fds.len() {
            refused("too few", &bytes, &fds[..count], Errno::INVAL);
            for with in 0..count {
                let mut fds = copies();
                fds.swap(count, with);
                refused("swapped", &bytes, &fds, Errno::INVAL);
            }
        }
        refused("short", &bytes[1..], &fds, Errno::INVAL);
        refused("long", &[&bytes[..], &[0]].concat(), &fds, Errno::INVAL);
        for word in [0, 1, 4, 5, 6, 7, 8, 9] {
            let mut bytes = bytes.clone();
            bytes[word * 8] ^= 0x40;
            refused("another word", &bytes, &fds, Errno::INVAL);
        }
        // Where nobody keeps a place.
        for (word, value) in [(2, 40), (2, 255), (3, 0), (3, 1)] {
            let mut bytes = bytes.clone();
            bytes[word * 8..][..8].copy_from_slice(&u64::to_le_bytes(value));
            refused("another place", &bytes, &fds, Errno::ALREADY);
        }
        let error = Stream::from_fds(vec![token.try_clone().unwrap()]).unwrap_err();
        assert_eq!(error.raw_os_error(), Errno::ALREADY.raw_os_error(), "{error}");
        assert_eq!(errno(Stream::from_fds(vec![file])), Errno::INVAL.raw_os_error());
        assert_eq!(errno(SeqPacket::from_fds(forge(&bytes, &fds))), Errno::INVAL.raw_os_error());
        // What was said in truth.
        let a = Stream::from_fds(forge(&bytes, &fds)).unwrap();
        assert_eq!(errno(Stream::from_fds(forge(&bytes, &fds))), Errno::ALREADY.raw_os_error());
        drop(a);
        // (Its place is free.)
        assert_eq!(errno(Stream::from_fds(forge(&bytes, &fds))), Errno::ALREADY.raw_os_error());
        0
    });
    let (a, b) = pair(&passable());
    stranger.line.give(a.share_fds().unwrap());
    stranger.ends_well();
    send(&a, b"still");
    assert_eq!(b.recv(&mut [0; 9], RecvFlags::empty()).unwrap(), 5);
}

/// What is said, and what the page says, may be anything.
#[test]
fn a_token_that_says_anything_costs_its_connection_and_nothing_else() {
    let _alone = alone();
    let stranger = Stranger::new(|line| {
        let (mut refused, mut lost) = (0, 0);
        for seed in 0..600 {
            let random = &mut Random::new(seed);
            let fds = line.take();
            let (mut bytes, fds) = open_token(&fds[0]);
            for _ in 0..random.below(3) {
                // (Not its inode, or what names its descriptors: these have a test of their own.)
                let at = 8 * [2, 3, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21][random.below(12)];
                let was = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                bytes[at..at + 8].copy_from_slice(&wild(random, was).to_le_bytes());
            }
            let page = onecopy_ring::page::EndPage::over(
                onecopy_sys::map::Mapping::new(&fds[1], onecopy_ring::page::PAGE_LEN).unwrap(),
            );
            for _ in 0..random.below(3) {
                let side = if random.below(2) == 0 { &page.words().rx.0 } else { &page.words().tx.0 };
                let (_, mut words) = side.state.load();
                let at = random.below(18);
                words[at] = wild(random, words[at]);
                side.state.save(&words);
            }
            match Stream::from_fds(forge(&bytes, &fds)) {
                Ok(a) => {
                    let mut buffer = [0; 3000];
                    for _ in 0..random.below(12) {
                        let n = random.below(3000);
                        let done = match random.below(4) {
                            0 => a.send(&buffer[..n], QUIET | SendFlags::DONTWAIT),
                            1 => a.recv_with(&mut buffer[..n], NOW).map(|(n, _)| n),
                            2 => a.recv(&mut buffer[..n], NOW),
                            _ => a.readable_bytes(),
                        };
                        let known = [Errno::PROTO, Errno::AGAIN, Errno::PIPE, Errno::CONNRESET, Errno::BUSY];
                        if let Err(error) = done {
                            let known = known.map(Errno::raw_os_error);
                            assert!(known.contains(&error.raw_os_error()), "seed {seed}: {error}");
                        }
                    }
                    lost += usize::from(a.stats().protocol_errors > 0);
                }
                Err(error) => {
                    let known = [Errno::INVAL, Errno::ALREADY].map(Errno::raw_os_error);
                    assert!(known.contains(&error.raw_os_error()), "seed {seed}: {error}");
                    refused += 1;
                }
            }
            line.give(vec![]);
        }
        i32::from(refused < 50 || lost < 50)
    });
    for seed in 0..600 {
        let random = &mut Random::new(seed << 32);
        let (a, b) = Stream::pair_with(&passable()).unwrap();
        let mut buffer = [0; 3000];
        for _ in 0..random.below(6) {
            let _ = a.send_with(
                &buffer[..random.below(900)],
                &[b.as_fd()][..random.below(2)],
                QUIET | SendFlags::DONTWAIT,
            );
            let _ = b.send(&buffer[..random.below(900)], QUIET | SendFlags::DONTWAIT);
            let _ = a.recv(&mut buffer[..random.below(900)], NOW);
        }
        let Ok(token) = a.share_fds() else { unreachable!("nothing here cannot be shared") };
        stranger.line.give(token);
        let bystander = pair(&small());
        stranger.line.take();
        let _ = a.recv(&mut buffer, NOW);
        let _ = a.send(&buffer[..100], QUIET | SendFlags::DONTWAIT);
        send(&bystander.0, b"well");
        assert_eq!(bystander.1.recv(&mut buffer, NOW).unwrap(), 4);
    }
    stranger.ends_well();
}
