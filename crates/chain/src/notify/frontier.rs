//! The frontier of a lane: all sends before it are complete.

use super::outcome::{Completion, How};
use super::ready::{self, Ready};
use onecopy_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence_after_rmw};
use std::sync::Arc;

/// References on a send, in the low bits of its word.
const REFS: u32 = (1 << 28) - 1;
/// Another reference than the first one was ever taken on it. Who finds one reference and not this has the only one that there can be: one on an
/// earlier send, which reaches here too, can only be made out of that.
const SHARED: u32 = 1 << 28;
/// Whether some of its bytes were copied is not known.
pub(super) const UNKNOWN: u32 = 1 << 29;
/// Some of its bytes were copied.
pub(super) const COPIED: u32 = 1 << 30;
/// Some of its bytes were never transmitted.
pub(super) const DROPPED: u32 = 1 << 31;
/// The lane is in the queue's hands, or on its way there: who moves the frontier need not tell again.
const QUEUED: u64 = 1;
/// There will be no more sends: `end` says how many there were. In the same word, so that whoever takes QUEUED away knows whether the
/// one who closes the lane will still put it into the queue's hands.
const CLOSED: u64 = 2;
/// The frontier stands above those.
const SHIFT: u32 = 2;

/// A send in its lane: 16 bytes, four on a cache line, since one thread fills them in order and one reads them in order.
#[derive(Debug, Default)]
struct Slot {
    /// References and what is known of the bytes. A slot that no send has is held by one reference, so that the frontier stops
    /// there; a send begins with that reference.
    word: AtomicU32,
    /// The lane's position (bytes of all sends, wrapping) behind this one's bytes.
    end: AtomicU32,
    user_data: AtomicU64,
}

/// A cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line<T>(T);

/// What all who hold a reference share.
///
/// Invariants: `reaped <= done <= tail <= reaped + mask`, so that the slot behind the last send has always been given back and
/// holds its one reference; a send `s` is complete when `s < done`.
#[derive(Debug)]
pub(super) struct Frontier {
    slots: Box<[Slot]>,
    /// Who is told of completions.
    ready: Arc<Ready>,
    index: u32,
    /// 1 once nothing may be sent any more.
    shut: AtomicU32,
    /// `done << SHIFT | CLOSED | QUEUED`: moved by whoever frees.
    done: Line<AtomicU64>,
    /// For [`Ready`].
    link: AtomicU32,
    /// Sends that were reaped: moved by the consumer.
    reaped: Line<AtomicU64>,
    /// Sends that there ever were, once the lane is CLOSED.
    end: AtomicU64,
}

impl Frontier {
    pub(super) fn new(capacity: u32, ready: Arc<Ready>, index: u32) -> Frontier {
        // One slot is always free: see the invariant.
        let slots = (u64::from(capacity.clamp(1, (1 << 30) - 1)) + 1).next_power_of_two();
        Frontier {
            slots: (0..slots).map(|_| Slot { word: AtomicU32::new(1), ..Slot::default() }).collect(),
            ready,
            index,
            shut: AtomicU32::new(0),
            done: Line::default(),
            link: AtomicU32::new(0),
            reaped: Line::default(),
            end: AtomicU64::new(0),
        }
    }

    #[inline]
    fn slot(&self, id: u64) -> &Slot {
        // The length is a power of two; the mask lets the compiler leave the check out.
        &self.slots[(id & (self.slots.len() as u64 - 1)) as usize]
    }

    /// The lane's number.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Whether one queue is told of both.
    #[inline]
    pub(super) fn is_told_with(&self, other: &Frontier) -> bool {
        Arc::ptr_eq(&self.ready, &other.ready)
    }

    /// The next lane that was ready when this one was put in front of it. Only for the consumer, who has taken them.
    pub(super) fn next_ready(&self) -> Option<u32> {
        // Relaxed: acquired with the stack. The lane is QUEUED, so nobody pushes it and writes its link.
        ready::item(self.link.load(Ordering::Relaxed))
    }

    pub(super) fn capacity(&self) -> u64 {
        self.slots.len() as u64 - 1
    }

    /// The lane's position behind `id`'s bytes. Only for who holds a reference at or before `id`.
    #[inline]
    pub(super) fn end_of(&self, id: u64) -> u32 {
        // Relaxed: whoever handed the segment over brought what was stored before.
        self.slot(id).end.load(Ordering::Relaxed)
    }

    /// Sends that were reaped.
    #[inline]
    pub(super) fn reaped(&self) -> u64 {
        // Acquire pairs with the Release store when completions were given out: the slots are free.
        self.reaped.0.load(Ordering::Acquire)
    }

