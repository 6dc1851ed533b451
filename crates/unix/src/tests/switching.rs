//! A process is killed while it receives over the kernel, before the peer has switched to shared memory. The
//! processes that share the end go on behind the byte, or record, that it was receiving, and through the
//! switch.

use super::{PATIENCE, Random, Wire, alone};
use crate::ancillary::attached::SendAncillary;
use crate::connection::Connection;
use crate::connection::rx::Rx;
use crate::core::kind::Kind;
use crate::failpoint::arm;
use crate::handshake::rendezvous::{Rendezvous, Target};
use crate::{Config, Records, RecvFlags, Result, SendFlags, SocketAddr};
use onecopy_sync::atomic::AtomicU32;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::fork::{Child, Ended, child};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

const KILLED: Ended = Ended::Killed(9);
const KINDS: [Kind; 2] = [Kind::Stream, Kind::SeqPacket];
/// The tests send words that count up: so many with one send, and so many before the switch.
const EACH: u32 = 3;
const EARLY: u32 = 20 * EACH;
const ALL: u32 = 40 * EACH;
/// Words that one receive takes from a stream.
const BUFFER: usize = 5;

fn listen(kind: Kind) -> (OwnedFd, SocketAddr, Rendezvous) {
    static COUNT: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(0));
    let number = COUNT.fetch_add(1, Relaxed);
    let name =
        SocketAddr::from_abstract_name(format!("onecopy-test-switching-{}-{number}", std::process::id()))
            .unwrap();
    let listener = kind.socket().unwrap();
    rustix::net::bind(&listener, &name.clone().address(crate::Op::Bind).unwrap()).unwrap();
    rustix::net::listen(&listener, 8).unwrap();
    let rendezvous = Rendezvous::open(Target::of(&name, kind, Records::Atomic));
    (listener, name, rendezvous)
}

/// A rendezvous that nobody finds.
fn nowhere() -> Arc<Rendezvous> {
    Arc::new(Rendezvous::open(None))
}

/// Makes the end join the peer's rings. Takes nothing of the bytes that they came with.
fn joined(end: Arc<Connection>) -> Arc<Connection> {
    let mut rx = end.rx().lock();
    end.decide(&mut rx, crate::Op::Recv).unwrap();
    assert!(matches!(&*rx, Rx::Switching(_)), "it has not joined");
    drop(rx);
    end
}

/// Sends a client's first message, which brings no rings.
fn greet(end: &Connection) {
    let sent = match end.kind() {
        Kind::Stream => end.send(&[IoSlice::new(b"g")], SendFlags::empty()),
        _ => end.send_record(&[IoSlice::new(b"g")], SendFlags::empty()),
    };
    assert_eq!(sent.unwrap(), 1);
}

/// Receives that message.
fn greeted(end: Arc<Connection>) -> Arc<Connection> {
    let mut byte = [0];
    let slices = &mut [IoSliceMut::new(&mut byte)];
    let len = match end.kind() {
        Kind::Stream => end.recv(slices, RecvFlags::empty()).unwrap(),
        _ => end.recv_record(slices, RecvFlags::empty()).unwrap().len,
    };
    assert_eq!((len, &byte), (1, b"g"));
    end
}

fn patient(end: Arc<Connection>) -> Arc<Connection> {
    end.settings().set_read_timeout(Some(PATIENCE));
    end.settings().set_write_timeout(Some(PATIENCE));
    end
}

/// Sends the words of `range`. Some have a descriptor, and a receive ends behind that.
fn put(end: &Connection, range: std::ops::Range<u32>) {
    let null = std::fs::File::open("/dev/null").unwrap();
    for first in range.step_by(EACH as usize) {
        let bytes: Vec<u8> = (first..first + EACH).flat_map(u32::to_le_bytes).collect();
        let fds = [null.as_fd()];
        let attached = if first < EARLY && first % (4 * EACH) == EACH {
            SendAncillary::fds(&fds)
        } else {
            SendAncillary::default()
        };
        let sent = match end.kind() {
            Kind::Stream => end.send_msg(&[IoSlice::new(&bytes)], attached, SendFlags::empty()),
            _ => end.send_record_with(&[IoSlice::new(&bytes)], attached, SendFlags::empty()),
        };
        assert_eq!(sent.unwrap(), bytes.len());
    }
}

