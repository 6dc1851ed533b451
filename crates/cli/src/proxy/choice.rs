//! Whether a lent body that lies in sealed memory is copied by the kernel, out of a mapping, or goes by reference: found out on the answers that
//! a thread sends.
//!
//! By reference it costs the proxy about two thirds of the CPU time at any length. What that does to the rate depends on the length, on the
//! machine and on the hour: the clients read from memory what they would find in a cache. So each thread compares the two for lengths of one
//! power of two, as [`Comparison`] says. A **unit** is a number of answers that is large beside those under way. By reference wins a tie.
//!
//! There is no clock in here.

use onecopy::advanced::copy::compare::Comparison;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Where nothing was compared yet, bodies of more than half of this go by reference, in bytes: those of its class, and longer ones.
const LARGE: u64 = 1 << 20;
/// A unit has at least so many bytes, and so many answers; and so many times as many as are under way, each of which counts where it ends,
/// whichever way it began.
const UNIT: u64 = 64 << 20;
const ANSWERS: u64 = 16;
const TURNS: u64 = 4;

/// What all threads have found out, to be told: by the power of two whether by reference was chosen last, and its rate in percent of the other way's, or
/// the other way's in percent of its.
#[derive(Debug, Default)]
pub struct Found(Mutex<BTreeMap<u32, (bool, f64)>>);

impl Found {
    /// Notes what a thread has found out just now.
    pub fn note(&self, class: u32, choice: &Choice) {
        if let Some(gain) = choice.comparison.gain() {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(class, (choice.by_reference, gain * 100.0));
        }
    }

    /// All of it in words. None: nothing was found out.
    pub fn text(&self) -> Option<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let part = |(&class, &(by_reference, percent)): (&u32, &(bool, f64))| {
            let (chosen, other) = if by_reference { ("spliced", "mapped") } else { ("mapped", "spliced") };
            let up_to = 1u64.checked_shl(class).unwrap_or(u64::MAX);
            format!("of up to {} KiB {chosen} as measured at {percent:.0} % of {other}", up_to.div_ceil(1024))
        };
        let parts: Vec<_> = all.iter().map(part).collect();
        (!parts.is_empty()).then(|| format!("lent bodies in memory: {}", parts.join("; ")))
    }
}

/// What one thread has found out for bodies of one power of two.
#[derive(Debug)]
pub struct Choice {
    comparison: Comparison,
    /// What is chosen.
    by_reference: bool,
    /// Bytes of an answer at most, of the unit under way, and of those that it has so far.
    length: u64,
    unit: u64,
    sent: u64,
    /// When it began, in nanoseconds since any moment, and how many of them nothing was sent in.
    began: u64,
    idle: u64,
    /// Answers under way, and since when there is none.
    under_way: u32,
    left: u64,
}

/// The power of two that a length is of: there is a [`Choice`] for each.
pub fn class(length: u64) -> u32 {
    length.next_power_of_two().trailing_zeros()
}

/// Bytes of a unit of answers of `length` bytes, where so many are under way at a time.
fn unit(length: u64, under_way: u32) -> u64 {
    UNIT.max(length.saturating_mul(ANSWERS.max(TURNS * (u64::from(under_way) + 1))))
}

impl Choice {
    /// Begins to find out about bodies of up to two to the power of `class` bytes.
    pub fn new(class: u32, now: u64) -> Choice {
        let length = 1u64.checked_shl(class).unwrap_or(u64::MAX);
        let comparison = Comparison::new(false);
        Choice {
            unit: comparison.first_stretch(unit(length, 0)),
            comparison,
            by_reference: length >= LARGE,
            length,
            sent: 0,
            began: now,
            idle: 0,
            under_way: 0,
            left: now,
        }
    }

    /// Says whether the answer that begins at `now` goes by reference.
    pub fn begin(&mut self, now: u64) -> bool {
        if self.under_way == 0 {
            self.idle = self.idle.saturating_add(now.saturating_sub(self.left));
        }
        self.under_way += 1;
        self.by_reference != self.comparison.tries_other()
    }

