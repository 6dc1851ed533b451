//! A row as data: what it does, its cases, its engines and what they must reach.

use std::time::Duration;

use anyhow::Result;

use crate::proc::{Launcher, WorkerFn};
use crate::stats;
use crate::words::number;

/// One row of the bench: `onecopy bench NAME`.
pub struct Row {
    /// The name on the command line and in the records.
    pub name: &'static str,
    /// One sentence: the work, and who touches the payload how.
    pub about: &'static str,
    /// Settings that its figures are to be read with, by name: shown below `about`, and kept in the records' facts.
    pub stated: &'static [(&'static str, &'static str)],
    /// What is measured. The first one is the row's main figure: the one that is plotted.
    pub metrics: &'static [Metric],
    /// The share of the cases with a reach that have to meet it; 1 for nearly every row.
    pub share: f64,
    /// The cases, in the order they are shown. A smaller [`Scale`] may thin them out, never change their shape.
    pub cases: fn(Scale) -> Vec<Case>,
    /// What this row's child processes can do, by role; see [`crate::proc`].
    pub workers: &'static [(&'static str, WorkerFn)],
    /// How the report draws it.
    pub plot: Plot,
}

/// One figure of a row.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The name in the records.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Whether larger is better (a rate) or smaller (a time).
    pub larger: bool,
}

/// CPU time of all processes that took part, for each byte of payload.
pub const CPU_PER_GB: Metric = Metric { name: "cpu", unit: "CPU s/GB", larger: false };

/// How the report draws a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plot {
    /// A group of bars for each case.
    Bars,
    /// A line for each engine over the cases; one plot for each suffix after the `/` of the case names.
    Lines,
}

/// How much work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// For figures.
    Full,
    /// The same shape with less work (`--quick`).
    Quick,
    /// For tests: does it run and verify at all?
    Smoke,
}

impl Scale {
    /// How long one round of the slowest engine should take.
    pub fn round(self) -> Duration {
        match self {
            Scale::Full => Duration::from_millis(250),
            Scale::Quick => Duration::from_millis(60),
            Scale::Smoke => Duration::ZERO,
        }
    }
}

/// One case: the same work for each of its engines.
pub struct Case {
    /// The name in the records, without the row's.
    pub name: String,
    /// The engines, in the order they alternate.
    pub engines: Vec<&'static str>,
    /// The engine that the ratios are taken against.
    pub baseline: &'static str,
    /// What must be reached.
    pub reach: Vec<Reach>,
    /// How work is counted.
    pub work: Work,
    /// Makes an engine ready. An error skips the engine, with its reason shown.
    pub open: Box<Open>,
}

/// Makes the engine of that name ready for its rounds.
pub type Open = dyn Fn(&Context, &str) -> Result<Box<dyn Session>>;

/// Work, in the row's own units (bytes, round trips): all engines of a case get the same.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// What one warm-up round does, and all that a smoke run does.
    pub warmup: u64,
    /// The least and the most that a round may be.
    pub least: u64,
    /// See `least`.
    pub most: u64,
    /// Rounds are a multiple of this.
    pub step: u64,
}

impl Work {
    /// The same amount in each round, whatever the warm-up says.
    pub fn fixed(amount: u64) -> Work {
        Work { warmup: amount, least: amount, most: amount, step: 1 }
    }

    /// The work with which the slowest engine takes `target`, from the seconds that a unit took in the warm-up.
    pub fn sized(&self, seconds_per_unit: f64, target: Duration) -> u64 {
        let wanted =
            if seconds_per_unit > 0.0 { target.as_secs_f64() / seconds_per_unit } else { self.most as f64 };
        let clamped = wanted.clamp(self.least as f64, self.most.max(self.least) as f64) as u64;
        clamped.div_ceil(self.step.max(1)) * self.step.max(1)
    }
}

/// What a case is measured with.
#[derive(Clone, Debug)]
pub struct Context {
    /// How child processes are started.
    pub launcher: Launcher,
    /// How much work.
    pub scale: Scale,
    /// The two CPUs to pin to; the same one twice where there is only one.
    pub cpus: [usize; 2],
}

/// An engine made ready for one case. Dropped when the case is done: nothing may stay behind.
pub trait Session {
    /// Moves seeded bytes and compares what arrives, apart from any timing.
    fn verify(&mut self) -> Result<()>;
    /// One round. Between rounds the session must not use the CPU.
    fn run(&mut self, work: u64) -> Result<Sample>;
    /// The round before those that count: for caches and pages, and to find out how long work takes.
    fn warm_up(&mut self, work: u64) -> Result<Sample> {
        self.run(work)
    }
}

