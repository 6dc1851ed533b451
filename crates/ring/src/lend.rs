//! How pages that were sent by reference come back: a bit for each, set by who is done with it.
//!
//! A reference names a slot of the sender's own table. Its receiver sets the slot's bit; the sender collects bits
//! when it wants pages, and asks nobody meanwhile. A bit can be set in any order and without a system call, the
//! line has room for all that may ever come back at once, and a slot that is not lent is a lie that shows at once.
//! Who sleeps for pages says so first, and is woken: store, SeqCst fence, load, on both sides.

use crate::{Header, PeerMisbehaved};
use onecopy_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

const WORDS: usize = if cfg!(loom) { 1 } else { 8 };

/// Pages that may be lent at once over one direction of a stream.
pub const SLOTS: usize = WORDS * 64;

/// What the receiver of references tells their sender.
#[derive(Debug, Default)]
#[repr(C)]
pub struct LendLine {
    returned: [AtomicU64; WORDS],
    /// Written by the sender: 1 while it sleeps for pages. A futex.
    asleep: AtomicU32,
    /// 1 once the receiver has looked into a page, so that one that lies in its caches is worth more than another.
    looked: AtomicU32,
}

impl Header {
    /// Receiver: done with what lies in `slot` (less than [`SLOTS`]). Returns whether the sender sleeps for pages, and
    /// must be woken ([`Header::wake_lender`]).
    #[inline]
    pub fn give_back_slot(&self, slot: u32) -> bool {
        let line = &self.lend.0;
        let word = &line.returned[slot as usize / 64 % WORDS];
        // Release pairs with the Acquire swap in `collect`: our reads of the page are over.
        word.fetch_or(1 << (slot % 64), Ordering::Release);
        // Pairs with the fence in `sleep_for_slots`: either the sender sees the bit, or we see that it sleeps. (On
        // x86-64 the locked instruction before is that fence.)
        #[cfg(any(not(target_arch = "x86_64"), loom))]
        fence(Ordering::SeqCst);
        line.asleep.load(Ordering::Relaxed) != 0
    }

    /// Receiver: a page was looked into.
    #[inline]
    pub fn look_at_lent(&self) {
        let looked = &self.lend.0.looked;
        // Relaxed, here and there: a hint.
        if looked.load(Ordering::Relaxed) == 0 {
            looked.store(1, Ordering::Relaxed);
        }
    }

    /// Sender: whether the receiver looks into pages.
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

    /// Sender: what came back since the last time, slot by slot. `lent` says whether a slot is lent, and takes it
    /// home.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Returned`] for a slot that is not lent; those before it have come home.
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

    /// Whether anything came back since the last `collect`.
    pub fn has_returned(&self) -> bool {
        self.lend.0.returned.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Sender: says that it is about to sleep for pages. It must then collect once more before it does.
    pub fn announce_sleep_for_slots(&self) {
        self.lend.0.asleep.store(1, Ordering::Relaxed);
        // Pairs with the fence in `give_back_slot`.
        fence(Ordering::SeqCst);
    }

    /// Sender: sleeps until something comes back, at most `limit`. Wakes for nothing now and then.
    #[cfg(not(loom))]
    pub fn sleep_for_slots(&self, limit: std::time::Duration) {
        let _ = onecopy_sys::futex::wait(self.lend.0.asleep.as_raw(), 1, Some(limit));
    }

    /// Sender: does not sleep (any more).
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
