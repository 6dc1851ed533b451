//! `cargo xtask api`: docs/api.txt, every item that a user of the crate `onecopy` can reach, with all features.
//!
//! rustdoc's JSON is unstable, so it takes `RUSTC_BOOTSTRAP=1` to have it from a stable toolchain, and each release may
//! have another format. Only rustdoc gets that variable: with it in the environment, build scripts would run anew.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use public_api::Builder;
use serde_json::Value;

use crate::shell;

mod lines;
mod merge;

/// Flags of `cargo xtask api`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write nothing; fail when what is checked in differs from what the crate offers.
    #[arg(long)]
    pub check: bool,
}

/// The crate that applications hold.
const CRATE: &str = "onecopy";

/// The format of rustdoc's JSON that public-api reads, and a toolchain that writes it.
const FORMAT: (u64, &str) = (57, "Rust 1.95");

/// The file, in the folder of the project.
const FILE: &str = "docs/api.txt";

/// What stands above the list.
const HEAD: &str = "\
# Every item that a user of the crate `onecopy` can reach, with all features. `cargo xtask api` writes this file, and
# `cargo xtask test api` compares it: what changes here is what CHANGELOG.md has to tell, and what a version number means.
#
# A path is the shortest one; one of std is what rustdoc calls it. Left out are methods of implemented traits, what every type
# implements, and auto traits but for Send and Sync.
";

/// What stands before the release that wrote the file. Another one may give items of std another path.
const WRITTEN: &str = "# Written with Rust ";

/// What became of it.
pub enum Ended {
    /// The file is as the crate is; or it was written.
    Done,
    /// This toolchain's rustdoc cannot tell: why.
    Cannot(String),
}

/// Runs `cargo xtask api`.
pub fn chore(args: &Args) -> Result<()> {
    match run(args)? {
        Ended::Done => Ok(()),
        Ended::Cannot(why) => bail!("{why}"),
    }
}

/// As [`chore`], but what this machine lacks is no error.
pub fn run(args: &Args) -> Result<Ended> {
    let listed = match list()? {
        Ok(listed) => listed,
        Err(why) => return Ok(Ended::Cannot(why)),
    };
    let path = shell::root().join(FILE);
    let kept = match fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        kept => kept.with_context(|| FILE.to_owned())?,
    };
    let (before, kept) = written_with(&kept);
    if kept == listed {
        println!("{FILE} is up to date");
        return Ok(Ended::Done);
    }
    print!("{}", difference(kept, &listed));
    let release = release()?;
    if !args.check {
        let text = format!("{HEAD}{WRITTEN}{release}\n\n{listed}");
        fs::write(&path, text).with_context(|| FILE.to_owned())?;
        println!("written: {FILE}");
        return Ok(Ended::Done);
    }
    if before != release {
        return Ok(Ended::Cannot(format!(
            "{FILE} was written with Rust {before}, and this is {release}, which gives other lines: only the same release tells \
             whether the library has changed"
        )));
    }
    bail!("{FILE} is out of date; `cargo xtask api` writes it, if the change is meant")
}

/// The release that wrote the file, and its list.
fn written_with(text: &str) -> (&str, &str) {
    let (_, rest) = text.split_once(WRITTEN).unwrap_or_default();
    rest.split_once("\n\n").unwrap_or_default()
}

/// The release of the toolchain, such as 1.95 or 1.97.0-nightly.
fn release() -> Result<String> {
    let said = shell::output(&mut shell::command("rustc", ["--version"]))?;
    let version = said.split(' ').nth(1).with_context(|| format!("rustc calls itself {said:?}"))?;
    let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
    Ok(if version.contains('-') { version } else { minor }.to_owned())
}

/// The lines that are only in one of the two.
fn difference(old: &str, new: &str) -> String {
    let lines = |text: &'_ str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (old, new) = (lines(old), lines(new));
    let gone = old.difference(&new).map(|line| format!("- {line}\n"));
    let come = new.difference(&old).map(|line| format!("+ {line}\n"));
    let (gone, come): (Vec<_>, Vec<_>) = (gone.collect(), come.collect());
    match (gone.is_empty(), come.is_empty()) {
        (true, true) => "the same lines in another order\n".to_owned(),
        _ => format!("removed: {}\n{}added: {}\n{}", gone.len(), gone.concat(), come.len(), come.concat()),
    }
}

