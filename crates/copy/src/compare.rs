//! Which of two ways of doing a thing is faster, found out on what is to be done anyway.
//!
//! One way is chosen, and the other is tried now and then. What they are, and what is counted (bytes, messages, answers), only the caller
//! knows: [`Learner`](crate::Learner) compares stores, a connection of unix sockets copying with lending.
//!
//! - A **unit** is so much work that its rate says something. Each comparison is made of units: one by the chosen way, one by
//!   the other that doesn't count, one by the other, one by the chosen way that doesn't count, and one by the chosen way. In the
//!   units that don't count there is still to pay for, or to finish, what was done the other way.
//! - The first comparison comes with the second unit, and may change the choice at once if the difference is large. If it comes to nothing, since
//!   the chosen way had a rate of its own each time and the other's was no answer to either, it is soon tried again, less and less so. After that, at most 2 % of the work is done the way that isn't chosen, and less the longer nothing changes.
//! - The choice changes when the other way was faster by 8 % in 6 of 7 comparisons. Between ways that are about as fast the caller may have
//!   a favourite: it is chosen if it is at most 5 % slower.
//!
//! There is no clock in here: the caller says how fast a unit was.

#[cfg(test)]
mod tests;

/// How many times faster the other way must be in a comparison that counts for it.
pub const FASTER: f64 = 1.08;
/// The same, where the very first comparison is to decide alone.
pub const MUCH_FASTER: f64 = 1.15;
/// A favourite that is no slower than this is chosen.
const TIE: f64 = 0.95;
/// A comparison is void where the chosen way's two rates differ by more than this factor, unless it is the first and the other way
/// is much faster than both of them, or much slower.
const STEADY: f64 = 1.25;
/// How many comparisons are looked at, and how many of them must agree.
const WINDOW: usize = 7;
const AGREE: usize = 6;
/// One part of the work in so many, at most, is done the way that isn't chosen.
pub const RARELY: u64 = 50;
/// The pause between comparisons is doubled at most so often.
const MAX_BACKOFF: u32 = 6;

/// Compares the way that is chosen with the other one.
#[derive(Clone, Debug)]
pub struct Comparison {
    phase: Phase,
    /// The rates of the comparison under way: the chosen way's, the other's.
    rates: [f64; 2],
    /// How many times faster the other was in the last comparisons, of which there were `seen`, or more than are kept.
    pairs: [f64; WINDOW],
    seen: usize,
    /// How many times faster the chosen way was, when last compared.
    gain: Option<f64>,
    /// Comparisons since the choice changed or the pause did.
    since: usize,
    backoff: u32,
    /// Whether the first comparison is still to come, which may decide alone, and how often it was tried in vain.
    first: bool,
    voids: u32,
    /// Work of this comparison that was done the other way.
    spent: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Between comparisons.
    Rest,
    /// The chosen way is measured,
    Chosen,
    /// the other one settles,
    Settle,
    /// is measured,
    Other,
    /// the chosen one settles again,
    Return,
    /// and is measured again.
    Confirm,
}

/// What a comparison comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The other way is faster: from here on it is the one that is chosen.
    Faster,
    /// The other way is the favourite, and not much slower: from here on it is the one that is chosen.
    Tie,
    /// The choice stays as it is,
    Stays,
    /// and was the faster one in nearly all of the last comparisons.
    Confirmed,
}

impl Verdict {
    /// Returns whether the other way is chosen from here on.
    pub fn switches(self) -> bool {
        matches!(self, Verdict::Faster | Verdict::Tie)
    }
}

impl Comparison {
    /// Begins to compare. `known`: the choice rests on figures of this machine already, and the first comparison neither is in a hurry nor
    /// decides alone.
    pub fn new(known: bool) -> Comparison {
        Comparison {
            phase: Phase::Rest,
            rates: [0.0; 2],
            pairs: [0.0; WINDOW],
            seen: 0,
            gain: None,
            since: 0,
            backoff: 0,
            first: !known,
            voids: 0,
            spent: 0,
        }
    }

    /// Forgets what was compared and begins anew, as [`Comparison::new`] does.
    pub fn restart(&mut self, known: bool) {
        (self.phase, self.first) = (Phase::Rest, !known);
        (self.seen, self.since, self.backoff, self.voids) = (0, 0, 0, 0);
        (self.spent, self.gain) = (0, None);
    }