    /// Notes that an answer has ended at `now`, of which `sent` bytes went. Returns whether something was found out.
    pub fn end(&mut self, sent: u64, now: u64) -> bool {
        self.under_way = self.under_way.saturating_sub(1);
        self.left = now;
        self.sent = self.sent.saturating_add(sent);
        if self.sent < self.unit {
            return false;
        }
        let took = now.saturating_sub(self.began);
        // A thread that has had nothing to send for a good part of the time learns nothing of ways.
        let tells = took > 0 && self.idle <= took / 4;
        let rate = tells.then(|| self.sent as f64 / took as f64);
        let verdict = self.comparison.end(self.sent, rate, !self.by_reference);
        if verdict.is_some_and(|verdict| verdict.switches()) {
            self.by_reference = !self.by_reference;
        }
        self.unit = self.comparison.stretch(unit(self.length, self.under_way));
        (self.sent, self.began, self.idle) = (0, now, 0);
        verdict.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that sends answers of one length one after the other, at so many bytes a nanosecond: copied, by reference.
    struct Thread {
        choice: Choice,
        length: u64,
        rates: [f64; 2],
        pause: u64,
        now: u64,
    }

    impl Thread {
        fn new(length: u64, rates: [f64; 2]) -> Thread {
            Thread { choice: Choice::new(class(length), 0), length, rates, pause: 0, now: 0 }
        }

        /// Sends so many answers, and says which share went by reference.
        fn send(&mut self, answers: u64) -> f64 {
            let mut by_reference = 0;
            for _ in 0..answers {
                let way = self.choice.begin(self.now);
                by_reference += u64::from(way);
                self.now += (self.length as f64 / self.rates[usize::from(way)]) as u64;
                self.choice.end(self.length, self.now);
                self.now += self.pause;
            }
            by_reference as f64 / answers as f64
        }
    }

    #[test]
    fn what_is_much_faster_is_chosen_after_six_units() {
        let mut thread = Thread::new(512 << 10, [4.0, 5.0]);
        assert_eq!(thread.send(128), 0.0, "half a megabyte is copied until something is known");
        thread.send(6 * 128);
        assert_eq!(thread.send(128 * 90), 1.0);
        for length in [1 << 20, 16 << 20] {
            let unit = unit(length, 0) / length;
            let mut thread = Thread::new(length, [7.0, 5.0]);
            assert_eq!(thread.send(unit), 1.0, "what is large goes by reference");
            thread.send(6 * unit);
            assert_eq!(thread.send(unit * 90), 0.0);
        }
    }

    #[test]
    fn what_was_found_out_is_told() {
        let found = Found::default();
        let mut thread = Thread::new(512 << 10, [4.0, 5.0]);
        found.note(19, &thread.choice);
        assert_eq!(found.text(), None, "nothing was compared");
        thread.send(7 * 128);
        found.note(19, &thread.choice);
        let mut thread = Thread::new(3 << 20, [5.0, 4.0]);
        thread.send(7 * 32);
        found.note(22, &thread.choice);
        assert_eq!(
            found.text().unwrap(),
            "lent bodies in memory: of up to 512 KiB spliced as measured at 125 % of mapped; \
             of up to 4096 KiB mapped as measured at 125 % of spliced"
        );
    }

    #[test]
    fn by_reference_wins_a_tie() {
        let all = 7 * 106 * 128;
        let mut thread = Thread::new(512 << 10, [5.0, 4.9]);
        thread.send(all);
        assert!(thread.send(all) > 0.95);
        let mut thread = Thread::new(512 << 10, [5.0, 4.5]);
        thread.send(all);
        assert!(thread.send(all) < 0.05);
    }

    /// With many answers under way the first that end in a unit have begun the way of the one before.
    #[test]
    fn many_answers_under_way_do_not_turn_the_verdict_round() {
        for (rates, by_reference) in [([5.0, 4.1], false), ([4.1, 5.0], true)] {
            for under_way in [8, 48, 300] {
                let mut choice = Choice::new(class(8 << 20), 0);
                let (mut now, mut ways) = (0, std::collections::VecDeque::new());
                for _ in 0..under_way {
                    ways.push_back(choice.begin(now));
                }
                // One is sent after the other, whichever way it began.
                for _ in 0..200 * TURNS * under_way {
                    let way = ways.pop_front().unwrap();
                    now += ((8 << 20) as f64 / rates[usize::from(way)]) as u64;
                    choice.end(8 << 20, now);
                    ways.push_back(choice.begin(now));
                }
                assert_eq!(choice.by_reference, by_reference, "{rates:?}, {under_way} under way");
            }
        }
    }

    #[test]
    fn a_thread_that_is_mostly_idle_learns_nothing() {
        let mut thread = Thread { pause: 1_000_000, ..Thread::new(512 << 10, [1.0, 9.0]) };
        assert_eq!(thread.send(100_000), 0.0);
    }

    /// A length that a misbehaving backend says, and a clock that stands still.
    #[test]
    fn nothing_breaks_it() {
        let mut choice = Choice::new(class(u64::MAX / 2 + 1), 5);
        for n in 0..100 {
            choice.begin(3);
            choice.end(u64::MAX >> (n % 3), 4);
        }
        choice.end(1, 0);
    }
}
