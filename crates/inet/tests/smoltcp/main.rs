//! Our TCP and smoltcp's at either end of a wire, in virtual time: random programs of sends, receives, closes and resets, either side connects,
//! over IPv4 and IPv6, through loss, delay, reordering, duplication and damage. Every byte arrives in order and once, ends and resets agree,
//! and nobody stalls.
//!
//! `SMOLTCP_CASES` says how many cases, `SMOLTCP_SEED` from which seed on; `SMOLTCP_CASES=1` with the seed of a failure repeats it, and shows its
//! last packets.

mod case;
mod ends;

use case::{Beside, beside};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

fn pool() -> PagePool {
    PagePool::new(PoolConfig::new(), Heap::new()).expect("a pool of pages")
}

#[test]
fn smoltcp_and_ours_agree_on_every_byte_and_on_the_end() {
    let cases = env("SMOLTCP_CASES").unwrap_or(if cfg!(debug_assertions) { 200 } else { 2000 });
    let now = std::time::UNIX_EPOCH.elapsed().map_or(1, |d| d.as_nanos() as u64);
    let first = env("SMOLTCP_SEED").unwrap_or(now >> 8 & 0xffff_ffff);
    let mut all = Beside::default();
    for seed in first..first + cases {
        // (A panic has to name its seed, too.)
        eprintln!("seed {seed}");
        if let Err(why) = beside(seed, pool, cases == 1, &mut all) {
            panic!(
                "{why}\nrepeat it: SMOLTCP_CASES=1 SMOLTCP_SEED={seed} cargo test -p onecopy-inet --test smoltcp"
            );
        }
    }
    println!("from seed {first}: {all:?}");
    assert_eq!(all.cases, cases);
    if cases >= 100 {
        assert!(all.forgotten * 100 <= cases, "it is not smoltcp alone that forgets: {all:?}");
        assert!(all.bytes.iter().all(|bytes| *bytes > 0) && all.aborted > 0 && all.troubled > 0, "{all:?}");
    }
}
