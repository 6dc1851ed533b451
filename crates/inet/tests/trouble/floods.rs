//! One kind of trouble at a time, and much of it: what is kept is bounded, what is thrown away is counted, few answers leave, and who is
//! beside it goes on.

use super::*;
use onecopy_inet::ip::Reason;

/// Packets of a flood.
const MANY: u32 = 5_000;

fn scene() -> (Scene, Id) {
    let mut scene = Scene::new(0);
    scene.handshake();
    scene.act(&Op::Accept);
    let id = scene.known[0].id.unwrap();
    (scene, id)
}

fn raw(scene: &Scene, flags: u16) -> Raw {
    let Known { ours, theirs, next, nxt, .. } = scene.known[0];
    Raw { ports: (ours, theirs), seq: next, ack: nxt, flags, window: 1000, options: vec![], len: 0 }
}

/// A flood in some seconds of virtual time, and how many answers it had.
fn flood(scene: &mut Scene, mut each: impl FnMut(&mut Scene, u32)) -> u64 {
    let before = scene.answers;
    for number in 0..MANY {
        each(scene, number);
        if number % 100 == 0 {
            scene.run(SECOND / 10);
            scene.talk(100);
        }
    }
    scene.answers - before
}

#[test]
fn syns_from_everywhere_fill_a_queue_and_no_more() {
    let (mut scene, _) = scene();
    let before = scene.victim.len();
    flood(&mut scene, |scene, number| {
        let from = Ipv4Addr::from(0x0a00_0064 + number % 100);
        let ports = ((1024 + number) as u16, 80);
        let seq = Seq(number);
        let raw = Raw { ports, seq, ack: Seq(0), flags: 2, window: 1000, options: vec![], len: 0 };
        scene.victim.receive(scene.now, raw.packet(from, &scene.pool));
        while let Some(packet) = scene.victim.transmit() {
            drop(packet);
        }
        assert!(scene.victim.len() <= before + BACKLOG as usize + 1);
    });
    assert!(scene.victim.tcp_stats().syn_queue_full > u64::from(MANY) - 1000);
    // Once it is over, others are let in again.
    scene.run(100 * SECOND);
    scene.handshake();
    assert_eq!(scene.known.len(), 2);
    scene.end();
}

#[test]
fn acks_by_the_thousand_are_hardly_answered() {
    // Right ones, old ones, such of what was never sent, and without anything new.
    let kinds: [fn(&mut Raw, u32); 4] = [
        |_, _| (),
        |raw, _| raw.ack = raw.ack.minus(1),
        |raw, number| raw.ack = raw.ack.plus(100_000 + number),
        |raw, number| raw.seq = raw.seq.plus(200_000 + number),
    ];
    for kind in kinds {
        let (mut scene, id) = scene();
        let answers = flood(&mut scene, |scene, number| {
            let mut raw = raw(scene, 16);
            kind(&mut raw, number);
            scene.inject(&raw, ATTACKER);
        });
        // Twice a second, at most (tcp_invalid_ratelimit).
        assert!(answers <= 15, "{answers} answers to {MANY} ACKs");
        assert_eq!(scene.victim.tcp_state(id), Some(State::Established));
        scene.end();
    }
}

#[test]
fn data_out_of_order_is_kept_within_the_buffer() {
    // In the window with holes, again and again over itself, single bytes, and behind the window.
    let kinds: [fn(&mut Raw, u32); 4] = [
        |raw, number| (raw.seq, raw.len) = (raw.seq.plus(2 + number % 30 * 2000), 1000),
        |raw, number| (raw.seq, raw.len) = (raw.seq.plus(1 + number * 37 % 60_000), 1400),
        |raw, number| (raw.seq, raw.len) = (raw.seq.plus(1 + number * 2 % 65_000), 1),
        |raw, number| (raw.seq, raw.len) = (raw.seq.plus(70_000 + number * 1000), 1000),
    ];
    for kind in kinds {
        let (mut scene, id) = scene();
        flood(&mut scene, |scene, number| {
            let mut raw = raw(scene, 16);
            kind(&mut raw, number);
            scene.inject(&raw, ATTACKER);
            let held = scene.victim.tcp_connection(id).unwrap().receiver().held();
            assert!(held <= u64::from(MEMORY) + 8192, "{held} bytes");
        });
        assert_eq!(scene.victim.tcp_connection(id).unwrap().receiver().available(), 0);
        scene.end();
    }
}

/// Single bytes, and then all that lies between them, at once: its parts share pages, which count once for each of them.
#[test]
fn what_fills_many_holes_keeps_no_more_than_the_buffer() {
    for offset in [0, 1] {
        let (mut scene, id) = scene();
        let pages = |scene: &Scene| {
            let stats = scene.pool.stats();
            stats.in_flight - stats.in_cache - stats.in_ring
        };
        let before = pages(&scene);
        for number in (1..100).rev() {
            let mut raw = raw(&scene, 16);
            (raw.seq, raw.len) = (raw.seq.plus(number * 80), 1);
            scene.inject(&raw, ATTACKER);
        }
        let mut raw = raw(&scene, 16);
        (raw.seq, raw.len) = (raw.seq.plus(offset), 9000);
        scene.inject(&raw, ATTACKER);
        let kept = (pages(&scene) - before) * 4096;
        let held = scene.victim.tcp_connection(id).unwrap().receiver().held();
        assert!((9000..=u64::from(MEMORY) + 16_384).contains(&kept), "{kept} bytes");
        assert!(held >= kept && held > u64::from(MEMORY) + 70_000, "{held} bytes count, {kept} are kept");
        scene.end();
    }
}

