//! Trains of datagrams, down (UDP_SEGMENT) and up (UDP_GRO).

use crate::world::*;
use onecopy_inet::udp::{Envelope, Error, MAX_LEN, MAX_SEGMENTS};
use onecopy_inet::wire::Protocol;
use onecopy_link::pair::Path;
use onecopy_link::{Capabilities, Gso, Medium, Train};

/// Of a link that cuts trains itself, and of one that does nothing.
fn links() -> impl Iterator<Item = (Medium, bool, Capabilities)> {
    MEDIA.into_iter().flat_map(|medium| {
        [true, false].map(|cuts| {
            let of = if cuts { Capabilities::all } else { Capabilities::none };
            (medium, cuts, of(medium, 1500))
        })
    })
}

#[test]
fn a_train_comes_as_the_datagrams_that_it_is_made_of() {
    for (medium, cuts, of) in links() {
        for gro in [false, true] {
            let mut world = World::with(of, Path::new(), 1, |_, _| ());
            world.acquaint();
            let (a, b) = (world.a.bound(ANY, 1000), world.b.bound(ANY, 7));
            world.b.stack.udp_set(b, |settings| settings.gro = gro).unwrap();
            for (len, size) in
                [(14_000, 1400), (14_001, 1400), (1401, 1400), (700, 35), (1400, 1400), (3, 1400)]
            {
                let sent = pattern(len);
                assert_eq!(world.send(a, &Envelope::to(at(B, 7)).gso(size), &sent), Ok(len));
                world.go();
                let whole = cuts && gro;
                let mut got = Vec::new();
                let mut parts = Vec::new();
                while let Ok(one) = world.b.stack.udp_receive(b) {
                    assert_eq!(one.size, (whole && len > size.into()).then_some(size));
                    parts.push(one.data.payload().len());
                    got.extend(bytes(&one));
                }
                assert!(got == sent, "{len} bytes of {size} each over {medium:?}");
                let want: Vec<_> =
                    if whole { vec![len] } else { sent.chunks(size.into()).map(<[u8]>::len).collect() };
                assert_eq!(parts, want);
            }
            let count = 10 + 11 + 2 + 20 + 1 + 1;
            assert_eq!(world.a.stack.udp_stats().sent, count);
            assert_eq!(
                (world.b.stack.udp_stats().received, world.b.stack.udp_stats().arrived),
                (count, count)
            );
            assert_eq!(world.a.stack.interface().stats().cut, if cuts { 0 } else { 4 });
            world.b.assert_balanced(0);
        }
    }
}

#[test]
fn trains_that_cannot_be_are_refused_as_by_linux() {
    let mut world = World::new(Medium::Ip);
    let a = world.a.bound(ANY, 0);
    let most = MAX_SEGMENTS;
    for (size, len, sent) in [
        (100, 100 * most, Ok(100 * most)),
        (100, 100 * most + 1, Err(Error::Invalid)),
        (1, most, Ok(most)),
        (1, most + 1, Err(Error::Invalid)),
        (1472, MAX_LEN, Ok(MAX_LEN)),
        (1472, MAX_LEN + 1, Err(Error::TooLong)),
        // Each of them is longer than a packet; but one that is no longer than a part goes as it is.
        (1473, 1474, Err(Error::TooLong)),
        (1473, 1472, Ok(1472)),
        (u16::MAX, 10, Ok(10)),
        (100, 0, Ok(0)),
    ] {
        let mut data = segment(&world.pool, &pattern(len));
        let done = world.a.stack.udp_send(0, a, &mut data, &Envelope::to(at(B, 7)).gso(size));
        assert_eq!(done, sent, "{len} bytes of {size} each");
    }
    // Set once for all, and taken back for one.
    world.a.stack.udp_set(a, |settings| settings.gso = 500).unwrap();
    let before = world.a.stack.udp_stats().sent;
    world.send(a, &Envelope::to(at(B, 7)), &pattern(1400)).unwrap();
    assert_eq!(world.a.stack.udp_stats().sent, before + 3);
    world.send(a, &Envelope::to(at(B, 7)).gso(0), &pattern(1400)).unwrap();
    assert_eq!(world.a.stack.udp_stats().sent, before + 4);
}

