//! The files of bench/record: each is one day on one machine, with the machine's facts and the verdicts beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// The columns of a record, as bench/src/record.rs writes them.
pub const COLUMNS: &str = "bench,case,engine,metric,unit,median,low,high,rounds,baseline,ratio";

/// The columns of the verdicts beside it. (The demand may have commas, and is quoted then.)
pub const VERDICTS: &str = "bench,case,engine,metric,verdict,reached,demand";

/// How the names of rivals begin (bench/README.md). All others are ours: `auto` is what a program gets without asking.
const RIVALS: [&str; 18] = [
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
    "torch",
    "recv-copy",
    "send-copy",
];

/// One line of a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub case: String,
    pub engine: String,
    pub metric: String,
    pub unit: String,
    pub median: f64,
    pub baseline: String,
    pub ratio: Option<f64>,
}

/// What was demanded in a case, and what came of it, as the run itself has said.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    pub case: String,
    pub engine: String,
    pub metric: String,
    /// None: there was no verdict.
    pub holds: Option<bool>,
    pub reached: String,
    pub words: String,
}

/// A row on a machine: the day, its lines in the order in which they were taken, and what was demanded.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    pub day: String,
    pub lines: Vec<Line>,
    /// Empty where nothing is demanded, and in records of before 2026-11-29.
    pub demands: Vec<Demand>,
}

/// What is known of one machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// By day: its facts, a line each.
    pub facts: BTreeMap<String, Vec<String>>,
    pub rows: BTreeMap<String, Taken>,
}

/// The cases that one engine has in one figure, beside one rival.
#[derive(Clone, Debug, PartialEq)]
pub struct Series<'l> {
    pub engine: &'l str,
    pub metric: &'l str,
    pub baseline: &'l str,
    pub lines: Vec<&'l Line>,
}

impl Series<'_> {
    /// The cases that were compared, and how many times better each is than the rival.
    pub fn ratios(&self) -> impl Iterator<Item = (&str, f64)> {
        self.lines.iter().filter_map(|line| Some((&*line.case, line.ratio?)))
    }
}

impl Taken {
    /// How many demands were reached, missed, and left without a verdict.
    pub fn tally(&self) -> [usize; 3] {
        [Some(true), Some(false), None]
            .map(|holds| self.demands.iter().filter(|demand| demand.holds == holds).count())
    }

    /// All that was measured beside a rival, other rivals among it, in the row's own order but `auto` first and rivals last.
    pub fn all(&self) -> Vec<Series<'_>> {
        let mut all = series(self.lines.iter().filter(|line| line.engine != line.baseline));
        all.sort_by_key(|one| !is_ours(one.engine));
        all
    }

    /// What a program gets without asking: of `auto`, or of all engines where there is none, the first figure of each case, and CPU time.
    pub fn main(&self) -> Vec<Series<'_>> {
        let ours = |line: &&Line| line.engine != line.baseline && is_ours(&line.engine);
        let auto = self.lines.iter().filter(ours).any(|line| line.engine == "auto");
        let first = |line: &Line| {
            let of_case =
                self.lines.iter().find(|other| other.case == line.case && other.engine == line.engine);
            of_case.is_some_and(|other| other.metric == line.metric)
        };
        let wanted = |line: &&Line| (!auto || line.engine == "auto") && (first(line) || line.metric == "cpu");
        series(self.lines.iter().filter(ours).filter(wanted))
    }
}

/// All cells of one engine, metric and rival together.
fn series<'l>(lines: impl Iterator<Item = &'l Line>) -> Vec<Series<'l>> {
    let mut all: Vec<Series<'l>> = Vec::new();
    for line in lines {
        let (engine, metric, baseline) = (&*line.engine, &*line.metric, &*line.baseline);
        let same =
            |one: &&mut Series<'_>| (one.engine, one.metric, one.baseline) == (engine, metric, baseline);
        match all.iter_mut().find(same) {
            Some(known) => known.lines.push(line),
            None => all.push(Series { engine, metric, baseline, lines: vec![line] }),
        }
    }
    all.sort_by_key(|one| one.engine != "auto");
    all
}

/// Whether an engine is ours.
pub fn is_ours(engine: &str) -> bool {
    !RIVALS.iter().any(|rival| engine.starts_with(rival))
}

/// All records below `folder`, by machine.
pub fn read(folder: &Path) -> Result<BTreeMap<String, Machine>> {
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(".csv") && !name.ends_with(".verdicts.csv") {
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
        let verdicts = path.with_extension("verdicts.csv");
        let mut demands = match fs::read_to_string(&verdicts) {
            Ok(text) => demanded(&text).with_context(|| verdicts.display().to_string())?,
            Err(_) => BTreeMap::new(),
        };
        for (row, lines) in taken {
            let demands = demands.remove(&row).unwrap_or_default();
            machine.rows.insert(row, Taken { day: day.to_owned(), lines, demands });
        }
    }
    Ok(machines)
}

