//! `onecopy bench`.

use std::path::PathBuf;

use onecopy_bench::proc::Launcher;
use onecopy_bench::row::Scale;
use onecopy_bench::runner::Choice;
use onecopy_bench::{Options, Unknown, rows, worker_main};

use crate::failure::Usage;

/// Flags of `onecopy bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The rows to run; all of them if none is named. `--list` shows them
    #[arg(value_name = "ROW")]
    rows: Vec<String>,
    /// Less work, the same shape: for a first look
    #[arg(long)]
    quick: bool,
    /// Least of all work, and a part of the cases: does it run at all?
    #[arg(long, hide = true, conflicts_with_all = ["quick", "record", "report"])]
    smoke: bool,
    /// One JSON object a line on standard output instead of tables
    #[arg(long)]
    json: bool,
    /// Write the figures with plots as one self-contained HTML file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Append the figures to DIR/<date>-<machine>.csv
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "bench/record")]
    record: Option<PathBuf>,
    /// Rounds after the warm-up
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Only cases whose name contains this; may be given several times
    #[arg(long = "case", value_name = "PART")]
    cases: Vec<String>,
    /// Only this engine and each case's baseline; may be given several times
    #[arg(long = "engine", value_name = "NAME")]
    engines: Vec<String>,
    /// Name the rows and what they do
    #[arg(long)]
    list: bool,
    /// Be a worker of the bench: a role and its parameters
    #[arg(long, hide = true, num_args = 2, value_names = ["ROLE", "JSON"])]
    worker: Option<Vec<String>>,
}

/// Runs `onecopy bench`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(worker) = &args.worker {
        // A worker has printed its error already, and its exit status is all that is left to say.
        match worker_main(worker) {
            std::process::ExitCode::SUCCESS => return Ok(()),
            _ => std::process::exit(1),
        }
    }
    if args.list {
        for row in rows::ROWS {
            println!("{:<11} {}", row.name, row.about);
        }
        return Ok(());
    }
    let options = Options {
        rows: args.rows.clone(),
        scale: match (args.smoke, args.quick) {
            (true, _) => Scale::Smoke,
            (false, true) => Scale::Quick,
            (false, false) => Scale::Full,
        },
        choice: Choice {
            rounds: args.rounds as usize,
            cases: args.cases.clone(),
            engines: args.engines.clone(),
        },
        json: args.json,
        report: args.report.clone(),
        record: args.record.clone(),
        launcher: Launcher::current_exe(&["bench", "--worker"])?,
    };
    crate::process::measure("onecopy bench", move || {
        onecopy_bench::run(&options).map(drop).map_err(|error| match error.downcast::<Unknown>() {
            Ok(unknown) => Usage(unknown.to_string()).into(),
            Err(error) => error,
        })
    })
}
