//! The soak for a moment: a tenth of its connections, all of its traffic and kills. Each run has another seed, which a
//! failure names.

use anyhow::{Context, ensure};
use serde_json::Value;

use super::Outcome;
use crate::shell::{self, command, run as sh};

/// Seconds after which it counts as hung.
const LIMIT: &str = "480";

pub fn run() -> anyhow::Result<Outcome> {
    sh(&mut command("cargo", ["build", "--package", "onecopy-soak", "--quiet"]))?;
    let mut soak = command("timeout", ["--kill-after=5", LIMIT]);
    soak.arg(shell::target().join("debug/onecopy-soak"));
    let line = shell::output(soak.args([
        "--seconds",
        "30",
        "--connections",
        "100",
        "--kill-every",
        "300",
        "--json",
    ]))?;
    let summary: Value = serde_json::from_str(&line).with_context(|| format!("not a summary: {line}"))?;
    let ended = &summary["survivor"]["ended"];
    println!("{ended} connections lived to their end, {} bytes", summary["survivor"]["bytes"]);
    ensure!(ended.as_u64().is_some_and(|n| n > 0), "no connection lived to its end");
    ensure!(summary["counts"].as_u64().is_some_and(|n| n > 1), "what is left was counted only once");
    Ok(Outcome::Passed)
}
