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

const fn cached(len: usize, footprint: usize) -> Place {
    Place { store: Store::Cached, len, footprint }
}

const fn stream(len: usize) -> Place {
    Place { store: Store::NonTemporal, len, footprint: usize::MAX }
}

/// Footprints of `usize::MAX` are cut to the whole pool.
pub(super) const PLACES: &[Place] = &[
    cached(512, 512),
    cached(1 << 10, 1 << 10),
    cached(1536, 1536),
    cached(2 << 10, 2 << 10),
    cached(3 << 10, 3 << 10),
    cached(4 << 10, 4 << 10),
    cached(8 << 10, 8 << 10),
    cached(16 << 10, 16 << 10),
    cached(64 << 10, 64 << 10),
    cached(256 << 10, 256 << 10),
    cached(64 << 10, usize::MAX),
    cached(1 << 20, usize::MAX),
    stream(16 << 10),
    stream(64 << 10),
    stream(1 << 20),
];

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
    let source = vec![3u8; 1 << 20];
    let mut points = Vec::new();
    for place in PLACES {
        step(format!("kernels, {:?}, {} bytes", place.store, place.len));
        let footprint = place.footprint.min(pool.len());
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
    let cached = best(points, |place| place.store == Store::Cached && place.len <= 2048).unwrap_or("generic");
    let long = best(points, |place| place.store == Store::Cached && place.len >= 8192).unwrap_or(cached);
    let stream = best(points, |place| place.store == Store::NonTemporal).unwrap_or("generic");
    let time = |name: &str, place: &Place| {
        points.iter().find(|point| point.kernel == name && point.place == *place).map(|point| point.seconds)
    };
    // From the longest place down to the first where `long` doesn't win any more.
    let hot =
        || PLACES.iter().rev().filter(|place| place.store == Store::Cached && place.footprint == place.len);
    let long_from = hot()
        .take_while(|place| place.len >= 8192 || time(long, place) <= time(cached, place))
        .map(|place| place.len as u64)
        .last()
        .unwrap_or(8192);
    Kernels { cached: cached.to_owned(), long: long.to_owned(), long_from, stream: stream.to_owned() }
}
