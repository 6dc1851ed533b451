//! Lints; what is denied stands in the root Cargo.toml and in clippy.toml.

use super::Outcome;
use crate::shell::{command, run as sh};

pub fn run() -> anyhow::Result<Outcome> {
    sh(&mut command(
        "cargo",
        ["clippy", "--workspace", "--all-targets", "--all-features", "--quiet", "--", "-D", "warnings"],
    ))?;
    Ok(Outcome::Passed)
}
