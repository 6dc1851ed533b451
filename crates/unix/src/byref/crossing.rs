//! Up to which size loans are copied, found out on the loans that are sent.
//!
//! To lend a page costs the same whatever lies in it, and to copy it costs more the more that is. Where the two cross depends on the
//! machine, and on what the reader does with what comes. So each sending side compares them, as
//! [`onecopy_copy::Learner`] compares stores:
//!
//! - Sizes are told apart by powers of two. A **unit** is a number of loans of one such class, one after the other: more than lie between the
//!   two ends, so that the time of a unit is that of the slower end.
//! - A comparison is made of units: one by the chosen way, one by the other that doesn't count, one by the other, one by the chosen that doesn't
//!   count, one by the chosen. In those that don't count, the ends still have loans of the other way before them.
//! - The other way is chosen if it was faster than both units of the chosen one: by a lot at once, by less if it is so twice. Copying has
//!   to be faster by 8 %. Lending leaves the caches, and the room in the ring, to others.
//! - What holds for a size holds for smaller ones where it is copying, and for larger ones where it is lending.
//! - Nothing is compared of what is too large to be a question, nor of sizes that change all the time: these are lent.
//!
//! There is no clock in here: the caller's is read twice a unit.

/// Longer loans are lent, in bytes: a copy costs several times as much wherever it was measured.
pub const LONGEST: usize = 16 << 10;
/// Classes are base-2 logarithms, rounded up. All below the least are of one.
const LEAST: u32 = 6;
const MOST: u32 = LONGEST.trailing_zeros();

/// A unit has at least, and at most, so many loans.
const UNIT: u64 = 1024;
const MOST_UNIT: u64 = 16 << 10;
/// How many times faster copying must be than lending, and lending than copying.
const COPY_FASTER: f64 = 1.08;
const LEND_FASTER: f64 = 1.0;
/// The same, for a comparison that decides alone.
const MUCH_FASTER: f64 = 1.15;
/// A comparison is void where the chosen way's two times differ by more than this factor.
const STEADY: f64 = 1.25;
/// Units between two comparisons, so that the other way gets one loan in fifty; doubled at most so often while nothing changes.
const PAUSE: u64 = 100;
const MAX_BACKOFF: u32 = 6;

/// What one sending side has found out.
#[derive(Clone, Debug, PartialEq)]
pub struct Crossing {
    /// Loans of this class and smaller ones are copied; below [`LEAST`]: none.
    copied: u32,
    /// Loans of this class and larger ones are known to be lent.
    lent: u32,
    /// The class of the loans of this unit. 0: there was none yet.
    class: u32,
    phase: Phase,
    /// Loans until the unit is over.
    left: u64,
    /// When it began, and how long those that count took: the chosen way's and the other's.
    began: u64,
    times: [u64; 2],
    votes: u32,
    backoff: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Between comparisons.
    Rest,
    Chosen,
    Settle,
    Other,
    Return,
    Confirm,
}

impl Default for Crossing {
    fn default() -> Self {
        Crossing {
            copied: LEAST - 1,
            lent: MOST + 1,
            class: 0,
            phase: Phase::Rest,
            left: 0,
            began: 0,
            times: [0; 2],
            votes: 0,
            backoff: 0,
        }
    }
}

fn class(len: usize) -> u32 {
    len.next_power_of_two().trailing_zeros().max(LEAST)
}

impl Crossing {
    /// Says whether a loan of `len` bytes is to be copied. `room`: the bytes that the ring has. `now`: nanoseconds.
    #[inline]
    pub fn copies(&mut self, len: usize, room: usize, now: impl FnOnce() -> u64) -> bool {
        if len > LONGEST {
            return false;
        }
        let class = class(len);
        if class != self.class {
            self.turn_to(class, room);
        }
        self.left -= 1;
        let copies = match self.phase {
            Phase::Settle | Phase::Other => class > self.copied,
            _ => class <= self.copied,
        };
        if self.left == 0 {
            self.look(now(), room);
        }
        copies
    }

    fn unit(&self, room: usize) -> u64 {
        ((room >> self.class) as u64).clamp(UNIT, MOST_UNIT)
    }

    /// Sizes have changed: what is under way says nothing.
    #[cold]
    fn turn_to(&mut self, class: u32, room: usize) {
        (self.class, self.votes, self.backoff) = (class, 0, 0);
        self.rest(room, if class <= self.copied || class >= self.lent { PAUSE } else { 1 });
    }

    fn rest(&mut self, room: usize, units: u64) {
        (self.phase, self.left) = (Phase::Rest, self.unit(room) * units);
    }

    #[cold]
    fn look(&mut self, now: u64, room: usize) {
        let took = now.saturating_sub(self.began);
        (self.began, self.left) = (now, self.unit(room));
        self.phase = match self.phase {
            Phase::Rest => Phase::Chosen,
            Phase::Chosen => {
                self.times[0] = took;
                Phase::Settle
            }
            Phase::Settle => Phase::Other,
            Phase::Other => {
                self.times[1] = took;
                Phase::Return
            }
            Phase::Return => Phase::Confirm,
            Phase::Confirm => return self.conclude(took, room),
        };
    }

