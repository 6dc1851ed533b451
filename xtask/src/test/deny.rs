//! Licences, bans and sources of dependencies; deny.toml says why advisories are not here.

use super::Outcome;
use crate::shell::{command, has_cargo, run as sh};

pub fn run() -> anyhow::Result<Outcome> {
    if !has_cargo("deny") {
        return Ok(Outcome::Skipped(
            "cargo-deny is not installed: `cargo install --locked cargo-deny`, or see .ci/run".into(),
        ));
    }
    sh(&mut command("cargo", ["deny", "--log-level", "error", "check", "bans", "licenses", "sources"]))?;
    Ok(Outcome::Passed)
}
