//! A wire that loses, repeats, reorders and damages: what comes is what was sent, or nothing.

use crate::world::*;
use onecopy_inet::ip::Reason;
use onecopy_inet::udp::Envelope;
use onecopy_link::Capabilities;
use onecopy_link::pair::{Path, Side};
use std::time::Duration;

/// A datagram that says its number, and whose other bytes come from it.
fn numbered(number: u32) -> Vec<u8> {
    let len = 4 + (number * 131 % 1400) as usize;
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(pattern(len).iter().map(|byte| byte.wrapping_add(number as u8)));
    bytes
}

#[test]
fn what_comes_is_what_was_sent() {
    const COUNT: u32 = 2000;
    for seed in 0..12 {
        let medium = MEDIA[seed as usize % 2];
        let of = if seed < 6 { Capabilities::all(medium, 1500) } else { Capabilities::none(medium, 1500) };
        let path = Path::new()
            .delay(Duration::from_millis(2))
            .loss(0.05)
            .duplicate(0.05)
            .reorder(0.05, Duration::from_millis(3))
            .corrupt(0.02);
        let mut world = World::with(of, path, seed, |_, _| ());
        let (a, b) = (world.a.bound(ANY, 0), world.b.bound(ANY, 7));
        let mut came = vec![0u8; COUNT as usize];
        let mut received = 0;
        for number in 0..COUNT {
            world.send(a, &Envelope::to(at(B, 7)), &numbered(number)).unwrap();
            world.run(200_000);
            for (bytes, from) in world.b.all(b) {
                let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
                assert!(bytes == numbered(number), "seed {seed}: damaged, and nobody saw it");
                assert_eq!(from, at(A, world.a.local(a).port()));
                came[number as usize] += 1;
                received += 1;
            }
        }
        world.run(SECOND);
        received += world.b.all(b).len() as u64;
        let wire = world.wire.stats(Side::A);
        let (once, twice) =
            (came.iter().filter(|n| **n > 0).count(), came.iter().filter(|n| **n > 1).count());
        assert!(once > 1700 && twice > 30, "seed {seed}: {once}, {twice} of them more than once, {wire:?}");
        let drops = world.b.stack.interface().stats();
        assert!(drops.dropped(Reason::Checksum) > 0, "seed {seed}: {drops:?}");
        assert_eq!(world.b.stack.udp_stats().received, received);
        world.b.assert_balanced(0);
        drop(world.b.all(b));
        let stats = world.pool.stats();
        assert_eq!(stats.in_flight, stats.in_cache + stats.in_ring, "seed {seed}: {stats:?}");
    }
}
