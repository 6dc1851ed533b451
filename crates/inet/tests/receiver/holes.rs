//! What comes behind a hole, twice, or in two versions.

use crate::world::{World, byte, in_use, stream};
use onecopy_inet::tcp::rcv::{AckWhen, Refused};
use onecopy_inet::wire::Flags;

/// The stream begins 2500 bytes before sequence numbers wrap: all of these cross it.
fn world() -> World {
    World::new()
}

#[test]
fn latest_block_is_reported_first_and_four_at_most() {
    let mut world = world();
    for at in [1000, 3000, 5000] {
        world.give(at, 100);
    }
    assert_eq!(world.blocks(), [(5000, 5100), (3000, 3100), (1000, 1100)]);
    world.give(1100, 100);
    assert_eq!(world.blocks(), [(1000, 1200), (5000, 5100), (3000, 3100)]);
    world.give(7000, 100);
    world.give(9000, 100);
    assert_eq!(world.blocks(), [(9000, 9100), (7000, 7100), (1000, 1200), (5000, 5100)]);
    assert_eq!(world.rcv.rightmost_sack(), Some(world.start.plus(9100)));
    // One that was forgotten is whole when it is named again.
    world.give(3100, 100);
    assert_eq!(world.blocks()[0], (3000, 3200));
    assert_eq!(world.rcv.sack_count(), 4);
}

#[test]
fn block_that_grows_takes_one_place_in_the_report() {
    let mut world = world();
    world.give(1000, 100);
    world.give(3000, 100);
    for piece in 0..6 {
        world.give(5000 + piece * 100, 100);
    }
    assert_eq!(world.blocks(), [(5000, 5600), (3000, 3100), (1000, 1100)]);
}

#[test]
fn blocks_that_touch_become_one() {
    let mut world = world();
    for at in [1000, 1200, 2600] {
        world.give(at, 100);
    }
    world.give(1100, 100);
    assert_eq!(world.blocks(), [(1000, 1300), (2600, 2700)]);
    world.give(1300, 1300);
    assert_eq!(world.blocks(), [(1000, 2700)]);
    let (accepted, due) = world.give(0, 1000);
    assert_eq!((accepted.readable, due), (2700, AckWhen::Now));
    assert_eq!(world.read_stream(), 2700);
}

#[test]
fn room_for_blocks_is_kept_to() {
    let mut world = world();
    for at in [1000, 3000, 5000] {
        world.give(at, 100);
    }
    world.give(3000, 50);
    assert_eq!(world.rcv.sack_blocks(0).len(), 0);
    let two: Vec<_> = world.rcv.sack_blocks(2).iter().collect();
    let seq = |at| world.start.plus(at);
    assert_eq!(two, [(seq(3000), seq(3050)), (seq(3000), seq(3100))]);
    assert_eq!(world.rcv.sack_blocks(3).len(), 3);
}

/// RFC 2883: what came twice is named first, then the block that it lies in.
#[test]
fn duplicates_behind_a_hole_are_reported() {
    let mut world = world();
    world.give(1000, 1000);
    let (accepted, _) = world.give(1200, 300);
    assert_eq!(accepted.refused, Some(Refused::Overlap));
    assert_eq!(world.blocks(), [(1200, 1500), (1000, 2000)]);
    let (accepted, _) = world.give(1900, 300);
    assert!(accepted.out_of_order && accepted.refused.is_none());
    assert_eq!(world.blocks(), [(1900, 2000), (1000, 2200)]);
    world.give(3000, 100);
    world.blocks();
    // Over the end of one, and all of the next: one run, as far as they touch.
    world.give(2100, 1500);
    assert_eq!(world.blocks(), [(2100, 2200), (1000, 3600)]);
    // In order, and over what is there.
    world.give(0, 1500);
    assert_eq!(world.blocks(), [(1000, 1500)]);
    assert_eq!(world.read_stream(), 3600);
    // Begins before what is in order.
    world.give(3500, 200);
    assert_eq!(world.blocks(), [(3500, 3600)]);
    assert_eq!(world.read_stream(), 100);
}

/// What a block has acknowledged cannot be put into other words.
#[test]
fn bytes_that_came_first_stay() {
    let mut world = world();
    world.give(1000, 100);
    let lie = vec![0xee; 300];
    world.give_bytes(900, &lie, Flags::empty());
    let lie = vec![0xdd; 1400];
    world.give_bytes(0, &lie, Flags::empty());
    let bytes = world.read(usize::MAX);
    let mut right = vec![0xdd; 900];
    right.extend(vec![0xee; 100]);
    right.extend(stream(1000, 100));
    right.extend(vec![0xee; 100]);
    right.extend(vec![0xdd; 200]);
    assert_eq!(bytes, right);
}

