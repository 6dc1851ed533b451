//! What the reader of a row's table should know besides: demands without a verdict, who is missing, and how large a share of the demands holds.

use crate::result::{CaseResult, RowResult};
use crate::row::Row;

/// All of it, once the row is done.
pub fn of(row: &Row, result: &RowResult) -> Vec<String> {
    noise(&result.cases).into_iter().chain(skipped(&result.cases)).chain(shared_out(row, result)).collect()
}

/// How many demands have no verdict, since the machine was too restless.
fn noise(cases: &[CaseResult]) -> Option<String> {
    let noisy =
        cases.iter().flat_map(|case| &case.verdicts).filter(|verdict| verdict.noise.is_some()).count();
    (noisy > 0).then(|| {
        format!(
            "{noisy} demands have no verdict, since the rival beside itself (control) is as far off: more --rounds, on a machine left alone"
        )
    })
}

/// Who has no figures in how many cases, and why: a rival that is missing is named once more where all of the row is summed up.
fn skipped(cases: &[CaseResult]) -> Vec<String> {
    let mut skipped: Vec<(&str, &str, usize)> = Vec::new();
    for engine in cases.iter().flat_map(|case| &case.engines) {
        let Some(reason) = engine.reason.as_deref() else { continue };
        match skipped.iter_mut().find(|(name, why, _)| (*name, *why) == (engine.engine, reason)) {
            Some((_, _, cases)) => *cases += 1,
            None => skipped.push((engine.engine, reason, 1)),
        }
    }
    let said = |(engine, reason, cases)| format!("{engine} is missing in {cases} of the cases: {reason}");
    skipped.into_iter().map(said).collect()
}

/// For a row of which a share of the demands has to hold: at how many of its points with a verdict they do, and in how many of its cases all of them.
fn shared_out(row: &Row, result: &RowResult) -> Option<String> {
    let (met, missed, _) = result.tally();
    if row.share >= 1.0 || met + missed == 0 {
        return None;
    }
    let (cases, whole) = result.whole_cases();
    let part = |part: usize, all: usize| {
        let share = part as f64 / all as f64;
        (if share >= row.share { "reached" } else { "missed" }, share * 100.0)
    };
    let ((points, at), (of_cases, within)) = (part(met, met + missed), part(whole, cases));
    Some(format!(
        "{points}: the demands hold at {at:.1} % of the {} points with a verdict; {of_cases}: in {within:.1} % of the {cases} cases with one all of \
         them hold; {:.0} % are demanded",
        met + missed,
        row.share * 100.0
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{EngineResult, Verdict};
    use crate::row::Plot;

    const ROW: Row = Row {
        name: "row",
        about: "",
        stated: &[],
        metrics: &[],
        share: 1.0,
        cases: |_| Vec::new(),
        workers: &[],
        plot: Plot::Bars,
    };

    fn case(engines: &[(&'static str, Option<&str>)], verdicts: &[Option<bool>]) -> CaseResult {
        let engine = |&(engine, reason): &(&'static str, Option<&str>)| EngineResult {
            engine,
            figures: Vec::new(),
            settings: Vec::new(),
            reason: reason.map(str::to_owned),
        };
        let verdict = |holds: &Option<bool>| Verdict {
            engine: "ours",
            metric: "rate",
            demand: String::new(),
            line: None,
            reached: holds.map(|holds| (1.0, holds)),
            noise: None,
            lacking: Vec::new(),
        };
        CaseResult {
            case: "case".to_owned(),
            baseline: "kernel",
            engines: engines.iter().map(engine).collect(),
            verdicts: verdicts.iter().map(verdict).collect(),
        }
    }

    fn result(cases: Vec<CaseResult>) -> RowResult {
        RowResult { row: "row", cases, notes: Vec::new() }
    }

    #[test]
    fn who_is_missing_is_named_once_for_each_reason() {
        let engines = [("kernel", None), ("gvisor", Some("not built")), ("nginx", Some("not there"))];
        let other = [("gvisor", Some("not built")), ("nginx", Some("crashed"))];
        let notes = of(&ROW, &result(vec![case(&engines, &[]), case(&other, &[])]));
        assert_eq!(
            notes,
            [
                "gvisor is missing in 2 of the cases: not built",
                "nginx is missing in 1 of the cases: not there",
                "nginx is missing in 1 of the cases: crashed",
            ]
        );
    }

    #[test]
    fn demands_without_a_verdict_are_counted() {
        let mut noisy = case(&[], &[None, Some(true), None]);
        noisy.verdicts[0].noise = Some("noise".to_owned());
        let notes = of(&ROW, &result(vec![noisy]));
        assert!(notes[0].starts_with("1 demands have no verdict") && notes.len() == 1, "{notes:?}");
    }

    #[test]
    fn points_and_cases_are_counted_apart() {
        let verdicts: [&[Option<bool>]; 5] =
            [&[Some(true), Some(true)], &[Some(true), Some(false)], &[None, Some(true)], &[None], &[]];
        let result = result(verdicts.map(|verdicts| case(&[], verdicts)).into());
        assert_eq!((result.tally(), result.whole_cases()), ((4, 1, 2), (3, 2)));
        assert_eq!(
            of(&Row { share: 0.75, ..ROW }, &result),
            [
                "reached: the demands hold at 80.0 % of the 5 points with a verdict; missed: in 66.7 % of the 3 cases with one all of them hold; \
                 75 % are demanded"
            ]
        );
        assert!(of(&ROW, &result).is_empty(), "all are demanded");
    }
}