/// Receives words; none at the end.
fn get(end: &Connection) -> Result<Vec<u32>> {
    let mut bytes = [0; 4 * BUFFER];
    let slices = &mut [IoSliceMut::new(&mut bytes)];
    let n = match end.kind() {
        Kind::Stream => end.recv(slices, RecvFlags::empty())?,
        _ => end.recv_record(slices, RecvFlags::empty())?.len,
    };
    assert_eq!(n % 4, 0);
    Ok(bytes[..n].chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect())
}

/// The two ends of a connection, one of them in another process. That process has sent the early words over
/// the kernel. Once told to go on, it sends the rest through shared memory.
struct Switched {
    end: Arc<Connection>,
    peer: Child,
    go: Wire,
    /// Says that the peer has sent everything.
    done: Wire,
}

impl Switched {
    fn new(kind: Kind, serves: bool) -> Switched {
        if serves { Switched::served(kind) } else { Switched::connected(kind) }
    }

    /// Makes a connection and keeps the server's end.
    fn served(kind: Kind) -> Switched {
        let (listener, name, _rendezvous) = listen(kind);
        let (go, done) = (Wire::new(), Wire::new());
        let peer = child(|| {
            let end = patient(Connection::connect(kind, None, name, &Config::default()).unwrap());
            greet(&end);
            put(&end, 0..EARLY);
            done.tell(0);
            go.hear();
            put(&end, EARLY..ALL);
            assert!(end.tx_ring().is_some(), "it has not switched");
            done.tell(0);
            0
        });
        let peer = peer.unwrap();
        done.hear();
        let end = joined(greeted(patient(
            Connection::accept(&listener, kind, &nowhere(), &Config::default()).unwrap().0,
        )));
        Switched { end, peer, go, done }
    }

    /// Makes a connection and keeps the client's end.
    fn connected(kind: Kind) -> Switched {
        let (listener, name, _rendezvous) = listen(kind);
        let (go, done) = (Wire::new(), Wire::new());
        let peer = child(|| {
            let end = patient(Connection::accept(&listener, kind, &nowhere(), &Config::default()).unwrap().0);
            put(&end, 0..EARLY);
            done.tell(0);
            go.hear();
            put(&end, EARLY..ALL);
            assert!(end.tx_ring().is_some(), "it has not switched");
            done.tell(0);
            0
        });
        let peer = peer.unwrap();
        let end = patient(Connection::connect(kind, None, name, &Config::default()).unwrap());
        done.hear();
        Switched { end: joined(end), peer, go, done }
    }

    /// Lets the peer go on, and waits until it has sent everything.
    fn switch(&self) {
        self.go.tell(0);
        self.done.hear();
    }

    /// Receives the last words, from `next` on.
    fn finish(self, mut next: u32, what: &str) {
        assert!(matches!(&*self.end.rx().lock(), Rx::Ring(_)) || next < ALL);
        loop {
            let words = get(&self.end).unwrap_or_else(|error| panic!("{what}: {error}"));
            if words.is_empty() {
                break;
            }
            for word in words {
                assert_eq!(word, next, "{what}");
                next += 1;
            }
        }
        assert_eq!(next, ALL, "{what}");
        assert_eq!(self.end.counters().read().protocol_errors, 0, "{what}");
        assert_eq!(self.peer.wait(), Ended::Returned(0), "{what}");
    }
}

