//! What a path does: delay, rate, queue, loss, order, damage, marks, and what it refuses.

use crate::frames::{Frame, TCP, chain, is_summed_right, pool};
use onecopy_chain::notify::Segment;
use onecopy_chain::{Checksum, Fragment};
use onecopy_link::pair::{Pair, PairConfig, Path, Side, Stats};
use onecopy_link::{Capabilities, Link, Medium, Packet};
use onecopy_pool::provider::Opaque;
use onecopy_pool::{DeviceId, PagePool, PoolConfig};
use std::time::Duration;

const MS: u64 = 1_000_000;

fn pair(path: Path) -> Pair {
    Pair::new(PairConfig::new().seed(1).both(path))
}

/// 100 bytes, of which the first one is a number.
fn small(number: u8) -> Packet {
    let mut head = [0; 100];
    head[0] = number;
    Packet::new(&head, Segment::default()).unwrap()
}

/// All that arrives, with its time.
fn arrivals(pair: &mut Pair) -> Vec<(u64, u8)> {
    let mut all = Vec::new();
    loop {
        while let Some(packet) = pair.b.receive(pair.wire.now()) {
            all.push((pair.wire.now(), packet.head()[0]));
        }
        if pair.wire.step().is_none() {
            return all;
        }
    }
}

#[test]
fn packets_arrive_after_the_delay_and_as_fast_as_the_rate() {
    let mut pair = pair(Path::new().delay(Duration::from_millis(5)).rate(800_000));
    // 100 bytes at 800 kbit/s: a millisecond each.
    for number in 0..3 {
        pair.a.transmit(2 * MS, small(number));
    }
    assert_eq!((pair.b.deadline(), pair.a.deadline(), pair.wire.next()), (Some(8 * MS), None, Some(8 * MS)));
    assert!(pair.b.receive(8 * MS - 1).is_none());
    assert_eq!(arrivals(&mut pair), [(8 * MS, 0), (9 * MS, 1), (10 * MS, 2)]);
    // The other direction is another one's.
    pair.b.transmit(20 * MS, small(3));
    assert_eq!((pair.a.receive(25 * MS).is_none(), pair.a.deadline()), (true, Some(26 * MS)));
    assert_eq!(pair.a.receive(26 * MS).unwrap().head()[0], 3);
    // Time does not go back.
    assert_eq!((pair.wire.advance(1), pair.wire.now()), (26 * MS, 26 * MS));
}

