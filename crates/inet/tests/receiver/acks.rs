//! When ACKs leave.

use crate::world::{MS, MSS, World, agreed, stream};
use onecopy_inet::tcp::rcv::{AckWhen, Limits, Refused};
use onecopy_inet::wire::{Ecn, Flags};

const FULL: u32 = MSS as u32;

#[test]
fn first_segments_are_acknowledged_at_once_then_every_second() {
    let mut world = World::new();
    let mut at = 0;
    for _ in 0..16 {
        assert_eq!(world.give(at, FULL).1, AckWhen::Now);
        at += FULL;
        world.read_stream();
        world.ack();
    }
    at = steady(&mut world);
    let (_, due) = world.give(at, FULL);
    assert_eq!(due, AckWhen::At(world.moment.now + 40 * MS), "one full segment may wait");
    let (_, due) = world.give(at + FULL, FULL);
    assert_eq!(due, AckWhen::Now, "more than one may not");
    world.ack();
}

/// ACKs are delayed, and windows limited by less than memory.
fn steady(world: &mut World) -> u32 {
    world.settle();
    world.rcv.set_clamp(30_000);
    while world.rcv.window_left() > 30_208 {
        world.give(world.nxt(), FULL);
        world.read_stream();
        world.ack();
    }
    world.settle()
}

/// While less can be said of the window than the peer knows, an ACK waits for who reads.
#[test]
fn reader_sends_the_ack_when_the_window_cannot_move() {
    let mut world = World::new();
    let at = world.settle();
    assert!(matches!(world.give(at, 2 * FULL).1, AckWhen::At(_)));
    assert_eq!(world.read_stream(), 2 * FULL);
    assert!(world.rcv.window_update_due(u64::from(2 * FULL)));
    // As long as it waits for more than there is, it will not read.
    world.ack();
    world.rcv.set_low_water(50_000);
    assert_eq!(world.give(at + 2 * FULL, 2 * FULL).1, AckWhen::Now);
}

#[test]
fn super_segment_counts_as_many() {
    let mut world = World::new();
    let at = steady(&mut world);
    world.cut = MSS;
    assert_eq!(world.give(at, 5 * FULL).1, AckWhen::Now);
    assert_eq!(world.rcv.figures().mss, FULL, "it is none of the peer's segments");
}

#[test]
fn ack_that_waited_is_due_and_the_next_one_waits_longer() {
    let mut world = World::new();
    let at = world.settle();
    world.give(at, FULL);
    let before = world.rcv.figures().delay;
    world.wait(40 * MS - 1);
    assert!(matches!(world.rcv.on_timer(&world.moment), AckWhen::At(_)));
    world.wait(1);
    assert_eq!(world.rcv.on_timer(&world.moment), AckWhen::Now);
    assert_eq!(world.rcv.figures().delay, before * 2);
    world.ack();
    // A second timer that is late is not armed anew for ever.
    let (_, due) = world.give(at + FULL, FULL);
    assert!(matches!(due, AckWhen::At(_)), "{due:?}");
}

#[test]
fn ack_goes_with_data_and_who_answers_sends_none_of_his_own() {
    let mut world = World::new();
    world.give(0, 100);
    // The answer leaves soon, with the ACK.
    world.rcv.data_sent(world.moment.now);
    world.ack();
    let (_, due) = world.give(100, 100);
    assert!(matches!(due, AckWhen::At(_)), "it will be answered, too: {due:?}");
    assert!(!world.rcv.quick_ack());
    // No answer: back to ACKs at once.
    world.wait(40 * MS);
    assert_eq!(world.rcv.on_timer(&world.moment), AckWhen::Now);
    world.ack();
    assert_eq!(world.give(200, 100).1, AckWhen::Now);
    world.ack();
    // A late one is no answer.
    world.wait(500 * MS);
    world.rcv.data_sent(world.moment.now);
    assert!(world.rcv.quick_ack());
}

#[test]
fn quick_ack_option_sends_what_waits() {
    let mut world = World::new();
    let at = world.settle();
    world.rcv.set_quick_ack(false);
    world.give(at, 100);
    assert!(!world.rcv.set_quick_ack(true), "who did not read yet will");
    world.read_stream();
    assert!(world.rcv.set_quick_ack(true));
    assert_eq!(world.rcv.ack_due(), AckWhen::Now);
}

