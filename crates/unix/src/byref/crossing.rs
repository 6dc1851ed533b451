//! Up to which size loans are copied, found out on the loans that are sent.
//!
//! To lend a page costs the same whatever lies in it, and to copy it costs more the more that is. Where the two cross depends on the
//! machine, and on what the reader does with what comes. So each sending side compares them, as
//! [`onecopy_copy::Learner`] compares stores:
//!
//! - Sizes are told apart by powers of two. A **unit** is a number of loans of one such class, one after the other: more than lie between the
//!   two ends, so that the time of a unit is that of the slower end. Behind a change the ends still have loans of the other way before
//!   them: that unit doesn't count.
//! - Lending is where it begins, and what wins a tie: it leaves the caches, and the room in the ring, to others.
//! - What holds for a size holds for smaller ones where it is copying, and for larger ones where it is lending.
//! - Nothing is compared of what is too large to be a question, nor of sizes that change all the time: these are lent.
//!
//! There is no clock in here: the caller's is read once a unit.

use onecopy_copy::compare::Comparison;

/// Longer loans are lent, in bytes: a copy costs several times as much wherever it was measured.
pub const LONGEST: usize = 16 << 10;
/// Classes are base-2 logarithms, rounded up. All below the least are of one.
const LEAST: u32 = 6;
const MOST: u32 = LONGEST.trailing_zeros();

/// A unit has at least, and at most, so many loans.
const UNIT: u64 = 1024;
const MOST_UNIT: u64 = 16 << 10;

/// What one sending side has found out.
#[derive(Clone, Debug)]
pub struct Crossing {
    /// Loans of this class and smaller ones are copied; below [`LEAST`]: none.
    copied: u32,
    /// Loans of this class and larger ones are known to be lent.
    lent: u32,
    /// The class of the loans of this unit. 0: there was none yet.
    class: u32,
    /// Of this class: the chosen way with the other one.
    comparison: Comparison,
    /// Loans of this unit, and how many of them are to come.
    unit: u64,
    left: u64,
    /// When it began.
    began: u64,
}

impl Default for Crossing {
    fn default() -> Self {
        let comparison = Comparison::new(false);
        Crossing { copied: LEAST - 1, lent: MOST + 1, class: 0, comparison, unit: 0, left: 0, began: 0 }
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
        let copies = self.chooses_copies() != self.comparison.tries_other();
        if self.left == 0 {
            self.look(now(), room);
        }
        copies
    }

    /// Up to how many bytes loans were found faster copied, or 0; None: nothing was found out.
    pub fn copied_up_to(&self) -> Option<u32> {
        match (self.copied >= LEAST, self.lent <= MOST) {
            (true, _) => Some(1 << self.copied),
            (false, true) => Some(0),
            (false, false) => None,
        }
    }

    fn chooses_copies(&self) -> bool {
        self.class <= self.copied
    }

    fn begin(&mut self, loans: u64) {
        (self.unit, self.left) = (loans, loans);
    }

    /// Sizes have changed: what is under way says nothing.
    #[cold]
    fn turn_to(&mut self, class: u32, room: usize) {
        self.class = class;
        self.comparison.restart(class <= self.copied || class >= self.lent);
        self.begin(self.comparison.first_stretch(self.least_unit(room)));
    }

    fn least_unit(&self, room: usize) -> u64 {
        ((room >> self.class) as u64).clamp(UNIT, MOST_UNIT)
    }

    #[cold]
    fn look(&mut self, now: u64, room: usize) {
        let took = now.saturating_sub(self.began);
        let rate = (took > 0).then(|| self.unit as f64 / took as f64);
        let copies = self.chooses_copies();
        // Lending is the favourite.
        if let Some(verdict) = self.comparison.end(self.unit, rate, copies) {
            if copies == verdict.switches() {
                self.copied = self.copied.min(self.class - 1);
                self.lent = self.lent.min(self.class);
            } else {
                self.copied = self.copied.max(self.class);
                self.lent = self.lent.max(self.class + 1);
            }
        }
        self.began = now;
        let loans = self.comparison.stretch(self.least_unit(room));
        self.begin(loans);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_copy::compare::RARELY;

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
    /// Long enough for a first comparison of any size.
    const FIRST: u64 = 6 * MOST_UNIT;
    /// Long enough for as many as are looked at.
    const ALL: u64 = 7 * 105 * MOST_UNIT;

    #[test]
    fn what_is_faster_is_chosen_and_the_other_is_tried_rarely() {
        let mut machine = Machine::new(170, |len| 90 + len as u64 / 16);
        assert_eq!(machine.send(64, UNIT), 0.0, "lent, until something is known");
        assert_eq!(machine.crossing.copied_up_to(), None);
        machine.send(64, FIRST);
        assert!(machine.send(64, 3_000_000) > 0.98);
        assert_eq!(machine.crossing.copied_up_to(), Some(64));
        machine.send(1024, ALL);
        assert!(machine.send(1024, 1_000_000) > 0.97, "154 ns are 9 % less");
        assert_eq!(machine.crossing.copied_up_to(), Some(1024));
        machine.send(2048, FIRST);
        assert!(machine.send(2048, 1_000_000) < 0.03, "218 ns");
        assert!(machine.send(64, 1_000_000) > 0.97);
    }

    #[test]
    fn what_holds_for_a_size_is_not_asked_again_of_those_beyond() {
        let mut machine = Machine::new(100, |_| 10);
        machine.send(4096, FIRST);
        assert_eq!(machine.send(512, UNIT * 2 * RARELY), 1.0);
        let mut machine = Machine::new(10, |_| 100);
        machine.send(512, FIRST);
        assert_eq!(machine.crossing.copied_up_to(), Some(0));
        assert_eq!(machine.send(4096, UNIT * 2 * RARELY), 0.0);
        assert_eq!(machine.send(LONGEST + 1, 10 * FIRST), 0.0, "no question");
    }

    #[test]
    fn what_is_about_as_fast_is_lent() {
        let mut machine = Machine::new(100, |_| 94);
        machine.send(64, FIRST);
        assert!(machine.send(64, 1_000_000) < 0.03);
        machine.lent = 170;
        machine.send(64, 2 * ALL);
        assert!(machine.send(64, 1_000_000) > 0.97, "much was faster");
        machine.lent = 96;
        machine.send(64, 20 * ALL);
        assert!(machine.send(64, 1_000_000) < 0.03, "and lending is its favourite again");
    }

    #[test]
    fn it_follows_a_machine_that_changes() {
        let mut machine = Machine::new(170, |_| 100);
        machine.send(64, FIRST);
        machine.lent = 80;
        machine.send(64, 2 * ALL);
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
