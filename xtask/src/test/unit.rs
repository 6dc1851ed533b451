//! Unit, integration and documentation tests of every room. The conformance suites and the
//! fuzz target have steps of their own.

use super::{Outcome, apart};

pub fn run() -> anyhow::Result<Outcome> {
    let what =
        ["--workspace", "--exclude", "onecopy-conformance", "--exclude", "onecopy-fuzz", "--all-features"];
    apart::run(&what, false, |_| true)
}
