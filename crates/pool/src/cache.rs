//! The owner's cache: the pages that went last come first, and no atomic instruction is needed.

use crate::page::Tagged;
use onecopy_sync::atomic::{AtomicU64, Ordering};
use std::cell::Cell;

/// Pages in the cache, as the kernel's PP_ALLOC_CACHE_SIZE.
pub const CACHE: usize = 128;
/// Pages that are fetched at once from the ring or asked of the provider, as the kernel's PP_ALLOC_CACHE_REFILL.
pub const BULK: usize = 64;

/// Only the owner touches it (the counters may be read by anybody): all methods but `counts` are for him alone.
#[cfg_attr(not(loom), repr(align(128)))]
pub(crate) struct Cache {
    /// How many pages were ever put in and taken out; the difference is how many are in. Two counts, because a store
    /// that is loaded again at once takes some cycles to get there: so putting in does not wait for the taking out
    /// before it, nor the other way round, and these are the statistics, too. (Atomic for those who read them; the
    /// owner loads and stores.)
    put: AtomicU64,
    taken: AtomicU64,
    /// Invariant: the first `put - taken` are pages with one reference, which is the cache's.
    pages: [Cell<Tagged>; CACHE],
    /// Of those that were put in, the ones that came from ring or provider; of those that were taken out, the ones that
    /// were released.
    stocked: AtomicU64,
    flushed: AtomicU64,
}

const _: () = assert!(CACHE.is_power_of_two());

/// Adds to a counter that one thread alone writes.
#[inline]
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl Cache {
    pub fn new() -> Cache {
        Cache {
            put: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            pages: [const { Cell::new(Tagged::NOWHERE) }; CACHE],
            stocked: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
        }
    }

    /// The page that came last.
    #[inline]
    pub fn pop(&self) -> Option<Tagged> {
        let (put, taken) = (self.put.load(Ordering::Relaxed), self.taken.load(Ordering::Relaxed));
        if put == taken {
            return None;
        }
        self.taken.store(taken + 1, Ordering::Relaxed);
        Some(self.pages[(put - taken - 1) as usize % CACHE].get())
    }

    /// Keeps a page. Whether there was room.
    #[inline]
    pub fn push(&self, page: Tagged) -> bool {
        let (put, taken) = (self.put.load(Ordering::Relaxed), self.taken.load(Ordering::Relaxed));
        if put - taken >= CACHE as u64 {
            return false;
        }
        self.pages[(put - taken) as usize % CACHE].set(page);
        self.put.store(put + 1, Ordering::Relaxed);
        true
    }

    /// Keeps a page that comes from ring or provider. Whether there was room.
    pub fn stock(&self, page: Tagged) -> bool {
        let kept = self.push(page);
        bump(&self.stocked, u64::from(kept));
        kept
    }

    /// A page to be released.
    pub fn flush(&self) -> Option<Tagged> {
        let page = self.pop();
        bump(&self.flushed, u64::from(page.is_some()));
        page
    }

    /// How many were taken out by the fast way, how many were recycled into it, and how many are in.
    pub fn counts(&self) -> (u64, u64, u64) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // What came later is read first, so that another thread than the owner sees no difference below nothing.
        let (flushed, taken, stocked) = (of(&self.flushed), of(&self.taken), of(&self.stocked));
        let put = of(&self.put);
        (taken.saturating_sub(flushed), put.saturating_sub(stocked), put.saturating_sub(taken))
    }
}
