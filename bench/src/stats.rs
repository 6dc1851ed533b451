//! Median and spread of the rounds.

/// What the rounds of one engine gave, boiled down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The middle value; the mean of the two middle ones when their number is even.
    pub median: f64,
    /// The smallest value.
    pub low: f64,
    /// The largest value.
    pub high: f64,
    /// How many values there were.
    pub rounds: usize,
}

impl Summary {
    /// Boils `values` down; `None` if there are none or one is not a finite number.
    ///
    /// Low and high are the extremes, not quartiles: with five rounds a quartile would claim more than was seen.
    pub fn of(values: &[f64]) -> Option<Summary> {
        if values.is_empty() || values.iter().any(|v| !v.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Summary { median, low: sorted[0], high: sorted[sorted.len() - 1], rounds: sorted.len() })
    }

    /// Half of the spread, as a share of the median (0.05 = ± 5 %); 0 where the median is 0.
    pub fn spread(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.high - self.low) / 2.0 / self.median.abs() }
    }
}

/// The ratio of each round to the same round of the rival, larger is better, boiled down. Rounds alternate
/// (A B A B), so that the two values of a pair met the same noise; its extremes are the spread of the ratio.
pub fn paired(ours: &[f64], theirs: &[f64], larger_is_better: bool) -> Option<Summary> {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(&a, &b)| ratio(a, b, larger_is_better)).collect();
    Summary::of(&ratios)
}

/// `ours` against `theirs`, larger is better. Two zeroes are equal (idle CPU that both measure as 0).
pub fn ratio(ours: f64, theirs: f64, larger_is_better: bool) -> f64 {
    let (over, under) = if larger_is_better { (ours, theirs) } else { (theirs, ours) };
    if over == under { 1.0 } else { over / under }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_counts() {
        let s = Summary::of(&[5.0, 1.0, 3.0]).unwrap();
        assert_eq!((s.median, s.low, s.high, s.rounds), (3.0, 1.0, 5.0, 3));
        assert_eq!(Summary::of(&[4.0, 1.0, 3.0, 2.0]).unwrap().median, 2.5);
        assert_eq!(Summary::of(&[7.0]).unwrap(), Summary { median: 7.0, low: 7.0, high: 7.0, rounds: 1 });
    }

    #[test]
    fn nothing_and_nonsense_have_no_summary() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
        assert_eq!(Summary::of(&[f64::INFINITY]), None);
    }

    #[test]
    fn one_outlier_moves_the_spread_and_not_the_median() {
        let s = Summary::of(&[10.0, 10.0, 10.0, 10.0, 90.0]).unwrap();
        assert_eq!(s.median, 10.0);
        assert_eq!(s.spread(), 4.0);
    }

    #[test]
    fn ratio_is_larger_is_better_both_ways() {
        assert_eq!(ratio(6.0, 3.0, true), 2.0);
        assert_eq!(ratio(3.0, 6.0, false), 2.0);
        assert_eq!(ratio(0.0, 0.0, false), 1.0);
        assert!(ratio(0.0, 1.0, false).is_infinite());
    }

    #[test]
    fn pairs_cancel_a_drift_that_hits_both() {
        // The machine halves its speed in the third round: the medians differ less than the rounds do.
        let s = paired(&[20.0, 20.0, 10.0], &[10.0, 10.0, 5.0], true).unwrap();
        assert_eq!((s.median, s.low, s.high), (2.0, 2.0, 2.0));
    }
}
