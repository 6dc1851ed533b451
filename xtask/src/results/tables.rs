//! What bench/record/README.md has: all figures, a table for each row, machine and figure, a line for each case.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Result, ensure};

use super::record::{Demand, Line, Machine, Series, Taken, is_ours};
use super::{quoted, runs, short};

const HEAD: &str = "# Results\n\nAll engines and figures in the newest record of each row and machine: medians, and in brackets how many times better \
                    than the rival that is named first, below 1 in bold. Of several runs of one program on that day they are the medians of what each run has; a demand is reached, or missed, where \
                    most runs say so. Other rivals' columns stand last, their names in italics. Written by `cargo xtask results` from the files here, which `onecopy bench --record` \
                    appends to.\n";

/// All of the page.
pub fn text(machines: &BTreeMap<String, Machine>, rows: &[String]) -> Result<String> {
    let mut text = HEAD.to_owned();
    for (name, machine) in machines {
        writeln!(text, "\n## {name}\n")?;
        for (day, facts) in &machine.facts {
            if machine.rows.values().any(|taken| taken.day == *day) {
                writeln!(text, "- {day}: {}", facts.join("; "))?;
            }
        }
        for row in rows {
            if let Some(taken) = machine.rows.get(row) {
                writeln!(text, "\n### `{row}`, {}, {}", taken.day, runs(taken))?;
                text.push_str(&verdicts(taken)?);
                let tables = tables(taken)?;
                ensure!(!tables.is_empty(), "{name}: row {row} has no engine beside its baseline");
                text.push_str(&tables);
            }
        }
        let missing: Vec<&String> = rows.iter().filter(|row| !machine.rows.contains_key(*row)).collect();
        if !missing.is_empty() {
            writeln!(text, "\nWithout a record on this machine: {}.", quoted(missing.into_iter()))?;
        }
    }
    let nowhere = |row: &&String| !machines.values().any(|machine| machine.rows.contains_key(*row));
    let nowhere: Vec<&String> = rows.iter().filter(nowhere).collect();
    if !nowhere.is_empty() {
        writeln!(text, "\n**Without a record on any machine: {}.**", quoted(nowhere.into_iter()))?;
    }
    Ok(text)
}

/// How many demands were reached, and each that was missed. Empty where the record has no verdicts.
fn verdicts(taken: &Taken) -> Result<String> {
    let [reached, missed, open] = taken.tally();
    let mut text = String::new();
    if reached + missed + open == 0 {
        return Ok(text);
    }
    let (cases, whole) = taken.cases();
    writeln!(
        text,
        "\nDemands: {reached} reached, {missed} missed, {open} without a verdict. Of {cases} cases with a verdict {whole} missed none."
    )?;
    for (at, demand) in taken.demands.iter().filter(|demand| demand.holds == Some(false)).enumerate() {
        let before = if at == 0 { "\n" } else { "" };
        let Demand { case, engine, metric, words, missed, runs, .. } = demand;
        let reached = demand.reached.map_or_else(String::new, short);
        let often = if *runs > 1 { format!(", missed in {missed} of {runs} runs") } else { String::new() };
        writeln!(text, "{before}- **missed**: `{case}`, {engine}, {metric} {words}: {reached}{often}")?;
    }
    Ok(text)
}

/// A table for each figure and rival: cases down, engines across.
fn tables(taken: &Taken) -> Result<String> {
    let all = taken.all();
    let mut figures: Vec<(&str, &str)> = Vec::new();
    for series in &all {
        if !figures.contains(&(series.metric, series.baseline)) {
            figures.push((series.metric, series.baseline));
        }
    }
    let mut text = String::new();
    for (metric, baseline) in figures {
        let engines: Vec<&Series<'_>> =
            all.iter().filter(|one| (one.metric, one.baseline) == (metric, baseline)).collect();
        let mut cases: Vec<&str> = Vec::new();
        for line in engines.iter().flat_map(|series| &series.lines) {
            if !cases.contains(&&*line.case) {
                cases.push(&line.case);
            }
        }
        let names: Vec<String> = engines.iter().map(|series| name(series.engine)).collect();
        let unit = engines.first().and_then(|series| series.lines.first()).map_or("", |line| &*line.unit);
        writeln!(text, "\n| {metric} ({unit}), against {baseline} | {} |", names.join(" | "))?;
        writeln!(text, "|---|{}", "---|".repeat(names.len()))?;
        for case in cases {
            write!(text, "| {case} |")?;
            for series in &engines {
                let line = series.lines.iter().find(|line| line.case == case);
                write!(text, " {} |", line.map(|line| cell(line)).unwrap_or_default())?;
            }
            writeln!(text)?;
        }
    }
    Ok(text)
}

/// An engine's name at the head of a column.
fn name(engine: &str) -> String {
    if is_ours(engine) { engine.to_owned() } else { format!("*{engine}*") }
}

/// A figure, and how many times better it is than the rival's; in bold where it is worse.
fn cell(line: &Line) -> String {
    let figure = short(line.median);
    match line.ratio {
        None => figure,
        Some(ratio) if ratio < 1.0 => format!("{figure} (**{} x**)", short(ratio)),
        Some(ratio) => format!("{figure} ({} x)", short(ratio)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{machines, named};
    use super::*;

    #[test]
    fn what_is_worse_is_bold_and_what_is_missing_is_named() {
        let text = text(&machines(), &named(&["a", "b", "c"])).unwrap();
        assert!(
            text.contains("- 2026-01-31: CPU: x\n\n### `a`, 2026-01-31, medians of 1 to 3 runs\n"),
            "{text}"
        );
        let demands = "Demands: 1 reached, 1 missed, 1 without a verdict. Of 2 cases with a verdict 1 missed none.\n\n- **missed**: `64/hot`, auto, time <= libc + 3 ns: 4.10\n\n|";
        assert!(text.contains(demands), "{text}");
        assert_eq!(text.matches("Demands:").count(), 1, "{text}");
        assert!(text.contains("### `b`, 2026-01-31, one run\n"), "{text}");
        let table = "| time (ns), against libc | auto |\n|---|---|\n| 64/hot | 3.20 (**0.98 x**) |\n| 1M/hot | 1600 (4.69 x) |\n";
        assert!(text.contains(table), "{text}");
        assert!(
            text.contains("| memory (KiB), against kernel | auto |\n|---|---|\n| idle | 9.60 |\n"),
            "{text}"
        );
        assert_eq!((name("auto"), name("kernel-512")), ("auto".into(), "*kernel-512*".into()));
        assert!(text.contains("Without a record on this machine: `c`."), "{text}");
        assert!(text.ends_with("**Without a record on any machine: `c`.**\n"), "{text}");
    }
}
