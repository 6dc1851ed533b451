//! Trades for a moment. `FUZZ_STEPS` says for how long (steps, 400 to a trader), `FUZZ_SEED` from where. Traders act at
//! once: a seed repeats what each of them tries, not how they meet.

use onecopy_fuzz::{Trades, attempt, trade};

const STEPS: u64 = 400;

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

#[test]
fn chains_keep_their_bytes_whoever_else_holds_the_pages() {
    let steps = env("FUZZ_STEPS").unwrap_or(20_000);
    let now = std::time::UNIX_EPOCH.elapsed().map_or(1, |d| d.as_nanos() as u64);
    let first = env("FUZZ_SEED").unwrap_or(now >> 8 & 0xffff_ffff);
    let mut trades = Trades::default();
    for seed in first..first + steps.div_ceil(STEPS) {
        if let Err(what) = attempt(|| trade(seed, STEPS, &mut trades)) {
            panic!("{what}\nrepeat it: FUZZ_SEED={seed} FUZZ_STEPS=1");
        }
    }
    println!("from seed {first}: {trades:?}");
    if trades.markets >= 50 {
        let Trades { passed, compared, exhausted, refused, .. } = trades;
        assert!(passed > 0 && compared > 0 && exhausted > 0 && refused > 0, "not all was tried: {trades:?}");
    }
}
