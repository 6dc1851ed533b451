//! How pages that were sent by reference come back: one bit for each, set by the receiver when it is done.
//!
//! A reference names a slot of the sender's own table. The receiver sets the slot's bit. The sender collects
//! bits when it wants pages, and asks nobody in between.
//!
//! - Bits can be set in any order and without a system call.
//! - The line has a bit for every slot that can be lent at once.
//! - A bit for a slot that is not lent is misbehaviour, and is found at once.
//!
//! A sender that sleeps for pages says so first, and the receiver wakes it: store, SeqCst fence, load, on
//! both sides.

use crate::{Header, PeerMisbehaved};
use onecopy_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

const WORDS: usize = if cfg!(loom) { 1 } else { 8 };

/// Most pages that can be lent at once over one direction of a stream.
pub const SLOTS: usize = WORDS * 64;

/// What the receiver of references tells their sender.
#[derive(Debug, Default)]
#[repr(C)]
pub struct LendLine {
    returned: [AtomicU64; WORDS],
    /// 1 while the sender sleeps for pages. Written by the sender. A futex.
    asleep: AtomicU32,
    /// 1 once the receiver has looked into a page. A page that is in its caches is then worth more than
    /// another.
    looked: AtomicU32,
}

impl Header {
    /// Receiver: gives back `slot` (less than [`SLOTS`]). Returns whether the sender sleeps for pages and
    /// must be woken ([`Header::wake_lender`]).
    #[inline]
    pub fn give_back_slot(&self, slot: u32) -> bool {
        let line = &self.lend.0;
        let word = &line.returned[slot as usize / 64 % WORDS];
        // Release pairs with the Acquire swap in `collect`: our reads of the page are over.
        word.fetch_or(1 << (slot % 64), Ordering::Release);
        // Pairs with the fence in `announce_sleep_for_slots`: either the sender sees the bit, or we see that
        // it sleeps. On x86-64 the locked instruction above is that fence.
        #[cfg(any(not(target_arch = "x86_64"), loom))]
        fence(Ordering::SeqCst);
        line.asleep.load(Ordering::Relaxed) != 0
    }

    /// Receiver: notes that it looked into a page.
    #[inline]
    pub fn look_at_lent(&self) {
        let looked = &self.lend.0.looked;
        // Relaxed, here and in `looks_at_lent`: this is a hint.
        if looked.load(Ordering::Relaxed) == 0 {
            looked.store(1, Ordering::Relaxed);
        }
    }

    /// Sender: returns whether the receiver looks into pages.
    #[inline]
    pub fn looks_at_lent(&self) -> bool {
        self.lend.0.looked.load(Ordering::Relaxed) != 0
    }

    /// Receiver: wakes a sender that sleeps for pages.
    #[cold]
    pub fn wake_lender(&self) {
        let asleep = &self.lend.0.asleep;
        if asleep.swap(0, Ordering::Relaxed) != 0 {
            #[cfg(not(loom))]
            onecopy_sys::futex::wake(asleep.as_raw(), 1);
        }
    }

    /// Sender: collects the slots that came back since the last time, one by one, and returns their number.
    /// `lent` says whether a slot is lent, and marks it as free.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Returned`] for a slot that is not lent. The slots before it are collected.
    pub fn collect(&self, mut lent: impl FnMut(u32) -> bool) -> Result<usize, PeerMisbehaved> {
        let mut count = 0;
        for (i, word) in self.lend.0.returned.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Acquire pairs with the Release in `give_back_slot`.
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                let slot = i as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                if !lent(slot) {
                    return Err(PeerMisbehaved::Returned(slot));
                }
                count += 1;
            }
        }
        Ok(count)
    }

    /// Returns whether anything came back since the last `collect`.
    pub fn has_returned(&self) -> bool {
        self.lend.0.returned.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Sender: announces that it is about to sleep for pages. It must then collect once more before it
    /// sleeps.
    pub fn announce_sleep_for_slots(&self) {
        self.lend.0.asleep.store(1, Ordering::Relaxed);
        // Pairs with the fence in `give_back_slot`.
        fence(Ordering::SeqCst);
    }

    /// Sender: sleeps until something comes back, at most `limit`. It may also wake for no reason.
    #[cfg(not(loom))]
    pub fn sleep_for_slots(&self, limit: std::time::Duration) {
        let _ = onecopy_sys::futex::wait(self.lend.0.asleep.as_raw(), 1, Some(limit));
    }

    /// Sender: withdraws the announcement that it sleeps.
    pub fn awake_for_slots(&self) {
        self.lend.0.asleep.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn slots_come_home_in_any_order_and_once() {
        let header = Header::default();
        let mut lent = [true; SLOTS];
        for slot in [511, 0, 64, 63, 200] {
            assert!(!header.give_back_slot(slot));
        }
        assert!(header.has_returned());
        let mut home = Vec::new();
        let n = header.collect(|slot| {
            home.push(slot);
            std::mem::replace(&mut lent[slot as usize], false)
        });
        assert_eq!(n, Ok(5));
        assert_eq!(home, [0, 63, 64, 200, 511]);
        assert_eq!(header.collect(|_| true), Ok(0));
        header.give_back_slot(64);
        assert_eq!(header.collect(|slot| lent[slot as usize]), Err(PeerMisbehaved::Returned(64)), "twice");
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;

    #[test]
    fn no_page_is_slept_over() {
        loom::model(|| {
            let header = Arc::new(Header::default());
            let h = header.clone();
            let receiver = loom::thread::spawn(move || h.give_back_slot(3));
            header.announce_sleep_for_slots();
            let collected = header.collect(|slot| slot == 3).unwrap();
            let woken = receiver.join().unwrap();
            assert!(collected == 1 || woken, "the sender would sleep with a page to be had");
        });
    }
}
