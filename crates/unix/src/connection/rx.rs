//! The receiving side: data first, then the error, then the end; and sleeping on the control socket.

use crate::ancillary::channel::Inlet;
use crate::ancillary::pending::Pending;
use crate::connection::core::Core;
use crate::connection::received::Rest;
use crate::handshake::undecided::{Settled, Strips, Switching, Undecided};
use onecopy_ring::Consumer;
use onecopy_ring::memory::Nonce;
use onecopy_sync::spin::Adaptive;
use std::time::{Duration, Instant};

/// What the receiving side is at.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one an end, and a box would be one more line on each receive")]
pub enum Rx {
    /// The peer is plain: all bytes come over the kernel, for ever.
    Plain,
    /// There are no rings yet that both sides have: all bytes come over the kernel, until there are.
    Undecided(Undecided),
    /// The peer has our ring, or will get it, and may switch to it at any byte.
    Switching(Switching),
    /// All further bytes come through the ring.
    Ring(RxRing),
}

/// After the peer's switch.
#[derive(Debug)]
pub struct RxRing {
    pub consumer: Consumer,
    /// Doorbells that were on their way when they should have been taken: to be taken when they come. Negative where doorbells
    /// were taken in the place of the channel's byte, which is still to be met.
    pub doorbell_debt: isize,
    pub(super) spin: Adaptive,
    /// Since when bytes lie in the queue that only a filler under way explains.
    pub puzzled: Option<Instant>,
    /// Where descriptors come from.
    pub inlet: Inlet,
    /// A process that shares the end has met it: that is its number. (This one then has, too, or never will.)
    pub elsewhere: Option<u32>,
    /// What marks have brought.
    pub pending: Pending,
    /// A filler was taken where a doorbell was expected that is still on its way (seqpacket sockets only).
    pub stray: bool,
    /// Bytes in the queue that a process left which was killed while it received: taken instead of being called a lie.
    pub forgiven: usize,
    /// Room was made that the sender will see when the lock is given up.
    pub freed: bool,
    /// When it was last looked whether other processes live that have borrowed, in coarse milliseconds.
    pub looked: u64,
    /// What is left of a frame of which a part was received (stream records only).
    pub rest: Option<Rest>,
}

/// More doorbells than this on their way at once: one for each sender that was killed between arming and ringing.
pub const MAX_DOORBELL_DEBT: isize = 64;
/// How long a filler may be under way before it is a lie. It is for microseconds, unless its sender has no CPU or is stopped
/// half-way, which is no lie: so this is longer than a machine with too much to do keeps anybody waiting. A peer that does mean
/// ill makes a poll(2) that finds nothing of it, for as long; his doorbells for nothing do the same.
pub const MAX_PARKING: Duration = Duration::from_secs(10);

impl Rx {
    /// With which rings are labelled that may come with the next message over the kernel, if any may.
    pub fn may_bring_rings(&self) -> Option<Nonce> {
        match self {
            Rx::Undecided(undecided) => undecided.looks().then(|| undecided.nonce()),
            Rx::Switching(switching) => (switching.strips() != Strips::No).then(|| switching.nonce()),
            _ => None,
        }
    }

    /// Before several processes go on with it, or another one: attaches and joins nothing any more.
    pub fn settle(&mut self, core: &Core) {
        *self = match std::mem::replace(self, Rx::Plain) {
            Rx::Undecided(undecided) => match undecided.settled() {
                Settled::Plain => Rx::Plain,
                Settled::Undecided(undecided) => Rx::Undecided(undecided),
                Settled::Switching(switching) => Rx::Switching(switching),
            },
            other => other,
        };
        if let Rx::Switching(switching) = self
            && core.rx_ring.get().is_none()
        {
            core.set_rx_ring(switching.ring().clone());
        }
    }

    pub fn ring(consumer: Consumer) -> Rx {
        Rx::ring_with(consumer, Inlet::default())
    }

    /// What comes besides bytes does so through `inlet`.
    pub fn ring_with(consumer: Consumer, inlet: Inlet) -> Rx {
        Rx::Ring(RxRing {
            consumer,
            doorbell_debt: 0,
            spin: Adaptive::default(),
            puzzled: None,
            inlet,
            elsewhere: None,
            pending: Pending::default(),
            stray: false,
            forgiven: 0,
            freed: false,
            looked: 0,
            rest: None,
        })
    }
}
