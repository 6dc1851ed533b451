//! Unit, integration and documentation tests of every room. The conformance suites and the
//! fuzz target have steps of their own.

use super::{Outcome, ran};
use crate::shell::{command, run as sh};

/// What is tested; both commands have to say the same, or the second builds everything again.
const WHAT: [&str; 6] =
    ["--workspace", "--exclude", "onecopy-conformance", "--exclude", "onecopy-fuzz", "--all-features"];

pub fn run() -> anyhow::Result<Outcome> {
    // Built first by a command of its own, which shows that it is alive; the tests are then quiet unless they fail.
    sh(command("cargo", ["test", "--no-run"]).args(WHAT))?;
    // --no-fail-fast for the reason that the whole run goes on after a failure: hear of all of them at once.
    ran(command("cargo", ["test", "--quiet", "--no-fail-fast"]).args(WHAT))
}
