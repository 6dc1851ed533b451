//! What all connections together keep is bounded, and who asks for little goes on.

mod world;

use onecopy_inet::stack::Census;
use onecopy_inet::tcp::memory::Pressure;
use onecopy_inet::tcp::{Error, Readiness, State};
use onecopy_inet::wire::Flags;
use world::*;

/// What one connection may have beyond the limit: the segment that it is always let have, in two pages, or what it may always send.
const EACH: u64 = 8192;
const CROWD: usize = 60;

fn bound() -> u64 {
    LIMITS[2] + (CROWD as u64 + 4) * EACH
}

#[test]
fn a_flood_that_nobody_reads_is_bounded_and_others_go_on() {
    let mut world = World::new(|_| ());
    let good = world.pair();
    let crowd: Vec<_> = (0..CROWD).map(|_| world.pair()).collect();
    for round in 0..200 {
        for pair in &crowd {
            let _ = world.send(PEER, *pair, 100_000);
        }
        let _ = world.send(PEER, good, 5_000);
        world.run(SECOND / 100);
        world.read(VICTIM, good);
        world.run(SECOND / 100);
        assert!(world.memory() <= bound(), "{} bytes in round {round}", world.memory());
    }
    let stats = world.stack(VICTIM).tcp_stats();
    assert!(stats.memory_full > 0 && stats.memory_pressures > 0, "{stats:?}");
    assert!(world.memory() > LIMITS[1], "{} bytes", world.memory());
    // The one whose program reads has had all that it sent.
    for _ in 0..100 {
        world.run(SECOND);
        world.read(VICTIM, good);
    }
    assert_eq!(world.got(VICTIM, good), world.given(PEER, good));
    assert!(world.given(PEER, good) >= 200_000, "{}", world.told(good));
    // Then the others read, too, and have all that was taken.
    for _ in 0..400 {
        for pair in &crowd {
            world.read(VICTIM, *pair);
        }
        world.run(SECOND);
    }
    for pair in &crowd {
        assert_eq!(world.got(VICTIM, *pair), world.given(PEER, *pair));
    }
    assert_eq!((world.memory(), world.stack(VICTIM).tcp_pressure()), (0, Pressure::None));
    world.end();
}

#[test]
fn windows_stop_growing_while_memory_is_short() {
    let rate = |limits: [u64; 3]| {
        let mut world = World::new(|config| config.memory = limits);
        let pair = world.pair();
        for _ in 0..400 {
            let _ = world.send(PEER, pair, 1 << 20);
            world.run(SECOND / 1000);
            world.read(VICTIM, pair);
        }
        let (stack, id) = (world.stack(VICTIM), world.ids(pair)[VICTIM]);
        let figures = stack.tcp_connection(id).unwrap().receiver().figures();
        (figures.threshold, figures.buffer)
    };
    let plenty = rate([1 << 30, 1 << 30, 1 << 30]);
    let short = rate([0, 0, 1 << 30]);
    assert!(short.0 < 100_000 && short.1 <= 131_072, "{short:?}");
    assert!(plenty.0 > 2 * short.0 && plenty.1 > short.1, "{plenty:?} {short:?}");
}