    /// Returns whether what is done next is done the way that isn't chosen.
    #[inline]
    pub fn tries_other(&self) -> bool {
        matches!(self.phase, Phase::Settle | Phase::Other)
    }

    /// Returns whether the unit under way counts.
    #[inline]
    pub fn counts(&self) -> bool {
        matches!(self.phase, Phase::Chosen | Phase::Other | Phase::Confirm)
    }

    /// Returns how many times faster than the other the chosen way was, when last compared.
    pub fn gain(&self) -> Option<f64> {
        self.gain
    }

    /// Returns how much work comes before the first [`Comparison::end`], where a unit is `unit`.
    pub fn first_stretch(&self, unit: u64) -> u64 {
        if self.first { unit } else { unit.saturating_mul(2 * RARELY) }
    }

    /// Ends a unit, or the pause between two comparisons, in which `work` was done at `rate`: work by time, in any measure of both.
    /// None says that its time tells nothing. `favourite`: the other way wins a tie. Returns what it comes to where a comparison
    /// has ended, and not in vain.
    pub fn end(&mut self, work: u64, rate: Option<f64>, favourite: bool) -> Option<Verdict> {
        if self.tries_other() {
            self.spent = self.spent.saturating_add(work);
        }
        match self.phase {
            Phase::Rest => self.phase = Phase::Chosen,
            Phase::Settle => self.phase = Phase::Other,
            Phase::Return => self.phase = Phase::Confirm,
            Phase::Chosen => self.keep(0, rate, Phase::Settle),
            Phase::Other => self.keep(1, rate, Phase::Return),
            Phase::Confirm => {
                self.phase = Phase::Rest;
                let ([before, other], again) = (self.rates, rate?);
                let (slower, faster) = (before.min(again), before.max(again));
                let decides = self.first && other >= MUCH_FASTER * faster;
                // As clear the other way round: to ask again soon would cost what is known already.
                let settles = self.first && other * MUCH_FASTER <= slower;
                let steady = STEADY * slower >= faster;
                return (steady || decides || settles).then(|| self.compare(again, decides, favourite));
            }
        }
        None
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

    /// Returns how much work comes before the next [`Comparison::end`], where a unit is `unit`. To be asked once behind each `end`.
    pub fn stretch(&mut self, unit: u64) -> u64 {
        if self.phase != Phase::Rest {
            return unit;
        }
        let spent = std::mem::take(&mut self.spent);
        // A comparison that was given up before it cost anything is soon tried again, one that found nothing new less
        // and less often.
        let pause = match spent {
            0 => unit.saturating_mul(4),
            _ if self.first && self.voids < MAX_BACKOFF => {
                self.voids += 1;
                unit.saturating_mul(1 << self.voids)
            }
            _ => spent.saturating_mul(RARELY),
        };
        pause.max(unit).saturating_mul(1 << self.backoff)
    }

    /// Ends a comparison, of which the chosen way's rate was `again` at its end, and which may decide alone.
    fn compare(&mut self, again: f64, decides: bool, favourite: bool) -> Verdict {
        let [before, other] = self.rates;
        let faster = other / ((before + again) / 2.0);
        self.first = false;
        self.gain = Some(1.0 / faster);
        if self.seen == WINDOW {
            self.pairs.rotate_left(1);
        } else {
            self.seen += 1;
        }
        self.pairs[self.seen - 1] = faster;
        self.since += 1;
        let pairs = &self.pairs[..self.seen];
        let agreed =
            |enough: &dyn Fn(f64) -> bool| pairs.iter().filter(|&&pair| enough(pair)).count() >= AGREE;
        let whole = self.seen == WINDOW;
        let verdict = if decides || agreed(&|pair| pair >= FASTER) {
            Verdict::Faster
        } else if whole && favourite && agreed(&|pair| pair >= TIE) {
            Verdict::Tie
        } else if whole && agreed(&|pair| pair * FASTER <= 1.0) {
            Verdict::Confirmed
        } else {
            Verdict::Stays
        };
        if verdict.switches() {
            self.gain = Some(faster);
            self.seen = 0;
        }
        if verdict.switches() || faster >= FASTER {
            // It may be that something has changed: look more often again.
            (self.backoff, self.since) = (0, 0);
        } else if self.since >= WINDOW {
            self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
            self.since = 0;
        }
        verdict
    }
}
