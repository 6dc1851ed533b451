//! `auto`: what the program chooses by itself, beside the best of the ways that one can ask for.
//!
//! The cases are those of other rows, and sends that may be copied or lent. In each round every fixed way runs first; from these figures
//! alone the best way is picked, and it runs anew, as `best`, before `auto` and once more after it, as `control`. So luck that had a way
//! picked is not in the figure that `auto` is compared with, which is in each round the mean of these two, and what they differ by is noise: where
//! that is as much as `auto` may be off by, there is no verdict ([`Reach::beside`]). A round's work is what the slowest way takes a round's time
//! for; these three do as many times that as the fastest of the ways needs to take it, too.

mod http;
mod tcp;
mod unix;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::{Context as _, Result};

use super::pinned::pinned;
use super::{copy, hot_set, unix_bulk, unix_nt};
use crate::row::{CPU_PER_GB, Case, Context, Metric, Open, Plot, Reach, Row, Sample, Scale, Session, Work};
use crate::stats::Summary;
use crate::words::size_name;

const RATE: &str = "rate";
/// Of a short copy: how long it takes.
const TIME: Metric = Metric { name: "time", unit: "ns", larger: false };

/// The row.
pub const ROW: Row = Row {
    name: "auto",
    about: "cases of other rows, without a profile unless one is in force (see the machine's facts): each fixed way runs, the \
            best of them is picked, and runs anew before auto (best) and after it (control): each round of auto is judged by the mean \
            of these two, and most rounds have to hold; where best and control, judged so, differ by as much as auto may be off \
            by, there is no verdict; copies of less than 4 KiB are judged by their time, within \
            3 ns, as in copy, and hot-set by what a copy does to the memory that the program works with; \
            reference-or-copy: the same send, told to copy or to lend, received where it lies, nobody touches it (tcp: two stacks of \
            ours on one thread, each send told of, auto copies below what it measured; unix: loans, of which auto copies those that the \
            stream finds are faster copied)",
    stated: HORIZON,
    metrics: &[Metric { name: RATE, unit: "GB/s", larger: true }, CPU_PER_GB, TIME, hot_set::COST],
    share: 0.95,
    cases,
    workers: &[("auto/reader", unix::reader), ("auto/writer", unix::writer)],
    plot: Plot::Bars,
};

/// What `auto` has seen before a demand says anything of it: where it is more than 64 MiB, six laps or 64 answers, the rounds are long enough that
/// this is the smaller part of the first one, and most rounds lie behind it.
const HORIZON: &[(&str, &str)] = &[
    ("horizon, rings", "six laps, 64 MiB at least (unix-nt: before the clock)"),
    ("horizon, copies into no ring", "24 units, 264 MB (copy: in the first round)"),
    (
        "horizon, lent bodies in memory",
        "6 units of 64 MiB and 16 answers at least: 384 MiB and 96 answers (http/mem: in the first round)",
    ),
    (
        "horizon, loans",
        "6 units of 1024 to 16384 messages (reference-or-copy/unix: 100,000 before the clock)",
    ),
];

/// The names of fixed ways.
type Names = &'static [&'static str];

/// Rows, the fixed ways of their cases, and which of their cases. The list is fixed: figures of two runs, or of two machines, are about the
/// same cases.
const PARTS: [(&Row, Names, Names); 4] = [
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
    (&hot_set::ROW, &["cached", "nt"], &["128K", "512K", "1M"]),
];

/// How much more than the best way may cost.
const CPU_TIMES: f64 = 1.05;
const COST_TIMES: f64 = 1.1;

/// Bytes of the sends that may be copied or lent: from where a copy costs least to where it costs most, and close where the two cross.
const SENDS: [usize; 7] = [64, 1 << 10, 2 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20];

fn cases(scale: Scale) -> Vec<Case> {
    let mut all = Vec::new();
    for (row, ways, names) in PARTS {
        for case in (row.cases)(scale).into_iter().filter(|case| names.contains(&&*case.name)) {
            let reach = match row.name {
                // The bound of the row itself, for short copies.
                "copy" if case.reach.iter().any(|reach| reach.metric == TIME.name) => {
                    vec![Reach::within("auto", TIME.name, copy::SLACK, &["best"])]
                }
                "copy" => vec![rate()],
                "hot-set" => {
                    vec![Reach::at_most_times("auto", hot_set::COST.name, COST_TIMES, "best", hot_set::LEAST)]
                }
                _ => rate_and_cpu(),
            };
            all.push(of(row.name, case, ways, reach));
        }
    }
    for carrier in ["tcp", "unix"] {
        let sizes = SENDS.into_iter().filter(|size| scale != Scale::Smoke || [64, 64 << 10].contains(size));
        all.extend(
            sizes.map(|size| of("reference-or-copy", send(carrier, size), &["copy", "lend"], rate_and_cpu())),
        );
    }
    all.extend(http::cases(scale).into_iter().map(|(case, ways)| of("http", case, ways, rate_and_cpu())));
    all
}

