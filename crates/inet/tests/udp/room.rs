//! Back-pressure, and memory.

use crate::world::*;
use onecopy_inet::tcp::{Readiness, Wake};
use onecopy_inet::udp::{Envelope, Error};
use onecopy_link::pair::{Path, Side};
use onecopy_link::{Capabilities, Medium};

#[test]
fn who_finds_no_room_hears_of_it_when_half_of_it_is_free() {
    let mut world = World::with(Capabilities::all(Medium::Ip, 1500), Path::new(), 1, |_, config| {
        config.ip.queue = 8;
    });
    let ids = [(); 3].map(|()| world.a.bound(ANY, 0));
    let to = Envelope::to(at(B, 7));
    for _ in 0..8 {
        world.send(ids[0], &to, b"x").unwrap();
    }
    for id in ids {
        // Nobody would tell one that has not asked when there is room again.
        assert_eq!(world.a.stack.udp_readiness(id), Readiness::WRITE);
        let mut data = segment(&world.pool, b"stays");
        for _ in 0..2 {
            assert_eq!(world.a.stack.udp_send(0, id, &mut data, &to), Err(Error::WouldBlock));
        }
        assert_eq!(data.payload().len(), 5, "it is still the caller's");
        assert_eq!(world.a.stack.udp_readiness(id), Readiness::empty());
    }
    assert_eq!((world.a.stack.udp_stats().no_room, world.a.stack.udp_stats().sent), (6, 8));
    world.a.stack.udp_close(ids[1]);
    for _ in 0..3 {
        world.a.stack.transmit().unwrap();
        assert!(world.a.events().is_empty());
    }
    world.a.stack.transmit().unwrap();
    let told: Vec<_> = world.a.events().iter().map(|event| (event.id, event.wake)).collect();
    assert_eq!(told, [(ids[0], Wake::WRITE), (ids[2], Wake::WRITE)], "each once");
    assert_eq!(world.a.stack.udp_readiness(ids[0]), Readiness::WRITE);
    for _ in 0..4 {
        world.a.stack.transmit().unwrap();
    }
    assert!(world.a.stack.transmit().is_none() && world.a.events().is_empty());
    // And again.
    (0..8).for_each(|_| assert!(world.send(ids[0], &to, b"x").is_ok()));
    assert_eq!(world.send(ids[2], &to, b"x"), Err(Error::WouldBlock));
    while world.a.stack.transmit().is_some() {}
    assert_eq!(world.a.events().len(), 1);
}

#[test]
fn a_flood_fills_one_sockets_buffer_and_hurts_no_other() {
    for len in [0, 1, 1000] {
        let mut world = World::new(Medium::Ip);
        let (a, full, other) = (world.a.bound(ANY, 0), world.b.bound(ANY, 7), world.b.bound(ANY, 8));
        for _ in 0..100 {
            for _ in 0..10 {
                world.send(a, &Envelope::to(at(B, 7)), &pattern(len)).unwrap();
            }
            world.go();
        }
        world.send(a, &Envelope::to(at(B, 8)), b"through").unwrap();
        world.go();
        let each = 768 + if len == 0 { 0 } else { 4096 };
        let fit = 212_992 / each;
        assert_eq!(world.b.stack.udp_waiting(full), Some(fit * each));
        assert_eq!(world.b.stack.udp_drops(full), Some(1000 - fit));
        assert_eq!(world.b.stack.udp_stats().buffer_full, 1000 - fit);
        assert_eq!(world.b.all(other).len(), 1);
        world.b.assert_balanced(fit);
        assert_eq!(world.b.all(full).len() as u64, fit);
        assert_eq!(world.b.stack.udp_waiting(full), Some(0));
        // There is room again.
        world.send(a, &Envelope::to(at(B, 7)), &pattern(len)).unwrap();
        world.go();
        assert_eq!(world.b.all(full).len(), 1);
    }
}

#[test]
fn no_datagram_is_too_long_for_an_empty_buffer() {
    let mut world = World::with(Capabilities::all(Medium::Ip, 60_000), Path::new(), 1, |_, _| ());
    let (a, b) = (world.a.bound(ANY, 0), world.b.bound(ANY, 7));
    world.b.stack.udp_set(b, |settings| settings.receive_buffer = Some(4096)).unwrap();
    for _ in 0..3 {
        world.send(a, &Envelope::to(at(B, 7)), &pattern(30_000)).unwrap();
    }
    world.go();
    assert_eq!(world.b.all(b).len(), 1, "as Linux 6.18");
    assert_eq!(world.b.stack.udp_drops(b), Some(2));
}

#[test]
fn all_sockets_together_have_an_end_too() {
    let each = 768 + 4096;
    let mut world = World::with(Capabilities::all(Medium::Ip, 1500), Path::new(), 1, |side, config| {
        if side == Side::B {
            config.udp.memory = 10 * each + each / 2;
        }
    });
    let a = world.a.bound(ANY, 0);
    let ids: Vec<_> = (0..4).map(|port| world.b.bound(ANY, 100 + port)).collect();
    for _ in 0..4 {
        for port in 0..4 {
            world.send(a, &Envelope::to(at(B, 100 + port)), b"x").unwrap();
        }
    }
    world.go();
    let waiting = |world: &World| ids.iter().filter_map(|id| world.b.stack.udp_waiting(*id)).sum::<u64>();
    assert_eq!((waiting(&world), world.b.stack.udp_stats().no_memory), (10 * each, 6));
    // What is closed, and what is fetched, makes room.
    world.b.stack.udp_close(ids[0]);
    world.b.all(ids[1]);
    for _ in 0..16 {
        world.send(a, &Envelope::to(at(B, 103)), b"x").unwrap();
    }
    world.go();
    assert_eq!(waiting(&world), 10 * each);
    let left: u64 = ids.iter().map(|id| world.b.all(*id).len() as u64).sum();
    assert_eq!(left, 10);
    world.b.assert_balanced(0);
}
