//! Processes are killed between a message in the channel and the mark or frame that announces it. The others
//! go on and never get descriptors that were meant for another message.

use super::{PATIENCE, Wire, alone, small};
use crate::ancillary::attached::SendAncillary;
use crate::ancillary::channel::Fds;
use crate::connection::Connection;
use crate::connection::call::Call;
use crate::connection::rx::Rx;
use crate::control;
use crate::core::kind::Kind;
use crate::failpoint::arm;
use crate::multiprocess::arrival::take_up;
use crate::multiprocess::transfer::pass_on;
use crate::{Config, RecvFlags, Result, SendFlags};
use onecopy_sys::fork::{Ended, child};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::Instant;

const KILLED: Ended = Ended::Killed(9);
const KINDS: [Kind; 2] = [Kind::Stream, Kind::SeqPacket];

fn pair(kind: Kind) -> (Arc<Connection>, Arc<Connection>) {
    let (a, b) = Connection::pair(kind, &small()).unwrap();
    for end in [&a, &b] {
        end.settings().set_read_timeout(Some(PATIENCE));
        end.settings().set_write_timeout(Some(PATIENCE));
    }
    (a, b)
}

/// Makes a descriptor that can be told from others.
fn numbered(number: u64) -> OwnedFd {
    let fd = memfd_create("onecopy-test-numbered", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, number).unwrap();
    fd
}

/// Sends one byte, with descriptors of those numbers.
fn send(a: &Connection, byte: u8, numbers: &[u64]) -> Result<usize> {
    let fds: Vec<OwnedFd> = numbers.iter().map(|number| numbered(*number)).collect();
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    match a.kind() {
        Kind::Stream => a.send_msg(&[IoSlice::new(&[byte])], SendAncillary::fds(&fds), SendFlags::empty()),
        _ => a.send_record_with(&[IoSlice::new(&[byte])], SendAncillary::fds(&fds), SendFlags::empty()),
    }
}

/// The result of one receive.
#[derive(Debug, PartialEq, Eq)]
struct Got {
    byte: u8,
    numbers: Vec<u64>,
    cut: bool,
}

fn got(byte: u8, numbers: &[u64]) -> Got {
    Got { byte, numbers: numbers.to_vec(), cut: false }
}

fn lost(byte: u8) -> Got {
    Got { byte, numbers: Vec::new(), cut: true }
}

fn recv_as(b: &Connection, flags: RecvFlags) -> Result<Got> {
    let (mut fds, mut byte) = (Fds::default(), [0]);
    let slices = &mut [IoSliceMut::new(&mut byte)];
    let n = match b.kind() {
        Kind::Stream => b.recv_with(slices, flags, &mut Call::with(&mut fds))?,
        _ => b.recv_record_with(slices, flags, &mut Call::with(&mut fds))?.len,
    };
    assert_eq!(n, 1);
    let numbers = fds.list.iter().map(|fd| fstat(fd).unwrap().st_size.cast_unsigned()).collect();
    Ok(Got { byte: byte[0], numbers, cut: fds.truncated })
}

fn recv(b: &Connection) -> Got {
    recv_as(b, RecvFlags::empty()).unwrap()
}

fn nobody_lied(ends: [&Connection; 2]) {
    for end in ends {
        assert_eq!(end.counters().read().protocol_errors, 0);
    }
}

/// Runs `work` in a child, which it must kill. This process then goes on.
fn dies(work: impl FnOnce()) {
    let killed = child(|| {
        work();
        1
    });
    assert_eq!(killed.unwrap().wait(), KILLED, "it did not come to that point");
}

