//! Random programs against a model: each fragment is given out once, each token returned once, and nothing is missing at the end.

use crate::world::World;
use onecopy_net::RecvFlags;
use onecopy_net::devmem::{Frag, RefillRing, TokenRange};
use std::collections::{BTreeMap, HashSet};

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// One connection, and what is known of it.
struct Line {
    sender: onecopy_net::tcp::Stream,
    receiver: onecopy_net::tcp::Stream,
    ring: RefillRing,
    sent: u64,
    received: u64,
    /// By token: what it must be, and where it lies.
    held: BTreeMap<u64, (u64, Frag)>,
    returned: Vec<u64>,
    /// Tokens that were pushed and are nobody's.
    strange: u64,
}

fn byte(line: usize, at: u64) -> u8 {
    (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8 ^ line as u8
}

#[test]
fn random_programs_keep_to_the_model() {
    let seeds = match std::env::var("ONECOPY_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=12).map(|n| 0x9E37_79B9_u64.wrapping_mul(n)).collect(),
    };
    for seed in seeds {
        println!("ONECOPY_SEED={seed}");
        run(&mut Random(seed));
    }
}

fn run(random: &mut Random) {
    let world = World::new(64);
    let _binding = world.bind();
    let mut lines: Vec<Line> = (0..3)
        .map(|_| {
            let (sender, receiver) = world.connect();
            sender.set_nonblocking(true).unwrap();
            let ring = receiver.refill_ring(1 + random.below(20) as u32).unwrap();
            let (held, returned) = (BTreeMap::new(), Vec::new());
            Line { sender, receiver, ring, sent: 0, received: 0, held, returned, strange: 0 }
        })
        .collect();
    for _ in 0..400 {
        let which = random.below(3) as usize;
        let line = &mut lines[which];
        match random.below(10) {
            0..=2 => {
                let len = 1 + random.below(20_000);
                let data: Vec<u8> = (0..len).map(|n| byte(which, line.sent + n)).collect();
                match line.sender.send(&data) {
                    Ok(n) => line.sent += n as u64,
                    Err(error) => assert!(error.would_block(), "{error}"),
                }
            }
            3..=5 => receive(&world, line, which, random),
            6 if random.below(2) == 0 => push(line, random),
            6 | 7 => {
                let tokens: Vec<u64> = line.held.keys().copied().collect();
                let mut ranges = Vec::new();
                for token in tokens.iter().take(1 + random.below(20) as usize) {
                    ranges.push(TokenRange { start: *token, count: 1 });
                    assert!(line.held.remove(token).is_some());
                    line.returned.push(*token);
                }
                // What was given back before, and what nobody ever had.
                let expected = ranges.len();
                if let Some(stale) = line.returned.first().filter(|_| random.below(2) == 0) {
                    ranges.insert(0, TokenRange { start: *stale, count: u32::from(expected == 0) });
                }
                ranges.push(TokenRange { start: 1 << 30, count: 3 });
                assert_eq!(line.receiver.dont_need(&ranges).unwrap(), expected);
            }
            _ => {
                let _ = world.far.drive(std::time::Duration::ZERO).unwrap();
            }
        }
        // No two fragments that programs have share a byte.
        let mut places: Vec<(u64, u64)> = lines
            .iter()
            .flat_map(|line| line.held.values())
            .map(|(_, frag)| (frag.offset, frag.offset + u64::from(frag.len)))
            .collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|two| two[0].1 <= two[1].0), "fragments overlap");
    }
    for (which, line) in lines.iter_mut().enumerate() {
        let mut held = std::mem::take(&mut line.held);
        check(&world, which, &held);
        let ranges: Vec<TokenRange> =
            held.keys().map(|token| TokenRange { start: *token, count: 1 }).collect();
        let freed: usize = ranges.chunks(128).map(|some| line.receiver.dont_need(some).unwrap()).sum();
        assert_eq!(freed, held.len());
        held.clear();
    }
    // All that was sent comes, now that there is room, whichever of them has it.
    while lines.iter().any(|line| line.received < line.sent) {
        world.far.drive(std::time::Duration::from_millis(1)).unwrap();
        for (which, line) in lines.iter_mut().enumerate() {
            let frags = match line.receiver.recv_frags_with_flags(1 << 20, usize::MAX, RecvFlags::DONTWAIT) {
                Ok(frags) => frags,
                Err(error) => {
                    assert!(error.would_block(), "{error}");
                    continue;
                }
            };
            for (n, found) in world.bytes(&frags).into_iter().enumerate() {
                assert_eq!(found, byte(which, line.received + n as u64));
            }
            line.received += frags.len() as u64;
        }
    }
    for line in &lines {
        assert_eq!(line.receiver.tokens_held(), 0);
        let stats = line.ring.stats();
        assert_eq!((stats.pushed, stats.passed_over), (stats.taken, line.strange));
    }
    assert!(world.all_home());
}

/// Gives some back by the ring, and one that is nobody's now and then.
fn push(line: &mut Line, random: &mut Random) {
    if let Some(stale) = line.returned.first().filter(|_| random.below(2) == 0) {
        line.ring.push(*stale);
        line.strange += 1;
    }
    let most = 1 + random.below(20) as usize;
    let frags: Vec<Frag> = line.held.values().take(most).map(|(_, frag)| *frag).collect();
    for frag in &frags {
        assert!(line.held.remove(&frag.token).is_some());
        line.returned.push(frag.token);
    }
    line.ring.push_all(&frags);
}

fn check(world: &World, which: usize, held: &BTreeMap<u64, (u64, Frag)>) {
    for (at, frag) in held.values() {
        for (n, found) in world.read(&[*frag]).into_iter().enumerate() {
            assert_eq!(found, byte(which, at + n as u64), "what is held stays as it is");
        }
    }
}

fn receive(world: &World, line: &mut Line, which: usize, random: &mut Random) {
    let (n, most) = (1 + random.below(30_000) as usize, 1 + random.below(12) as usize);
    let flags =
        [RecvFlags::DONTWAIT, RecvFlags::DONTWAIT | RecvFlags::PEEK, RecvFlags::DONTWAIT | RecvFlags::TRUNC]
            [[0, 0, 0, 0, 1, 2][random.below(6) as usize]];
    let frags = match line.receiver.recv_frags_with_flags(n, most, flags) {
        Ok(frags) => frags,
        Err(error) => return assert!(error.would_block(), "{error}"),
    };
    assert!(frags.len() <= n && frags.device().len() <= most);
    assert!(frags.linear().is_none() || frags.device().is_empty(), "one call mixes nothing");
    if flags.contains(RecvFlags::TRUNC) {
        assert_eq!(frags.pieces().count(), 0);
    } else {
        for (n, found) in world.bytes(&frags).into_iter().enumerate() {
            assert_eq!(found, byte(which, line.received + n as u64));
        }
    }
    if flags.contains(RecvFlags::PEEK) {
        assert!(frags.device().iter().all(|frag| frag.token == 0));
        return;
    }
    let mut at = line.received;
    line.received += frags.len() as u64;
    if random.below(3) == 0 {
        return; // Given back by drop.
    }
    let mut fresh = HashSet::new();
    for frag in frags.into_device() {
        assert!(frag.token > 0 && fresh.insert(frag.token) && !line.returned.contains(&frag.token));
        assert!(line.held.insert(frag.token, (at, frag)).is_none(), "given out once");
        at += u64::from(frag.len);
    }
}
