//! `cargo xtask results`: the README's tables of results, from bench/record and nothing else; and all of them, in bench/record/README.md.
//!
//! Each file there is one day on one machine, with the machine's facts beside it. Of each machine and row the newest day counts. A
//! ratio below 1 is shown like the others, in bold; a row without a record is named as one. The README has what a program gets
//! without asking (the engine `auto`), by each case's main figure and by its CPU time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::shell;

/// Flags of `cargo xtask results`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write nothing; fail when README.md differs from what the records say.
    #[arg(long)]
    pub check: bool,
}

const BEGIN: &str = "<!-- results: written by `cargo xtask results` from bench/record -->";
const END: &str = "<!-- end of results -->";

/// The head of bench/record/README.md.
const HEAD: &str = "# Results\n\nAll engines and figures of the newest record of each row and machine: medians, and ratios against the rival, larger \
                    is better, below 1 in bold. Written by `cargo xtask results` from the files here, which `onecopy bench --record` \
                    appends to.\n";

/// The columns of a record, as bench/src/record.rs writes them.
const COLUMNS: &str = "bench,case,engine,metric,unit,median,low,high,rounds,baseline,ratio";

/// How the names of rivals begin (bench/README.md). All others are ours: `auto` is what a program gets without asking.
const RIVALS: [&str; 15] = [
    "kernel",
    "libc",
    "nginx",
    "iceoryx2",
    "smoltcp",
    "gvisor",
    "linux",
    "line",
    "lock",
    "malloc",
    "atomic_inc",
    "best",
    "control",
    "pickle",
    "shared_memory",
];

/// One line of a record.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    case: String,
    engine: String,
    metric: String,
    unit: String,
    median: f64,
    baseline: String,
    ratio: Option<f64>,
}

/// A row on a machine: the day, and its lines in the order in which they were taken.
#[derive(Clone, Debug, PartialEq)]
struct Taken {
    day: String,
    lines: Vec<Line>,
}

/// What is known of one machine.
#[derive(Clone, Debug, Default, PartialEq)]
struct Machine {
    /// By day: its facts, a line each.
    facts: BTreeMap<String, Vec<String>>,
    rows: BTreeMap<String, Taken>,
}

/// Runs `cargo xtask results`.
pub fn run(args: &Args) -> Result<()> {
    let root = shell::root();
    let rows = rows(&fs::read_to_string(root.join("bench/README.md")).context("bench/README.md")?)?;
    let machines = read(&root.join("bench/record"))?;
    let readme = fs::read_to_string(root.join("README.md")).context("README.md")?;
    let files = [
        ("README.md", replaced(&readme, &table(&machines, &rows, Extent::Main)?)?),
        ("bench/record/README.md", format!("{HEAD}{}", table(&machines, &rows, Extent::All)?)),
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

/// How much of the records is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// What a program gets, by what counts most.
    Main,
    /// All.
    All,
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

/// All records below `folder`, by machine.
fn read(folder: &Path) -> Result<BTreeMap<String, Machine>> {
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|kind| kind == "csv") {
            files.insert(path);
        }
    }
    let mut machines = BTreeMap::<String, Machine>::new();
    // The names begin with the day, so the newest is the last.
    for path in files {
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let (day, machine) = parted(&name)?;
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let facts = path.with_extension("txt");
        let facts = fs::read_to_string(&facts).with_context(|| {
            format!("{}: a record without its machine's facts counts for nothing", facts.display())
        })?;
        let machine = machines.entry(machine.to_owned()).or_default();
        machine.facts.insert(day.to_owned(), facts.lines().map(str::to_owned).collect());
        let taken = parse(&text).with_context(|| path.display().to_string())?;
        for (row, lines) in taken {
            machine.rows.insert(row, Taken { day: day.to_owned(), lines });
        }
    }
    Ok(machines)
}

/// The day and the machine in the name of a record.
fn parted(name: &str) -> Result<(&str, &str)> {
    let parts = (name.get(..10), name.get(10..).and_then(|rest| rest.strip_prefix('-')));
    let is_day = |day: &str| {
        day.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        })
    };
    match parts {
        (Some(day), Some(machine)) if is_day(day) && !machine.is_empty() => Ok((day, machine)),
        _ => bail!("bench/record/{name}.csv: a record is named DAY-MACHINE, as 2026-01-31-x86_64-..."),
    }
}

