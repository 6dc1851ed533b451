//! What README.md has of the results: how many cases are better than with the rival, the worst and the best.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;

use super::record::{Machine, Series};
use super::{quoted, runs, short};

/// A picture, a table with a column for each machine, and what is missing.
pub fn text(machines: &BTreeMap<String, Machine>, rows: &[String]) -> Result<String> {
    let mut text =
        String::from("![How many times better than the rival, a dot a case](bench/record/results.svg)\n\n");
    for (at, (name, machine)) in machines.iter().enumerate() {
        writeln!(text, "- **{}**: {}{}", letter(at), name, facts(machine))?;
    }
    write!(text, "\n| row | what, against which rival |")?;
    for at in 0..machines.len() {
        write!(text, " {} |", letter(at))?;
    }
    writeln!(text, "\n|---|---|{}", "---|".repeat(machines.len()))?;
    for row in rows {
        for (engine, metric, baseline) in compared(machines, row) {
            write!(text, "| `{row}` | {engine}, {metric}, {baseline} |")?;
            for machine in machines.values() {
                let of_row = machine.rows.get(row).map(|taken| taken.main()).unwrap_or_default();
                let same =
                    |one: &&Series<'_>| (one.engine, one.metric, one.baseline) == (engine, metric, baseline);
                let cell = of_row.iter().find(same).map(cell).unwrap_or_default();
                write!(text, " {cell} |")?;
            }
            writeln!(text)?;
        }
    }
    text.push_str(&of_several(machines, rows));
    text.push_str(&demands(machines, rows));
    for (at, machine) in machines.values().enumerate() {
        let missing: Vec<&String> = rows.iter().filter(|row| !machine.rows.contains_key(*row)).collect();
        if !missing.is_empty() {
            writeln!(text, "\nWithout a record on {}: {}.", letter(at), quoted(missing.into_iter()))?;
        }
    }
    Ok(text)
}

/// Which figures are of more than one run.
fn of_several(machines: &BTreeMap<String, Machine>, rows: &[String]) -> String {
    let mut text = String::new();
    for (at, machine) in machines.values().enumerate() {
        let taken = rows.iter().filter_map(|row| Some((row, machine.rows.get(row)?)));
        let several = taken.filter(|(_, taken)| taken.runs().1 > 1);
        let several: Vec<String> = several.map(|(row, taken)| format!("`{row}` {}", runs(taken))).collect();
        if !several.is_empty() {
            text.push_str(&format!("\nOf several runs on {}: {}.", letter(at), several.join(", ")));
        }
    }
    match text.is_empty() {
        true => "\nAll figures are of one run.\n".to_owned(),
        false => text + " All other figures are of one run.\n",
    }
}

/// How many of the demands of each row were reached, a column for each machine. Empty where no record has verdicts.
fn demands(machines: &BTreeMap<String, Machine>, rows: &[String]) -> String {
    let tally = |machine: &Machine, row: &str| {
        machine.rows.get(row).map(|taken| taken.tally()).filter(|tally| tally.iter().sum::<usize>() > 0)
    };
    let judged = |row: &&String| machines.values().any(|machine| tally(machine, row).is_some());
    let lines = rows.iter().filter(judged).map(|row| {
        let cells = machines.values().map(|machine| match tally(machine, row) {
            None => " |".to_owned(),
            Some([reached, missed, open]) => {
                let missed = if missed > 0 { format!("**{missed} missed**") } else { "0 missed".to_owned() };
                let open = if open > 0 { format!(", {open} without a verdict") } else { String::new() };
                format!(" {reached} reached, {missed}{open} |")
            }
        });
        format!("| `{row}` |{}\n", cells.collect::<String>())
    });
    let lines: String = lines.collect();
    if lines.is_empty() {
        return lines;
    }
    let letters: String = (0..machines.len()).map(|at| format!(" {} |", letter(at))).collect();
    let head =
        "\nOf what a row has to reach, as its run has judged; records of before 2026-11-29 have no verdicts:";
    format!("{head}\n\n| row |{letters}\n|---|{}\n{lines}", "---|".repeat(machines.len()))
}

/// By which letter the table knows a machine.
pub fn letter(at: usize) -> String {
    u8::try_from(at)
        .ok()
        .and_then(|at| b'A'.checked_add(at))
        .map_or_else(String::new, |letter| char::from(letter).into())
}

/// The days of a machine's records, and of its facts those by which one machine differs from another.
fn facts(machine: &Machine) -> String {
    let mut days: Vec<&String> = machine.rows.values().map(|taken| &taken.day).collect();
    days.sort();
    days.dedup();
    let newest = days.last().and_then(|day| machine.facts.get(*day));
    let told = newest
        .into_iter()
        .flatten()
        .filter(|fact| ["CPU:", "cores:", "kernel:"].iter().any(|kind| fact.starts_with(kind)));
    let days = days.into_iter().map(String::as_str);
    days.chain(told.map(String::as_str)).fold(String::new(), |text, fact| format!("{text}; {fact}"))
}

/// What was compared in `row` on any machine, in the order of the first that has it.
fn compared<'m>(machines: &'m BTreeMap<String, Machine>, row: &str) -> Vec<(&'m str, &'m str, &'m str)> {
    let mut all = Vec::new();
    for series in machines.values().filter_map(|machine| machine.rows.get(row)).flat_map(|taken| taken.main())
    {
        let key = (series.engine, series.metric, series.baseline);
        if series.ratios().next().is_some() && !all.contains(&key) {
            all.push(key);
        }
    }
    all
}

/// How many are better, the worst and the best; what is worse than the rival is bold.
fn cell(series: &Series<'_>) -> String {
    let mut ratios: Vec<(&str, f64)> = series.ratios().collect();
    ratios.sort_by(|one, other| one.1.total_cmp(&other.1));
    let shown = |(case, ratio): (&str, f64)| match ratio < 1.0 {
        true => format!("**{} x** `{case}`", short(ratio)),
        false => format!("{} x `{case}`", short(ratio)),
    };
    let better = ratios.iter().filter(|(_, ratio)| *ratio >= 1.0).count();
    match ratios[..] {
        [] => String::new(),
        [only] => shown(only),
        [worst, .., best] => format!("{better} of {}: {} to {}", ratios.len(), shown(worst), shown(best)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{machines, named};
    use super::*;

    #[test]
    fn the_worst_case_is_named_and_bold_and_what_is_missing_is_named() {
        let text = text(&machines(), &named(&["a", "b", "c"])).unwrap();
        assert!(text.contains("- **A**: m; 2026-01-31; CPU: x\n"), "{text}");
        let line = "| `a` | auto, time, libc | 1 of 2: **0.98 x** `64/hot` to 4.69 x `1M/hot` |\n";
        assert!(text.contains(line), "{text}");
        // Nothing is compared with a rival there.
        assert!(!text.contains("| `b`"), "{text}");
        assert!(text.contains("Without a record on A: `c`."), "{text}");
        assert!(
            text.contains(
                "\nOf several runs on A: `a` medians of 1 to 3 runs. All other figures are of one run.\n"
            ),
            "{text}"
        );
        let demands = "| row | A |\n|---|---|\n| `a` | 1 reached, **1 missed**, 1 without a verdict |\n\n";
        assert!(text.contains(demands), "{text}");
    }

    #[test]
    fn without_verdicts_nothing_is_said_of_them() {
        assert_eq!(demands(&machines(), &named(&["b", "c"])), "");
    }
}