/// A child receives until it dies at `point`. Then this process receives. `lost` says whether the words that
/// the child was receiving may be lost.
fn a_receiver_dies(kind: Kind, serves: bool, point: &'static str, nth: u32, lost: bool, early: bool) {
    let what = format!("{kind:?} serves {serves}, {point} {nth}, early {early}");
    let connection = Switched::new(kind, serves);
    if early {
        connection.switch();
    }
    let wire = Wire::new();
    let killed = child(|| {
        arm(point, nth);
        while let Ok(words) = get(&connection.end) {
            words.into_iter().for_each(|word| wire.tell(word.into()));
        }
        1
    });
    assert_eq!(killed.unwrap().wait(), KILLED, "{what}: not on this way");
    if !early {
        connection.switch();
    }
    let told = wire.hear_all();
    assert!(told.iter().copied().eq(0..told.len() as u64), "{what}: {told:?}");
    let next = told.len() as u32;
    let first = get(&connection.end).unwrap_or_else(|error| panic!("{what}: {error}"));
    let most = if kind == Kind::Stream { BUFFER as u32 } else { EACH };
    let gone = first[0].wrapping_sub(next);
    assert!(gone == 0 || lost && gone <= most, "{what}: {gone} words are lost");
    for (word, expected) in first.iter().zip(first[0]..) {
        assert_eq!(*word, expected, "{what}");
    }
    connection.finish(first[0] + first.len() as u32, &what);
}

#[test]
fn a_receiver_killed_while_the_peer_switches_loses_at_most_what_it_was_receiving() {
    alone!();
    for kind in KINDS {
        for serves in [true, false] {
            for (point, lost) in [
                ("taking", false),
                ("received over the kernel", true),
                ("saving", true),
                ("saved", true),
                ("counted", true),
            ] {
                for nth in [1, 3] {
                    for early in [true, false] {
                        a_receiver_dies(kind, serves, point, nth, lost, early);
                    }
                }
            }
        }
    }
}

#[test]
fn a_receiver_killed_at_the_switch_itself_loses_at_most_what_it_was_receiving() {
    alone!();
    for kind in KINDS {
        for serves in [true, false] {
            // On a stream, one receive takes the last bytes over the kernel and goes on in the ring.
            a_receiver_dies(kind, serves, "switched", 1, kind == Kind::Stream, true);
        }
    }
}

/// All of the kernel's bytes are taken and saved, but the kernel still counts. The process that goes on is
/// alone at once.
#[test]
fn a_receiver_killed_behind_the_switch_leaves_no_count_behind() {
    alone!();
    for kind in KINDS {
        let connection = Switched::new(kind, true);
        connection.switch();
        let killed = child(|| {
            crate::failpoint::at("switched", || arm("saved", 1));
            while get(&connection.end).is_ok() {}
            1
        });
        assert_eq!(killed.unwrap().wait(), KILLED, "{kind:?}");
        // After this time the process that goes on looks whether others are there.
        std::thread::sleep(Duration::from_millis(60));
        let words = get(&connection.end).unwrap();
        assert!(!connection.end.others().are_there());
        assert_eq!(onecopy_sys::sockopt::peek_off(connection.end.fd()).unwrap(), -1, "{kind:?}");
        connection.finish(words[0] + words.len() as u32, "behind the switch");
    }
}

/// All receive, and one is killed at any moment.
#[test]
fn receivers_killed_at_any_moment_leave_the_others_all_that_they_were_not_receiving() {
    alone!();
    let mut random = Random::new(1);
    for round in 0..40 {
        let (kind, serves) = (KINDS[round % 2], round / 2 % 2 == 0);
        let connection = Switched::new(kind, serves);
        let wire = Wire::new();
        let victim = child(|| {
            while let Ok(words) = get(&connection.end) {
                words.into_iter().for_each(|word| wire.tell(word.into()));
            }
            1
        });
        let victim = victim.unwrap();
        let mine = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let mut mine = Vec::new();
                loop {
                    let words = get(&connection.end).unwrap_or_else(|error| panic!("{round}: {error}"));
                    if words.is_empty() {
                        return mine;
                    }
                    mine.extend(words);
                }
            });
            let (began, pause) = (Instant::now(), Duration::from_micros(random.next() % 3000));
            if random.below(2) == 0 {
                connection.go.tell(0);
            }
            std::thread::sleep(pause.saturating_sub(began.elapsed()));
            victim.signal(9);
            assert_eq!(victim.wait(), KILLED);
            connection.go.tell(0);
            receiver.join().unwrap()
        });
        let told = wire.hear_all();
        let all: BTreeSet<u64> =
            told.iter().copied().chain(mine.iter().map(|word| u64::from(*word))).collect();
        assert_eq!(all.len(), told.len() + mine.len(), "{round}: received twice");
        let most = if kind == Kind::Stream { BUFFER } else { EACH as usize };
        assert!(all.len() + most >= ALL as usize, "{round}: {} of {ALL}", all.len());
        assert_eq!(connection.end.counters().read().protocol_errors, 0, "{round}");
        assert_eq!(connection.peer.wait(), Ended::Returned(0), "{round}");
    }
}

