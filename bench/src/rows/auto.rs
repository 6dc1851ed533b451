//! `auto`: what the program chooses by itself, beside the best of the ways that one can ask for.
//!
//! The cases are those of other rows. In each round every fixed way runs first; from these figures alone the best way is
//! picked, and it runs anew, as `best`, before `auto` and once more after it, as `control`. So luck that had a way
//! picked is not in the figure that `auto` is compared with, and what `control` is off by is noise.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::{Context as _, Result};

use super::{copy, unix_bulk, unix_nt};
use crate::row::{CPU_PER_GB, Case, Metric, Open, Plot, Reach, Row, Sample, Scale, Session};
use crate::stats::Summary;

const RATE: &str = "rate";

/// The row.
pub const ROW: Row = Row {
    name: "auto",
    about: "cases of other rows, without a profile unless one is in force (see the machine's facts): each fixed way runs, the \
            best of them is picked, and runs anew before auto (best) and after it (control): what control is off by is noise",
    metrics: &[Metric { name: RATE, unit: "GB/s", larger: true }, CPU_PER_GB],
    share: 0.95,
    cases,
    workers: &[],
    plot: Plot::Bars,
};

/// A row, the fixed ways of its cases, and which of its cases.
type Part = (&'static Row, &'static [&'static str], &'static [&'static str]);

/// The list is fixed: figures of two runs, or of two machines, are about the same cases.
const PARTS: [Part; 3] = [
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

fn cases(scale: Scale) -> Vec<Case> {
    let mut all = Vec::new();
    for (row, ways, names) in PARTS {
        let cases = (row.cases)(scale).into_iter().filter(|case| names.contains(&&*case.name));
        all.extend(cases.map(|case| of(row, case, ways)));
    }
    all
}

/// A case of another row.
fn of(row: &'static Row, case: Case, ways: &'static [&'static str]) -> Case {
    let open: Rc<Open> = case.open.into();
    let picks = Picks::default();
    let mut engines = ways.to_vec();
    engines.extend(["best", "auto", "control"]);
    let mut reach = vec![Reach::ratio("auto", RATE, 0.95, &["best"])];
    if row.metrics.iter().any(|metric| metric.name == CPU_PER_GB.name) {
        reach.push(Reach::at_most_times("auto", CPU_PER_GB.name, 1.05, "best", 0.0));
    }
    Case {
        name: format!("{}/{}", row.name, case.name),
        engines,
        baseline: "best",
        reach,
        work: case.work,
        open: Box::new(move |context, engine| match engine {
            "auto" => open(context, engine),
            "best" | "control" => {
                let sessions =
                    ways.iter().map(|&way| Ok((way, open(context, way)?))).collect::<Result<_>>()?;
                Ok(Box::new(Picked { sessions, picks: Rc::clone(&picks), scale: context.scale }))
            }
            way => Ok(Box::new(Way {
                way: way.to_owned(),
                session: open(context, way)?,
                picks: Rc::clone(&picks),
            })),
        }),
    }
}

/// The rates of the fixed ways, round by round.
type Picks = Rc<RefCell<BTreeMap<String, Vec<f64>>>>;

/// A fixed way, from whose figures the best one is picked.
struct Way {
    way: String,
    session: Box<dyn Session>,
    picks: Picks,
}

impl Session for Way {
    fn verify(&mut self) -> Result<()> {
        self.session.verify()
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let sample = self.session.run(work)?;
        let rate = sample.value(RATE).context("the way gave no rate")?;
        self.picks.borrow_mut().entry(self.way.clone()).or_default().push(rate);
        Ok(sample)
    }
}

/// The way that is the best so far.
struct Picked {
    sessions: Vec<(&'static str, Box<dyn Session>)>,
    picks: Picks,
    scale: Scale,
}

impl Picked {
    fn best(&self) -> Result<usize> {
        let picks = self.picks.borrow();
        let median = |way: &str| picks.get(way).and_then(|rates| Summary::of(rates)).map(|all| all.median);
        let rated = self.sessions.iter().enumerate().filter_map(|(at, (way, _))| Some((at, median(way)?)));
        let best = rated.max_by(|a, b| a.1.total_cmp(&b.1));
        let (at, _) = best.context("no fixed way has run to pick from: ask for all engines")?;
        Ok(at)
    }
}

impl Session for Picked {
    fn verify(&mut self) -> Result<()> {
        // The ways have verified what they do; here it is enough that they were opened, except in a smoke run.
        if self.scale != Scale::Smoke {
            return Ok(());
        }
        self.sessions.iter_mut().try_for_each(|(_, session)| session.verify())
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let best = self.best()?;
        let (way, session) = &mut self.sessions[best];
        let mut sample = session.run(work)?;
        sample.settings.insert(0, ("way".to_owned(), (*way).to_owned()));
        Ok(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_of_the_list_is_there() {
        let names: usize = PARTS.iter().map(|(_, _, names)| names.len()).sum();
        assert_eq!(cases(Scale::Full).len(), names);
    }

    struct Fixed(f64);

    impl Session for Fixed {
        fn verify(&mut self) -> Result<()> {
            Ok(())
        }

        fn run(&mut self, _: u64) -> Result<Sample> {
            Ok(Sample { seconds: 1.0, values: vec![(RATE, self.0)], settings: Vec::new() })
        }
    }

    #[test]
    fn the_way_with_the_best_median_of_its_own_rounds_runs_again() {
        let picks = Picks::default();
        let sessions: Vec<(&'static str, Box<dyn Session>)> =
            vec![("cached", Box::new(Fixed(7.0))), ("nt", Box::new(Fixed(6.0)))];
        let mut picked = Picked { sessions, picks: Rc::clone(&picks), scale: Scale::Quick };
        assert!(picked.run(1).unwrap_err().to_string().contains("ask for all engines"));
        for (way, rates) in [("cached", [9.0, 1.0, 1.0]), ("nt", [2.0, 2.0, 2.0])] {
            for rate in rates {
                let (way, picks) = (way.to_owned(), Rc::clone(&picks));
                Way { way, session: Box::new(Fixed(rate)), picks }.run(1).unwrap();
            }
        }
        let sample = picked.run(1).unwrap();
        assert_eq!(sample.value(RATE), Some(6.0));
        assert_eq!(sample.settings[0], ("way".to_owned(), "nt".to_owned()));
    }
}
