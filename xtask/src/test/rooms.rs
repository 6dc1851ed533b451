//! What ARCHITECTURE.md says of the rooms, held against their sources: who may depend on whom, and where unsafe code
//! may stand.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::Outcome;
use crate::shell;

/// A room, whether it may hold unsafe code, and the rooms it may depend on. Rooms that are not listed stand at the
/// end of the road (the program, tests, bench) and may depend on all.
const ROOMS: &[(&str, bool, &[&str])] = &[
    ("crates/sys", true, &[]),
    ("crates/sync", true, &["sys"]),
    ("crates/copy", true, &["sys"]),
    ("crates/pool", true, &["sync", "sys"]),
    ("crates/chain", false, &["copy", "pool", "sync", "sys"]),
    ("crates/ring", true, &["sync", "sys", "copy"]),
    ("crates/unix", false, &["chain", "pool", "ring", "copy", "sync", "sys"]),
    ("crates/link", false, &["chain", "pool", "sys"]),
    ("crates/onecopy", false, &["chain", "link", "pool", "unix", "copy"]),
    ("crates/cli", false, &["onecopy", "bench", "sys"]),
    ("conformance", false, &["onecopy", "sys"]),
    ("fuzz", false, &["onecopy", "conformance"]),
    ("soak", false, &["onecopy", "conformance", "sys"]),
];

/// Lines from which on a file should be asked why it is one.
const LONG: usize = 600;

pub fn run() -> Result<Outcome> {
    let root = shell::root();
    let mut wrong = Vec::new();
    for (room, may_be_unsafe, may_depend) in ROOMS {
        let manifest =
            fs::read_to_string(root.join(room).join("Cargo.toml")).with_context(|| room.to_string())?;
        for dependency in own_dependencies(&manifest) {
            if !may_depend.contains(&dependency) {
                wrong.push(format!("{room} depends on {dependency}"));
            }
        }
        for path in sources(&root.join(room))? {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let shown = path.strip_prefix(&root).unwrap_or(&path).display();
            if !may_be_unsafe && let Some(line) = text.lines().position(is_unsafe) {
                wrong.push(format!("{shown}:{} holds unsafe code", line + 1));
            }
            let lines = text.lines().count();
            if lines > LONG {
                println!("{shown} has {lines} lines: does it do one thing?");
            }
        }
    }
    ensure!(wrong.is_empty(), "against ARCHITECTURE.md: {}", wrong.join("; "));
    println!("{} rooms are as ARCHITECTURE.md says", ROOMS.len());
    Ok(Outcome::Passed)
}

/// The project's own crates below `[dependencies]`, without their common prefix.
fn own_dependencies(manifest: &str) -> Vec<&str> {
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        if section == "[dependencies]" && (name == "onecopy" || name.starts_with("onecopy-")) {
            found.push(name.strip_prefix("onecopy-").unwrap_or(name));
        }
    }
    found
}

/// Whether the line starts unsafe code: a block, a function's declaration or an impl, not the word in a comment.
fn is_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"].iter().any(|word| code.contains(word))
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_code_is_seen_and_talk_of_it_is_not() {
        assert!(is_unsafe("    let a = unsafe { f() };"));
        assert!(is_unsafe("unsafe impl Send for A {}"));
        assert!(!is_unsafe("// an unsafe { block }"));
        assert!(!is_unsafe("#![forbid(unsafe_code)]"));
    }

    #[test]
    fn dependencies_of_our_own() {
        let manifest = "[dependencies]\nlibc = \"1\"\nonecopy-sys.workspace = true\nonecopy = { path = \"x\" }\n\
                        [dev-dependencies]\nonecopy-bench.workspace = true\n";
        assert_eq!(own_dependencies(manifest), ["sys", "onecopy"]);
    }
}
