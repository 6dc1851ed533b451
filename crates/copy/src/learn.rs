//! Which stores the bytes of one ring should get, found out while the ring is used.
//!
//! What a CPU says of its caches need not be true, above all in a virtual machine. So no such word decides alone: a
//! [`Learner`] begins with what [`plan`](crate::plan()) says and compares it with the other kind of stores, on the
//! bytes that are sent anyway.
//!
//! - How two kinds of stores are compared, when, and what it takes to change the choice, is [`Comparison`]'s. A unit is a number of
//!   whole laps around the ring. Stores defer their cost: what an ordinary store leaves in a cache is written to memory a lap later, at the
//!   expense of whatever is stored then. So a unit behind a change doesn't count.
//! - What is compared is goodput: the smaller of what was sent and what the reader gave back, divided by the time.
//!   While the ring fills up the sender's part is too large, while it drains the reader's is.
//! - The clock is read once a unit, and twice a send in those that count, to find units in which the program had
//!   nothing to send: they say nothing about stores.
//! - Non-temporal stores win a tie: they leave the caches to the rest of the program, which no figure here shows.
//!
//! There is no clock and no memory in here: the caller says how late it is and how far sender and reader are.

use crate::compare::{Comparison, Verdict};
use crate::policy::Store;
use std::fmt;

#[cfg(test)]
mod tests;

/// Nothing is learned with shorter copies, in bytes: they get what the plan says, which is ordinary stores nearly
/// everywhere, since a fence costs them more than it gains.
pub const LEARN_MIN: usize = 4096;

/// What a unit is about, in bytes, where a lap is less: the first comparison is over after six of them, 64 MiB.
const UNIT: u64 = (64 << 20) / 6;

/// Learns which stores one direction of a ring should get.
#[derive(Clone, Debug)]
pub struct Learner {
    unit: u64,
    chosen: Store,
    reason: Reason,
    comparison: Comparison,
    /// How many more times a first comparison has to decide alike before it counts.
    doubts: u32,
    /// It is about a thread, and no reader is seen.
    by_time: bool,
    /// The position, in bytes sent, at which the next look is due.
    due: u64,
    /// What the look before found.
    last: Look,
    /// Nanoseconds of this unit in which the program sent nothing, and when its last send ended.
    idle: u64,
    left: Option<u64>,
    /// Bytes that got the others.
    explored: u64,
}

/// Why stores are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The plan says so, and nothing has been measured that would change it.
    Plan,
    /// They were faster.
    Faster,
    /// They were about as fast, and non-temporal stores spare the caches.
    Tie,
}

/// What was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// The stores that are chosen.
    pub store: Store,
    /// Why.
    pub reason: Reason,
    /// Their goodput in percent of what the other stores reached, when last compared; `None` before that.
    pub percent: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Look {
    at: u64,
    head: u64,
    tail: u64,
}

impl Learner {
    /// Begins to learn about a ring of `capacity` bytes, of which `sent` bytes went through it already. `plan` is what
    /// the stores are without it, and `measured` says that the plan comes from this machine's own figures: then
    /// the first comparison is in no hurry.
    pub fn new(capacity: usize, sent: u64, plan: Store, measured: bool) -> Learner {
        let capacity = (capacity as u64).max(1);
        let unit = capacity.saturating_mul((UNIT / capacity).max(1));
        let comparison = Comparison::new(measured);
        Learner {
            unit,
            chosen: plan,
            reason: Reason::Plan,
            doubts: 0,
            by_time: false,
            due: sent.saturating_add(comparison.first_stretch(unit)),
            comparison,
            last: Look::default(),
            idle: 0,
            left: None,
            explored: 0,
        }
    }

    /// Takes over what others have learned about the same: then the first comparison is in no hurry.
    pub(crate) fn begin_with(&mut self, known: Learned) {
        (self.chosen, self.reason) = (known.store, known.reason);
        self.comparison.restart(true);
        self.due = self.comparison.first_stretch(self.unit);
    }

    /// Has so many first comparisons agree before one of them decides: for a caller of whom nothing is known but how long it takes, so that
    /// what else it does may differ from unit to unit.
    pub(crate) fn doubt(&mut self, times: u32) {
        (self.doubts, self.by_time) = (times, true);
    }

    /// Notes that since the last look it did not run for so many nanoseconds.
    pub(crate) fn rested(&mut self, nanoseconds: u64) {
        self.idle = self.idle.saturating_add(nanoseconds);
    }

    /// Returns the stores that the next bytes get.
    #[inline]
    pub fn store(&self) -> Store {
        if self.comparison.tries_other() { other(self.chosen) } else { self.chosen }
    }

    /// Returns whether the next bytes get what the plan says for each copy's own length: nothing was learned yet that would
    /// be better, and the others are not on trial.
    #[inline]
    pub fn is_planned(&self) -> bool {
        self.reason == Reason::Plan && !self.comparison.tries_other()
    }

