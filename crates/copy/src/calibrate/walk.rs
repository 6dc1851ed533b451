//! A walk through memory that neither prefetcher nor out-of-order execution helps: what a load costs, and what something
//! else did to the cache.

use std::cell::Cell;
use std::hint::black_box;
use std::time::Instant;

/// 32-bit words of a cache line.
const WORDS: usize = 64 / size_of::<u32>();

/// One shuffled cycle through every cache line of its memory, a load a line. For one thread: it knows where it is.
#[derive(Debug)]
pub struct Walk {
    chain: Vec<u32>,
    lines: usize,
    /// Where the next load goes.
    at: Cell<usize>,
}

impl Walk {
    /// A walk over `bytes`, of at least one line.
    pub fn new(bytes: usize) -> Walk {
        let lines = (bytes / 64).max(1);
        // Sattolo's shuffle: a single cycle.
        let mut order: Vec<u32> = (0..lines as u32).collect();
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        for i in (1..lines).rev() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            order.swap(i, (random >> 33) as usize % i);
        }
        // The allocation may begin inside a line; each load is still in a line of its own.
        let mut chain = vec![0u32; lines * WORDS];
        for (line, &next) in order.iter().enumerate() {
            chain[line * WORDS] = next * WORDS as u32;
        }
        Walk { chain, lines, at: Cell::new(0) }
    }

    /// Cache lines, and the loads of one time round.
    pub fn lines(&self) -> usize {
        self.lines
    }

    /// Goes round once; nanoseconds.
    pub fn round(&self) -> f64 {
        let start = Instant::now();
        self.load(self.lines);
        start.elapsed().as_secs_f64() * 1e9
    }

    /// Makes so many loads, each of which has to wait for the one before, from where the last one ended.
    pub fn load(&self, loads: usize) {
        let mut at = self.at.get();
        for _ in 0..loads {
            at = self.chain[at] as usize;
        }
        self.at.set(black_box(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_visits_every_line_once() {
        for lines in [1, 2, 100] {
            let walk = Walk::new(64 * lines);
            let (mut at, mut seen) = (0usize, std::collections::HashSet::new());
            while seen.insert(at) {
                at = walk.chain[at] as usize;
            }
            assert_eq!((at, seen.len(), walk.lines()), (0, lines, lines));
        }
    }
    #[test]
    fn it_goes_on_where_it_stopped() {
        let walk = Walk::new(64 * 100);
        walk.load(30);
        assert_ne!(walk.at.get(), 0);
        walk.load(70);
        assert_eq!(walk.at.get(), 0, "once round");
    }
}
