//! `auto`: what the program chooses by itself, beside the best of the ways that one can ask for.
//!
//! The cases are those of other rows, and sends that may be copied or lent. In each round every fixed way runs first; from these figures
//! alone the best way is picked, and it runs anew, as `best`, before `auto` and once more after it, as `control`. So luck that had a way
//! picked is not in the figure that `auto` is compared with, and what `control` is off by is noise.

mod http;
mod tcp;
mod unix;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::{Context as _, Result};

use super::pinned::pinned;
use super::{copy, unix_bulk, unix_nt};
use crate::row::{CPU_PER_GB, Case, Context, Metric, Open, Plot, Reach, Row, Sample, Scale, Session, Work};
use crate::stats::Summary;
use crate::words::size_name;

const RATE: &str = "rate";

/// The row.
pub const ROW: Row = Row {
    name: "auto",
    about: "cases of other rows, without a profile unless one is in force (see the machine's facts): each fixed way runs, the \
            best of them is picked, and runs anew before auto (best) and after it (control): what control is off by is noise; \
            reference-or-copy: the same send, told to copy or to lend, received where it lies, nobody touches it (tcp: two stacks of \
            ours on one thread, each send told of, auto copies below what it measured; unix: auto lends every loan)",
    metrics: &[Metric { name: RATE, unit: "GB/s", larger: true }, CPU_PER_GB],
    share: 0.95,
    cases,
    workers: &[("auto/reader", unix::reader), ("auto/writer", unix::writer)],
    plot: Plot::Bars,
};

/// The names of fixed ways.
type Names = &'static [&'static str];

/// Rows, the fixed ways of their cases, and which of their cases. The list is fixed: figures of two runs, or of two machines, are about the
/// same cases.
const PARTS: [(&Row, Names, Names); 3] = [
    (
        &copy::ROW,
        &["libc", "cached", "nt"],
        &[
            "64/hot", "64/cold", "1K/hot", "1K/cold", "4K/hot", "4K/cold", "64K/hot", "64K/cold", "1M/hot",
            "1M/cold", "16M/hot", "16M/cold",
        ],
    ),
    (
        &unix_bulk::ROW,
        &["cached", "nt"],
        &["8000", "128000", "1000000", "default", "record-128000", "record-default", "dgram-128000"],
    ),
    (&unix_nt::ROW, &["cached", "nt"], &["128K", "512K", "256M"]),
];

/// Bytes of the sends that may be copied or lent: from where a copy costs least to where it costs most, and close where the two cross.
const SENDS: [usize; 7] = [64, 1 << 10, 2 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20];

fn cases(scale: Scale) -> Vec<Case> {
    let mut all = Vec::new();
    for (row, ways, names) in PARTS {
        let cases = (row.cases)(scale).into_iter().filter(|case| names.contains(&&*case.name));
        let costs = row.metrics.iter().any(|metric| metric.name == CPU_PER_GB.name);
        all.extend(cases.map(|case| of(row.name, case, ways, costs)));
    }
    for carrier in ["tcp", "unix"] {
        let sizes = SENDS.into_iter().filter(|size| scale != Scale::Smoke || [64, 64 << 10].contains(size));
        all.extend(sizes.map(|size| of("reference-or-copy", send(carrier, size), &["copy", "lend"], true)));
    }
    all.extend(http::cases(scale).into_iter().map(|(case, ways)| of("http", case, ways, true)));
    all
}

/// A send that may be copied or lent.
fn send(carrier: &'static str, size: usize) -> Case {
    Case {
        name: format!("{carrier}/{}", size_name(size as u64)),
        engines: vec!["copy", "lend", "auto"],
        baseline: "copy",
        reach: Vec::new(),
        work: Work { warmup: 2 << 20, least: 2 << 20, most: 64 << 30, step: size as u64 },
        open: Box::new(move |context: &Context, way| match carrier {
            "tcp" => pinned(context, || tcp::Tcp::open(way, size)),
            _ => Ok(Box::new(unix::Unix::open(context, way, size))),
        }),
    }
}

/// A case of another row, or of what has none. `costs`: whether its sessions say what CPU time it took.
fn of(row: &str, case: Case, names: Names, costs: bool) -> Case {
    let open: Box<Open> = case.open;
    let ways = Ways::default();
    let mut engines = names.to_vec();
    engines.extend(["best", "auto", "control"]);
    let mut reach = vec![Reach::ratio("auto", RATE, 0.95, &["best"])];
    if costs {
        reach.push(Reach::at_most_times("auto", CPU_PER_GB.name, 1.05, "best", 0.0));
    }
    Case {
        name: format!("{row}/{}", case.name),
        engines,
        baseline: "best",
        reach,
        work: case.work,
        open: Box::new(move |context, engine| match engine {
            "auto" => open(context, engine),
            "best" | "control" => Ok(Box::new(Picked(Rc::clone(&ways)))),
            way => Ok(Box::new(Way::new(way, open(context, way)?, &ways))),
        }),
    }
}

