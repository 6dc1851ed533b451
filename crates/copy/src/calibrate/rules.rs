//! From measurements to rules: which of them are believed, and from which length on copies stream. No clock and no machine:
//! the same points always give the same rules.

use super::crossover::{LENS, Point};
use crate::policy::Reader;
use crate::profile::{Crossover, reader_name};

/// What non-temporal stores must gain to be chosen: less than this is noise, and cached stores are the habit.
const MARGIN: f64 = 1.03;

/// The crossovers that follow from the points.
///
/// What non-temporal stores gain can only grow with the footprint: their cost doesn't depend on it, that of cached
/// stores rises. So a larger footprint never streams less than a smaller one, whatever was measured; of all rules of
/// that kind, the one is taken by which the measured copies gain most in sum. A disturbed measurement is so
/// outvoted by its neighbours, and one that is missing has no say.
pub(super) fn decide(points: &[Point]) -> Vec<Crossover> {
    let mut footprints: Vec<_> = points.iter().map(|point| point.footprint).collect();
    footprints.sort_unstable();
    footprints.dedup();
    let one = |reader| best(&gains(points, reader, &footprints));
    let (same, none) = (one(Reader::SameCore), one(Reader::NoCpu));
    // With one CPU there is no other core to measure: then the reader is always on this one.
    let measured = points.iter().any(|point| point.reader == Reader::OtherCore && point.gain().is_some());
    let other = if measured { one(Reader::OtherCore) } else { same.clone() };
    // Not known who reads: non-temporal only where it wins with another core and with none. That this very thread reads at
    // once is the one case that a caller always knows.
    let unknown: Vec<_> = other.iter().zip(&none).map(|(a, b)| *a.max(b)).collect();
    [(Reader::SameCore, same), (Reader::OtherCore, other), (Reader::NoCpu, none), (Reader::Unknown, unknown)]
        .into_iter()
        .flat_map(|(reader, choices)| {
            footprints.iter().zip(choices).map(move |(&footprint, choice)| Crossover {
                reader: reader_name(reader).to_owned(),
                footprint: footprint as u64,
                min_len: LENS.get(choice).map(|&len| len as u32),
            })
        })
        .collect()
}

/// What streaming gains beyond the margin, in logarithms: for each footprint, for each of [`LENS`]; 0 where it is not known.
fn gains(points: &[Point], reader: Reader, footprints: &[usize]) -> Vec<[f64; LENS.len()]> {
    let mut gains = vec![[0.0; LENS.len()]; footprints.len()];
    for point in points.iter().filter(|point| point.reader == reader) {
        let place =
            (footprints.binary_search(&point.footprint), LENS.iter().position(|len| *len == point.len));
        if let ((Ok(row), Some(column)), Some(gain)) = (place, point.gain()) {
            gains[row][column] = gain.ln() - MARGIN.ln();
        }
    }
    gains
}

