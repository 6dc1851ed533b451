//! Cached against non-temporal stores, per reader, footprint and length; and what follows for `Auto`.

use super::{Options, pin, time_calls};
use crate::Kernel;
use crate::plan::{CLASSES, class_bytes};
use crate::policy::{Reader, Store};
use crate::profile::{Crossover, Kernels, reader_name};
use std::hint::black_box;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

/// The lengths of the copies, in bytes. Nothing shorter has been seen to gain; the longest don't have their source in the cache.
const LENS: [usize; 9] =
    [4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// The smallest footprint, in bytes: no second-level cache is smaller.
const MIN_FOOTPRINT: usize = 256 << 10;
/// What non-temporal stores must gain to be chosen: less than this is noise, and cached stores are the habit.
const MARGIN: f64 = 1.03;
/// The reader's own buffer: copied out to in pieces, and small enough to stay in its cache.
const OUT: usize = 32 << 10;

/// One reader, footprint and length, by both kinds of store.
#[derive(Clone, Debug)]
pub struct Point {
    /// Who read.
    pub reader: Reader,
    /// Bytes that the destination cycled through.
    pub footprint: usize,
    /// Bytes of each copy.
    pub len: usize,
    /// Seconds per copy with ordinary stores, the reader's time included where it is what the writer waits for.
    pub cached: f64,
    /// The same with non-temporal stores.
    pub stream: f64,
}

/// What to measure.
pub(super) struct Plan {
    reader: Reader,
    footprint: usize,
    len: usize,
}

pub(super) fn plan(options: &Options, cpus: (usize, usize)) -> Vec<Plan> {
    let mut plan = Vec::new();
    for reader in [Reader::SameCore, Reader::OtherCore, Reader::NoCpu] {
        if reader == Reader::OtherCore && cpus.0 == cpus.1 {
            continue; // Nobody to measure it with: `decide` then takes SameCore's.
        }
        for footprint in
            (0..CLASSES).map(class_bytes).filter(|f| (MIN_FOOTPRINT..=options.max_footprint).contains(f))
        {
            // On two cores, two copies at least: with one, writer and reader could only take turns.
            let most = if reader == Reader::OtherCore { footprint / 2 } else { footprint };
            plan.extend(LENS.iter().filter(|&&len| len <= most).map(|&len| Plan { reader, footprint, len }));
        }
    }
    plan
}

pub(super) fn measure(
    options: &Options,
    cpus: (usize, usize),
    plan: &[Plan],
    names: &Kernels,
    pool: &mut [u8],
    step: &mut dyn FnMut(String),
) -> Vec<Point> {
    let longest = plan.iter().map(|plan| plan.len).max().unwrap_or(0);
    let Some(tools) = Tools::new(names, longest) else { return Vec::new() };
    let mut points = Vec::new();
    for Plan { reader, footprint, len } in plan {
        step(format!("{} footprint, reader {}", size(*footprint), reader_name(*reader)));
        let pool = &mut pool[..*footprint];
        let mut times = [f64::INFINITY; 2];
        for _ in 0..options.rounds {
            for (store, best) in [Store::Cached, Store::NonTemporal].into_iter().zip(&mut times) {
                let seconds = match reader {
                    Reader::OtherCore => tools.piped(options.stretch, cpus, pool, *len, store),
                    _ => tools.alone(options.stretch, pool, *len, store, *reader == Reader::SameCore),
                };
                *best = best.min(seconds);
            }
        }
        let [cached, stream] = times;
        points.push(Point { reader: *reader, footprint: *footprint, len: *len, cached, stream });
    }
    points
}

/// Kernels and buffers of the measurements.
struct Tools {
    cached: &'static Kernel,
    long: &'static Kernel,
    long_from: usize,
    stream: &'static Kernel,
    source: Vec<u8>,
}

impl Tools {
    fn new(names: &Kernels, longest: usize) -> Option<Self> {
        Some(Self {
            cached: Kernel::by_name(&names.cached).ok()?,
            long: Kernel::by_name(&names.long).ok()?,
            long_from: usize::try_from(names.long_from).ok()?,
            stream: Kernel::by_name(&names.stream).ok()?,
            source: vec![5; longest],
        })
    }

    fn copy(&self, dst: &mut [u8], src: &[u8], store: Store) {
        let kernel = match store {
            Store::NonTemporal => self.stream,
            Store::Cached if src.len() >= self.long_from => self.long,
            Store::Cached => self.cached,
        };
        kernel.copy(dst, src, store);
    }

    /// Copies a slot out, as a `recv` does.
    fn read(&self, slot: &[u8], out: &mut [u8]) {
        for piece in slot.chunks(OUT) {
            self.copy(black_box(&mut out[..piece.len()]), piece, Store::Cached);
        }
    }

    /// The writer alone on its core; with `read` it copies each slot out again at once.
    fn alone(&self, stretch: Duration, pool: &mut [u8], len: usize, store: Store, read: bool) -> f64 {
        let mut out = vec![0; OUT];
        let slots = pool.len() / len;
        let mut slot = 0;
        let mut work = || {
            let dst = &mut pool[slot * len..][..len];
            self.copy(black_box(&mut *dst), black_box(&self.source[..len]), store);
            if read {
                self.read(dst, &mut out);
            }
            slot = if slot + 1 == slots { 0 } else { slot + 1 };
        };
        // Once round first, so that the caches are in the state that this store leaves them in.
        (0..slots).for_each(|_| work());
        time_calls(stretch, work)
    }

    /// A writer and a reader on two cores, the slots of `pool` going round between them: a ring of that size.
    fn piped(
        &self,
        stretch: Duration,
        cpus: (usize, usize),
        pool: &mut [u8],
        len: usize,
        store: Store,
    ) -> f64 {
        let (to_reader, full) = channel::<&mut [u8]>();
        let (to_writer, empty) = channel::<&mut [u8]>();
        let slots = pool.len() / len;
        for slot in pool.chunks_exact_mut(len) {
            give(&to_writer, slot);
        }
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // A reader that could not be pinned still reads; the scheduler keeps two busy threads apart.
                let _ = pin(cpus.1);
                let mut out = vec![0; OUT];
                while let Some(slot) = next(&full) {
                    self.read(slot, &mut out);
                    give(&to_writer, slot);
                }
            });
            let write = || {
                if let Some(slot) = next(&empty) {
                    self.copy(slot, black_box(&self.source[..len]), store);
                    give(&to_reader, slot);
                }
            };
            // Once round first: the caches take the state that this store leaves, and the reader has started.
            (0..slots).for_each(|_| write());
            let seconds = time_calls(stretch, write);
            // The reader's loop ends when nobody can send any more.
            drop(to_reader);
            seconds
        })
    }
}

