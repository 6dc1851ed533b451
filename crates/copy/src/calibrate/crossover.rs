//! Cached against non-temporal stores, per reader, footprint and length.

use super::{Options, pin, time_calls};
use crate::Kernel;
use crate::plan::{CLASSES, class_bytes};
use crate::policy::{Reader, Store};
use crate::profile::{Kernels, reader_name};
use std::hint::black_box;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// The lengths of the copies, in bytes. Nothing shorter has been seen to gain; the longest don't have their source in the cache.
pub(super) const LENS: [usize; 9] =
    [4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// The smallest footprint, in bytes: no second-level cache is smaller.
const MIN_FOOTPRINT: usize = 256 << 10;
/// How often a measurement that is not plausible is made again.
const TRIES: usize = 3;
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
    /// Seconds per copy with ordinary stores, the reader's time included where it is what the writer waits for. None where
    /// nothing plausible was measured, or the time was up.
    pub cached: Option<f64>,
    /// The same with non-temporal stores.
    pub stream: Option<f64>,
}

impl Point {
    /// How many times as fast non-temporal stores are, where both are known.
    pub(super) fn gain(&self) -> Option<f64> {
        Some(self.cached? / self.stream?)
    }
}

/// What to measure.
pub(super) struct Plan {
    reader: Reader,
    footprint: usize,
    len: usize,
}

pub(super) fn plan(options: &Options, cpus: (usize, usize)) -> Vec<Plan> {
    let mut plan = Vec::new();
    // The largest footprints come last: they take the longest, and are what is missing where the time is up.
    for footprint in
        (0..CLASSES).map(class_bytes).filter(|f| (MIN_FOOTPRINT..=options.max_footprint).contains(f))
    {
        for reader in [Reader::SameCore, Reader::OtherCore, Reader::NoCpu] {
            if reader == Reader::OtherCore && cpus.0 == cpus.1 {
                continue; // Nobody to measure it with: `decide` then takes SameCore's.
            }
            // On two cores, two copies at least: with one, writer and reader could only take turns.
            let most = if reader == Reader::OtherCore { footprint / 2 } else { footprint };
            plan.extend(LENS.iter().filter(|&&len| len <= most).map(|&len| Plan { reader, footprint, len }));
        }
    }
    plan
}

/// Measures what is planned, in rounds, until `deadline`; what is not plausible then, again.
pub(super) fn measure(
    options: &Options,
    cpus: (usize, usize),
    plan: &[Plan],
    names: &Kernels,
    pool: &mut [u8],
    deadline: Instant,
    step: &mut dyn FnMut(String),
) -> Vec<Point> {
    let longest = plan.iter().map(|plan| plan.len).max().unwrap_or(0);
    let Some(tools) = Tools::new(names, longest, pool.as_ptr() as usize) else { return Vec::new() };
    let late = || Instant::now() >= deadline;
    let mut best = vec![[f64::INFINITY; 2]; plan.len()];
    let mut both = |best: &mut [f64; 2], Plan { reader, footprint, len }: &Plan| {
        let pool = &mut pool[..*footprint];
        for (store, best) in [Store::Cached, Store::NonTemporal].into_iter().zip(best) {
            let seconds = match reader {
                Reader::OtherCore => tools.piped(options.stretch, cpus, pool, *len, store),
                _ => Some(tools.alone(options.stretch, pool, *len, store, *reader == Reader::SameCore)),
            };
            *best = best.min(seconds.unwrap_or(f64::INFINITY));
        }
    };
    // Rounds of all points, and not of each: what disturbs for a while spoils one round of a point and not all.
    let all: Vec<_> = (0..plan.len()).collect();
    in_turns(&all, options.rounds, late, |at| {
        let Plan { reader, footprint, .. } = plan[at];
        step(format!("{} footprint, reader {}", size(footprint), reader_name(reader)));
        both(&mut best[at], &plan[at]);
    });
    let doubtful: Vec<_> = all.into_iter().filter(|&at| believed(plan, &best, at).contains(&None)).collect();
    in_turns(&doubtful, TRIES, late, |at| {
        if believed(plan, &best, at).contains(&None) {
            both(&mut best[at], &plan[at]);
        }
    });
    let point = |(at, Plan { reader, footprint, len }): (usize, &Plan)| {
        let [cached, stream] = believed(plan, &best, at);
        Point { reader: *reader, footprint: *footprint, len: *len, cached, stream }
    };
    plan.iter().enumerate().map(point).collect()
}

