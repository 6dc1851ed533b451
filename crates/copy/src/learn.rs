//! Which stores the bytes of one ring should get, found out while the ring is used.
//!
//! What a CPU says of its caches need not be true, above all in a virtual machine. So no such word decides alone: a
//! [`Learner`] begins with what [`plan`](crate::plan()) says and compares it with the other kind of stores, on the
//! bytes that are sent anyway.
//!
//! - A **unit** is a number of whole laps around the ring, and each comparison is made of units: one with the chosen
//!   stores, one with the others that doesn't count, one with the others, one with the chosen stores that doesn't
//!   count, and one with the chosen stores. The units that don't count are there because stores defer their cost: what
//!   an ordinary store leaves in a cache is written to memory a lap later, at the expense of whatever is stored then.
//! - What is compared is goodput: the smaller of what was sent and what the reader gave back, divided by the time.
//!   While the ring fills up the sender's part is too large, while it drains the reader's is.
//! - The clock is read once a unit, and twice a send in those that count, to find units in which the program had
//!   nothing to send: they say nothing about stores.
//! - The first comparison comes with the second unit and may change the choice at once if the difference is large.
//!   After that, at most 2 % of the bytes get the stores that aren't chosen, and less the longer nothing changes.
//! - The choice changes when the others were faster by 8 % in 6 of 7 comparisons. Non-temporal stores are chosen if
//!   they are at most 5 % slower: they leave the caches to the rest of the program, which no figure here shows.
//!
//! There is no clock and no memory in here: the caller says how late it is and how far sender and reader are.

use crate::policy::{Reader, Store};
use std::fmt;

#[cfg(test)]
mod tests;

/// Nothing is learned with shorter copies, in bytes: they get what the plan says, which is ordinary stores nearly
/// everywhere, since a fence costs them more than it gains.
pub const LEARN_MIN: usize = 4096;

/// What a unit is about, in bytes, where a lap is less: the first comparison is over after six of them, 64 MiB.
const UNIT: u64 = (64 << 20) / 6;
/// How many times faster the other stores must be in a comparison that counts for them.
const FASTER: f64 = 1.08;
/// The same, where the very first comparison is to decide alone.
const MUCH_FASTER: f64 = 1.15;
/// Non-temporal stores that are no slower than this are chosen.
const TIE: f64 = 0.95;
/// A comparison is void where the chosen stores' two rates differ by more than this factor.
const STEADY: f64 = 1.25;
/// How many comparisons are looked at, and how many of them must agree.
const WINDOW: usize = 7;
const AGREE: usize = 6;
/// One byte in so many, at most, gets the stores that aren't chosen.
const RARELY: u64 = 50;
/// The pause between comparisons is doubled at most so often.
const MAX_BACKOFF: u32 = 6;

