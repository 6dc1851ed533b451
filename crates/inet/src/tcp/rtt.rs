//! How long a round trip takes, and how long to wait for an acknowledgement: RFC 6298, as Linux does it.
//!
//! Linux (net/ipv4/tcp_input.c, tcp_rtt_estimator and tcp_set_rto) differs from the RFC's text in three ways, and so does this:
//!
//! - The variation never counts for less than the shortest RTO, so the RTO is at least that much *above* the smoothed round trip.
//! - Within a window of data the variation only grows; it shrinks once for each window, by a quarter of the way.
//! - A round trip that is shorter than expected moves the variation an eighth as much, as it is no reason to wait longer.
//!
//! Whose samples count is the caller's business (Karn's rule: none of what was sent twice, but by timestamps).

use crate::wire::Seq;

/// How long to wait before there is a sample (RFC 6298, section 2.1).
const INITIAL_RTO_US: u32 = 1_000_000;
/// The shortest RTO, unless told otherwise.
const RTO_MIN_US: u32 = 200_000;
/// The longest.
const RTO_MAX_US: u32 = 120_000_000;
/// Samples longer than this (4 minutes and a half) count as this: eight times as much fits 31 bits.
const LONGEST_SAMPLE_US: u32 = 1 << 28;
/// For how long the shortest round trip is remembered: paths change.
const MIN_WINDOW_MS: u32 = 300_000;

/// What is known of a connection's round trips, all in microseconds.
#[derive(Clone, Debug)]
pub struct Rtt {
    /// Eight times the smoothed round trip; 0 before there is one.
    srtt_8: u32,
    /// Four times the mean deviation from it.
    mdev_4: u32,
    /// The largest `mdev_4` since `until` was set, but no less than the shortest RTO.
    mdev_4_max: u32,
    /// What is added to the smoothed round trip: four times the variation.
    rttvar_4: u32,
    /// Where the window of data ends after which the variation may shrink.
    until: Seq,
    shortest: WindowedMin,
    rto_min: u32,
    rto_max: u32,
}

impl Default for Rtt {
    fn default() -> Rtt {
        Rtt::new()
    }
}

impl Rtt {
    /// One that knows nothing yet.
    pub fn new() -> Rtt {
        Rtt {
            srtt_8: 0,
            mdev_4: 0,
            mdev_4_max: RTO_MIN_US,
            rttvar_4: 0,
            until: Seq(0),
            shortest: WindowedMin::default(),
            rto_min: RTO_MIN_US,
            rto_max: RTO_MAX_US,
        }
    }

    /// Between what the RTO has to be, in microseconds. The lower bound takes part with the next samples, as it is a bound of the
    /// variation. A lower bound above the upper one moves that.
    pub fn set_bounds(&mut self, min_us: u32, max_us: u32) {
        (self.rto_min, self.rto_max) = (min_us, max_us.max(min_us).max(1));
    }

    /// Takes a round trip of `rtt_us`; the shortest one is [`Rtt::sample_min`]'s. `una` and `nxt` are the oldest byte that is not acknowledged,
    /// after the acknowledgement that ended it, and the next one to be sent.
    pub fn sample(&mut self, rtt_us: u32, una: Seq, nxt: Seq) {
        let rtt = rtt_us.min(LONGEST_SAMPLE_US);
        if self.srtt_8 == 0 {
            self.srtt_8 = (rtt << 3).max(1);
            // So that the first RTO is three times the round trip.
            self.mdev_4 = rtt << 1;
            self.rttvar_4 = self.mdev_4.max(self.rto_min);
            self.mdev_4_max = self.rttvar_4;
            self.until = nxt;
            return;
        }
        // An eighth of the error goes into the mean, a quarter of its size into the deviation.
        let error = i64::from(rtt) - i64::from(self.srtt_8 >> 3);
        let mut step = error.abs() - i64::from(self.mdev_4 >> 2);
        if error < 0 && step > 0 {
            step >>= 3;
        }
        self.srtt_8 = moved(self.srtt_8, error).max(1);
        self.mdev_4 = moved(self.mdev_4, step);
        if self.mdev_4 > self.mdev_4_max {
            self.mdev_4_max = self.mdev_4;
            self.rttvar_4 = self.rttvar_4.max(self.mdev_4_max);
        }
        if una.after(self.until) {
            if self.mdev_4_max < self.rttvar_4 {
                self.rttvar_4 -= (self.rttvar_4 - self.mdev_4_max) >> 2;
            }
            self.until = nxt;
            self.mdev_4_max = self.rto_min;
        }
    }

