//! `onecopy doctor`: what this machine has, what each feature will use on it, and why not better.

use serde::Serialize;

mod copy;
mod feature;
mod machine;
mod print;
mod probe;

/// Flags of `onecopy doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One JSON object instead of the report
    #[arg(long)]
    json: bool,
}

/// All that `onecopy doctor` tells.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    machine: machine::Machine,
    copy: copy::Copy,
    probes: probe::Probes,
    features: Vec<feature::Feature>,
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
