//! What is said of windows.

use crate::world::{MS, MSS, World, agreed, stream};
use onecopy_inet::tcp::rcv::{AckWhen, Check, Limits, Refused};
use onecopy_inet::wire::Flags;
use onecopy_inet::wire::tcp::Timestamps;

/// The figures are those that Linux 6.18 puts into its SYNs.
#[test]
fn syn_offers_what_linux_offers() {
    let limits = Limits::default();
    let offer = limits.offer(1460, true);
    assert_eq!((offer.window, offer.shift), (64240, 7));
    let offer = limits.offer(1448, true);
    assert_eq!((offer.window, offer.shift, offer.clamp), (65160, 7, 65535 << 7));
    let wide = Limits { most: 33_554_432, settable: 4_194_304, ..limits };
    assert_eq!(wide.offer(1460, true).shift, 10);
    let offer = limits.offer(1460, false);
    assert_eq!((offer.window, offer.shift, offer.clamp), (64240, 0, 65535));
    // SO_RCVBUF of 2304 (doubled) before connect(2): one segment, and no scale for it.
    let small = Limits { buffer: 4608, locked: true, ..limits };
    let offer = small.offer(1460, true);
    assert_eq!((offer.window, offer.shift, offer.clamp), (1460, 0, 2304));
    let clamped = Limits { clamp: 10_000, ..limits };
    assert_eq!(clamped.offer(1460, true).window, 8760);
    // The largest buffer that there can be does not pass a shift of 14.
    let huge = Limits { buffer: i32::MAX as u32, most: i32::MAX as u32, ..limits };
    assert_eq!(huge.offer(1460, true).shift, 14);
    // A segment larger than the window leaves it as it is.
    assert_eq!(small.offer(9000, true).window, 2304);
}

/// The `win 502` that everybody knows who looked at a connection of Linux: 64240 as 502 * 128.
#[test]
fn first_window_after_the_handshake_is_that_of_the_syn() {
    let limits = Limits::default();
    let mut agreed = agreed(&limits, true);
    agreed.mss = 1460;
    agreed.offer = limits.offer(1460, true);
    let mut world = World::with(1, &limits, &agreed);
    assert_eq!(world.rcv.window(), 502);
    agreed.mss = 1448;
    agreed.offer = limits.offer(1448, true);
    let mut world = World::with(1, &limits, &agreed);
    assert_eq!(world.rcv.window(), 510);
}

/// As much as is offered is taken, if nobody reads; then the window is shut, and a probe is answered. Its edge never goes back.
#[test]
fn window_shuts_where_it_was_offered_and_opens_when_read() {
    let limits = Limits { buffer: 65_536, locked: true, ..Limits::default() };
    let mut world = World::with(u32::MAX - 10_000, &limits, &agreed(&limits, true));
    let mut at = 0;
    let mut edge = world.rcv.edge();
    while world.rcv.window_left() > 0 {
        let len = world.rcv.window_left().min(MSS.into());
        let (accepted, _) = world.give(at, len);
        assert_eq!((accepted.readable, accepted.refused), (len, None));
        at += len;
        world.ack();
        assert!(!world.rcv.edge().before(edge), "the edge went back");
        edge = world.rcv.edge();
    }
    assert_eq!(world.ack().0, 0);
    let probe = world.header(at, Flags::empty());
    assert_eq!(world.rcv.check(&probe, 1), Check::EndsOutside);
    let old = world.header(at - 1, Flags::empty());
    assert_eq!(world.rcv.check(&old, 0), Check::Old);
    let behind = world.header(at + 1, Flags::empty());
    assert_eq!(world.rcv.check(&behind, 0), Check::Outside);
    // A bit of room is none (SWS), much of it is said at once.
    assert_eq!(world.read(1500).len(), 1500);
    assert!(!world.rcv.window_update_due(1500));
    let half = world.rcv.available() as usize / 2;
    world.read(half);
    assert!(world.rcv.window_update_due(half as u64));
    let (window, _) = world.ack();
    assert!(window >= u32::from(MSS));
    assert_eq!(world.give(at, 500).0.readable, 500);
}

/// With nothing to be read a probe reaches us, and is refused all the same as long as the window is shut.
#[test]
fn probe_of_a_shut_window_is_refused_and_answered() {
    let limits = Limits { buffer: 4608, locked: true, ..Limits::default() };
    let mut world = World::with(9, &limits, &agreed(&limits, true));
    let size = world.rcv.window_left();
    world.give(0, size);
    world.ack();
    assert_eq!(world.rcv.window_left(), 0);
    world.read_stream();
    let (accepted, due) = world.give(size, 1);
    assert_eq!((accepted.refused, due), (Some(Refused::ZeroWindow), AckWhen::Now));
    // A FIN alone needs no window.
    let (accepted, _) = world.give_bytes(size, &[], Flags::FIN);
    assert!(accepted.fin && world.rcv.end());
}

