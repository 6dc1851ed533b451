//! Records: one JSON object a line, and a CSV file for each day and machine.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::facts::Facts;
use crate::runner::{CaseResult, EngineResult, Figure};

/// One line of a record.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Record {
    /// The row.
    pub bench: String,
    /// The case within the row.
    pub case: String,
    /// Who did the work.
    pub engine: String,
    /// What was measured.
    pub metric: String,
    /// In which unit.
    pub unit: String,
    /// The median of the rounds.
    pub median: f64,
    /// The smallest of the rounds.
    pub low: f64,
    /// The largest of the rounds.
    pub high: f64,
    /// How many rounds.
    pub rounds: usize,
    /// The engine that `ratio` is against.
    pub baseline: String,
    /// `engine` against `baseline`, larger is better; null if the baseline has no figure.
    pub ratio: Option<f64>,
}

/// The records of one case.
pub fn of_case(bench: &str, result: &CaseResult) -> Vec<Record> {
    let figures = |engine: &EngineResult| engine.figures.clone();
    let record = |engine: &EngineResult, figure: Figure| Record {
        bench: bench.to_owned(),
        case: result.case.clone(),
        engine: engine.engine.to_owned(),
        metric: figure.metric.name.to_owned(),
        unit: figure.metric.unit.to_owned(),
        median: figure.summary.median,
        low: figure.summary.low,
        high: figure.summary.high,
        rounds: figure.summary.rounds,
        baseline: result.baseline.to_owned(),
        ratio: figure.ratio,
    };
    result.engines.iter().flat_map(|e| figures(e).into_iter().map(move |f| record(e, f))).collect()
}

/// Today, as in the names of the records.
pub fn today() -> String {
    jiff::Zoned::now().date().to_string()
}

/// Makes the folder that [`append`] will write to, so that nobody waits for figures that can't be kept.
pub fn prepare(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))
}

/// Appends `records` to `<folder>/<date>-<machine>.csv`, with the machine's facts beside it, and says where.
pub fn append(folder: &Path, facts: &Facts, records: &[Record]) -> Result<PathBuf> {
    prepare(folder)?;
    let path = folder.join(format!("{}-{}.csv", today(), facts.slug));
    let fresh = !path.exists();
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("opening {}", path.display()))?;
    let mut out = csv::WriterBuilder::new().has_headers(fresh).from_writer(file);
    for record in records {
        out.serialize(record)?;
    }
    out.flush()?;
    let facts: String = facts.lines.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
    std::fs::write(path.with_extension("txt"), facts)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            bench: "unix-bulk".into(),
            case: "8000".into(),
            engine: "auto".into(),
            metric: "rate".into(),
            unit: "GB/s".into(),
            median: 5.0,
            low: 4.5,
            high: 5.25,
            rounds: 5,
            baseline: "kernel".into(),
            ratio: Some(4.0),
        }
    }

    #[test]
    fn json_has_the_documented_names_in_order() {
        assert_eq!(
            serde_json::to_string(&record()).unwrap(),
            r#"{"bench":"unix-bulk","case":"8000","engine":"auto","metric":"rate","unit":"GB/s","median":5.0,"low":4.5,"high":5.25,"rounds":5,"baseline":"kernel","ratio":4.0}"#
        );
    }

    #[test]
    fn csv_appends_under_one_heading() {
        let folder = std::env::temp_dir().join(format!("onecopy-record-{}", std::process::id()));
        let facts = Facts { lines: vec![("CPU", "x".into())], slug: "test".into() };
        append(&folder, &facts, &[record()]).unwrap();
        let path = append(&folder, &facts, &[Record { ratio: None, ..record() }]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(text.lines().count(), 3);
        assert!(text.starts_with("bench,case,engine,metric,unit,median,low,high,rounds,baseline,ratio\n"));
        assert!(text.ends_with("5,kernel,\n"));
    }
}
