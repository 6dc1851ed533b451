//! Formatting.

use super::Outcome;
use crate::shell::{command, run as sh};

pub fn run() -> anyhow::Result<Outcome> {
    sh(&mut command("cargo", ["fmt", "--all", "--check"]))?;
    Ok(Outcome::Passed)
}