#[test]
fn descriptors_of_a_sender_that_was_killed_before_it_announced_them_are_nobodys() {
    alone!();
    for kind in KINDS {
        // How many descriptors the dead sender had attached, and how many come next.
        for (dead, next) in [(1, 1), (1, 3), (3, 1), (2, 0)] {
            let (a, b) = pair(kind);
            send(&a, b'a', &[1]).unwrap();
            assert_eq!(recv(&b), got(b'a', &[1]));
            for round in 0..3u64 {
                dies(|| {
                    arm("sent over", 2);
                    send(&a, b'b', &[20 + round]).unwrap();
                    let _ = send(&a, b'c', &vec![666; dead]);
                });
                // The first message is at the same position, and the second one behind it.
                let numbers: Vec<u64> = (0..next).map(|i| 30 + i + round).collect();
                send(&a, b'd', &numbers).unwrap();
                send(&a, b'e', &[40 + round, 41]).unwrap();
                assert_eq!(recv(&b), got(b'b', &[20 + round]));
                assert_eq!(recv(&b), got(b'd', &numbers), "{kind:?} {dead} {next} {round}");
                assert_eq!(recv(&b), got(b'e', &[40 + round, 41]));
            }
            nobody_lied([&a, &b]);
        }
    }
}

#[test]
fn who_a_killed_sender_said_it_was_is_not_said_of_another() {
    alone!();
    for kind in KINDS {
        let (a, b) = pair(kind);
        send(&a, b'a', &[1]).unwrap();
        assert_eq!(recv(&b), got(b'a', &[1]));
        dies(|| {
            b.set_pass_credentials(true).unwrap();
            arm("sent over", 1);
            let _ = send(&a, b'b', &[]);
        });
        b.set_pass_credentials(true).unwrap();
        send(&a, b'c', &[2]).unwrap();
        let (mut fds, mut byte) = (Fds::default(), [0]);
        let slices = &mut [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::empty();
        match kind {
            Kind::Stream => b.recv_with(slices, flags, &mut Call::with(&mut fds)).map(drop).unwrap(),
            _ => b.recv_record_with(slices, flags, &mut Call::with(&mut fds)).map(drop).unwrap(),
        }
        assert_eq!(fds.list.len(), 1);
        assert_eq!(fds.who.map(|who| who.pid), Some(std::process::id().cast_signed()), "{kind:?}");
        nobody_lied([&a, &b]);
    }
}

#[test]
fn descriptors_that_a_killed_receiver_had_taken_are_gone_and_no_others() {
    alone!();
    for kind in KINDS {
        for (point, taken) in
            [("received over", true), ("taken", true), ("saving", true), ("copied out", true)]
        {
            if kind == Kind::Stream && !matches!(point, "received over" | "saving") {
                continue;
            }
            for nth in [1, 2] {
                let (a, b) = pair(kind);
                send(&a, b'a', &[1]).unwrap();
                assert_eq!(recv(&b), got(b'a', &[1]));
                for i in 0..4 {
                    send(&a, b'b' + i, &[10 + u64::from(i), 5]).unwrap();
                }
                dies(|| {
                    arm(point, nth);
                    (0..4).for_each(|_| drop(recv(&b)));
                });
                let mut next = b'b';
                let first = recv(&b);
                // On a stream the side is given up between the mark and its byte.
                assert!(first.byte <= b'b' + nth as u8, "{kind:?} {point} {nth}: {first:?}");
                for i in first.byte..b'f' {
                    let was = if i == first.byte { &first } else { &recv(&b) };
                    let number = u64::from(i - b'b') + 10;
                    if i == first.byte && taken && was.cut {
                        assert_eq!(*was, lost(i));
                    } else {
                        assert_eq!(*was, got(i, &[number, 5]), "{kind:?} {point} {nth}");
                    }
                    next = i + 1;
                }
                assert_eq!(next, b'f');
                send(&a, b'z', &[7, 8, 9]).unwrap();
                assert_eq!(recv(&b), got(b'z', &[7, 8, 9]));
                nobody_lied([&a, &b]);
            }
        }
    }
}

#[test]
fn descriptors_that_a_process_has_peeked_at_are_its_own_until_it_dies() {
    alone!();
    for kind in KINDS {
        let (a, b) = pair(kind);
        send(&a, b'a', &[1]).unwrap();
        assert_eq!(recv(&b), got(b'a', &[1]));
        send(&a, b'b', &[2]).unwrap();
        send(&a, b'c', &[3]).unwrap();
        let wire = Wire::new();
        let peeker = child(|| {
            assert_eq!(recv_as(&b, RecvFlags::PEEK).unwrap(), got(b'b', &[2]));
            wire.tell(0);
            std::thread::sleep(PATIENCE);
            0
        });
        let peeker = peeker.unwrap();
        wire.hear();
        for flags in [RecvFlags::empty(), RecvFlags::PEEK] {
            let refused = recv_as(&b, flags).unwrap_err();
            assert_eq!(refused.raw_os_error(), Errno::BUSY.raw_os_error(), "{kind:?}: {refused}");
        }
        peeker.signal(9);
        assert_eq!(peeker.wait(), KILLED);
        assert_eq!(recv_as(&b, RecvFlags::PEEK).unwrap(), lost(b'b'), "{kind:?}");
        assert_eq!(recv(&b), lost(b'b'));
        assert_eq!(recv(&b), got(b'c', &[3]));
        nobody_lied([&a, &b]);
    }
}

/// Bytes come in two steps: the mark, and then the bytes it is for. Another process may see the second step.
#[test]
fn descriptors_whose_byte_is_still_to_come_are_for_whoever_receives_that() {
    alone!();
    let (a, b) = pair(Kind::Stream);
    send(&a, b'a', &[1]).unwrap();
    assert_eq!(recv(&b), got(b'a', &[1]));
    let (go, done) = (Wire::new(), Wire::new());
    let first = child(|| {
        // The mark is there, but not its byte.
        go.hear();
        let nothing = recv_as(&b, RecvFlags::DONTWAIT).unwrap_err();
        assert!(nothing.would_block());
        done.tell(0);
        0
    });
    let first = first.unwrap();
    crate::failpoint::at("marked", move || {
        go.tell(0);
        assert!(done.speaks());
    });
    send(&a, b'b', &[9]).unwrap();
    assert_eq!(first.wait(), Ended::Returned(0));
    assert_eq!(recv(&b), got(b'b', &[9]));
    nobody_lied([&a, &b]);
}

#[test]
fn descriptors_of_a_sender_that_was_killed_before_their_first_byte_come_with_no_other_one() {
    alone!();
    for (next, seen) in [(0, false), (0, true), (2, false), (2, true)] {
        let (a, b) = pair(Kind::Stream);
        send(&a, b'a', &[1]).unwrap();
        assert_eq!(recv(&b), got(b'a', &[1]));
        for _ in 0..3 {
            dies(|| {
                arm("marked", 1);
                let _ = send(&a, b'x', &[666]);
            });
            if seen {
                assert!(recv_as(&b, RecvFlags::DONTWAIT).unwrap_err().would_block());
            }
            // A process comes, sends nothing and goes.
            let idle = child(|| {
                drop(a.lock_tx(SendFlags::empty()).unwrap());
                0
            });
            assert_eq!(idle.unwrap().wait(), Ended::Returned(0));
            let numbers = &[30, 31][..next];
            send(&a, b'b', numbers).unwrap();
            assert_eq!(recv(&b), got(b'b', numbers), "{next} {seen}");
            send(&a, b'c', &[4]).unwrap();
            assert_eq!(recv(&b), got(b'c', &[4]));
        }
        nobody_lied([&a, &b]);
    }
}

#[test]
fn a_killed_process_that_had_the_channel_takes_with_it_what_lay_in_there() {
    alone!();
    for kind in KINDS {
        // Where the process is killed, and whether it had taken the channel's byte. If not, the byte is in
        // the queue, where others find it too.
        for (point, taken) in [("", false), ("", true), ("received over", false)] {
            let what = format!("{kind:?} {point} {taken}");
            let (a, b) = pair(kind);
            let (go, done) = (Wire::new(), Wire::new());
            let owner = child(|| {
                go.hear();
                assert_eq!(recv(&b), got(b'0', &[]));
                if !point.is_empty() {
                    arm(point, 1);
                }
                assert_eq!(recv(&b), got(b'a', &[1]));
                if taken {
                    assert!(recv_as(&b, RecvFlags::DONTWAIT).unwrap_err().would_block());
                }
                done.tell(0);
                std::thread::sleep(PATIENCE);
                0
            });
            let owner = owner.unwrap();
            // Its doorbell is before the channel's byte in the queue, and is taken instead of it.
            send(&a, b'0', &[]).unwrap();
            send(&a, b'a', &[1]).unwrap();
            if taken {
                go.tell(0);
                done.hear();
            }
            send(&a, b'b', &[2]).unwrap();
            send(&a, b'c', &[]).unwrap();
            if !taken {
                go.tell(0);
            }
            if point.is_empty() {
                if !taken {
                    done.hear();
                }
                let refused = recv_as(&b, RecvFlags::empty()).unwrap_err();
                assert_eq!(refused.raw_os_error(), Errno::BUSY.raw_os_error());
                owner.signal(9);
            }
            assert_eq!(owner.wait(), KILLED);
            if !point.is_empty() {
                assert_eq!(recv(&b), lost(b'a'), "{what}");
            }
            assert_eq!(recv(&b), if taken { lost(b'b') } else { got(b'b', &[2]) }, "{what}");
            assert_eq!(recv(&b), got(b'c', &[]), "{what}");
            // Where the channel is gone, the sender makes another one.
            for number in 4..7 {
                send(&a, b'd', &[number, 5]).unwrap();
                assert_eq!(recv(&b), got(b'd', &[number, 5]), "{what}");
            }
            nobody_lied([&a, &b]);
        }
    }
}

#[test]
fn one_process_after_the_other_that_has_the_channel_may_be_killed() {
    alone!();
    for kind in KINDS {
        for asks in [false, true] {
            let (a, b) = pair(kind);
            b.set_pass_credentials(asks).unwrap();
            let wire = Wire::new();
            for round in 0..6u64 {
                // Some rounds have doorbells before the new channel, and some have none.
                let ahead = round % 3;
                (0..ahead).for_each(|_| assert_eq!(send(&a, b'p', &[]).unwrap(), 1));
                let owner = child(|| {
                    (0..ahead).for_each(|_| assert_eq!(recv(&b), got(b'p', &[])));
                    assert_eq!(recv(&b), got(b'a', &[10 + round]));
                    wire.tell(0);
                    std::thread::sleep(PATIENCE);
                    0
                });
                let owner = owner.unwrap();
                send(&a, b'a', &[10 + round]).unwrap();
                wire.hear();
                owner.signal(9);
                assert_eq!(owner.wait(), KILLED);
                if round % 2 == 0 {
                    // A message without descriptors waits for no process.
                    send(&a, b'b', &[]).unwrap();
                    assert_eq!(recv(&b), got(b'b', &[]), "{kind:?} {asks} {round}");
                }
            }
            send(&a, b'z', &[30, 31]).unwrap();
            assert_eq!(recv(&b), got(b'z', &[30, 31]), "{kind:?} {asks}");
            let nothing = recv_as(&b, RecvFlags::DONTWAIT).unwrap_err();
            assert!(nothing.would_block(), "{nothing}");
            nobody_lied([&a, &b]);
        }
    }
}

/// The process need not die: it may close its copy and do something else.
#[test]
fn a_process_that_had_the_channel_and_closed_it_keeps_nobody_waiting() {
    alone!();
    for kind in KINDS {
        for looks in [false, true] {
            let (a, b) = pair(kind);
            let (go, closed, wire) = (Wire::new(), Wire::new(), Wire::new());
            // The parent does not keep this end after the fork: its copy is dropped there.
            let mut mine = Some(b);
            let owner = child(|| {
                let b = mine.take().unwrap();
                go.hear();
                assert_eq!(recv(&b), got(b'a', &[1]));
                assert!(recv_as(&b, RecvFlags::DONTWAIT).unwrap_err().would_block());
                wire.tell(0);
                closed.hear();
                b.close();
                drop(b);
                wire.tell(0);
                std::thread::sleep(PATIENCE);
                0
            });
            let owner = owner.unwrap();
            let b = mine.unwrap();
            send(&a, b'a', &[1]).unwrap();
            go.tell(0);
            wire.hear();
            send(&a, b'b', &[2]).unwrap();
            if looks {
                assert_eq!(
                    recv_as(&b, RecvFlags::empty()).unwrap_err().raw_os_error(),
                    Errno::BUSY.raw_os_error()
                );
            }
            closed.tell(0);
            wire.hear();
            if looks {
                assert_eq!(recv(&b), lost(b'b'), "{kind:?}");
            }
            for number in 3..6 {
                send(&a, b'c', &[number]).unwrap();
            }
            if !looks {
                assert_eq!(recv(&b), lost(b'b'), "{kind:?}");
            }
            for number in 3..6 {
                assert_eq!(recv(&b), got(b'c', &[number]), "{kind:?} {looks}");
            }
            nobody_lied([&a, &b]);
            owner.signal(9);
            assert_eq!(owner.wait(), KILLED);
        }
    }
}

/// One process looks ahead for the channel and gets it. Another one takes the channel's byte later, as the
/// doorbell that it looks like.
#[test]
fn a_channel_whose_byte_another_process_takes_is_counted_once() {
    alone!();
    for kind in KINDS {
        let (a, b) = pair(kind);
        let wire = Wire::new();
        let finder = child(|| {
            assert_eq!(recv(&b), got(b'x', &[]));
            assert_eq!(recv(&b), got(b'a', &[1]));
            wire.tell(0);
            std::thread::sleep(PATIENCE);
            0
        });
        // A doorbell comes first, and the channel behind it.
        send(&a, b'x', &[]).unwrap();
        send(&a, b'a', &[1]).unwrap();
        let finder = finder.unwrap();
        wire.hear();
        for _ in 0..3 {
            assert!(recv_as(&b, RecvFlags::DONTWAIT).unwrap_err().would_block());
            let mut rx = b.rx().lock();
            let Rx::Ring(ring) = &mut *rx else { panic!("a pair begins with rings") };
            ring.settle(&b).unwrap();
            assert_eq!((ring.doorbells().balance().debt, control::queued(b.fd())), (0, Ok(0)), "{kind:?}");
            drop(rx);
            send(&a, b'y', &[]).unwrap();
            assert_eq!(recv(&b), got(b'y', &[]));
        }
        finder.signal(9);
        assert_eq!(finder.wait(), KILLED);
        for number in 4..6 {
            send(&a, b'd', &[number]).unwrap();
            assert_eq!(recv(&b), got(b'd', &[number]), "{kind:?}");
        }
        nobody_lied([&a, &b]);
    }
}

/// A channel that came when no descriptor was left is lost for its sender too. The sender makes another one.
#[test]
fn a_channel_for_which_there_was_no_descriptor_is_made_up_for() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    alone!();
    for kind in KINDS {
        let alone = child(|| {
            let (a, b) = pair(kind);
            send(&a, b'a', &[1]).unwrap();
            let old = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..old }).unwrap();
            // The byte is taken as an expected doorbell, and the count is corrected.
            if let Rx::Ring(ring) = &mut *b.rx().lock() {
                ring.doorbells().add_debt(1);
                ring.doorbells().take_debt(&b);
                ring.doorbells().forgive_debt();
            }
            assert_eq!(
                recv_as(&b, RecvFlags::empty()).unwrap_err().raw_os_error(),
                Errno::MFILE.raw_os_error()
            );
            setrlimit(Resource::Nofile, old).unwrap();
            assert_eq!(
                recv_as(&b, RecvFlags::empty()).unwrap_err().raw_os_error(),
                Errno::MFILE.raw_os_error()
            );
            for number in 2..5 {
                send(&a, b'b', &[number]).unwrap();
            }
            assert_eq!(recv(&b), lost(b'a'));
            for number in 2..5 {
                assert_eq!(recv(&b), got(b'b', &[number]));
            }
            assert!(recv_as(&b, RecvFlags::DONTWAIT).unwrap_err().would_block());
            nobody_lied([&a, &b]);
            0
        });
        assert_eq!(alone.unwrap().wait(), Ended::Returned(0), "{kind:?}");
    }
}

