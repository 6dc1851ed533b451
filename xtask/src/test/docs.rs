//! The documentation of every room, private items' links included.

use super::Outcome;
use crate::shell::{command, run as sh};

pub fn run() -> anyhow::Result<Outcome> {
    let mut doc = command(
        "cargo",
        ["doc", "--workspace", "--no-deps", "--all-features", "--document-private-items", "--quiet"],
    );
    sh(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    Ok(Outcome::Passed)
}
