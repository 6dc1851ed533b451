//! A random program over a pair with every trouble at once: each byte arrives as it was or is found out, each send is told of once, no page
//! is missing, and the seed repeats it all.

use crate::frames::{Frame, chain};
use onecopy_chain::notify::{Config, Context, Fate, Limits, Segment};
use onecopy_link::pair::{Pair, PairConfig, Path, Side, Stats};
use onecopy_link::{Link, Train};
use onecopy_pool::{PagePool, PoolConfig, provider::Heap};
use proptest::prelude::*;
use std::time::Duration;

#[derive(Clone, Debug)]
enum Step {
    Send { from: bool, len: usize, size: u16, v4: bool, udp: bool, keep: bool },
    Receive { at: bool },
    Wait(u64),
    Event,
    Path { from: bool, path: Path },
}

fn path() -> impl Strategy<Value = Path> {
    let chance = || prop_oneof![3 => Just(0.0), 2 => 0.0..0.3f64, 1 => Just(1.0)];
    let rate = prop::option::of(10_000u64..100_000_000);
    ((chance(), chance(), chance(), chance()), 0u64..100_000, 0u64..10_000, rate, 0u64..20_000, any::<bool>())
        .prop_map(|((loss, duplicate, reorder, corrupt), delay, jitter, rate, queue, whole)| {
            let path = Path::new()
                .loss(loss)
                .duplicate(duplicate)
                .reorder(reorder, Duration::from_nanos(jitter * 3))
                .corrupt(corrupt)
                .delay(Duration::from_nanos(delay))
                .jitter(Duration::from_nanos(jitter))
                .queue(queue)
                .in_flight(1 + queue as usize / 100)
                .mark_above(queue / 2)
                .whole(whole);
            match rate {
                Some(rate) => path.rate(rate),
                None => path,
            }
        })
}

fn step() -> impl Strategy<Value = Step> {
    let send = (any::<bool>(), 0usize..6000, 0u16..1400, any::<bool>(), any::<bool>(), any::<bool>());
    prop_oneof![
        6 => send.prop_map(|(from, len, size, v4, udp, keep)| Step::Send { from, len, size, v4, udp, keep }),
        4 => any::<bool>().prop_map(|at| Step::Receive { at }),
        2 => (0u64..200_000).prop_map(Step::Wait),
        3 => Just(Step::Event),
        1 => (any::<bool>(), path()).prop_map(|(from, path)| Step::Path { from, path }),
    ]
}

/// What happened: what arrived, when and where, and the figures of both directions.
type Run = (Vec<(u64, Side, Vec<u8>)>, [Stats; 2]);

fn run(seed: u64, paths: [Path; 2], steps: &[Step]) -> Run {
    let [from_a, from_b] = paths;
    let config = PairConfig::new().seed(seed).from(Side::A, from_a).from(Side::B, from_b);
    let Pair { a, b, mut wire } = Pair::new(config);
    let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
    let (context, mut queue) = Context::new();
    let limits = Limits { bytes: u32::MAX, ..Limits::default() };
    let mut lane = context.lane(Config { capacity: 1023, limits }).unwrap();
    let (mut ends, mut kept, mut seen, mut sends) = ([a, b], Vec::new(), Vec::new(), 0u64);
    let byte = |number: u64, i: usize| (number as usize * 31 + i * 7 + (i >> 8)) as u8;
    let mut take = |end: &mut onecopy_link::pair::End, now: u64| {
        while let Some(mut packet) = end.receive(now) {
            // What was found right, or never left, needs no look; all else is looked at.
            let bytes = packet.to_vec().unwrap();
            seen.push((now, end.side(), bytes));
            if packet.gso().is_none()
                && packet.finish().is_ok()
                && let Some((frame, payload)) = Frame::read(&packet)
            {
                let number = u64::from(frame.seq >> 16);
                let at = (frame.seq & 0xffff) as usize;
                let right = payload.iter().enumerate().all(|(i, there)| *there == byte(number, at + i));
                assert!(right || frame.train == Train::Udp, "damage that no checksum told of");
            }
        }
    };
    for step in steps {
        match step {
            Step::Send { from, len, size, v4, udp, keep } => {
                let bytes: Vec<u8> = (0..*len).map(|i| byte(sends, i)).collect();
                let train = if *udp { Train::Udp } else { Train::Tcp };
                let frame =
                    Frame { v4: *v4, train, seq: (sends as u32) << 16, flags: 0x18, id: 1, options: 12 };
                let mut segment = Segment::from(chain(&pool, &bytes));
                lane.send_there(&mut segment, sends, 0).unwrap();
                sends += 1;
                let end = &mut ends[usize::from(*from)];
                let now = wire.now();
                let _ = end.room(now);
                if *keep {
                    // To be sent again: it is acknowledged in the end.
                    end.transmit(now, frame.packet(segment.range(0, *len).unwrap(), *size));
                    kept.push(segment);
                } else {
                    end.transmit(now, frame.packet(segment, *size));
                }
            }
            Step::Receive { at } => take(&mut ends[usize::from(*at)], wire.now()),
            Step::Wait(time) => {
                let now = wire.now();
                wire.advance(now + time);
            }
            Step::Event => {
                let before = wire.now();
                assert!(wire.step().is_none_or(|now| now > before));
            }
            Step::Path { from, path } => {
                wire.set_path(if *from { Side::B } else { Side::A }, path.clone());
            }
        }
    }
    kept.into_iter().for_each(|segment| segment.free(Fate::Sent));
    loop {
        let now = wire.now();
        ends.iter_mut().for_each(|end| take(end, now));
        if wire.step().is_none() {
            break;
        }
    }
    let mut told = 0;
    queue.reap(|one| {
        assert_eq!((one.user_data, one.how.copied), (told, false), "each once");
        told += 1;
    });
    assert_eq!(told, sends, "each is told of");
    let stats = [Side::A, Side::B].map(|side| {
        let stats = wire.stats(side);
        assert_eq!(wire.in_flight(side), 0);
        stats
    });
    drop((ends, wire));
    let figures = pool.stats();
    assert_eq!(figures.in_flight, figures.in_cache + figures.in_ring, "no page is missing");
    (seen, stats)
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(128)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn any_trouble_loses_nothing_that_is_not_told_and_is_repeated_by_its_seed(
        seed in any::<u64>(), from_a in path(), from_b in path(), steps in prop::collection::vec(step(), 1..60),
    ) {
        let first = run(seed, [from_a.clone(), from_b.clone()], &steps);
        let second = run(seed, [from_a, from_b], &steps);
        prop_assert!(first == second, "the seed gave another run");
    }
}