    /// Returns why they are those that they are.
    #[inline]
    pub(crate) fn reason(&self) -> Reason {
        self.reason
    }

    /// Returns what was learned.
    pub fn learned(&self) -> Learned {
        // (A cast of what is no number gives 0.)
        let percent = self.comparison.gain().map(|gain| (gain * 100.0).round() as u32);
        Learned { store: self.chosen, reason: self.reason, percent }
    }

    /// Returns how many bytes got stores that aren't chosen.
    pub fn explored(&self) -> u64 {
        self.explored
    }

    /// Returns whether `head` bytes sent are enough for the next [`Learner::look`].
    #[inline]
    pub fn is_due(&self, head: u64) -> bool {
        head >= self.due
    }

    /// Returns whether the sender is to say when it enters and leaves a send.
    #[inline]
    pub fn is_timing(&self) -> bool {
        self.comparison.counts()
    }

    /// Returns whether it has not heard yet that the send under way has begun, and wants to.
    #[inline]
    pub fn wants_entry(&self) -> bool {
        self.left.is_some()
    }

    /// Notes that a send begins. `now` is in nanoseconds since any moment.
    pub fn enter(&mut self, now: u64) {
        if let Some(left) = self.left.take() {
            self.idle = self.idle.saturating_add(now.saturating_sub(left));
        }
    }

    /// Notes that a send ends.
    pub fn leave(&mut self, now: u64) {
        self.left = Some(now);
    }

    /// Looks how far the sender (`head`) and its reader (`tail`) are, both in bytes since the ring began, at `now`.
    /// Returns whether what was learned has changed.
    pub fn look(&mut self, now: u64, head: u64, tail: u64) -> bool {
        let before = self.learned();
        let passed = head.saturating_sub(self.last.head);
        if self.comparison.tries_other() {
            self.explored = self.explored.saturating_add(passed);
        }
        let rate = self.rate(now, head, tail);
        match self.comparison.end(passed, rate, self.chosen == Store::Cached) {
            Some(Verdict::Faster) if self.doubts > 0 => {
                self.doubts -= 1;
                self.comparison.restart(false);
            }
            Some(Verdict::Faster) => self.switch(Reason::Faster),
            Some(Verdict::Tie) => self.switch(Reason::Tie),
            Some(Verdict::Confirmed) => self.reason = Reason::Faster,
            // (From here on it takes more than one comparison anyway.)
            Some(Verdict::Stays) => self.doubts = 0,
            None => {}
        }
        self.due = head.saturating_add(self.stretch());
        self.last = Look { at: now, head, tail };
        self.idle = 0;
        self.left = None;
        before != self.learned()
    }

    /// How many bytes come before the next look. Where the thread is all that counts, the others get a share of its time and not of its bytes: the
    /// pause is longer by as much as they are slower.
    fn stretch(&mut self) -> u64 {
        let stretch = self.comparison.stretch(self.unit);
        let slower = self.comparison.gain().filter(|_| self.by_time && stretch > self.unit);
        // (Not by more, whatever else the thread did in the one unit: it would not follow for hours.)
        (stretch as f64 * slower.unwrap_or(1.0).clamp(1.0, 16.0)) as u64
    }

    /// The goodput since the last look in bytes a nanosecond. None if the unit says nothing: the program was idle, or
    /// others have sent into the ring.
    fn rate(&self, now: u64, head: u64, tail: u64) -> Option<f64> {
        let time = now.checked_sub(self.last.at)?;
        let sent = head.checked_sub(self.last.head)?;
        let read = tail.checked_sub(self.last.tail)?;
        let bytes = sent.min(read);
        let idle = self.idle > time / 4;
        let jumped = sent > self.unit.saturating_mul(2);
        (time > 0 && bytes > 0 && !idle && !jumped).then(|| bytes as f64 / time as f64)
    }

    fn switch(&mut self, reason: Reason) {
        (self.chosen, self.reason) = (other(self.chosen), reason);
    }
}

/// The other stores.
pub(crate) fn other(store: Store) -> Store {
    match store {
        Store::Cached => Store::NonTemporal,
        Store::NonTemporal => Store::Cached,
    }
}

impl fmt::Display for Learned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |store| match store {
            Store::Cached => "cached",
            Store::NonTemporal => "nt",
        };
        let compared = |f: &mut fmt::Formatter<'_>| match self.percent {
            Some(percent) => write!(f, " at {percent} % of {}", name(other(self.store))),
            None => Ok(()),
        };
        match self.reason {
            Reason::Plan => write!(f, "{} as planned", name(self.store)),
            Reason::Faster => write!(f, "{} as measured", name(self.store)),
            Reason::Tie => write!(f, "{} to spare caches", name(self.store)),
        }?;
        compared(f)
    }
}
