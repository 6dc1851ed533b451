//! The fastest kernels.

use super::{Options, time_calls};
use crate::policy::Store;
use crate::{Kernel, profile::Kernels};
use std::hint::black_box;

/// What is copied where: a length, and the footprint of the destination (the source stays in the cache).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which stores.
    pub store: Store,
    /// Bytes of each copy.
    pub len: usize,
    /// Bytes that the destination cycles through.
    pub footprint: usize,
}

fn cached(len: usize, footprint: usize) -> Place {
    Place { store: Store::Cached, len, footprint }
}

fn stream(len: usize) -> Place {
    Place { store: Store::NonTemporal, len, footprint: usize::MAX }
}

/// From here on a copy counts as long; what is at least as fast from here on may begin later or sooner.
const LONG: usize = 16 << 10;
/// In the cache and out of it, for the choice of where the long kernel begins.
const HOT_AND_COLD: [usize; 7] = [2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10];
/// Where the source begins in its line: malloc aligns to 16 bytes only, rings to pages.
const SOURCE_OFFSET: usize = 16;

/// Footprints of `usize::MAX` are cut to the whole pool.
pub(super) fn places() -> Vec<Place> {
    let hot = [512, 1 << 10, 1536].into_iter().chain(HOT_AND_COLD).map(|len| cached(len, len));
    let cold = HOT_AND_COLD.into_iter().chain([1 << 20]).map(|len| cached(len, usize::MAX));
    hot.chain(cold).chain([16 << 10, 64 << 10, 1 << 20].map(stream)).collect()
}

/// One kernel at one place.
#[derive(Clone, Debug)]
pub struct KernelPoint {
    /// The kernel's name.
    pub kernel: &'static str,
    /// Where.
    pub place: Place,
    /// Seconds per copy.
    pub seconds: f64,
}

pub(super) fn measure(options: &Options, pool: &mut [u8], step: &mut dyn FnMut(String)) -> Vec<KernelPoint> {
    let source = vec![3u8; (1 << 20) + 128];
    let source = &source[source.as_ptr().align_offset(64) + SOURCE_OFFSET..];
    let mut points = Vec::new();
    for place in &places() {
        step(format!("kernels, {:?}, {} bytes", place.store, place.len));
        let footprint = place.footprint.min(pool.len() & !63);
        let rivals: Vec<_> =
            Kernel::all().filter(|kernel| place.store == Store::Cached || kernel.streams()).collect();
        let mut best = vec![f64::INFINITY; rivals.len()];
        let slots = footprint / place.len;
        // The cursor goes on from rival to rival: each meets memory that none of them has just touched.
        let mut slot = 0;
        for _ in 0..options.rounds {
            for (kernel, best) in rivals.iter().zip(&mut best) {
                let seconds = time_calls(options.stretch, || {
                    let dst = &mut pool[slot * place.len..][..place.len];
                    kernel.copy(black_box(dst), black_box(&source[..place.len]), place.store);
                    slot = if slot + 1 == slots { 0 } else { slot + 1 };
                });
                *best = best.min(seconds);
            }
        }
        points.extend(rivals.iter().zip(best).map(|(kernel, seconds)| KernelPoint {
            kernel: kernel.name(),
            place: *place,
            seconds,
        }));
    }
    points
}

/// Of the kernels measured at all places that `filter` admits, the one whose times have the smallest product: so no
/// place outweighs the others.
fn best(points: &[KernelPoint], filter: impl Fn(&Place) -> bool) -> Option<&'static str> {
    let names: Vec<_> = Kernel::all().map(Kernel::name).collect();
    let score = |name: &str| {
        let times: Vec<_> = points
            .iter()
            .filter(|point| point.kernel == name && filter(&point.place))
            .map(|point| point.seconds.ln())
            .collect();
        if times.is_empty() { f64::INFINITY } else { times.iter().sum::<f64>() / times.len() as f64 }
    };
    names.into_iter().min_by(|a, b| score(a).total_cmp(&score(b)))
}

/// Short copies by one kernel, long ones by another, and where the second begins.
pub(super) fn choose(points: &[KernelPoint]) -> Kernels {
    let is_cached = |place: &Place| place.store == Store::Cached;
    let cached = best(points, |place| is_cached(place) && place.len < LONG).unwrap_or("generic");
    let long = best(points, |place| is_cached(place) && place.len >= LONG).unwrap_or(cached);
    let stream = best(points, |place| place.store == Store::NonTemporal).unwrap_or("generic");
    // The product of the times in the cache and out of it.
    let time = |name: &str, len: usize| -> f64 {
        points
            .iter()
            .filter(|point| point.kernel == name && is_cached(&point.place) && point.place.len == len)
            .map(|point| point.seconds.ln())
            .sum()
    };
    // From the longest down to the first where `long` doesn't win any more.
    let long_from = HOT_AND_COLD
        .into_iter()
        .rev()
        .take_while(|&len| time(long, len) <= time(cached, len))
        .last()
        .unwrap_or(2 * HOT_AND_COLD[HOT_AND_COLD.len() - 1]);
    let long_from = if long == cached { i64::MAX as u64 } else { long_from as u64 };
    Kernels { cached: cached.to_owned(), long: long.to_owned(), long_from, stream: stream.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_kernel_begins_where_it_wins_for_good() {
        let mut points = Vec::new();
        for place in places() {
            // sse2: 1 ns a byte. generic: dear to start, cheaper later, and it has no stores to stream with.
            points.push(KernelPoint { kernel: "sse2", place, seconds: place.len as f64 });
            if place.store == Store::Cached {
                let seconds = 3000.0 + place.len as f64 * 0.5;
                points.push(KernelPoint { kernel: "generic", place, seconds });
            }
        }
        if cfg!(target_arch = "x86_64") {
            let kernels = choose(&points);
            assert_eq!((&*kernels.cached, &*kernels.long, &*kernels.stream), ("sse2", "generic", "sse2"));
            assert_eq!(kernels.long_from, 8 << 10);
        }
    }
}
