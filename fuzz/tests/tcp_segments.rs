//! Packets that nobody would send, of TCP, UDP, ICMP and NDP, whole and in fragments, for a moment. `FUZZ_STEPS` says for how long (steps, 200 to a scene), `FUZZ_SEED` from where;
//! `FUZZ_STEPS=1` with the seed of a failure repeats it.

use onecopy_fuzz::attempt;
use onecopy_fuzz::tcp::{Strikes, strike};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};

const STEPS: u64 = 200;

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

#[test]
fn segments_by_chance_harm_nobody_else() {
    let steps = env("FUZZ_STEPS").unwrap_or(20_000);
    let now = std::time::UNIX_EPOCH.elapsed().map_or(1, |d| d.as_nanos() as u64);
    let first = env("FUZZ_SEED").unwrap_or(now >> 8 & 0xffff_ffff);
    let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
    let mut strikes = Strikes::default();
    for seed in first..first + steps.div_ceil(STEPS) {
        if let Err(what) = attempt(|| strike(seed, STEPS, &pool, &mut strikes)) {
            panic!("{what}\nafter {strikes:?}; repeat it: FUZZ_SEED={seed} FUZZ_STEPS=1");
        }
    }
    println!("from seed {first}: {strikes:?}");
    if strikes.scenes >= 50 {
        let Strikes { changed, taken, made, scenes, ipv6, .. } = strikes;
        let reached = [strikes.tcp, strikes.udp, strikes.icmp, strikes.ndp, strikes.reassembled];
        assert!(
            made > scenes
                && taken > changed / 10
                && taken < changed
                && (1..scenes).contains(&ipv6)
                && reached.iter().all(|reached| *reached > scenes / 10),
            "not all was tried: {strikes:?}"
        );
    }
}
