//! What a segment holds of lanes: which sends it carries bytes of, and the references that keep them from completing.

use super::frontier::{COPIED, DROPPED, Frontier};
use super::segment::Fate;
use std::sync::Arc;

/// A reference on send `lo` of a lane, for a segment that carries bytes of `lo..=hi`.
#[derive(Debug)]
pub(super) struct Pin {
    lane: Arc<Frontier>,
    lo: u64,
    hi: u64,
    /// What becomes of the bytes, as far as is known.
    fate: Fate,
}

impl Pin {
    /// Whether the sends `lo..=hi` of `lane` and these are next to each other, or share some.
    #[inline]
    fn touches(&self, lane: &Arc<Frontier>, lo: u64, hi: u64) -> bool {
        Arc::ptr_eq(&self.lane, lane) && lo <= self.hi + 1 && self.lo <= hi + 1
    }

    fn share(&self) -> Pin {
        self.lane.acquire(self.lo);
        Pin { lane: self.lane.clone(), ..*self }
    }

    /// Forgets about the sends before `lo`, which this segment carries nothing of.
    fn move_up(&mut self, lo: u64) {
        if lo > self.lo {
            // Our reference on an earlier send holds the frontier until this one is taken.
            self.lane.acquire(lo);
            self.lane.release(std::mem::replace(&mut self.lo, lo));
        }
    }
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        match self.fate {
            Fate::Sent => {}
            Fate::Copied => self.lane.mark(self.lo, self.hi, COPIED),
            Fate::Dropped => self.lane.mark(self.lo, self.hi, DROPPED),
        }
        self.lane.release(self.lo);
    }
}

/// All pins of a segment: one, unless segments were joined whose sends do not touch.
#[derive(Debug)]
pub(super) struct Pins {
    first: Pin,
    /// Where in the lane's bytes the segment begins, while it carries one unbroken piece of them.
    from: Option<u32>,
    bytes: u64,
    opened_ns: u64,
    more: Vec<Pin>,
}

impl Pins {
    /// Takes over a reference on `id`.
    #[inline]
    pub(super) fn new(lane: Arc<Frontier>, id: u64, from: u32, bytes: u32, opened_ns: u64) -> Pins {
        Pins {
            first: Pin { lane, lo: id, hi: id, fate: Fate::Dropped },
            from: Some(from),
            bytes: u64::from(bytes),
            opened_ns,
            more: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn lane(&self) -> &Arc<Frontier> {
        &self.first.lane
    }

    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    pub(super) fn opened_ns(&self) -> u64 {
        self.opened_ns
    }

    /// Sends that the segment carries bytes of.
    #[inline]
    pub(super) fn sends(&self) -> u64 {
        let more = self.more.iter().map(|pin| pin.hi - pin.lo + 1);
        self.first.hi - self.first.lo + 1 + more.sum::<u64>()
    }

    /// Puts send `id`, the lane's newest, under a reference that is there. False if it is next to none.
    #[inline]
    pub(super) fn extend(&mut self, lane: &Arc<Frontier>, id: u64, from: u32, bytes: u32) -> bool {
        let alone = self.more.is_empty();
        let last = self.more.last_mut().unwrap_or(&mut self.first);
        if !last.touches(lane, id, id) {
            return false;
        }
        last.hi = id;
        if !alone || self.from.is_some_and(|begin| begin.wrapping_add(self.bytes as u32) != from) {
            self.from = None;
        }
        self.bytes += u64::from(bytes);
        true
    }

    /// Takes over a reference on send `id`, which is next to none of those there.
    pub(super) fn add(&mut self, lane: Arc<Frontier>, id: u64, bytes: u32) {
        self.more.push(Pin { lane, lo: id, hi: id, fate: Fate::Dropped });
        self.from = None;
        self.bytes += u64::from(bytes);
    }

    /// A second holder of the same sends, for a clone of the segment.
    pub(super) fn share(&self) -> Pins {
        Pins { first: self.first.share(), more: self.more.iter().map(Pin::share).collect(), ..*self }
    }

    /// Joins what `back` holds, whose bytes come behind ours. The lower of two references stays, the other one goes.
    pub(super) fn join(&mut self, mut back: Pins) {
        let unbroken = match (self.from, back.from) {
            (Some(from), Some(begin)) => from.wrapping_add(self.bytes as u32) == begin,
            _ => false,
        };
        let pin = &back.first;
        let alone = self.more.is_empty() && back.more.is_empty();
        if alone && self.first.touches(&pin.lane, pin.lo, pin.hi) {
            self.from = self.from.filter(|_| unbroken && Arc::ptr_eq(&self.first.lane, &pin.lane));
            self.first.hi = self.first.hi.max(pin.hi);
            if pin.lo < self.first.lo {
                std::mem::swap(&mut self.first.lo, &mut back.first.lo);
            }
            // It goes without saying anything of the bytes, which live on.
            back.first.fate = Fate::Sent;
        } else {
            self.from = None;
            self.more.push(back.first);
            // The shorter list moves, so that a pin moves no more than log(n) times.
            if back.more.len() > self.more.len() {
                std::mem::swap(&mut self.more, &mut back.more);
            }
            self.more.append(&mut back.more);
        }
        self.bytes += back.bytes;
        // Positions are told apart by their differences, in 32 bits.
        self.from = self.from.filter(|_| self.bytes < 1 << 31);
        self.opened_ns = self.opened_ns.min(back.opened_ns);
    }

    /// Divides at `at` bytes of sends: self keeps what is before it. Exact where the segment carries one unbroken piece of
    /// a lane's bytes; else both hold all of its sends, and the later one to go completes them.
    pub(super) fn split(&mut self, at: u64) -> Pins {
        let mut back = self.share();
        back.bytes = self.bytes - at;
        self.bytes = at;
        let Some(from) = self.from else { return back };
        back.from = Some(from.wrapping_add(at as u32));
        // The first send that has bytes behind `at`; differences to the beginning, since positions wrap.
        let (mut lo, mut hi) = (self.first.lo, self.first.hi);
        let end = |id| u64::from(self.first.lane.end_of(id).wrapping_sub(from));
        while lo < hi {
            let middle = lo + (hi - lo) / 2;
            if end(middle) > at { hi = middle } else { lo = middle + 1 }
        }
        // It is the front's too if it began before `at`.
        let begins_here = lo > self.first.lo && end(lo - 1) == at;
        self.first.hi = if begins_here { lo - 1 } else { lo };
        back.first.move_up(lo);
        back
    }

    #[inline]
    pub(super) fn set_fate(&mut self, fate: Fate) {
        self.first.fate = fate;
        for pin in &mut self.more {
            pin.fate = fate;
        }
    }
}
