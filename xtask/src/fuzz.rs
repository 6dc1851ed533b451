//! `cargo xtask fuzz`: a peer that does anything at all, for long: over a unix socket, and over TCP of our own.

use crate::shell::{command, run as sh};

/// Flags of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Steps of peers and victims together
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    steps: u64,
    /// From which seed on: a failure names the one that repeats it
    #[arg(long)]
    seed: Option<u64>,
}

/// Plays, optimised, with overflows and assertions checked.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut play = command("cargo", ["test", "--profile", "fuzz", "--quiet", "--package", "onecopy-fuzz"]);
    play.args(["--test", "hostile_peer", "--test", "tcp_segments", "--", "--nocapture"]);
    play.env("FUZZ_STEPS", args.steps.to_string());
    if let Some(seed) = args.seed {
        play.env("FUZZ_SEED", seed.to_string());
    }
    sh(&mut play)
}