#[test]
fn resets_and_syns_by_guess_end_nothing() {
    for flags in [4u16, 20, 2, 18, 6, 1, 17] {
        let (mut scene, id) = scene();
        let answers = flood(&mut scene, |scene, number| {
            let mut raw = raw(scene, flags);
            // In the window, and all around the circle.
            let step = if number % 2 == 0 { 1 + number } else { number.wrapping_mul(858_993) | 1 };
            raw.seq = raw.seq.plus(step);
            if flags & 1 != 0 {
                raw.ack = raw.ack.plus(0x4000_0000);
            }
            scene.inject(&raw, ATTACKER);
        });
        assert_eq!(scene.victim.tcp_state(id), Some(State::Established), "flags {flags}");
        assert!(answers <= u64::from(MANY), "{answers}");
        scene.end();
    }
}

#[test]
fn fragments_are_counted_and_not_kept_for_long() {
    let (mut scene, _) = scene();
    let memory = scene.victim.tcp_memory();
    flood(&mut scene, |scene, number| {
        let mut raw = raw(scene, 16);
        // (Of a length that a fragment may have.)
        raw.options = vec![1; 4];
        let packet = raw.packet(ATTACKER, &scene.pool);
        let mut bytes = packet.to_vec().unwrap();
        // First ones, middle ones and last ones, of the same packet or of others.
        let place = [0x2000u16, 0x2001, 0x0005, 0x3fff][number as usize % 4];
        bytes[4..6].copy_from_slice(&((number / 8) as u16).to_be_bytes());
        bytes[6..8].copy_from_slice(&place.to_be_bytes());
        bytes[10..12].fill(0);
        let sum = ones(words(&bytes[..20]));
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        let at = bytes.len().min(100);
        let mut chain = Chain::new();
        Writer::new(&scene.pool).append(&mut chain, &bytes[at..]).unwrap();
        scene.victim.receive(scene.now, Packet::new(&bytes[..at], chain).unwrap());
        scene.pass();
    });
    // None of them becomes a packet, and each is counted once, at last when nobody waits for the others any more.
    scene.run(100 * SECOND);
    let stats = scene.victim.interface().stats();
    let reasons = [Reason::Fragment, Reason::FragmentOverlap, Reason::FragmentTwice, Reason::FragmentMemory];
    let dropped: u64 = reasons.iter().map(|reason| stats.dropped(*reason)).sum();
    assert_eq!(dropped + stats.dropped(Reason::FragmentTimeout), u64::from(MANY));
    assert_eq!(scene.victim.tcp_memory(), memory);
    scene.end();
}

#[test]
fn lies_of_blocks_send_nothing_twice_that_was_not_lost() {
    let (mut scene, id) = scene();
    scene.act(&Op::Send { which: 0, len: 20_000 });
    let una = scene.known[0].una;
    let before = scene.victim.tcp_stats().segments_out;
    for number in 0..1000u32 {
        let mut raw = raw(&scene, 16);
        raw.ack = una;
        raw.window = 60_000;
        // Beyond what was sent, before what is acknowledged, upside down, and of no bytes.
        let blocks =
            [(50_000 + number, 60_000), (0u32.wrapping_sub(9000), 0u32.wrapping_sub(10)), (3000, 10), (5, 5)];
        raw.options = vec![1, 1, 5, 34];
        for (from, to) in blocks {
            raw.options.extend(una.plus(from).0.to_be_bytes());
            raw.options.extend(una.plus(to).0.to_be_bytes());
        }
        scene.inject(&raw, ATTACKER);
    }
    let sent = scene.victim.tcp_stats().segments_out - before;
    // Three duplicates are a sign of loss, once; then what waits, as far as the window lets it.
    assert!(sent < 60, "{sent} segments");
    assert_eq!(scene.victim.tcp_connection(id).unwrap().sender().una(), una);
    scene.end();
}

#[test]
fn tiny_windows_make_no_storm_of_tiny_segments() {
    let (mut scene, _) = scene();
    scene.act(&Op::Send { which: 0, len: 50_000 });
    let before = scene.victim.tcp_stats().segments_out;
    for number in 0..1000u16 {
        let mut raw = raw(&scene, 16);
        (raw.ack, raw.window) = (scene.known[0].nxt, number % 3);
        // (Its scale is 7: no more than 256 bytes.)
        scene.inject(&raw, ATTACKER);
        scene.run(1_000_000);
    }
    let sent = scene.victim.tcp_stats().segments_out - before;
    assert!(sent < 1000, "{sent} segments in a second");
    scene.end();
}

#[test]
fn options_of_any_kind_are_looked_at_or_passed_over() {
    let (mut scene, id) = scene();
    flood(&mut scene, |scene, number| {
        let mut raw = raw(scene, 16);
        let (kind, len) = (number as u8, (number >> 8) as u8);
        raw.options = match number % 3 {
            // Of any length, also longer than there is room for.
            0 => vec![kind, len, 1, 2, 3, 4, 5, 6, 7, 8],
            1 => vec![1, kind, len.wrapping_mul(7), 0, 0, 8, 10, 255, 255, 255, 255, 0, 0, 0, 0],
            // One after another without end.
            _ => [kind, 2].repeat(20),
        };
        scene.inject(&raw, ATTACKER);
    });
    assert_eq!(scene.victim.tcp_state(id), Some(State::Established));
    scene.end();
}
