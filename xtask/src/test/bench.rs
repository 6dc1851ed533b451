//! Every bench row, for a moment: does it run, does each of its engines, and are its records what they should be? No figure
//! is judged here.

use std::collections::BTreeSet;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::Outcome;
use crate::shell::{self, command, run as sh};

/// Seconds that all rows together may take before they count as hung.
const LIMIT: &str = "900";

/// The fields of a record that are texts, and those that are numbers (or null, where there is nothing to compare).
const TEXTS: [&str; 5] = ["bench", "case", "engine", "metric", "unit"];
const NUMBERS: [&str; 4] = ["median", "low", "high", "rounds"];

pub fn run() -> anyhow::Result<Outcome> {
    sh(&mut command("cargo", ["build", "--release", "--package", "onecopy-cli", "--quiet"]))?;
    let program = shell::target().join("release/onecopy");
    let rows = shell::output(command("timeout", [LIMIT]).arg(&program).args(["bench", "--list"]))?;
    let rows: BTreeSet<&str> = rows.lines().filter_map(|line| line.split_whitespace().next()).collect();
    ensure!(!rows.is_empty(), "`onecopy bench --list` names no row");

    // Once, with all that it checks: what it costs is setting up and verifying, whatever the rounds do.
    let mut bench = command("timeout", ["--kill-after=5", LIMIT]);
    bench.arg(&program).args(["bench", "--smoke", "--rounds", "1", "--json"]);
    let (records, said) = shell::both(&mut bench)?;
    let mut seen = BTreeSet::new();
    for line in records.lines() {
        let record: Value = serde_json::from_str(line).with_context(|| format!("not a record: {line}"))?;
        let text = TEXTS.iter().find(|name| !record[**name].is_string());
        let number = NUMBERS.iter().find(|name| !record[**name].is_number());
        if let Some(name) = text.or(number) {
            bail!("a record without a proper {name:?}: {line}");
        }
        seen.insert(record["bench"].as_str().unwrap_or_default().to_owned());
    }
    let wrong: Vec<_> = said.lines().filter(|line| is_fault(line)).collect();
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{} records of the rows {}", records.lines().count(), Vec::from_iter(seen.clone()).join(", "));
    let silent: Vec<_> = rows.into_iter().filter(|row| !seen.contains(*row)).collect();
    ensure!(silent.is_empty(), "rows without a record: {}", silent.join(", "));
    Ok(Outcome::Passed)
}

/// Rivals that need not be there, or that this user may not start.
const OPTIONAL: [&str; 3] = ["nginx", "nginx-log", "kernel-512"];

/// What a reason says where a rival, a right or a device is missing, which is no fault of the row. (The last one: memory of devices is
/// nothing for the kernel's TCP through io_uring.)
const MISSING: [&str; 5] = [
    "is not built",
    "needs root",
    "there is no ip (iproute2)",
    "a TAP needs",
    "the kernel carries its bytes",
];

/// What no record says: that an engine did not run for a reason which is a fault, or gave no figure, or that a case was left out.
fn is_fault(line: &str) -> bool {
    if let Some((who, reason)) = line.split_once(": skipped: ") {
        let engine = who.rsplit(' ').next().unwrap_or_default();
        return !OPTIONAL.contains(&engine) && !MISSING.iter().any(|missing| reason.contains(missing));
    }
    line.ends_with(": no figures") || line.contains("time was over before the case")
}

#[cfg(test)]
mod tests {
    use super::is_fault;

    #[test]
    fn a_rival_that_is_missing_is_no_fault_and_all_else_is() {
        let fine = [
            "http file/64K/plain nginx: skipped: nginx is not installed (apt-get install nginx)",
            "reference 64 iceoryx2: skipped: the rival is not built: cargo build",
            "copy: others were running before 3 of 8 rounds: leave the machine alone for figures that count",
        ];
        let faults = [
            "http file/64K/plain auto: skipped: verification failed: 0.bin differs from the file",
            "unix-bulk 8000 auto: no figures",
            "tcp: the row's time was over before the case recv/16",
        ];
        assert!(!fine.into_iter().any(is_fault));
        assert!(faults.into_iter().all(is_fault));
    }
}