/// The fixed ways that are open.
type Ways = Rc<RefCell<BTreeMap<String, Fixed>>>;

/// A fixed way, and the rates that it had, round by round.
struct Fixed {
    session: Box<dyn Session>,
    rates: Vec<f64>,
}

/// A fixed way, from whose figures the best one is picked.
struct Way {
    name: String,
    ways: Ways,
}

impl Way {
    fn new(name: &str, session: Box<dyn Session>, ways: &Ways) -> Way {
        ways.borrow_mut().insert(name.to_owned(), Fixed { session, rates: Vec::new() });
        Way { name: name.to_owned(), ways: Rc::clone(ways) }
    }

    fn with<R>(&self, act: impl FnOnce(&mut Fixed) -> Result<R>) -> Result<R> {
        act(self.ways.borrow_mut().get_mut(&self.name).context("the way is not open any more")?)
    }
}

impl Drop for Way {
    /// What has failed is not picked, and what the case has opened ends with it.
    fn drop(&mut self) {
        let fixed = self.ways.borrow_mut().remove(&self.name);
        drop(fixed);
    }
}

impl Session for Way {
    fn verify(&mut self) -> Result<()> {
        self.with(|fixed| fixed.session.verify())
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        self.with(|fixed| {
            let sample = fixed.session.run(work)?;
            fixed.rates.push(sample.value(RATE).context("the way gave no rate")?);
            Ok(sample)
        })
    }
}

/// The way that is the best so far, once more.
struct Picked(Ways);

impl Session for Picked {
    fn verify(&mut self) -> Result<()> {
        // The ways have verified what they do.
        Ok(())
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let mut ways = self.0.borrow_mut();
        let rated = ways.iter_mut().filter_map(|(name, fixed)| {
            let median = Summary::of(&fixed.rates)?.median;
            Some((name, fixed, median))
        });
        let best = rated.max_by(|a, b| a.2.total_cmp(&b.2));
        let (name, fixed, _) = best.context("no fixed way has run to pick from: ask for all engines")?;
        let mut sample = fixed.session.run(work)?;
        sample.settings.insert(0, ("way".to_owned(), name.clone()));
        Ok(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_of_the_list_is_there() {
        let names: usize = PARTS.iter().map(|(_, _, names)| names.len()).sum();
        let all = cases(Scale::Full);
        let of = |group: &str| all.iter().filter(|case| case.name.starts_with(group)).count();
        assert_eq!(of("copy/") + of("unix-"), names);
        assert_eq!(of("reference-or-copy/tcp/"), SENDS.len());
        assert_eq!(of("reference-or-copy/unix/"), SENDS.len());
        assert_eq!((of("http/file/"), of("http/mem/")), (5, 6));
        assert!(all.iter().all(|case| case.engines.ends_with(&["best", "auto", "control"])));
    }

    /// A way of a steady rate, that fails at a round without work.
    struct Steady(f64);

    impl Session for Steady {
        fn verify(&mut self) -> Result<()> {
            Ok(())
        }

        fn run(&mut self, work: u64) -> Result<Sample> {
            anyhow::ensure!(work > 0, "crashed");
            Ok(Sample { seconds: 1.0, values: vec![(RATE, self.0)], settings: Vec::new() })
        }
    }

    /// Each round of a steady way counts as one of the rates.
    fn way(name: &str, rates: [f64; 3], ways: &Ways) -> Way {
        let way = Way::new(name, Box::new(Steady(rates[0])), ways);
        ways.borrow_mut().get_mut(name).unwrap().rates.extend(rates);
        way
    }

    #[test]
    fn the_way_with_the_best_median_of_its_own_rounds_runs_again() {
        let ways = Ways::default();
        let mut picked = Picked(Rc::clone(&ways));
        assert!(picked.run(1).unwrap_err().to_string().contains("ask for all engines"));
        let mut cached = way("cached", [1.0, 9.0, 1.0], &ways);
        let mut nt = way("nt", [2.0; 3], &ways);
        cached.run(1).unwrap();
        nt.run(1).unwrap();
        for _ in 0..2 {
            let sample = picked.run(1).unwrap();
            assert_eq!(sample.value(RATE), Some(2.0));
            assert_eq!(sample.settings[0], ("way".to_owned(), "nt".to_owned()));
        }
        assert_eq!(ways.borrow()["nt"].rates.len(), 4, "what it did as the best is not what it is picked by");
    }

    #[test]
    fn a_way_that_failed_is_not_picked() {
        let ways = Ways::default();
        let (_cached, mut nt) = (way("cached", [1.0; 3], &ways), way("nt", [2.0; 3], &ways));
        assert!(nt.run(0).is_err());
        drop(nt); // as the runner does
        assert_eq!(Picked(Rc::clone(&ways)).run(1).unwrap().value(RATE), Some(1.0));
    }
}
