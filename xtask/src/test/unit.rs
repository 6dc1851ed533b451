//! Unit, integration and documentation tests of every room. The conformance suites have a step of their own.

use super::Outcome;
use crate::shell::{command, run as sh};

pub fn run() -> anyhow::Result<Outcome> {
    // --no-fail-fast for the reason that the whole run goes on after a failure: hear of all of them at once.
    sh(&mut command(
        "cargo",
        [
            "test",
            "--workspace",
            "--exclude",
            "onecopy-conformance",
            "--all-features",
            "--no-fail-fast",
            "--quiet",
        ],
    ))?;
    Ok(Outcome::Passed)
}
