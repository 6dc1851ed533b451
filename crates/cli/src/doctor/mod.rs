//! `onecopy doctor`: what this machine has, what each feature will use on it, and why not better.

mod copy;
mod feature;
mod machine;
mod print;
mod probe;
mod report;
mod size;

use report::Report;

/// Flags of `onecopy doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One JSON object instead of the report
    #[arg(long)]
    json: bool,
}

/// Runs `onecopy doctor`. A machine that lacks something is no failure: the report says so.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let machine = machine::Machine::read();
    let (copy, probes) = (copy::Copy::read(), probe::Probes::run(&machine));
    let features = feature::all(&machine, &copy, &probes);
    let report = Report { version: env!("CARGO_PKG_VERSION"), machine, copy, probes, features };
    if args.json {
        return crate::terminal::print(&format!("{}\n", serde_json::to_string_pretty(&report)?));
    }
    crate::terminal::print(&print::human(&report))
}
