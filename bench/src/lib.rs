//! The bench of onecopy: rows as data, rivals in the same run, ratios first.
//!
//! A run takes each row case by case. Every engine of a case is opened and *verified* (seeded bytes, compared at the
//! other side), warmed up once, and then the engines take turns, A B A B, with the same work in each round. What is
//! shown is the median and the extremes of the rounds, and first of all the ratio against the case's baseline.
//!
//! # How to add a row
//!
//! 1. Write `rows/<name>.rs` with a `pub const ROW: Row` (or a static) and list it in [`rows::ROWS`].
//! 2. `cases` gives a [`row::Case`] for each case: its name as in the records, the engines, the baseline, what must be
//!    reached ([`row::Reach`]), how work is counted ([`row::Work`]), and `open`, a closure that makes an engine ready.
//! 3. `open` gives a [`row::Session`]: `verify` moves seeded bytes and compares them, `run(work)` does one round and
//!    gives a [`row::Sample`] with the seconds of the timed part, a value for each metric it can give, and the
//!    settings in force. An error from `open` (a rival that is not installed) is shown and skips the engine.
//!    Dropping the session must leave nothing behind; between rounds it must not use the CPU.
//! 4. Work across processes goes through [`proc`]: list the roles in `Row::workers`, start them with
//!    [`proc::Launcher::pair`] (server on the second CPU, client on the first) or [`proc::Launcher::start`]. A worker
//!    gets its parameters as JSON and returns its figures as JSON.
//! 5. `cargo xtask test bench` runs each row at [`row::Scale::Smoke`]: keep `Work::warmup` small enough for that.

pub mod facts;
pub mod http;
mod notes;
pub mod proc;
pub mod record;
pub mod report;
pub mod result;
mod rivals;
pub mod row;
pub mod rows;
pub mod runner;
pub mod show;
pub mod stats;
pub mod temp;
mod unknown;
mod words;

pub use unknown::Unknown;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::proc::Launcher;
use crate::record::Record;
use crate::result::{CaseResult, RowResult};
use crate::row::{Context, Row, Scale};
use crate::runner::{Choice, Watch};

/// What to run and where to put it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of rows; all if empty.
    pub rows: Vec<String>,
    /// How much work.
    pub scale: Scale,
    /// Which cases and engines, and how many rounds.
    pub choice: Choice,
    /// JSON lines on standard output instead of tables.
    pub json: bool,
    /// Write an HTML report here.
    pub report: Option<PathBuf>,
    /// Append to the day's record in this folder.
    pub record: Option<PathBuf>,
    /// How workers are started.
    pub launcher: Launcher,
}

/// Runs the bench. Fails with [`Unknown`] if there is no such row, case or engine, and if no engine at all gave a figure.
pub fn run(options: &Options) -> Result<Vec<RowResult>> {
    let chosen = choose(&options.rows)?;
    options.choice.check(&chosen, options.scale)?;
    if let Some(path) = &options.report {
        report::prepare(path)?;
    }
    let context =
        Context { launcher: options.launcher.clone(), scale: options.scale, cpus: proc::two_cpus() };
    let facts = facts::gather(&context, options.scale == Scale::Smoke);
    if let Some(folder) = &options.record {
        record::prepare(folder, &facts)?;
    }
    if !options.json {
        for (name, value) in &facts.lines {
            println!("{name:>13}  {value}");
        }
    }
    let (mut records, mut verdicts) = (Vec::new(), Vec::new());
    let mut results = Vec::new();
    for &row in &chosen {
        let result = if options.json {
            runner::run(row, &context, &options.choice, &mut JsonLines)
        } else {
            runner::run(row, &context, &options.choice, &mut show::Terminal::new())
        };
        records.extend(result.cases.iter().flat_map(|case| record::of_case(row.name, case)));
        verdicts.extend(result.cases.iter().flat_map(|case| record::verdicts_of_case(row.name, case)));
        results.push(result);
    }
    let said = |line: String| if options.json { eprintln!("{line}") } else { println!("\n{line}") };
    // A run that measured nothing is none.
    if let Some(folder) = options.record.as_ref().filter(|_| !records.is_empty()) {
        let path = record::append(folder, &facts, &chosen, &records, &verdicts)?;
        said(format!("recorded in {}", path.display()));
    }
    if let Some(path) = &options.report {
        let both: Vec<(&Row, &RowResult)> = chosen.iter().copied().zip(&results).collect();
        report::write(path, "onecopy bench", &facts, &both)?;
        said(format!("report in {}", path.display()));
    }
    if records.is_empty() {
        let reasons = results.iter().flat_map(|r| &r.cases).flat_map(|c| &c.engines);
        let reasons = reasons.filter_map(|e| e.reason.clone());
        let notes = results.iter().flat_map(|r| r.notes.clone());
        let reason = reasons.chain(notes).next().unwrap_or_else(|| "no case was run".to_owned());
        bail!("nothing was measured: {reason}");
    }
    Ok(results)
}

/// The whole life of a worker: `args` are the role and its parameters.
pub fn worker_main(args: &[String]) -> ExitCode {
    proc::worker_main(args, rows::worker)
}

fn choose(names: &[String]) -> Result<Vec<&'static Row>> {
    if names.is_empty() {
        return Ok(rows::ROWS.to_vec());
    }
    names
        .iter()
        .map(|name| match rows::ROWS.iter().find(|row| row.name == name) {
            Some(row) => Ok(*row),
            None => {
                let known: Vec<&str> = rows::ROWS.iter().map(|row| row.name).collect();
                Err(Unknown(format!("there is no row {name}; there are {}", known.join(", "))).into())
            }
        })
        .collect()
}

/// One JSON object a line, as soon as a case is done.
struct JsonLines;

impl Watch for JsonLines {
    fn row(&mut self, row: &Row, _: usize, _: usize, _: Duration) {
        for (name, value) in row.stated {
            eprintln!("{}: {name}: {value}", row.name);
        }
    }
    fn step(&mut self, _: &str, _: &str, _: usize, _: usize) {}
    fn case(&mut self, row: &Row, result: &CaseResult) {
        for record in record::of_case(row.name, result) {
            print_record(&record);
        }
        for engine in &result.engines {
            let at = format!("{} {} {}", row.name, result.case, engine.engine);
            match &engine.reason {
                Some(reason) => eprintln!("{at}: skipped: {reason}"),
                None if engine.figures.is_empty() => eprintln!("{at}: no figures"),
                None => {}
            }
        }
    }
    fn done(&mut self, row: &Row, result: &RowResult) {
        for note in &result.notes {
            eprintln!("{}: {note}", row.name);
        }
    }
}

fn print_record(record: &Record) {
    match serde_json::to_string(record) {
        Ok(line) => println!("{line}"),
        Err(error) => eprintln!("{error}"),
    }
}
