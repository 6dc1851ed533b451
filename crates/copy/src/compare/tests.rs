use super::*;
use proptest::prelude::*;

const UNIT: u64 = 100;

/// Work that is done one of two ways, at rates that are off by up to `noise` of themselves.
struct Machine {
    comparison: Comparison,
    rates: [f64; 2],
    /// Which of the two is chosen, and whether the second wins a tie.
    chosen: usize,
    favourite: bool,
    noise: f64,
    seed: u64,
    done: u64,
    /// Work that was done the way that is not chosen.
    explored: u64,
    verdicts: Vec<Verdict>,
    /// Work until the next end.
    stretch: u64,
}

impl Machine {
    fn new(rates: [f64; 2]) -> Machine {
        Machine::known(rates, false)
    }

    fn known(rates: [f64; 2], known: bool) -> Machine {
        let comparison = Comparison::new(known);
        let stretch = comparison.first_stretch(UNIT);
        Machine {
            comparison,
            rates,
            chosen: 0,
            favourite: false,
            noise: 0.0,
            seed: 1,
            done: 0,
            explored: 0,
            verdicts: Vec::new(),
            stretch,
        }
    }

    fn random(&mut self) -> f64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as f64 / (1u64 << 31) as f64
    }

    /// Works as it is told to, until `verdicts` comparisons more have come to something.
    fn compare(&mut self, verdicts: usize) {
        let end = self.verdicts.len() + verdicts;
        while self.verdicts.len() < end {
            self.unit(true);
        }
    }

    fn unit(&mut self, tells: bool) {
        let tried = self.comparison.tries_other();
        let way = if tried { 1 - self.chosen } else { self.chosen };
        let rate = self.rates[way] * (1.0 + self.noise * (2.0 * self.random() - 1.0));
        self.done += self.stretch;
        self.explored += if tried { self.stretch } else { 0 };
        let verdict =
            self.comparison.end(self.stretch, tells.then_some(rate), self.favourite && self.chosen == 0);
        self.verdicts.extend(verdict);
        if verdict.is_some_and(Verdict::switches) {
            self.chosen = 1 - self.chosen;
        }
        self.stretch = self.comparison.stretch(UNIT);
    }
}

#[test]
fn what_is_much_faster_is_chosen_after_six_units() {
    let mut machine = Machine::new([1.0, 1.2]);
    machine.compare(1);
    assert_eq!((machine.chosen, machine.done), (1, 6 * UNIT));
    assert_eq!(machine.comparison.gain(), Some(1.2));
}

#[test]
fn what_is_a_tenth_faster_has_to_show_it_six_times() {
    let mut machine = Machine::new([1.0, 1.1]);
    machine.compare(5);
    assert_eq!((machine.chosen, machine.verdicts.last()), (0, Some(&Verdict::Stays)));
    machine.compare(1);
    assert_eq!((machine.chosen, machine.verdicts.last()), (1, Some(&Verdict::Faster)));
}

#[test]
fn a_favourite_wins_a_tie() {
    let mut machine = Machine { favourite: true, ..Machine::new([1.0, 0.97]) };
    machine.compare(7);
    assert_eq!((machine.chosen, machine.verdicts.last()), (1, Some(&Verdict::Tie)));
    machine.compare(100);
    assert_eq!(machine.chosen, 1, "what is faster by 3 % does not win it back");
    let mut machine = Machine { favourite: true, ..Machine::new([1.0, 0.94]) };
    machine.compare(100);
    assert_eq!(machine.chosen, 0);
}

#[test]
fn a_choice_that_was_right_is_confirmed() {
    let mut machine = Machine::new([1.0, 0.9]);
    machine.compare(7);
    assert_eq!(machine.verdicts[5..], [Verdict::Stays, Verdict::Confirmed]);
}

#[test]
fn what_is_known_is_not_doubted_at_once() {
    let mut machine = Machine::known([1.0, 1.2], true);
    machine.compare(1);
    assert_eq!((machine.chosen, machine.done), (0, (2 * RARELY + 5) * UNIT), "and none decides alone");
    machine.comparison.restart(false);
    machine.stretch = machine.comparison.first_stretch(UNIT);
    machine.compare(1);
    assert_eq!(machine.chosen, 1);
}