/// The list that belongs into the file; or why this toolchain cannot tell.
fn list() -> Result<Result<String, String>> {
    let crates = crates()?;
    document(&crates)?;
    let mut all = Vec::new();
    for name in &crates {
        let file = shell::target().join(format!("doc/{}.json", name.replace('-', "_")));
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let said: Value = serde_json::from_str(&text).with_context(|| file.display().to_string())?;
        let format = said.get("format_version").and_then(Value::as_u64).unwrap_or_default();
        if format != FORMAT.0 {
            let (wanted, from) = FORMAT;
            return Ok(Err(format!(
                "this rustdoc writes its JSON in format {format}, and format {wanted} is read here: try with {from}, or \
                 have another version of public-api and of `FORMAT` (xtask/src/api/mod.rs)"
            )));
        }
        all.push(said);
    }
    let merged = merge::crates(&all)?;
    let told = merge::told_by_traits(&merged);
    let file = shell::target().join("api.json");
    fs::write(&file, merged.to_string()).with_context(|| file.display().to_string())?;
    let api = Builder::from_rustdoc_json(&file).omit_blanket_impls(true).build()?;
    let lines = api.items().filter(|item| !told.contains(&u64::from(item.id().0))).map(ToString::to_string);
    Ok(Ok(lines::grouped(lines)))
}

/// The crates of this workspace that the crate is made of, itself first.
fn crates() -> Result<Vec<String>> {
    let args = ["metadata", "--format-version", "1", "--no-deps", "--quiet"];
    let said: Value = serde_json::from_str(&shell::output(&mut shell::command("cargo", args))?)?;
    let packages =
        said.get("packages").and_then(Value::as_array).context("cargo metadata names no packages")?;
    let mut crates = vec![CRATE.to_owned()];
    let mut at = 0;
    while let Some(name) = crates.get(at).cloned() {
        at += 1;
        let of_name = |one: &&Value| one.get("name").and_then(Value::as_str) == Some(&name);
        let package = packages.iter().find(of_name).with_context(|| format!("there is no package {name}"))?;
        for needed in package.get("dependencies").and_then(Value::as_array).into_iter().flatten() {
            let ours = needed.get("path").is_some() && needed.get("kind").is_none_or(Value::is_null);
            let name = needed.get("name").and_then(Value::as_str).unwrap_or_default();
            if ours && !crates.iter().any(|one| one == name) {
                crates.push(name.to_owned());
            }
        }
    }
    Ok(crates)
}

/// Has rustdoc write what it knows of the crates, each to a file.
fn document(crates: &[String]) -> Result<()> {
    let rustdoc = rustdoc()?;
    let mut doc = shell::command("cargo", ["doc", "--lib", "--no-deps", "--all-features", "--quiet"]);
    for name in crates {
        doc.args(["--package", name]);
    }
    // (Not by cargo's own flag for it, which a stable cargo refuses.)
    let flags = "-Z unstable-options --output-format json --document-hidden-items --cap-lints allow";
    doc.env("RUSTDOC", rustdoc).env("RUSTDOCFLAGS", flags);
    shell::run(&mut doc)
}

/// A rustdoc that may use what is unstable.
fn rustdoc() -> Result<PathBuf> {
    let path = shell::target().join("rustdoc-json");
    let real = std::env::var("RUSTDOC").unwrap_or_else(|_| "rustdoc".to_owned());
    let text = format!("#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec '{real}' \"$@\"\n");
    let write = || {
        fs::create_dir_all(shell::target())?;
        // Not anew where it stands already: cargo looks at its time.
        if fs::read_to_string(&path).is_ok_and(|old| old == text) {
            return Ok(());
        }
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
    };
    write().with_context(|| path.display().to_string())?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_and_the_list_are_read_back() {
        let text = format!("{HEAD}{WRITTEN}1.95\n\npub mod onecopy\n");
        assert_eq!(written_with(&text), ("1.95", "pub mod onecopy\n"));
        assert_eq!(written_with(""), ("", ""));
    }

    #[test]
    fn what_came_and_what_went_is_told() {
        let told = difference("a\nb\n", "b\nc\n");
        assert_eq!(told, "removed: 1\n- a\nadded: 1\n+ c\n");
        assert!(difference("a\nb\n", "b\na\n").contains("order"));
    }
}