/// An honest sender makes a second channel only where no process has the first one.
#[test]
fn a_second_channel_beside_the_first_is_a_lie() {
    alone!();
    for kind in KINDS {
        let (a, b) = pair(kind);
        send(&a, b'a', &[1]).unwrap();
        assert_eq!(recv(&b), got(b'a', &[1]));
        let _second = crate::ancillary::channel::open(a.fd()).unwrap();
        let misbehaved = loop {
            match recv_as(&b, RecvFlags::DONTWAIT) {
                Err(error) if error.would_block() => {}
                other => break other.unwrap_err(),
            }
        };
        assert_eq!(misbehaved.raw_os_error(), Errno::PROTO.raw_os_error(), "{kind:?}");
    }
}

/// The same happens where the end was passed on, and the process that took it up goes on.
#[test]
fn an_end_passed_on_behind_such_a_mark_brings_nobodys_descriptors() {
    alone!();
    let config = Config { passable: true, ..small() };
    let (a, b) = Connection::pair(Kind::Stream, &config).unwrap();
    b.settings().set_read_timeout(Some(PATIENCE));
    send(&a, b'a', &[1]).unwrap();
    assert_eq!(recv(&b), got(b'a', &[1]));
    dies(|| {
        arm("marked", 1);
        let _ = send(&a, b'x', &[666]);
    });
    // The first look at which other processes are there comes some time after the last one.
    let began = Instant::now();
    let fds = loop {
        match pass_on(&a) {
            Ok(fds) => break fds,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
    };
    drop(a);
    let a = take_up(fds, Kind::Stream, &config).unwrap();
    send(&a, b'b', &[]).unwrap();
    assert_eq!(recv(&b), got(b'b', &[]));
    send(&a, b'c', &[4]).unwrap();
    assert_eq!(recv(&b), got(b'c', &[4]));
    nobody_lied([&a, &b]);
}

/// The receiver knows of one channel. It is in the receiver's queue, or was lost with the process that made
/// it. No process makes a second one.
#[test]
fn a_sender_that_is_killed_with_the_channel_just_made_costs_descriptors_and_nothing_else() {
    alone!();
    for kind in KINDS {
        for point in ["channel made", "sent over"] {
            let (a, b) = pair(kind);
            dies(|| {
                arm(point, 1);
                let _ = send(&a, b'x', &[1]);
            });
            for _ in 0..2 {
                let refused = send(&a, b'a', &[2]).unwrap_err();
                assert_eq!(refused.raw_os_error(), Errno::BUSY.raw_os_error(), "{kind:?} {point}");
                send(&a, b'b', &[]).unwrap();
                assert_eq!(recv(&b), got(b'b', &[]), "{kind:?} {point}");
                let nothing = recv_as(&b, RecvFlags::DONTWAIT).unwrap_err();
                assert!(nothing.would_block(), "{kind:?} {point}: {nothing}");
            }
            nobody_lied([&a, &b]);
        }
    }
}
