//! What `cargo xtask man` and `cargo xtask results` write is what is checked in.

use super::Outcome;
use crate::{man, results};

pub fn run() -> anyhow::Result<Outcome> {
    results::run(&results::Args { check: true })?;
    man::run(&man::Args { check: true })?;
    Ok(Outcome::Passed)
}