/// Does `each` of these in turns, as often as there are rounds, until it is late.
fn in_turns(all: &[usize], rounds: usize, mut late: impl FnMut() -> bool, mut each: impl FnMut(usize)) {
    for &at in std::iter::repeat_n(all, rounds).flatten() {
        if late() {
            return;
        }
        each(at);
    }
}

/// A reader on another core is believed to make a copy as much slower as this, and by so many seconds, and no more: the copy
/// waits for lines of two slots' heads from the other cache, not for a turn on a CPU. (Two threads that share one wait for
/// milliseconds.)
const SLOWER: (f64, f64) = (10.0, 2e-6);

/// Whether a copy with a reader on another core may take `seconds`, where one core that copies and reads takes `alone`.
fn plausible(seconds: f64, alone: Option<f64>) -> bool {
    let most = alone.map_or(f64::INFINITY, |alone| alone * SLOWER.0 + SLOWER.1);
    seconds > 0.0 && seconds.is_finite() && seconds <= most
}

/// What is plausible of the best times that were measured at a place of the plan.
fn believed(plan: &[Plan], best: &[[f64; 2]], at: usize) -> [Option<f64>; 2] {
    let Plan { reader, footprint, len } = plan[at];
    let same =
        |other: &Plan| other.reader == Reader::SameCore && other.footprint == footprint && other.len == len;
    let alone = plan.iter().position(same).filter(|_| reader == Reader::OtherCore).map(|at| best[at]);
    [0, 1].map(|store| {
        let seconds = best[at][store];
        plausible(seconds, alone.map(|alone| alone[store])).then_some(seconds)
    })
}

/// Kernels and buffers of the measurements.
struct Tools {
    cached: &'static Kernel,
    long: &'static Kernel,
    long_from: usize,
    stream: &'static Kernel,
    source: Vec<u8>,
    /// Where the source begins in there.
    start: usize,
}

/// The bytes of a page.
const PAGE: usize = 4096;

/// Where in its memory at `source` a source has to begin, to be half a page from what begins at `dst`, and 16 bytes into a line, as
/// malloc has it. Where it began a little before `dst` in its page, streaming copies had a tenth of their rate on an AMD EPYC (4 KiB
/// aliasing, it seems: only the place was changed). That is chance, and no property of the footprint.
fn start(source: usize, dst: usize) -> usize {
    (dst + PAGE / 2 + 16).wrapping_sub(source) % PAGE
}

impl Tools {
    /// For destinations that begin where `dst` does in its page.
    fn new(names: &Kernels, longest: usize, dst: usize) -> Option<Self> {
        let source = vec![5; longest + PAGE];
        Some(Self {
            cached: Kernel::by_name(&names.cached).ok()?,
            long: Kernel::by_name(&names.long).ok()?,
            long_from: usize::try_from(names.long_from).ok()?,
            stream: Kernel::by_name(&names.stream).ok()?,
            start: start(source.as_ptr() as usize, dst),
            source,
        })
    }

