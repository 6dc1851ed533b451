//! A process is killed in each critical section; those that share the end with it go on.

use super::{PATIENCE, Wire, alone, pair, send, small};
use crate::failpoint::arm;
use crate::{Config, RecvFlags, SendFlags, SeqPacket, Stream, Wait};
use onecopy_sys::fork::{Ended, child};
use std::time::{Duration, Instant};

const KILLED: Ended = Ended::Killed(9);
const LEN: usize = 64;

/// A child sends messages of ones until it dies at `point`; then this process sends messages of twos, with pauses in
/// which the reader falls asleep. The reader must see whole ones, then all twos.
fn a_sender_dies(point: &'static str, nth: u32, config: &Config) {
    let (a, b) = pair(config);
    b.set_wait(Wait::Block);
    let twos = 40;
    let full = matches!(point, "parking" | "filled" | "parked");
    let wire = Wire::new();
    let (ones, got) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            if full {
                wire.hear();
            }
            let (mut ones, mut got, mut message) = (0, 0, [0; LEN]);
            while got < twos {
                let n = b.recv(&mut message, RecvFlags::WAITALL).unwrap();
                assert_eq!(n, LEN, "{point}: the reader waited in vain");
                assert!(message.iter().all(|byte| *byte == message[0]), "{point}: half a send");
                match message[0] {
                    1 => ones += 1,
                    _ => got += 1,
                }
            }
            (ones, got)
        });
        // The reader is asleep, so that the first byte rings.
        std::thread::sleep(Duration::from_millis(20));
        let killed = child(|| {
            arm(point, nth);
            for _ in 0..1000 {
                send(&a, &[1; LEN]);
                std::thread::sleep(Duration::from_micros(if full { 0 } else { 300 }));
            }
            1
        });
        assert_eq!(killed.unwrap().wait(), KILLED, "{point} is not on this way");
        if full {
            wire.tell(0);
        }
        for i in 0..twos {
            send(&a, &[2; LEN]);
            if i % 4 == 0 {
                std::thread::sleep(Duration::from_millis(3));
            }
        }
        reader.join().unwrap()
    });
    assert_eq!(got, twos);
    assert!(ones < 1000);
    assert_eq!(b.stats().protocol_errors + a.stats().protocol_errors, 0, "{point}");
    // The other direction knows nothing of it.
    send(&b, b"back");
    assert_eq!(a.recv(&mut [0; 9], RecvFlags::empty()).unwrap(), 4);
}

#[test]
fn a_sender_killed_anywhere_leaves_the_others_going() {
    let _alone = alone();
    for point in [
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
    ] {
        for nth in [1, 2, 5] {
            if nth > 1 && matches!(point, "parking" | "filled" | "parked") {
                continue;
            }
            a_sender_dies(point, nth, &small());
        }
    }
}

/// This process sends numbered records, of which a child receives some until it dies at `point`, then this process the
/// rest. `lost`: whether what the child was just receiving may be gone with it.
fn a_receiver_dies(point: &'static str, nth: u32, lost: bool) {
    let (a, b) = SeqPacket::pair_with(&small()).unwrap();
    b.set_read_timeout(Some(PATIENCE)).unwrap();
    a.set_write_timeout(Some(PATIENCE)).unwrap();
    b.set_wait(Wait::Block);
    let wire = Wire::new();
    let full = point.starts_with("filler");
    let mut next = 0u64;
    let mut record = [0; 8];
    if full {
        // Until a filler is parked.
        while a.send(&next.to_ne_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok() {
            next += 1;
        }
    }
    let killed = child(|| {
        arm(point, nth);
        let mut record = [0; 8];
        while b.recv(&mut record, RecvFlags::empty()).is_ok() {
            wire.tell(u64::from_ne_bytes(record));
        }
        1
    });
    let killed = killed.unwrap();
    let mut killed = Some(killed);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| killed.take().unwrap().wait());
        // With pauses, so that the child finds nothing and arms; and none before it has received the last one, since it may have
        // no CPU for longer than all of them take.
        let (end, began) = (next + 50, Instant::now());
        while !waiter.is_finished() && next < end && began.elapsed() < PATIENCE {
            if full || a.unread_bytes().unwrap() == 0 {
                let now = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                let _ = a.send(&next.to_ne_bytes(), now).map(|_| next += 1);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(waiter.join().unwrap(), KILLED, "{point} is not on this way");
    });
    let returned = wire.hear_all();
    assert!(returned.iter().copied().eq(0..returned.len() as u64), "{point}: {returned:?}");
    let mut expected = returned.len() as u64;
    // What is left, and then more, asleep and awake.
    let limit = next + 60;
    let mut first = true;
    while expected < limit {
        // (The next one may be lost with the child.)
        while next < limit && (next <= expected + 1 || !next.is_multiple_of(3)) {
            a.send(&next.to_ne_bytes(), SendFlags::NOSIGNAL).unwrap();
            next += 1;
        }
        let n = b.recv(&mut record, RecvFlags::empty());
        assert_eq!(n.unwrap_or_else(|error| panic!("{point} {nth}: {error}")), 8, "{point} {nth}");
        let number = u64::from_ne_bytes(record);
        if first && lost && number == expected + 1 {
            expected += 1;
        }
        assert_eq!(number, expected, "{point} {nth}");
        expected += 1;
        first = false;
    }
    assert_eq!(b.stats().protocol_errors + a.stats().protocol_errors, 0, "{point}");
}

