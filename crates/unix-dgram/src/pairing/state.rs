//! What a socket knows of its peer, from the connect until both directions have switched or will not.

use crate::fan_in::lane::{JoinRequest, Lane};
use crate::pairing::offer::{Incoming, OfferedRing};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use onecopy_unix::SocketAddr;
use rustix::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};

/// The most calls between two looks while nothing is known of the peer, and while something is in flight.
pub const RARELY: u32 = 1024;

/// Lines that may break before anything was given away. After each of them this side tries again. An honest
/// caller is sent away if it had no CPU between connecting and its hello.
pub const BROKEN: u32 = 8;

/// What a socket knows of its peer, from the connect until both directions have switched or will not.
#[derive(Debug, Default)]
pub struct Pairing {
    /// 1 while the pairing may still succeed.
    pub(super) open: AtomicU32,
    /// The cookie of the token that comes with a proof of the peer's; 0 while none can come.
    pub(super) token: AtomicU64,
    /// 1 while the peer may switch.
    pub(super) counting: AtomicU32,
    /// 1 while there is an offer.
    pub(super) offered: AtomicU32,
    /// 1 while a datagram is to carry something, or datagrams are counted.
    pub(super) rides: AtomicU32,
    /// Calls until the next look, and from that one to the one after it.
    pub(super) left: AtomicU32,
    pub(super) pause: AtomicU32,
    /// The peer's name when its ring came into use.
    pub(super) sender: OnceLock<SocketAddr>,
    /// A thread that holds this lock only tries the locks of the two sides.
    pub(super) state: Mutex<State>,
    /// 1 while there is a lane.
    pub(super) laned: AtomicU32,
    /// Where this socket sends, if it has a lane at a fan-in receiver. Changed under the sending side's lock.
    pub(super) lane: Mutex<Option<Arc<Lane>>>,
    /// This socket.
    pub(super) front: OnceLock<Weak<dyn AsFd + Send + Sync>>,
}

#[derive(Debug, Default)]
pub struct State {
    pub(super) phase: Phase,
    /// A line to what may be the peer.
    pub(super) line: Option<Line>,
    pub(super) offer: Option<OfferedRing>,
    pub(super) incoming: Option<Incoming>,
    /// A lane at a fan-in receiver.
    pub(super) lane: Option<Lane>,
    /// Lines that have broken.
    pub(super) broken: u32,
}

#[derive(Debug, Default)]
pub enum Phase {
    /// Nothing is known of the peer.
    #[default]
    Alone,
    /// This side has a rendezvous listener, and has looked so many times whether the peer has come.
    Listening(OwnedFd, u32),
    /// A caller came to the rendezvous listener, and has said nothing yet in so many looks.
    Visited(OwnedFd, OwnedFd, u32),
    /// This side has said hello.
    Asked(OwnedFd),
    /// This side has answered, and given what it has to give.
    Answered,
    /// This side has come to the rendezvous listener of a fan-in receiver.
    Joining(JoinRequest),
    /// Everything on the line is said.
    Met,
}

/// A connection to what may be the peer.
#[derive(Debug)]
pub struct Line {
    pub(super) fd: Arc<OwnedFd>,
    /// The cookie of the other end, as the kernel told it. It is kept because the kernel does not tell it
    /// once that end is closed.
    pub(super) cookie: u64,
}

/// What comes next from the peer.
pub enum Head {
    /// What is in the ring.
    Switched,
    /// Nothing yet. What comes from here on may be a doorbell.
    Nothing,
    /// A message over the kernel, or an error.
    Other,
}

impl Pairing {
    pub fn is_open(&self) -> bool {
        self.open.load(Relaxed) != 0
    }

    /// Returns the name that the peer of the ring had.
    pub fn sender(&self) -> Option<SocketAddr> {
        self.sender.get().cloned()
    }

    /// Returns the cookie of the token that comes with a proof; 0 while none can come.
    #[inline]
    pub fn token(&self) -> u64 {
        self.token.load(Relaxed)
    }

    /// In the child of a fork: whether no thread that is gone held the lock.
    pub fn is_free(&self) -> bool {
        self.state.try_lock().is_some()
    }

    /// Whether the peer may switch.
    #[inline]
    pub fn is_counting(&self) -> bool {
        self.counting.load(Relaxed) != 0
    }