    /// Gives the slot behind the last one to a send, with the reference that holds it. Only for the lane, where there is room.
    #[inline]
    pub(super) fn fill(&self, id: u64, user_data: u64, end: u32) {
        // Relaxed: published with the word, when the reference is given up.
        let slot = self.slot(id);
        slot.user_data.store(user_data, Ordering::Relaxed);
        slot.end.store(end, Ordering::Relaxed);
    }

    /// The send under way has bytes up to `end` now. Only for the lane.
    pub(super) fn set_end(&self, id: u64, end: u32) {
        // Relaxed: published by handing the segment on, and by giving up the reference.
        self.slot(id).end.store(end, Ordering::Relaxed);
    }

    /// Gives up the first reference of send `id`, the newest one, which nobody but the lane has seen. Only for the lane, while the
    /// caller holds a reference on an earlier send: the frontier cannot have come here, so that there is nothing to settle.
    #[inline]
    pub(super) fn stack(&self, id: u64) {
        // Relaxed: who settles comes here over that earlier reference, and acquires it from somebody who got the segment later.
        self.slot(id).word.store(0, Ordering::Relaxed);
    }

    /// One more reference on `id`. Only for who keeps the frontier from passing `id`: by a reference on it, or on a send
    /// before it.
    #[inline]
    pub(super) fn acquire(&self, id: u64) {
        // Relaxed: as with Arc, what the new holder may look at was handed to him with the segment. That the
        // frontier cannot pass meanwhile is the caller's reference, whose release comes later.
        let word = &self.slot(id).word;
        let old = word.fetch_add(1, Ordering::Relaxed);
        if old & REFS > REFS / 2 {
            // As Arc: only somebody who forgets references gets here, and running over would free for free.
            std::process::abort();
        }
        if old & SHARED == 0 {
            // Relaxed: until this reference is given up there are two.
            word.fetch_or(SHARED, Ordering::Relaxed);
        }
    }

    /// Whether there is one reference on `id`, the caller's, and nothing to be said of it.
    pub(super) fn is_held_once(&self, id: u64) -> bool {
        // Relaxed: only who holds a reference makes another, and the caller holds the only one.
        self.slot(id).word.load(Ordering::Relaxed) & !SHARED == 1
    }

    /// Notes of the sends `lo..=hi` how some of their bytes left. Only for who holds a reference at or before `lo`.
    pub(super) fn mark(&self, lo: u64, hi: u64, flag: u32) {
        for id in lo..=hi {
            let word = &self.slot(id).word;
            // Relaxed: published by the release of the caller's reference. An addition to the word, since
            // others may count references in it.
            if word.load(Ordering::Relaxed) & flag == 0 {
                word.fetch_or(flag, Ordering::Relaxed);
            }
        }
    }

    /// Gives up a reference on `id`, and moves the frontier where it was the last one that held it.
    #[inline]
    pub(super) fn release(&self, id: u64) {
        // Release publishes all that was done with the segment, and what was stored of the sends stacked on it; pairs with
        // the Acquire load in `settle`, whoever runs that.
        let old = self.slot(id).word.fetch_sub(1, Ordering::Release);
        debug_assert!(old & REFS > 0, "a reference on send {id} was given up twice");
        if old & REFS == 1 {
            // Pairs with the fence in `settle`, behind the exchange: either that thread sees this word at zero, or we see
            // the frontier that it moved to here (Dekker's handshake).
            fence_after_rmw();
            self.settle();
        }
    }

    /// As [`Frontier::release`], while the caller keeps a reference on an earlier send, or another one on this: the frontier cannot have come
    /// here, so that there is nothing to settle.
    #[inline]
    pub(super) fn release_behind(&self, id: u64) {
        let word = &self.slot(id).word;
        // Relaxed, the load: it is 1 only while nobody but the caller ever had a reference on it, and then nobody else writes it.
        if word.load(Ordering::Relaxed) == 1 {
            // Relaxed: as in `stack`.
            word.store(0, Ordering::Relaxed);
        } else {
            // Release, as in `release`.
            let old = word.fetch_sub(1, Ordering::Release);
            debug_assert!(old & REFS > 0, "a reference on send {id} was given up twice");
        }
    }

