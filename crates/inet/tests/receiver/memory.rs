//! For what there is memory.

use crate::world::{MS, MSS, World, agreed, in_use, stream};
use onecopy_chain::{Chain, Fragment};
use onecopy_inet::tcp::memory::Pressure;
use onecopy_inet::tcp::rcv::{AckWhen, Limits, Refused};
use onecopy_inet::wire::Flags;
use onecopy_pool::{DeviceId, PagePool, PoolConfig, provider::Opaque};

const PAGE: u64 = 4096;

fn limited(buffer: u32) -> World {
    let limits = Limits { buffer, locked: true, ..Limits::default() };
    World::with(u32::MAX - 500, &limits, &agreed(&limits, true))
}

/// One byte keeps a page; where it can be read, all are copied into one.
#[test]
fn little_pieces_are_copied_together() {
    let mut world = limited(65_536);
    let mut collapsed = 0;
    for at in 0..200 {
        // All of them touch: one block.
        let (accepted, _) = world.give(1 + at, 1);
        assert_eq!((accepted.refused, accepted.reneged), (None, 0));
        collapsed += accepted.collapsed;
        assert!(world.rcv.held() <= 65_536 + PAGE);
    }
    assert!(collapsed > 0);
    assert_eq!(world.blocks(), [(1, 201)]);
    world.give(0, 1);
    for at in 201..400 {
        let (accepted, _) = world.give(at, 1);
        assert_eq!(accepted.refused, None);
        assert!(world.rcv.held() <= 65_536 + PAGE);
    }
    assert_eq!(world.read_stream(), 400);
}

/// A window that was said is a promise: what comes in it is taken, though each piece keeps a page. Also where the buffer is smaller than a
/// page, or the program made it smaller since.
#[test]
fn what_a_window_promised_is_taken() {
    for (buffer, later) in
        [(2304, None), (4608, None), (20_000, None), (200_000, None), (200_000, Some(2304))]
    {
        for len in [1, 7, 100, 1460, 3000] {
            let mut world = limited(buffer);
            let mut edge = world.rcv.edge();
            if let Some(later) = later {
                world.rcv.set_buffer(later);
            }
            for _ in 0..3000 {
                let len = world.rcv.window_left().min(len);
                if len == 0 {
                    break;
                }
                let (accepted, _) = world.give(world.nxt(), len);
                assert_eq!((accepted.refused, accepted.readable), (None, len), "{buffer} {later:?}");
                world.ack();
                assert!(!world.rcv.edge().before(edge), "the edge went back");
                edge = world.rcv.edge();
                let most = u64::from(buffer.max(4 * PAGE as u32));
                assert!(world.rcv.held() <= most + most / 8 + 2 * PAGE, "{} of {buffer}", world.rcv.held());
            }
            assert!(world.read_stream() >= 1000);
            assert_eq!(in_use(&world.pool), 0);
        }
    }
}

/// Memory is gone for all connections together: this one may use what it wins by copying, and no more.
#[test]
fn who_wins_memory_by_copying_may_use_it_though_there_is_none() {
    let mut world = limited(200_000);
    for at in 0..20 {
        world.give(at, 1);
    }
    assert_eq!(world.rcv.held(), 20 * PAGE);
    world.rcv.set_pressure(Pressure::Full);
    for at in 20..200 {
        let (accepted, _) = world.give(at, 1);
        assert_eq!((accepted.refused, accepted.readable), (None, 1));
        assert!(accepted.collapsed >= PAGE && world.rcv.held() == 2 * PAGE);
    }
    // A whole one wins nothing.
    world.give(200, MSS.into());
    assert_eq!(world.give(200 + u32::from(MSS), MSS.into()).0.refused, Some(Refused::Memory));
    assert_eq!(world.ack().0, 0);
    world.rcv.set_pressure(Pressure::None);
    assert_eq!(world.read_stream(), 200 + u32::from(MSS));
}

/// Pieces with holes between them are blocks of their own, and cannot be copied together: the highest go first.
#[test]
fn highest_bytes_are_given_up_first() {
    let mut world = limited(65_536);
    let mut reneged = 0;
    // From above: what comes lies in front of what is there.
    for at in (1..=40).rev() {
        let (accepted, _) = world.give(at * 100, 10);
        reneged += accepted.reneged;
        assert_eq!(accepted.refused, None);
        assert!(world.rcv.held() <= 65_536 + PAGE);
    }
    assert!(reneged > 0);
    assert!(world.rcv.rightmost_sack().is_some());
    // What would be the highest itself is not taken, nor is anything given up for it.
    let held = world.rcv.held();
    let mut refused = 0;
    for at in 50..60 {
        let (accepted, _) = world.give(at * 100, 10);
        assert_eq!(accepted.reneged, 0);
        refused += u32::from(accepted.refused == Some(Refused::Memory));
    }
    assert!(refused > 0 && world.rcv.held() <= held + 10 * PAGE && world.rcv.held() <= 65_536 + PAGE);
    // What fills the first hole is.
    let (accepted, _) = world.give(0, 1000);
    assert_eq!(accepted.refused, None);
    // All can be sent again.
    while world.nxt() < 7000 {
        world.give(world.nxt(), 100);
        world.ack();
    }
    assert!(world.read_stream() >= 7000);
}

