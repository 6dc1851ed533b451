//! The order of the lines: by type, and within a type by the alphabet.
//!
//! So they stay where they are when methods move between `impl` blocks, or when a type gets a second path.

use std::collections::BTreeSet;

/// Traits that nobody has to read about.
const AUTO: [&str; 5] = [
    "core::marker::Freeze",
    "core::marker::StructuralPartialEq",
    "core::marker::Unpin",
    "core::marker::UnsafeUnpin",
    "core::panic::unwind_safe::",
];

/// What everybody knows without its path, as all of it is in the prelude.
const PRELUDE: [&str; 14] = [
    "alloc::borrow::",
    "alloc::boxed::",
    "alloc::string::",
    "alloc::vec::",
    "core::clone::",
    "core::cmp::",
    "core::convert::",
    "core::default::",
    "core::iter::traits::iterator::",
    "core::marker::",
    "core::ops::drop::",
    "core::ops::function::",
    "core::option::",
    "core::result::",
];

/// A module, type, trait or free item, and the lines of what is in it.
struct Group {
    head: String,
    lines: BTreeSet<String>,
}

impl Group {
    /// Whether that line speaks of this group's item by the path that stands in its head.
    fn is_named_in(&self, line: &str) -> bool {
        let path = path(&self.head);
        let ends = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_');
        line.match_indices(path).any(|(at, _)| line.get(at + path.len()..).is_some_and(ends))
    }
}

/// The path in a head such as `pub struct onecopy::unix::Slot<'a>`.
fn path(head: &str) -> &str {
    let from = head.find("onecopy").unwrap_or_default();
    let rest = head.get(from..).unwrap_or_default();
    let end =
        rest.find(|one: char| !(one.is_alphanumeric() || one == '_' || one == ':')).unwrap_or(rest.len());
    rest.get(..end).unwrap_or_default().trim_end_matches(':')
}

/// Whether a group begins with that line: it is a type, or it is a free item, so stands in one of the modules.
fn is_head(line: &str, modules: &BTreeSet<String>) -> bool {
    let is = |kind: &&str| line.starts_with(kind) || line.contains(&format!("] {kind}"));
    let kinds = ["pub mod ", "pub struct ", "pub enum ", "pub union ", "pub trait ", "pub unsafe trait "];
    let own = path(line);
    let parent = own.rsplit_once("::").map_or("", |(parent, _)| parent);
    // `Type<'a>::method`, where the path that is read ends at the type.
    let behind = line.find(own).and_then(|at| line.get(at + own.len()..)).unwrap_or_default();
    let member = behind.starts_with('<') && behind.split('(').next().is_some_and(|name| name.contains(">::"));
    kinds.iter().any(is) || (is(&"pub ") && !member && modules.contains(parent))
}

/// Whether a person who reads the list wants to see that line.
fn worth_a_line(line: &str) -> bool {
    // What a block of a type's own methods has to say is said by these.
    let own = !line.contains(" for ") && !line.contains(" where ");
    !(line.starts_with("impl") && (own || AUTO.iter().any(|of| line.contains(of))))
}

/// All lines, each once, in their groups.
pub fn grouped(lines: impl Iterator<Item = String>) -> String {
    let lines: Vec<_> = lines.filter(|line| worth_a_line(line)).collect();
    let modules =
        lines.iter().filter(|line| line.starts_with("pub mod ")).map(|line| path(line).to_owned()).collect();
    let mut groups: Vec<Group> = Vec::new();
    for line in lines {
        let line = PRELUDE.iter().fold(line, |line, of| line.replace(of, ""));
        if is_head(&line, &modules) {
            // What comes behind a second one of the same is there already.
            let again = groups.iter().any(|group| group.head == line);
            let head = if again { String::new() } else { line };
            groups.push(Group { head, lines: BTreeSet::new() });
        } else if let Some(group) = groups.last_mut() {
            group.lines.insert(line);
        }
    }
    groups.retain(|group| !group.head.is_empty());
    // An item with several paths is named by one of them, and is told of once, where it is named.
    let named: BTreeSet<String> = groups
        .iter()
        .flat_map(|group| group.lines.iter().filter(|line| group.is_named_in(line)).cloned())
        .collect();
    let mut seen = BTreeSet::new();
    for group in &mut groups {
        let (head, lines) = (group.head.clone(), std::mem::take(&mut group.lines));
        let of = Group { head, lines: BTreeSet::new() };
        group.lines = lines
            .into_iter()
            .filter(|line| of.is_named_in(line) || !named.contains(line))
            .filter(|line| seen.insert(line.clone()))
            .collect();
    }
    groups.iter().fold(String::new(), |text, group| {
        let lines = group.lines.iter().map(|line| format!("    {line}\n"));
        text + &group.head + "\n" + &lines.collect::<String>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> String {
        grouped(lines.iter().map(|line| (*line).to_owned()))
    }

    #[test]
    fn lines_stand_below_their_type_by_the_alphabet() {
        let told = of(&[
            "pub mod onecopy",
            "pub struct onecopy::Thing<'a>",
            "pub fn onecopy::Thing<'a>::c(self)",
            "impl onecopy::Thing<'_>",
            "pub fn onecopy::Thing::b(&self) -> core::option::Option<u8>",
            "impl onecopy::Thing<'_>",
            "pub fn onecopy::Thing::a(&self)",
            "impl core::marker::Freeze for onecopy::Thing<'_>",
            "impl core::marker::Send for onecopy::Thing<'_>",
            "pub fn onecopy::free<T>(T)",
        ]);
        let wanted = "pub mod onecopy\npub struct onecopy::Thing<'a>\n    impl Send for onecopy::Thing<'_>\n    \
            pub fn onecopy::Thing::a(&self)\n    pub fn onecopy::Thing::b(&self) -> Option<u8>\n    pub fn onecopy::Thing<'a>::c(self)\n\
            pub fn onecopy::free<T>(T)\n";
        assert_eq!(told, wanted);
    }

    #[test]
    fn what_has_two_paths_is_told_of_where_it_is_named() {
        let told = of(&[
            "pub struct onecopy::unix::Flags(_)",
            "pub fn onecopy::Flags::all() -> Self",
            "pub struct onecopy::Flags(_)",
            "pub fn onecopy::Flags::all() -> Self",
        ]);
        let wanted = "pub struct onecopy::unix::Flags(_)\npub struct onecopy::Flags(_)\n    \
            pub fn onecopy::Flags::all() -> Self\n";
        assert_eq!(told, wanted);
    }
}
