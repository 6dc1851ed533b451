//! The ring through which pages come home: any thread puts in, the owner takes out.
//!
//! The kernel has a ptr_ring with a producer lock here. A lock whose holder can be preempted is not for user space, so
//! producers claim a slot with one compare-and-swap and then fill it. Only what `head` has passed is claimed again,
//! so slots are never cleared: bit 31 of a slot says whether it was filled in this lap, and the consumer writes no
//! line of the producers'.

use onecopy_sync::atomic::{AtomicU32, AtomicU64, Ordering, spin_loop};

/// In `tail`: nothing is accepted any more.
const CLOSED: u64 = 1 << 63;
/// In a slot: the lap's mark.
const LAP: u32 = 1 << 31;

/// Two cache lines: what the prefetcher of neighbouring lines fetches together.
#[cfg_attr(not(loom), repr(align(128)))]
struct Apart<T>(T);

/// What became of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Push {
    /// It is in the ring: the caller may not touch it, nor the ring, any more.
    Done,
    /// There was no room.
    Full,
    /// The ring is closed.
    Closed,
}

pub(crate) struct Ring {
    /// Next slot to claim, and [`CLOSED`]. Counts since the beginning, never wrapped: all pages that went through.
    tail: Apart<AtomicU64>,
    /// Next slot to take from; the owner alone writes it.
    head: Apart<AtomicU64>,
    slots: Box<[AtomicU32]>,
    /// log2 of the number of slots.
    shift: u32,
}

impl Ring {
    /// With room for at least `capacity` (at most 2^30) pages.
    pub fn new(capacity: u32) -> Ring {
        let capacity = capacity.next_power_of_two();
        Ring {
            tail: Apart(AtomicU64::new(0)),
            head: Apart(AtomicU64::new(0)),
            slots: (0..capacity).map(|_| AtomicU32::new(0)).collect(),
            shift: capacity.trailing_zeros(),
        }
    }

    /// The mark of position `at`: set in the first lap (slots begin as 0), clear in the second, and so on.
    #[inline]
    fn lap(&self, at: u64) -> u32 {
        if (at >> self.shift) & 1 == 0 { LAP } else { 0 }
    }

    #[inline]
    fn slot(&self, at: u64) -> &AtomicU32 {
        &self.slots[at as usize & (self.slots.len() - 1)]
    }

    /// Puts `index` (below 2^31) in.
    ///
    /// # Safety
    ///
    /// `ring` is valid up to the moment that the page is in. (Behind it the owner may free the ring: hence no `&self`.)
    #[inline]
    pub unsafe fn push(ring: *const Ring, index: u32) -> Push {
        // SAFETY: as the caller says; nothing is touched behind the store into the slot.
        let this = unsafe { &*ring };
        let mut tail = this.tail.0.load(Ordering::Relaxed);
        loop {
            if tail & CLOSED != 0 {
                return Push::Closed;
            }
            // Acquire pairs with the Release store in `pop`: the owner has read the slot of the lap before.
            // A stale `tail` may be behind `head`; the exchange then fails.
            let head = this.head.0.load(Ordering::Acquire);
            if tail.wrapping_sub(head) as i64 >= this.slots.len() as i64 {
                return Push::Full;
            }
            // Relaxed: it only claims; what it is claimed for is published by the slot.
            match this.tail.0.compare_exchange(tail, tail + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => tail = now,
            }
        }
        // Release pairs with the Acquire load in `pop`: whatever was done to the page comes before its next use.
        this.slot(tail).store(index | this.lap(tail), Ordering::Release);
        Push::Done
    }

    /// Owner: takes out up to `out.len()` pages, and says how many. A slot that is claimed and not yet filled ends
    /// it: its page is not lost, only later.
    #[inline]
    pub fn pop(&self, out: &mut [u32]) -> usize {
        // Relaxed: our own.
        let head = self.head.0.load(Ordering::Relaxed);
        let mut count = 0;
        for place in out.iter_mut() {
            let at = head + count;
            // Acquire pairs with the Release store in `push`.
            let value = self.slot(at).load(Ordering::Acquire);
            if value & LAP != self.lap(at) {
                break;
            }
            *place = value & !LAP;
            count += 1;
        }
        if count > 0 {
            // Release pairs with the Acquire load in `push`: the slots were read.
            self.head.0.store(head + count, Ordering::Release);
        }
        count as usize
    }

    /// Owner: accepts nothing more, waits for who has claimed a slot to fill it (a store away), and gives all that is
    /// in to `each`.
    pub fn close(&self, mut each: impl FnMut(u32)) {
        // The total order of what happens to one word is all that is needed: whoever claims later sees the bit.
        let end = self.tail.0.fetch_add(CLOSED, Ordering::Relaxed);
        debug_assert_eq!(end & CLOSED, 0, "closed twice");
        while self.head.0.load(Ordering::Relaxed) < end {
            let mut one = [0];
            if self.pop(&mut one) == 1 {
                each(one[0]);
                continue;
            }
            // Whoever claimed the slot may need this very CPU to fill it.
            #[cfg(not(loom))]
            std::thread::yield_now();
            spin_loop();
        }
    }

    /// How many pages have gone through, and how many are in.
    pub fn counts(&self) -> (u64, u64) {
        // Head first: what is in is then never less than nothing.
        let head = self.head.0.load(Ordering::Relaxed);
        let tail = self.tail.0.load(Ordering::Relaxed) & !CLOSED;
        (tail, tail.saturating_sub(head))
    }
}
