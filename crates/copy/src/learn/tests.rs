//! Machines that are simulated: a writer and a reader with rates for each kind of stores, a ring between them.

use super::*;
use crate::compare::RARELY;
use proptest::prelude::*;
use std::collections::VecDeque;

const MIB: u64 = 1 << 20;

/// What a byte costs with either kind of stores (cached, non-temporal), in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Costs {
    write: [f64; 2],
    read: [f64; 2],
}

const NT_BETTER: Costs = Costs { write: [0.12, 0.06], read: [0.05, 0.05] };
const CACHED_BETTER: Costs = Costs { write: [0.06, 0.05], read: [0.06, 0.12] };
const EQUAL: Costs = Costs { write: [0.10, 0.10], read: [0.09, 0.09] };

struct Machine {
    costs: Costs,
    /// A cost is off by up to this part of itself, at random for each unit of noise.
    noise: f64,
    seed: u64,
    capacity: u64,
    chunk: u64,
    head: u64,
    writer: f64,
    reader: f64,
    /// When the reader has done with the chunks that it had not done with when they were sent.
    done: VecDeque<f64>,
    /// Time that the program spends elsewhere after each chunk, in nanoseconds.
    pause: f64,
    factor: f64,
}

impl Machine {
    fn new(costs: Costs, capacity: u64) -> Machine {
        Machine {
            costs,
            noise: 0.0,
            seed: 1,
            capacity,
            chunk: capacity / 64,
            head: 0,
            writer: 0.0,
            reader: 0.0,
            done: VecDeque::new(),
            pause: 0.0,
            factor: 1.0,
        }
    }

    fn random(&mut self) -> f64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as f64 / (1u64 << 31) as f64
    }

    fn tail(&mut self) -> u64 {
        while self.done.front().is_some_and(|&at| at <= self.writer) {
            self.done.pop_front();
        }
        self.head - self.done.len() as u64 * self.chunk
    }

    /// Sends `bytes`, as the learner says.
    fn send(&mut self, learner: &mut Learner, bytes: u64) {
        let end = self.head + bytes;
        while self.head < end {
            if learner.is_timing() {
                learner.enter(self.writer as u64);
            }
            if self.done.len() as u64 * self.chunk >= self.capacity {
                self.writer = self.writer.max(self.done.pop_front().unwrap());
            }
            // The noise lasts as long as 16 chunks: it does not average out within a unit.
            if (self.head / self.chunk).is_multiple_of(16) {
                self.factor = 1.0 + self.noise * (2.0 * self.random() - 1.0);
            }
            // What is planned is what was said to be the plan.
            assert!(!learner.is_planned() || learner.store() == learner.learned().store);
            let which = usize::from(learner.store() == Store::NonTemporal);
            let cost = |each: [f64; 2]| each[which] * self.chunk as f64 * self.factor;
            self.writer += cost(self.costs.write);
            self.reader = self.reader.max(self.writer) + cost(self.costs.read);
            self.done.push_back(self.reader);
            self.head += self.chunk;
            let tail = self.tail();
            if learner.is_due(self.head) {
                learner.look(self.writer as u64, self.head, tail);
            }
            if learner.is_timing() {
                learner.leave(self.writer as u64);
            }
            self.writer += self.pause;
        }
    }
}

fn learner(capacity: u64, plan: Store) -> Learner {
    Learner::new(capacity as usize, 0, plan, false)
}

#[test]
fn a_wrong_plan_is_mended_after_six_laps_or_64_mib() {
    for (costs, wrong) in [(NT_BETTER, Store::Cached), (CACHED_BETTER, Store::NonTemporal)] {
        for capacity in [2 * MIB, 4 * MIB, 16 * MIB, 256 * MIB] {
            let mut machine = Machine::new(costs, capacity);
            let mut learner = learner(capacity, wrong);
            let enough = (64 * MIB).max(6 * capacity + capacity / 8);
            machine.send(&mut learner, enough);
            let learned = learner.learned();
            assert_eq!((learned.store, learned.reason), (other(wrong), Reason::Faster), "{capacity}");
            assert!(!learner.is_planned());
            assert!(learned.percent.unwrap() > 115, "{learned:?}");
        }
    }
}

#[test]
fn a_right_plan_stays() {
    for (costs, right) in [(NT_BETTER, Store::NonTemporal), (CACHED_BETTER, Store::Cached)] {
        let mut machine = Machine::new(costs, 4 * MIB);
        let mut learner = learner(4 * MIB, right);
        machine.send(&mut learner, 32 << 30);
        assert_eq!((learner.learned().store, learner.learned().reason), (right, Reason::Faster));
        // Beside the first comparison, which is two units of up to twice 11 MiB.
        assert!(learner.explored() * RARELY <= machine.head + 44 * MIB * RARELY, "{}", learner.explored());
    }
}

