//! What a segment holds of lanes: which sends it carries bytes of, where these lie in its payload, and the references that keep
//! the sends from completing.

use super::frontier::{COPIED, DROPPED, Frontier, UNKNOWN};
use super::outcome::Fate;
use onecopy_sync::WeightedArc;
use std::collections::VecDeque;

/// A reference on send `lo` of a lane, for one unbroken piece of the lane's bytes on a segment: those of the sends `lo..=hi`, of which
/// the first and the last may be there in part.
#[derive(Debug)]
pub(super) struct Pin {
    /// None only in what another one has [absorbed](Pin::absorb).
    lane: Option<WeightedArc<Frontier>>,
    lo: u64,
    hi: u64,
    /// Where in the lane's bytes the piece begins.
    from: u32,
    bytes: u32,
    /// Bytes of the payload between what the pin before this one has (or the payload's beginning) and these: nobody's.
    gap: u32,
    /// What becomes of the bytes, as far as is known.
    fate: Fate,
}

const _: () = assert!(size_of::<Pin>() == 48);

/// In [`Pins::end`]: nobody knows any more where whose bytes lie.
const NOWHERE: u64 = u64::MAX;

impl Pin {
    #[inline]
    fn lane(&self) -> &WeightedArc<Frontier> {
        self.lane.as_ref().expect("nobody has absorbed it")
    }

    /// One more handle of the lane, for a reference of its own.
    #[inline]
    fn split_lane(&mut self) -> Option<WeightedArc<Frontier>> {
        self.lane.as_mut().map(WeightedArc::split)
    }

    /// Makes it one with `bytes` bytes at `from`, of the sends `lo..=hi`, that come right behind these on the segment. False where they do
    /// not in the lane: then another reference has to hold them. (A piece has less than 4 GiB: positions are told apart by their differences.)
    #[inline]
    fn extend(&mut self, lane: &WeightedArc<Frontier>, lo: u64, hi: u64, from: u32, bytes: u32) -> bool {
        let next = WeightedArc::ptr_eq(self.lane(), lane)
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

    /// Takes over what `next` holds, whose bytes come right behind these on the segment. False where another reference has to hold them.
    /// (What is known of the bytes of one is not known of the other's.)
    #[inline]
    fn absorb(&mut self, next: &mut Pin) -> bool {
        let alike = next.gap == 0 && self.fate == next.fate;
        if !alike || !self.extend(next.lane(), next.lo, next.hi, next.from, next.bytes) {
            return false;
        }
        // Nothing is said of the bytes, which live on: whoever holds them says the same.
        if let (Some(ours), Some(theirs)) = (&mut self.lane, next.lane.take()) {
            // Our own reference is on that send or an earlier one, and stays.
            ours.release_behind(next.lo);
            ours.merge(theirs);
        }
        true
    }

    fn share(&self) -> Pin {
        self.lane().acquire(self.lo);
        Pin { lane: self.lane.clone(), ..*self }
    }

    /// The first send of the piece that `wanted` says yes to of where it ends in the piece, as it does for each one behind that; else the
    /// last one. That one's end is not looked at: it may have more bytes elsewhere.
    fn first(&self, wanted: impl Fn(u32) -> bool) -> u64 {
        let (mut lo, mut hi) = (self.lo, self.hi);
        while lo < hi {
            let middle = lo + (hi - lo) / 2;
            if wanted(self.end(middle)) { hi = middle } else { lo = middle + 1 }
        }
        lo
    }

    /// Where send `id`, which is not the last one, ends in the piece.
    fn end(&self, id: u64) -> u32 {
        self.lane().end_of(id).wrapping_sub(self.from)
    }

    /// A reference of its own for `bytes` of its bytes from `at` on, at least one. It says nothing of what becomes of them, unless it is
    /// told: whoever has this one does.
    fn part(&self, at: u32, bytes: u32, gap: u32) -> Pin {
        let lo = self.first(|end| end > at);
        let hi = self.first(|end| end >= at + bytes);
        // Our own reference, on that send or an earlier one, holds the frontier until this one is taken.
        self.lane().acquire(lo);
        let from = self.from.wrapping_add(at);
        Pin { lane: self.lane.clone(), lo, hi, from, bytes, gap, fate: Fate::Sent }
    }

    /// Divides at `at` of its bytes, fewer than all: what is before it, if anything is, and the rest. A send without bytes that lies at
    /// `at` is before it.
    fn split(mut self, at: u32) -> (Option<Pin>, Pin) {
        // The first send that has bytes behind `at`. It is the front's too if it began before `at`.
        let lo = self.first(|end| end > at);
        let begins_here = lo > self.lo && self.end(lo - 1) == at;
        let front_hi = match (begins_here, at) {
            (true, _) => lo - 1,
            (false, 0) => {
                self.gap = 0;
                return (None, self);
            }
            (false, _) => lo,
        };
        // As in `part`.
        self.lane().acquire(lo);
        let (from, bytes) = (self.from.wrapping_add(at), self.bytes - at);
        let back = Pin { lane: self.split_lane(), lo, from, bytes, gap: 0, ..self };
        (self.hi, self.bytes) = (front_hi, at);
        (Some(self), back)
    }
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        let Some(lane) = &self.lane else { return };
        match self.fate {
            Fate::Sent => {}
            Fate::Copied => lane.mark(self.lo, self.hi, COPIED),
            Fate::Unknown => lane.mark(self.lo, self.hi, UNKNOWN),
            Fate::Dropped => lane.mark(self.lo, self.hi, DROPPED),
        }
        lane.release(self.lo);
    }
}

