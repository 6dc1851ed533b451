//! The documentation of every room, private items' links included.

use super::Outcome;
use crate::shell::{command, run as sh};

pub fn run() -> anyhow::Result<Outcome> {
    // Not at once: the program has the library's name, and both are written to one folder.
    for what in [["--package", "onecopy-cli"], ["--workspace", "--exclude=onecopy-cli"]] {
        let mut doc = command("cargo", ["doc"]);
        doc.args(what).args(["--no-deps", "--all-features", "--document-private-items", "--quiet"]);
        sh(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    }
    Ok(Outcome::Passed)
}
