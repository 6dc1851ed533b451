//! `copy`: the copy engine in one thread, beside the C library's memcpy.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::rc::{Rc, Weak};
use std::time::Instant;

use anyhow::{Result, bail};
use onecopy::advanced::copy::{Hint, Store, copy, learned};
use onecopy::{Policy, Reader};

use super::bytes;
use super::pinned::pinned;
use crate::row::{Case, Context, Metric, Plot, Reach, Row, Sample, Scale, Session, Work};
use crate::words::size_name;

/// The row.
pub const ROW: Row = Row {
    name: "copy",
    about: "one thread copies; the source is one buffer that is copied again and again, the destination the same (hot) \
            or cycling through 256 MiB (cold); nobody reads it",
    stated: &[],
    metrics: &[
        Metric { name: "rate", unit: "GB/s", larger: true },
        Metric { name: "time", unit: "ns", larger: false },
    ],
    share: 0.95,
    cases,
    workers: &[],
    plot: Plot::Lines,
};

const SIZES: [usize; 13] = [
    64,
    256,
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
];

/// Beyond every cache: what the destination cycles through when cold, in bytes.
pub(super) const COLD: usize = 256 << 20;

/// Below this size, in bytes, what counts is nanoseconds a copy, from it on the rate.
const SHORT: usize = 4 << 10;

/// How much longer than the best a short copy may take, in nanoseconds.
pub(super) const SLACK: f64 = 3.0;

/// Where source and destination begin in their lines: rings begin at pages, malloc aligns to 16 bytes only.
const SOURCE_OFFSET: usize = 16;

fn cases(scale: Scale) -> Vec<Case> {
    let sizes = SIZES.into_iter().filter(|&size| scale != Scale::Smoke || size <= 1 << 20);
    sizes.flat_map(|size| [case(size, size, "hot"), case(size, COLD, "cold")]).collect()
}

fn case(size: usize, footprint: usize, state: &str) -> Case {
    let others = &["libc", "cached", "nt"];
    let mut reach = vec![if size < SHORT {
        Reach::within("auto", "time", SLACK, others)
    } else {
        Reach::ratio("auto", "rate", 0.95, others)
    }];
    if size == 1 << 20 && footprint == COLD {
        reach.push(Reach::ratio("nt", "rate", 1.4, &["cached"]));
    }
    let shared = RefCell::new(Weak::new());
    Case {
        name: format!("{}/{state}", size_name(size as u64)),
        engines: vec!["libc", "cached", "nt", "auto"],
        baseline: "libc",
        reach,
        work: Work {
            warmup: (4 << 20).max(size as u64),
            least: (4 << 20).max(size as u64 * 2),
            most: 64 << 30,
            step: size as u64,
        },
        open: Box::new(move |context: &Context, engine| {
            pinned(context, || {
                let buffers = Buffers::shared(&shared, size, footprint);
                Ok(Copies { engine: Engine::named(engine, footprint)?, buffers, size })
            })
        }),
    }
}

/// How a destination is written.
#[derive(Clone, Copy)]
pub(super) enum Engine {
    Libc,
    Ours(Hint),
}

impl Engine {
    pub(super) fn named(name: &str, footprint: usize) -> Result<Engine> {
        let ours = |policy| Engine::Ours(Hint { policy, footprint, reader: Reader::NoCpu });
        Ok(match name {
            "libc" => Engine::Libc,
            "cached" => ours(Policy::Cached),
            "nt" => ours(Policy::NonTemporal),
            "auto" => ours(Policy::Auto),
            other => bail!("there is no engine {other}"),
        })
    }

    /// One copy, and the stores used where they are known.
    #[inline(always)]
    pub(super) fn copy(self, dst: &mut [u8], src: &[u8]) -> Option<Store> {
        match self {
            Engine::Libc => {
                dst.copy_from_slice(src);
                None
            }
            Engine::Ours(hint) => Some(copy(dst, src, hint)),
        }
    }
}

