//! Datagrams that lie.

use crate::world::*;
use onecopy_chain::{Chain, Checksum, Fragment};
use onecopy_inet::ip::Reason;
use onecopy_inet::udp::{Envelope, Error};
use onecopy_inet::wire::{Protocol, Udp, checksum};
use onecopy_link::pair::Path;
use onecopy_link::{Capabilities, Gso, Medium, Packet, Train};
use onecopy_pool::provider::Opaque;
use onecopy_pool::{DeviceId, PagePool, PoolConfig};
use proptest::prelude::*;

/// A datagram of 40 bytes for port 7, changed; IP's header says as many bytes as there are.
fn changed(change: impl FnOnce(&mut Vec<u8>)) -> Packet {
    let mut bytes = datagram(at(A, 9), at(B, 7), &pattern(40));
    change(&mut bytes);
    packet(A, B, Protocol::UDP, &bytes)
}

/// Says another length, and has the checksum be right for it where there is one.
fn length(bytes: &mut [u8], len: u16) {
    bytes[4..6].copy_from_slice(&len.to_be_bytes());
    bytes[6..8].fill(0);
    let covered = bytes.len().min(len.into());
    let pseudo = checksum::pseudo(A, B, Protocol::UDP, len.into());
    let sum = pseudo.then(onecopy_chain::Sum::of(&bytes[..covered]), 0).checksum();
    bytes[6..8].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn lengths_that_lie_are_found_out() {
    let mut world = World::new(Medium::Ip);
    let b = world.b.bound(ANY, 7);
    for (said, came) in [
        (0, None),
        (7, None),
        (8, Some(0)),
        (9, Some(1)),
        (47, Some(39)),
        (48, Some(40)),
        (49, None),
        (0xffff, None),
    ] {
        let before = world.b.stack.interface().stats().dropped(Reason::Transport);
        world.b.stack.receive(0, changed(|bytes| length(bytes, said)));
        let got: Vec<_> = world.b.all(b).iter().map(|(bytes, _)| bytes.len()).collect();
        assert_eq!(got, came.into_iter().collect::<Vec<_>>(), "it says {said}");
        let dropped = world.b.stack.interface().stats().dropped(Reason::Transport) - before;
        assert_eq!(dropped, u64::from(came.is_none()), "it says {said}");
    }
    for len in 0..8 {
        world.b.stack.receive(0, changed(|bytes| bytes.truncate(len)));
    }
    assert!(world.b.all(b).is_empty());
    assert_eq!(world.b.stack.interface().stats().dropped(Reason::Transport), 4 + 8);
    world.b.assert_balanced(0);
}

#[test]
fn a_checksum_is_looked_at_where_there_is_one() {
    let mut world = World::new(Medium::Ip);
    let b = world.b.bound(ANY, 7);
    for at in 0..48 {
        if !(6..8).contains(&at) {
            world.b.stack.receive(0, changed(|bytes| bytes[at] ^= 0x10));
        }
    }
    assert!(world.b.all(b).is_empty());
    // The four of the length, but two, and all others: damaged.
    let stats = world.b.stack.interface().stats();
    assert_eq!(stats.dropped(Reason::Checksum) + stats.dropped(Reason::Transport), 46);
    // Without one anything goes, over IPv4.
    world.b.stack.receive(0, changed(|bytes| bytes[6..8].fill(0)));
    assert_eq!(world.b.all(b)[0].0, pattern(40));
    world.b.assert_balanced(0);
}

#[test]
fn none_is_ever_sent() {
    // A link that finishes no checksums, so that they are seen here; of 65536 datagrams one has a sum that would be stored as 0.
    let mut world = World::with(Capabilities::none(Medium::Ip, 1500), Path::new(), 1, |_, _| ());
    let a = world.a.bound(A, 1000);
    let mut all_ones = 0;
    for word in 0..=u16::MAX {
        world.send(a, &Envelope::to(at(B, 7)), &word.to_be_bytes()).unwrap();
        let packet = world.a.stack.transmit().unwrap();
        let (_, summed, _) = Udp::parse(&packet.head()[20..]).unwrap();
        assert!(summed, "{word}");
        all_ones += u32::from(packet.head()[26..28] == [0xff, 0xff]);
    }
    assert_eq!(all_ones, 1);
}

#[test]
fn a_devices_memory_passes_untouched() {
    let device = PagePool::new(PoolConfig::new().limit(8), Opaque::new(DeviceId(1))).unwrap();
    let payload = |len| {
        let mut chain = Chain::new();
        chain.append(Fragment::new(device.alloc().unwrap(), 0, len).unwrap()).unwrap();
        chain
    };
    // In, where somebody vouches for it: whole, and cut.
    let mut world = World::new(Medium::Ip);
    let b = world.b.bound(ANY, 7);
    let whole = datagram(at(A, 9), at(B, 7), &[0; 3000]);
    let mut head = packet(A, B, Protocol::UDP, &whole).head().to_vec();
    head.extend(&whole[..8]);
    for (checksum, gso, came) in [
        (Checksum::Verified, None, vec![3000]),
        (Checksum::Verified, Some(1000), vec![1000; 3]),
        (Checksum::None, None, vec![]),
    ] {
        let mut packet = Packet::new(&head, payload(3000)).unwrap();
        packet.set_checksum(checksum).unwrap();
        packet.set_gso(gso.map(|size| Gso { train: Train::Udp, size, network: 0 }));
        world.b.stack.receive(0, packet);
        let got: Vec<_> = std::iter::from_fn(|| world.b.stack.udp_receive(b).ok()).collect();
        assert_eq!(got.iter().map(|one| one.data.payload().len()).collect::<Vec<_>>(), came);
        assert!(got.iter().all(|one| one.data.payload().device() == Some(DeviceId(1))));
    }
    assert_eq!(world.b.stack.interface().stats().dropped(Reason::Unreadable), 1);
    // Out, where the link takes it, and finishes checksums of it.
    for (unreadable, finishes) in [(true, true), (true, false), (false, true)] {
        let mut of = Capabilities::all(Medium::Ip, 1500);
        (of.unreadable, of.checksum) = (unreadable, finishes);
        let mut world = World::with(of, Path::new(), 1, |_, _| ());
        let a = world.a.bound(ANY, 0);
        for gso in [0, 300] {
            let mut data = payload(1000).into();
            let sent = world.a.stack.udp_send(0, a, &mut data, &Envelope::to(at(B, 7)).gso(gso));
            match unreadable && finishes {
                true => {
                    assert_eq!(sent, Ok(1000));
                    let packet = world.a.stack.transmit().unwrap();
                    assert_eq!(packet.payload().payload().device(), Some(DeviceId(1)));
                }
                false => {
                    assert_eq!(sent, Err(Error::DeviceMemory));
                    assert_eq!(data.payload().len(), 1000, "still the caller's");
                }
            }
        }
    }
    drop(world);
    assert_eq!(device.stats().in_flight, device.stats().in_cache + device.stats().in_ring);
}

#[test]
fn more_fragments_than_the_link_gathers_are_refused_at_once() {
    let mut of = Capabilities::all(Medium::Ip, 9000);
    of.fragments = 2;
    let mut world = World::with(of, Path::new(), 1, |_, _| ());
    let a = world.a.bound(ANY, 0);
    let mut data = segment(&world.pool, &pattern(2000));
    for _ in 0..2 {
        data.concat(segment(&world.pool, &pattern(2000))).unwrap();
    }
    assert_eq!(data.payload().fragment_count(), 3);
    assert_eq!(world.a.stack.udp_send(0, a, &mut data, &Envelope::to(at(B, 7))), Err(Error::TooLong));
    assert_eq!(data.payload().len(), 6000);
    assert_eq!(world.a.stack.udp_send(0, a, &mut data, &Envelope::to(at(B, 7)).gso(2000)), Ok(6000), "cut");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever bytes come: nothing panics, and each datagram is in one counter.
    #[test]
    fn each_is_counted_once(
        cases in prop::collection::vec((
            (0..4u16, 0..3usize, 0..200usize, prop::option::weighted(0.3, (0..260u16, any::<bool>()))),
            prop::collection::vec((0..40usize, any::<u8>()), 0..3),
            (any::<bool>(), any::<bool>()),
        ), 1..60)
    ) {
        let mut world = World::new(Medium::Ip);
        let ids = [world.b.bound(ANY, 0x0700), world.b.bound(B, 0x0701)];
        world.b.stack.udp_set(ids[1], |settings| {
            (settings.gro, settings.receive_buffer) = (true, Some(8000));
        }).unwrap();

        for ((port, to, len, gso), damage, (verified, fetch)) in cases {
            let to = at([B, B2, ALL][to], 0x0700 + port);
            let mut bytes = datagram(at(A, 9), to, &pattern(len));
            for (place, value) in damage {
                let last = bytes.len() - 1;
                bytes[place.min(last)] ^= value;
            }
            let mut packet = packet(A, to.ip(), Protocol::UDP, &bytes);
            if verified {
                packet.set_checksum(Checksum::Verified).unwrap();
            }
            packet.set_gso(gso.map(|(size, udp)| Gso {
                train: if udp { Train::Udp } else { Train::Tcp },
                size,
                network: 0,
            }));
            let before = world.b.stack.interface().stats().udp;
            let arrived = world.b.stack.udp_stats().arrived;
            world.b.stack.receive(0, packet);
            prop_assert_eq!(
                world.b.stack.udp_stats().arrived > arrived,
                world.b.stack.interface().stats().udp > before
            );
            while world.b.stack.transmit().is_some() {}
            if fetch {
                world.b.all(ids[0]);
                world.b.all(ids[1]);
                prop_assert_eq!(world.b.stack.udp_waiting(ids[0]), Some(0));
            }
            let waiting = world.b.stack.udp_stats().queued - world.b.stack.udp_stats().received;
            world.b.assert_balanced(waiting);
            prop_assert!(world.b.stack.udp_waiting(ids[1]).unwrap() <= 8000);
        }
        ids.iter().for_each(|id| world.b.stack.udp_close(*id));
        world.b.assert_balanced(0);
        prop_assert!(world.b.stack.is_empty());
    }
}