    /// Takes a round trip for [`Rtt::min_us`] alone: of what was sent last among the acknowledged, which waited least for the peer's
    /// acknowledgement. [`Rtt::sample`] wants the one that was sent first.
    pub fn sample_min(&mut self, now: u64, rtt_us: u32) {
        // 0 stands for none; a clock that did not move says less than a millisecond.
        let rtt = if rtt_us == 0 { 1_000 } else { rtt_us };
        self.shortest.take((now / 1_000_000) as u32, rtt, MIN_WINDOW_MS);
    }

    /// The smoothed round trip.
    pub fn srtt_us(&self) -> Option<u32> {
        (self.srtt_8 != 0).then_some(self.srtt_8 >> 3)
    }

    /// The mean deviation from it: what `tcpi_rttvar` shows.
    pub fn rttvar_us(&self) -> u32 {
        self.mdev_4 >> 2
    }

    /// How long to wait for an acknowledgement, in nanoseconds, when none was waited for in vain: who backs off doubles it.
    pub fn rto_ns(&self) -> u64 {
        let rto = self.srtt_us().map_or(INITIAL_RTO_US, |srtt| srtt.saturating_add(self.rttvar_4));
        u64::from(rto.clamp(self.rto_min, self.rto_max)) * 1_000
    }

    /// The longest RTO, in nanoseconds, backed off or not.
    pub fn rto_max_ns(&self) -> u64 {
        u64::from(self.rto_max) * 1_000
    }

    /// The shortest round trip of the last five minutes.
    pub fn min_us(&self) -> Option<u32> {
        (self.shortest.best.value != 0).then_some(self.shortest.best.value)
    }
}

/// `from` and `by`, between 0 and what fits.
fn moved(from: u32, by: i64) -> u32 {
    i64::from(from).saturating_add(by).clamp(0, i64::from(u32::MAX >> 1)) as u32
}

/// A value, and when it was seen (milliseconds, which wrap).
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    at: u32,
    value: u32,
}

/// The least of a sliding window of time, in constant space: the best value, the best of what came after it, and the best of what came
/// after that, kept about a quarter and a half of the window apart, so that one is at hand when the best one is too old (K. Nichols'
/// filter, as in Linux's lib/win_minmax.c and in BBR).
///
/// Invariant: `best.value <= second.value <= third.value`, in order of time.
#[derive(Clone, Copy, Debug, Default)]
struct WindowedMin {
    best: Seen,
    second: Seen,
    third: Seen,
}

impl WindowedMin {
    fn take(&mut self, at: u32, value: u32, window: u32) {
        let new = Seen { at, value };
        let none = self.best.value == 0;
        if none || value <= self.best.value || at.wrapping_sub(self.third.at) > window {
            (self.best, self.second, self.third) = (new, new, new);
            return;
        }
        if value <= self.second.value {
            (self.second, self.third) = (new, new);
        } else if value <= self.third.value {
            self.third = new;
        }
        let age = at.wrapping_sub(self.best.at);
        if age > window {
            (self.best, self.second, self.third) = (self.second, self.third, new);
            // What stood in for the best may be too old as well.
            if at.wrapping_sub(self.best.at) > window {
                (self.best, self.second, self.third) = (self.second, self.third, new);
            }
        } else if self.second.at == self.best.at && age > window / 4 {
            (self.second, self.third) = (new, new);
        } else if self.third.at == self.second.at && age > window / 2 {
            self.third = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_least_is_forgotten_after_the_window() {
        let mut least = WindowedMin::default();
        least.take(0, 10, 1_000);
        for at in (100..=1_000).step_by(100) {
            least.take(at, 20 + at / 100, 1_000);
            assert_eq!(least.best.value, 10, "at {at}");
        }
        // The 10 is too old; of what came since, one of the least is known.
        least.take(1_001, 40, 1_000);
        assert!((21..=24).contains(&least.best.value), "{least:?}");
        // A pause longer than the window leaves nothing.
        least.take(5_000, 90, 1_000);
        assert_eq!(least.best.value, 90);
        // And less is less at once.
        least.take(5_001, 3, 1_000);
        assert_eq!(least.best.value, 3);
    }

    #[test]
    fn the_clock_of_the_least_wraps() {
        let mut least = WindowedMin::default();
        least.take(u32::MAX - 100, 10, 1_000);
        least.take(300, 20, 1_000);
        assert_eq!(least.best.value, 10);
        least.take(950, 30, 1_000);
        assert_eq!(least.best.value, 20);
    }

    #[test]
    fn a_wrong_bound_is_made_right() {
        let mut rtt = Rtt::new();
        rtt.set_bounds(5_000_000, 1_000);
        assert_eq!(rtt.rto_ns(), 5_000 * MS);
    }
}
