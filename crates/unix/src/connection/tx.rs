//! The state of the sending side: it sends over the kernel first, then into the peer's ring.

use crate::ancillary::said::Said;
use crate::byref::crossing::{Crossing, LONGEST};
use crate::byref::lender::Slots;
use crate::connection::stores::Stores;
use crate::core::Core;
use onecopy_copy::{Hint, Policy};
use onecopy_ring::Producer;
use onecopy_socket::SendFlags;
use onecopy_sync::clock::coarse_ms;
use onecopy_sync::spin::Adaptive;
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// How the sending side sends.
#[derive(Debug)]
pub enum Tx {
    /// Over the kernel.
    Kernel {
        /// Bytes of the stream, or records, sent so far. [`UNKNOWN`] after the death of a process that was
        /// sending.
        sent: u64,
    },
    /// Through the peer's ring.
    Ring(TxRing),
}

/// Nobody knows how much was sent: the direction stays with the kernel.
pub const UNKNOWN: u64 = u64::MAX;

/// A sending side that sends through the peer's ring.
#[derive(Debug)]
pub struct TxRing {
    pub(super) producer: Producer,
    pub(super) spin: Adaptive,
    /// When this side last saw that the peer lives, in coarse milliseconds.
    pub(super) checked: u64,
    /// This end of the channel for descriptors, once it was needed.
    pub(super) channel: Option<Arc<OwnedFd>>,
    /// How many channels were made, by whichever process. The last one is here, or another process has it.
    pub(super) made: u32,
    /// What the receiver was told of the sender's identity.
    pub(super) said: Said,
    /// Where pages that are lent are noted, once some were.
    pub(super) slots: Option<Slots>,
    stores: Stores,
    /// Which loans are copied, as far as that is found out here: once there was a small one.
    comparing: Option<Box<Comparing>>,
}

#[derive(Debug)]
struct Comparing {
    crossing: Crossing,
    /// When its clock began.
    began: Instant,
}

impl Default for Comparing {
    fn default() -> Self {
        Comparing { crossing: Crossing::default(), began: Instant::now() }
    }
}

impl Tx {
    pub fn ring(producer: Producer) -> Tx {
        Tx::ring_with(producer, None)
    }

    /// Sends through the ring. What goes besides bytes goes through `channel`, if that is there already.
    pub fn ring_with(producer: Producer, channel: Option<Arc<OwnedFd>>) -> Tx {
        Tx::Ring(TxRing {
            producer,
            spin: Adaptive::default(),
            checked: coarse_ms(),
            channel,
            made: 0,
            said: Said::default(),
            slots: None,
            stores: Stores::default(),
            comparing: None,
        })
    }
}

impl TxRing {
    /// Lets a test write into the ring what no honest sender does.
    #[cfg(test)]
    pub fn producer(&mut self) -> &mut Producer {
        &mut self.producer
    }

    /// Whether another process has the channel, and this one does not.
    pub(super) fn lacks_channel(&self) -> bool {
        self.made > 0 && self.channel.is_none()
    }

    /// Returns how the next `len` bytes are to be copied into the ring.
    #[inline]
    pub(super) fn hint(&mut self, core: &Core, flags: SendFlags, len: usize) -> Hint {
        self.stores.hint(core, &mut self.producer, flags, len)
    }

    /// Returns whether a loan of `len` bytes, which might be lent, is copied: as it was told ([`Small`](onecopy_chain::notify::zerocopy::Small)), or
    /// as was found out. Who names the stores of copies wants none that nobody asked for.
    #[inline]
    pub(super) fn copies_loan(&mut self, core: &Core, len: usize) -> bool {
        match core.settings().copied_below() {
            Some(below) => len < below as usize,
            None if len > LONGEST || core.settings().policy() != Policy::Auto => false,
            None => {
                let room = self.producer.ring().capacity();
                // What would take a good part of a small ring might not be sent whole where it could be lent.
                if len > room / 8 {
                    return false;
                }
                let Comparing { crossing, began } = &mut **self.comparing.get_or_insert_default();
                let mut looked = false;
                let copies = crossing.copies(len, room, || {
                    looked = true;
                    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
                });
                if looked {
                    core.settings().set_copied_up_to(crossing.copied_up_to());
                }
                copies
            }
        }
    }

    /// Notes that a send ends.
    #[inline]
    pub(super) fn sent(&mut self) {
        self.stores.sent();
    }

    /// Returns how much room wakes a sender, where it is the ring as a whole that is full: a quarter.
    pub(super) fn low_water(&self) -> usize {
        self.producer.ring().capacity() / 4
    }
}
