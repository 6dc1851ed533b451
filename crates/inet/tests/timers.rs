//! The wheel against a sorted list: never early, in order, and nothing forgotten.

use onecopy_inet::timers::Wheel;
use proptest::prelude::*;
use std::collections::BTreeMap;

const SLOT: u64 = Wheel::SLOT;

#[derive(Clone, Debug)]
enum Step {
    /// Of a key: so many ns from now, or that long ago.
    Set(u32, i64),
    /// At this very time.
    SetAt(u32, u64),
    Cancel(u32),
    /// Time goes on by so much.
    Wait(u64),
    /// Time goes on to what the wheel says is next.
    Follow,
    Rest,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..24u32;
    // Spans of every size: each bit length is as likely as any other.
    let span = || (0..50u32).prop_flat_map(|bits| (1u64 << bits) / 2..1u64 << bits);
    prop_oneof![
        6 => (key.clone(), span()).prop_map(|(key, span)| Step::Set(key, span as i64)),
        1 => (key.clone(), span()).prop_map(|(key, span)| Step::Set(key, -(span as i64))),
        1 => (key.clone(), any::<u64>()).prop_map(|(key, at)| Step::SetAt(key, at)),
        2 => key.prop_map(Step::Cancel),
        3 => span().prop_map(Step::Wait),
        3 => Just(Step::Follow),
        1 => Just(Step::Rest),
    ]
}

/// A key's time, and when it counts from: a time that had passed when it was set is as good as that moment.
type Model = BTreeMap<u32, (u64, u64)>;

/// Takes all that is due, and holds it against the model.
fn pop_all(wheel: &mut Wheel, model: &mut Model, now: u64) {
    let mut last = 0;
    while let Some(key) = wheel.pop(now) {
        let (at, counts) = model.remove(&key).expect("a key that has a time");
        assert!(at <= now, "{key} came {} ns early", at - now);
        assert!(
            last < counts.saturating_add(SLOT),
            "{key} came behind one that is later by more than a slot"
        );
        last = counts;
    }
    for (key, (at, _)) in model.iter() {
        assert!(at.saturating_add(SLOT) > now, "{key} is late by {} ns", now - at);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn it_does_what_a_sorted_list_does(steps in prop::collection::vec(step(), 1..120)) {
        let (mut wheel, mut model, mut now) = (Wheel::new(), BTreeMap::new(), 0u64);
        for step in steps {
            match step {
                Step::Set(key, span) => {
                    let at = now.saturating_add_signed(span);
                    wheel.set(key, at);
                    model.insert(key, (at, at.max(now)));
                }
                Step::SetAt(key, at) => {
                    wheel.set(key, at);
                    model.insert(key, (at, at.max(now)));
                }
                Step::Cancel(key) => prop_assert_eq!(wheel.cancel(key), model.remove(&key).is_some()),
                Step::Wait(span) => {
                    now = now.saturating_add(span);
                    pop_all(&mut wheel, &mut model, now);
                }
                Step::Follow => {
                    if let Some(next) = wheel.next() {
                        now = now.max(next);
                        pop_all(&mut wheel, &mut model, now);
                    }
                }
                Step::Rest => wheel.rest(),
            }
            prop_assert_eq!(wheel.len(), model.len());
            for key in 0..24 {
                prop_assert_eq!(wheel.get(key), model.get(&key).map(|(at, _)| *at));
            }
            let first = model.values().map(|(_, counts)| *counts).min();
            prop_assert_eq!(wheel.next().is_some(), first.is_some());
            if let (Some(next), Some(first)) = (wheel.next(), first) {
                // Who comes back then misses nothing.
                prop_assert!(next < first.saturating_add(SLOT));
            }
        }
        // Whoever follows it comes to each, in few steps.
        let mut steps = 0;
        while let Some(next) = wheel.next() && next < u64::MAX {
            now = now.max(next);
            pop_all(&mut wheel, &mut model, now);
            steps += 1;
            prop_assert!(steps <= 24 * 9, "it does not come to an end");
        }
        prop_assert!(model.values().all(|(at, _)| *at > u64::MAX - SLOT), "one was forgotten: {model:?}");
    }
}

#[test]
fn a_time_that_passes_while_others_are_taken_comes_as_well() {
    let mut wheel = Wheel::new();
    wheel.set(1, 5 * SLOT);
    wheel.set(2, 900 * SLOT);
    assert_eq!(wheel.pop(1000 * SLOT), Some(1));
    wheel.set(1, 3 * SLOT);
    wheel.set(3, 950 * SLOT);
    assert_eq!(wheel.pop(1000 * SLOT), Some(1));
    assert_eq!(wheel.pop(1000 * SLOT), Some(2));
    assert_eq!(wheel.pop(1000 * SLOT), Some(3));
    assert_eq!(wheel.pop(1000 * SLOT), None);
    assert!(wheel.is_empty());
}

#[test]
fn the_next_one_is_told_to_the_slot_once_it_is_near() {
    let mut wheel = Wheel::new();
    wheel.set(7, 200_000_000);
    let due = 200_000_000u64.next_multiple_of(SLOT);
    let mut asked = 0;
    let at = loop {
        let next = wheel.next().unwrap();
        asked += 1;
        if wheel.pop(next) == Some(7) {
            break next;
        }
    };
    assert_eq!(at, due);
    assert!(asked <= 3, "asked {asked} times");
}

/// O(1): what a timer costs, set, moved by each ACK and gone off, is the same among 100,000 as among 100.
#[test]
fn a_timer_costs_as_much_however_many_there_are() {
    const SECOND: u64 = 1_000_000_000;
    let mut costs = Vec::new();
    for count in [100u32, 10_000, 100_000] {
        let mut wheel = Wheel::new();
        // Timeouts of 200 ms to 1.2 s, keep-alives of two hours for every tenth.
        let at = |key: u32| match key % 10 {
            0 => 7_200 * SECOND + u64::from(key) * 1_000,
            _ => SECOND / 5 + u64::from(key).wrapping_mul(0x9E37_79B9) % SECOND,
        };
        for key in 0..count {
            wheel.set(key, at(key));
        }
        assert_eq!(wheel.work(), u64::from(count), "to set one is one step");
        // Each moves back by a little, as with an ACK: 20 ms, in steps of a tenth of a slot.
        let before = wheel.work();
        for key in 0..count {
            for ack in 1..=100 {
                wheel.set(key, at(key) + ack * SLOT / 10);
            }
        }
        let moved = wheel.work() - before;
        assert!(moved <= 12 * u64::from(count), "{count}: {moved} moves for 100 ACKs each");
        // Time goes on: each goes off, having moved down a level at a time.
        let (before, mut gone) = (wheel.work(), 0u64);
        while let Some(next) = wheel.next() {
            while wheel.pop(next).is_some() {
                gone += 1;
            }
        }
        assert_eq!(gone, u64::from(count));
        let each = (wheel.work() - before) as f64 / f64::from(count);
        assert!(each <= 8.0, "{count}: {each} steps to go off");
        costs.push(each);
    }
    assert!(costs[2] <= costs[0] * 1.1, "more for each where there are more: {costs:?}");
}
