//! `cargo xtask man`: docs/man and docs/completions, written by the program itself from its flags' one definition.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::shell;

/// Flags of `cargo xtask man`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write nothing; fail when what is checked in differs from what the program says of itself.
    #[arg(long)]
    pub check: bool,
}

/// The folders below docs/ that `onecopy generate` fills.
const FOLDERS: [&str; 2] = ["man", "completions"];

/// Runs `cargo xtask man`.
pub fn run(args: &Args) -> Result<()> {
    // With the features of the whole workspace, because that is what the tests have built already.
    let mut build =
        shell::command("cargo", ["build", "--workspace", "--all-features", "--quiet", "--bin", "onecopy"]);
    shell::run(&mut build)?;
    let fresh = shell::target().join("generated");
    match fs::remove_dir_all(&fresh) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| fresh.display().to_string());
        }
        _ => {}
    }
    let program = shell::target().join("debug/onecopy");
    let program = program.to_str().context("the target folder's path is not UTF-8")?;
    shell::run(shell::command(program, ["generate"]).arg(&fresh))?;

    let docs = shell::root().join("docs");
    let mut stale = Vec::new();
    for folder in FOLDERS {
        let (from, to) = (fresh.join(folder), docs.join(folder));
        let (new, old) = (names(&from)?, names(&to)?);
        for name in new.union(&old) {
            let (made, kept) = (fs::read(from.join(name)).ok(), fs::read(to.join(name)).ok());
            if made == kept {
                continue;
            }
            stale.push(format!("docs/{folder}/{name}"));
            if !args.check {
                write(&to.join(name), made.as_deref())?;
            }
        }
    }
    match (stale.is_empty(), args.check) {
        (true, _) => println!("docs/man and docs/completions are up to date"),
        (false, false) => println!("written: {}", stale.join(", ")),
        (false, true) => bail!("out of date: {}; run `cargo xtask man`", stale.join(", ")),
    }
    Ok(())
}

/// The names in a folder; none when it does not exist.
fn names(folder: &Path) -> Result<BTreeSet<String>> {
    if !folder.exists() {
        return Ok(BTreeSet::new());
    }
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Writes the file, or removes it when there is nothing to write.
fn write(path: &Path, content: Option<&[u8]>) -> Result<()> {
    let done = match content {
        Some(content) => fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))
            .and_then(|()| fs::write(path, content)),
        None => fs::remove_file(path),
    };
    done.with_context(|| path.display().to_string())
}