/// The pins behind the first one, which seldom are any.
#[derive(Debug, Default)]
#[expect(
    clippy::box_collection,
    reason = "segments are moved for every packet: a word is less than the list's four"
)]
struct More(Option<Box<VecDeque<Pin>>>);

impl More {
    fn of(list: VecDeque<Pin>) -> More {
        More((!list.is_empty()).then(|| Box::new(list)))
    }

    fn iter(&self) -> impl Iterator<Item = &Pin> {
        self.0.iter().flat_map(|list| list.iter())
    }

    #[inline]
    fn last(&mut self) -> Option<&mut Pin> {
        self.0.as_mut().and_then(|list| list.back_mut())
    }

    #[cold]
    fn push(&mut self, pin: Pin) {
        self.0.get_or_insert_default().push_back(pin);
    }

    fn take(&mut self) -> VecDeque<Pin> {
        self.0.take().map_or_else(VecDeque::new, |list| *list)
    }
}

/// All pins of a segment, in the order of its bytes: one, unless some of them do not follow each other in their lane, or on the segment.
///
/// Places are bytes of the payload, counted from its beginning. What lies before, between and behind the pins' bytes is nobody's: copied,
/// or a send's that nobody waits for.
#[derive(Debug)]
pub(super) struct Pins {
    first: Pin,
    /// Bytes of all of them.
    bytes: u64,
    /// Where the last one's bytes end: `bytes`, and all gaps; or [`NOWHERE`], for good.
    end: u64,
    opened_ns: u64,
    more: More,
}

impl Pins {
    /// Takes over a reference on `id`, whose bytes begin at `at`.
    #[inline]
    pub(super) fn new(
        lane: WeightedArc<Frontier>,
        id: u64,
        from: u32,
        bytes: u32,
        at: u32,
        opened_ns: u64,
    ) -> Pins {
        let first = Pin { lane: Some(lane), lo: id, hi: id, from, bytes, gap: at, fate: Fate::Dropped };
        let end = u64::from(at) + u64::from(bytes);
        Pins { first, bytes: u64::from(bytes), end, opened_ns, more: More::default() }
    }

    #[inline]
    pub(super) fn lane(&self) -> &WeightedArc<Frontier> {
        self.first.lane()
    }

    /// How many bytes there are, if they are all send `id`'s of that lane.
    pub(super) fn only(&self, lane: &WeightedArc<Frontier>, id: u64) -> Option<u32> {
        let first = &self.first;
        let one = WeightedArc::ptr_eq(first.lane(), lane)
            && (first.lo, first.hi) == (id, id)
            && self.more.0.is_none();
        one.then_some(first.bytes)
    }

    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the last bytes of sends end.
    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    #[inline]
    pub(super) fn opened_ns(&self) -> u64 {
        self.opened_ns
    }

