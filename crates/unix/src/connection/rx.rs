//! The receiving side of a connection: its states, and the ring that it receives from.

use crate::ancillary::channel::Inlet;
use crate::ancillary::pending::Pending;
use crate::connection::gather::Gather;
use crate::connection::received::Rest;
use crate::core::Core;
use crate::doorbell::accounting::Accounting;
use crate::handshake::undecided::{Settled, Strips, Switching, Undecided};
use onecopy_ring::memory::{self, Nonce};
use onecopy_ring::{Consumer, PeerMisbehaved};
use onecopy_sync::atomic::Ordering::Release;
use onecopy_sync::spin::Adaptive;

/// The states of the receiving side.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one an end, and a box would be one more line on each receive")]
pub enum Rx {
    /// The peer is plain: all bytes come over the kernel, for ever.
    Plain,
    /// There are no rings yet that both sides have. All bytes come over the kernel until there are.
    Undecided(Undecided),
    /// The peer has our ring, or will get it, and may switch to it at any byte.
    Switching(Switching),
    /// All further bytes come through the ring.
    Ring(RxRing),
}

/// The receiving side after the peer's switch.
#[derive(Debug)]
pub struct RxRing {
    pub(super) consumer: Consumer,
    /// The doorbells and fillers in the queue of the control socket, and the channel.
    pub(super) doorbells: Accounting,
    pub(super) spin: Adaptive,
    /// What is known of small messages that come at once.
    pub(super) gather: Gather,
    /// The number of the process that has found the channel, of those that share the connection. This process
    /// then has the channel too, or never will.
    pub(super) elsewhere: Option<u32>,
    /// The things that marks have brought and that are not received yet.
    pub(super) pending: Pending,
    /// When this process last checked whether other processes that have borrowed still live, in coarse
    /// milliseconds.
    pub(super) looked: u64,
    /// The rest of a frame that was received in part (stream records only).
    pub(super) rest: Option<Rest>,
}

impl Rx {
    /// Returns the nonce of rings that may come with the next message over the kernel, or `None` if none may.
    pub fn may_bring_rings(&self) -> Option<Nonce> {
        match self {
            Rx::Undecided(undecided) => undecided.looks().then(|| undecided.nonce()),
            Rx::Switching(switching) => (switching.strips() != Strips::No).then(|| switching.nonce()),
            _ => None,
        }
    }

    /// Gives up what is still open: from here on this side attaches and joins nothing. Called before several
    /// processes go on with it, or another one does.
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
            && core.rx_ring().is_none()
        {
            core.set_rx_ring(switching.ring().clone());
        }
    }

    /// Makes a side that receives from the ring of `consumer`.
    pub fn ring(consumer: Consumer) -> Rx {
        Rx::ring_with(consumer, Inlet::default())
    }

    /// Makes a side that receives from the ring of `consumer`, and what comes besides bytes from `inlet`.
    pub fn ring_with(consumer: Consumer, inlet: Inlet) -> Rx {
        Rx::Ring(RxRing {
            consumer,
            spin: Adaptive::default(),
            gather: Gather::default(),
            doorbells: Accounting::over(inlet),
            elsewhere: None,
            pending: Pending::default(),
            looked: 0,
            rest: None,
        })
    }
}

impl RxRing {
    /// Whether nothing is in the ring.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved`]: the sender's position cannot be.
    #[inline]
    pub fn is_empty(&mut self) -> Result<bool, PeerMisbehaved> {
        Ok(self.consumer.available(1)? == 0)
    }

    /// Returns how many bytes were received from the ring.
    #[inline]
    pub fn position(&self) -> u64 {
        self.consumer.position()
    }

    /// Returns the position at which the ring is full if nothing more is received.
    pub fn full_at(&self) -> u64 {
        self.position().saturating_add(self.consumer.ring().capacity() as u64)
    }

    /// Whether views of what lies in the ring are out.
    pub fn is_borrowed(&self) -> bool {
        self.consumer.borrows() > 0
    }

    /// Lets a test look at the accounts, and spoil them.
    #[cfg(test)]
    pub fn doorbells(&mut self) -> &mut Accounting {
        &mut self.doorbells
    }

    /// Tells the sender that nothing more is received from the ring.
    pub fn shut(&self) {
        // No Acquire load depends on this Release: a sender that sees the flag asks the kernel.
        self.consumer.header().info.0.shut.store(memory::SHUT, Release);
    }
}

/// The doorbells of this ring: see [`Accounting`].
impl RxRing {
    /// Does what [`Accounting::settle`] does.
    pub fn settle(&mut self, core: &Core) -> Result<bool, PeerMisbehaved> {
        self.doorbells.settle(core, &mut self.consumer)
    }

    /// Does what [`Accounting::settle_ahead`] does.
    pub(super) fn settle_ahead(&mut self, core: &Core, data: usize) -> Result<usize, PeerMisbehaved> {
        self.doorbells.settle_ahead(core, &mut self.consumer, data)
    }

    /// Does what [`Accounting::unpark`] does.
    #[inline]
    pub fn unpark(&mut self, core: &Core) -> Result<(), PeerMisbehaved> {
        self.doorbells.unpark(core, &mut self.consumer)
    }

    /// Does what [`Accounting::unpark_if_seen`] does.
    #[inline]
    pub fn unpark_if_seen(&mut self, core: &Core) -> Result<(), PeerMisbehaved> {
        self.doorbells.unpark_if_seen(core, &mut self.consumer)
    }

    /// Does what [`Accounting::unpark_now`] does.
    pub fn unpark_now(&mut self, core: &Core) -> Result<(), PeerMisbehaved> {
        self.doorbells.unpark_now(core, &mut self.consumer)
    }

    /// Does what [`Accounting::freed`] does.
    pub fn freed(&mut self, core: &Core) -> Result<(), PeerMisbehaved> {
        self.doorbells.freed(core, &mut self.consumer)
    }

    /// Does what [`Accounting::clear_away`] does.
    pub fn clear_away(&mut self, core: &Core) -> Result<(), PeerMisbehaved> {
        self.doorbells.clear_away(core, &mut self.consumer)
    }
}