/// For each footprint, in their order, the place in [`LENS`] from which on copies stream (`LENS.len()`: none does), so that no
/// place is after that of a smaller footprint, and the sum of what streams is the largest. Of equal sums, the one that streams
/// less.
fn best(gains: &[[f64; LENS.len()]]) -> Vec<usize> {
    const CHOICES: usize = LENS.len() + 1;
    // The sum that a choice for a footprint brings together with the best ones for all larger footprints.
    let mut sums = vec![[0.0; CHOICES]; gains.len() + 1];
    for (row, gains) in gains.iter().enumerate().rev() {
        let mut streams = 0.0;
        for choice in (0..CHOICES).rev() {
            streams += gains.get(choice).copied().unwrap_or(0.0);
            // What larger footprints may choose: the same, or to stream more.
            let rest = sums[row + 1][..=choice].iter().copied().fold(f64::NEG_INFINITY, f64::max);
            sums[row][choice] = streams + rest;
        }
    }
    let mut most = CHOICES - 1;
    sums[..gains.len()]
        .iter()
        .map(|sums| {
            let mut chosen = most;
            for choice in (0..most).rev() {
                if sums[choice] > sums[chosen] + 1e-12 {
                    chosen = choice;
                }
            }
            most = chosen;
            chosen
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const READERS: [Reader; 3] = [Reader::SameCore, Reader::OtherCore, Reader::NoCpu];

    fn point(reader: Reader, footprint: usize, len: usize, gain: f64) -> Point {
        Point { reader, footprint, len, cached: Some(gain), stream: Some(1.0) }
    }

    fn min_len(crossovers: &[Crossover], reader: &str, footprint: u64) -> Option<u32> {
        crossovers.iter().find(|row| row.reader == reader && row.footprint == footprint).unwrap().min_len
    }

    #[test]
    fn the_crossover_is_where_longer_copies_gain() {
        let points: Vec<_> = READERS
            .into_iter()
            .flat_map(|reader| {
                let bias = if reader == Reader::SameCore { 0.5 } else { 1.0 };
                let middle = if reader == Reader::OtherCore { 0.9 } else { 1.5 };
                [
                    point(reader, 1 << 20, 4 << 10, 0.3 * bias),
                    point(reader, 1 << 20, 64 << 10, 0.6 * bias),
                    point(reader, 256 << 20, 4 << 10, 0.9 * bias),
                    point(reader, 256 << 20, 64 << 10, middle * bias),
                    point(reader, 256 << 20, 1 << 20, 1.6 * bias),
                ]
            })
            .collect();
        let crossovers = decide(&points);
        assert_eq!(min_len(&crossovers, "no-cpu", 1 << 20), None);
        assert_eq!(min_len(&crossovers, "no-cpu", 256 << 20), Some(64 << 10));
        assert_eq!(min_len(&crossovers, "other-core", 256 << 20), Some(1 << 20));
        assert_eq!(min_len(&crossovers, "same-core", 256 << 20), None);
        let unknown = min_len(&crossovers, "unknown", 256 << 20);
        assert_eq!(unknown, Some(1 << 20), "the longer of other-core and no-cpu");
    }

    /// As `tune` saw them on a machine whose reader shared the writer's CPU: from 8 MiB on 4 MiB, from 32 MiB on none, from
    /// 64 MiB on 4 KiB.
    #[test]
    fn rules_do_not_contradict_each_other() {
        let (wins, loses) = (1.5, 0.7);
        let mut points =
            vec![point(Reader::NoCpu, 8 << 20, 1 << 20, loses), point(Reader::NoCpu, 8 << 20, 4 << 20, wins)];
        points.extend(
            [(1 << 20, wins), (4 << 20, wins), (16 << 20, loses)]
                .map(|(len, gain)| point(Reader::NoCpu, 32 << 20, len, gain)),
        );
        points.extend([4 << 10, 1 << 20, 16 << 20].map(|len| point(Reader::NoCpu, 64 << 20, len, wins)));
        let crossovers = decide(&points);
        let rules = [8, 32, 64].map(|footprint| min_len(&crossovers, "no-cpu", footprint << 20));
        assert_eq!(rules, [Some(4 << 20), Some(1 << 20), Some(4 << 10)]);
    }

    #[test]
    fn what_was_not_measured_has_no_say() {
        let missing = |len| Point { cached: None, ..point(Reader::OtherCore, 64 << 20, len, 1.0) };
        let mut points: Vec<_> = LENS.into_iter().map(missing).collect();
        points.extend(LENS.map(|len| point(Reader::SameCore, 64 << 20, len, 2.0)));
        assert_eq!(min_len(&decide(&points), "other-core", 64 << 20), Some(4 << 10), "as on one core");
        points.push(point(Reader::OtherCore, 64 << 20, 1 << 20, 0.5));
        assert_eq!(min_len(&decide(&points), "other-core", 64 << 20), None);
        assert_eq!(decide(&[]), []);
    }

    fn any_points() -> impl Strategy<Value = Vec<Point>> {
        let seconds = || prop::option::weighted(0.9, 1e-9..1e-1_f64);
        let point = (0..READERS.len(), 18..29_u32, 0..LENS.len(), seconds(), seconds());
        prop::collection::vec(point, 0..200).prop_map(|points| {
            let made = |(reader, footprint, len, cached, stream): (usize, u32, usize, _, _)| Point {
                reader: READERS[reader],
                footprint: 1 << footprint,
                len: LENS[len],
                cached,
                stream,
            };
            points.into_iter().map(made).collect()
        })
    }

    fn shortest(row: &Crossover) -> u32 {
        row.min_len.unwrap_or(u32::MAX)
    }

    /// All rules there are for so many footprints, by trying.
    fn by_trying(gains: &[[f64; LENS.len()]], most: usize) -> f64 {
        let Some((first, rest)) = gains.split_first() else { return 0.0 };
        (0..=most)
            .map(|choice| first[choice..].iter().sum::<f64>() + by_trying(rest, choice))
            .fold(f64::NEG_INFINITY, f64::max)
    }

    proptest! {
        #[test]
        fn a_larger_footprint_never_streams_less(points in any_points()) {
            let crossovers = decide(&points);
            for reader in ["same-core", "other-core", "no-cpu", "unknown"] {
                let rows: Vec<_> = crossovers.iter().filter(|row| row.reader == reader).collect();
                prop_assert!(rows.is_sorted_by(|a, b| a.footprint < b.footprint && shortest(a) >= shortest(b)));
            }
            // Who reads is not known: no more than where somebody or nobody does.
            for (unknown, row) in crossovers.iter().filter(|row| row.reader == "unknown").flat_map(|unknown| {
                crossovers.iter().map(move |row| (unknown, row))
            }) {
                let other = ["other-core", "no-cpu"].contains(&row.reader.as_str());
                prop_assert!(!other || row.footprint != unknown.footprint || shortest(unknown) >= shortest(row));
            }
        }

        #[test]
        fn no_rule_of_that_kind_gains_more(gains in prop::collection::vec(prop::array::uniform9(-2.0..2.0_f64), 0..4)) {
            let chosen = best(&gains);
            let sum: f64 = gains.iter().zip(&chosen).map(|(gains, choice)| gains[*choice..].iter().sum::<f64>()).sum();
            prop_assert!((sum - by_trying(&gains, LENS.len())).abs() < 1e-9);
        }

        #[test]
        fn the_unit_of_time_does_not_matter(points in any_points(), exponent in -8..8_i32) {
            let scaled: Vec<_> = points
                .iter()
                .map(|point| Point {
                    cached: point.cached.map(|seconds| seconds * 2f64.powi(exponent)),
                    stream: point.stream.map(|seconds| seconds * 2f64.powi(exponent)),
                    ..point.clone()
                })
                .collect();
            prop_assert_eq!(decide(&points), decide(&scaled));
        }

        #[test]
        fn what_always_wins_streams_and_what_never_does_does_not(wins: bool, footprints in 1..6_usize) {
            let gain = if wins { 1.2 } else { 1.02 };
            let points: Vec<_> = READERS
                .into_iter()
                .flat_map(|reader| (0..footprints).flat_map(move |n| LENS.map(|len| point(reader, 1 << (20 + n), len, gain))))
                .collect();
            let should = if wins { Some(LENS[0] as u32) } else { None };
            prop_assert!(decide(&points).iter().all(|row| row.min_len == should));
        }
    }
}