#[test]
fn reader_who_has_all_acknowledges_a_small_segment() {
    let mut world = World::new();
    let at = world.settle();
    world.give_bytes(at, &stream(at, 100), Flags::PSH);
    assert!(matches!(world.rcv.ack_due(), AckWhen::At(_)));
    world.read(50);
    assert!(!world.rcv.window_update_due(50));
    world.read(50);
    assert!(world.rcv.window_update_due(50));
}

#[test]
fn small_segments_are_believed_the_second_time() {
    let mut world = World::new();
    let at = world.settle();
    assert_eq!(world.rcv.figures().mss, FULL);
    world.give(at, 600);
    world.ack();
    assert_eq!(world.rcv.figures().mss, FULL);
    world.give(at + 600, 600);
    assert_eq!(world.rcv.figures().mss, 600);
}

#[test]
fn nothing_is_due_for_a_segment_without_data() {
    let mut world = World::new();
    let (accepted, due) = world.give_bytes(0, &[], Flags::empty());
    assert_eq!((accepted, due), (Default::default(), AckWhen::No));
}

#[test]
fn old_data_is_acknowledged_at_once_and_reported_once() {
    let mut world = World::new();
    let at = world.settle();
    let (accepted, due) = world.give(at - FULL, FULL);
    assert_eq!((accepted.refused, due), (Some(Refused::Old), AckWhen::Now));
    assert_eq!(world.blocks(), [(at - FULL, at)]);
    assert_eq!(world.blocks(), []);
    // It is in a hurry now: what it sends is acknowledged at once.
    assert_eq!(world.give(at, FULL).1, AckWhen::Now);
    // What was acknowledged long ago is not even taken in.
    world.ack();
    world.rcv.unacceptable(world.start.plus(0), 2 * FULL);
    assert_eq!(world.blocks(), [(0, 2 * FULL)]);
}

#[test]
fn duplicates_leave_at_once_then_some_are_left_out() {
    let mut world = World::new();
    let at = world.settle();
    world.moment.srtt = 10 * MS;
    let mut now = 0;
    for index in 2..10 {
        if world.give(at + index * FULL, FULL).1 == AckWhen::Now {
            now += 1;
            world.ack();
        }
    }
    assert!((3..6).contains(&now), "{now} left at once");
    let AckWhen::At(when) = world.rcv.ack_due() else { panic!("one has to make up for the others") };
    assert!(when >= world.moment.now && when <= world.moment.now + MS);
    world.moment.now = when;
    assert_eq!(world.rcv.on_timer(&world.moment), AckWhen::Now);
    assert_eq!(world.blocks(), [(at + 2 * FULL, at + 10 * FULL)]);
    // The hole is filled.
    let (accepted, due) = world.give(at, 2 * FULL);
    assert_eq!((accepted.readable, due), (10 * FULL, AckWhen::Now));
    assert_eq!(world.blocks(), []);
    assert!(!world.rcv.has_holes());
}

#[test]
fn peer_without_sack_gets_every_duplicate() {
    let limits = Limits::default();
    let mut agreed = agreed(&limits, true);
    agreed.sack = false;
    let mut world = World::with(3, &limits, &agreed);
    let at = world.settle();
    for index in 2..15 {
        assert_eq!(world.give(at + index * FULL, FULL).1, AckWhen::Now);
        assert_eq!(world.blocks(), []);
    }
    world.give(at, 2 * FULL);
    world.give(at, FULL);
    assert_eq!(world.blocks(), []);
    assert_eq!(world.rcv.sack_count(), 0);
}

#[test]
fn congestion_is_echoed_until_the_peer_has_slowed_down() {
    let limits = Limits::default();
    let mut agreed = agreed(&limits, true);
    agreed.ecn = true;
    let mut world = World::with(3, &limits, &agreed);
    world.ecn = Ecn::Ect0;
    let mut at = world.settle();
    world.ecn = Ecn::Ce;
    assert_eq!(world.give(at, FULL).1, AckWhen::Now);
    at += FULL;
    assert!(world.rcv.echoes_congestion());
    world.ack();
    world.ecn = Ecn::Ect0;
    world.give(at, FULL);
    at += FULL;
    assert!(world.rcv.echoes_congestion());
    world.give_bytes(at, &stream(at, FULL), Flags::CWR);
    assert!(!world.rcv.echoes_congestion());
    assert_eq!(world.rcv.ack_due(), AckWhen::Now);
    // Who does not take part is not listened to.
    agreed.ecn = false;
    let mut world = World::with(3, &limits, &agreed);
    world.ecn = Ecn::Ce;
    world.give(0, FULL);
    assert!(!world.rcv.echoes_congestion());
}