    /// Moves the frontier past all that nobody holds any more.
    #[inline]
    fn settle(&self) {
        // Acquire pairs with the AcqRel exchange below: what the slots behind the frontier hold was stored before.
        let mut there = self.done.0.load(Ordering::Acquire);
        loop {
            let done = there >> SHIFT;
            let mut to = done;
            // Acquire pairs with the Release of who gave up the last reference. The bound matters only to a thread that has
            // slept for a lap, and whose exchange will fail.
            while to - done < self.capacity() && self.slot(to).word.load(Ordering::Acquire) & REFS == 0 {
                to += 1;
            }
            if to == done {
                return;
            }
            // AcqRel: Release hands what we acquired above to the next one who settles, and to the consumer's Acquire load in
            // `reap`; Acquire (on success and on failure) as the load above.
            let next = to << SHIFT | there & CLOSED | QUEUED;
            match self.done.0.compare_exchange(there, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    if there & QUEUED == 0 {
                        self.ready.push(self.index, &self.link);
                    }
                    there = next;
                    // Pairs with the fence in `release`. Behind `push`, whose exchange may be the last one that was
                    // done here; a lane that was queued already has just exchanged `done`.
                    fence_after_rmw();
                }
                Err(now) => there = now,
            }
        }
    }

    /// Whether nothing may be sent any more.
    #[inline]
    pub(super) fn is_shut(&self) -> bool {
        // Relaxed: it says nothing of other memory, and a send that is faster than the shutting is one before it.
        self.shut.load(Ordering::Relaxed) != 0
    }

    /// Nothing may be sent from here on.
    pub(super) fn shut(&self) {
        self.shut.store(1, Ordering::Relaxed);
    }

    /// There were `tail` sends, and no more will be. Once, by the lane.
    pub(super) fn close(&self, tail: u64) {
        self.shut();
        // Relaxed: published with CLOSED, which pairs with the Acquire exchange in `reap`.
        self.end.store(tail, Ordering::Relaxed);
        if self.done.0.fetch_or(QUEUED | CLOSED, Ordering::AcqRel) & QUEUED == 0 {
            self.ready.push(self.index, &self.link);
        }
    }

    /// Consumer: gives at most `most` completions to `each`, in order. The lane is QUEUED, and stays so unless the result says
    /// that all was reaped.
    pub(super) fn reap(&self, most: usize, each: &mut impl FnMut(Completion)) -> Reaped {
        // Only the consumer moves it.
        let mut at = self.reaped.0.load(Ordering::Relaxed);
        let mut count = 0;
        // Acquire pairs with the AcqRel exchange in `settle`: the slots before `done` are as their holders left them.
        let mut there = self.done.0.load(Ordering::Acquire);
        loop {
            let until = (there >> SHIFT).min(at.saturating_add((most - count) as u64));
            if at < until {
                count += (until - at) as usize;
                let mut giving = Giving { inner: self, at };
                while giving.at < until {
                    each(giving.next());
                }
                at = until;
                drop(giving);
            }
            if at < there >> SHIFT {
                return Reaped { count, left: true, over: false };
            }
            // Not QUEUED any more, unless the frontier has moved meanwhile. Acquire pairs with `settle` and `close`.
            match self.done.0.compare_exchange(there, there & !QUEUED, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => {
                    // Without CLOSED the lane comes back, if only to be closed.
                    let over = there & CLOSED != 0 && at == self.end.load(Ordering::Relaxed);
                    return Reaped { count, left: false, over };
                }
                Err(now) => there = now,
            }
        }
    }
}

/// What [`Frontier::reap`] did.
pub(super) struct Reaped {
    pub(super) count: usize,
    /// The lane has more, and is still QUEUED.
    pub(super) left: bool,
    /// The lane is closed and all of it is reaped.
    pub(super) over: bool,
}

/// Completions being given out: what was given is given back to the lane, even if the one who gets it panics.
struct Giving<'a> {
    inner: &'a Frontier,
    at: u64,
}

impl Giving<'_> {
    #[inline]
    fn next(&mut self) -> Completion {
        let (id, slot) = (self.at, self.inner.slot(self.at));
        // All relaxed: acquired with `done`; nobody else touches the slot of a complete send. The send before it ended
        // where this one began: its slot is the one that is always free, and is filled only once this one is given back.
        let word = slot.word.load(Ordering::Relaxed);
        let completion = Completion {
            user_data: slot.user_data.load(Ordering::Relaxed),
            lane: self.inner.index,
            id,
            bytes: slot.end.load(Ordering::Relaxed).wrapping_sub(self.inner.end_of(id.wrapping_sub(1))),
            how: How {
                copied: word & COPIED != 0,
                unknown: word & (COPIED | UNKNOWN) == UNKNOWN,
                dropped: word & DROPPED != 0,
            },
        };
        self.at += 1;
        completion
    }
}

impl Drop for Giving<'_> {
    fn drop(&mut self) {
        let from = self.inner.reaped.0.load(Ordering::Relaxed);
        for id in from..self.at {
            // Held again by one reference: that of its next send.
            self.inner.slot(id).word.store(1, Ordering::Relaxed);
        }
        // Release pairs with the Acquire load in `reaped`: the slots are read and reset.
        self.inner.reaped.0.store(self.at, Ordering::Release);
    }
}
