//! `skips.toml`: where ours answers differently, what it answers, and why; and `elsewhere.toml`: which assertions of Linux' and
//! FreeBSD's own tests are which cases here.

use serde::Deserialize;

/// One entry.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skip {
    /// The cases that it speaks of.
    pub cases: Vec<String>,
    /// The implementations: names, or `ours` for every one but the kernel, or `ours on the kernel`.
    pub on: Vec<String>,
    /// What is answered instead: exactly this, or `*` for what depends on luck, or `not offered`, or `not tried`.
    pub sees: String,
    /// Why that is right, or what it waits for.
    pub reason: String,
}

/// A difference that no case can show, since it depends on what came together: it is what random programs may see
/// (`tests/differential`), or a rule of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deviation {
    /// Of which call, and when.
    pub what: String,
    /// What Linux does.
    pub linux: String,
    /// What ours does.
    pub ours: String,
    /// Why that is right.
    pub reason: String,
}

/// All entries.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skips {
    /// In the order of the file.
    #[serde(default)]
    pub skip: Vec<Skip>,
    /// In the order of the file.
    #[serde(default)]
    pub deviation: Vec<Deviation>,
}

/// A test of somebody else's.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Theirs {
    /// What it is called there.
    pub test: String,
    /// The cases that assert the same.
    #[serde(default)]
    pub cases: Vec<String>,
    /// Where else it is asserted, or why it is not.
    #[serde(default)]
    pub note: String,
}

/// A file of tests of somebody else's.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Which tree, and which file in it.
    pub file: String,
    /// In its order.
    pub tests: Vec<Theirs>,
}

/// All of `elsewhere.toml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Elsewhere {
    /// In the order of the file.
    pub source: Vec<Source>,
}

impl Elsewhere {
    /// The entries of this crate's `elsewhere.toml`.
    ///
    /// # Errors
    ///
    /// The file cannot be read as such.
    pub fn read() -> anyhow::Result<Elsewhere> {
        Ok(toml::from_str(include_str!("../elsewhere.toml"))?)
    }

    /// Entries of no known case, or without anything to say.
    pub fn problems(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (file, theirs) in self.source.iter().flat_map(|s| s.tests.iter().map(|t| (&s.file, t))) {
            let unknown = theirs.cases.iter().filter(|case| crate::cases::by_name(case).is_none());
            wrong.extend(unknown.map(|case| format!("{file}, {}: no case {case}", theirs.test)));
            if theirs.cases.is_empty() && theirs.note.trim().is_empty() {
                wrong.push(format!("{file}, {}: neither a case nor a reason", theirs.test));
            }
        }
        wrong
    }
}

impl Skips {
    /// The entries of this crate's `skips.toml`.
    ///
    /// # Errors
    ///
    /// The file cannot be read as such.
    pub fn read() -> anyhow::Result<Skips> {
        Ok(toml::from_str(include_str!("../skips.toml"))?)
    }

    /// The entry for a case on an implementation.
    pub fn find(&self, case: &str, imp: &str) -> Option<&Skip> {
        self.skip.iter().find(|s| s.speaks_of(case, imp))
    }

    /// What is wrong with the file itself: entries without a reason, for no known case or implementation, twice.
    pub fn problems(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for s in &self.skip {
            if s.reason.trim().is_empty() {
                wrong.push(format!("{:?}: no reason", s.cases));
            }
            for case in s.cases.iter().filter(|c| crate::cases::by_name(c).is_none()) {
                wrong.push(format!("{case}: no such case"));
            }
            for on in &s.on {
                if on != "ours" && on != "ours on the kernel" && crate::impls::by_name(on).is_none() {
                    wrong.push(format!("{on}: no such implementation"));
                }
            }
        }
        for d in &self.deviation {
            if [&d.what, &d.linux, &d.ours, &d.reason].iter().any(|text| text.trim().is_empty()) {
                wrong.push(format!("{:?}: something is not said", d.what));
            }
        }
        for case in crate::cases::all() {
            for imp in crate::impls::of(case.kind) {
                if self.skip.iter().filter(|s| s.speaks_of(case.name, imp.name())).count() > 1 {
                    wrong.push(format!("{} on {}: two entries", case.name, imp.name()));
                }
            }
        }
        wrong
    }
}

impl Skip {
    fn speaks_of(&self, case: &str, imp: &str) -> bool {
        use crate::impls::Column;
        self.cases.iter().any(|c| c == case)
            && self.on.iter().any(|on| match on.as_str() {
                "ours" => crate::impls::by_name(imp).is_some_and(|i| i.column() != Column::Kernel),
                "ours on the kernel" => {
                    crate::impls::by_name(imp).is_some_and(|i| i.column() == Column::OnKernel)
                }
                name => name == imp,
            })
    }
}
