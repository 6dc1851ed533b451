//! What comes out of a row: figures, and what was demanded of them and reached.

use crate::row::Metric;
use crate::stats::Summary;
use crate::words::number;

/// What came out of a row.
#[derive(Debug)]
pub struct RowResult {
    /// The row's name.
    pub row: &'static str,
    /// Its cases, in order.
    pub cases: Vec<CaseResult>,
    /// What the reader of the table should know (time was over, for example).
    pub notes: Vec<String>,
}

/// What came out of a case.
#[derive(Debug)]
pub struct CaseResult {
    /// The case's name.
    pub case: String,
    /// The engine that ratios are against.
    pub baseline: &'static str,
    /// Its engines, in order.
    pub engines: Vec<EngineResult>,
    /// What was demanded and what was reached.
    pub verdicts: Vec<Verdict>,
}

/// What came out of an engine in a case.
#[derive(Debug)]
pub struct EngineResult {
    /// The engine's name.
    pub engine: &'static str,
    /// Its figures, in the order of the row's metrics; empty if it was skipped.
    pub figures: Vec<Figure>,
    /// What was in force.
    pub settings: Vec<(String, String)>,
    /// Why it was skipped or failed.
    pub reason: Option<String>,
}

/// One metric of an engine in a case.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Which.
    pub metric: Metric,
    /// Median and spread.
    pub summary: Summary,
    /// The ratio of the medians against the baseline's, larger is better.
    pub ratio: Option<f64>,
    /// The spread of the ratio, round by round.
    pub ratio_spread: Option<Summary>,
}

/// What was demanded of an engine and what it reached.
#[derive(Debug)]
pub struct Verdict {
    /// The engine.
    pub engine: &'static str,
    /// In which metric.
    pub metric: &'static str,
    /// The demand in words.
    pub demand: String,
    /// The ratio that is demanded against the baseline alone, for the line in the plot.
    pub line: Option<f64>,
    /// What was reached, and whether that is enough; `None` without figures, and where they are `noise`.
    pub reached: Option<(f64, bool)>,
    /// Why the figures say nothing, in words.
    pub noise: Option<String>,
    /// Those of the engine and its rivals that have no figure, where that is why there is no verdict.
    pub lacking: Vec<&'static str>,
}

impl Verdict {
    /// `reached` as the demand has it: a ratio, or a value in `unit`.
    pub fn reached_in_words(&self, reached: f64, unit: &str) -> String {
        in_words(&self.demand, reached, unit)
    }

    /// Why there is no verdict, where there is none.
    pub fn open(&self) -> String {
        match (&self.noise, &self.lacking[..]) {
            (Some(noise), _) => noise.clone(),
            (None, []) => "a round lacks a figure".to_owned(),
            (None, lacking) => format!("no figures of {}", lacking.join(", ")),
        }
    }
}

/// What was reached, with the unit that `demand` has: a ratio, or `unit`.
pub(crate) fn in_words(demand: &str, reached: f64, unit: &str) -> String {
    let unit = if demand.contains(" x ") { "x" } else { unit };
    format!("{} {unit}", number(reached))
}

impl RowResult {
    /// How many demands were met, missed, and left without a verdict.
    pub fn tally(&self) -> (usize, usize, usize) {
        let mut tally = (0, 0, 0);
        for verdict in self.cases.iter().flat_map(|case| &case.verdicts) {
            match verdict.reached {
                Some((_, true)) => tally.0 += 1,
                Some((_, false)) => tally.1 += 1,
                None => tally.2 += 1,
            }
        }
        tally
    }

    /// How many cases have a verdict, and in how many of them no demand was missed.
    pub fn whole_cases(&self) -> (usize, usize) {
        let verdicts = |case: &CaseResult| -> Vec<bool> {
            case.verdicts.iter().filter_map(|verdict| Some(verdict.reached?.1)).collect()
        };
        let judged: Vec<Vec<bool>> =
            self.cases.iter().map(verdicts).filter(|verdicts| !verdicts.is_empty()).collect();
        (judged.len(), judged.iter().filter(|verdicts| verdicts.iter().all(|&holds| holds)).count())
    }
}

/// The figure of `engine` in `metric`.
pub fn figure<'a>(engines: &'a [EngineResult], engine: &str, metric: &str) -> Option<&'a Figure> {
    engines.iter().find(|e| e.engine == engine)?.figures.iter().find(|f| f.metric.name == metric)
}