/// A source and a destination that all engines of a case share: the same memory, so that no engine has luckier pages; and
/// a cursor that goes on from one engine to the next, so that none meets what another has just touched.
pub(super) struct Buffers {
    source: Vec<u8>,
    pool: RefCell<Vec<u8>>,
    cursor: Cell<usize>,
    footprint: usize,
}

impl Buffers {
    /// The buffers of the case, made for its first engine and gone with its last.
    pub(super) fn shared(shared: &RefCell<Weak<Buffers>>, size: usize, footprint: usize) -> Rc<Buffers> {
        let mut weak = shared.borrow_mut();
        weak.upgrade().unwrap_or_else(|| {
            let buffers = Rc::new(Buffers {
                source: vec![1; size + 128],
                // Written, so that no page fault is timed.
                pool: RefCell::new(vec![2; footprint + 64]),
                cursor: Cell::new(0),
                footprint,
            });
            *weak = Rc::downgrade(&buffers);
            buffers
        })
    }

    pub(super) fn source(&self, size: usize) -> &[u8] {
        let start = self.source.as_ptr().align_offset(64) + SOURCE_OFFSET;
        &self.source[start..start + size]
    }

    /// Calls `work` with the next `count` destinations of `size` bytes.
    #[inline(always)]
    pub(super) fn each(&self, size: usize, count: u64, mut work: impl FnMut(&mut [u8])) {
        let mut pool = self.pool.borrow_mut();
        let start = pool.as_ptr().align_offset(64);
        let pool = &mut pool[start..start + self.footprint];
        let last = self.footprint - size;
        let mut at = self.cursor.get();
        for _ in 0..count {
            if at > last {
                at = 0;
            }
            work(&mut pool[at..at + size]);
            at += size;
        }
        self.cursor.set(at);
    }
}

struct Copies {
    engine: Engine,
    buffers: Rc<Buffers>,
    size: usize,
}

impl Session for Copies {
    fn verify(&mut self) -> Result<()> {
        let mut source = vec![0; self.size];
        bytes::fill(&mut source, 17, 0);
        let mut result = Ok(());
        // Twice, so that a destination with old bytes in it is met too.
        for shift in [0, 64] {
            let end = self.size - if self.size > 64 { shift } else { 0 };
            self.buffers.each(self.size, 1, |dst| {
                dst.fill(0);
                self.engine.copy(&mut dst[..end], &source[..end]);
                result = bytes::check(&dst[..end], 17, 0);
            });
            std::mem::replace(&mut result, Ok(()))?;
        }
        Ok(())
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let count = work.div_ceil(self.size as u64);
        let source = self.buffers.source(self.size);
        let mut used = None;
        let start = Instant::now();
        // A loop for each kind of engine: a choice per copy would cost as much as the short copies.
        match self.engine {
            Engine::Libc => {
                self.buffers.each(self.size, count, |dst| black_box(dst).copy_from_slice(black_box(source)));
            }
            Engine::Ours(hint) => self.buffers.each(self.size, count, |dst| {
                used = Some(copy(black_box(dst), black_box(source), hint));
            }),
        }
        let seconds = start.elapsed().as_secs_f64();
        let each = seconds / count as f64;
        let stores = match used {
            None => "the C library's choice",
            Some(Store::Cached) => "cached",
            Some(Store::NonTemporal) => "non-temporal",
        };
        let mut settings = vec![("stores".to_owned(), stores.to_owned())];
        settings.extend(self.learned().map(|learned| ("learned".to_owned(), learned)));
        let values = vec![("rate", self.size as f64 / each / 1e9), ("time", each * 1e9)];
        Ok(Sample { seconds, values, settings })
    }
}

impl Copies {
    /// What copies over as much memory were found to be faster with.
    fn learned(&self) -> Option<String> {
        let Engine::Ours(Hint { policy: Policy::Auto, footprint, reader }) = self.engine else { return None };
        let mut all = learned().into_iter();
        all.find(|(of, from, _)| *of == reader && (*from..2 * from).contains(&footprint))
            .map(|(.., learned)| learned.to_string())
    }
}
