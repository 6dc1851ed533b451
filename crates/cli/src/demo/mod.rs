//! `onecopy demo`: the whole road, beside the same over kernel sockets, in under a minute.

mod row;
mod table;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use onecopy_bench::proc::{Launcher, two_cpus};
use onecopy_bench::result::{CaseResult, RowResult};
use onecopy_bench::row::{Context, Row, Scale};
use onecopy_bench::runner::{Choice, Watch};
use onecopy_bench::{facts, record, report, runner};

use crate::terminal;

/// Flags of `onecopy demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Serve the files of this folder (the first 256 MiB of them) instead of files made for the demo
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Where the report goes: one HTML file with everything in it
    #[arg(long, value_name = "FILE", default_value = "demo.html")]
    report: PathBuf,
    /// One JSON object a line on standard output instead of a table
    #[arg(long)]
    json: bool,
    /// Rounds in which the ways take turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// A quarter of the work, for a first look
    #[arg(long)]
    quick: bool,
}

/// Runs `onecopy demo`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    row::choose(args.root.clone())?;
    report::prepare(&args.report)?;
    let args = args.clone();
    crate::process::measure("onecopy demo", move || measure(&args))
}

fn measure(args: &Args) -> anyhow::Result<()> {
    let context = Context {
        launcher: Launcher::current_exe(&["bench", "--worker"])?,
        scale: if args.quick { Scale::Quick } else { Scale::Full },
        cpus: two_cpus(),
    };
    let facts = facts::gather(&context, false);
    let choice = Choice { rounds: args.rounds as usize, ..Choice::default() };
    let mut watch = Progress::new(args.json);
    let result = runner::run(&row::ROW, &context, &choice, &mut watch);
    watch.bar.finish_and_clear();
    if !args.json {
        terminal::print(&table::text(&facts, &result))?;
    }
    report::write(&args.report, "onecopy demo", &facts, &[(&row::ROW, &result)])?;
    if !args.json {
        terminal::print(&format!("\nThe picture: {}\n", args.report.display()))?;
    }
    let broken =
        result.cases.iter().flat_map(|case| &case.engines).find_map(|e| Some((e.engine, e.reason.as_ref()?)));
    match broken {
        Some((engine, reason)) => anyhow::bail!("{engine} could not be measured: {reason}"),
        None => Ok(()),
    }
}

/// A bar on a terminal, and JSON lines as soon as there are some.
struct Progress {
    bar: ProgressBar,
    json: bool,
}

impl Progress {
    fn new(json: bool) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress { bar: ProgressBar::hidden(), json };
        }
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{bar:40.cyan/dim} {pos}/{len} rounds  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { bar, json }
    }
}

impl Watch for Progress {
    fn row(&mut self, _: &Row, _: usize, _: usize, _: Duration) {}

    fn step(&mut self, case: &str, engine: &str, done: usize, total: usize) {
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        self.bar.set_message(format!("{case}, {engine}"));
    }

    fn case(&mut self, row: &Row, result: &CaseResult) {
        if self.json {
            for record in record::of_case(row.name, result) {
                if let Ok(line) = serde_json::to_string(&record) {
                    println!("{line}");
                }
            }
        }
    }

    fn done(&mut self, _: &Row, _: &RowResult) {}
}
