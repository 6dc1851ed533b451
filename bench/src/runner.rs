//! Runs a row: verification, warm-up, then rounds in which the engines take turns.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::notes;
use crate::result::{CaseResult, EngineResult, Figure, RowResult, Verdict, figure, in_words};
use crate::row::{Case, Context, Metric, Row, Sample, Scale, Session};
use crate::stats::{self, Summary};
use crate::unknown::Unknown;

/// Who wants to know how far it is.
pub trait Watch {
    /// A row begins: how many cases, and the time it will take at most.
    fn row(&mut self, row: &Row, cases: usize, rounds: usize, bound: Duration);
    /// `done` of `total` rounds of this row are over; this case is on.
    fn step(&mut self, case: &str, engine: &str, done: usize, total: usize);
    /// A case is done.
    fn case(&mut self, row: &Row, result: &CaseResult);
    /// The row is done.
    fn done(&mut self, row: &Row, result: &RowResult);
}

/// Which cases and engines, and how often.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Rounds after the warm-up.
    pub rounds: usize,
    /// Only cases whose name contains one of these; all if empty.
    pub cases: Vec<String>,
    /// Only these engines and each case's baseline; all if empty.
    pub engines: Vec<String>,
}

impl Choice {
    /// Whether each case and each engine that is asked for is in some of the rows.
    pub fn check(&self, rows: &[&Row], scale: Scale) -> Result<(), Unknown> {
        let cases: Vec<Case> = rows.iter().flat_map(|row| (row.cases)(scale)).collect();
        let mut names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        for part in &self.cases {
            if !names.iter().any(|name| name.contains(part.as_str())) {
                names.dedup();
                return Err(Unknown(format!(
                    "no case has {part:?} in its name; there are {}",
                    names.join(", ")
                )));
            }
        }
        let mut engines: Vec<&str> = cases.iter().flat_map(|case| case.engines.iter().copied()).collect();
        for engine in &self.engines {
            if !engines.contains(&engine.as_str()) {
                engines.sort_unstable();
                engines.dedup();
                return Err(Unknown(format!(
                    "there is no engine {engine:?}; there are {}",
                    engines.join(", ")
                )));
            }
        }
        Ok(())
    }

    fn cases_of(&self, row: &Row, scale: Scale) -> Vec<Case> {
        let mut cases = (row.cases)(scale);
        cases.retain(|case| {
            self.cases.is_empty() || self.cases.iter().any(|part| case.name.contains(part.as_str()))
        });
        for case in &mut cases {
            let baseline = case.baseline;
            case.engines.retain(|engine| {
                self.engines.is_empty() || *engine == baseline || self.engines.iter().any(|e| e == engine)
            });
        }
        cases
    }
}

/// The time after which a row starts no further round.
pub fn bound(cases: &[Case], scale: Scale, rounds: usize) -> Duration {
    if scale == Scale::Smoke {
        // A smoke run asks whether all works, and a busy machine is no answer to that.
        return Duration::from_secs(600);
    }
    // Setting up, verifying and warming up cost a second where 256 MiB have to be touched first; and an engine
    // may take twice the time that its warm-up promised.
    // A smoke run asserts no time, so its bound only catches what hangs.
    let setup = Duration::from_millis(match scale {
        Scale::Full => 1000,
        Scale::Quick => 500,
        Scale::Smoke => 10_000,
    });
    let engines: usize = cases.iter().map(|case| case.engines.len()).sum();
    // A row may have to look for its rival's best settings first.
    Duration::from_secs(3)
        + (setup + (scale.round() * 2 + Duration::from_millis(50)) * rounds as u32) * engines as u32
}

/// Up to which part of the row's time each case may start rounds: what one takes too long is not taken from those after it.
fn shares(cases: &[Case]) -> Vec<f64> {
    let engines: usize = cases.iter().map(|case| case.engines.len()).sum();
    let so_far = cases.iter().scan(0, |sum, case| {
        *sum += case.engines.len();
        Some(*sum)
    });
    so_far.map(|sum| sum as f64 / engines.max(1) as f64).collect()
}