/// Hands a slot on. At the end of a measurement the other side may be gone: then nobody needs the slot.
fn give<'a>(to: &Sender<&'a mut [u8]>, slot: &'a mut [u8]) {
    let _ = to.send(slot);
}

/// The next slot, waited for without sleeping; `None` when the other side is gone.
fn next<'a>(from: &Receiver<&'a mut [u8]>) -> Option<&'a mut [u8]> {
    loop {
        match from.try_recv() {
            Ok(slot) => return Some(slot),
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
            Err(TryRecvError::Disconnected) => return None,
        }
    }
}

fn size(bytes: usize) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// The crossovers that follow from the points.
///
/// What non-temporal stores gain can only grow with the footprint: their cost doesn't depend on it, that of cached
/// stores rises. So for each length the gains are made monotonic in the footprint (pool adjacent violators), which
/// takes out a disturbed measurement. The shortest non-temporal copy of a footprint is then the shortest from
/// which on all lengths gain.
pub(super) fn decide(points: &[Point]) -> Vec<Crossover> {
    let measured =
        [Reader::SameCore, Reader::OtherCore, Reader::NoCpu].map(|reader| (reader, one(points, reader)));
    let [(_, same), (_, other), (_, none)] = &measured;
    // With one CPU there is no other core to measure: then the reader is always on this one.
    let other = if other.is_empty() { same.clone() } else { other.clone() };
    // Not known who reads: non-temporal only where it wins with another core and with none. That this very thread reads at
    // once is the one case that a caller always knows.
    let unknown: Vec<_> =
        other.iter().zip(none).map(|(a, b)| (a.0, a.1.zip(b.1).map(|(a, b)| a.max(b)))).collect();
    [
        (Reader::SameCore, same),
        (Reader::OtherCore, &other),
        (Reader::NoCpu, none),
        (Reader::Unknown, &unknown),
    ]
    .into_iter()
    .flat_map(|(reader, rows)| {
        rows.iter().map(move |&(footprint, min_len)| Crossover {
            reader: reader_name(reader).to_owned(),
            footprint: footprint as u64,
            min_len,
        })
    })
    .collect()
}

