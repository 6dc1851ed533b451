//! What a pool has done, under the kernel's names (struct page_pool_stats; Documentation/networking/page_pool.rst).

/// Where pages came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocStats {
    /// Out of the cache.
    pub fast: u64,
    /// From the provider, pages of order 0.
    pub slow: u64,
    /// From the provider, pages of a higher order.
    pub slow_high_order: u64,
    /// Times that the ring was empty, so that the provider had to be asked.
    pub empty: u64,
    /// Times that the cache was refilled from the ring.
    pub refill: u64,
    /// Pages out of the ring that could not be used. (The kernel's are on the wrong NUMA node; ours were damaged
    /// while they were free.)
    pub waive: u64,
}

/// Where pages went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecycleStats {
    /// Into the cache.
    pub cached: u64,
    /// Not into the cache, which was full.
    pub cache_full: u64,
    /// Into the ring.
    pub ring: u64,
    /// To the provider, because the ring was full.
    pub ring_full: u64,
    /// Out of the pool, because somebody still held the page when its last reference went. (Where the last two
    /// references go at the same moment, the page leaves uncounted: nobody may touch the count behind that.)
    pub released_refcnt: u64,
}

/// What should not have happened. (The kernel has no names for these.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TroubleStats {
    /// Times that there was no page because the limit was reached.
    pub exhausted: u64,
    /// Times that the provider failed, before or after it had given some pages.
    pub provider_failed: u64,
    /// Page numbers that the provider must not have given.
    pub provider_lied: u64,
    /// Plain references that were refused: of another pool, or returned twice.
    pub refused: u64,
    /// Debug mode: pages that were written while they were free.
    pub damaged: u64,
}

/// All of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Where pages came from.
    pub alloc: AllocStats,
    /// Where pages went.
    pub recycle: RecycleStats,
    /// What should not have happened.
    pub trouble: TroubleStats,
    /// Pages that the provider has given and not got back: in use, in the cache or in the ring.
    pub in_flight: u64,
    /// Of those, the ones in the cache.
    pub in_cache: u64,
    /// Of those, the ones in the ring.
    pub in_ring: u64,
}