/// The day and the machine in the name of a record.
pub fn parted(name: &str) -> Result<(&str, &str)> {
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
pub fn parse(text: &str) -> Result<BTreeMap<String, Vec<Line>>> {
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

/// What was demanded, by row. What was judged again that day replaces what was judged before.
pub fn demanded(text: &str) -> Result<BTreeMap<String, Vec<Demand>>> {
    let mut lines = text.lines();
    ensure!(lines.next() == Some(VERDICTS), "the first line is not {VERDICTS}");
    let mut rows = BTreeMap::<String, Vec<Demand>>::new();
    for (at, text) in lines.enumerate() {
        let fields: Vec<&str> = text.splitn(7, ',').collect();
        let &[row, case, engine, metric, verdict, reached, words] = &fields[..] else {
            bail!("line {}: {} fields instead of 7", at + 2, fields.len());
        };
        let holds = match verdict {
            "reached" => Some(true),
            "missed" => Some(false),
            "none" => None,
            other => bail!("line {}: {other:?} is no verdict", at + 2),
        };
        let demand = Demand {
            case: case.into(),
            engine: engine.into(),
            metric: metric.into(),
            holds,
            reached: reached.into(),
            words: words.trim_matches('"').into(),
        };
        let row = rows.entry(row.to_owned()).or_default();
        let key =
            |one: &Demand| (one.case.clone(), one.engine.clone(), one.metric.clone(), one.words.clone());
        match row.iter_mut().find(|before| key(before) == key(&demand)) {
            Some(before) => *before = demand,
            None => row.push(demand),
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_a_program_gets_comes_first_and_rivals_come_last() {
        let record = format!(
            "{COLUMNS}\na,1,nt,rate,GB/s,3,2,2,5,kernel,3\na,1,auto,rate,GB/s,2,2,2,5,kernel,2\n\
             a,1,auto,p99,ms,2,2,2,5,kernel,2\na,1,auto,cpu,CPU s/GB,2,2,2,5,kernel,0.5\n\
             a,1,kernel-512,rate,GB/s,3,2,2,5,kernel,3\nb,1,copy,rate,GB/s,3,2,2,5,kernel,3\n\
             b,1,zc,rate,GB/s,3,2,2,5,kernel,3\nb,1,recv-copy,rate,GB/s,3,2,2,5,kernel,3\n"
        );
        let rows = parse(&record).unwrap();
        let names = |all: Vec<Series<'_>>| {
            all.iter().map(|one| format!("{}, {}", one.engine, one.metric)).collect::<Vec<_>>()
        };
        let taken =
            |row: &str| Taken { day: "2026-01-31".into(), lines: rows[row].clone(), demands: Vec::new() };
        assert_eq!(names(taken("a").main()), ["auto, rate", "auto, cpu"]);
        let all = ["auto, rate", "auto, p99", "auto, cpu", "nt, rate", "kernel-512, rate"];
        assert_eq!(names(taken("a").all()), all);
        assert_eq!(names(taken("b").main()), ["copy, rate", "zc, rate"]);
    }

    #[test]
    fn what_was_measured_again_replaces_what_was_measured_before() {
        let record =
            format!("{COLUMNS}\na,1,auto,rate,GB/s,2,2,2,5,kernel,2\na,1,auto,rate,GB/s,4,2,2,5,kernel,4\n");
        let rows = parse(&record).unwrap();
        assert_eq!(rows["a"].iter().map(|line| line.median).collect::<Vec<_>>(), [4.0]);
    }

    #[test]
    fn what_was_judged_again_replaces_what_was_judged_before_and_no_other_verdict_is_believed() {
        let text = format!(
            "{VERDICTS}\na,1,auto,rate,missed,0.9,\">= 1 x best of b, c\"\na,1,auto,rate,reached,2.5,>= 2 x b\n\
             a,1,auto,rate,none,,\">= 1 x best of b, c\"\n"
        );
        let rows = demanded(&text).unwrap();
        let all: Vec<_> = rows["a"].iter().map(|demand| (demand.holds, &*demand.words)).collect();
        assert_eq!(all, [(None, ">= 1 x best of b, c"), (Some(true), ">= 2 x b")]);
        assert!(demanded(&format!("{VERDICTS}\na,1,auto,rate,perhaps,,x\n")).is_err());
        assert!(demanded(&format!("{VERDICTS}\na,1,auto\n")).is_err());
        assert!(demanded("bench,case\n").is_err());
    }
}
