//! What ARCHITECTURE.md says of the rooms, held against their sources: who may depend on whom, and where unsafe code
//! may stand.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::Outcome;
use crate::shell;

/// Lines from which on a file should be asked why it is one.
const LONG: usize = 600;

pub fn run() -> Result<Outcome> {
    let root = shell::root();
    let house = fs::read_to_string(root.join("ARCHITECTURE.md")).context("ARCHITECTURE.md")?;
    let (rooms, mut may_be_unsafe) = (rooms(&house), unsafe_files(&house));
    let mut wrong = Vec::new();
    for (room, may_depend) in &rooms {
        let Ok(manifest) = fs::read_to_string(root.join(room).join("Cargo.toml")) else { continue };
        let mut depends = own_dependencies(&manifest);
        depends.sort_unstable();
        if depends != *may_depend {
            wrong.push(format!("{room} depends on {depends:?}, not on {may_depend:?}"));
        }
        for path in sources(&root.join(room).join("src"))? {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let shown = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
            // What looks for the word has it.
            let found = text.lines().position(is_unsafe).filter(|_| room != "xtask");
            let listed = may_be_unsafe.iter_mut().find(|(file, _)| covers(file, &shown));
            match (found, listed) {
                (Some(_), Some((_, seen))) => *seen = true,
                (Some(line), None) => wrong.push(format!("{shown}:{} holds unsafe code", line + 1)),
                (None, _) => {}
            }
            let lines = text.lines().count();
            if lines > LONG {
                println!("{shown} has {lines} lines: does it do one thing?");
            }
        }
    }
    for (file, _) in may_be_unsafe.iter().filter(|(_, seen)| !seen) {
        wrong.push(format!("{file} holds no unsafe code"));
    }
    ensure!(
        rooms.len() > 10 && may_be_unsafe.len() > 20,
        "ARCHITECTURE.md has no tables of rooms and of unsafe code"
    );
    ensure!(wrong.is_empty(), "not as ARCHITECTURE.md says: {}", wrong.join("; "));
    println!(
        "{} rooms are as ARCHITECTURE.md says, {} of their files hold unsafe code",
        rooms.len(),
        may_be_unsafe.len()
    );
    Ok(Outcome::Passed)
}

/// What stands in backticks.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The cells of the rows of the tables in a section.
fn rows<'a>(house: &'a str, section: &str) -> Vec<Vec<&'a str>> {
    let lines =
        house.lines().skip_while(|line| *line != section).skip(1).take_while(|line| !line.starts_with("## "));
    let cells = |row: &'a str| row.split('|').map(str::trim).collect();
    lines.filter_map(|line| line.strip_prefix('|')?.strip_suffix('|')).map(cells).collect()
}

/// The rooms, and the project's own crates that each depends on, in alphabetical order.
fn rooms(house: &str) -> Vec<(String, Vec<&str>)> {
    let rows = rows(house, "## The way of a byte");
    let mut rooms = Vec::new();
    for row in rows.iter().filter(|row| row.len() == 3) {
        let Some(room) = names(row[0]).next() else { continue };
        let mut depends: Vec<&str> = row[2].split(", ").filter(|name| !FOREIGN.contains(name)).collect();
        depends.sort_unstable();
        rooms.push((room.to_owned(), depends));
    }
    rooms
}

/// What stands in that column beside our own crates.
const FOREIGN: [&str; 3] = ["rustix", "libc", "\u{2013}"];

/// The files that may hold unsafe code, or folders of them, and whether some was found there.
fn unsafe_files(house: &str) -> Vec<(String, bool)> {
    let (mut room, mut files) = (String::new(), Vec::new());
    for row in rows(house, "## Unsafe code").iter().filter(|row| row.len() == 3) {
        if let Some(name) = names(row[0]).next() {
            room = if name == "bench" { name.into() } else { format!("crates/{name}") };
        }
        files.extend(names(row[1]).map(|file| (format!("{room}/src/{file}"), false)));
    }
    files
}

/// Whether `listed`, a file or a folder, has `file`.
fn covers(listed: &str, file: &str) -> bool {
    listed == file || listed.ends_with('/') && file.starts_with(listed)
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
    fn the_tables_are_read() {
        let house = "## The way of a byte\n| room | what | depends on |\n|---|---|---|\n| `crates/a` | x | sys, b, libc |\n\
                     ## Unsafe code\n| room | where | for |\n| `a` | `x.rs`, and `y/` | z |\n| | `v.rs` | w |\n## End\n| `b` | `u.rs` | t |";
        assert_eq!(rooms(house), [("crates/a".to_owned(), vec!["b", "sys"])]);
        let files: Vec<String> = unsafe_files(house).into_iter().map(|(file, _)| file).collect();
        assert_eq!(files, ["crates/a/src/x.rs", "crates/a/src/y/", "crates/a/src/v.rs"]);
        assert!(
            covers("crates/a/src/y/", "crates/a/src/y/1.rs")
                && !covers("crates/a/src/x.rs", "crates/a/src/y.rs")
        );
    }

    #[test]
    fn dependencies_of_our_own() {
        let manifest = "[dependencies]\nlibc = \"1\"\nonecopy-sys.workspace = true\nonecopy = { path = \"x\" }\n\
                        [dev-dependencies]\nonecopy-bench.workspace = true\n";
        assert_eq!(own_dependencies(manifest), ["sys", "onecopy"]);
    }
}
