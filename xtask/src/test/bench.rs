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

    let mut bench = command("timeout", ["--kill-after=5", LIMIT]);
    bench.arg(&program).args(["bench", "--quick", "--rounds", "1", "--json"]);
    let records = shell::output(&mut bench)?;
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
    smoke()?;
    println!("{} records of the rows {}", records.lines().count(), Vec::from_iter(seen.clone()).join(", "));
    let silent: Vec<_> = rows.into_iter().filter(|row| !seen.contains(*row)).collect();
    ensure!(silent.is_empty(), "rows without a record: {}", silent.join(", "));
    Ok(Outcome::Passed)
}

/// What no record says: an engine that did not run has a reason which is no fault of the row.
fn smoke() -> anyhow::Result<()> {
    let mut smoke =
        command("cargo", ["test", "--release", "--package", "onecopy-bench", "--test", "smoke", "--quiet"]);
    sh(smoke.args(["--", "--ignored", "--exact", "every_row_runs"]))
}
