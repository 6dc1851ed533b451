//! The suite's results as a Markdown table, one row a case.

use std::collections::VecDeque;
use std::fmt::Write;
use std::path::Path;
use std::sync::Mutex;

use crate::case::{Case, Expect};
use crate::hostile;
use crate::impls::{self, Column, Impl};
use crate::run::{self, Limits, Seen, Verdict};
use crate::skips::{Elsewhere, Skips};

/// One case, and what each implementation made of it.
pub struct Row {
    /// The case.
    pub case: &'static Case,
    /// In the order of [`impls::of`].
    pub cells: Vec<(&'static dyn Impl, Seen, Verdict)>,
}

/// Runs the cases for which `wanted` holds on every implementation; `exe` is the program that runs one.
pub fn rows(exe: &Path, skips: &Skips, limits: Limits, wanted: impl Fn(&Case) -> bool) -> Vec<Row> {
    let cases: Vec<&'static Case> = crate::cases::all().into_iter().filter(|c| wanted(c)).collect();
    let todo: Mutex<VecDeque<(usize, &'static Case)>> =
        Mutex::new(cases.iter().copied().enumerate().collect());
    let done = Mutex::new(Vec::new());
    // Most of a case's time is spent asleep.
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get() * 2);
    std::thread::scope(|s| {
        for _ in 0..workers {
            s.spawn(|| {
                loop {
                    let Some((at, case)) = todo.lock().unwrap().pop_front() else { return };
                    let imps = impls::of(case.kind);
                    let seen: Vec<Seen> =
                        imps.iter().map(|imp| run::apart(exe, case, *imp, limits, skips)).collect();
                    let cells = imps
                        .iter()
                        .zip(&seen)
                        .map(|(imp, s)| (*imp, s.clone(), run::judge(case, *imp, s, &seen[0], skips)))
                        .collect();
                    done.lock().unwrap().push((at, Row { case, cells }));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, row)| row).collect()
}

/// The rows as Markdown, with a legend and a sum.
pub fn markdown(rows: &[Row]) -> String {
    let mut out = String::from(HEAD);
    for imp in impls::all() {
        let _ = writeln!(out, "- `{}`: {}", imp.name(), imp.about());
    }
    out.push_str(
        "\n| case | rule | kernel | onecopy | onecopy on the kernel | reason |\n|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let mut reasons: Vec<String> = Vec::new();
        for (imp, _, verdict) in &row.cells {
            let reason = match verdict {
                Verdict::Skipped(why) => why.clone(),
                Verdict::Wrong(_) => format!("**wrong on {}**", imp.name()),
                Verdict::NotTried(tool) => format!("not tried: {tool}"),
                Verdict::Right => continue,
            };
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
        let _ = writeln!(
            out,
            "| `{}` | {} ({}) | {} | {} | {} | {} |",
            row.case.name,
            escape(row.case.rule),
            row.case.source.letter(),
            cell(row, Column::Kernel),
            cell(row, Column::Shared),
            cell(row, Column::OnKernel),
            escape(&reasons.join("; "))
        );
    }
    let cells = || rows.iter().flat_map(|r| &r.cells);
    let count = |f: fn(&Verdict) -> bool| cells().filter(|(_, _, v)| f(v)).count();
    let _ = writeln!(
        out,
        "\n{} cases, {} answers: {} as expected, {} otherwise with a reason, {} not tried, {} wrong.",
        rows.len(),
        cells().count(),
        count(|v| matches!(v, Verdict::Right)),
        count(|v| matches!(v, Verdict::Skipped(_))),
        count(|v| matches!(v, Verdict::NotTried(_))),
        count(|v| matches!(v, Verdict::Wrong(_))),
    );
    out
}

const HEAD: &str = "\
# Conformance

Made by `cargo xtask conformance`; the suite itself runs with `cargo test -p onecopy-conformance`. Each row is a
rule and what was seen when it was tried. Rules come from Linux (L), from FreeBSD (F), from both (B), or are our
own. For L and B the kernel's answer is the oracle; where ours differs, the reason stands beside it, and
`conformance/skips.toml` holds exactly what it answers instead. Rows named `records` are about stream records, which
Linux does not offer, and ours not without shared memory: there the rule itself says what is right. Ours raise
SIGPIPE only for a send that asks for it (`SendFlags::SIGPIPE`), as std's sockets never do: the rows `wait.sigpipe`,
`wait.sigpipe_shutdown` and `wait.writer_freed_by_close_no_signal` ask for it. Rows named `tcp` are of TCP: the kernel's over
loopback is the oracle there, and ours are streams of two stacks of their own, joined by a cable, of two that have two shards each, and of two that the kernel
carries by io_uring. They have what is said of streams without
names in the file system, descriptors and credentials, which TCP does not have.

";

/// One answer if all implementations of the column agree, else each with its name.
fn cell(row: &Row, column: Column) -> String {
    let seen: Vec<(&str, String)> = row
        .cells
        .iter()
        .filter(|(imp, ..)| imp.column() == column)
        .map(|(imp, seen, _)| {
            let text = match seen {
                // What depends on luck would make each run's table another one.
                Seen::Value(_) if varies(row.case, *imp) => "varies".to_owned(),
                Seen::Value(v) => v.clone(),
                Seen::NotOffered(what) if what == "not tried" => what.clone(),
                Seen::NotOffered(_) => "not offered".to_owned(),
                Seen::Lacking(_) => "not tried".to_owned(),
                Seen::Broken(_) => "broken".to_owned(),
            };
            (imp.name(), escape(&text))
        })
        .collect();
    match seen.split_first() {
        None => String::new(),
        Some(((_, first), rest)) if rest.iter().all(|(_, v)| v == first) => first.clone(),
        _ => seen.iter().map(|(name, v)| format!("{name}: {v}")).collect::<Vec<_>>().join("<br>"),
    }
}

/// Whether any answer is right, here and by this implementation.
fn varies(case: &Case, imp: &dyn Impl) -> bool {
    let any = match (case.expect, imp.column()) {
        (Expect::Same(want), _) => want == "*",
        (Expect::Oracle, _) => false,
        (Expect::Each { kernel, .. }, Column::Kernel) => kernel == "*",
        (Expect::Each { shared, .. }, Column::Shared) => shared == "*",
        (Expect::Each { on_kernel, .. }, Column::OnKernel) => on_kernel == "*",
    };
    let excused =
        || Skips::read().is_ok_and(|s| s.find(case.name, imp.name()).is_some_and(|s| s.sees == "*"));
    any || excused()
}

/// Differences that no case can show, as Markdown.
pub fn deviations(skips: &Skips) -> String {
    let mut out = String::from(DEVIATIONS);
    for d in &skips.deviation {
        let cells = [&d.what, &d.linux, &d.ours, &d.reason].map(|text| escape(text));
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
    out
}

const DEVIATIONS: &str = "
## Other differences

What depends on the moment, and is therefore no case: random programs of calls (`conformance/tests/differential`) allow these and no
others.

| what | Linux | onecopy | reason |
|---|---|---|---|
";

/// Which tests of Linux' and FreeBSD's own are which cases, as Markdown.
pub fn elsewhere(elsewhere: &Elsewhere) -> String {
    let mut out = String::from(ELSEWHERE);
    for (file, theirs) in elsewhere.source.iter().flat_map(|s| s.tests.iter().map(|t| (&s.file, t))) {
        let cases = theirs.cases.iter().map(|case| format!("`{case}`")).collect::<Vec<_>>().join(", ");
        let _ = writeln!(out, "| {file} | {} | {cases} | {} |", escape(&theirs.test), escape(&theirs.note));
    }
    out
}

const ELSEWHERE: &str = "
## What the kernels' own tests assert

Each test of `tools/testing/selftests/net/af_unix` (Linux) and of `tests/sys/kern` (FreeBSD) that speaks of unix sockets, and where the same
is asserted here (`conformance/elsewhere.toml`). Where the two differ, Linux' answer is the default.

| file | test | cases | |
|---|---|---|---|
";

/// The lies that a hostile peer tells, and what is demanded of its victim, as Markdown.
pub fn lies() -> String {
    let mut out = String::from(LIES);
    for misbehaviour in hostile::all() {
        let by = misbehaviour.roles.iter().map(|role| role.name()).collect::<Vec<_>>().join(", ");
        let must = if misbehaviour.must.is_empty() { "" } else { misbehaviour.must };
        let may: Vec<&str> = misbehaviour.allowed.iter().copied().filter(|a| *a != must).collect();
        let _ = writeln!(
            out,
            "| `{}` | {} | {by} | {must} | {} |",
            misbehaviour.name,
            escape(misbehaviour.what),
            may.join(", ")
        );
    }
    out
}

const LIES: &str = "
## Hostile peers

What a peer that speaks the upgrade by hand does to its victim, which receives, sends, polls and borrows meanwhile
(`conformance/src/hostile`, run with the suite). Every call ends in time, in one of these ways; where one way stands
under \"must\", at least one activity sees it. EPROTO is for that connection alone and is counted; an honest
connection in the same process, and new ones to the same listener, go on; no descriptor or mapping is left. A client and a server
make the rings of the connection; a joining one is sent rings that its victim has made.

| misbehaviour | what the peer does | told by | must | may |
|---|---|---|---|---|
";

fn escape(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