fn rate() -> Reach {
    Reach::ratio("auto", RATE, 0.95, &["best"])
}

fn rate_and_cpu() -> Vec<Reach> {
    vec![rate(), Reach::at_most_times("auto", CPU_PER_GB.name, CPU_TIMES, "best", 0.0)]
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

/// A case of another row, or of what has none, and what `auto` must reach beside `best`.
fn of(row: &str, case: Case, names: Names, reach: Vec<Reach>) -> Case {
    let open: Box<Open> = case.open;
    let ways = Ways::new(if row == "hot-set" { hot_set::COST } else { ROW.metrics[0] });
    let mut engines = names.to_vec();
    engines.extend(["best", "auto", "control"]);
    Case {
        name: format!("{row}/{}", case.name),
        engines,
        baseline: "best",
        reach: reach.into_iter().map(|reach| reach.beside("control")).collect(),
        work: case.work,
        open: Box::new(move |context, engine| match engine {
            "auto" => Ok(Box::new(Auto { session: open(context, engine)?, ways: Rc::clone(&ways) })),
            "best" | "control" => Ok(Box::new(Picked(Rc::clone(&ways)))),
            way => Ok(Box::new(Way::new(way, open(context, way)?, &ways))),
        }),
    }
}

/// The fixed ways that are open.
struct Ways {
    open: RefCell<BTreeMap<String, Fixed>>,
    /// By what the best one is told.
    by: Metric,
}

/// A fixed way, and the figures that it had, round by round.
struct Fixed {
    session: Box<dyn Session>,
    figures: Vec<f64>,
    /// Seconds that a unit of work took in the warm-up.
    pace: f64,
}

impl Ways {
    fn new(by: Metric) -> Rc<Ways> {
        Rc::new(Ways { open: RefCell::default(), by })
    }

    fn with<R>(&self, name: &str, act: impl FnOnce(&mut Fixed) -> Result<R>) -> Result<R> {
        act(self.open.borrow_mut().get_mut(name).context("the way is not open any more")?)
    }

    /// How many times the slowest way's work the fastest one does in the same time.
    fn times(&self) -> u64 {
        let open = self.open.borrow();
        let paces = || open.values().map(|fixed| fixed.pace).filter(|pace| *pace > 0.0);
        let (fastest, slowest) = (paces().fold(f64::MAX, f64::min), paces().fold(0.0, f64::max));
        ((slowest / fastest) as u64).clamp(1, MOST_TIMES)
    }
}

/// A warm-up is short, and what it says of a way's speed rough.
const MOST_TIMES: u64 = 100;

/// A fixed way, from whose figures the best one is picked.
struct Way {
    name: String,
    ways: Rc<Ways>,
}

impl Way {
    fn new(name: &str, session: Box<dyn Session>, ways: &Rc<Ways>) -> Way {
        let fixed = Fixed { session, figures: Vec::new(), pace: 0.0 };
        ways.open.borrow_mut().insert(name.to_owned(), fixed);
        Way { name: name.to_owned(), ways: Rc::clone(ways) }
    }
}

impl Drop for Way {
    /// What has failed is not picked, and what the case has opened ends with it.
    fn drop(&mut self) {
        let fixed = self.ways.open.borrow_mut().remove(&self.name);
        drop(fixed);
    }
}

impl Session for Way {
    fn verify(&mut self) -> Result<()> {
        self.ways.with(&self.name, |fixed| fixed.session.verify())
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        self.ways.with(&self.name, |fixed| {
            let sample = fixed.session.run(work)?;
            fixed.figures.push(sample.value(self.ways.by.name).context("the way gave no figure to pick by")?);
            Ok(sample)
        })
    }

    /// Says how fast it is, and nothing of which is best.
    fn warm_up(&mut self, work: u64) -> Result<Sample> {
        self.ways.with(&self.name, |fixed| {
            let sample = fixed.session.warm_up(work)?;
            fixed.pace = sample.seconds / work.max(1) as f64;
            Ok(sample)
        })
    }
}

/// The way that is the best so far, once more.
struct Picked(Rc<Ways>);

impl Session for Picked {
    fn verify(&mut self) -> Result<()> {
        // The ways have verified what they do.
        Ok(())
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let work = work * self.0.times();
        let mut ways = self.0.open.borrow_mut();
        let rated = ways.iter_mut().filter_map(|(name, fixed)| {
            let median = Summary::of(&fixed.figures)?.median;
            Some((name, fixed, if self.0.by.larger { median } else { -median }))
        });
        let best = rated.max_by(|a, b| a.2.total_cmp(&b.2));
        let (name, fixed, _) = best.context("no fixed way has run to pick from: ask for all engines")?;
        let mut sample = fixed.session.run(work)?;
        sample.settings.insert(0, ("way".to_owned(), name.clone()));
        Ok(sample)
    }

    /// The ways are warm.
    fn warm_up(&mut self, _: u64) -> Result<Sample> {
        Ok(Sample::default())
    }
}

/// What chooses by itself.
struct Auto {
    session: Box<dyn Session>,
    ways: Rc<Ways>,
}

impl Session for Auto {
    fn verify(&mut self) -> Result<()> {
        self.session.verify()
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        self.session.run(work * self.ways.times())
    }

    fn warm_up(&mut self, work: u64) -> Result<Sample> {
        self.session.warm_up(work)
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
        assert_eq!(of("copy/") + of("unix-") + of("hot-set/"), names);
        assert_eq!(of("reference-or-copy/tcp/"), SENDS.len());
        assert_eq!(of("reference-or-copy/unix/"), SENDS.len());
        assert_eq!((of("http/file/"), of("http/mem/")), (5, 6));
        assert!(all.iter().all(|case| case.engines.ends_with(&["best", "auto", "control"])));
    }

    #[test]
    fn short_copies_are_judged_by_their_time_and_each_demand_has_a_control() {
        let all = cases(Scale::Full);
        let metrics = |name: &str| {
            let case = all.iter().find(|case| case.name == name).unwrap();
            case.reach.iter().map(|reach| reach.metric).collect::<Vec<_>>()
        };
        assert_eq!((metrics("copy/1K/hot"), metrics("copy/4K/hot")), (vec!["time"], vec!["rate"]));
        assert_eq!((metrics("hot-set/512K"), metrics("unix-nt/256M")), (vec!["cost"], vec!["rate", "cpu"]));
        assert!(all.iter().flat_map(|case| &case.reach).all(|reach| reach.control == Some("control")));
    }

    /// A way of a steady rate, that fails at a round without work.
    struct Steady(f64);

    impl Session for Steady {
        fn verify(&mut self) -> Result<()> {
            Ok(())
        }

        fn run(&mut self, work: u64) -> Result<Sample> {
            anyhow::ensure!(work > 0, "crashed");
            let values = vec![(RATE, self.0), (hot_set::COST.name, self.0)];
            Ok(Sample { seconds: work as f64 / self.0, values, settings: Vec::new() })
        }
    }

    /// Each round of a steady way counts as one of the rates.
    fn way(name: &str, rates: [f64; 3], ways: &Rc<Ways>) -> Way {
        let way = Way::new(name, Box::new(Steady(rates[0])), ways);
        ways.open.borrow_mut().get_mut(name).unwrap().figures.extend(rates);
        way
    }

    #[test]
    fn the_way_with_the_best_median_of_its_own_rounds_runs_again() {
        let ways = Ways::new(ROW.metrics[0]);
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
        assert_eq!(
            ways.open.borrow()["nt"].figures.len(),
            4,
            "what it did as the best is not what it is picked by"
        );
    }

    #[test]
    fn where_less_is_better_the_least_is_picked() {
        let ways = Ways::new(hot_set::COST);
        let (_cached, _nt) = (way("cached", [3.0; 3], &ways), way("nt", [2.0; 3], &ways));
        assert_eq!(Picked(Rc::clone(&ways)).run(1).unwrap().value(hot_set::COST.name), Some(2.0));
    }

    #[test]
    fn a_warm_up_picks_nothing_and_says_how_much_longer_what_is_compared_runs() {
        let ways = Ways::new(ROW.metrics[0]);
        let mut cached = Way::new("cached", Box::new(Steady(1.0)), &ways);
        let mut nt = Way::new("nt", Box::new(Steady(3.0)), &ways);
        let mut auto = Auto { session: Box::new(Steady(2.0)), ways: Rc::clone(&ways) };
        let mut picked = Picked(Rc::clone(&ways));
        for session in [&mut cached as &mut dyn Session, &mut nt, &mut picked, &mut auto] {
            session.warm_up(8).unwrap();
        }
        assert!(picked.run(1).is_err(), "there was no round to pick from");
        cached.run(1).unwrap();
        assert_eq!((picked.run(1).unwrap().seconds, auto.run(1).unwrap().seconds), (3.0, 1.5));
    }

    #[test]
    fn a_way_that_failed_is_not_picked() {
        let ways = Ways::new(ROW.metrics[0]);
        let (_cached, mut nt) = (way("cached", [1.0; 3], &ways), way("nt", [2.0; 3], &ways));
        assert!(nt.run(0).is_err());
        drop(nt); // as the runner does
        assert_eq!(Picked(Rc::clone(&ways)).run(1).unwrap().value(RATE), Some(1.0));
    }
}