    fn conclude(&mut self, confirmed: u64, room: usize) {
        let (first, other) = (self.times[0] as f64, self.times[1] as f64);
        let (fast, slow) = (first.min(confirmed as f64), first.max(confirmed as f64));
        let copies = self.class <= self.copied;
        let needed = if copies { LEND_FASTER } else { COPY_FASTER };
        let steady = slow <= fast * STEADY;
        self.votes = match fast / other {
            _ if !steady => 0,
            times if times >= MUCH_FASTER => 2,
            times if times > needed => self.votes + 1,
            _ => 0,
        };
        if self.votes == 1 {
            return self.rest(room, 1);
        }
        let changes = self.votes >= 2;
        self.votes = 0;
        if changes != copies && steady {
            // Copied from here on, or as before.
            self.copied = self.copied.max(self.class);
            self.lent = self.lent.max(self.class + 1);
        } else if steady {
            self.copied = self.copied.min(self.class - 1);
            self.lent = self.lent.min(self.class);
        }
        self.backoff = if changes { 0 } else { (self.backoff + 1).min(MAX_BACKOFF) };
        // What was void tells nothing, and is tried again sooner at first.
        self.rest(room, if steady { PAUSE << (self.backoff.max(1) - 1) } else { 1 << self.backoff });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which loans take so many nanoseconds, and what is sent on it.
    struct Machine {
        crossing: Crossing,
        now: u64,
        lent: u64,
        copied: fn(usize) -> u64,
        copies: u64,
    }

    impl Machine {
        fn new(lent: u64, copied: fn(usize) -> u64) -> Machine {
            Machine { crossing: Crossing::default(), now: 0, lent, copied, copies: 0 }
        }

        /// Sends so many loans, and says which share was copied.
        fn send(&mut self, len: usize, count: u64) -> f64 {
            let before = self.copies;
            for _ in 0..count {
                let now = self.now;
                let copies = self.crossing.copies(len, ROOM, || now);
                self.copies += u64::from(copies);
                self.now += if copies { (self.copied)(len) } else { self.lent };
            }
            (self.copies - before) as f64 / count as f64
        }
    }

    const ROOM: usize = 256 << 10;
    /// Long enough for a first comparison of any size, with as many units as it may take.
    const FIRST: u64 = 13 * MOST_UNIT;

    #[test]
    fn what_is_faster_is_chosen_and_the_other_is_tried_rarely() {
        let mut machine = Machine::new(170, |len| 90 + len as u64 / 16);
        assert_eq!(machine.send(64, UNIT), 0.0, "lent, until something is known");
        machine.send(64, FIRST);
        assert!(machine.send(64, 3_000_000) > 0.98);
        machine.send(1024, FIRST);
        assert!(machine.send(1024, 1_000_000) > 0.97, "154 ns are 9 % less");
        machine.send(2048, FIRST);
        assert!(machine.send(2048, 1_000_000) < 0.03, "218 ns");
        assert!(machine.send(64, 1_000_000) > 0.97);
    }

    #[test]
    fn what_holds_for_a_size_is_not_asked_again_of_those_beyond() {
        let mut machine = Machine::new(100, |_| 10);
        machine.send(4096, FIRST);
        assert_eq!(machine.send(512, UNIT * PAUSE), 1.0);
        let mut machine = Machine::new(10, |_| 100);
        machine.send(512, FIRST);
        assert_eq!(machine.send(4096, UNIT * PAUSE), 0.0);
        assert_eq!(machine.send(LONGEST + 1, 10 * FIRST), 0.0, "no question");
    }

    #[test]
    fn what_is_about_as_fast_is_lent() {
        let mut machine = Machine::new(100, |_| 94);
        machine.send(64, FIRST);
        assert!(machine.send(64, 1_000_000) < 0.03);
    }

    #[test]
    fn it_follows_a_machine_that_changes() {
        let mut machine = Machine::new(170, |_| 100);
        machine.send(64, FIRST);
        machine.lent = 80;
        machine.send(64, 2 * PAUSE * MOST_UNIT);
        assert!(machine.send(64, 1_000_000) < 0.03);
    }

    #[test]
    fn sizes_that_change_all_the_time_are_lent() {
        let mut machine = Machine::new(170, |_| 100);
        let share: f64 = (0..200_000).map(|n| machine.send(if n % 2 == 0 { 64 } else { 1024 }, 1)).sum();
        assert_eq!(share, 0.0);
    }

    /// A pause in one unit of the chosen way makes the two differ, and then nothing is believed.
    #[test]
    fn a_program_that_pauses_decides_nothing() {
        let mut machine = Machine::new(100, |_| 105);
        for _ in 0..200 {
            machine.send(64, MOST_UNIT / 2 + 77);
            machine.now += 50_000_000;
        }
        assert_eq!(machine.crossing.copied, LEAST - 1);
    }
}
