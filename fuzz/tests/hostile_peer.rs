//! Plays for a moment. `FUZZ_STEPS` says for how long (steps, 300 to a conversation), `FUZZ_SEED` from where;
//! `FUZZ_STEPS=1` with the seed of a failure repeats it.

use std::time::{Duration, Instant};

use onecopy_fuzz::{Neighbours, Secret, Tally, Watch, attempt, can_be_taken_apart, play};
use onecopy_testing::alone;

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

fn held() -> (usize, usize) {
    onecopy_conformance::tools::what_stays();
    (onecopy_testing::descriptors(), onecopy_testing::mappings("/memfd:"))
}

#[test]
fn a_peer_that_does_anything_harms_nobody() {
    alone!();
    let steps = env("FUZZ_STEPS").unwrap_or(60_000);
    let now = std::time::UNIX_EPOCH.elapsed().map_or(1, |d| d.as_nanos() as u64);
    let first = env("FUZZ_SEED").unwrap_or(now >> 8 & 0xffff_ffff);
    let before = held();
    let mut neighbours = Neighbours::new(Secret::new(first)).unwrap();
    let watch = Watch::new();
    let mut tally = Tally::default();
    let mut told = Instant::now();
    let mut seed = first;
    while tally.steps < steps {
        watch.seed(seed);
        if let Err(what) = attempt(|| play(seed, &watch, &mut neighbours, &mut tally)) {
            panic!("{what}\nafter {tally:?}; repeat it: FUZZ_SEED={seed} FUZZ_STEPS=1");
        }
        seed += 1;
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            println!("{} of {steps} steps in {} conversations", tally.steps, tally.played);
        }
    }
    neighbours.finish().unwrap();
    println!("from seed {first}: {tally:?}, {} looks at neighbours", neighbours.checks());
    drop(neighbours);
    assert_eq!(before, held(), "descriptors and mappings before and after");
    if tally.played > 100 {
        assert!(tally.upgraded * 3 > tally.played, "most conversations must get to shared memory: {tally:?}");
        let pairs = can_be_taken_apart();
        if !pairs {
            println!("not tried: pairs of datagrams, since pidfd_getfd(2) is refused here");
        }
        let tried = &tally.kinds[..if pairs { 5 } else { 4 }];
        assert!(tried.iter().all(|n| *n > 0), "all kinds must get there: {tally:?}");
        assert!(tally.caught > 0, "no lie was caught: {tally:?}");
    }
}
