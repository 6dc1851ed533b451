//! How often something may be done.

/// So many a second on average, and so many at once.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// When it was full, or would have been: less is in it by all that was taken since.
    full_at: u64,
    each_ns: u64,
    burst: u64,
}

impl Bucket {
    pub const fn new(per_second: u64, burst: u64) -> Bucket {
        Bucket { full_at: 0, each_ns: 1_000_000_000 / per_second, burst }
    }

    /// Whether it may be done now; it counts then.
    pub fn take(&mut self, now: u64) -> bool {
        let from = self.full_at.max(now);
        let room = from - now + self.each_ns <= self.burst * self.each_ns;
        if room {
            self.full_at = from + self.each_ns;
        }
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_one_by_one() {
        let mut bucket = Bucket::new(1000, 5);
        let mut taken = |now| (0..100).filter(|_| bucket.take(now)).count();
        assert_eq!(taken(7), 5);
        assert_eq!(taken(7), 0);
        assert_eq!(taken(1_000_006), 0);
        assert_eq!(taken(1_000_007), 1);
        assert_eq!(taken(3_500_000), 2);
        assert_eq!(taken(u64::MAX / 2), 5);
    }
}
