//! What a socket knows of its peer, from when it connects until both directions have switched, or will not.

use crate::fan_in::lane::{JoinRequest, Lane};
use crate::pairing::offer::{Incoming, OfferedRing};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use onecopy_unix::Name;
use rustix::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};

/// Calls between two looks, at most: while nothing is known of the peer, and while something is under way.
pub const RARELY: u32 = 1024;

/// Lines that break before anything was given away, after each of which this side tries again. An honest one is sent away where it
/// had no CPU between connecting and its hello.
pub const BROKEN: u32 = 8;

/// What an end knows of its peer, from when it connects until both directions have switched, or will not.
#[derive(Debug, Default)]
pub struct Pairing {
    /// 1 while it may yet come to anything.
    pub(super) open: AtomicU32,
    /// By which this side knows a proof of the peer's; 0 while none can come.
    pub(super) token: AtomicU64,
    /// 1 while the peer may switch.
    pub(super) counting: AtomicU32,
    /// 1 while there is an offer.
    pub(super) offered: AtomicU32,
    /// 1 while something is to be said with a datagram, or datagrams are counted.
    pub(super) rides: AtomicU32,
    /// Calls until the next look, and between that and the one after it.
    pub(super) left: AtomicU32,
    pub(super) pause: AtomicU32,
    /// What the peer was called when its ring came into use.
    pub(super) sender: OnceLock<Name>,
    /// Who holds it only ever tries the locks of the two sides.
    pub(super) state: Mutex<State>,
    /// 1 while there is a lane.
    pub(super) laned: AtomicU32,
    /// Where this socket sends, if it has a lane at a receiver of many: changed by who holds the sending side.
    pub(super) lane: Mutex<Option<Arc<Lane>>>,
    /// This socket.
    pub(super) front: OnceLock<Weak<dyn AsFd + Send + Sync>>,
}

#[derive(Debug, Default)]
pub struct State {
    pub phase: Phase,
    /// To who may be the peer.
    pub(super) line: Option<Line>,
    pub(super) offer: Option<OfferedRing>,
    pub(super) incoming: Option<Incoming>,
    /// A lane at a receiver of many.
    pub lane: Option<Lane>,
    /// Lines that have broken.
    pub(super) broken: u32,
}

#[derive(Debug, Default)]
pub enum Phase {
    /// Nothing is known of the peer.
    #[default]
    Alone,
    /// It is to come to the rendezvous listener, which was looked at so many times.
    Listening(OwnedFd, u32),
    /// Somebody came to the rendezvous listener, who has said nothing yet in so many looks.
    Visited(OwnedFd, OwnedFd, u32),
    /// This side has asked.
    Asked(OwnedFd),
    /// This side has answered, and given what it has to give.
    Answered,
    /// This side has come to the rendezvous listener of a receiver of many.
    Joining(JoinRequest),
    /// All is said on the line.
    Met,
}

/// A connection to who may be the peer.
#[derive(Debug)]
pub struct Line {
    pub(super) fd: Arc<OwnedFd>,
    /// Of the other end, as the kernel says. (Kept: it does not say so any more when that end is closed.)
    pub(super) cookie: u64,
}

/// What comes next from the peer.
pub enum Head {
    /// What lies in the ring.
    Switched,
    /// Nothing yet. What comes from here on may be a doorbell.
    Nothing,
    /// Something over the kernel, or an error.
    Other,
}

impl Pairing {
    pub fn is_open(&self) -> bool {
        self.open.load(Relaxed) != 0
    }

    /// What the peer of the ring was called.
    pub fn sender(&self) -> Option<Name> {
        self.sender.get().cloned()
    }

    /// The cookie of the token that comes with a proof; 0 while none can come.
    #[inline]
    pub fn token(&self) -> u64 {
        self.token.load(Relaxed)
    }

    /// In the child of a fork: whether nobody held it who is not there any more.
    pub fn is_free(&self) -> bool {
        self.state.try_lock().is_some()
    }

    /// Whether the peer may switch.
    #[inline]
    pub fn is_counting(&self) -> bool {
        self.counting.load(Relaxed) != 0
    }

    /// Whether datagrams that go over the kernel have something with them, or are counted.
    #[inline]
    pub fn rides(&self) -> bool {
        self.rides.load(Relaxed) != 0
    }

    /// Begins anew with another peer, or gives up.
    pub fn reset(&self, open: bool) {
        self.leave();
        // (The last hold on it is given up without the lock.)
        let left = self.lane.lock().take();
        self.laned.store(0, Relaxed);
        drop(left);
        let mut state = self.state.lock();
        *state = State::default();
        if open {
            // What the old peer had sent the kernel has thrown away. (Else a proof that is on its way is still to be known for one.)
            self.token.store(0, Relaxed);
        }
        self.counting.store(0, Relaxed);
        self.offered.store(0, Relaxed);
        self.rides.store(0, Relaxed);
        self.open.store(u32::from(open), Relaxed);
        self.left.store(1, Relaxed);
        self.pause.store(1, Relaxed);
    }

    /// This end leaves its peer, or receives no more. That one may be sending into a ring that nobody receives from yet, and
    /// looks there.
    pub fn leave(&self) {
        if let Some(incoming) = &self.state.lock().incoming {
            incoming.leave();
        }
    }

    /// Whether this is a call that looks. Calls at once may disagree by a few.
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

    /// Whether what is sent goes over a lane.
    #[inline]
    pub fn is_laned(&self) -> bool {
        self.laned.load(Relaxed) != 0
    }

    /// The lane, once what is sent goes there.
    pub fn lane(&self) -> Option<Arc<Lane>> {
        if self.is_laned() { self.lane.lock().clone() } else { None }
    }

    /// Who the socket is.
    pub fn is_of(&self, front: Weak<dyn AsFd + Send + Sync>) {
        self.front.get_or_init(|| front);
    }

    pub fn front(&self) -> Option<Weak<dyn AsFd + Send + Sync>> {
        self.front.get().cloned()
    }

    /// There is something that the sending side may switch to.
    pub fn offer(&self) {
        self.offered.store(1, Relaxed);
    }

    /// There is something to be said with the next datagram, or no more.
    pub fn ride(&self, something: bool) {
        self.rides.store(u32::from(something), Relaxed);
    }

    /// It came to nothing, and is tried again after a while.
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
    /// A line has broken. Whether this side tries again, after a rest that is the longer the more of them have.
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
    /// A datagram goes over the kernel that may not go to the peer.
    pub fn count_anew(&self) {
        if let Some(offer) = &mut self.state.lock().offer {
            offer.uncounted = true;
        }
    }
}

impl State {
    /// One more datagram went over the kernel, with what was to be said or without.
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