    fn source(&self, len: usize) -> &[u8] {
        &self.source[self.start..][..len]
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
            self.copy(black_box(&mut *dst), black_box(self.source(len)), store);
            if read {
                self.read(dst, &mut out);
            }
            slot = if slot + 1 == slots { 0 } else { slot + 1 };
        };
        // Once round first, so that the caches are in the state that this store leaves them in.
        (0..slots).for_each(|_| work());
        time_calls(stretch, work)
    }

    /// A writer and a reader on two cores, the slots of `pool` going round between them: a ring of that size. None where the
    /// reader may not go to its core.
    fn piped(
        &self,
        stretch: Duration,
        cpus: (usize, usize),
        pool: &mut [u8],
        len: usize,
        store: Store,
    ) -> Option<f64> {
        let (to_reader, full) = channel::<&mut [u8]>();
        let (to_writer, empty) = channel::<&mut [u8]>();
        let slots = pool.len() / len;
        for slot in pool.chunks_exact_mut(len) {
            give(&to_writer, slot);
        }
        let (tell, moved) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // It begins where the writer is pinned, which does not give that core up once it spins.
                let there = pin(cpus.1).is_ok();
                let _ = tell.send(there);
                if !there {
                    return;
                }
                let mut out = vec![0; OUT];
                while let Some(slot) = next(&full) {
                    self.read(slot, &mut out);
                    give(&to_writer, slot);
                }
            });
            let write = || {
                if let Some(slot) = next(&empty) {
                    self.copy(slot, black_box(self.source(len)), store);
                    give(&to_reader, slot);
                }
            };
            // Asleep until then, so that the reader can move.
            if !moved.recv().unwrap_or(false) {
                return None;
            }
            // Once round first: the caches take the state that this store leaves.
            (0..slots).for_each(|_| write());
            let seconds = time_calls(stretch, write);
            // The reader's loop ends when nobody can send any more.
            drop(to_reader);
            Some(seconds)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_have_a_turn_before_any_has_two_and_none_when_it_is_late() {
        let mut seen = Vec::new();
        in_turns(&[4, 7], 3, || false, |at| seen.push(at));
        assert_eq!(seen, [4, 7, 4, 7, 4, 7]);
        let (mut looks, mut seen) = (0, Vec::new());
        let late = || {
            looks += 1;
            looks > 3
        };
        in_turns(&[4, 7], 3, late, |at| seen.push(at));
        assert_eq!(seen, [4, 7, 4]);
    }

    #[test]
    fn a_source_is_half_a_page_from_its_destination() {
        for (source, dst) in [(16, 64), (0, 0), (usize::MAX - 15, 4095), (12_345, 54_321)] {
            let start = start(source, dst);
            let place = source.wrapping_add(start) % PAGE;
            assert!(start < PAGE && place == (dst + PAGE / 2 + 16) % PAGE, "{source} {dst}");
        }
    }

    #[test]
    fn a_reader_without_a_cpu_of_its_own_is_seen() {
        // 64 KiB: 6 us alone; 12 across two cores; 3 ms where each waits for the other's turn.
        assert!(plausible(12e-6, Some(6e-6)));
        assert!(!plausible(3e-3, Some(6e-6)));
        // 4 KiB: 0.2 us alone; 1.5 with a hand-over; 47 where 64 slots share a turn.
        assert!(plausible(1.5e-6, Some(0.2e-6)) && !plausible(47e-6, Some(0.2e-6)));
        assert!(plausible(1.0, None));
        assert!([0.0, -1.0, f64::NAN, f64::INFINITY].iter().all(|seconds| !plausible(*seconds, None)));
    }

    /// A reader on another core is judged by what one core does at the same place.
    #[test]
    fn what_is_not_plausible_is_not_believed() {
        let place = |reader, len| Plan { reader, footprint: 1 << 20, len };
        let plan = [
            place(Reader::SameCore, 64 << 10),
            place(Reader::OtherCore, 64 << 10),
            place(Reader::OtherCore, 4 << 10),
            place(Reader::NoCpu, 64 << 10),
        ];
        let best = [[6e-6, 9e-6], [3e-3, 12e-6], [3e-3, 1e-6], [3e-3, f64::INFINITY]];
        assert_eq!(believed(&plan, &best, 0), [Some(6e-6), Some(9e-6)]);
        assert_eq!(believed(&plan, &best, 1), [None, Some(12e-6)]);
        assert_eq!(believed(&plan, &best, 2), [Some(3e-3), Some(1e-6)], "nothing to judge it by");
        assert_eq!(believed(&plan, &best, 3), [Some(3e-3), None]);
    }

    /// The reader is on its own core before the clock runs: it is where the writer is not.
    #[test]
    fn the_reader_does_not_share_the_writers_core() {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let mut cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
        let (Some(first), Some(last)) = (cpus.next(), cpus.next_back()) else {
            return println!("lacking: a second CPU, for a reader on another core");
        };
        let names = Kernels {
            cached: "generic".into(),
            long: "generic".into(),
            long_from: u64::MAX,
            stream: "generic".into(),
        };
        std::thread::spawn(move || {
            pin(first).unwrap();
            let tools = Tools::new(&names, 4096, 0).unwrap();
            let mut pool = vec![0; 64 << 10];
            let mut piped = |cpus| tools.piped(Duration::ZERO, cpus, &mut pool, 4096, Store::Cached);
            assert!(piped((first, last)).is_some());
            // A CPU that does not exist: no figure, and no reader that stays where the writer spins.
            assert_eq!(piped((first, rustix::thread::CpuSet::MAX_CPU - 1)), None);
        })
        .join()
        .unwrap();
    }
}
