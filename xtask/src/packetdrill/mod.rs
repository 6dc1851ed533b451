//! `cargo xtask packetdrill`: packetdrill's scripts on our TCP, or on the kernel's, each in a network namespace of its own.
//!
//! packetdrill itself is no part of this project. It is built elsewhere (`./configure && make packetdrill` in gtests/net/packetdrill of
//! github.com/google/packetdrill; bison and flex are needed), and named by `--bin`.

mod expected;
mod script;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::shell;
use expected::Expected;
use script::{Outcome, Runner, Script};

/// Flags of `cargo xtask packetdrill`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// packetdrill, as it was built
    #[arg(long, value_name = "FILE")]
    bin: PathBuf,
    /// Folder of scripts (*.pkt), searched through
    #[arg(long, value_name = "DIR")]
    scripts: PathBuf,
    /// Run them on the kernel of this machine, as oracle
    #[arg(long)]
    kernel: bool,
    /// Scripts at once [default: as many as there are CPUs; 1 on the kernel, where time passes]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// A script that takes longer has failed
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    limit: u64,
    /// By how much events may come early or late
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 14_000)]
    tolerance: u32,
    /// Each line that fails, with all that packetdrill said
    #[arg(long, short)]
    verbose: bool,
    /// Tell the outcome as one JSON object
    #[arg(long)]
    json: bool,
    /// Only scripts whose path has one of these in it
    filter: Vec<String>,
}

/// Runs them; an error if one fails that packetdrill/expected.toml does not name.
pub fn run(args: &Args) -> Result<()> {
    let bin = args.bin.canonicalize().with_context(|| format!("--bin {}", args.bin.display()))?;
    let root =
        args.scripts.canonicalize().with_context(|| format!("--scripts {}", args.scripts.display()))?;
    let scripts: Vec<Script> = script::find(&root)?
        .into_iter()
        .filter(|script| args.filter.is_empty() || args.filter.iter().any(|part| script.name.contains(part)))
        .collect();
    ensure!(!scripts.is_empty(), "no script below {} matches; name another folder or filter", root.display());
    let object = if args.kernel { None } else { Some(build()?) };
    let runner = Runner {
        bin,
        namespace: script::namespace()?,
        object,
        limit: Duration::from_secs(args.limit),
        tolerance: args.tolerance,
    };
    let expected = if args.kernel {
        Expected::default()
    } else {
        Expected::read(&shell::root().join("packetdrill/expected.toml"))?
    };
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.unwrap_or(if args.kernel { 1 } else { cpus }).max(1);
    let outcomes = all(&runner, &scripts, jobs, |script, outcome| {
        if !args.json {
            println!("{}", line(script, outcome, &expected));
            if let (true, Outcome::Failed { said, .. }) = (args.verbose, outcome) {
                said.lines().for_each(|line| println!("    {line}"));
            }
        }
    });
    tell(args, &outcomes, &expected)
}

/// Builds the shared object that packetdrill loads, and says where it is.
fn build() -> Result<PathBuf> {
    let mut build = shell::command("cargo", ["build", "--quiet", "--package", "onecopy-packetdrill"]);
    ensure!(build.status().context("cargo")?.success(), "the shared object could not be built");
    let object = shell::target().join("debug/libonecopy_packetdrill.so");
    object.canonicalize().with_context(|| object.display().to_string())
}

/// Runs `scripts`, `jobs` at once, and shows each outcome as it comes. They are in the scripts' order.
fn all(
    runner: &Runner,
    scripts: &[Script],
    jobs: usize,
    show: impl Fn(&Script, &Outcome) + Sync,
) -> BTreeMap<String, Outcome> {
    let (next, outcomes) = (Mutex::new(scripts.iter()), Mutex::new(BTreeMap::new()));
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(script) = next.lock().ok().and_then(|mut next| next.next()) {
                    let outcome = runner.run(script);
                    if let Ok(mut outcomes) = outcomes.lock() {
                        show(script, &outcome);
                        outcomes.insert(script.name.clone(), outcome);
                    }
                }
            });
        }
    });
    outcomes.into_inner().unwrap_or_default()
}

/// One line for a person.
fn line(script: &Script, outcome: &Outcome, expected: &Expected) -> String {
    match (outcome, expected.reason(&script.name)) {
        (Outcome::Passed, None) => format!("pass  {}", script.name),
        (Outcome::Passed, Some(_)) => {
            format!("pass  {} (which packetdrill/expected.toml does not expect)", script.name)
        }
        (Outcome::Skipped { why }, _) => format!("skip  {}: {why}", script.name),
        (Outcome::Failed { why, .. }, None) => format!("FAIL  {}: {why}", script.name),
        (Outcome::Failed { .. }, Some(reason)) => format!("known {}: {reason}", script.name),
    }
}

/// The summary, and whether it is as expected.
fn tell(args: &Args, outcomes: &BTreeMap<String, Outcome>, expected: &Expected) -> Result<()> {
    let count = |kind: &str| outcomes.values().filter(|outcome| outcome.kind() == kind).count();
    let failed = |known: bool| {
        let failed = outcomes.iter().filter(|(_, outcome)| outcome.kind() == "failed");
        failed.map(|(name, _)| name).filter(move |name| expected.reason(name).is_some() == known)
    };
    let (known, unexpected): (Vec<_>, Vec<_>) = (failed(true).collect(), failed(false).collect());
    if args.json {
        let scripts: Vec<_> = outcomes
            .iter()
            .map(|(name, outcome)| {
                json!({
                    "name": name,
                    "outcome": outcome.kind(),
                    "reason": outcome.why(),
                    "expected": expected.reason(name),
                })
            })
            .collect();
        let report = json!({
            "stack": if args.kernel { "kernel" } else { "onecopy" },
            "passed": count("passed"),
            "failed": unexpected.len(),
            "known": known.len(),
            "skipped": count("skipped"),
            "scripts": scripts,
        });
        println!("{report:#}");
    } else {
        println!(
            "{} of {} passed, {} failed, {} failed as expected, {} skipped",
            count("passed"),
            outcomes.len(),
            unexpected.len(),
            known.len(),
            count("skipped")
        );
    }
    if !unexpected.is_empty() {
        bail!("{} scripts failed that packetdrill/expected.toml does not name", unexpected.len());
    }
    Ok(())
}
