//! What a case is, and what it may see.

use std::path::{Path, PathBuf};

use crate::impls::{Conn, Impl, Kind, Name, Tcp};
use crate::stop::{Outcome, Stop};

/// Where a rule comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Linux; the kernel's own answer is the oracle.
    Linux,
    /// Linux and FreeBSD agree; the kernel's own answer is the oracle.
    Both,
    /// FreeBSD's rule, offered where it improves on Linux.
    FreeBsd,
    /// A rule of this project's own (docs of the design).
    Own,
}

impl Source {
    /// The letter of the checklist.
    pub fn letter(self) -> &'static str {
        match self {
            Source::Linux => "L",
            Source::Both => "B",
            Source::FreeBsd => "F",
            Source::Own => "own",
        }
    }
}

/// What must be seen. `"*"` allows anything (an answer that depends on luck).
#[derive(Clone, Copy, Debug)]
pub enum Expect {
    /// This, from the kernel; and from ours whatever the kernel really answered.
    Same(&'static str),
    /// From ours whatever the kernel answers.
    Oracle,
    /// Each column has its own.
    Each {
        /// The kernel's AF_UNIX.
        kernel: &'static str,
        /// Ours over shared memory.
        shared: &'static str,
        /// Ours over the kernel.
        on_kernel: &'static str,
    },
}

/// One line of the checklist.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// `family.what`, unique.
    pub name: &'static str,
    /// The sentence of the checklist that it checks.
    pub rule: &'static str,
    /// Where the rule comes from.
    pub source: Source,
    /// What must be seen.
    pub expect: Expect,
    /// The kind of the sockets that it is given.
    pub kind: Kind,
    /// Uses the implementation and tells what was seen.
    pub run: fn(&Ctx<'_>) -> Outcome,
}

impl Case {
    /// A rule whose oracle is the kernel.
    pub const fn same(
        name: &'static str,
        rule: &'static str,
        source: Source,
        expect: &'static str,
        run: fn(&Ctx<'_>) -> Outcome,
    ) -> Case {
        Case { name, rule, source, expect: Expect::Same(expect), kind: Kind::Stream, run }
    }

    /// A rule where ours is meant to be better than the kernel: `ours` is expected over shared memory *and* over
    /// the kernel (where the kernel stands in the way, `skips.toml` says so).
    pub const fn better(
        name: &'static str,
        rule: &'static str,
        source: Source,
        kernel: &'static str,
        ours: &'static str,
        run: fn(&Ctx<'_>) -> Outcome,
    ) -> Case {
        let expect = Expect::Each { kernel, shared: ours, on_kernel: ours };
        Case { name, rule, source, expect, kind: Kind::Stream, run }
    }

    /// A rule with an answer per column.
    pub const fn each(
        name: &'static str,
        rule: &'static str,
        kernel: &'static str,
        shared: &'static str,
        on_kernel: &'static str,
        run: fn(&Ctx<'_>) -> Outcome,
    ) -> Case {
        let expect = Expect::Each { kernel, shared, on_kernel };
        Case { name, rule, source: Source::Own, expect, kind: Kind::Stream, run }
    }

    /// The same, given sockets of another kind.
    pub const fn of(self, kind: Kind) -> Case {
        Case { kind, ..self }
    }
}

/// What a case is given.
pub struct Ctx<'a> {
    /// The implementation under test.
    pub imp: &'a dyn Impl,
    /// The kind of sockets that is asked for.
    pub kind: Kind,
    /// A folder of its own for names.
    pub dir: PathBuf,
}

impl Ctx<'_> {
    /// A connected pair.
    pub fn pair(&self) -> Result<(Conn, Conn), Stop> {
        self.imp.pair(self.kind, &self.dir).map_err(|e| match Stop::from(e) {
            Stop::Broken(what) => Stop::broken(format!("cannot make a pair: {what}")),
            other => other,
        })
    }

    /// What TCP has besides.
    pub fn tcp(&self) -> Result<&dyn Tcp, Stop> {
        Ok(self.imp.tcp()?)
    }

    /// A path in the case's folder.
    pub fn path(&self, name: &str) -> Name {
        Name::Path(self.dir.join(name))
    }

    /// An abstract name that nobody else has.
    pub fn abstract_name(&self, name: &str) -> Name {
        Name::Abstract(format!("{}/{name}", file_name(&self.dir)).into_bytes())
    }
}

fn file_name(dir: &Path) -> String {
    dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}
