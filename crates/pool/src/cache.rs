//! The owner's cache: the pages that went last come first, and no atomic instruction is needed.

use crate::page::Tagged;
use onecopy_sync::atomic::{AtomicU64, Ordering};
use std::cell::Cell;

/// Pages in the cache, as the kernel's PP_ALLOC_CACHE_SIZE.
pub const CACHE: usize = 128;
/// Pages that are fetched at once from the ring or asked of the provider, as the kernel's PP_ALLOC_CACHE_REFILL.
pub const BULK: usize = 64;

/// Bits of [`Cache::word`] that count the pages in it.
const COUNT: u64 = 0xff;
/// One page taken out by the fast way: one less in, one more in the upper part.
const TAKEN: u64 = (1 << 8) - 1;
const _: () = assert!(CACHE <= COUNT as usize && CACHE.is_power_of_two());

/// Only the owner touches it (the counters may be read by anybody): all methods but `counts` are for him alone.
#[cfg_attr(not(loom), repr(align(128)))]
pub(crate) struct Cache {
    /// Pages in it (low byte), and above that how many were ever taken out: the one count that the fast way needs
    /// costs it nothing. Atomic for those who read the statistics; the owner loads and stores.
    word: AtomicU64,
    /// How many it may hold: [`CACHE`], in debug mode none.
    limit: u64,
    pages: [Cell<Option<Tagged>>; CACHE],
    /// Pages that were put in from ring or provider, and those that were taken out to be released. With them and
    /// `word` the number of pages that were recycled into the cache is known.
    stocked: AtomicU64,
    flushed: AtomicU64,
}

/// Adds to a counter that one thread alone writes.
#[inline]
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl Cache {
    pub fn new(limit: usize) -> Cache {
        assert!(limit <= CACHE);
        Cache {
            word: AtomicU64::new(0),
            limit: limit as u64,
            pages: [const { Cell::new(None) }; CACHE],
            stocked: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
        }
    }

    /// The page that came last.
    #[inline]
    pub fn pop(&self) -> Option<Tagged> {
        let word = self.word.load(Ordering::Relaxed);
        let count = word & COUNT;
        if count == 0 {
            return None;
        }
        self.word.store(word + TAKEN, Ordering::Relaxed);
        self.pages[(count - 1) as usize % CACHE].get()
    }

    /// Keeps a page. Whether there was room.
    #[inline]
    pub fn push(&self, page: Tagged) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        let count = word & COUNT;
        if count >= self.limit {
            return false;
        }
        self.pages[count as usize % CACHE].set(Some(page));
        self.word.store(word + 1, Ordering::Relaxed);
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
        let word = self.word.load(Ordering::Relaxed);
        let page = self.pop()?;
        self.word.store(word - 1, Ordering::Relaxed);
        bump(&self.flushed, 1);
        Some(page)
    }

    /// How many were taken out by the fast way, how many were recycled into it, and how many are in.
    pub fn counts(&self) -> (u64, u64, u64) {
        let word = self.word.load(Ordering::Relaxed);
        let (fast, count) = (word >> 8, word & COUNT);
        let out = fast + count + self.flushed.load(Ordering::Relaxed);
        (fast, out.saturating_sub(self.stocked.load(Ordering::Relaxed)), count)
    }
}
