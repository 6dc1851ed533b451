//! A process is killed in each critical section, and those that share the end with it go on.

use super::{PATIENCE, Wire, alone, asleep, pair, send, small, wait_asleep};
use crate::ancillary::attached::SendAncillary;
use crate::ancillary::channel::Fds;
use crate::connection::Connection;
use crate::connection::call::Call;
use crate::core::kind::Kind;
use crate::failpoint::arm;
use crate::{
    Config, Records, RecvFlags, Result, SendFlags, SeqListener, SeqPacket, SharedPool, Slot, SocketAddr,
    Stream, View, Wait,
};
use onecopy_ring::record::HEADER;
use onecopy_sys::fork::{Ended, child};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

const KILLED: Ended = Ended::Killed(9);
const LEN: usize = 64;

/// The kind of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Bytes,
    Records,
    StreamRecords,
}

/// The way in which they are sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Plainly,
    /// In place: reserved and committed, or borrowed.
    InPlace,
    /// With a descriptor, and with credentials.
    With,
}

const ALL: [What; 3] = [What::Bytes, What::Records, What::StreamRecords];

impl What {
    fn pair(self) -> (Arc<Connection>, Arc<Connection>) {
        let records = if self == What::StreamRecords { Records::Stream } else { Records::Atomic };
        let kind = if self == What::Bytes { Kind::Stream } else { Kind::SeqPacket };
        let (a, b) = Connection::pair(kind, &Config { records, ..small() }).unwrap();
        for end in [&a, &b] {
            end.settings().set_read_timeout(Some(PATIENCE));
            end.settings().set_write_timeout(Some(PATIENCE));
        }
        (a, b)
    }
}

impl What {
    /// Bytes of a message. A whole number of messages fills the ring; else a stream's message could be sent
    /// in part.
    fn len(self) -> usize {
        if self == What::StreamRecords { LEN - HEADER } else { LEN }
    }
}

/// Makes a descriptor that can be told from others.
fn numbered(number: u8) -> OwnedFd {
    let fd = memfd_create("onecopy-test-numbered", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, number.into()).unwrap();
    fd
}

/// Sends a message. A descriptor with it has the number of the message's first byte.
fn put(end: &Connection, message: &[u8], how: How, flags: SendFlags) -> Result<usize> {
    let flags = flags | SendFlags::EOR;
    let fds: Vec<OwnedFd> = (how == How::With).then(|| numbered(message[0])).into_iter().collect();
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    match (how, end.kind()) {
        (How::InPlace, _) => {
            let mut slot = Slot::reserve(end, message.len(), flags)?;
            assert_eq!(slot.copy_from(message), message.len());
            slot.commit()
        }
        (_, Kind::Stream) => end.send_msg(&[IoSlice::new(message)], SendAncillary::fds(&fds), flags),
        _ => end.send_record_with(&[IoSlice::new(message)], SendAncillary::fds(&fds), flags),
    }
}

/// Receives a message. Returns the sender's process id, if the end asks for it.
fn get(end: &Arc<Connection>, message: &mut [u8], how: How) -> Result<i32> {
    let flags = RecvFlags::WAITALL;
    let mut fds = Fds::default();
    let mut call = Call::with(&mut fds);
    let n = match (how, end.kind()) {
        (How::InPlace, Kind::Stream) => {
            let view = View::borrow(end, message.len(), RecvFlags::empty())?;
            view.copy_to(message)
        }
        (How::InPlace, _) => {
            let (view, _) = end.borrow_record(message.len(), RecvFlags::empty())?;
            view.copy_to(message)
        }
        (_, Kind::Stream) => end.recv_with(&mut [IoSliceMut::new(message)], flags, &mut call)?,
        _ => end.recv_record_with(&mut [IoSliceMut::new(message)], flags, &mut call)?.len,
    };
    assert_eq!(n, message.len(), "it was waited for in vain");
    if how == How::With {
        let numbers: Vec<_> = fds.list.iter().map(|fd| fstat(fd).unwrap().st_size).collect();
        assert_eq!((numbers, fds.truncated), (vec![message[0].into()], false), "others' descriptors");
    }
    Ok(fds.who.map_or(0, |who| who.pid))
}