/// What the device holds cannot be copied by us: less is kept, and nothing is lost for good.
#[test]
fn unreadable_data_is_bounded_by_its_pages() {
    let device = PagePool::new(PoolConfig::new().limit(256), Opaque::new(DeviceId(1))).unwrap();
    let piece = |len: usize| Chain::from(Fragment::new(device.alloc().unwrap(), 0, len).unwrap());
    let mut world = limited(65_536);
    let (mut reneged, mut collapsed) = (0, 0);
    for at in (1..=60).rev() {
        let header = world.header(at * 10, Flags::empty());
        let (accepted, _) = world.give_chain(&header, piece(10));
        reneged += accepted.reneged;
        collapsed += accepted.collapsed;
        assert!(world.rcv.held() <= 65_536 + PAGE, "{}", world.rcv.held());
    }
    assert!(reneged > 0 && collapsed == 0);
    // In order: as many pages as there may be, then no more, and the window is shut.
    let mut last = None;
    while last.is_none() {
        let header = world.header(world.nxt(), Flags::empty());
        let (accepted, due) = world.give_chain(&header, piece(10));
        assert!(world.rcv.held() <= 65_536 + PAGE);
        last = accepted.refused;
        if last.is_some() {
            assert_eq!(due, AckWhen::Now);
            assert_eq!(world.ack().0, 0, "there is no room for what it would send");
            assert!(!world.rcv.has_holes(), "what is behind a hole goes before what is in order");
        } else {
            assert!(accepted.readable >= 10);
            world.ack();
        }
    }
    assert_eq!(last, Some(Refused::Memory));
    // It is read, and all goes on.
    let mut bytes = 0;
    while let Some(taken) = world.rcv.read(&world.moment, usize::MAX) {
        bytes += taken.payload().len() as u32;
        assert!(taken.payload().host().is_err());
    }
    assert_eq!(bytes, world.nxt());
    assert!(world.rcv.window_update_due(bytes.into()));
    assert!(world.ack().0 > 0);
    let header = world.header(bytes, Flags::empty());
    assert_eq!(world.give_chain(&header, piece(10)).0.readable, 10);
    drop(world);
    assert_eq!(in_use(&device), 0);
}

/// A buffer that nobody has set grows with what comes faster than it is read, up to its limit.
#[test]
fn buffer_grows_up_to_its_limit() {
    let limits = Limits { buffer: 16_384, most: 131_072, ..Limits::default() };
    let mut world = World::with(5, &limits, &agreed(&limits, true));
    world.lends = false;
    let mut at = 0;
    loop {
        let header = world.header(at, Flags::empty());
        let chain = world.chain(&stream(at, 8));
        let (accepted, _) = world.give_chain(&header, chain);
        assert!(world.rcv.held() <= 131_072 + PAGE);
        if accepted.refused.is_some() {
            break;
        }
        at += 8;
    }
    assert_eq!(world.rcv.figures().buffer, 131_072);
    assert_eq!(world.read_stream(), at);
}

#[test]
fn all_goes_when_memory_is_short_elsewhere_or_the_program_closes() {
    let mut world = limited(65_536);
    world.give(0, 100);
    world.give(500, 100);
    world.give_bytes(900, &[], Flags::FIN);
    assert_eq!(world.rcv.give_up(), PAGE);
    assert!(!world.rcv.has_holes());
    assert_eq!(world.blocks(), []);
    world.give(500, 100);
    assert_eq!(world.rcv.discard(), 100);
    assert_eq!(in_use(&world.pool), 0);
    world.rcv.rest();
    world.wait(MS);
    assert_eq!(world.give(100, 10).0.readable, 10);
}

#[test]
fn duplicates_keep_no_memory() {
    let mut world = limited(65_536);
    world.give(0, 1000);
    world.give(2000, 1000);
    let held = in_use(&world.pool);
    for _ in 0..100 {
        world.give(2000, 1000);
        world.ack();
    }
    assert_eq!(in_use(&world.pool), held);
    world.give(1000, 1000);
    assert_eq!(world.read_stream(), 3000);
    assert_eq!(in_use(&world.pool), 0);
}