#[test]
fn fin_in_order_ends_the_stream() {
    let mut world = world();
    let (accepted, _) = world.give_bytes(0, &stream(0, 10), Flags::FIN);
    assert!(accepted.fin && accepted.readable == 10);
    assert!(world.rcv.finished() && !world.rcv.end() && world.rcv.is_readable());
    assert_eq!(world.nxt(), 11);
    // Once more: it is old.
    let (accepted, due) = world.give_bytes(0, &stream(0, 10), Flags::FIN);
    assert_eq!((accepted.refused, accepted.fin, due), (Some(Refused::Old), false, AckWhen::Now));
    assert_eq!(world.give(11, 10).0.refused, Some(Refused::BehindFin));
    assert_eq!(world.read_stream(), 10);
    assert!(world.rcv.end());
    world.ack();
    assert!(!world.rcv.window_update_due(10), "nothing more will come");
}

#[test]
fn fin_behind_a_hole_waits_for_it() {
    let mut world = world();
    let (accepted, _) = world.give_bytes(1000, &stream(1000, 500), Flags::FIN);
    assert!(accepted.out_of_order && !accepted.fin);
    assert_eq!(world.blocks(), [(1000, 1501)], "the FIN is part of the block");
    let (accepted, _) = world.give(0, 1000);
    assert!(accepted.fin && accepted.readable == 1500);
    assert_eq!(world.nxt(), 1501);
    assert_eq!(world.read_stream(), 1500);
    assert!(world.rcv.end() && !world.rcv.has_holes());
}

#[test]
fn bare_fin_behind_a_hole_is_a_block_of_its_own() {
    let mut world = world();
    assert!(world.give_bytes(2000, &[], Flags::FIN).0.out_of_order);
    assert_eq!(world.blocks(), [(2000, 2001)]);
    assert_eq!(world.give_bytes(2000, &[], Flags::FIN).0.refused, Some(Refused::Overlap));
    world.give(1500, 500);
    assert_eq!(world.blocks(), [(1500, 2001)]);
    world.give(0, 1000);
    assert!(!world.rcv.finished());
    assert!(world.give(1000, 500).0.fin);
    assert_eq!(world.read_stream(), 2000);
}

#[test]
fn what_is_behind_a_fin_is_nothing() {
    let mut world = world();
    world.give(3000, 100);
    world.give(1900, 200);
    world.give_bytes(2000, &[], Flags::FIN);
    world.ack();
    assert_eq!(world.blocks(), [(1900, 2001)], "what lay behind it is gone");
    assert_eq!(world.give(2000, 50).0.refused, Some(Refused::BehindFin));
    assert_eq!(world.give(2500, 50).0.refused, Some(Refused::BehindFin));
    world.give(1500, 900);
    // A later FIN does not move the end, an in-order segment does not pass it.
    world.give_bytes(2300, &[], Flags::FIN);
    let (accepted, _) = world.give(0, 3000);
    assert!(accepted.fin);
    assert_eq!((accepted.readable, world.nxt()), (2000, 2001));
    assert_eq!(world.read_stream(), 2000);
    drop(world.rcv);
    assert_eq!(in_use(&world.pool), 0);
}

#[test]
fn later_fin_does_not_hide_an_earlier_one() {
    let mut world = world();
    world.give_bytes(500, &[], Flags::FIN);
    let (accepted, _) = world.give_bytes(0, &stream(0, 900), Flags::FIN);
    assert!(accepted.fin);
    assert_eq!(world.read_stream(), 500);
}

#[test]
fn bytes_can_be_looked_at_before_they_are_read() {
    let mut world = world();
    world.give(0, 600);
    world.give(600, 600);
    let seen = world.rcv.peek(500, 200);
    assert_eq!(seen.payload().host().unwrap().to_vec(), stream(500, 200));
    assert_eq!(world.rcv.peek(1200, 5).payload().len(), 0);
    assert_eq!(world.rcv.peek(9999, 5).payload().len(), 0);
    assert_eq!(world.rcv.peek(1100, 500).payload().len(), 100);
    assert_eq!(world.read_stream(), 1200);
    assert_eq!(byte(500), stream(500, 1)[0]);
}

#[test]
fn backwards_and_every_second_first() {
    let mut world = world();
    for at in (0..40).rev() {
        world.give(at * 500, 500);
        world.ack();
    }
    assert_eq!(world.read_stream(), 20_000);
    for at in (0..40).step_by(2).chain((1..40).step_by(2)) {
        world.give(20_000 + at * 500, 500);
        world.ack();
    }
    assert_eq!(world.read_stream(), 20_000);
}