/// Runs `row`. An engine that can't run is in the result with its reason; so is one that verified wrong.
pub fn run(row: &'static Row, context: &Context, choice: &Choice, watch: &mut dyn Watch) -> RowResult {
    let cases = choice.cases_of(row, context.scale);
    let bound = bound(&cases, context.scale, choice.rounds);
    let start = Instant::now();
    watch.row(row, cases.len(), choice.rounds, bound);
    let total = cases.iter().map(|case| case.engines.len() * choice.rounds).sum();
    let mut result = RowResult { row: row.name, cases: Vec::new(), notes: Vec::new() };
    let (mut done, mut disturbed) = (0, 0);
    let shares = shares(&cases);
    // A case is gone when it is done, and with it what its engines have shared.
    for (case, share) in cases.into_iter().zip(shares) {
        if start.elapsed() > bound {
            result.notes.push(format!("the row's time was over before the case {}", case.name));
            continue;
        }
        let mut engines = ready(&case, context, watch, (done, total));
        let work = if context.scale == Scale::Smoke {
            case.work.warmup
        } else {
            warm_up(&case, context, &mut engines)
        };
        for round in 0..choice.rounds {
            // A row has a round in any case: what made its first case late may be a rival that was built for it.
            let first = round == 0 && result.cases.is_empty();
            if !first && start.elapsed() > bound.mul_f64(share) {
                result.notes.push(format!("the time of the case was over: {} has {round} rounds", case.name));
                break;
            }
            for turn in &mut engines {
                watch.step(&case.name, turn.engine, done, total);
                // Between rounds nothing of ours wants a CPU but this very thread.
                disturbed += usize::from(crate::facts::others_run());
                turn.round(work);
                done += 1;
            }
        }
        let case_result = conclude(row, &case, engines);
        watch.case(row, &case_result);
        result.cases.push(case_result);
    }
    if disturbed * 10 > done {
        result.notes.push(format!(
            "others were running before {disturbed} of {done} rounds: leave the machine alone for figures that count"
        ));
    }
    let notes = notes::of(row, &result);
    result.notes.extend(notes);
    watch.done(row, &result);
    result
}

/// An engine in its case, with the rounds it has done.
struct Turn {
    engine: &'static str,
    session: Result<Box<dyn Session>>,
    samples: Vec<Sample>,
}

impl Turn {
    fn round(&mut self, work: u64) -> Option<f64> {
        self.does(|session| session.run(work))
    }

    fn does(&mut self, act: impl FnOnce(&mut dyn Session) -> Result<Sample>) -> Option<f64> {
        let session = self.session.as_mut().ok()?;
        match act(&mut **session) {
            Ok(sample) => {
                let seconds = sample.seconds;
                self.samples.push(sample);
                Some(seconds)
            }
            Err(error) => {
                self.session = Err(error);
                None
            }
        }
    }
}

fn ready(case: &Case, context: &Context, watch: &mut dyn Watch, (done, total): (usize, usize)) -> Vec<Turn> {
    let mut turns = Vec::new();
    for &engine in &case.engines {
        watch.step(&case.name, engine, done, total);
        let session = (case.open)(context, engine).and_then(|mut session| {
            session.verify().context("verification failed")?;
            Ok(session)
        });
        turns.push(Turn { engine, session, samples: Vec::new() });
    }
    turns
}

/// Runs each engine once for its caches, and finds the work with which the slowest takes a round's time.
fn warm_up(case: &Case, context: &Context, turns: &mut [Turn]) -> u64 {
    let mut slowest: f64 = 0.0;
    for turn in turns {
        if let Some(seconds) = turn.does(|session| session.warm_up(case.work.warmup)) {
            slowest = slowest.max(seconds / case.work.warmup as f64);
        }
        turn.samples.clear();
    }
    case.work.sized(slowest, context.scale.round())
}

