//! The receiving side: data first, then the error, then the end; and sleeping on the control socket.

use crate::ancillary::channel::Inlet;
use crate::ancillary::pending::Pending;
use crate::connection::core::Core;
use crate::connection::received::Rest;
use crate::doorbell::accounting::Accounting;
use crate::handshake::undecided::{Settled, Strips, Switching, Undecided};
use onecopy_ring::memory::Nonce;
use onecopy_ring::{Consumer, PeerMisbehaved};
use onecopy_sync::spin::Adaptive;

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
    /// Doorbells and fillers in the queue of the control socket, and the channel.
    pub doorbells: Accounting,
    pub(super) spin: Adaptive,
    /// A process that shares the connection has found the channel: that is its number. This one then has, too, or never will.
    pub elsewhere: Option<u32>,
    /// What marks have brought.
    pub pending: Pending,
    /// When it was last looked whether other processes live that have borrowed, in coarse milliseconds.
    pub looked: u64,
    /// What is left of a frame of which a part was received (stream records only).
    pub rest: Option<Rest>,
}

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
            spin: Adaptive::default(),
            doorbells: Accounting::over(inlet),
            elsewhere: None,
            pending: Pending::default(),
            looked: 0,
            rest: None,
        })
    }
}

/// The doorbells of this ring: see [`Accounting`].
impl RxRing {
    /// As [`Accounting::settle`].
    pub fn settle(&mut self, core: &Core) -> Result<bool, PeerMisbehaved> {
        self.doorbells.settle(core, &mut self.consumer)
    }

    /// As [`Accounting::settle_ahead`].
    pub fn settle_ahead(&mut self, core: &Core, data: usize) -> Result<usize, PeerMisbehaved> {
        self.doorbells.settle_ahead(core, &mut self.consumer, data)
    }

    /// As [`Accounting::unpark`].
    #[inline]
    pub fn unpark(&mut self, core: &Core) -> Result<(), PeerMisbehaved> {
        self.doorbells.unpark(core, &mut self.consumer)
    }

    /// As [`Accounting::unpark_if_seen`].
    #[inline]
    pub fn unpark_if_seen(&mut self, core: &Core) -> Result<(), PeerMisbehaved> {
        self.doorbells.unpark_if_seen(core, &mut self.consumer)
    }

    /// As [`Accounting::unpark_now`].
    pub fn unpark_now(&mut self, core: &Core) -> Result<(), PeerMisbehaved> {
        self.doorbells.unpark_now(core, &mut self.consumer)
    }

    /// As [`Accounting::freed`].
    pub fn freed(&mut self, core: &Core) -> Result<(), PeerMisbehaved> {
        self.doorbells.freed(core, &mut self.consumer)
    }

    /// As [`Accounting::clear_away`].
    pub fn clear_away(&mut self, core: &Core) -> Result<(), PeerMisbehaved> {
        self.doorbells.clear_away(core, &mut self.consumer)
    }
}