#[test]
fn the_longest_train_fits_a_receive_buffer_whole_and_cut() {
    for gro in [false, true] {
        let mut world = World::new(Medium::Ip);
        let (a, b) = (world.a.bound(ANY, 0), world.b.bound(ANY, 7));
        world.b.stack.udp_set(b, |settings| settings.gro = gro).unwrap();
        world.send(a, &Envelope::to(at(B, 7)).gso(1472), &pattern(MAX_LEN)).unwrap();
        world.go();
        let got: Vec<u8> = world.b.all(b).into_iter().flat_map(|(bytes, _)| bytes).collect();
        assert!(got == pattern(MAX_LEN), "gro {gro}: {:?}", world.b.stack.udp_stats());
    }
}

#[test]
fn of_a_train_that_does_not_fit_the_first_ones_are_kept() {
    let mut world = World::new(Medium::Ip);
    let (a, b) = (world.a.bound(ANY, 0), world.b.bound(ANY, 7));
    // 4000 bytes on one page: each of the four counts a quarter of it, and itself.
    let each = 4096 / 4 + 768;
    world.b.stack.udp_set(b, |settings| settings.receive_buffer = Some(3 * each)).unwrap();
    world.send(a, &Envelope::to(at(B, 7)).gso(1000), &pattern(4000)).unwrap();
    world.go();
    assert_eq!(world.b.stack.udp_waiting(b), Some((3 * each).into()));
    assert_eq!((world.b.stack.udp_stats().buffer_full, world.b.stack.udp_drops(b)), (1, Some(1)));
    let got: Vec<u8> = world.b.all(b).into_iter().flat_map(|(bytes, _)| bytes).collect();
    assert!(got == pattern(4000)[..3000]);
    world.b.assert_balanced(0);
}

#[test]
fn a_train_that_a_link_makes_up_is_dropped() {
    let mut world = World::new(Medium::Ip);
    let b = world.b.bound(ANY, 7);
    for (train, size, len, good) in [
        (Train::Udp, 100, 1000, true),
        (Train::Udp, 1, 128, true),
        (Train::Udp, 1, 129, false),
        (Train::Udp, 0, 10, false),
        (Train::Udp, 0, 0, true),
        (Train::Tcp, 100, 1000, false),
        (Train::Udp, 1000, 1000, true),
    ] {
        let mut packet = packet(A, B, Protocol::UDP, &datagram(at(A, 1), at(B, 7), &pattern(len)));
        packet.set_gso(Some(Gso { train, size, network: 200 }));
        world.b.stack.receive(0, packet);
        let got: Vec<u8> = world.b.all(b).into_iter().flat_map(|(bytes, _)| bytes).collect();
        assert_eq!(got.len(), if good { len } else { 0 }, "{len} bytes of {size} each");
    }
    assert_eq!(world.b.stack.udp_stats().malformed, 3);
    world.b.assert_balanced(0);
}

#[test]
fn a_train_to_everybody_is_whole_for_one_and_cut_for_another() {
    let mut world = World::new(Medium::Ethernet);
    let a = world.a.bound(ANY, 0);
    world.a.stack.udp_set(a, |settings| settings.broadcast = true).unwrap();
    let mut open = |gro| {
        let id = world.b.stack.udp_open().unwrap();
        world.b.stack.udp_bind(id, at(ANY, 7), true).unwrap();
        world.b.stack.udp_set(id, |settings| settings.gro = gro).unwrap();
        id
    };
    let (whole, cut) = (open(true), open(false));
    world.send(a, &Envelope::to(at(ALL, 7)).gso(100), &pattern(250)).unwrap();
    world.go();
    let lens = |all: Vec<(Vec<u8>, _)>| all.iter().map(|(bytes, _)| bytes.len()).collect::<Vec<_>>();
    assert_eq!(lens(world.b.all(whole)), [250]);
    assert_eq!(lens(world.b.all(cut)), [100, 100, 50]);
    let stats = world.b.stack.udp_stats();
    assert_eq!((stats.arrived, stats.copies, stats.queued), (3, 3, 6));
    world.b.assert_balanced(0);
}