/// Data that ends behind the window is refused while there is something to be read, and taken where there is nothing: as Linux since 6.17.
#[test]
fn data_beyond_the_window_is_taken_only_where_nothing_waits() {
    let limits = Limits { buffer: 16_384, locked: true, ..Limits::default() };
    let mut world = World::with(9, &limits, &agreed(&limits, true));
    let left = world.rcv.window_left();
    let header = world.header(0, Flags::empty());
    assert_eq!(world.rcv.check(&header, left + 1), Check::Acceptable);
    world.give(0, 10);
    assert_eq!(world.rcv.check(&world.header(10, Flags::empty()), left), Check::EndsOutside);
    assert_eq!(world.rcv.check(&world.header(10, Flags::empty()), left - 10), Check::Acceptable);
    // A FIN may stand right behind the window.
    assert_eq!(world.rcv.check(&world.header(10, Flags::FIN), left - 10), Check::Acceptable);
    assert_eq!(world.rcv.check(&world.header(left, Flags::FIN), 0), Check::Acceptable);
    assert_eq!(world.rcv.check(&world.header(left + 1, Flags::empty()), 0), Check::Outside);
}

/// Without a scale a window is a multiple of the peer's segments.
#[test]
fn window_without_a_scale_is_counted_in_segments() {
    let limits = Limits { buffer: 40_000, locked: true, ..Limits::default() };
    let mut world = World::with(77, &limits, &agreed(&limits, false));
    world.give(0, MSS.into());
    world.give(MSS.into(), MSS.into());
    let (window, _) = world.ack();
    assert!(window > 0 && window.is_multiple_of(MSS.into()), "{window}");
}

/// Round trips are measured by timestamps; a program that reads all that comes gets a larger window, up to the limit.
fn read_fast(locked: bool) -> (u32, u32) {
    let limits = Limits { most: 1_000_000, locked, ..Limits::default() };
    let mut agreed = agreed(&limits, true);
    agreed.timestamps = Some(1);
    let mut world = World::with(u32::MAX - 200_000, &limits, &agreed);
    let (mut at, mut largest) = (0, 0);
    for _ in 0..60 {
        // A window comes 20 ms after it was said.
        world.wait(20 * MS);
        let echo = world.moment.stamp - 20;
        world.stamps = Some(Timestamps { value: world.moment.stamp, echo });
        let end = at + world.rcv.window_left();
        while at < end {
            let len = (end - at).min(MSS.into());
            world.give(at, len);
            at += len;
            world.read_stream();
            let (window, _) = world.ack();
            largest = largest.max(window);
        }
    }
    (largest, world.rcv.figures().buffer)
}

#[test]
fn window_grows_with_what_is_read_in_a_round_trip() {
    let (window, buffer) = read_fast(false);
    assert_eq!(buffer, 1_000_000);
    let (small, kept) = read_fast(true);
    assert_eq!(kept, 131_072, "a buffer that the program has set stays");
    assert!(window > 3 * small, "{window} and {small}");
}

/// Who waits for much gets a buffer for it, and nobody tells the peer to wait meanwhile.
#[test]
fn low_water_makes_room() {
    let mut world = World::new();
    assert_eq!(world.rcv.set_low_water(400_000), 400_000);
    assert!(world.rcv.figures().buffer >= 800_000);
    assert_eq!(world.rcv.set_low_water(0), 1);
    assert_eq!(world.rcv.set_low_water(u32::MAX), Limits::default().most / 2);
    let limits = Limits { buffer: 10_000, locked: true, ..Limits::default() };
    let mut world = World::with(0, &limits, &agreed(&limits, true));
    assert_eq!(world.rcv.set_low_water(100_000), 5000);
    assert_eq!(world.rcv.figures().buffer, 10_000);
    world.give_bytes(0, &stream(0, 1000), Flags::empty());
    assert!(!world.rcv.is_readable());
}

/// What memory a segment takes is measured, and windows follow: full pages are worth more than half empty ones.
#[test]
fn windows_follow_what_share_of_memory_is_data() {
    let grown = |len: u32| {
        let limits = Limits { locked: true, ..Limits::default() };
        let mut agreed = agreed(&limits, true);
        agreed.mss = len as u16;
        let mut world = World::with(0, &limits, &agreed);
        let mut at = 0;
        for _ in 0..200 {
            world.give(at, len);
            at += len;
            world.read_stream();
            world.ack();
        }
        world.rcv.window_left()
    };
    let (sparse, dense) = (grown(1000), grown(4000));
    assert!(sparse <= 131_072 / 4 + 1000 && sparse > 20_000, "{sparse}");
    assert!(dense > 100_000 && dense <= 131_072, "{dense}");
}
