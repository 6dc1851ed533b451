//! Heads of chains that are finished, until their context's owner comes for them.

use onecopy_sync::Word;
use onecopy_sync::atomic::{AtomicU32, Ordering};

/// Nothing was posted.
const EMPTY: u32 = 0;
/// Nothing was posted, and the owner sleeps on the word.
const WAITER: u32 = 1;
/// From here on: `item + FIRST`.
const FIRST: u32 = 2;
/// More items cannot be told apart.
pub(crate) const MAX_ITEMS: u32 = u32::MAX - FIRST;

/// A stack that any thread pushes on (the kernel's llist of task work) and one takes as a whole, so that no item can come
/// back while somebody still looks at it (no ABA).
#[derive(Default)]
pub(crate) struct Posted(Word);

impl Posted {
    /// Puts `item` on the stack, and wakes the owner where it sleeps. `link` is the item's own; the item must not be on the
    /// stack already.
    pub(crate) fn push(&self, item: u32, link: &AtomicU32) {
        let mut there = self.0.load(Ordering::Relaxed);
        loop {
            // Relaxed: published by the exchange.
            link.store(if there < FIRST { EMPTY } else { there }, Ordering::Relaxed);
            // Release publishes the link and what the item has to say; pairs with the Acquire swap in `take`. (Pushes
            // before this one are read by it as well: an exchange continues the release sequence that it reads.)
            match self.0.compare_exchange(there, item + FIRST, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => there = now,
            }
        }
        if there == WAITER {
            self.0.wake(1);
        }
    }

    /// Takes all that was posted: the newest item, whose link leads to the older ones.
    pub(crate) fn take(&self) -> Option<u32> {
        if self.0.load(Ordering::Relaxed) < FIRST {
            return None;
        }
        // Acquire pairs with the Release exchanges in `push`.
        item(self.0.swap(EMPTY, Ordering::Acquire))
    }

    /// Sleeps until something is posted.
    pub(crate) fn wait(&self) {
        loop {
            // Relaxed: `take` acquires what was posted.
            match self.0.load(Ordering::Relaxed) {
                EMPTY => {
                    // If it fails, something was posted.
                    let _ = self.0.compare_exchange(EMPTY, WAITER, Ordering::Relaxed, Ordering::Relaxed);
                }
                WAITER => drop(self.0.wait(WAITER, None)),
                _ => return,
            }
        }
    }
}

/// The item that a word or a link names.
pub(crate) fn item(link: u32) -> Option<u32> {
    link.checked_sub(FIRST)
}
