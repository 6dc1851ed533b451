//! The latency steps: nanoseconds per dependent load over growing working sets.

use super::walk::Walk;
use super::{Options, time_calls};
use crate::profile::Step;

/// The working sets, in bytes.
pub(super) const SIZES: &[usize] = &{
    let mut sizes = [0; 26];
    let mut i = 0;
    while i < 13 {
        // Powers of two and half way between them, from 16 KiB to 96 MiB.
        sizes[2 * i] = 16 << (10 + i);
        sizes[2 * i + 1] = 24 << (10 + i);
        i += 1;
    }
    sizes
};

/// Measures all sizes and keeps the largest of each level.
pub(super) fn measure(options: &Options, step: &mut dyn FnMut(String)) -> Vec<Step> {
    let mut all = Vec::new();
    for &bytes in SIZES {
        step(format!("latency of {} KiB", bytes >> 10));
        if bytes <= options.max_footprint {
            all.push(Step { bytes: bytes as u64, ns: load(bytes, options) });
        }
    }
    levels(&all)
}

/// A level goes on while a load costs less than 1.4 times its first one; the last working set of each is its
/// size. A level of one working set is none, but the way to the next: where a cache is half full.
fn levels(all: &[Step]) -> Vec<Step> {
    let mut levels: Vec<(Step, u32)> = Vec::new();
    let mut first = 0.0;
    for step in all {
        match levels.last_mut() {
            Some((level, count)) if step.ns < first * 1.4 => {
                *level = step.clone();
                *count += 1;
            }
            last => {
                if matches!(last, Some((_, 1))) {
                    levels.pop();
                }
                first = step.ns;
                levels.push((step.clone(), 1));
            }
        }
    }
    levels.into_iter().map(|(level, _)| level).collect()
}

/// The time of one load in a walk through `bytes`.
fn load(bytes: usize, options: &Options) -> f64 {
    let walk = Walk::new(bytes);
    walk.load(walk.lines().min(1 << 19));
    (0..options.rounds)
        .map(|_| time_calls(options.stretch, || walk.load(256)) / 256.0 * 1e9)
        .fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_end_where_the_time_jumps() {
        let all: Vec<_> =
            [(16, 2.0), (32, 2.1), (48, 2.2), (64, 5.0), (128, 6.0), (192, 11.0), (256, 20.0), (384, 21.0)]
                .map(|(bytes, ns)| Step { bytes, ns })
                .into();
        let sizes: Vec<_> = levels(&all).into_iter().map(|level| level.bytes).collect();
        assert_eq!(sizes, [48, 128, 384]);
    }
}
