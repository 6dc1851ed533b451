//! How much of a daemon's own working set a response pushes out of the cache: a shuffled walk over a small
//! memory, timed before a body is sent and right after (shared facts: "undisturbed" without counters).

use crate::counters::Counters;
use onecopy::advanced::copy::calibrate::Walk;

/// A walk that is timed around each body.
#[derive(Debug)]
pub struct HotSet(Walk);

impl HotSet {
    /// A walk over `bytes`.
    pub fn new(bytes: usize) -> HotSet {
        HotSet(Walk::new(bytes))
    }

    /// Warms the walk and times it undisturbed; the time in ns.
    pub fn before(&self) -> u64 {
        self.0.round();
        self.0.round() as u64
    }

    /// Times one walk after the body and counts it with the time from `before`.
    pub fn after(&self, before: u64, counters: &mut Counters) {
        counters.hot_after_ns += self.0.round() as u64;
        counters.hot_before_ns += before;
        counters.hot_lines += self.0.lines() as u64;
    }
}
