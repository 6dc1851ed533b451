//! What ARCHITECTURE.md and docs/ say of the rooms, held against their sources: who may depend on whom, where unsafe code
//! may stand, which locks there are, and whether the files and names that the documents point to exist.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::Outcome;
use crate::shell;

/// Lines from which on a file should be asked why it is one.
const LONG: usize = 600;

/// Bytes that ARCHITECTURE.md may have: a newcomer reads it in one go.
const MAP: usize = 8192;

/// Rooms whose locks stand in docs/locks.md.
const LOCKED: [&str; 5] = ["crates/net", "crates/ring", "crates/socket", "crates/unix", "crates/unix-dgram"];

pub fn run() -> Result<Outcome> {
    let root = shell::root();
    let read = |name: &str| fs::read_to_string(root.join(name)).with_context(|| name.to_owned());
    let house = read("ARCHITECTURE.md")?;
    let (rooms, mut may_be_unsafe) = (rooms(&house), unsafe_files(&read("docs/unsafe.md")?));
    let mut locks = Vec::new();
    let mut wrong = Vec::new();
    for (room, may_depend) in &rooms {
        // Examples are targets of another package, and lie in the room itself.
        let manifest = fs::read_to_string(root.join(room).join("Cargo.toml"));
        let sources = root.join(room).join(if manifest.is_ok() { "src" } else { "" });
        let mut depends = own_dependencies(manifest.as_deref().unwrap_or_default());
        depends.sort_unstable();
        if manifest.is_ok() && depends != *may_depend {
            wrong.push(format!("{room} depends on {depends:?}, not on {may_depend:?}"));
        }
        let tests = Some(root.join(room).join("tests")).filter(|tests| manifest.is_ok() && tests.is_dir());
        let (mut paths, tests) =
            (files(&sources, "rs")?, tests.map(|tests| files(&tests, "rs")).transpose()?);
        let of_sources = paths.len();
        paths.extend(tests.into_iter().flatten());
        for (number, path) in paths.into_iter().enumerate() {
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
            if number >= of_sources {
                continue;
            }
            if LOCKED.contains(&room.as_str()) && !shown.contains("/tests/") {
                locks.extend(locks_in(&text).into_iter().map(|lock| (lock, shown.clone())));
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
    let table = lock_rows(&read("docs/locks.md")?);
    wrong.extend(compare_locks(&table, &locks));
    if house.len() > MAP {
        wrong.push(format!("ARCHITECTURE.md has {} bytes, more than {MAP}: move some to docs/", house.len()));
    }
    for path in documents(&root)? {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let shown = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
        let folder = path.parent().unwrap_or(&root);
        wrong.extend(dangling(&root, folder, &text).map(|what| format!("{shown} points to {what}")));
    }
    for path in files(&root.join("crates"), "rs")? {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let shown = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
        wrong.extend(
            skips(&text).map(|line| {
                format!("{shown}:{line} skips: say what is `lacking: `, which the summary knows")
            }),
        );
    }
    ensure!(
        rooms.len() > 10 && may_be_unsafe.len() > 20 && table.len() > 10,
        "ARCHITECTURE.md, docs/unsafe.md or docs/locks.md has no table"
    );
    ensure!(wrong.is_empty(), "not as the documents say: {}", wrong.join("; "));
    println!(
        "{} rooms are as ARCHITECTURE.md says, {} of their files hold unsafe code, {} locks have their place",
        rooms.len(),
        may_be_unsafe.len(),
        locks.len()
    );
    Ok(Outcome::Passed)
}

/// The lines in which a test says that it was not tried by a word that [`super::sum::lacking_in`] does not know.
fn skips(text: &str) -> impl Iterator<Item = usize> {
    text.lines().enumerate().filter(|(_, line)| line.contains("\"skipped: ")).map(|(number, _)| number + 1)
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
    let rows = rows(house, "## The rooms");
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
fn unsafe_files(table: &str) -> Vec<(String, bool)> {
    let (mut room, mut files) = (String::new(), Vec::new());
    for row in rows(table, "## Where it stands").iter().filter(|row| row.len() == 3) {
        if let Some(name) = names(row[0]).next() {
            room = match name {
                "bench" | "packetdrill" | "python" | "testing/cuda" | "examples/rust" => name.into(),
                _ => format!("crates/{name}"),
            };
        }
        let within = |file: &str| match file.starts_with("tests/") || room == "examples/rust" {
            true => format!("{room}/{file}"),
            false => format!("{room}/src/{file}"),
        };
        files.extend(names(row[1]).map(|file| (within(file), false)));
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

/// Whether the line starts unsafe code: a block, a function's declaration, a trait, an impl or an attribute, not the word in a comment.
fn is_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let words = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "unsafe trait", "unsafe("];
    words.iter().any(|word| code.contains(word))
}

/// The locks and the files that docs/locks.md names.
fn lock_rows(table: &str) -> Vec<(String, String)> {
    let mut locks = Vec::new();
    for row in rows(table, "# Locks").iter().filter(|row| row.len() == 5) {
        let Some(file) = names(row[2]).next() else { continue };
        locks.extend(names(row[1]).map(|lock| (lock.to_owned(), file.to_owned())));
    }
    locks
}

/// What the table of locks and the sources do not agree on. Both have a lock's name, and the file that it is declared in.
fn compare_locks(table: &[(String, String)], found: &[(String, String)]) -> Vec<String> {
    let missing = found.iter().filter(|lock| !table.contains(lock));
    let missing = missing.map(|(lock, file)| format!("{lock} in {file} has no row in docs/locks.md"));
    let gone = table.iter().filter(|lock| !found.contains(lock));
    missing
        .chain(gone.map(|(lock, file)| format!("docs/locks.md names {lock}, which {file} has not")))
        .collect()
}

/// Types that lock.
const LOCKS: [&str; 5] = ["Mutex", "Side", "HolderLock", "RwLock", "ReentrantLock"];

/// The fields and statics of a file that are locks: `Type::field`, or a static's name. Formatted code is expected, and tests and
/// models stand at the end.
fn locks_in(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut of = "";
    for line in text.lines().take_while(|line| !["mod tests {", "mod models {"].contains(line)) {
        let code = line.split("//").next().unwrap_or_default();
        if code == "}" {
            of = "";
        }
        let words =
            code.split_once("struct ").filter(|(before, _)| before.trim_end().is_empty() || is_pub(before));
        if let Some((_, rest)) = words {
            of = rest.split(|c: char| !is_name(c)).next().unwrap_or_default();
            let inside = rest.split_once('(').filter(|_| rest.ends_with(");"));
            // A lock that is made of another one is one lock.
            if inside.is_some_and(|(_, types)| locks(types)) && !LOCKS.contains(&of) {
                found.push(format!("{of}::0"));
            }
        } else if let Some((name, kind)) = declared(code, "static ") {
            found.extend(locks(kind).then(|| name.to_owned()));
        } else if let Some((name, kind)) = declared(code, "").filter(|_| !of.is_empty()) {
            found.extend(locks(kind).then(|| format!("{of}::{name}")));
        }
    }
    found
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_pub(before: &str) -> bool {
    before.trim() == "pub" || before.trim().starts_with("pub(") && before.trim().ends_with(')')
}

/// The name and the type that a line declares behind `word`.
fn declared<'a>(code: &'a str, word: &str) -> Option<(&'a str, &'a str)> {
    let (before, kind) = code.split_once(": ")?;
    let (before, name) = before.rsplit_once(' ').unwrap_or(("", before));
    let before = format!("{before} ");
    let before = before.strip_suffix(word)?.trim();
    (name.chars().all(is_name) && !name.is_empty() && (before.is_empty() || is_pub(before)))
        .then_some((name, kind))
}

/// Whether a value of that type has a lock of its own, and not only the way to one.
fn locks(kind: &str) -> bool {
    let owned = !kind.trim_start().starts_with('&');
    owned && kind.split(|c: char| !is_name(c)).any(|word| LOCKS.contains(&word))
}

/// What is written for people: the map, and all below docs/ that nobody generates.
fn documents(root: &Path) -> Result<Vec<PathBuf>> {
    let mut all = files(&root.join("docs"), "md")?;
    all.extend(["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"].map(|name| root.join(name)));
    Ok(all)
}

/// Links, and `crates/...` in backticks, that lead nowhere. Behind a file and a colon stands what is in it.
fn dangling(root: &Path, folder: &Path, text: &str) -> impl Iterator<Item = String> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
    let files = links.filter(|link| !link.contains("://")).filter_map(|link| link.split('#').next());
    let lost = files.filter(|file| !folder.join(file).exists()).map(str::to_owned);
    let places = names(text).filter(|name| name.starts_with("crates/") && !name.contains(['*', '{', '\n']));
    let gone = places.filter(|place| {
        let (file, inside) = place.split_once(": ").unwrap_or((place, ""));
        match fs::read_to_string(root.join(file)) {
            Ok(code) => !has_word(&code, inside),
            Err(_) => !(inside.is_empty() && root.join(file).exists()),
        }
    });
    lost.chain(gone.map(str::to_owned)).collect::<Vec<_>>().into_iter()
}

fn has_word(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| !code[at + word.len()..].starts_with(is_name))
}

/// The files of a folder with that extension, and of the folders in it.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path, extension)?);
        } else if path.extension().is_some_and(|other| other == extension) {
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
    fn one_word_says_what_was_not_tried() {
        let text = "fn a() {\n    println!(\"lacking: a moon\");\n    eprintln!(\"skipped: no moon\");\n}";
        assert_eq!(skips(text).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn unsafe_code_is_seen_and_talk_of_it_is_not() {
        assert!(is_unsafe("    let a = unsafe { f() };"));
        assert!(is_unsafe("unsafe impl Send for A {}"));
        assert!(is_unsafe("pub unsafe trait A {}"));
        assert!(is_unsafe("#[unsafe(no_mangle)]"));
        assert!(!is_unsafe("// an unsafe { block }"));
        assert!(!is_unsafe("#![forbid(unsafe_code)]"));
    }

    #[test]
    fn the_tables_are_read() {
        let house = "## The rooms\n| room | what | depends on |\n|---|---|---|\n| `crates/a` | x | sys, b, libc |\n\
                     ## Where it stands\n| room | where | for |\n| `a` | `x.rs`, and `y/` | z |\n| | `v.rs`, `tests/t.rs` | w |\n\
                     | `bench` | `s.rs` | t |\n| `examples/rust` | `e/f.rs` | u |\n## End\n| `b` | `u.rs` | t |";
        assert_eq!(rooms(house), [("crates/a".to_owned(), vec!["b", "sys"])]);
        let files: Vec<String> = unsafe_files(house).into_iter().map(|(file, _)| file).collect();
        assert_eq!(
            files,
            [
                "crates/a/src/x.rs",
                "crates/a/src/y/",
                "crates/a/src/v.rs",
                "crates/a/tests/t.rs",
                "bench/src/s.rs",
                "examples/rust/e/f.rs"
            ]
        );
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

    #[test]
    fn the_table_of_locks_is_read() {
        let table = "# Locks\n| | lock | where | guards | asleep |\n|---|---|---|---|---|\n\
                     | 1 | `A::x`, `A::y` of some | `crates/a/src/x.rs` | z | never |\n## Rules\n| 2 | `B::x` | `y.rs` | | |";
        let rows = lock_rows(table);
        let row = |lock: &str| (lock.to_owned(), "crates/a/src/x.rs".to_owned());
        assert_eq!(rows, [row("A::x"), row("A::y")]);
        assert!(compare_locks(&rows, &[row("A::y"), row("A::x")]).is_empty());
        let wrong = compare_locks(&rows, &[row("A::x"), row("A::z")]);
        assert_eq!(
            wrong,
            [
                "A::z in crates/a/src/x.rs has no row in docs/locks.md",
                "docs/locks.md names A::y, which crates/a/src/x.rs has not"
            ]
        );
    }

    #[test]
    fn locks_are_found_where_they_are_declared_and_nowhere_else() {
        let text = "pub struct A {\n    /// A Mutex<u8> in words.\n    pub(super) x: Mutex<Option<u8>>,\n    y: Arc<Mutex<u8>>,\n    \
                    z: &'static Mutex<u8>,\n    pub rx: Side<Rx>,\n    lock: HolderLock,\n    guard: SideGuard<'a, Rx>,\n}\n\
                    fn f(\n    m: Mutex<u8>,\n) {\n    let a = A { x: Mutex::new(None) };\n}\n\
                    pub struct B(u8, Mutex<u8>);\npub struct Side<T: Shared>(Mutex<Inner<T>>);\n\
                    static MISSING: LazyLock<Mutex<u8>> = LazyLock::new(Mutex::default);\n\
                    mod tests {\n    struct C {\n        x: Mutex<u8>,\n";
        assert_eq!(locks_in(text), ["A::x", "A::y", "A::rx", "A::lock", "B::0", "MISSING"]);
    }

    #[test]
    fn what_leads_nowhere_is_found() {
        let root = shell::root();
        let text = "[a](ARCHITECTURE.md#the-rooms) [b](no.md) [c](https://x.y/z) `crates/sys/src/` `crates/sys/src/no.rs`\n\
                    `crates/ring/src/lend.rs: fn collect` `crates/ring/src/lend.rs: fn no` `crates/sys: x` `other/no.rs`";
        let found: Vec<String> = dangling(&root, &root, text).collect();
        assert_eq!(
            found,
            ["no.md", "crates/sys/src/no.rs", "crates/ring/src/lend.rs: fn no", "crates/sys: x"]
        );
    }
}
