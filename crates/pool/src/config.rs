//! How a pool is to be.

use crate::error::OpenError;

/// Bytes in a page of order 0.
pub(crate) const BASE_LEN: usize = 4096;
/// The largest order: pages of 1 GiB.
pub(crate) const MAX_ORDER: u8 = 18;
/// The most pages that a pool may number: bit 31 of a ring's slot says in which lap it was written.
pub(crate) const MAX_PAGES: u32 = 1 << 30;

/// How a pool is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    pub(crate) order: u8,
    pub(crate) limit: u32,
    pub(crate) ring: u32,
    pub(crate) debug: bool,
    /// Pages go out as runs ([`crate::runs`]). Of a device's memory alone, of whose pages there are no slices.
    pub(crate) runs: bool,
}

impl Default for PoolConfig {
    fn default() -> PoolConfig {
        PoolConfig::new()
    }
}

impl PoolConfig {
    /// The most that [`PoolConfig::ring`] takes, as the kernel's (page_pool_init(): 32768, else E2BIG).
    pub const MAX_RING: u32 = 32768;

    /// Pages of 4096 bytes, at most 16384 of them (64 MiB), a ring of 1024.
    pub fn new() -> PoolConfig {
        PoolConfig { order: 0, limit: 16384, ring: 1024, debug: false, runs: false }
    }

    /// Pages of 4096 << `order` bytes.
    #[must_use]
    pub fn order(mut self, order: u8) -> PoolConfig {
        self.order = order;
        self
    }

    /// At most so many pages, in use or kept. Beyond it there are none ([`AllocError::Exhausted`]).
    ///
    /// [`AllocError::Exhausted`]: crate::AllocError::Exhausted
    #[must_use]
    pub fn limit(mut self, pages: u32) -> PoolConfig {
        self.limit = pages;
        self
    }

    /// Room for so many returned pages in the ring (rounded up to a power of two); what does not fit goes back to
    /// the provider.
    #[must_use]
    pub fn ring(mut self, pages: u32) -> PoolConfig {
        self.ring = pages;
        self
    }

    /// Debug mode: each page keeps the history of its last uses; a page that comes home is filled with a pattern, which
    /// is looked at before it goes out of the ring again (not where the ring was full or the pool is shut down: the page is
    /// then the provider's, who may write it); a reference given back twice is found out. Everything goes the long way
    /// then (no cache), so this is for tests and for hunting, and costs the other pools nothing.
    #[must_use]
    pub fn debug(mut self, debug: bool) -> PoolConfig {
        self.debug = debug;
        self
    }

    /// Pages go out as runs, out of no ring.
    pub(crate) fn runs(self) -> PoolConfig {
        PoolConfig { runs: true, ring: if self.debug { self.ring } else { 1 }, ..self }
    }

    /// Bytes in a page.
    pub fn page_len(&self) -> u32 {
        (BASE_LEN << self.order.min(MAX_ORDER)) as u32
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        if self.order > MAX_ORDER {
            return Err(OpenError::Order(self.order));
        }
        if self.limit == 0 || self.limit > MAX_PAGES {
            return Err(OpenError::Limit(self.limit));
        }
        if self.ring == 0 || self.ring > PoolConfig::MAX_RING {
            return Err(OpenError::Ring(self.ring));
        }
        Ok(())
    }
}