    /// Sends that the segment carries bytes of. One that is there in several pieces counts for each.
    #[inline]
    pub(super) fn sends(&self) -> u64 {
        let first = self.first.hi - self.first.lo + 1;
        match &self.more.0 {
            None => first,
            Some(list) => first + list.iter().map(|pin| pin.hi - pin.lo + 1).sum::<u64>(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Pin> {
        std::iter::once(&self.first).chain(self.more.iter())
    }

    /// Bytes between ours and those that begin at `at`, which cannot be among ours.
    #[inline]
    fn gap(&self, at: u32) -> u32 {
        // As `at` has 32 bits, so has the difference.
        u64::from(at).saturating_sub(self.end) as u32
    }

    /// Puts send `id`, the lane's newest, whose bytes begin at `at`, under the last reference that is there. False if its bytes do not
    /// follow those, in the lane and on the segment.
    #[inline]
    pub(super) fn extend(
        &mut self,
        lane: &WeightedArc<Frontier>,
        id: u64,
        from: u32,
        bytes: u32,
        at: u32,
    ) -> bool {
        let extended = self.gap(at) == 0 && self.last().extend(lane, id, id, from, bytes);
        if extended {
            self.bytes += u64::from(bytes);
            self.end = self.end.saturating_add(bytes.into());
        }
        extended
    }

    /// The newest send, whose bytes were put last, has `there` bytes and not the `said` ones.
    #[cold]
    pub(super) fn correct(&mut self, said: u32, there: u32) {
        let last = self.last();
        last.bytes = (last.bytes - said).saturating_add(there);
        self.bytes = self.bytes - u64::from(said) + u64::from(there);
        if self.end != NOWHERE {
            self.end = self.end - u64::from(said) + u64::from(there);
        }
    }

    /// The payload was changed in a way that does not say where bytes went: from here on each part holds all sends.
    #[cold]
    pub(super) fn lose_places(&mut self) {
        self.end = NOWHERE;
    }

    /// Takes over a reference on send `id`, whose bytes begin at `at`, and do not follow those that are there.
    pub(super) fn add(&mut self, lane: WeightedArc<Frontier>, id: u64, from: u32, bytes: u32, at: u32) {
        let gap = self.gap(at);
        self.more.push(Pin { lane: Some(lane), lo: id, hi: id, from, bytes, gap, fate: Fate::Dropped });
        self.bytes += u64::from(bytes);
        self.end = self.end.saturating_add(u64::from(gap) + u64::from(bytes));
    }

    #[inline]
    fn last(&mut self) -> &mut Pin {
        self.more.last().unwrap_or(&mut self.first)
    }

    /// A second holder of the same sends, for a clone of the segment.
    pub(super) fn share(&self) -> Pins {
        let more = More::of(self.more.iter().map(Pin::share).collect());
        Pins { first: self.first.share(), more, ..*self }
    }

    /// A second holder of the sends that have bytes among the `len` from `at` on; none where there are none. It says nothing of what
    /// becomes of them, unless it is told.
    pub(super) fn range(&self, at: u64, len: u64) -> Option<Pins> {
        if self.end == NOWHERE && len > 0 {
            let mut all = self.share();
            all.set_fate(Fate::Sent);
            return Some(all);
        }
        let (until, opened_ns) = (at.saturating_add(len), self.opened_ns);
        let (mut begin, mut behind) = (0, at);
        let mut found: Option<Pins> = None;
        for pin in self.iter() {
            begin += u64::from(pin.gap);
            let end = begin + u64::from(pin.bytes);
            let (from, to) = (begin.max(at), end.min(until));
            if from < to {
                let part = pin.part((from - begin) as u32, (to - from) as u32, (from - behind) as u32);
                let (bytes, end) = (to - from, to - at);
                behind = to;
                match &mut found {
                    None => {
                        found = Some(Pins { first: part, bytes, end, opened_ns, more: More::default() });
                    }
                    Some(pins) => {
                        pins.more.push(part);
                        pins.bytes += bytes;
                        pins.end = end;
                    }
                }
            }
            if end >= until {
                break;
            }
            begin = end;
        }
        found
    }

    /// Where bytes begin that come behind `len` others, if there is nothing else between ours and them than gaps can tell of.
    pub(super) fn takes(&self, len: u64, back: &Pins) -> bool {
        let gap = u64::from(back.first.gap) + len.saturating_sub(self.end);
        u32::try_from(gap).is_ok()
    }

    /// `len` bytes that are nobody's come in front of all.
    pub(super) fn grow_front(&mut self, len: u32) {
        // A payload that is longer than that does not know its own places.
        let gap = self.first.gap.saturating_add(len);
        self.end = self.end.saturating_add((gap - self.first.gap).into());
        self.first.gap = gap;
    }

    /// As [`Pins::join`], where `back` holds one reference that ours goes on as, which is what a send put behind the one before it comes to: it
    /// need not be moved, and holds nothing then. False, with nothing done, else.
    #[inline]
    pub(super) fn absorb(&mut self, len: u64, back: &mut Pins) -> bool {
        let absorbed = back.more.0.is_none() && self.end >= len && self.last().absorb(&mut back.first);
        if absorbed {
            self.bytes += back.bytes;
            self.end = self.end.saturating_add(back.end);
            self.opened_ns = self.opened_ns.min(back.opened_ns);
        }
        absorbed
    }

    /// Joins what `back` holds, whose payload comes behind the `len` bytes of ours. Of two references on bytes that follow each other the
    /// lower one stays.
    pub(super) fn join(&mut self, len: u64, back: Pins) {
        let Pins { first: mut next, bytes, end, opened_ns, mut more } = back;
        let gap = len.saturating_sub(self.end);
        next.gap += gap as u32;
        self.bytes += bytes;
        self.end = self.end.saturating_add(gap).saturating_add(end);
        self.opened_ns = self.opened_ns.min(opened_ns);
        let apart = if self.last().absorb(&mut next) { None } else { Some(next) };
        if apart.is_none() && more.0.is_none() {
            return;
        }
        let (mut ours, mut theirs) = (self.more.take(), more.take());
        // The shorter list moves, so that a pin moves no more than log(n) times.
        if theirs.len() > ours.len() {
            for pin in ours.drain(..).chain(apart).rev() {
                theirs.push_front(pin);
            }
            self.more = More::of(theirs);
        } else {
            ours.extend(apart);
            ours.append(&mut theirs);
            self.more = More::of(ours);
        }
    }

    /// The pin that has bytes behind `at`, which is before the end: its number, and where its bytes begin; where those of the pins before
    /// it end, and how many they are.
    fn find(&self, at: u64) -> (usize, u64, u64, u64) {
        let (mut behind, mut bytes) = (0, 0);
        for (n, pin) in self.iter().enumerate() {
            let begin = behind + u64::from(pin.gap);
            let end = begin + u64::from(pin.bytes);
            if end > at {
                return (n, begin, behind, bytes);
            }
            (behind, bytes) = (end, bytes + u64::from(pin.bytes));
        }
        unreachable!("the last pin ends where all do")
    }

    /// Divides at byte `at` of the payload: what is before it, and what is behind. Each holds the sends that it has bytes of; one without
    /// bytes that lies at `at` is before it.
    pub(super) fn split(self, at: u64) -> (Option<Pins>, Option<Pins>) {
        if at >= self.end {
            return (Some(self), None);
        }
        if self.end == NOWHERE {
            let other = self.share();
            return (Some(self), Some(other));
        }
        let (n, begin, behind, bytes) = self.find(at);
        let Pins { first, bytes: all, end, opened_ns, mut more } = self;
        let mut before = VecDeque::new();
        let (first, cut, behind_it) = match n.checked_sub(1) {
            None => (None, first, more.take()),
            Some(n) => {
                before = more.take();
                let mut behind_it = before.split_off(n);
                let cut = behind_it.pop_front().expect("it was found there");
                (Some(first), cut, behind_it)
            }
        };
        // Where the cut falls into the gap in front of it, the pin is whole.
        let (front, mut back) = match at.checked_sub(begin) {
            None => (None, cut),
            Some(within) => cut.split(within as u32),
        };
        back.gap = begin.saturating_sub(at) as u32;
        let in_front = front.as_ref().map_or(0, |pin| u64::from(pin.bytes));
        let front_end = if front.is_some() { begin + in_front } else { behind };
        let (front_first, last) = match first {
            Some(first) => (Some(first), front),
            None => (front, None),
        };
        before.extend(last);
        let front = front_first.map(|first| Pins {
            first,
            bytes: bytes + in_front,
            end: front_end,
            opened_ns,
            more: More::of(before),
        });
        let back = Pins {
            first: back,
            bytes: all - bytes - in_front,
            end: end - at,
            opened_ns,
            more: More::of(behind_it),
        };
        (front, Some(back))
    }

    #[inline]
    pub(super) fn set_fate(&mut self, fate: Fate) {
        self.first.fate = fate;
        if let Some(list) = &mut self.more.0 {
            list.iter_mut().for_each(|pin| pin.fate = fate);
        }
    }
}