/// For one reader: each footprint with the shortest copy that should go non-temporal.
fn one(points: &[Point], reader: Reader) -> Vec<(usize, Option<u32>)> {
    let points: Vec<_> = points.iter().filter(|point| point.reader == reader).collect();
    let mut footprints: Vec<_> = points.iter().map(|point| point.footprint).collect();
    footprints.dedup();
    // Per length, the gains over the footprints.
    let gains: Vec<(usize, Vec<(usize, f64)>)> = LENS
        .iter()
        .map(|&len| {
            let row: Vec<_> = points
                .iter()
                .filter(|point| point.len == len)
                .map(|point| (point.footprint, (point.cached / point.stream).ln()))
                .collect();
            let smooth = monotonic(&row.iter().map(|(_, gain)| *gain).collect::<Vec<_>>());
            (len, row.iter().map(|(footprint, _)| *footprint).zip(smooth).collect())
        })
        .collect();
    footprints
        .into_iter()
        .map(|footprint| {
            let wins = |row: &[(usize, f64)]| {
                row.iter().find(|(each, _)| *each == footprint).map(|(_, gain)| *gain > MARGIN.ln())
            };
            let shortest = gains
                .iter()
                .rev()
                .filter_map(|(len, row)| wins(row).map(|wins| (*len, wins)))
                .take_while(|(_, wins)| *wins)
                .map(|(len, _)| len as u32)
                .last();
            (footprint, shortest)
        })
        .collect()
}

/// The nearest non-decreasing sequence in the sense of least squares: pool adjacent violators.
fn monotonic(values: &[f64]) -> Vec<f64> {
    let mut blocks: Vec<(f64, usize)> = Vec::new();
    for &value in values {
        blocks.push((value, 1));
        while let [.., (a, n), (b, m)] = blocks[..]
            && a > b
        {
            blocks.truncate(blocks.len() - 2);
            blocks.push(((a * n as f64 + b * m as f64) / (n + m) as f64, n + m));
        }
    }
    blocks.into_iter().flat_map(|(value, count)| std::iter::repeat_n(value, count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violators_are_pooled() {
        assert_eq!(monotonic(&[1.0, 3.0, 2.0, 4.0]), [1.0, 2.5, 2.5, 4.0]);
        assert_eq!(monotonic(&[3.0, 2.0, 1.0]), [2.0, 2.0, 2.0]);
        assert!(monotonic(&[]).is_empty());
    }

    fn point(reader: Reader, footprint: usize, len: usize, gain: f64) -> Point {
        Point { reader, footprint, len, cached: gain, stream: 1.0 }
    }

    #[test]
    fn the_crossover_is_where_all_longer_copies_gain() {
        let points: Vec<_> = [Reader::SameCore, Reader::OtherCore, Reader::NoCpu]
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
        let get = |reader: &str, footprint: u64| {
            crossovers.iter().find(|row| row.reader == reader && row.footprint == footprint).unwrap().min_len
        };
        assert_eq!(get("no-cpu", 1 << 20), None);
        assert_eq!(get("no-cpu", 256 << 20), Some(64 << 10));
        assert_eq!(get("other-core", 256 << 20), Some(1 << 20));
        assert_eq!(get("same-core", 256 << 20), None);
        assert_eq!(get("unknown", 256 << 20), Some(1 << 20), "the longer of other-core and no-cpu");
    }
}
