//! `cargo xtask`: the chores of this project, the same on a desk and in CI.
//!
//! It depends on no room of the project: what it needs from one it gets by running it. So it builds in seconds,
//! and still starts when a room doesn't compile.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod api;
mod conformance;
mod fuzz;
mod gpu_check;
mod man;
mod packetdrill;
mod python;
mod results;
mod shell;
mod soak;
mod test;
mod trouble;

/// The chores of this project.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Everything that has to hold before a commit lands: formatting, lints, tests, models, docs.
    Test(test::Args),
    /// Run the conformance suites, print their table and write it to docs/conformance.md.
    Conformance,
    /// A hostile peer for a long time, from a seed.
    Fuzz(fuzz::Args),
    /// Every path to a CUDA device, checked against sums: on one, or on a stand-in for its driver.
    GpuCheck(gpu_check::Args),
    /// Many connections for a long time, with random kills: then nothing may be left.
    Soak(soak::Args),
    /// TCP of our own through loss, reordering, duplication and damage, a million times.
    Trouble(trouble::Args),
    /// packetdrill's scripts on our TCP, in virtual time; or on the kernel's.
    Packetdrill(packetdrill::Args),
    /// Write docs/api.txt: every item that a user of the library can reach.
    Api(api::Args),
    /// Write the manual pages and shell completions below docs/ from the program's flags.
    Man(man::Args),
    /// Write the README's tables of results from the records of bench/record.
    Results(results::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().chore {
        Chore::Test(args) => test::run(&args),
        Chore::Conformance => conformance::run(),
        Chore::Fuzz(args) => fuzz::run(&args),
        Chore::GpuCheck(args) => gpu_check::run(&args),
        Chore::Soak(args) => soak::run(&args),
        Chore::Trouble(args) => trouble::run(&args),
        Chore::Packetdrill(args) => packetdrill::run(&args),
        Chore::Api(args) => api::chore(&args),
        Chore::Man(args) => man::run(&args),
        Chore::Results(args) => results::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
