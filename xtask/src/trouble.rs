//! `cargo xtask trouble`: TCP of our own through every impairment, a million times.

use crate::shell::{command, run as sh};

/// Flags of `cargo xtask trouble`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Connections, each of at least 64 KiB through at least 1 % loss
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    cases: u64,
    /// From which seed on, a seed a case: a failure names the one that repeats it
    #[arg(long)]
    seed: Option<u64>,
    /// Threads that play at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: u64,
}

/// Plays, optimised, with overflows and assertions checked.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut play = command("cargo", ["test", "--profile", "fuzz", "--quiet", "--package", "onecopy-fuzz"]);
    play.args(["--test", "tcp_trouble", "--", "--nocapture"]);
    play.env("TROUBLE_CASES", args.cases.to_string());
    play.env("TROUBLE_JOBS", args.jobs.to_string());
    if let Some(seed) = args.seed {
        play.env("TROUBLE_SEED", seed.to_string());
    }
    sh(&mut play)
}