#[test]
fn stores_of_one_speed_go_non_temporal_whatever_the_plan() {
    for plan in [Store::Cached, Store::NonTemporal] {
        let mut machine = Machine::new(EQUAL, 4 * MIB);
        let mut learner = learner(4 * MIB, plan);
        machine.send(&mut learner, 32 << 30);
        assert_eq!(learner.learned().store, Store::NonTemporal);
    }
}

#[test]
fn a_difference_of_a_tenth_is_found_by_pairs() {
    let costs = Costs { write: [0.110, 0.098], read: [0.05, 0.05] };
    let mut machine = Machine::new(costs, 4 * MIB);
    let mut learner = learner(4 * MIB, Store::Cached);
    machine.send(&mut learner, 128 * MIB);
    assert_eq!(learner.learned().store, Store::Cached, "one comparison is not enough for so little");
    machine.send(&mut learner, 16 << 30);
    assert_eq!((learner.learned().store, learner.learned().reason), (Store::NonTemporal, Reason::Faster));
}

#[test]
fn a_machine_that_changes_is_followed() {
    let mut machine = Machine::new(NT_BETTER, 4 * MIB);
    let mut learner = learner(4 * MIB, Store::Cached);
    machine.send(&mut learner, 4 << 30);
    assert_eq!(learner.learned().store, Store::NonTemporal);
    machine.costs = CACHED_BETTER;
    machine.send(&mut learner, 64 << 30);
    assert_eq!(learner.learned().store, Store::Cached);
}

#[test]
fn the_longer_nothing_changes_the_less_is_explored() {
    let mut machine = Machine::new(NT_BETTER, 4 * MIB);
    let mut learner = learner(4 * MIB, Store::NonTemporal);
    machine.send(&mut learner, 64 << 30);
    let before = learner.explored();
    machine.send(&mut learner, 64 << 30);
    assert!((learner.explored() - before) * 200 < 64 << 30, "{}", learner.explored() - before);
}

#[test]
fn a_program_that_is_mostly_idle_explores_nothing() {
    let mut machine = Machine::new(NT_BETTER, 4 * MIB);
    machine.pause = 50_000.0;
    let mut learner = learner(4 * MIB, Store::Cached);
    machine.send(&mut learner, 4 << 30);
    assert_eq!((learner.explored(), learner.learned().reason), (0, Reason::Plan));
    assert!(learner.is_planned());
}

#[test]
fn a_plan_that_was_measured_is_not_doubted_at_once() {
    let mut machine = Machine::new(NT_BETTER, 4 * MIB);
    let mut learner = Learner::new(4 << 20, 0, Store::NonTemporal, true);
    machine.send(&mut learner, 512 * MIB);
    assert_eq!(learner.explored(), 0);
}

#[test]
fn others_who_send_into_the_ring_void_a_unit() {
    let mut machine = Machine::new(NT_BETTER, 4 * MIB);
    let mut learner = learner(4 * MIB, Store::Cached);
    for _ in 0..1000 {
        machine.send(&mut learner, 4 * MIB);
        // What another process that shares the end has sent.
        machine.head += 64 * MIB;
    }
    assert_eq!(learner.learned().reason, Reason::Plan);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_better_stores_are_found_on_noisy_machines(
        seed in any::<u64>(),
        noise in 0.0..0.2f64,
        slow in 1.25..3.0f64,
        nt_is_better in any::<bool>(),
        plan in any::<bool>(),
        reader_limits in any::<bool>(),
        capacity in prop::sample::select(vec![2 * MIB, 4 * MIB, 16 * MIB, 64 * MIB]),
    ) {
        let costs = if nt_is_better { [0.06 * slow, 0.06] } else { [0.06, 0.06 * slow] };
        let idle = [0.05, 0.05];
        let costs = if reader_limits { Costs { write: idle, read: costs } } else { Costs { write: costs, read: idle } };
        let mut machine = Machine { noise, seed, ..Machine::new(costs, capacity) };
        let plan = if plan { Store::NonTemporal } else { Store::Cached };
        let mut learner = learner(capacity, plan);
        machine.send(&mut learner, 2000 * capacity.max(11 * MIB));
        let better = if nt_is_better { Store::NonTemporal } else { Store::Cached };
        prop_assert_eq!(learner.learned().store, better, "{:?}", learner);
        // The first comparison, and one in fifty of what came after it.
        prop_assert!(learner.explored() <= machine.head / RARELY + 4 * capacity.max(11 * MIB));
    }

    #[test]
    fn nothing_that_clock_or_reader_say_breaks_it(
        capacity in 1..=usize::MAX,
        looks in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()), 0..300),
    ) {
        let mut learner = Learner::new(capacity, looks.len() as u64, Store::Cached, false);
        for (now, head, tail, timed) in looks {
            if timed {
                learner.enter(now);
                learner.leave(now.wrapping_mul(3));
            }
            learner.look(now, head, tail);
            let _ = (learner.store(), learner.learned().to_string());
        }
    }
}
