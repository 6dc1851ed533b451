//! The sending side: straight into the peer's ring, whole sends one after the other, and sleeping for room.

use crate::ancillary::said::Said;
use crate::byref::lender::Slots;
use onecopy_ring::Producer;
use onecopy_sync::clock::coarse_ms;
use onecopy_sync::spin::Adaptive;
use rustix::fd::OwnedFd;
use std::sync::Arc;

/// What the sending side is at.
#[derive(Debug)]
pub enum Tx {
    /// Over the kernel.
    Kernel {
        /// Bytes of the stream, or records, sent so far; [`UNKNOWN`] after the death of a process that was sending.
        sent: u64,
    },
    /// Through the peer's ring.
    Ring(TxRing),
}

/// It is not known how much was sent: the direction stays with the kernel.
pub const UNKNOWN: u64 = u64::MAX;

/// Through the peer's ring.
#[derive(Debug)]
pub struct TxRing {
    pub producer: Producer,
    pub(super) spin: Adaptive,
    /// When it was last seen that the peer lives, in coarse milliseconds.
    pub(super) checked: u64,
    /// This end of the channel for descriptors, once it was needed.
    pub channel: Option<Arc<OwnedFd>>,
    /// How many of them were made, by whichever process. The last one is here, or another process has it.
    pub made: u32,
    /// What the receiver was told of who sends.
    pub said: Said,
    /// Where pages are put that are lent, once some were.
    pub slots: Option<Slots>,
}

impl Tx {
    pub fn ring(producer: Producer) -> Tx {
        Tx::ring_with(producer, None)
    }

    /// What goes besides bytes does so through `channel`, if that is there already.
    pub fn ring_with(producer: Producer, channel: Option<Arc<OwnedFd>>) -> Tx {
        Tx::Ring(TxRing {
            producer,
            spin: Adaptive::default(),
            checked: coarse_ms(),
            channel,
            made: 0,
            said: Said::default(),
            slots: None,
        })
    }
}

impl TxRing {
    /// So many channels were made: what this process has is the last one, or none any more.
    pub fn learn_channel(&mut self, made: u32) {
        if self.made != made {
            (self.channel, self.made) = (None, made);
        }
    }

    /// It was given the channel that was made as number `made`, if there is one.
    pub fn has_channel(&mut self, channel: Option<OwnedFd>, made: u32) {
        if channel.is_some() {
            (self.channel, self.made) = (channel.map(Arc::new), made);
        }
    }

    /// Whether another process has the channel, and this one not.
    pub fn lacks_channel(&self) -> bool {
        self.made > 0 && self.channel.is_none()
    }

    /// Room that wakes a sender for the ring as a whole: a quarter.
    pub(super) fn low_water(&self) -> usize {
        self.producer.ring().capacity() / 4
    }
}
