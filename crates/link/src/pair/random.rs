//! Chance, from a seed.

use std::hash::{BuildHasher, RandomState};

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014): a few operations a number, and any seed will do.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The `number`th sequence of a seed.
    pub fn new(seed: u64, number: u64) -> Random {
        let mut random = Random(seed);
        for _ in 0..=number {
            random.0 = random.next();
        }
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True in so many of 1 cases. Takes one number, whatever the chance.
    pub fn chance(&mut self, of: f64) -> bool {
        // 53 bits, as a double has.
        ((self.next() >> 11) as f64) < of * (1u64 << 53) as f64
    }

    /// Below `end`; 0 where that is 0. Takes one number.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

/// A seed that nobody chose: [`SEED`] from the environment, else by chance.
pub(crate) fn seed() -> u64 {
    let given = std::env::var(SEED).ok();
    given.and_then(|text| parse(&text)).unwrap_or_else(|| RandomState::new().hash_one(SEED))
}

/// The variable that has a run repeated.
pub const SEED: &str = "ONECOPY_PAIR_SEED";

fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_sequence() {
        let take = |seed, number| {
            let mut random = Random::new(seed, number);
            [(); 4].map(|()| random.next())
        };
        assert_eq!(take(7, 0), take(7, 0));
        assert_ne!(take(7, 0), take(7, 1));
        assert_ne!(take(7, 0), take(8, 0));
        assert_eq!([parse("0x1f"), parse(" 31\n"), parse("x")], [Some(31), Some(31), None]);
    }

    #[test]
    fn chances_are_what_they_are_said_to_be() {
        let mut random = Random::new(1, 0);
        let mut count = |of| (0..100_000).filter(|_| random.chance(of)).count();
        assert_eq!((count(0.0), count(1.0)), (0, 100_000));
        for of in [0.01, 0.5] {
            let expected = of * 100_000.0;
            let seen = count(of) as f64;
            assert!((seen - expected).abs() < 5.0 * expected.sqrt(), "{seen} of {expected}");
        }
        let mut seen = [0; 5];
        (0..1000).for_each(|_| seen[random.below(5) as usize] += 1);
        assert!(seen.iter().all(|count| *count > 100) && random.below(0) == 0);
    }
}
