//! Timestamps, and what is too old by them.

use crate::world::{MS, World, agreed};
use onecopy_inet::tcp::rcv::{Limits, Paws};
use onecopy_inet::wire::Flags;
use onecopy_inet::wire::tcp::{Tcp, Timestamps};

fn world(value: u32) -> World {
    let limits = Limits::default();
    let mut agreed = agreed(&limits, true);
    agreed.timestamps = Some(value);
    World::with(u32::MAX - 50, &limits, &agreed)
}

fn header(world: &World, at: u32, value: u32) -> Tcp {
    let mut header = world.header(at, Flags::empty());
    header.options.timestamps = Some(Timestamps { value, echo: 0 });
    header
}

#[test]
fn value_of_the_segment_that_covers_the_last_ack_is_echoed() {
    let mut world = world(u32::MAX - 5);
    assert_eq!(world.rcv.ts_recent(), Some(u32::MAX - 5));
    // Clocks wrap.
    let first = header(&world, 0, 3);
    world.rcv.note_timestamp(&world.moment, &first);
    assert_eq!(world.rcv.ts_recent(), Some(3));
    world.give(0, 100);
    // Not acknowledged yet: the one that began it counts (RFC 7323, section 4.3).
    let second = header(&world, 100, 7);
    world.rcv.note_timestamp(&world.moment, &second);
    assert_eq!(world.rcv.ts_recent(), Some(3));
    world.ack();
    world.rcv.note_timestamp(&world.moment, &second);
    assert_eq!(world.rcv.ts_recent(), Some(7));
    // None goes back, not even by one.
    let older = header(&world, 100, 6);
    world.rcv.note_timestamp(&world.moment, &older);
    assert_eq!(world.rcv.ts_recent(), Some(7));
}

#[test]
fn old_data_is_rejected_and_old_acks_are_not_answered() {
    let mut world = world(1000);
    world.give(0, 100);
    let paws = |world: &World, at, value, len, repeats| {
        world.rcv.paws(&world.moment, &header(world, at, value), len, repeats)
    };
    assert_eq!(paws(&world, 100, 1000, 10, false), Paws::Passed);
    assert_eq!(paws(&world, 100, 999, 10, false), Paws::Passed, "one behind may be a clock out of step");
    assert_eq!(paws(&world, 100, 998, 10, false), Paws::Rejected);
    assert_eq!(paws(&world, 100, 998, 0, false), Paws::Rejected);
    assert_eq!(paws(&world, 50, 998, 0, false), Paws::OldAck);
    assert_eq!(paws(&world, 150, 998, 0, true), Paws::Rejected);
    // An ACK that says nothing new passes, as long as it may just have been overtaken: 240 ticks in 200 ms.
    assert_eq!(paws(&world, 100, 760, 0, true), Paws::Passed);
    assert_eq!(paws(&world, 100, 759, 0, true), Paws::Rejected);
    // None at all is not judged by this.
    let bare = world.header(100, Flags::empty());
    assert_eq!(world.rcv.paws(&world.moment, &bare, 10, false), Paws::Passed);
    // What was seen long ago says nothing.
    world.moment.now += 2146 * 1000 * MS;
    assert_eq!(paws(&world, 100, 998, 10, false), Paws::Rejected);
    world.moment.now += 2 * 1000 * MS;
    assert_eq!(paws(&world, 100, 998, 10, false), Paws::Passed);
}

#[test]
fn zero_in_a_syn_and_no_timestamps_at_all() {
    let world = self::world(0);
    let old = header(&world, 0, u32::MAX - 1000);
    assert_eq!(world.rcv.paws(&world.moment, &old, 10, false), Paws::Passed);
    let limits = Limits::default();
    let mut world = World::with(0, &limits, &agreed(&limits, true));
    let stamped = header(&world, 0, 9);
    assert_eq!(world.rcv.paws(&world.moment, &stamped, 10, false), Paws::Passed);
    world.rcv.note_timestamp(&world.moment, &stamped);
    assert_eq!(world.rcv.ts_recent(), None);
}
