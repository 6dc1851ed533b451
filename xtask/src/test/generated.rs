//! What `cargo xtask man` writes is what is checked in.

use super::Outcome;
use crate::man;

pub fn run() -> anyhow::Result<Outcome> {
    man::run(&man::Args { check: true })?;
    Ok(Outcome::Passed)
}