#[test]
fn a_receiver_killed_anywhere_loses_at_most_what_it_was_receiving() {
    let _alone = alone();
    for (point, lost) in [
        ("copied out", false),
        ("taken", false),
        ("saving", false),
        ("saved", true),
        ("flushed", true),
        ("armed", false),
        ("bell taken", false),
        ("filler claimed", true),
    ] {
        for nth in [1, 2, 5] {
            if nth > 1 && point.starts_with("filler") {
                continue;
            }
            a_receiver_dies(point, nth, lost);
        }
    }
}

#[test]
fn a_stream_receiver_killed_with_a_filler_leaves_the_stream_going() {
    let _alone = alone();
    for point in ["filler claimed", "filler taken", "copied out", "taken", "saved", "flushed"] {
        let (a, b) = pair(&small());
        let mut sent = 0u64;
        while let Ok(n) = a.send(&[7; 100], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            sent += n as u64;
        }
        let killed = child(|| {
            arm(point, 1);
            let _ = b.recv(&mut [0; 4096], RecvFlags::empty());
            1
        });
        assert_eq!(killed.unwrap().wait(), KILLED, "{point} is not on this way");
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut got, mut buffer) = (0u64, [0; 300]);
                loop {
                    match b.recv(&mut buffer, RecvFlags::empty()).unwrap() {
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
    let _alone = alone();
    let (a, b) = pair(&small());
    let wire = Wire::new();
    let reserver = child(|| {
        let mut slot = a.reserve(4000).unwrap();
        slot.write(&[9; 1000]);
        wire.tell(0);
        std::thread::sleep(PATIENCE);
        drop(slot);
        0
    });
    let reserver = reserver.unwrap();
    wire.hear();
    assert!(a.send(b"x", SendFlags::DONTWAIT | SendFlags::NOSIGNAL).unwrap_err().would_block());
    reserver.signal(9);
    assert_eq!(reserver.wait(), KILLED);
    assert_eq!(a.send(b"not waiting", SendFlags::DONTWAIT | SendFlags::NOSIGNAL).unwrap(), 11);
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
    let n = b.recv(&mut buffer, RecvFlags::empty()).unwrap();
    assert_eq!(borrowed as usize + n, 4011);
    assert!(a.send(&[2; 4000], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).unwrap() < 100);
    borrower.signal(9);
    assert_eq!(borrower.wait(), KILLED);
    // The sender sleeps for room that only the survivor can make, who sleeps for bytes.
    std::thread::scope(|scope| {
        scope.spawn(|| send(&a, &[3; 4096]));
        let mut got = 0;
        while got < 4096 {
            got += b.recv(&mut buffer, RecvFlags::empty()).unwrap();
        }
    });
}

#[test]
fn a_sender_asleep_for_room_may_be_killed_too() {
    let _alone = alone();
    let (a, b) = pair(&small());
    let sleeper = child(|| {
        let _ = a.send(&[1; 100_000], SendFlags::NOSIGNAL);
        0
    });
    let sleeper = sleeper.unwrap();
    while a.unread_bytes().unwrap() < 4096 {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(30));
    sleeper.signal(9);
    assert_eq!(sleeper.wait(), KILLED);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send(&a, &[2; 10_000]);
            a.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let (mut ones, mut twos, mut buffer) = (0, 0, [0; 1000]);
        loop {
            let n = b.recv(&mut buffer, RecvFlags::empty()).unwrap();
            if n == 0 {
                break;
            }
            ones += buffer[..n].iter().filter(|byte| **byte == 1).count();
            twos += buffer[..n].iter().filter(|byte| **byte == 2).count();
        }
        assert_eq!((ones >= 4096, twos), (true, 10_000));
    });
}

/// A holder that is process 1 of a namespace of its own, where nobody's ids are what they are here.
#[test]
fn a_death_in_another_pid_namespace_is_found_out() {
    let _alone = alone();
    let (a, b) = pair(&Config::default());
    let wire = Wire::new();
    let outer = child(|| {
        if onecopy_sys::fork::unshare_pids().is_err() {
            return 77;
        }
        // The first process of a namespace cannot kill itself, its child can.
        let init = child(|| {
            let inner = child(|| {
                wire.tell(u64::from(std::process::id()));
                arm("published", 3);
                (0..10).for_each(|_| send(&a, &[1; LEN]));
                0
            });
            i32::from(inner.unwrap().wait() != KILLED)
        });
        i32::from(init.unwrap().wait() != Ended::Returned(0))
    });
    match outer.unwrap().wait() {
        Ended::Returned(77) => {
            println!("no pid namespace could be made here: nothing was tested");
            return;
        }
        ended => assert_eq!(ended, Ended::Returned(0)),
    }
    assert_eq!(wire.hear(), 2, "the second process of its namespace");
    send(&a, &[2; LEN]);
    let mut buffer = [0; 1000];
    let n = b.recv(&mut buffer, RecvFlags::empty()).unwrap();
    assert_eq!((n, &buffer[..3 * LEN], buffer[3 * LEN]), (4 * LEN, &[1; 3 * LEN][..], 2));
}

/// The point that has no lock around it: whoever comes next finds what was left.
#[test]
fn a_death_between_calls_changes_nothing() {
    let _alone = alone();
    let (a, b): (Stream, Stream) = pair(&Config::default());
    for _ in 0..3 {
        let killed = child(|| {
            send(&a, b"one");
            onecopy_sys::fork::kill_self();
            0
        });
        assert_eq!(killed.unwrap().wait(), KILLED);
        assert_eq!(b.recv(&mut [0; 10], RecvFlags::empty()).unwrap(), 3);
    }
}