    /// Whether datagrams that go over the kernel carry something, or are counted.
    #[inline]
    pub fn rides(&self) -> bool {
        self.rides.load(Relaxed) != 0
    }

    /// Begins anew with another peer, or gives up.
    pub fn reset(&self, open: bool) {
        self.leave();
        // The lane's last reference is dropped without the lock.
        let left = self.lane.lock().take();
        self.laned.store(0, Relaxed);
        drop(left);
        let mut state = self.state.lock();
        *state = State::default();
        if open {
            // The kernel has discarded what the old peer had sent. Otherwise a proof in flight must still be
            // known for one.
            self.token.store(0, Relaxed);
        }
        self.counting.store(0, Relaxed);
        self.offered.store(0, Relaxed);
        self.rides.store(0, Relaxed);
        self.open.store(u32::from(open), Relaxed);
        self.left.store(1, Relaxed);
        self.pause.store(1, Relaxed);
    }

    /// Tells the peer that this end leaves it, or receives no more. The peer may be sending into a ring that
    /// nobody receives from yet, and looks there.
    pub fn leave(&self) {
        if let Some(incoming) = &self.state.lock().incoming {
            incoming.leave();
        }
    }

    /// Whether this call is to look. Calls at the same time may disagree by a few.
    pub(super) fn is_due(&self) -> bool {
        let left = self.left.load(Relaxed);
        if left > 0 {
            self.left.store(left - 1, Relaxed);
            return false;
        }
        let pause = self.pause.load(Relaxed);
        self.left.store(pause, Relaxed);
        self.pause.store(pause.saturating_mul(2).min(RARELY), Relaxed);
        true
    }

    /// Whether datagrams are sent on a lane.
    #[inline]
    pub fn is_laned(&self) -> bool {
        self.laned.load(Relaxed) != 0
    }

    /// Returns the lane, once datagrams are sent on it.
    pub fn lane(&self) -> Option<Arc<Lane>> {
        if self.is_laned() { self.lane.lock().clone() } else { None }
    }

    /// Notes which socket this pairing is of.
    pub fn is_of(&self, front: Weak<dyn AsFd + Send + Sync>) {
        self.front.get_or_init(|| front);
    }

    pub fn front(&self) -> Option<Weak<dyn AsFd + Send + Sync>> {
        self.front.get().cloned()
    }

    /// Notes that there is something that the sending side may switch to.
    pub fn offer(&self) {
        self.offered.store(1, Relaxed);
    }

    /// Notes whether the next datagram is to carry something.
    pub fn ride(&self, something: bool) {
        self.rides.store(u32::from(something), Relaxed);
    }

    /// Waits a while before this side tries again, since this try failed.
    pub fn rest(&self) {
        self.rest_for(RARELY);
    }

    pub(super) fn rest_for(&self, calls: u32) {
        self.left.store(calls, Relaxed);
        self.pause.store(calls, Relaxed);
    }

    pub(super) fn hurry(&self) {
        self.left.store(0, Relaxed);
        self.pause.store(1, Relaxed);
    }
}

impl State {
    /// Notes that this side waits on for the answer to a join request.
    pub fn goes_on_joining(&mut self, request: JoinRequest) {
        self.phase = Phase::Joining(request);
    }

    /// Notes a lane at a fan-in receiver, which this side may send on from now on.
    pub fn offers_lane(&mut self, lane: Lane) {
        self.lane = Some(lane);
    }

    /// Counts a line that has broken. Returns whether this side tries again, after a rest that grows with
    /// each of them.
    pub fn tries_again(&mut self, pairing: &Pairing) -> bool {
        if self.broken >= BROKEN {
            return false;
        }
        self.broken += 1;
        pairing.rest_for(RARELY.min(1 << (2 * self.broken)));
        true
    }
}

impl Pairing {
    /// Notes a datagram over the kernel that may go to another socket than the peer.
    pub fn count_anew(&self) {
        if let Some(offer) = &mut self.state.lock().offer {
            offer.uncounted = true;
        }
    }
}

impl State {
    /// Counts one more datagram that went over the kernel, with a proof or a join request if `said`.
    pub(super) fn sent_one(&mut self, said: bool) {
        if let Some(offer) = &mut self.offer {
            if said {
                (offer.number, offer.since, offer.uncounted) = (offer.number + 1, 0, false);
            }
            offer.since += 1;
        } else if let Phase::Joining(joining) = &mut self.phase {
            joining.sent_one(said);
        }
    }
}