#[test]
fn a_full_queue_has_no_room_until_it_has_drained() {
    let mut pair = pair(Path::new().rate(800_000).queue(250));
    let mut sent = 0;
    while pair.a.room(0) > 0 {
        pair.a.transmit(0, small(sent));
        sent += 1;
    }
    // 250 bytes may wait, and one more packet goes where some may.
    assert_eq!(sent, 3);
    pair.a.transmit(0, small(99));
    let stats = pair.wire.stats(Side::A);
    assert_eq!((stats.transmitted, stats.full, stats.bytes), (3, 1, 300));
    let room = pair.a.deadline().unwrap();
    assert_eq!(room, 3 * MS - 250 * 10_000);
    assert_eq!((pair.a.room(room - 1), pair.a.room(room)), (0, 1));
    assert_eq!(arrivals(&mut pair).iter().map(|(_, number)| *number).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(pair.a.room(pair.wire.now()) > 0);
}

#[test]
fn who_does_not_receive_is_not_sent_to_without_end() {
    let mut pair = pair(Path::new().in_flight(2).delay(Duration::from_millis(1)));
    assert_eq!(pair.a.room(0), 2);
    (0..3).for_each(|number| pair.a.transmit(0, small(number)));
    assert_eq!((pair.a.room(0), pair.a.deadline(), pair.wire.in_flight(Side::A)), (0, Some(MS), 2));
    pair.wire.advance(MS);
    // Nobody knows when he will.
    assert_eq!((pair.a.room(MS), pair.a.deadline(), pair.wire.next()), (0, None, None));
    pair.b.receive(MS).unwrap();
    assert_eq!((pair.a.room(MS), pair.wire.stats(Side::A).full), (1, 1));
    // Gone, all that comes for him is lost.
    drop(pair.b);
    pair.a.transmit(MS, small(9));
    let stats = pair.wire.stats(Side::A);
    assert_eq!((stats.received, stats.unreceived, pair.wire.in_flight(Side::A)), (1, 2, 0));
    assert!(pair.a.receive(u64::MAX).is_none());
}

#[test]
fn what_there_is_room_for_is_taken() {
    let pool = pool();
    let super_segment = |len: usize| TCP.packet(chain(&pool, &vec![1; len]), 1000);
    // Packets that arrive twice have one place.
    let mut twice = pair(Path::new().in_flight(4).duplicate(1.0));
    assert_eq!(twice.a.room(0), 4);
    (0..4).for_each(|number| twice.a.transmit(0, small(number)));
    let stats = twice.wire.stats(Side::A);
    assert_eq!((stats.transmitted, stats.duplicated, stats.full, twice.a.room(0)), (4, 4, 0, 0));
    assert_eq!(arrivals(&mut twice).len(), 8);
    assert_eq!(twice.a.room(0), 4);
    // A super-segment has one, whatever it is cut to on its way.
    for path in [Path::new().whole(false), Path::new().corrupt(1.0)] {
        let mut cut = pair(path.in_flight(2).rate(1_000_000).queue(3000));
        assert_eq!(cut.a.room(0), 2);
        cut.a.transmit(0, super_segment(10_000));
        assert_eq!((cut.wire.stats(Side::A).full, cut.a.room(0)), (0, 0), "all of it or nothing");
        cut.a.transmit(0, small(1));
        assert_eq!((cut.wire.stats(Side::A).full, cut.wire.in_flight(Side::A)), (1, 10));
        let got = arrivals(&mut cut).len();
        assert_eq!((got, cut.a.room(cut.wire.now())), (10, 2));
    }
    // A nanosecond is 12 bytes: what is rounded up is not more than was said.
    let mut fast = pair(Path::new().rate(100_000_000_000));
    let room = fast.a.room(0);
    assert!(room > 500);
    for _ in 0..room {
        fast.a.transmit(0, TCP.packet(chain(&pool, &[1; 1448]), 0));
    }
    assert_eq!((fast.wire.stats(Side::A).transmitted, fast.wire.stats(Side::A).full), (room as u64, 0));
}

#[test]
fn the_figures_are_those_of_what_arrives() {
    let pool = pool();
    for twice in [0.0, 1.0] {
        let mut pair = pair(Path::new().corrupt(1.0).duplicate(twice));
        let whole = TCP.packet(chain(&pool, &[1; 10_000]), 1000);
        let head = whole.head().len() as u64;
        pair.a.transmit(0, whole);
        let mut got = 0;
        while pair.b.receive(0).is_some() {
            got += 1;
        }
        let stats = pair.wire.stats(Side::A);
        assert_eq!((stats.received, stats.corrupted, stats.cut, stats.lost), (got, 1, 1, 0));
        assert_eq!((stats.transmitted, stats.bytes), (10, 10_000 + 10 * head));
        assert_eq!(stats.transmitted + stats.duplicated, got, "{stats:?}");
    }
}

#[test]
fn chance_loses_doubles_and_turns_round() {
    let by = Duration::from_micros(100);
    let path = Path::new().loss(0.1).duplicate(0.1).reorder(0.1, by).jitter(Duration::from_micros(3));
    let run = |seed| {
        let mut pair = Pair::new(PairConfig::new().seed(seed).both(path.clone()));
        for number in 0..200u8 {
            pair.a.transmit(u64::from(number) * 10_000, small(number));
        }
        let all = arrivals(&mut pair);
        (all, pair.wire.stats(Side::A))
    };
    let (all, stats) = run(5);
    assert_eq!(all.len() as u64, 200 - stats.lost + stats.duplicated);
    assert_eq!((stats.transmitted, stats.received), (200, all.len() as u64));
    let hit = |count: u64| (8..40).contains(&count);
    assert!(hit(stats.lost) && hit(stats.duplicated) && hit(stats.reordered), "{stats:?}");
    let turned = all.windows(2).filter(|pair| pair[0].1 > pair[1].1).count();
    assert!(turned > 0 && all.iter().is_sorted_by_key(|(at, _)| *at));
    // The seed is the run.
    assert_eq!(run(5), (all.clone(), stats));
    assert_ne!(run(6).0, all);
}

#[test]
fn jitter_alone_keeps_the_order() {
    let mut pair = pair(Path::new().delay(Duration::from_millis(1)).jitter(Duration::from_millis(10)));
    for number in 0..100 {
        pair.a.transmit(u64::from(number) * 1000, small(number));
    }
    let all = arrivals(&mut pair);
    assert!(all.iter().map(|(_, number)| *number).eq(0..100));
    let first = all[0].0;
    assert!(all.iter().any(|(at, _)| *at > first + MS), "and there is some");
}

#[test]
fn a_run_meets_what_another_one_met_where_only_one_chance_is_changed() {
    let lost = |path: Path| {
        let mut pair = pair(path.loss(0.2));
        (0..200).for_each(|number| pair.a.transmit(0, small(number)));
        let all: Vec<u8> = arrivals(&mut pair).into_iter().map(|(_, number)| number).collect();
        (0..200u8).filter(|number| !all.contains(number)).collect::<Vec<_>>()
    };
    assert_eq!(lost(Path::new()), lost(Path::new().duplicate(0.5).delay(Duration::from_millis(7))));
}

#[test]
fn a_super_segment_passes_whole_or_as_packets_with_right_checksums() {
    let pool = pool();
    let bytes: Vec<u8> = (0..20_000).map(|i| (i * 3 + (i >> 8)) as u8).collect();
    for whole in [true, false] {
        let mut pair = pair(Path::new().whole(whole));
        pair.a.transmit(0, TCP.packet(chain(&pool, &bytes), 1448));
        let mut got = Vec::new();
        let mut count = 0;
        while let Some(packet) = pair.b.receive(0) {
            count += 1;
            if whole {
                assert!(packet.gso().is_some() && matches!(packet.checksum(), Checksum::Partial { .. }));
                got.extend(packet.payload().payload().host().unwrap().to_vec());
            } else {
                let (frame, payload) = Frame::read(&packet).expect("right");
                assert_eq!(frame.seq as usize, 1 + got.len());
                assert!(packet.len() <= 1514 && is_summed_right(&packet, 34));
                got.extend(payload);
            }
        }
        assert!(got == bytes);
        let stats = pair.wire.stats(Side::A);
        assert_eq!((count, stats.cut), if whole { (1, 0) } else { (14, 1) });
        assert_eq!(stats.transmitted, count);
    }
}

#[test]
fn every_damaged_packet_is_found_out_and_nobody_elses_bytes_are_changed() {
    let pool = pool();
    let mut pair = pair(Path::new().corrupt(1.0));
    let (mut damaged, mut not_ours) = (0, 0);
    for round in 0..300u32 {
        let bytes: Vec<u8> = (0..1000).map(|i| (i * 11 + round) as u8).collect();
        let kept = chain(&pool, &bytes);
        let size = if round.is_multiple_of(3) { 300 } else { 0 };
        pair.a.transmit(0, TCP.packet(kept.share(), size));
        while let Some(packet) = pair.b.receive(0) {
            assert_eq!(packet.checksum(), Checksum::None, "nothing is known of it");
            match Frame::read(&packet) {
                None => damaged += 1,
                Some((_, payload)) if size > 0 && payload == bytes[..payload.len()] => {}
                // In the link's own header, which no checksum covers.
                Some(_) => not_ours += u32::from(packet.head()[..14] != [0xee; 14]),
            }
        }
        assert!(kept.host().unwrap().to_vec() == bytes, "the sender sends it again");
    }
    assert!(damaged + not_ours <= 300 && damaged > 250, "{damaged} and {not_ours}");
    assert_eq!(pair.wire.stats(Side::A).corrupted, 300);
}

#[test]
fn what_may_be_marked_is_marked_while_the_queue_is_long() {
    for v4 in [true, false] {
        let pool = pool();
        let mut pair = pair(Path::new().rate(8_000_000).mark_above(2000));
        let frame = Frame { v4, ..TCP };
        for _ in 0..5 {
            pair.a.transmit(0, frame.packet(chain(&pool, &[1; 1000]), 0));
        }
        let mut not = frame.packet(chain(&pool, &[1; 1000]), 0);
        let tos = 15;
        not.head_mut()[tos] &= if v4 { !3 } else { !0x30 };
        pair.a.transmit(0, not);
        let mut marks = Vec::new();
        loop {
            while let Some(mut packet) = pair.b.receive(pair.wire.now()) {
                let field = packet.head()[tos];
                marks.push(if v4 { field & 3 } else { field >> 4 & 3 });
                packet.finish().unwrap();
                assert!(marks.len() == 6 || Frame::read(&packet).is_some(), "its header's checksum is right");
            }
            if pair.wire.step().is_none() {
                break;
            }
        }
        assert_eq!((marks, pair.wire.stats(Side::A).marked), (vec![2, 2, 3, 3, 3, 0], 3), "IPv4: {v4}");
    }
}

#[test]
fn what_the_link_does_not_take_is_dropped_and_counted() {
    let pool = pool();
    let plain = Capabilities { fragments: 2, ..Capabilities::none(Medium::Ethernet, 1500) };
    let mut pair = Pair::new(PairConfig::new().capabilities_of(Side::A, plain));
    assert_eq!((pair.a.capabilities(), pair.b.capabilities().checksum), (plain, true));
    let gpu = PagePool::new(PoolConfig::new(), Opaque::new(DeviceId(1))).unwrap();
    let finished = |len: usize| {
        let mut packet = TCP.packet(chain(&pool, &vec![1; len]), 0);
        packet.finish().unwrap();
        packet
    };
    let mut three = finished(0);
    for at in 0..3 {
        let fragment = Fragment::new(pool.alloc().unwrap(), at * 10, 10).unwrap();
        three.payload_mut().payload_mut().append(fragment).unwrap();
    }
    let part = Fragment::new(gpu.alloc().unwrap(), 0, 1000).unwrap();
    let unreadable = Packet::new(&[0; 66], onecopy_chain::Chain::from(part)).unwrap();
    let refused = [
        ("MTU 1500", finished(1449)),
        ("finish first", TCP.packet(chain(&pool, &[1; 10]), 0)),
        ("cut first", TCP.packet(chain(&pool, &[1; 10]), 5)),
        ("3 fragments", three),
        ("device's memory", unreadable),
        ("headers are not", Packet::default()),
    ];
    let count = refused.len() as u64;
    for (what, packet) in refused {
        let why = plain.takes(&packet).unwrap_err().to_string();
        assert!(why.contains(what), "{why}");
        pair.a.transmit(0, packet);
    }
    assert_eq!(pair.wire.stats(Side::A), Stats { not_taken: count, ..Stats::default() });
    pair.a.transmit(0, finished(1448));
    assert_eq!(pair.b.receive(0).unwrap().len(), 1514);
    // A super-segment may be long, and its packets may not.
    let all = Capabilities::all(Medium::Ethernet, 1500);
    for (len, size, takes) in [(60_000, 1448, true), (60_000, 1449, false), (65_536, 1000, false)] {
        assert_eq!(all.takes(&TCP.packet(chain(&pool, &vec![1; len]), size)).is_ok(), takes);
    }
}

fn chain_of(pool: &PagePool) -> onecopy_chain::Chain {
    Fragment::whole(pool.alloc().unwrap()).unwrap().into()
}

#[test]
fn payload_that_cannot_be_read_passes_whole_and_is_never_damaged() {
    let gpu = PagePool::new(PoolConfig::new(), Opaque::new(DeviceId(1))).unwrap();
    let mut one = pair(Path::new());
    one.a.transmit(0, TCP.packet(chain_of(&gpu), 1000));
    assert_eq!(one.b.receive(0).unwrap().payload().payload().len(), 4096);
    // A card would finish its checksum; nobody else can.
    let mut wire = pair(Path::new().whole(false));
    wire.a.transmit(0, TCP.packet(chain_of(&gpu), 1000));
    assert_eq!((wire.b.receive(0).is_none(), wire.wire.stats(Side::A).not_taken), (true, 5));
    let mut bad = pair(Path::new().corrupt(1.0));
    bad.a.transmit(0, TCP.packet(chain_of(&gpu), 0));
    assert_eq!(bad.wire.stats(Side::A).not_taken, 1, "longer than the MTU");
    let part = Fragment::new(gpu.alloc().unwrap(), 0, 1000).unwrap();
    bad.a.transmit(0, TCP.packet(onecopy_chain::Chain::from(part), 0));
    assert_eq!((bad.b.receive(0).is_none(), bad.wire.stats(Side::A).lost), (true, 1));
}

#[test]
fn a_path_changes_under_way() {
    let mut pair = pair(Path::new());
    pair.a.transmit(0, small(1));
    pair.wire.set_path(Side::A, Path::new().loss(1.0));
    pair.a.transmit(0, small(2));
    pair.wire.set_path(Side::A, Path::new());
    pair.a.transmit(0, small(3));
    assert_eq!(arrivals(&mut pair), [(0, 1), (0, 3)]);
    assert!(format!("{pair:?}").contains("seed 0x0000000000000001"), "{pair:?}");
}