#[test]
fn a_unit_that_tells_nothing_ends_a_comparison() {
    let mut machine = Machine::new([1.0, 2.0]);
    for _ in 0..1000 {
        machine.unit(false);
    }
    assert_eq!((machine.verdicts.len(), machine.explored), (0, 0), "the first unit already told nothing");
    // Its turn comes: the pause, the chosen way, and the other that settles and is measured in vain.
    while !machine.comparison.tries_other() {
        machine.unit(true);
    }
    machine.unit(true);
    machine.unit(false);
    assert!(!machine.comparison.tries_other());
    assert_eq!(machine.stretch, 2 * UNIT, "it was the first");
}

#[test]
fn rates_that_are_not_the_same_twice_decide_nothing_and_are_soon_looked_at_again() {
    let mut machine = Machine::new([1.0, 1.4]);
    let confirm = |machine: &mut Machine| {
        machine.rates[0] = 1.0;
        while machine.comparison.phase != Phase::Confirm {
            machine.unit(true);
        }
        machine.rates[0] = 1.3;
        machine.unit(true);
    };
    for void in 1..=MAX_BACKOFF {
        confirm(&mut machine);
        assert_eq!((machine.verdicts.len(), machine.stretch), (0, UNIT << void));
    }
    confirm(&mut machine);
    assert_eq!(machine.stretch, 2 * UNIT * RARELY, "what is never steady is left alone");
    machine.rates[0] = 1.0;
    machine.compare(1);
    assert_eq!(machine.chosen, 1, "and the next is the first that counts");
}

#[test]
fn what_is_much_faster_than_the_faster_of_two_rates_is_chosen() {
    let mut machine = Machine::new([1.0, 2.0]);
    while machine.comparison.phase != Phase::Confirm {
        machine.unit(true);
    }
    machine.rates[0] = 1.5;
    machine.unit(true);
    assert_eq!(machine.chosen, 1);
}

#[test]
fn what_is_much_slower_than_the_slower_of_two_rates_is_not_soon_tried_again() {
    let unsteady = |other| {
        let mut machine = Machine::new([1.0, other]);
        while machine.comparison.phase != Phase::Confirm {
            machine.unit(true);
        }
        machine.rates[0] = 1.5;
        machine.unit(true);
        machine
    };
    let machine = unsteady(0.85);
    assert_eq!((machine.chosen, &machine.verdicts[..]), (0, &[Verdict::Stays][..]));
    assert_eq!(machine.stretch, 2 * UNIT * RARELY);
    assert_eq!(unsteady(0.9).stretch, 2 * UNIT, "that may be the hour");
}

#[test]
fn what_changes_is_followed_and_what_does_not_is_left_alone() {
    let mut machine = Machine::new([1.0, 0.8]);
    machine.compare(100);
    let (before, explored) = (machine.done, machine.explored);
    machine.compare(7);
    assert!((machine.explored - explored) * 50 * 60 < machine.done - before, "one part in 3,200");
    machine.rates = [1.0, 1.1];
    machine.compare(7);
    assert_eq!(machine.chosen, 1);
}

proptest! {
    #[test]
    fn the_faster_way_is_found_on_noisy_machines(
        seed in any::<u64>(),
        noise in 0.0..0.1f64,
        slow in 1.25..3.0f64,
        second in any::<bool>(),
        favourite in any::<bool>(),
    ) {
        let rates = if second { [1.0, slow] } else { [slow, 1.0] };
        let mut machine = Machine { noise, seed, favourite, ..Machine::new(rates) };
        machine.compare(40);
        prop_assert_eq!(machine.chosen, usize::from(second));
        // The first comparison, and the share of what came behind it. (Rates are steady enough here for none to be in vain.)
        prop_assert!(machine.explored <= machine.done / RARELY + 4 * UNIT, "{} of {}", machine.explored, machine.done);
    }

    #[test]
    fn nothing_that_it_is_told_breaks_it(
        ends in prop::collection::vec((any::<u64>(), any::<Option<f64>>(), any::<bool>(), any::<u64>()), 0..300),
    ) {
        let mut comparison = Comparison::new(false);
        for (work, rate, favourite, unit) in ends {
            comparison.end(work, rate, favourite);
            prop_assert!(comparison.stretch(unit) >= unit);
            prop_assert!(comparison.seen <= WINDOW && comparison.backoff <= MAX_BACKOFF);
        }
    }
}
