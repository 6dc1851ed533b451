//! A link that leads nowhere.

use crate::capabilities::{Capabilities, Medium};
use crate::link::Link;
use crate::packet::Packet;
use onecopy_chain::Chain;
use onecopy_chain::notify::{Fate, Segment};

/// Frees each segment as it is transmitted, untouched: as the kernel's dummy device does (drivers/net/dummy.c), and for the
/// same use, to see what everything before the link costs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sink {
    sunk: Sunk,
}

/// What a [`Sink`] took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sunk {
    /// Packets, and segments without headers.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Sink {
    /// A sink that has taken nothing yet.
    pub fn new() -> Sink {
        Sink::default()
    }

    /// What it took so far.
    pub fn sunk(&self) -> Sunk {
        self.sunk
    }
}

impl Sink {
    /// Takes a segment that has no headers.
    #[inline]
    pub fn take(&mut self, segment: Segment<Chain>) {
        self.sunk.segments += 1;
        self.sunk.bytes += segment.payload().len() as u64;
        segment.free(Fate::Sent);
    }
}

impl Link for Sink {
    fn capabilities(&self) -> Capabilities {
        Capabilities::all(Medium::Ip, u32::MAX)
    }

    #[inline]
    fn room(&self, _: u64) -> usize {
        usize::MAX
    }

    #[inline]
    fn transmit(&mut self, _: u64, packet: Packet) {
        self.sunk.bytes += packet.head().len() as u64;
        self.take(packet.into_parts().1);
    }

    #[inline]
    fn receive(&mut self, _: u64) -> Option<Packet> {
        None
    }

    #[inline]
    fn deadline(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_chain::Fragment;
    use onecopy_chain::notify::{Config, Lender};
    use onecopy_pool::{PagePool, PoolConfig, provider::Heap};

    #[test]
    fn what_sinks_is_free() {
        let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
        let mut lender = Lender::new(Config::default()).unwrap();
        let mut sink = Sink::new();
        let mut segment = Segment::default();
        let page = pool.alloc().unwrap();
        let len = page.len() as u64;
        let loan = lender.send(&mut segment, page, 0).unwrap();
        segment.payload_mut().append(Fragment::new(pool.alloc().unwrap(), 0, 10).unwrap()).unwrap();
        sink.transmit(0, Packet::from(segment));
        let (page, how) = loan.try_take().unwrap();
        assert!(page.is_unique() && !how.copied && !how.dropped);
        assert_eq!(sink.sunk(), Sunk { segments: 1, bytes: len + 10 });
        sink.transmit(0, Packet::new(&[0; 54], Segment::default()).unwrap());
        assert_eq!(sink.sunk(), Sunk { segments: 2, bytes: len + 64 });
        assert_eq!((sink.receive(0).is_none(), sink.deadline(), sink.room(0)), (true, None, usize::MAX));
    }
}
