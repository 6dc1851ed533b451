//! `cargo xtask conformance`: docs/conformance.md, the table of every rule and of what each implementation answered.

use std::fs;

use anyhow::{Context, Result};

use crate::shell::{self, command};

/// Runs `cargo xtask conformance`. Writes nothing when an answer is wrong.
pub fn run() -> Result<()> {
    let mut suite =
        command("cargo", ["run", "--quiet", "--package", "onecopy-conformance", "--", "--markdown"]);
    let table = shell::output(&mut suite)?;
    let path = shell::root().join("docs/conformance.md");
    fs::write(&path, &table).with_context(|| path.display().to_string())?;
    print!("{table}");
    println!("written: docs/conformance.md");
    Ok(())
}
