//! `cargo xtask soak`: many connections for a long time, with random kills; then nothing may be left.

use crate::shell::{command, run as sh};

/// Flags of `cargo xtask soak`; `--help` behind `--` tells those of the program itself.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How long
    #[arg(long, value_name = "N", default_value_t = 600)]
    seconds: u64,
    /// Connections that live at any moment
    #[arg(long, value_name = "N", default_value_t = 1000)]
    connections: u64,
    /// Repeat the plans of a run
    #[arg(long)]
    seed: Option<u64>,
    /// Tell the outcome as one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs it, optimised.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut soak = command("cargo", ["run", "--release", "--quiet", "--package", "onecopy-soak", "--"]);
    soak.args(["--seconds", &args.seconds.to_string()]);
    soak.args(["--connections", &args.connections.to_string()]);
    if let Some(seed) = args.seed {
        soak.args(["--seed", &seed.to_string()]);
    }
    soak.args(args.json.then_some("--json"));
    sh(&mut soak)
}