fn conclude(row: &Row, case: &Case, turns: Vec<Turn>) -> CaseResult {
    let values = |turn: &Turn, metric: &Metric| -> Vec<f64> {
        turn.samples.iter().filter_map(|sample| sample.value(metric.name)).collect()
    };
    let baseline = turns.iter().find(|turn| turn.engine == case.baseline && turn.session.is_ok());
    let mut engines = Vec::new();
    for turn in &turns {
        let mut figures = Vec::new();
        if turn.session.is_ok() {
            for &metric in row.metrics {
                let own = values(turn, &metric);
                let Some(summary) = Summary::of(&own) else { continue };
                let theirs = baseline.map(|turn| values(turn, &metric)).unwrap_or_default();
                let ratio = Summary::of(&theirs)
                    .map(|theirs| stats::ratio(summary.median, theirs.median, metric.larger))
                    .filter(|ratio| ratio.is_finite());
                let ratio_spread = stats::paired(&own, &theirs, metric.larger);
                figures.push(Figure { metric, summary, ratio, ratio_spread });
            }
        }
        engines.push(EngineResult {
            engine: turn.engine,
            figures,
            settings: turn.samples.last().map(|sample| sample.settings.clone()).unwrap_or_default(),
            reason: turn.session.as_ref().err().map(|error| format!("{error:#}")),
        });
    }
    let verdicts = case
        .reach
        .iter()
        .filter_map(|reach| {
            let metric = row.metrics.iter().find(|metric| metric.name == reach.metric)?;
            let median = |engine: &str| figure(&engines, engine, metric.name).map(|f| f.summary.median);
            let line = match &reach.bound {
                crate::row::Bound::Ratio(times, against) if against == &[case.baseline] => Some(*times),
                _ => None,
            };
            let of = |engine: &str| {
                turns
                    .iter()
                    .find(|turn| turn.engine == engine && turn.session.is_ok())
                    .map_or(Vec::new(), |turn| values(turn, metric))
            };
            let demand = reach.demand(metric.unit);
            let (reached, of_control) = match reach.control {
                Some(_) => reach
                    .judge_rounds(metric.larger, of)
                    .map_or((None, None), |(reached, of_control)| (Some(reached), of_control)),
                None => (reach.judge(metric.larger, median), None),
            };
            let noise = reached.zip(of_control).map(|((reached, _), of_control)| {
                let words = |reached| in_words(&demand, reached, metric.unit);
                format!("{}, but its like has {}: noise", words(reached), words(of_control))
            });
            let lacking = match reached {
                Some(_) => Vec::new(),
                None => {
                    let all =
                        [reach.engine].into_iter().chain(reach.rivals().iter().copied()).chain(reach.control);
                    all.filter(|engine| median(engine).is_none()).collect()
                }
            };
            let reached = if noise.is_some() { None } else { reached };
            Some(Verdict {
                engine: reach.engine,
                metric: reach.metric,
                demand,
                line,
                reached,
                noise,
                lacking,
            })
        })
        .collect();
    CaseResult { case: case.name.clone(), baseline: case.baseline, engines, verdicts }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::row::{Plot, Reach, Work};

    struct Fake {
        engine: &'static str,
        log: Rc<RefCell<Vec<(&'static str, u64)>>>,
        fail_at: Option<usize>,
    }

    impl Session for Fake {
        fn verify(&mut self) -> Result<()> {
            if self.engine == "wrong" { anyhow::bail!("byte 17 differs") } else { Ok(()) }
        }
        fn run(&mut self, work: u64) -> Result<Sample> {
            let turns = self.log.borrow().iter().filter(|(e, _)| *e == self.engine).count();
            if self.fail_at == Some(turns) {
                anyhow::bail!("crashed");
            }
            self.log.borrow_mut().push((self.engine, work));
            let speed = if self.engine == "ours" { 2.0 } else { 1.0 };
            Ok(Sample {
                seconds: work as f64 / 1000.0 / speed,
                values: vec![("rate", speed)],
                settings: vec![],
            })
        }
    }

    const ROW: Row = Row {
        name: "fake",
        about: "",
        stated: &[],
        metrics: &[Metric { name: "rate", unit: "x", larger: true }],
        share: 1.0,
        cases: |_| Vec::new(),
        workers: &[],
        plot: Plot::Bars,
    };

    type Log = Rc<RefCell<Vec<(&'static str, u64)>>>;

    fn fake(engines: &[&'static str], fail: Option<(&'static str, usize)>) -> (Case, Log) {
        let log = Log::default();
        let for_open = log.clone();
        let case = Case {
            name: "one".to_owned(),
            engines: engines.to_vec(),
            baseline: "kernel",
            reach: vec![Reach::ratio("ours", "rate", 1.5, &["kernel"])],
            work: Work { warmup: 10, least: 1, most: 1 << 20, step: 1 },
            open: Box::new(move |_, engine| {
                if engine == "missing" {
                    anyhow::bail!("not installed");
                }
                let engine = ["kernel", "ours", "wrong"].into_iter().find(|e| *e == engine).unwrap();
                let fail_at = fail.filter(|(who, _)| *who == engine).map(|(_, at)| at);
                Ok(Box::new(Fake { engine, log: for_open.clone(), fail_at }))
            }),
        };
        (case, log)
    }

    fn context() -> Context {
        let launcher = crate::proc::Launcher { program: "/nonexistent".into(), args: vec![] };
        Context { launcher, scale: Scale::Full, cpus: [0, 0] }
    }

    struct Silent;
    impl Watch for Silent {
        fn row(&mut self, _: &Row, _: usize, _: usize, _: Duration) {}
        fn step(&mut self, _: &str, _: &str, _: usize, _: usize) {}
        fn case(&mut self, _: &Row, _: &CaseResult) {}
        fn done(&mut self, _: &Row, _: &RowResult) {}
    }

    fn rounds(case: &Case, rounds: usize) -> CaseResult {
        let mut turns = ready(case, &context(), &mut Silent, (0, 0));
        let work = warm_up(case, &context(), &mut turns);
        for _ in 0..rounds {
            for turn in &mut turns {
                turn.round(work);
            }
        }
        conclude(&ROW, case, turns)
    }

    #[test]
    fn engines_alternate_with_the_same_work_after_a_warm_up() {
        let (case, log) = fake(&["kernel", "ours"], None);
        let result = rounds(&case, 2);
        // The slower engine needs 1 ms a unit, so that 250 ms are 250 units, for both.
        let expected =
            [("kernel", 10), ("ours", 10), ("kernel", 250), ("ours", 250), ("kernel", 250), ("ours", 250)];
        assert_eq!(*log.borrow(), expected);
        assert_eq!(result.verdicts[0].reached, Some((2.0, true)));
        assert_eq!(figure(&result.engines, "ours", "rate").unwrap().ratio, Some(2.0));
    }

    #[test]
    fn where_the_rival_differs_from_itself_there_is_no_verdict() {
        let (mut case, _) = fake(&["kernel", "ours"], None);
        case.reach = vec![case.reach.remove(0).beside("ours")];
        let verdict = rounds(&case, 1).verdicts.remove(0);
        assert_eq!(verdict.reached, None);
        assert_eq!(verdict.open(), "1.33 x, but its like has 2.00 x: noise");
    }

    #[test]
    fn each_case_has_its_share_of_the_time() {
        let cases = [&["kernel"][..], &["kernel", "ours", "wrong"]].map(|engines| fake(engines, None).0);
        assert_eq!(shares(&cases), [0.25, 1.0]);
    }

    #[test]
    fn an_engine_that_is_missing_or_wrong_is_shown_with_its_reason() {
        let (case, _) = fake(&["kernel", "missing", "wrong", "ours"], None);
        let result = rounds(&case, 1);
        assert_eq!(result.engines[1].reason.as_deref(), Some("not installed"));
        assert_eq!(result.engines[2].reason.as_deref(), Some("verification failed: byte 17 differs"));
        assert!(result.engines[2].figures.is_empty());
        assert_eq!(result.verdicts[0].reached, Some((2.0, true)));
    }

    #[test]
    fn a_crash_in_a_round_takes_the_engine_out_and_no_other() {
        let (case, _) = fake(&["kernel", "ours"], Some(("kernel", 2)));
        let result = rounds(&case, 3);
        assert_eq!(result.engines[0].reason.as_deref(), Some("crashed"));
        assert_eq!(figure(&result.engines, "ours", "rate").unwrap().summary.rounds, 3);
        assert_eq!(result.verdicts[0].reached, None, "no verdict without the baseline");
        assert_eq!(result.verdicts[0].open(), "no figures of kernel");
    }
}