#[test]
fn what_came_behind_holes_is_given_up_for_others() {
    let mut world = World::new(|_| ());
    let good = world.pair();
    let crowd: Vec<_> = (0..CROWD).map(|_| world.pair()).collect();
    for pair in &crowd {
        // Its first byte never comes.
        let first = world.first_byte(PEER, *pair);
        world.drop_from_peer(move |tcp, len| len > 0 && tcp.seq == first);
    }
    for round in 0..100 {
        for pair in &crowd {
            let _ = world.send(PEER, *pair, 100_000);
        }
        // Every third segment of the good one is lost, so it has holes, too.
        world.lose(good, 3);
        let _ = world.send(PEER, good, 10_000);
        world.run(SECOND / 10);
        world.read(VICTIM, good);
        assert!(world.memory() <= bound(), "{} bytes in round {round}", world.memory());
    }
    let stats = world.stack(VICTIM).tcp_stats();
    assert!(stats.pruned > 0, "{stats:?}");
    world.lose(good, 0);
    for _ in 0..200 {
        world.run(SECOND);
        world.read(VICTIM, good);
    }
    assert_eq!(world.got(VICTIM, good), world.given(PEER, good));
    assert!(world.given(PEER, good) >= 150_000, "{}", world.given(PEER, good));
    // Holes alone cannot keep memory short.
    assert!(world.memory() <= LIMITS[1], "{}", world.memory());
    world.keep_all();
    for _ in 0..400 {
        world.run(SECOND);
        for pair in &crowd {
            world.read(VICTIM, *pair);
        }
    }
    for pair in &crowd {
        assert_eq!(world.got(VICTIM, *pair), world.given(PEER, *pair));
    }
    world.end();
}

#[test]
fn who_sends_to_the_deaf_is_bounded_and_hears_of_room() {
    let mut world = World::new(|config| config.wmem = [4096, 4 << 20, 4 << 20]);
    let good = world.pair();
    let crowd: Vec<_> = (0..CROWD).map(|_| world.pair()).collect();
    world.run(SECOND);
    world.drop_to_peer(true);
    for pair in &crowd {
        let _ = world.send(VICTIM, *pair, 4 << 20);
        assert!(world.given(VICTIM, *pair) >= 2048, "each may send a little");
        assert!(!world.readiness(VICTIM, *pair).contains(Readiness::WRITE));
        assert!(world.memory() <= bound(), "{}", world.memory());
    }
    assert_ne!(world.stack(VICTIM).tcp_pressure(), Pressure::None);
    assert_eq!(world.send(VICTIM, crowd[0], 1), Err(Error::WouldBlock));
    world.drop_to_peer(false);
    // Everybody hears of room, some time.
    world.events(VICTIM);
    for _ in 0..1000 {
        world.run(SECOND / 2);
        for id in world.events(VICTIM) {
            let Some(pair) = crowd.iter().find(|pair| world.ids(**pair)[VICTIM] == id) else { continue };
            while world.given(VICTIM, *pair) < 300_000
                && world.send(VICTIM, *pair, 100_000).is_ok_and(|sent| sent == 100_000)
            {}
        }
        for pair in &crowd {
            world.read(PEER, *pair);
        }
        assert!(world.memory() <= bound(), "{}", world.memory());
        world.send(VICTIM, good, 1000).unwrap();
        world.read(PEER, good);
    }
    for pair in &crowd {
        assert_eq!(world.got(PEER, *pair), world.given(VICTIM, *pair));
        let (given, id) = (world.given(VICTIM, *pair), world.ids(*pair)[VICTIM]);
        assert!(
            given >= 300_000,
            "{given} {:?} {:?}",
            world.readiness(VICTIM, *pair),
            world.stack(VICTIM).tcp_connection(id)
        );
        assert!(world.readiness(VICTIM, *pair).contains(Readiness::WRITE));
    }
    assert_eq!(world.memory(), 0);
    world.end();
}

#[test]
fn too_many_that_nobody_holds_are_reset() {
    let mut world = World::new(|config| config.max_orphans = 10);
    let crowd: Vec<_> = (0..CROWD).map(|_| world.pair()).collect();
    world.run(SECOND);
    // They have something to send, and nobody answers.
    world.drop_to_peer(true);
    for pair in &crowd {
        world.send(VICTIM, *pair, 1000).unwrap();
        world.close(VICTIM, *pair);
        assert!(world.stack(VICTIM).tcp_orphans() <= 10);
    }
    let stats = world.stack(VICTIM).tcp_stats();
    assert_eq!((stats.aborted_on_memory, stats.resets_out), (CROWD as u64 - 10, CROWD as u64 - 10));
    assert_eq!(world.stack(VICTIM).tcp_orphans(), 10);
    // The others end in order, once somebody answers.
    world.drop_to_peer(false);
    world.run(10 * SECOND);
    for pair in &crowd[..10] {
        world.read(PEER, *pair);
        assert_eq!(world.got(PEER, *pair), 1000);
        assert_eq!(world.state(PEER, *pair), Some(State::CloseWait));
    }
    world.end();
}

