//! `hot-set`: what a copy does to the memory that the program works with.

use std::cell::RefCell;
use std::hint::black_box;
use std::rc::{Rc, Weak};
use std::time::Instant;

use anyhow::Result;

use super::bytes;
use super::copy::{Buffers, COLD, Engine};
use super::pinned::pinned;
use crate::row::{Case, Context, Metric, Plot, Reach, Row, Sample, Scale, Session, Work};
use crate::words::size_name;
use onecopy::advanced::copy::calibrate::Walk;

/// The row.
pub const ROW: Row = Row {
    name: "hot-set",
    about: "a shuffled walk through a hot set, timed once before and once after a copy of 1 MiB into memory that cycles \
            through 256 MiB; the source is one buffer; cost = what the copy added to each load",
    stated: &[],
    metrics: &[
        COST,
        Metric { name: "walk", unit: "ns/load", larger: false },
        Metric { name: "undisturbed", unit: "ns/load", larger: false },
        Metric { name: "copy", unit: "GB/s", larger: true },
    ],
    share: 1.0,
    cases,
    workers: &[],
    plot: Plot::Bars,
};

/// What a copy adds to each load.
pub(super) const COST: Metric = Metric { name: "cost", unit: "ns/load", larger: false };

/// The hot sets, in bytes.
const SETS: [usize; 6] = [32 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 1536 << 10];
/// The copy, in bytes.
const COPY: usize = 1 << 20;
/// A cost below this, in ns a load, is no cost: the clock and the machine are not that good.
pub(super) const LEAST: f64 = 0.05;

fn cases(scale: Scale) -> Vec<Case> {
    let sets = SETS.into_iter().filter(|&set| scale != Scale::Smoke || set == 512 << 10);
    sets.map(case).collect()
}

fn case(set: usize) -> Case {
    // What 20% of the cached copy's cost is, as a ratio.
    let reach = if set == 512 << 10 {
        ["nt", "auto"].map(|engine| Reach::ratio(engine, "cost", 5.0, &["cached"])).into()
    } else {
        Vec::new()
    };
    let buffers = RefCell::new(Weak::new());
    let victims = RefCell::new(Weak::<Walk>::new());
    Case {
        name: size_name(set as u64),
        engines: vec!["cached", "nt", "auto", "libc"],
        baseline: "cached",
        reach,
        work: Work { warmup: 4, least: 21, most: 2001, step: 1 },
        open: Box::new(move |context: &Context, engine| {
            pinned(context, || {
                let buffers = Buffers::shared(&buffers, COPY, COLD);
                // One set for all engines: which cache sets its pages fall into is chance, and decides a lot.
                let mut known = victims.borrow_mut();
                let victim = known.upgrade().unwrap_or_else(|| Rc::new(Walk::new(set)));
                *known = Rc::downgrade(&victim);
                Ok(HotSet { engine: Engine::named(engine, COLD)?, buffers, victim })
            })
        }),
    }
}

struct HotSet {
    engine: Engine,
    buffers: Rc<Buffers>,
    victim: Rc<Walk>,
}

impl Session for HotSet {
    fn verify(&mut self) -> Result<()> {
        let mut source = vec![0; COPY];
        bytes::fill(&mut source, 23, 0);
        let mut result = Ok(());
        self.buffers.each(COPY, 1, |dst| {
            self.engine.copy(dst, &source);
            result = bytes::check(dst, 23, 0);
        });
        result
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let source = self.buffers.source(COPY);
        let (mut before, mut after, mut copies) = (Vec::new(), Vec::new(), Vec::new());
        let walk = || self.victim.round() / self.victim.lines() as f64;
        let start = Instant::now();
        self.buffers.each(COPY, work, |dst| {
            // Twice: once brings the set back, once more settles which lines stay.
            walk();
            walk();
            before.push(walk());
            let copying = Instant::now();
            self.engine.copy(black_box(dst), black_box(source));
            copies.push(copying.elapsed().as_secs_f64());
            after.push(walk());
        });
        let seconds = start.elapsed().as_secs_f64();
        // Of many short timings the median: an interrupt in one of them is no property of the stores.
        let (undisturbed, walk) = (median(&mut before), median(&mut after));
        Ok(Sample {
            seconds,
            values: vec![
                (COST.name, (walk - undisturbed).max(LEAST)),
                ("walk", walk),
                ("undisturbed", undisturbed),
                ("copy", COPY as f64 / median(&mut copies) / 1e9),
            ],
            settings: Vec::new(),
        })
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