/// What one round gave.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Wall-clock seconds of the timed part.
    pub seconds: f64,
    /// The figures, by the names of the row's metrics; a metric that this round can't give is left out.
    pub values: Vec<(&'static str, f64)>,
    /// What was in force (effective buffer sizes, path, versions): shown, the last round's.
    pub settings: Vec<(String, String)>,
}

impl Sample {
    /// The figure of that name.
    pub fn value(&self, metric: &str) -> Option<f64> {
        self.values.iter().find(|(name, _)| *name == metric).map(|(_, value)| *value)
    }
}

/// What one engine must reach in a case.
#[derive(Clone, Debug)]
pub struct Reach {
    /// The engine that must.
    pub engine: &'static str,
    /// In which metric.
    pub metric: &'static str,
    /// How far.
    pub bound: Bound,
    /// An engine that is the rival once more, see [`Reach::beside`].
    pub control: Option<&'static str>,
}

/// How far an engine must get.
#[derive(Clone, Debug)]
pub enum Bound {
    /// This many times the best of those engines, larger is better.
    Ratio(f64, Vec<&'static str>),
    /// Not above this, in the metric's unit.
    AtMost(f64),
    /// Not below this, in the metric's unit.
    AtLeast(f64),
    /// Not more than this above the best (smallest) of those engines, in the metric's unit.
    Within(f64, Vec<&'static str>),
    /// Not above so many times that engine plus so much, in the metric's unit.
    AtMostTimes(f64, &'static str, f64),
}

impl Reach {
    /// `engine` must be at least `times` the best of `against` in `metric`.
    pub fn ratio(engine: &'static str, metric: &'static str, times: f64, against: &[&'static str]) -> Reach {
        Reach { engine, metric, bound: Bound::Ratio(times, against.to_vec()), control: None }
    }

    /// `engine` must not be above `most` in `metric`.
    pub fn at_most(engine: &'static str, metric: &'static str, most: f64) -> Reach {
        Reach { engine, metric, bound: Bound::AtMost(most), control: None }
    }

    /// `engine` must not be below `least` in `metric`.
    pub fn at_least(engine: &'static str, metric: &'static str, least: f64) -> Reach {
        Reach { engine, metric, bound: Bound::AtLeast(least), control: None }
    }

    /// `engine` must be within `slack` of the best (smallest) of `against` in `metric`.
    pub fn within(engine: &'static str, metric: &'static str, slack: f64, against: &[&'static str]) -> Reach {
        Reach { engine, metric, bound: Bound::Within(slack, against.to_vec()), control: None }
    }

    /// `engine` must not be above `times` what `against` has plus `slack` in `metric`.
    pub fn at_most_times(
        engine: &'static str,
        metric: &'static str,
        times: f64,
        against: &'static str,
        slack: f64,
    ) -> Reach {
        Reach { engine, metric, bound: Bound::AtMostTimes(times, against, slack), control: None }
    }

    /// The rival runs once more in each round, as `control`, right behind `engine` as it does right before it. Each round is judged by the mean of
    /// these two, so that a machine that gets slower or faster meanwhile harms neither, and it takes more than half of the rounds. Where the demand would
    /// not hold between the two, whichever is the rival, the machine is too restless for a verdict.
    #[must_use]
    pub fn beside(self, control: &'static str) -> Reach {
        Reach { control: Some(control), ..self }
    }

    /// What was reached, in the middle of the rounds, and whether that is enough, by the values that each engine had in them; and what the control
    /// reached beside the rival, if that is not enough. None without a control, and without values.
    pub fn judge_rounds(
        &self,
        larger_is_better: bool,
        values: impl Fn(&str) -> Vec<f64>,
    ) -> Option<((f64, bool), Option<f64>)> {
        let rival = *self.rivals().first()?;
        let (own, before, behind) = (values(self.engine), values(rival), values(self.control?));
        let rounds = own.len();
        if before.len() != rounds || behind.len() != rounds {
            return None; // some round lacks a figure, and nobody knows which
        }
        let judge = |one: &dyn Fn(usize) -> f64, other: &dyn Fn(usize) -> f64| {
            let judged = (0..rounds).map(|round| {
                self.judge(larger_is_better, |name| match name {
                    name if name == self.engine => Some(one(round)),
                    name if name == rival => Some(other(round)),
                    _ => None,
                })
            });
            let (reached, holds): (Vec<f64>, Vec<bool>) =
                judged.collect::<Option<Vec<_>>>()?.into_iter().unzip();
            let enough = holds.iter().filter(|&&holds| holds).count() * 2 > rounds;
            Some((stats::Summary::of(&reached)?.median, enough))
        };
        let control = judge(&|round| behind[round], &|round| before[round])?;
        let turned = judge(&|round| before[round], &|round| behind[round])?;
        let reached = judge(&|round| own[round], &|round| (before[round] + behind[round]) / 2.0)?;
        Some((reached, (!control.1 || !turned.1).then_some(control.0)))
    }

    /// The engines that it is judged against.
    pub fn rivals(&self) -> &[&'static str] {
        match &self.bound {
            Bound::Ratio(_, rivals) | Bound::Within(_, rivals) => rivals,
            Bound::AtMostTimes(_, rival, _) => std::slice::from_ref(rival),
            Bound::AtMost(_) | Bound::AtLeast(_) => &[],
        }
    }

    /// The demand in words, such as `>= 1.25 x kernel`.
    pub fn demand(&self, unit: &str) -> String {
        match &self.bound {
            Bound::Ratio(times, against) => format!(">= {times} x {}", best_of(against)),
            Bound::AtMost(most) => format!("<= {} {unit}", number(*most)),
            Bound::AtLeast(least) => format!(">= {} {unit}", number(*least)),
            Bound::Within(slack, against) => format!("<= {} + {slack} {unit}", best_of(against)),
            // Without the " x " that ratios have: what is reached is a figure in `unit`.
            Bound::AtMostTimes(times, against, 0.0) => format!("<= {times}*{against}"),
            Bound::AtMostTimes(times, against, slack) => format!("<= {times}*{against} + {slack} {unit}"),
        }
    }

    /// What was reached (a ratio, a value or a distance, as the bound has it) and whether that is enough.
    /// `median` gives an engine's median of the metric; `None` if it has none, then there is no verdict.
    pub fn judge(&self, larger_is_better: bool, median: impl Fn(&str) -> Option<f64>) -> Option<(f64, bool)> {
        let own = median(self.engine)?;
        let best = |against: &[&'static str]| {
            against
                .iter()
                .filter_map(|name| median(name))
                .reduce(|a, b| if larger_is_better { a.max(b) } else { a.min(b) })
        };
        match &self.bound {
            Bound::Ratio(times, against) => {
                let reached = stats::ratio(own, best(against)?, larger_is_better);
                Some((reached, reached >= *times))
            }
            Bound::AtMost(most) => Some((own, own <= *most)),
            Bound::AtLeast(least) => Some((own, own >= *least)),
            Bound::Within(slack, against) => {
                let distance = own - best(against)?;
                Some((distance, distance <= *slack))
            }
            Bound::AtMostTimes(times, against, slack) => Some((own, own <= times * median(against)? + slack)),
        }
    }
}

fn best_of(engines: &[&str]) -> String {
    match engines {
        [one] => (*one).to_owned(),
        many => format!("best of {}", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn medians(engine: &str) -> Option<f64> {
        match engine {
            "kernel" => Some(4.0),
            "cached" => Some(6.0),
            "nt" => Some(10.0),
            "auto" => Some(9.0),
            _ => None,
        }
    }

    #[test]
    fn ratio_is_against_the_best_of_the_others() {
        let reach = Reach::ratio("auto", "rate", 0.95, &["cached", "nt"]);
        assert_eq!(reach.judge(true, medians), Some((0.9, false)));
        assert_eq!(reach.demand("GB/s"), ">= 0.95 x best of cached, nt");
        // As times, the best is the smallest and the ratio turns round.
        assert_eq!(reach.judge(false, medians).unwrap().0, 6.0 / 9.0);
        assert!(Reach::ratio("auto", "rate", 2.0, &["kernel"]).judge(true, medians).unwrap().1);
    }

    #[test]
    fn absolute_bounds() {
        assert_eq!(Reach::at_most("auto", "time", 9.0).judge(false, medians), Some((9.0, true)));
        assert_eq!(Reach::at_most("auto", "time", 8.9).judge(false, medians), Some((9.0, false)));
        assert_eq!(Reach::at_least("auto", "share", 9.0).judge(true, medians), Some((9.0, true)));
        assert_eq!(Reach::at_least("auto", "share", 9.1).judge(true, medians), Some((9.0, false)));
        assert_eq!(Reach::at_least("auto", "share", 90.0).demand("%"), ">= 90.0 %");
        assert_eq!(Reach::within("auto", "time", 5.0, &["kernel"]).judge(false, medians), Some((5.0, true)));
        assert_eq!(
            Reach::within("auto", "time", 3.0, &["kernel", "nt"]).judge(false, medians),
            Some((5.0, false))
        );
    }

    #[test]
    fn a_share_of_a_rival_and_a_constant() {
        let reach = Reach::at_most_times("auto", "time", 0.5, "nt", 4.0);
        assert_eq!(reach.judge(false, medians), Some((9.0, true)));
        assert_eq!(reach.demand("ns"), "<= 0.5*nt + 4 ns");
        assert_eq!(Reach::at_most_times("auto", "time", 0.5, "nt", 0.0).demand("ns"), "<= 0.5*nt");
        let reach = Reach::at_most_times("auto", "time", 0.5, "nt", 3.9);
        assert_eq!(reach.judge(false, medians), Some((9.0, false)));
        assert_eq!(Reach::at_most_times("auto", "time", 0.5, "nginx", 3.9).judge(false, medians), None);
    }

    /// The values of three engines in their rounds.
    fn rounds<'a>(
        best: &'a [f64],
        auto: &'a [f64],
        control: &'a [f64],
    ) -> impl Fn(&str) -> Vec<f64> + Copy + 'a {
        move |engine| match engine {
            "best" => best.to_vec(),
            "auto" => auto.to_vec(),
            _ => control.to_vec(),
        }
    }

    #[test]
    fn a_control_that_is_off_to_either_side_is_noise() {
        let with = |control: f64| move |engine: &str| rounds(&[8.0], &[1.0], &[control])(engine);
        let ratio = Reach::ratio("auto", "rate", 0.95, &["best"]).beside("control");
        let noise = |reach: &Reach, larger, control| reach.judge_rounds(larger, with(control)).unwrap().1;
        assert_eq!(noise(&ratio, true, 7.75), None);
        assert_eq!((noise(&ratio, true, 7.5), noise(&ratio, true, 8.5)), (Some(0.9375), Some(1.0625)));
        let times = Reach::at_most_times("auto", "cpu", 1.05, "best", 0.0).beside("control");
        assert_eq!(noise(&times, false, 8.25), None);
        assert_eq!((noise(&times, false, 8.5), noise(&times, false, 7.5)), (Some(8.5), Some(7.5)));
        let within = Reach::within("auto", "time", 3.0, &["best"]).beside("control");
        assert_eq!((noise(&within, false, 10.0), noise(&within, false, 4.0)), (None, Some(-4.0)));
        let alone = Reach::ratio("auto", "rate", 0.95, &["best"]);
        assert_eq!(alone.judge_rounds(true, with(1.0)), None, "nobody was asked to look");
    }

    #[test]
    fn rounds_are_judged_each_by_what_ran_before_and_behind_it() {
        let ratio = Reach::ratio("auto", "rate", 0.95, &["best"]).beside("control");
        // A machine that gets slower all the time, at which the medians (8 of 9) would be a miss.
        let slower = rounds(&[10.0, 9.0, 8.0], &[9.75, 8.0, 7.875], &[9.5, 8.75, 7.75]);
        assert_eq!(ratio.judge_rounds(true, slower), Some(((1.0, true), None)));
        // It loses in two rounds of three, where the medians (8.9 of 9) would be enough.
        let loses = rounds(&[8.0, 9.0, 10.0], &[8.9, 8.1, 9.0], &[8.0, 9.0, 10.0]);
        assert_eq!(ratio.judge_rounds(true, loses), Some(((0.9, false), None)));
        let times = Reach::at_most_times("auto", "cpu", 1.05, "best", 0.5).beside("control");
        let costs = rounds(&[1.0, 2.0, 3.0], &[1.5, 2.7, 3.7], &[1.0, 2.0, 3.0]);
        assert_eq!(times.judge_rounds(false, costs), Some(((2.7, false), None)));
        assert_eq!(ratio.judge_rounds(true, rounds(&[], &[], &[])), None);
        assert_eq!(
            ratio.judge_rounds(true, rounds(&[1.0, 1.0], &[1.0, 1.0], &[1.0])),
            None,
            "a round lacks a figure"
        );
        let half = rounds(&[1.0, 1.0], &[1.0, 0.9], &[1.0, 1.0]);
        assert_eq!(
            ratio.judge_rounds(true, half),
            Some(((0.95, false), None)),
            "half of the rounds are not most"
        );
    }

    #[test]
    fn no_verdict_without_figures() {
        assert_eq!(Reach::ratio("auto", "rate", 1.0, &["nginx"]).judge(true, medians), None);
        assert_eq!(Reach::at_most("zc", "rate", 1.0).judge(true, medians), None);
    }

    #[test]
    fn work_is_sized_clamped_and_rounded() {
        let work = Work { warmup: 10, least: 100, most: 10_000, step: 64 };
        assert_eq!(work.sized(0.001, Duration::from_millis(500)), 512);
        assert_eq!(work.sized(1.0, Duration::from_millis(500)), 128);
        assert_eq!(work.sized(1e-9, Duration::from_secs(1)), 10_048);
        assert_eq!(work.sized(0.0, Duration::from_secs(1)), 10_048);
        assert_eq!(Work::fixed(7).sized(1e-9, Duration::from_secs(1)), 7);
    }
}