/// A child sends messages of ones until it dies at `point`. Then this process sends messages of twos, with
/// pauses in which the reader falls asleep. The reader must see whole ones, and then all twos.
fn a_sender_dies(what: What, how: How, point: &'static str, nth: u32) {
    let ((a, b), len) = (what.pair(), what.len());
    b.settings().set_wait(Wait::Block);
    if how == How::With {
        // The channel exists before the fork, so both processes have it.
        b.set_pass_credentials(true).unwrap();
        put(&a, &vec![3; len], how, SendFlags::empty()).unwrap();
        get(&b, &mut vec![0; len], how).unwrap();
    }
    let twos = 40;
    let full = matches!(point, "parking" | "filled" | "parked");
    let wire = Wire::new();
    let me = std::process::id().cast_signed();
    let got = std::thread::scope(|scope| {
        // The reader sleeps, so the first byte rings.
        let reader = asleep(scope, || {
            if full {
                wire.hear();
            }
            let (mut ones, mut got, mut message) = (0, 0, vec![0; len]);
            while got < twos {
                let who = get(&b, &mut message, how).unwrap_or_else(|error| {
                    panic!("{what:?} {how:?} {point}: {error}, behind {ones} and {got}")
                });
                assert!(message.iter().all(|byte| *byte == message[0]), "{point}: half a send");
                if how == How::With {
                    assert_eq!(who == me, message[0] == 2, "{what:?} {point}: {who}");
                }
                match message[0] {
                    1 => ones += 1,
                    _ => got += 1,
                }
            }
            got
        });
        let killed = child(|| {
            arm(point, nth);
            let began = Instant::now();
            while began.elapsed() < PATIENCE {
                put(&a, &vec![1; len], how, SendFlags::empty()).unwrap();
                std::thread::sleep(Duration::from_micros(if full { 0 } else { 300 }));
            }
            1
        });
        assert_eq!(killed.unwrap().wait(), KILLED, "{what:?} {how:?}: {point} is not on this way");
        if full {
            wire.tell(0);
        }
        for i in 0..twos {
            put(&a, &vec![2; len], how, SendFlags::empty()).unwrap();
            if i % 4 == 0 {
                std::thread::sleep(Duration::from_millis(3));
            }
        }
        reader.join().unwrap()
    });
    assert_eq!(got, twos);
    for end in [&a, &b] {
        assert_eq!(end.counters().read().protocol_errors, 0, "{what:?} {how:?} {point}");
    }
    // The other direction is not affected.
    put(&b, b"back", How::Plainly, SendFlags::empty()).unwrap();
    get(&a, &mut [0; 4], How::Plainly).unwrap();
}

const PARKING: [&str; 3] = ["parking", "filled", "parked"];
const RINGING: [&str; 5] = ["saving", "saved", "ringing", "announced", "rung"];

fn senders_die(what: What, how: How, points: &[&'static str]) {
    for point in points {
        for nth in [1, 2, 5] {
            if nth > 1 && PARKING.contains(point) {
                continue;
            }
            a_sender_dies(what, how, point, nth);
        }
    }
}

#[test]
fn a_sender_killed_anywhere_leaves_the_others_going() {
    alone!();
    for what in ALL {
        senders_die(what, How::Plainly, &["copied in", "published"]);
        senders_die(what, How::Plainly, &PARKING);
        senders_die(what, How::Plainly, &RINGING);
    }
}

#[test]
fn a_sender_killed_with_what_it_wrote_in_place_leaves_the_others_going() {
    alone!();
    for what in ALL {
        senders_die(what, How::InPlace, &["committed", "parked"]);
        senders_die(what, How::InPlace, &RINGING);
    }
}

#[test]
fn a_sender_killed_with_descriptors_and_credentials_leaves_the_others_going() {
    alone!();
    for what in ALL {
        senders_die(what, How::With, &["sent over", "copied in", "published"]);
        senders_die(what, How::With, &PARKING);
        senders_die(what, How::With, &RINGING);
    }
    senders_die(What::Bytes, How::With, &["marked"]);
}

/// This process sends numbered messages. A child receives some until it dies at `point`, and this process
/// receives the rest. `lost` says whether the message that the child was receiving may be lost with it.
fn a_receiver_dies(what: What, how: How, point: &'static str, nth: u32, lost: bool) {
    let (a, b) = what.pair();
    b.settings().set_wait(Wait::Block);
    let wire = Wire::new();
    let full = point.starts_with("filler");
    let mut next = 0u64;
    let mut record = [0; 8];
    let now = SendFlags::DONTWAIT;
    if full {
        // It sends until a filler is parked.
        while put(&a, &next.to_ne_bytes(), How::Plainly, now).is_ok() {
            next += 1;
        }
    }
    let killed = child(|| {
        arm(point, nth);
        let mut record = [0; 8];
        while get(&b, &mut record, how).is_ok() {
            wire.tell(u64::from_ne_bytes(record));
        }
        1
    });
    let killed = killed.unwrap();
    let mut killed = Some(killed);
    let name = format!("{what:?} {how:?} {point} {nth}");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| killed.take().unwrap().wait());
        // It pauses, so that the child finds nothing and arms. It sends no message before the child has
        // received the last one: the child may have no CPU for longer than all the pauses take.
        let began = Instant::now();
        while !waiter.is_finished() && began.elapsed() < PATIENCE {
            if full || a.unread_bytes().unwrap() == 0 {
                let _ = put(&a, &next.to_ne_bytes(), How::Plainly, now).map(|_| next += 1);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(waiter.join().unwrap(), KILLED, "{name} is not on this way");
    });
    let returned = wire.hear_all();
    assert!(returned.iter().copied().eq(0..returned.len() as u64), "{name}: {returned:?}");
    let mut expected = returned.len() as u64;
    // It receives what is left, and then more, asleep and awake.
    let limit = next + 60;
    let mut first = true;
    while expected < limit {
        // The next message may be lost with the child.
        while next < limit && (next <= expected + 1 || !next.is_multiple_of(3)) {
            put(&a, &next.to_ne_bytes(), How::Plainly, SendFlags::empty()).unwrap();
            next += 1;
        }
        get(&b, &mut record, how).unwrap_or_else(|error| panic!("{name}: {error}"));
        let number = u64::from_ne_bytes(record);
        if first && lost && number == expected + 1 {
            expected += 1;
        }
        assert_eq!(number, expected, "{name}");
        expected += 1;
        first = false;
    }
    for end in [&a, &b] {
        assert_eq!(end.counters().read().protocol_errors, 0, "{name}");
    }
}

