//! `cargo xtask test`: one step a file, in the order of what is cheapest to learn first.
//!
//! A failed step does not stop the others: on a small machine a run takes minutes, and who broke two things
//! wants to hear of both. The exit code tells of any failure.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::shell;

mod aarch64;
mod bench;
mod clippy;
mod conformance;
mod deny;
mod docs;
mod examples;
mod fmt;
mod fuzz;
mod generated;
mod leftovers;
mod loom;
mod rooms;
mod soak;
mod unit;

/// Flags of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these steps (see --list); all of them when none is named.
    steps: Vec<String>,
    /// Name the steps and end.
    #[arg(long)]
    list: bool,
}

/// What a step did, when it did not fail.
pub enum Outcome {
    /// It ran, and all held.
    Passed,
    /// So many tests ran, and all held.
    Tests(u64),
    /// It could not run here: why, and how to change that.
    Skipped(String),
}

/// One step of the run.
struct Step {
    name: &'static str,
    about: &'static str,
    run: fn() -> Result<Outcome>,
}

const STEPS: &[Step] = &[
    Step { name: "fmt", about: "formatting", run: fmt::run },
    Step { name: "clippy", about: "lints, as errors, on all targets", run: clippy::run },
    Step { name: "rooms", about: "who depends on whom, and where unsafe code stands", run: rooms::run },
    Step { name: "unit", about: "unit, integration and documentation tests", run: unit::run },
    Step { name: "aarch64", about: "the AArch64 copy kernels, under an emulator", run: aarch64::run },
    Step { name: "conformance", about: "our sockets beside the kernel's", run: conformance::run },
    Step { name: "loom", about: "every interleaving of the lock-free rooms' models", run: loom::run },
    Step { name: "fuzz", about: "a hostile peer, for a moment", run: fuzz::run },
    Step { name: "soak", about: "many connections, for a moment: nothing is left", run: soak::run },
    Step { name: "bench", about: "each bench row, for a moment", run: bench::run },
    Step { name: "examples", about: "each example runs and checks itself", run: examples::run },
    Step { name: "generated", about: "manual pages and completions match the flags", run: generated::run },
    Step { name: "docs", about: "documentation builds without a warning", run: docs::run },
    Step { name: "deny", about: "licences, bans and sources of dependencies", run: deny::run },
];

/// A step's name, its end, and how long it took.
struct Ended {
    name: &'static str,
    result: Result<Outcome>,
    took: Duration,
}

/// Runs `cargo xtask test`.
pub fn run(args: &Args) -> Result<()> {
    if args.list {
        for step in STEPS {
            println!("{:12} {}", step.name, step.about);
        }
        return Ok(());
    }
    if let Some(unknown) = args.steps.iter().find(|name| !STEPS.iter().any(|step| step.name == **name)) {
        bail!("there is no step {unknown:?}: `cargo xtask test --list` names them");
    }
    let (asked, left_out): (Vec<_>, Vec<_>) = STEPS
        .iter()
        .partition(|step| args.steps.is_empty() || args.steps.iter().any(|name| name == step.name));

    let started = Instant::now();
    let watch = leftovers::Watch::start()?;
    let mut ended: Vec<Ended> = asked.into_iter().map(run_step).collect();
    ended
        .push(timed("leftovers", "nothing stays behind: files, shared memory, processes", || watch.finish()));

    println!("\n== summary");
    for end in &ended {
        let seconds = end.took.as_secs_f64();
        match &end.result {
            Ok(Outcome::Passed) => println!("   passed   {:12} {seconds:7.1} s", end.name),
            Ok(Outcome::Tests(count)) => {
                println!("   passed   {:12} {seconds:7.1} s  {count} tests", end.name)
            }
            Ok(Outcome::Skipped(why)) => println!("   skipped  {:12} {seconds:7.1} s  {why}", end.name),
            Err(error) => println!("   FAILED   {:12} {seconds:7.1} s  {error:#}", end.name),
        }
    }
    if !left_out.is_empty() {
        let names: Vec<_> = left_out.iter().map(|step| step.name).collect();
        println!("   not asked for: {}", names.join(", "));
    }
    let skipped = ended.iter().filter(|end| matches!(end.result, Ok(Outcome::Skipped(_)))).count();
    let failed = ended.iter().filter(|end| end.result.is_err()).count();
    let passed = ended.len() - skipped - failed;
    println!("   in {:.0} s", started.elapsed().as_secs_f64());
    println!("steps: {passed} passed, {failed} failed, {skipped} skipped");
    if failed > 0 {
        bail!("{failed} of {} steps failed", ended.len());
    }
    Ok(())
}

/// Runs a command that runs Rust tests. One that runs none has failed: a filter or a `cfg` left them all out.
fn ran(command: &mut Command) -> Result<Outcome> {
    let mut tests = 0;
    shell::watched(command, |line| {
        tests += passed_in(line);
        true
    })?;
    ensure!(tests > 0, "no test ran");
    Ok(Outcome::Tests(tests))
}

/// The tests that a test runner's closing line counts.
fn passed_in(line: &str) -> u64 {
    let Some(counts) = line.strip_prefix("test result: ok. ") else { return 0 };
    counts.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0)
}

fn run_step(step: &Step) -> Ended {
    timed(step.name, step.about, step.run)
}

fn timed(name: &'static str, about: &str, run: impl FnOnce() -> Result<Outcome>) -> Ended {
    println!("\n== {name}: {about}");
    let started = Instant::now();
    let result = run();
    match &result {
        Ok(Outcome::Passed | Outcome::Tests(_)) => {}
        Ok(Outcome::Skipped(why)) => println!("skipped: {why}"),
        Err(error) => println!("FAILED: {error:#}"),
    }
    Ended { name, result, took: started.elapsed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_counted() {
        assert_eq!(
            passed_in("test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"),
            12
        );
        assert_eq!(passed_in("test copy::tests::a ... ok"), 0);
    }

    #[test]
    fn a_run_without_a_test_has_failed() {
        assert!(ran(shell::command("echo", ["test result: ok. 0 passed; 0 failed"]).env_clear()).is_err());
        let all = ran(&mut shell::command(
            "echo",
            ["test result: ok. 3 passed; 0 failed\ntest result: ok. 4 passed;"],
        ));
        assert!(matches!(all, Ok(Outcome::Tests(7))));
    }
}