/// The kernel counts bytes, and an empty record has none.
#[test]
fn of_records_without_bytes_one_may_be_received_by_the_dead_but_not_one_of_two() {
    alone!();
    for (empty, goes_on) in [(1, true), (2, false)] {
        let (listener, name, _rendezvous) = listen(Kind::SeqPacket);
        let (go, sent) = (Wire::new(), Wire::new());
        let peer = child(|| {
            let end = patient(Connection::connect(Kind::SeqPacket, None, name, &Config::default()).unwrap());
            let send = |record: &[u8]| end.send_record(&[IoSlice::new(record)], SendFlags::empty());
            greet(&end);
            (0..empty).for_each(|_| assert_eq!(send(&[]).unwrap(), 0));
            assert_eq!(send(b"early").unwrap(), 5);
            sent.tell(0);
            go.hear();
            // If it is over, a sender with room may learn of that a moment later.
            assert!(send(b"rest").is_ok() || !goes_on);
            0
        });
        let peer = peer.unwrap();
        sent.hear();
        let end = joined(greeted(patient(
            Connection::accept(&listener, Kind::SeqPacket, &nowhere(), &Config::default()).unwrap().0,
        )));
        let killed = child(|| {
            arm("received over the kernel", 1);
            let _ = end.recv_record(&mut [IoSliceMut::new(&mut [0; 9])], RecvFlags::empty());
            1
        });
        assert_eq!(killed.unwrap().wait(), KILLED);
        let recv = || {
            let mut record = [0; 9];
            end.recv_record(&mut [IoSliceMut::new(&mut record)], RecvFlags::empty())
                .map(|got| record[..got.len].to_vec())
        };
        if goes_on {
            assert_eq!(recv().unwrap(), b"early");
            go.tell(0);
            assert_eq!(recv().unwrap(), b"rest");
        } else {
            assert_eq!(recv().unwrap_err().raw_os_error(), Errno::PROTO.raw_os_error());
            go.tell(0);
        }
        assert_eq!(peer.wait(), Ended::Returned(0));
    }
}

/// A sender dies while it sends over the kernel. Those that share the end go on there, and the receiver gets
/// what was sent.
#[test]
fn a_sender_killed_over_the_kernel_leaves_the_others_going() {
    alone!();
    for kind in KINDS {
        for nth in [1, 4] {
            let (listener, name, _rendezvous) = listen(kind);
            let (end, peer) = {
                let client = patient(Connection::connect(kind, None, name, &Config::default()).unwrap());
                (
                    client,
                    patient(Connection::accept(&listener, kind, &nowhere(), &Config::default()).unwrap().0),
                )
            };
            let killed = child(|| {
                arm("sent over the kernel", nth);
                put(&end, 0..ALL);
                1
            });
            assert_eq!(killed.unwrap().wait(), KILLED);
            let sent = nth * EACH;
            put(&end, sent..ALL);
            let mut next = 0;
            while next < ALL {
                for word in get(&peer).unwrap() {
                    assert_eq!(word, next, "{kind:?} {nth}");
                    next += 1;
                }
            }
            // Then the other direction.
            put(&peer, 0..EACH);
            assert_eq!(get(&end).unwrap(), [0, 1, 2]);
            for end in [&end, &peer] {
                assert_eq!(end.counters().read().protocol_errors, 0);
            }
        }
    }
}
