//! `cargo xtask results`: what the documents say of results, from bench/record and nothing else.
//!
//! Of each machine and row the newest day counts, and of that day the runs of the program that ran last. README.md has a picture and a table of how often and how far a program that asks for
//! nothing is better off than with the rival, and how many of a row's demands were reached; bench/record/README.md has all figures, and each demand that
//! was missed. What is worse is shown like the rest, in bold; a row without a record is named as one. Verdicts are those that the run itself has
//! recorded: nothing is judged here.

mod picture;
pub mod record;
mod summary;
mod tables;

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, bail, ensure};

use crate::shell;
use record::{Machine, Taken};

/// Flags of `cargo xtask results`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write nothing; fail where the documents say other than the records.
    #[arg(long)]
    pub check: bool,
}

const BEGIN: &str = "<!-- results: written by `cargo xtask results` from bench/record -->";
const END: &str = "<!-- end of results -->";

/// Runs `cargo xtask results`.
pub fn run(args: &Args) -> Result<()> {
    let root = shell::root();
    let rows = rows(&fs::read_to_string(root.join("bench/README.md")).context("bench/README.md")?)?;
    let machines = record::read(&root.join("bench/record"))?;
    known(&machines, &rows)?;
    let readme = fs::read_to_string(root.join("README.md")).context("README.md")?;
    let files = [
        ("README.md", replaced(&readme, &summary::text(&machines, &rows)?)?),
        ("bench/record/README.md", tables::text(&machines, &rows)?),
        ("bench/record/results.svg", picture::svg(&machines, &rows)?),
    ];
    let mut stale = Vec::new();
    for (name, fresh) in files {
        let path = root.join(name);
        if fs::read_to_string(&path).is_ok_and(|before| before == fresh) {
            continue;
        }
        stale.push(name);
        if !args.check {
            fs::write(&path, fresh).context(name)?;
        }
    }
    match (stale.is_empty(), args.check) {
        (true, _) => println!("the documents have what bench/record has"),
        (false, false) => println!("written: {}", stale.join(", ")),
        (false, true) => {
            bail!("other results than in bench/record: {}; run `cargo xtask results`", stale.join(", "))
        }
    }
    Ok(())
}

/// The rows that there are, in the order of the table in bench/README.md; and below it those that are programs of their own.
fn rows(bench: &str) -> Result<Vec<String>> {
    let named = |line: &str| {
        let cell = line.strip_prefix("| `").or_else(|| line.strip_prefix("## The row `"))?;
        Some(cell.split('`').next()?.to_owned())
    };
    let rows: Vec<String> = bench.lines().filter_map(named).collect();
    ensure!(!rows.is_empty(), "bench/README.md names no row");
    Ok(rows)
}

/// Each row of a record is one that bench/README.md describes.
fn known(machines: &BTreeMap<String, Machine>, rows: &[String]) -> Result<()> {
    ensure!(!machines.is_empty(), "bench/record has no record");
    for (name, machine) in machines {
        if let Some(row) = machine.rows.keys().find(|row| !rows.contains(row)) {
            bail!("bench/record has a row {row:?} for {name}, which the table in bench/README.md does not");
        }
    }
    Ok(())
}

/// Of how many runs a row's figures are; they need not all be of as many.
fn runs(taken: &Taken) -> String {
    match taken.runs() {
        (1, 1) => "one run".to_owned(),
        (least, most) if least == most => format!("medians of {most} runs"),
        (least, most) => format!("medians of {least} to {most} runs"),
    }
}

/// Names of rows, as text has them.
fn quoted<'r>(rows: impl Iterator<Item = &'r String>) -> String {
    rows.map(|row| format!("`{row}`")).collect::<Vec<_>>().join(", ")
}

/// Three digits, as far as there are as many; what is just below 1 does not become it.
fn short(number: f64) -> String {
    match number.abs() {
        n if n >= 100.0 => format!("{number:.0}"),
        n if n >= 10.0 => format!("{number:.1}"),
        n if (0.995..1.0).contains(&n) => format!("{number:.3}"),
        _ => format!("{number:.2}"),
    }
}

