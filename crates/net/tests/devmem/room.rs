//! What happens while the memory is full.

use crate::world::{World, pattern};
use onecopy_net::RecvFlags;
use onecopy_net::devmem::{Event, Frags};
use std::time::Duration;

/// Receives until nothing more comes, for want of room or as all `len` bytes have come; keeps all of it.
fn fill(
    world: &World,
    receiver: &onecopy_net::tcp::Stream,
    binding: &onecopy_net::devmem::Binding,
    len: usize,
) -> Vec<Frags> {
    let mut held = Vec::new();
    let placed = || world.far.queue_stats(1).unwrap().placed_bytes;
    loop {
        match receiver.recv_frags_with_flags(1 << 20, usize::MAX, RecvFlags::DONTWAIT) {
            Ok(frags) => held.push(frags),
            Err(error) => {
                assert!(error.would_block(), "{error}");
                if binding.narrowed() > 0 && binding.promised() < 3000 || placed() >= len as u64 {
                    return held;
                }
                world.far.drive(Duration::from_millis(1)).unwrap();
            }
        }
    }
}

#[test]
fn the_window_shuts_before_anything_is_dropped_and_opens_again() {
    for dont_need in [false, true] {
        let world = World::new(64);
        let binding = world.bind();
        let (sender, receiver) = world.connect();
        let data = pattern(2 << 20);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(sender.send(&data).unwrap(), data.len()));
            let mut got = Vec::new();
            while got.len() < data.len() - (128 << 10) {
                let held = fill(&world, &receiver, &binding, data.len());
                for frags in held {
                    got.extend(world.bytes(&frags));
                    if dont_need {
                        let ranges: Vec<_> = frags.into_device().iter().map(|frag| (*frag).into()).collect();
                        for some in ranges.chunks(128) {
                            receiver.dont_need(some).unwrap();
                        }
                    }
                }
            }
            while got.len() < data.len() {
                got.extend(world.bytes(&receiver.recv_frags(1 << 20).unwrap()));
            }
            assert!(got == data);
        });
        let stats = world.far.queue_stats(1).unwrap();
        assert_eq!((stats.starved, stats.failed), (0, 0), "nothing was dropped");
        assert!(binding.narrowed() > 0);
        let events: Vec<_> = std::iter::from_fn(|| binding.event()).collect();
        assert_eq!(events[..2], [Event::Starved, Event::Fed]);
        assert!(!events.contains(&Event::Dropped));
        assert!(world.all_home());
    }
}

#[test]
fn a_receiver_that_sleeps_hears_of_what_another_thread_gives_back() {
    let world = World::new(64);
    let binding = world.bind();
    let (sender, receiver) = world.connect();
    let data = pattern(1 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(sender.send(&data).unwrap(), data.len()));
        let mut held = fill(&world, &receiver, &binding, data.len());
        let mut got: Vec<u8> = held.iter().flat_map(|frags| world.bytes(frags)).collect();
        // Nobody but this thread's drop wakes the one that receives.
        let (tx, rx) = std::sync::mpsc::channel::<Frags>();
        scope.spawn(move || rx.into_iter().for_each(drop));
        held.drain(..).for_each(|frags| tx.send(frags).unwrap());
        while got.len() < data.len() {
            let frags = receiver.recv_frags(1 << 20).unwrap();
            got.extend(world.bytes(&frags));
            tx.send(frags).unwrap();
        }
        drop(tx);
        assert!(got == data);
    });
    assert_eq!(world.far.queue_stats(1).unwrap().starved, 0);
}

#[test]
fn connections_share_the_memory_and_none_is_dropped_for_another() {
    let world = World::new(64);
    let binding = world.bind();
    let pairs: Vec<_> = (0..4).map(|_| world.connect()).collect();
    let data = pattern(300_000);
    std::thread::scope(|scope| {
        for (sender, _) in &pairs {
            scope.spawn(|| assert_eq!(sender.send(&data).unwrap(), data.len()));
        }
        // One does not read until the others are through.
        for (_, receiver) in pairs.iter().rev() {
            let mut got = Vec::new();
            while got.len() < data.len() {
                got.extend(world.bytes(&receiver.recv_frags(1 << 20).unwrap()));
            }
            assert!(got == data);
        }
    });
    assert_eq!(world.far.queue_stats(1).unwrap().starved, 0);
    drop(pairs);
    assert!(world.all_home());
    drop(binding);
}