/// The points, and whether the message that was being received may be lost there.
const KEEPING: [(&str, bool); 6] = [
    ("saving", false),
    ("saved", true),
    ("flushed", true),
    ("armed", false),
    ("doorbell taken", false),
    ("filler claimed", true),
];

fn receivers_die(what: What, how: How, points: &[(&'static str, bool)]) {
    for (point, lost) in points {
        for nth in [1, 2, 5] {
            if nth == 1 || !point.starts_with("filler") {
                a_receiver_dies(what, how, point, nth, *lost);
            }
        }
    }
}

#[test]
fn a_receiver_killed_anywhere_loses_at_most_what_it_was_receiving() {
    alone!();
    for what in ALL {
        receivers_die(what, How::Plainly, &[("copied out", false), ("taken", false)]);
        receivers_die(what, How::Plainly, &KEEPING);
    }
}

#[test]
fn a_receiver_killed_with_what_it_looked_at_in_place_loses_at_most_that() {
    alone!();
    for what in ALL {
        receivers_die(what, How::InPlace, &[("borrowed", false)]);
        // The child may be killed while it gives back what it has looked at.
        receivers_die(what, How::InPlace, &KEEPING.map(|(point, _)| (point, true)));
    }
}

#[test]
fn a_stream_receiver_killed_with_a_filler_leaves_the_stream_going() {
    alone!();
    for point in ["filler claimed", "filler taken", "copied out", "taken", "saved", "flushed"] {
        let (a, b) = pair(&small());
        let mut sent = 0u64;
        while let Ok(n) = a.send_with_flags(&[7; 100], SendFlags::DONTWAIT) {
            sent += n as u64;
        }
        let killed = child(|| {
            arm(point, 1);
            let _ = b.recv(&mut [0; 4096]);
            1
        });
        assert_eq!(killed.unwrap().wait(), KILLED, "{point} is not on this way");
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut got, mut buffer) = (0u64, [0; 300]);
                loop {
                    match b.recv(&mut buffer).unwrap() {
                        0 => return got,
                        n => got += n as u64,
                    }
                }
            });
            for _ in 0..200 {
                send(&a, &[7; 500]);
            }
            a.shutdown(std::net::Shutdown::Write).unwrap();
            let got = reader.join().unwrap();
            let all = sent + 200 * 500;
            assert!(
                got == all || (all - got <= 4096 && point != "copied out" && point != "taken"),
                "{point}: {got} of {all}"
            );
        });
    }
}