/// `readme` with the results in their place.
fn replaced(readme: &str, results: &str) -> Result<String> {
    let parts = readme.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.with_context(|| format!("README.md lacks {BEGIN} or, behind it, {END}"))?;
    ensure!(!after.contains(BEGIN), "README.md has two places for results");
    Ok(format!("{before}{BEGIN}\n{results}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::{COLUMNS, VERDICTS, demanded, parse};

    /// A machine `m` of one day, with rows `a` and `b`.
    pub(super) fn machines() -> BTreeMap<String, Machine> {
        let record = format!(
            "{COLUMNS}\n\
             a,64/hot,libc,time,ns,3.135,2.9,3.3,5,libc,1.0,p\n\
             a,64/hot,auto,time,ns,3.2,2.9,3.3,5,libc,0.979,p\n\
             a,1M/hot,auto,time,ns,1500.0,2.9,3.3,5,libc,4.68,p\n\
             a,1M/hot,auto,time,ns,1600.0,2.9,3.3,5,libc,4.69,p\n\
             a,1M/hot,auto,time,ns,1700.0,2.9,3.3,5,libc,4.70,p\n\
             b,idle,auto,memory,KiB,9.6,9,10,1,kernel,,\n"
        );
        let verdicts = format!(
            "{VERDICTS}\n\
             p,a,64/hot,auto,time,missed,4.1,<= libc + 3 ns\n\
             p,a,1M/hot,auto,time,missed,4.68,>= 0.95 x libc\n\
             p,a,1M/hot,auto,time,reached,4.69,>= 0.95 x libc\n\
             p,a,1M/hot,auto,time,reached,4.70,>= 0.95 x libc\n\
             p,a,1M/hot,auto,cpu,none,,<= 1.05*libc\n"
        );
        let mut demands = demanded(&verdicts).unwrap();
        let mut taken = |row: &String, lines| {
            let demands = demands.remove(row).unwrap_or_default();
            Taken { day: "2026-01-31".into(), lines, demands }
        };
        let rows = parse(&record).unwrap();
        let rows = rows.into_iter().map(|(row, lines)| (row.clone(), taken(&row, lines))).collect();
        let facts = BTreeMap::from([("2026-01-31".to_owned(), vec!["CPU: x".to_owned()])]);
        BTreeMap::from([("m".to_owned(), Machine { facts, rows })])
    }

    /// The names of rows.
    pub(super) fn named(rows: &[&str]) -> Vec<String> {
        rows.iter().map(|row| (*row).to_owned()).collect()
    }

    #[test]
    fn a_row_that_nobody_describes_is_refused() {
        let unknown = known(&machines(), &named(&["a"])).unwrap_err().to_string();
        assert!(unknown.contains("\"b\""), "{unknown}");
        known(&machines(), &named(&["a", "b", "c"])).unwrap();
    }

    #[test]
    fn only_what_stands_between_the_marks_is_replaced() {
        let readme = format!("one\n{BEGIN}\nold\n{END}\ntwo\n");
        let fresh = replaced(&readme, "new").unwrap();
        assert_eq!(fresh, format!("one\n{BEGIN}\nnew\n{END}\ntwo\n"));
        assert_eq!(replaced(&fresh, "new").unwrap(), fresh);
        assert!(replaced("none", "new").is_err());
        assert!(replaced(&format!("{END}{BEGIN}"), "new").is_err());
    }

    #[test]
    fn a_little_less_is_less() {
        for (number, text) in
            [(0.9966, "0.997"), (0.994, "0.99"), (1.0, "1.00"), (12.345, "12.3"), (1234.5, "1234")]
        {
            assert_eq!(short(number), text);
        }
    }

    #[test]
    fn rows_are_those_of_the_table() {
        let bench = "| row | what |\n|---|---|\n| `copy` | x |\n| `pool` | `y` |\n\n## The row `python`\n";
        assert_eq!(rows(bench).unwrap(), ["copy", "pool", "python"]);
        assert!(rows("nothing").is_err());
    }
}
