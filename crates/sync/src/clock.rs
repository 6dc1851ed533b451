//! A clock that costs a few nanoseconds.

use std::time::Duration;

/// Milliseconds of CLOCK_MONOTONIC_COARSE: about 5 ns to read (vDSO, no TSC), steps of one tick (1 to 10 ms).
/// Good for "has it been 100 ms", never for measuring.
#[inline]
pub fn coarse_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// What is left of `limit` since `start`; None when it is over.
pub fn remaining(start: std::time::Instant, limit: Duration) -> Option<Duration> {
    limit.checked_sub(start.elapsed()).filter(|left| !left.is_zero())
}
