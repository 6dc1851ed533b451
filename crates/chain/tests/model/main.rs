//! Random programs of all operations over several chains, against plain vectors: after each step bytes, marks, totals,
//! the checksum's state, the pool's pages in use and every descriptor are what the model says.

#![cfg(not(loom))]

mod pipes;
mod plain;
mod program;
mod run;

use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use program::program;
use proptest::prelude::*;
use run::Run;

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn chains_are_what_vectors_would_be(steps in prop::collection::vec(program(), 1..60)) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
            run.check();
        }
        run.end();
    }
}

/// A pool of at most so many pages of 4 KiB.
fn pool(pages: u32) -> PagePool {
    PagePool::new(PoolConfig::new().limit(pages), Heap::new()).expect("a pool")
}

/// Pages that somebody holds.
fn in_use(pool: &PagePool) -> usize {
    let stats = pool.stats();
    (stats.in_flight - stats.in_cache - stats.in_ring) as usize
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(192)
}
