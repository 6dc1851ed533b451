//! A link that leads nowhere.

use crate::link::Link;
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
    /// Segments.
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

impl Link for Sink {
    #[inline]
    fn transmit(&mut self, segment: Segment<Chain>) {
        self.sunk.segments += 1;
        self.sunk.bytes += segment.payload().len() as u64;
        segment.free(Fate::Sent);
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
        sink.transmit(segment);
        let (page, how) = loan.try_take().unwrap();
        assert!(page.is_unique() && !how.copied && !how.dropped);
        assert_eq!(sink.sunk(), Sunk { segments: 1, bytes: len + 10 });
    }
}