/// The lines of a record by row. What was measured again that day replaces what was measured before.
fn parse(text: &str) -> Result<BTreeMap<String, Vec<Line>>> {
    let mut lines = text.lines();
    ensure!(lines.next() == Some(COLUMNS), "the first line is not {COLUMNS}");
    let mut rows = BTreeMap::<String, Vec<Line>>::new();
    for (at, text) in lines.enumerate() {
        // (No name and no figure of the bench has a comma.)
        let fields: Vec<&str> = text.split(',').collect();
        let &[row, case, engine, metric, unit, median, _, _, _, baseline, ratio] = &fields[..] else {
            bail!("line {}: {} fields instead of 11", at + 2, fields.len());
        };
        let number = |text: &str| text.parse::<f64>().with_context(|| format!("line {}: {text:?}", at + 2));
        let ratio = if ratio.is_empty() { None } else { Some(number(ratio)?) };
        let line = Line {
            case: case.into(),
            engine: engine.into(),
            metric: metric.into(),
            unit: unit.into(),
            median: number(median)?,
            baseline: baseline.into(),
            ratio,
        };
        let row = rows.entry(row.to_owned()).or_default();
        let key = |line: &Line| (line.case.clone(), line.engine.clone(), line.metric.clone());
        match row.iter_mut().find(|before| key(before) == key(&line)) {
            Some(before) => *before = line,
            None => row.push(line),
        }
    }
    Ok(rows)
}

/// The results, as README.md has them.
fn table(machines: &BTreeMap<String, Machine>, rows: &[String], extent: Extent) -> Result<String> {
    ensure!(!machines.is_empty(), "bench/record has no record");
    let known: BTreeSet<&String> = rows.iter().collect();
    let mut text = String::new();
    for (name, machine) in machines {
        if let Some(row) = machine.rows.keys().find(|row| !known.contains(row)) {
            bail!("bench/record has a row {row:?} for {name}, which the table in bench/README.md does not");
        }
        writeln!(text, "\n**{name}**\n")?;
        for (day, facts) in &machine.facts {
            if machine.rows.values().any(|taken| taken.day == *day) {
                writeln!(text, "- {day}: {}", facts.join("; "))?;
            }
        }
        writeln!(text, "\n| row, day | measured | against | by case |\n|---|---|---|---|")?;
        for row in rows {
            let Some(taken) = machine.rows.get(row) else { continue };
            // All cells of one engine, metric and rival in one line; the row's own order.
            let mut order: Vec<(&str, &str, &str)> = Vec::new();
            let ours = |line: &&Line| line.engine != line.baseline && is_ours(&line.engine);
            let ours: Vec<&Line> = taken.lines.iter().filter(ours).collect();
            let lines = match extent {
                Extent::Main => main_of(&ours),
                Extent::All => ours,
            };
            for line in &lines {
                let key = (&*line.engine, &*line.metric, &*line.baseline);
                if !order.contains(&key) {
                    order.push(key);
                }
            }
            ensure!(!order.is_empty(), "{name}: row {row} has no engine of ours");
            order.sort_by_key(|(engine, ..)| *engine != "auto");
            for (engine, metric, baseline) in order {
                let cells = lines.iter().filter(|line| {
                    line.engine == engine && line.metric == metric && line.baseline == baseline
                });
                let cells: Vec<String> = cells.map(|line| cell(line)).collect();
                writeln!(
                    text,
                    "| `{row}` {} | {engine}, {metric} | {baseline} | {} |",
                    taken.day,
                    cells.join(" · ")
                )?;
            }
        }
        let missing = |row: &&String| !machine.rows.contains_key(*row);
        let missing: Vec<String> = rows.iter().filter(missing).map(|row| format!("`{row}`")).collect();
        if !missing.is_empty() {
            writeln!(text, "\nWithout a record on this machine: {}.", missing.join(", "))?;
        }
    }
    let nowhere = |row: &&String| !machines.values().any(|machine| machine.rows.contains_key(*row));
    let nowhere: Vec<String> = rows.iter().filter(nowhere).map(|row| format!("`{row}`")).collect();
    if !nowhere.is_empty() {
        writeln!(text, "\n**Without a record on any machine: {}.**", nowhere.join(", "))?;
    }
    Ok(text)
}

/// The lines of `auto`, or of all where there is none, that have the first figure of their case, or CPU time.
fn main_of<'l>(ours: &[&'l Line]) -> Vec<&'l Line> {
    let auto = ours.iter().any(|line| line.engine == "auto");
    let first = |line: &Line| {
        let of_case = ours.iter().find(|other| other.case == line.case && other.engine == line.engine);
        of_case.is_some_and(|other| other.metric == line.metric)
    };
    let wanted = |line: &&&Line| (!auto || line.engine == "auto") && (first(line) || line.metric == "cpu");
    ours.iter().filter(wanted).copied().collect()
}

