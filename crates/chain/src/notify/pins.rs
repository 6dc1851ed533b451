//! What a segment holds of lanes: which sends it carries bytes of, and the references that keep them from completing.

use super::frontier::{COPIED, DROPPED, Frontier};
use super::outcome::Fate;
use std::collections::VecDeque;
use std::sync::Arc;

/// A reference on send `lo` of a lane, for one unbroken piece of the lane's bytes on a segment: those of the sends `lo..=hi`, of which
/// the first and the last may be there in part.
#[derive(Debug)]
pub(super) struct Pin {
    lane: Arc<Frontier>,
    lo: u64,
    hi: u64,
    /// Where in the lane's bytes the piece begins.
    from: u32,
    bytes: u32,
    /// What becomes of the bytes, as far as is known.
    fate: Fate,
}

impl Pin {
    /// Makes it one with `bytes` bytes at `from`, of the sends `lo..=hi`, that come behind these on the segment. False where they do not
    /// in the lane: then another reference has to hold them. (A piece has less than 4 GiB: positions are told apart by their differences.)
    #[inline]
    fn extend(&mut self, lane: &Arc<Frontier>, lo: u64, hi: u64, from: u32, bytes: u32) -> bool {
        let next = Arc::ptr_eq(&self.lane, lane)
            && (lo == self.hi || lo == self.hi + 1)
            && self.from.wrapping_add(self.bytes) == from;
        match self.bytes.checked_add(bytes) {
            Some(sum) if next => {
                (self.hi, self.bytes) = (hi, sum);
                true
            }
            _ => false,
        }
    }

    fn share(&self) -> Pin {
        self.lane.acquire(self.lo);
        Pin { lane: self.lane.clone(), ..*self }
    }

    /// Divides at `at` of its bytes, fewer than all: what is before it, if anything is, and the rest. A send without bytes that lies at
    /// `at` is before it.
    fn split(mut self, at: u32) -> (Option<Pin>, Pin) {
        // The first send that has bytes behind `at`. The last one's end is not looked at: it may have more bytes elsewhere.
        let (mut lo, mut hi) = (self.lo, self.hi);
        let end = |id| self.lane.end_of(id).wrapping_sub(self.from);
        while lo < hi {
            let middle = lo + (hi - lo) / 2;
            if end(middle) > at { hi = middle } else { lo = middle + 1 }
        }
        // It is the front's too if it began before `at`.
        let begins_here = lo > self.lo && end(lo - 1) == at;
        let front_hi = match (begins_here, at) {
            (true, _) => lo - 1,
            (false, 0) => return (None, self),
            (false, _) => lo,
        };
        // Our own reference, on that send or an earlier one, holds the frontier until this one is taken.
        self.lane.acquire(lo);
        let (from, bytes) = (self.from.wrapping_add(at), self.bytes - at);
        let back = Pin { lane: self.lane.clone(), lo, from, bytes, ..self };
        (self.hi, self.bytes) = (front_hi, at);
        (Some(self), back)
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

/// All pins of a segment, in the order of its bytes: one, unless some of them do not follow each other in their lane.
#[derive(Debug)]
pub(super) struct Pins {
    first: Pin,
    /// Bytes of all of them.
    bytes: u64,
    opened_ns: u64,
    more: VecDeque<Pin>,
}

impl Pins {
    /// Takes over a reference on `id`.
    #[inline]
    pub(super) fn new(lane: Arc<Frontier>, id: u64, from: u32, bytes: u32, opened_ns: u64) -> Pins {
        let first = Pin { lane, lo: id, hi: id, from, bytes, fate: Fate::Dropped };
        Pins { first, bytes: u64::from(bytes), opened_ns, more: VecDeque::new() }
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

    /// Sends that the segment carries bytes of. One that is there in several pieces counts for each.
    #[inline]
    pub(super) fn sends(&self) -> u64 {
        let more = self.more.iter().map(|pin| pin.hi - pin.lo + 1);
        self.first.hi - self.first.lo + 1 + more.sum::<u64>()
    }

    /// Puts send `id`, the lane's newest, under the last reference that is there. False if its bytes do not follow those.
    #[inline]
    pub(super) fn extend(&mut self, lane: &Arc<Frontier>, id: u64, from: u32, bytes: u32) -> bool {
        let extended = self.last().extend(lane, id, id, from, bytes);
        if extended {
            self.bytes += u64::from(bytes);
        }
        extended
    }

    /// Takes over a reference on send `id`, whose bytes do not follow those that are there.
    pub(super) fn add(&mut self, lane: Arc<Frontier>, id: u64, from: u32, bytes: u32) {
        self.more.push_back(Pin { lane, lo: id, hi: id, from, bytes, fate: Fate::Dropped });
        self.bytes += u64::from(bytes);
    }

    #[inline]
    fn last(&mut self) -> &mut Pin {
        self.more.back_mut().unwrap_or(&mut self.first)
    }

    /// A second holder of the same sends, for a clone of the segment.
    pub(super) fn share(&self) -> Pins {
        Pins { first: self.first.share(), more: self.more.iter().map(Pin::share).collect(), ..*self }
    }

    /// Joins what `back` holds, whose bytes come behind ours. Of two references on bytes that follow each other the lower one stays.
    pub(super) fn join(&mut self, back: Pins) {
        let Pins { first: mut next, bytes, opened_ns, mut more } = back;
        self.bytes += bytes;
        self.opened_ns = self.opened_ns.min(opened_ns);
        let apart = if self.last().extend(&next.lane, next.lo, next.hi, next.from, next.bytes) {
            // It goes without saying anything of the bytes, which live on.
            next.fate = Fate::Sent;
            None
        } else {
            Some(next)
        };
        // The shorter list moves, so that a pin moves no more than log(n) times.
        if more.len() > self.more.len() {
            for pin in self.more.drain(..).chain(apart).rev() {
                more.push_front(pin);
            }
            self.more = more;
        } else {
            self.more.extend(apart);
            self.more.append(&mut more);
        }
    }

    /// Divides at `at` bytes of sends: what is before it, and what is behind. Each holds the sends that it has bytes of; one without
    /// bytes that lies at `at` is before it.
    pub(super) fn split(mut self, at: u64) -> (Option<Pins>, Option<Pins>) {
        if at >= self.bytes {
            return (Some(self), None);
        }
        // The pin that has bytes behind `at`: number `n`, whose bytes begin at `before`.
        let (mut n, mut before, mut pin) = (0, 0, &self.first);
        while before + u64::from(pin.bytes) <= at {
            before += u64::from(pin.bytes);
            pin = &self.more[n];
            n += 1;
        }
        let (cut, opened_ns, bytes) = ((at - before) as u32, self.opened_ns, self.bytes - at);
        if n == 0 {
            let (front, first) = self.first.split(cut);
            let front = front.map(|first| Pins { first, bytes: at, opened_ns, more: VecDeque::new() });
            return (front, Some(Pins { first, bytes, opened_ns, more: self.more }));
        }
        let more = self.more.split_off(n);
        let (front, first) = self.more.pop_back().expect("it was found there").split(cut);
        self.more.extend(front);
        self.bytes = at;
        (Some(self), Some(Pins { first, bytes, opened_ns, more }))
    }

    #[inline]
    pub(super) fn set_fate(&mut self, fate: Fate) {
        self.first.fate = fate;
        for pin in &mut self.more {
            pin.fate = fate;
        }
    }
}