#[test]
fn what_the_dead_had_reserved_or_borrowed_is_free_again() {
    alone!();
    let (a, b) = pair(&small());
    let wire = Wire::new();
    let reserver = child(|| {
        let mut slot = a.reserve(4000).unwrap();
        slot.copy_from(&[9; 1000]);
        wire.tell(0);
        std::thread::sleep(PATIENCE);
        drop(slot);
        0
    });
    let reserver = reserver.unwrap();
    wire.hear();
    assert!(a.send_with_flags(b"x", SendFlags::DONTWAIT).unwrap_err().would_block());
    reserver.signal(9);
    assert_eq!(reserver.wait(), KILLED);
    assert_eq!(a.send_with_flags(b"not waiting", SendFlags::DONTWAIT).unwrap(), 11);
    send(&a, &[1; 4000]);
    let borrower = child(|| {
        let view = b.recv_borrowed(2000).unwrap();
        wire.tell(view.len() as u64);
        std::thread::sleep(PATIENCE);
        drop(view);
        0
    });
    let borrower = borrower.unwrap();
    let borrowed = wire.hear();
    let mut buffer = [0; 4096];
    let n = b.recv(&mut buffer).unwrap();
    assert_eq!(borrowed as usize + n, 4011);
    assert!(a.send_with_flags(&[2; 4000], SendFlags::DONTWAIT).unwrap() < 100);
    borrower.signal(9);
    assert_eq!(borrower.wait(), KILLED);
    // The sender sleeps for room that only the survivor can make, and the survivor sleeps for bytes.
    std::thread::scope(|scope| {
        scope.spawn(|| send(&a, &[3; 4096]));
        let mut got = 0;
        while got < 4096 {
            got += b.recv(&mut buffer).unwrap();
        }
    });
}

#[test]
fn a_sender_asleep_for_room_may_be_killed_too() {
    alone!();
    let (a, b) = pair(&small());
    let sleeper = child(|| {
        let _ = a.send(&[1; 100_000]);
        0
    });
    let sleeper = sleeper.unwrap();
    wait_asleep(sleeper.pid());
    assert!(a.unread_bytes().unwrap() >= 4096);
    sleeper.signal(9);
    assert_eq!(sleeper.wait(), KILLED);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send(&a, &[2; 10_000]);
            a.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let (mut ones, mut twos, mut buffer) = (0, 0, [0; 1000]);
        loop {
            let n = b.recv(&mut buffer).unwrap();
            if n == 0 {
                break;
            }
            ones += buffer[..n].iter().filter(|byte| **byte == 1).count();
            twos += buffer[..n].iter().filter(|byte| **byte == 2).count();
        }
        assert_eq!((ones >= 4096, twos), (true, 10_000));
    });
}

/// No lock is held at this point. The next process to come finds what was left.
#[test]
fn a_death_between_calls_changes_nothing() {
    alone!();
    let (a, b): (Stream, Stream) = pair(&Config::default());
    for _ in 0..3 {
        let killed = child(|| {
            send(&a, b"one");
            onecopy_sys::fork::kill_self();
            0
        });
        assert_eq!(killed.unwrap().wait(), KILLED);
        assert_eq!(b.recv(&mut [0; 10]).unwrap(), 3);
    }
}

/// The process that owns the pool dies after it wrote a list of its pages and before it published the list.
#[test]
fn a_sender_killed_with_a_list_of_pages_leaves_the_others_going() {
    alone!();
    for nth in [1, 3] {
        let name =
            SocketAddr::from_abstract_name(format!("onecopy-test-listed-{}", std::process::id())).unwrap();
        let config = Config { max_shared: 1 << 20, ..Config::default() };
        let listener = SeqListener::bind_with(name.clone(), &config).unwrap();
        let (go, done) = (Wire::new(), Wire::new());
        let owner = child(|| {
            let a = SeqPacket::connect_with(name, &config).unwrap();
            a.recv(&mut [0; 9]).unwrap();
            let pool = SharedPool::new(4096, 8).unwrap();
            let lend = || {
                let mut loan = pool.loan(LEN).unwrap();
                loan.fill(1);
                assert_eq!(a.send_loan(loan).unwrap(), LEN);
            };
            // Pages that were lent before a fork can be lent after it.
            lend();
            let heir = child(|| {
                go.hear();
                (0..3).for_each(|_| assert_eq!(a.send(&[2; LEN]).unwrap(), LEN));
                done.tell(0);
                0
            });
            std::mem::forget(heir.unwrap());
            arm("listed", nth);
            (0..5).for_each(|_| lend());
            1
        });
        let owner = owner.unwrap();
        let (b, _) = listener.accept().unwrap();
        b.set_read_timeout(Some(PATIENCE)).unwrap();
        b.send(b"begin").unwrap();
        let mut got = Vec::new();
        let mut recv = || {
            let mut record = [0; LEN];
            let n = b.recv(&mut record).unwrap();
            assert_eq!(record, [record[0]; LEN]);
            got.extend((n > 0).then_some(record[0]));
            n > 0
        };
        (0..nth).for_each(|_| assert!(recv()));
        assert_eq!(owner.wait(), KILLED, "listed is not on this way");
        go.tell(0);
        while recv() {}
        done.hear();
        assert_eq!(got, [vec![1; nth as usize], vec![2; 3]].concat());
        assert_eq!(b.stats().protocol_errors, 0);
    }
}