fn is_ours(engine: &str) -> bool {
    !RIVALS.iter().any(|rival| engine.starts_with(rival))
}

/// A case with its figure and how many times better that is than the rival's; in bold where it is worse.
fn cell(line: &Line) -> String {
    let figure = format!("{} {}", short(line.median), line.unit);
    match line.ratio {
        None => format!("{}: {figure}", line.case),
        Some(ratio) if ratio < 1.0 => format!("{}: **{} x** ({figure})", line.case, short(ratio)),
        Some(ratio) => format!("{}: {} x ({figure})", line.case, short(ratio)),
    }
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

    const RECORD: &str = "\
bench,case,engine,metric,unit,median,low,high,rounds,baseline,ratio
a,64/hot,libc,time,ns,3.135,2.9,3.3,5,libc,1.0
a,64/hot,auto,time,ns,3.2,2.9,3.3,5,libc,0.979
a,1M/hot,auto,time,ns,3200.0,2.9,3.3,5,libc,2.345
b,idle,auto,memory,KiB,9.6,9,10,1,kernel,
a,1M/hot,auto,time,ns,1600.0,2.9,3.3,5,libc,4.69
";

    fn machines() -> BTreeMap<String, Machine> {
        let rows = parse(RECORD).unwrap();
        let taken = |lines| Taken { day: "2026-01-31".into(), lines };
        let rows = rows.into_iter().map(|(row, lines)| (row, taken(lines))).collect();
        let facts = BTreeMap::from([("2026-01-31".to_owned(), vec!["CPU: x".to_owned()])]);
        BTreeMap::from([("m".to_owned(), Machine { facts, rows })])
    }

    #[test]
    fn what_is_worse_is_bold_and_what_is_missing_is_named() {
        let rows = ["a", "b", "c"].map(str::to_owned);
        let text = table(&machines(), &rows, Extent::All).unwrap();
        assert!(text.contains("- 2026-01-31: CPU: x\n"), "{text}");
        let line = "| `a` 2026-01-31 | auto, time | libc | 64/hot: **0.98 x** (3.20 ns) · 1M/hot: 4.69 x (1600 ns) |";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("| `b` 2026-01-31 | auto, memory | kernel | idle: 9.60 KiB |"), "{text}");
        assert!(text.contains("Without a record on this machine: `c`."), "{text}");
        assert!(text.ends_with("**Without a record on any machine: `c`.**\n"), "{text}");
        let unknown = table(&machines(), &["a".to_owned()], Extent::All).unwrap_err().to_string();
        assert!(unknown.contains("\"b\""), "{unknown}");
    }

    #[test]
    fn the_readme_has_what_a_program_gets() {
        let record = format!(
            "{COLUMNS}\na,1,auto,rate,GB/s,2,2,2,5,kernel,2\na,1,auto,p99,ms,2,2,2,5,kernel,2\n\
             a,1,auto,cpu,CPU s/GB,2,2,2,5,kernel,0.5\na,1,nt,rate,GB/s,3,2,2,5,kernel,3\n\
             b,1,copy,rate,GB/s,3,2,2,5,kernel,3\nb,1,zc,rate,GB/s,3,2,2,5,kernel,3\n"
        );
        let rows = parse(&record).unwrap();
        let shown = |row: &str| {
            let ours: Vec<&Line> = rows[row].iter().collect();
            main_of(&ours).iter().map(|line| format!("{} {}", line.engine, line.metric)).collect::<Vec<_>>()
        };
        assert_eq!(shown("a"), ["auto rate", "auto cpu"]);
        assert_eq!(shown("b"), ["copy rate", "zc rate"]);
    }

    #[test]
    fn what_is_no_record_is_refused() {
        assert!(parse("bench,case\n").is_err());
        assert!(parse(&format!("{COLUMNS}\na,b,c\n")).unwrap_err().to_string().contains("line 2: 3 fields"));
        assert!(parse(&format!("{COLUMNS}\na,b,c,d,e,x,1,1,1,f,1\n")).is_err());
        for name in ["2026-01-31", "2026-01-31-", "26-01-31-x86", "2026-0l-31-x86", ""] {
            assert!(parted(name).is_err(), "{name}");
        }
        assert_eq!(parted("2026-01-31-x86_64-2c").unwrap(), ("2026-01-31", "x86_64-2c"));
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