/// Learns which stores one direction of a ring should get.
#[derive(Clone, Debug)]
pub struct Learner {
    unit: u64,
    chosen: Store,
    reason: Reason,
    /// How many times faster the chosen stores were than the others, when last compared.
    gain: Option<f64>,
    phase: Phase,
    /// The position, in bytes sent, at which the next look is due.
    due: u64,
    /// What the look before found.
    last: Look,
    /// The rates of the comparison under way, in bytes a nanosecond: the chosen stores', the others'.
    rates: [f64; 2],
    /// How many times faster the others were in the last comparisons. Invariant: at most `WINDOW` of them.
    pairs: Vec<f64>,
    /// Comparisons since the choice changed or the pause did.
    since: usize,
    backoff: u32,
    /// Whether the first comparison is still to come, which may decide alone.
    first: bool,
    /// Nanoseconds of this unit in which the program sent nothing, and when its last send ended.
    idle: u64,
    left: Option<u64>,
    /// Bytes of this comparison, and of all, that the others got.
    spent: u64,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Between comparisons.
    Rest,
    /// The chosen stores are measured,
    Chosen,
    /// the others settle,
    Settle,
    /// are measured,
    Other,
    /// the chosen ones settle again,
    Return,
    /// and are measured again.
    Confirm,
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
        let wait = if measured { unit.saturating_mul(2 * RARELY) } else { unit };
        Learner {
            unit,
            chosen: plan,
            reason: Reason::Plan,
            gain: None,
            phase: Phase::Rest,
            due: sent.saturating_add(wait),
            last: Look::default(),
            rates: [0.0; 2],
            pairs: Vec::with_capacity(WINDOW),
            since: 0,
            backoff: 0,
            first: !measured,
            idle: 0,
            left: None,
            spent: 0,
            explored: 0,
        }
    }

    /// Begins to learn about a ring of `capacity` bytes that `reader` reads, of which `sent` bytes went through it
    /// already. None where nothing is to be learned: a ring that fits the second level of caches gets ordinary stores, and
    /// where [`force`](crate::force()) or `ONECOPY_COPY` names the kernel, that is what shall run.
    pub fn for_ring(capacity: usize, sent: u64, reader: Reader) -> Option<Learner> {
        let engine = crate::dispatch::engine();
        let plan = engine.thresholds.auto(LEARN_MIN.max(64 << 10), capacity, reader);
        (capacity >= engine.learns_from).then(|| Learner::new(capacity, sent, plan, engine.measured))
    }

    /// Returns the stores that the next bytes get.
    #[inline]
    pub fn store(&self) -> Store {
        match self.phase {
            Phase::Settle | Phase::Other => other(self.chosen),
            _ => self.chosen,
        }
    }

    /// Returns whether the next bytes get what the plan says for each copy's own length: nothing was learned yet that would
    /// be better, and the others are not on trial.
    #[inline]
    pub fn is_planned(&self) -> bool {
        self.reason == Reason::Plan && !matches!(self.phase, Phase::Settle | Phase::Other)
    }

    /// Returns what was learned.
    pub fn learned(&self) -> Learned {
        // (A cast of what is no number gives 0.)
        let percent = self.gain.map(|gain| (gain * 100.0).round() as u32);
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
        matches!(self.phase, Phase::Chosen | Phase::Other | Phase::Confirm)
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
        if matches!(self.phase, Phase::Settle | Phase::Other) {
            self.spent = self.spent.saturating_add(passed);
            self.explored = self.explored.saturating_add(passed);
        }
        let rate = self.rate(now, head, tail);
        match self.phase {
            Phase::Rest => self.phase = Phase::Chosen,
            Phase::Settle => self.phase = Phase::Other,
            Phase::Return => self.phase = Phase::Confirm,
            Phase::Chosen => self.keep(0, rate, Phase::Settle),
            Phase::Other => self.keep(1, rate, Phase::Return),
            Phase::Confirm => {
                match rate {
                    Some(again) if STEADY * self.rates[0].min(again) >= self.rates[0].max(again) => {
                        self.compare(again);
                    }
                    _ => {}
                }
                self.phase = Phase::Rest;
            }
        }
        let pause = match self.phase {
            Phase::Rest => self.pause(),
            _ => self.unit,
        };
        self.due = head.saturating_add(pause);
        self.last = Look { at: now, head, tail };
        self.idle = 0;
        self.left = None;
        before != self.learned()
    }

    /// Keeps a rate and goes on, or gives the comparison up where the unit says nothing.
    fn keep(&mut self, which: usize, rate: Option<f64>, next: Phase) {
        self.phase = match rate {
            Some(rate) => {
                self.rates[which] = rate;
                next
            }
            None => Phase::Rest,
        };
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

    /// Ends a comparison, of which the chosen stores' rate was `again` at its end.
    fn compare(&mut self, again: f64) {
        let [before, others] = self.rates;
        let faster = others / ((before + again) / 2.0);
        let decides = self.first && others >= MUCH_FASTER * before.max(again);
        self.first = false;
        self.gain = Some(1.0 / faster);
        if self.pairs.len() == WINDOW {
            self.pairs.remove(0);
        }
        self.pairs.push(faster);
        self.since += 1;
        let agreed =
            |enough: &dyn Fn(f64) -> bool| self.pairs.iter().filter(|&&pair| enough(pair)).count() >= AGREE;
        if decides || agreed(&|pair| pair >= FASTER) {
            self.switch(Reason::Faster);
        } else if self.pairs.len() == WINDOW && self.chosen == Store::Cached && agreed(&|pair| pair >= TIE) {
            self.switch(Reason::Tie);
        } else if self.pairs.len() == WINDOW && agreed(&|pair| pair * FASTER <= 1.0) {
            self.reason = Reason::Faster;
        }
        if faster >= FASTER {
            // It may be that something has changed: look more often again.
            (self.backoff, self.since) = (0, 0);
        } else if self.since >= WINDOW {
            self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
            self.since = 0;
        }
    }

    fn switch(&mut self, reason: Reason) {
        self.chosen = other(self.chosen);
        self.reason = reason;
        self.gain = self.gain.map(|gain| 1.0 / gain);
        self.pairs.clear();
        (self.backoff, self.since) = (0, 0);
    }

    /// How many bytes go by before the next comparison.
    fn pause(&mut self) -> u64 {
        let spent = std::mem::take(&mut self.spent);
        // A comparison that was given up before it cost anything is soon tried again, one that found nothing new less
        // and less often.
        let pause = if spent == 0 { self.unit.saturating_mul(4) } else { spent.saturating_mul(RARELY) };
        pause.max(self.unit).saturating_mul(1 << self.backoff)
    }
}

fn other(store: Store) -> Store {
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
