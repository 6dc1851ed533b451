//! `cargo xtask test`: one step a file, in the order of what is cheapest to learn first.
//!
//! A failed step does not stop the others: on a small machine a run takes minutes, and who broke two things
//! wants to hear of both. The exit code tells of any failure.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

mod aarch64;
mod apart;
mod api;
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
mod python;
mod rooms;
mod soak;
mod sum;
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
    /// As `Tests`, but for what this machine lacks, so that it could not be tried.
    Partly(u64, Vec<String>),
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
    Step { name: "python", about: "the Python package: its tests and its types", run: python::run },
    Step { name: "examples", about: "each example runs and checks itself", run: examples::run },
    Step {
        name: "generated",
        about: "manual pages and completions match the flags, and results the records",
        run: generated::run,
    },
    Step { name: "api", about: "docs/api.txt matches what the library offers", run: api::run },
    Step { name: "docs", about: "documentation builds without a warning", run: docs::run },
    Step { name: "deny", about: "licences, bans and sources of dependencies", run: deny::run },
];

/// What stands behind every run, whichever steps were asked for.
const LAST: (&str, &str) = ("leftovers", "nothing stays behind: files, shared memory, processes");

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
        println!("{:12} {} (after every run)", LAST.0, LAST.1);
        return Ok(());
    }
    let known = |name: &str| name == LAST.0 || STEPS.iter().any(|step| step.name == name);
    if let Some(unknown) = args.steps.iter().find(|name| !known(name)) {
        bail!("there is no step {unknown:?}: `cargo xtask test --list` names them");
    }
    let (asked, left_out): (Vec<_>, Vec<_>) = STEPS
        .iter()
        .partition(|step| args.steps.is_empty() || args.steps.iter().any(|name| name == step.name));

    let started = Instant::now();
    let watch = leftovers::Watch::start()?;
    let mut ended: Vec<Ended> = asked.into_iter().map(run_step).collect();
    ended.push(timed(LAST.0, LAST.1, || watch.finish()));
    let left_out: Vec<_> = left_out.iter().map(|step| step.name).collect();
    let (summary, result) = close(&ended, &left_out, started.elapsed());
    print!("\n{summary}");
    result
}

/// The summary: each step with its time, and why it was skipped or what failed; and how the whole run ends.
fn close(ended: &[Ended], left_out: &[&str], took: Duration) -> (String, Result<()>) {
    let mut lines = vec!["== summary".to_owned()];
    lines.extend(ended.iter().map(|end| {
        let (name, seconds) = (end.name, end.took.as_secs_f64());
        match &end.result {
            Ok(Outcome::Passed) => format!("   passed   {name:12} {seconds:7.1} s"),
            Ok(Outcome::Tests(count)) => format!("   passed   {name:12} {seconds:7.1} s  {count} tests"),
            Ok(Outcome::Partly(count, lacking)) => {
                let lacking = lacking.join("; ");
                format!(
                    "   passed   {name:12} {seconds:7.1} s  {count} tests; not tried, for lack of {lacking}"
                )
            }
            Ok(Outcome::Skipped(why)) => format!("   skipped  {name:12} {seconds:7.1} s  {why}"),
            Err(error) => format!("   FAILED   {name:12} {seconds:7.1} s  {error:#}"),
        }
    }));
    if !left_out.is_empty() {
        lines.push(format!("   not asked for: {}", left_out.join(", ")));
    }
    let skipped = ended.iter().filter(|end| matches!(end.result, Ok(Outcome::Skipped(_)))).count();
    let failed = ended.iter().filter(|end| end.result.is_err()).count();
    let passed = ended.len() - skipped - failed;
    lines.push(format!("   in {:.0} s", took.as_secs_f64()));
    lines.push(format!("steps: {passed} passed, {failed} failed, {skipped} skipped\n"));
    let result = match failed {
        0 => Ok(()),
        _ => Err(anyhow!("{failed} of {} steps failed", ended.len())),
    };
    (lines.join("\n"), result)
}

fn run_step(step: &Step) -> Ended {
    timed(step.name, step.about, step.run)
}

fn timed(name: &'static str, about: &str, run: impl FnOnce() -> Result<Outcome>) -> Ended {
    println!("\n== {name}: {about}");
    let started = Instant::now();
    let result = run();
    match &result {
        Ok(Outcome::Passed | Outcome::Tests(_) | Outcome::Partly(..)) => {}
        Ok(Outcome::Skipped(why)) => println!("skipped: {why}"),
        Err(error) => println!("FAILED: {error:#}"),
    }
    Ended { name, result, took: started.elapsed() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell;

    fn step(name: &'static str, run: impl FnOnce() -> Result<Outcome>) -> Ended {
        timed(name, "", run)
    }

    #[test]
    fn what_is_lacking_stands_in_the_summary() {
        let ended = [step("unit", || Ok(Outcome::Partly(7, vec!["a moon".into(), "a sun".into()])))];
        let (text, result) = close(&ended, &[], Duration::ZERO);
        assert!(result.is_ok() && text.contains("7 tests; not tried, for lack of a moon; a sun"), "{text}");
    }

    #[test]
    fn one_failed_step_fails_the_run_and_each_is_told_with_its_time() {
        let good = || {
            vec![
                step("fmt", || Ok(Outcome::Passed)),
                step("unit", || Ok(Outcome::Tests(7))),
                step("deny", || Ok(Outcome::Skipped("no cargo-deny".into()))),
            ]
        };
        let took = Duration::from_secs(61);
        let (text, result) = close(&good(), &["loom"], took);
        assert!(result.is_ok());
        assert!(text.ends_with("   in 61 s\nsteps: 2 passed, 0 failed, 1 skipped\n"), "{text}");
        assert!(text.contains("not asked for: loom"), "{text}");
        let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap_or_default();
        assert!(line("unit").contains(" 0.0 s  7 tests") && line("deny").ends_with(" 0.0 s  no cargo-deny"));

        let broken = step("soak", || shell::run(&mut shell::command("false", [])).map(|()| Outcome::Passed));
        let mut ended = good();
        ended.push(broken);
        let (text, result) = close(&ended, &[], took);
        assert!(result.is_err_and(|error| error.to_string() == "1 of 4 steps failed"));
        assert!(
            text.contains("   FAILED   soak ") && text.contains("false ended with exit status: 1"),
            "{text}"
        );
    }
}