#[test]
fn who_closes_while_memory_is_gone_is_reset() {
    let mut world = World::new(|config| config.wmem = [4096, 4 << 20, 4 << 20]);
    let (one, other, small) = (world.pair(), world.pair(), world.pair());
    world.run(SECOND);
    world.drop_to_peer(true);
    world.send(VICTIM, small, 10).unwrap();
    world.send(VICTIM, one, 4 << 20).unwrap();
    assert_eq!(world.stack(VICTIM).tcp_pressure(), Pressure::Short);
    world.close(VICTIM, other);
    world.close(VICTIM, small);
    assert_eq!(world.stack(VICTIM).tcp_stats().aborted_on_memory, 0);
    world.close(VICTIM, one);
    assert_eq!(world.stack(VICTIM).tcp_stats().aborted_on_memory, 1);
    assert!(world.sent_to_peer(VICTIM, one).contains(Flags::RST));
    assert!(world.memory() <= 4096, "{}", world.memory());
    world.drop_to_peer(false);
    world.end();
}

#[test]
fn nothing_is_counted_that_is_gone() {
    let mut world = World::new(|_| ());
    let crowd: Vec<_> = (0..8).map(|_| world.pair()).collect();
    for pair in &crowd {
        world.send(PEER, *pair, 50_000).unwrap();
        world.send(VICTIM, *pair, 50_000).unwrap();
    }
    assert!(world.memory() > 8 * 50_000);
    world.run(SECOND);
    assert!(world.memory() >= 8 * 50_000);
    world.end();
    let mut world = World::new(|_| ());
    let pair = world.pair();
    world.send(PEER, pair, 50_000).unwrap();
    world.run(SECOND);
    // What has ended, and is held, may still be read.
    world.abort(PEER, pair);
    world.run(SECOND);
    assert_eq!(world.state(VICTIM, pair), Some(State::Closed));
    assert!(world.memory() >= 50_000);
    world.close(VICTIM, pair);
    assert_eq!(world.memory(), 0);
    world.close(PEER, pair);
    assert_eq!(world.stack(PEER).census(), Census::default());
    // Nor what was given up to connect anew.
    let mut world = World::new(|_| ());
    let pair = world.pair();
    world.send(PEER, pair, 50_000).unwrap();
    world.run(SECOND);
    assert!(world.memory() >= 50_000);
    world.disconnect(VICTIM, pair);
    assert_eq!(world.memory(), 0);
    world.end();
}

#[test]
fn little_pieces_behind_a_hole_share_pages_and_none_is_given_up() {
    let mut world = World::new(|_| ());
    let pair = world.pair();
    world.set(VICTIM, pair, |set| set.receive_buffer = Some(16_384));
    world.set(PEER, pair, |set| set.nodelay = true);
    let first = world.first_byte(PEER, pair);
    world.drop_from_peer(move |tcp, len| len > 0 && tcp.seq == first);
    // As many as are sent at once. No ACK comes back, so that nothing is sent again.
    world.drop_to_peer(true);
    for _ in 0..10 {
        world.send(PEER, pair, 1).unwrap();
        assert!(world.memory() <= 16_384 + 4096, "{} bytes", world.memory());
    }
    let stats = world.stack(VICTIM).tcp_stats();
    assert!(stats.out_of_order == 9 && stats.collapsed > 0, "{stats:?}");
    world.keep_all();
    world.drop_to_peer(false);
    world.run(10 * SECOND);
    world.read(VICTIM, pair);
    let stats = world.stack(VICTIM).tcp_stats();
    assert_eq!((world.got(VICTIM, pair), stats.pruned, stats.no_memory), (10, 0, 0));
    world.end();
}
