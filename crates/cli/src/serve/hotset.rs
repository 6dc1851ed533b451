//! How much of a daemon's own working set a response pushes out of the cache: a shuffled walk over a small
//! memory, timed before a body is sent and right after (shared facts: "undisturbed" without counters).

use crate::counters::Counters;
use std::hint::black_box;
use std::time::Instant;

const LINE: usize = 64 / 4;

/// A closed walk that visits every cache line of its memory once, in an order that no prefetcher foresees.
#[derive(Debug)]
pub struct HotSet {
    next: Vec<u32>,
    lines: usize,
}

impl HotSet {
    /// A walk over `bytes`.
    pub fn new(bytes: usize) -> HotSet {
        let lines = (bytes / 64).max(2);
        let mut order: Vec<u32> = (0..lines as u32).collect();
        let mut seed = 0x9E37_79B9_7F4A_7C15_u64; // any odd number: the walk must be irregular, not secret
        for i in (1..lines).rev() {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            order.swap(i, (seed % (i as u64 + 1)) as usize);
        }
        let mut next = vec![0; lines * LINE];
        for i in 0..lines {
            next[order[i] as usize * LINE] = order[(i + 1) % lines] * LINE as u32;
        }
        HotSet { next, lines }
    }

    fn walk(&self) -> u64 {
        let start = Instant::now();
        let mut at = 0;
        for _ in 0..self.lines {
            at = self.next[at as usize];
        }
        black_box(at);
        start.elapsed().as_nanos() as u64
    }

    /// Warms the walk and times it undisturbed; the time in ns.
    pub fn before(&self) -> u64 {
        self.walk();
        self.walk()
    }

    /// Times one walk after the body and counts it with the time from `before`.
    pub fn after(&self, before: u64, counters: &mut Counters) {
        counters.hot_after_ns += self.walk();
        counters.hot_before_ns += before;
        counters.hot_lines += self.lines as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_visits_every_line_once() {
        let hot = HotSet::new(64 * 100);
        let (mut at, mut seen) = (0usize, std::collections::HashSet::new());
        while seen.insert(at) {
            at = hot.next[at] as usize;
        }
        assert_eq!((at, seen.len()), (0, 100));
    }
}
