//! The files of bench/record: each is one day on one machine, with the machine's facts and the verdicts beside it.
//!
//! A file keeps every run. What counts of a case is the program that measured it last on that day: the median of that program's runs, and the verdict
//! that more than half of them gave.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// The columns of a record, as bench/src/record.rs writes them.
pub const COLUMNS: &str = "bench,case,engine,metric,unit,median,low,high,rounds,baseline,ratio,program";

/// The columns of the verdicts beside it. (The demand may have commas, and is quoted then.)
pub const VERDICTS: &str = "program,bench,case,engine,metric,verdict,reached,demand";

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

/// One figure of a case, of one run or of several.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub case: String,
    pub engine: String,
    pub metric: String,
    pub unit: String,
    /// Of several runs the median of theirs, as `ratio`.
    pub median: f64,
    pub baseline: String,
    pub ratio: Option<f64>,
    pub runs: usize,
}

/// What was demanded in a case, and what came of it, as the runs themselves have said.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    pub case: String,
    pub engine: String,
    pub metric: String,
    /// None: there was no verdict.
    pub holds: Option<bool>,
    /// Of several runs the median of what those with a verdict have reached.
    pub reached: Option<f64>,
    pub words: String,
    /// How many runs there were, and in how many of them it was missed.
    pub runs: usize,
    pub missed: usize,
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

    /// Of how many cases a demand has a verdict, and how many of these have missed none.
    pub fn cases(&self) -> (usize, usize) {
        let judged = self.demands.iter().filter(|demand| demand.holds.is_some());
        let cases: BTreeSet<&str> = judged.map(|demand| &*demand.case).collect();
        let missed = self.demands.iter().filter(|demand| demand.holds == Some(false));
        let missed: BTreeSet<&str> = missed.map(|demand| &*demand.case).collect();
        (cases.len(), cases.len() - missed.len())
    }

    /// The fewest and the most runs of its figures.
    pub fn runs(&self) -> (usize, usize) {
        let runs = || self.lines.iter().map(|line| line.runs);
        (runs().min().unwrap_or_default(), runs().max().unwrap_or_default())
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

/// The figures of a record by row.
pub fn parse(text: &str) -> Result<BTreeMap<String, Vec<Line>>> {
    let mut lines = text.lines();
    ensure!(lines.next() == Some(COLUMNS), "the first line is not {COLUMNS}");
    let mut rows = BTreeMap::<String, Runs<(), Line>>::new();
    for (at, text) in lines.enumerate() {
        // (No name and no figure of the bench has a comma.)
        let fields: Vec<&str> = text.split(',').collect();
        let &[row, case, engine, metric, unit, median, _, _, _, baseline, ratio, program] = &fields[..]
        else {
            bail!("line {}: {} fields instead of 12", at + 2, fields.len());
        };
        let line = Line {
            case: case.into(),
            engine: engine.into(),
            metric: metric.into(),
            unit: unit.into(),
            median: number(median, at)?.with_context(|| format!("line {}: no figure", at + 2))?,
            baseline: baseline.into(),
            ratio: number(ratio, at)?,
            runs: 1,
        };
        let place = (line.case.clone(), line.engine.clone(), line.metric.clone());
        rows.entry(row.to_owned()).or_default().add(place, (), program, line);
    }
    let of_all = |runs: Vec<Line>| {
        let last = runs.last()?.clone();
        let middle = median(runs.iter().map(|line| line.median))?;
        let ratio = median(runs.iter().filter_map(|line| line.ratio));
        Some(Line { median: middle, ratio, runs: runs.len(), ..last })
    };
    Ok(rows.into_iter().map(|(row, runs)| (row, runs.each(of_all))).collect())
}

/// What was demanded, by row.
pub fn demanded(text: &str) -> Result<BTreeMap<String, Vec<Demand>>> {
    let mut lines = text.lines();
    ensure!(lines.next() == Some(VERDICTS), "the first line is not {VERDICTS}");
    let mut rows = BTreeMap::<String, Runs<String, Demand>>::new();
    for (at, text) in lines.enumerate() {
        let fields: Vec<&str> = text.splitn(8, ',').collect();
        let &[program, row, case, engine, metric, verdict, reached, words] = &fields[..] else {
            bail!("line {}: {} fields instead of 8", at + 2, fields.len());
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
            reached: number(reached, at)?,
            words: words.trim_matches('"').into(),
            runs: 1,
            missed: usize::from(holds == Some(false)),
        };
        let place = (demand.case.clone(), demand.engine.clone(), demand.metric.clone());
        rows.entry(row.to_owned()).or_default().add(place, demand.words.clone(), program, demand);
    }
    let of_all = |runs: Vec<Demand>| {
        let last = runs.last()?.clone();
        let count = |holds| runs.iter().filter(|demand| demand.holds == holds).count();
        let (reached, missed, open) = (count(Some(true)), count(Some(false)), count(None));
        // A tie is no more than half.
        let holds =
            if open * 2 > runs.len() || reached + missed == 0 { None } else { Some(reached > missed) };
        let figures = median(runs.iter().filter_map(|demand| demand.reached));
        Some(Demand { holds, reached: figures, runs: runs.len(), missed, ..last })
    };
    Ok(rows.into_iter().map(|(row, runs)| (row, runs.each(of_all))).collect())
}

/// A number, or nothing, in the line behind so many others.
fn number(text: &str, at: usize) -> Result<Option<f64>> {
    if text.is_empty() {
        return Ok(None);
    }
    Ok(Some(text.parse().with_context(|| format!("line {}: {text:?}", at + 2))?))
}

/// The middle one, or what is between the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() % 2 {
        1 => values.get(half).copied(),
        _ => Some((values.get(half.checked_sub(1)?)? + values.get(half)?) / 2.0),
    }
}

/// Whose figure or demand it is: case, engine and metric.
type Place = (String, String, String);

/// What the runs of a day have of one row, in the order in which it was recorded: where it stands, what is said there, which program's it is, and the value.
struct Runs<K, V>(Vec<(Place, K, String, V)>);

impl<K, V> Default for Runs<K, V> {
    fn default() -> Self {
        Runs(Vec::new())
    }
}

impl<K: PartialEq, V> Runs<K, V> {
    fn add(&mut self, place: Place, said: K, program: &str, value: V) {
        self.0.push((place, said, program.to_owned(), value));
    }

    /// What the program has that was the last one at a place, of all of its runs; where nobody knows whose the last value is, that value alone.
    fn each(self, of_all: impl Fn(Vec<V>) -> Option<V>) -> Vec<V> {
        let mut last = BTreeMap::new();
        for (place, _, program, _) in &self.0 {
            last.insert(place.clone(), program.clone());
        }
        let mut kept: Vec<(Place, K, Vec<V>)> = Vec::new();
        for (place, said, program, value) in self.0 {
            if last[&place] != program {
                continue;
            }
            match kept.iter_mut().find(|(at, known, _)| *at == place && *known == said) {
                Some((.., values)) if program.is_empty() => *values = vec![value],
                Some((.., values)) => values.push(value),
                None => kept.push((place, said, vec![value])),
            }
        }
        kept.into_iter().filter_map(|(.., values)| of_all(values)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_record_is_refused() {
        assert!(parse("bench,case\n").is_err());
        assert!(parse(&format!("{COLUMNS}\na,b,c\n")).unwrap_err().to_string().contains("line 2: 3 fields"));
        assert!(parse(&format!("{COLUMNS}\na,b,c,d,e,x,1,1,1,f,1,p\n")).is_err());
        for name in ["2026-01-31", "2026-01-31-", "26-01-31-x86", "2026-0l-31-x86", ""] {
            assert!(parted(name).is_err(), "{name}");
        }
        assert_eq!(parted("2026-01-31-x86_64-2c").unwrap(), ("2026-01-31", "x86_64-2c"));
    }

    #[test]
    fn what_a_program_gets_comes_first_and_rivals_come_last() {
        let record = format!(
            "{COLUMNS}\na,1,nt,rate,GB/s,3,2,2,5,kernel,3,p\na,1,auto,rate,GB/s,2,2,2,5,kernel,2,p\n\
             a,1,auto,p99,ms,2,2,2,5,kernel,2,p\na,1,auto,cpu,CPU s/GB,2,2,2,5,kernel,0.5,p\n\
             a,1,kernel-512,rate,GB/s,3,2,2,5,kernel,3,p\nb,1,copy,rate,GB/s,3,2,2,5,kernel,3,p\n\
             b,1,zc,rate,GB/s,3,2,2,5,kernel,3,p\nb,1,recv-copy,rate,GB/s,3,2,2,5,kernel,3,p\n"
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
    fn the_median_of_the_runs_of_the_last_program_counts() {
        let line = |case: &str, median: f64, ratio: &str, program: &str| {
            format!("a,{case},auto,rate,GB/s,{median},2,2,5,kernel,{ratio},{program}\n")
        };
        let figures = |lines: &[String]| {
            let row = parse(&format!("{COLUMNS}\n{}", lines.concat())).unwrap().remove("a").unwrap();
            row.iter().map(|line| (line.median, line.ratio, line.runs)).collect::<Vec<_>>()
        };
        let old = line("1", 9.0, "9", "old");
        let runs = [line("1", 2.0, "1", "new"), line("1", 8.0, "4", "new"), line("1", 4.0, "", "new")];
        let [first, second, third] = runs;
        assert_eq!(figures(std::slice::from_ref(&old)), [(9.0, Some(9.0), 1)]);
        assert_eq!(figures(&[old.clone(), first.clone()]), [(2.0, Some(1.0), 1)], "another program's");
        assert_eq!(figures(&[old.clone(), first.clone(), second.clone()]), [(5.0, Some(2.5), 2)]);
        let all = [old.clone(), first, second, third, line("2", 1.0, "1", "new")];
        assert_eq!(figures(&all), [(4.0, Some(2.5), 3), (1.0, Some(1.0), 1)]);
        assert_eq!(figures(&[old.clone(), old.clone(), old.replace(",old", ",")]), [(9.0, Some(9.0), 1)]);
        // Another one in between takes none away.
        let between = [line("1", 1.0, "1", "new"), old.clone(), line("1", 3.0, "2", "new")];
        assert_eq!(figures(&between), [(2.0, Some(1.5), 2)]);
        let nobodys = old.replace(",old", ",");
        assert_eq!(figures(&[line("1", 1.0, "1", ""), nobodys]), [(9.0, Some(9.0), 1)], "nobody knows whose");
        let taken = |lines: &[String]| {
            let lines = parse(&format!("{COLUMNS}\n{}", lines.concat())).unwrap().remove("a").unwrap();
            Taken { day: "2026-01-31".into(), lines, demands: Vec::new() }
        };
        assert_eq!(taken(&all).runs(), (1, 3));
    }

    #[test]
    fn what_most_runs_of_the_last_program_say_is_the_verdict() {
        let verdict = |runs: &[&str]| {
            let line = |run: &&str| {
                let (program, verdict) = run.split_once(' ').unwrap();
                let (verdict, reached) = verdict.split_once(' ').unwrap_or((verdict, ""));
                format!("{program},a,1,auto,rate,{verdict},{reached},\">= 1 x best of b, c\"\n")
            };
            let text = format!("{VERDICTS}\n{}", runs.iter().map(line).collect::<String>());
            let row = demanded(&text).unwrap().remove("a").unwrap();
            assert_eq!((row.len(), &*row[0].words), (1, ">= 1 x best of b, c"));
            (row[0].holds, row[0].reached, row[0].missed, row[0].runs)
        };
        assert_eq!(verdict(&["p missed 0.9"]), (Some(false), Some(0.9), 1, 1));
        assert_eq!(verdict(&["p missed 0.9", "q reached 2"]), (Some(true), Some(2.0), 0, 1));
        let five = ["p missed 0.9", "p reached 1.5", "p reached 1", "p missed 0.8", "p reached 1.2"];
        assert_eq!(verdict(&five), (Some(true), Some(1.0), 2, 5));
        assert_eq!(verdict(&five[..2]), (Some(false), Some(1.2), 1, 2), "half is not most");
        assert_eq!(verdict(&["p none", "p reached 1.5"]), (Some(true), Some(1.5), 0, 2));
        assert_eq!(verdict(&["p none", "p none", "p reached 1.5"]), (None, Some(1.5), 0, 3));
        assert_eq!(verdict(&["p none"]), (None, None, 0, 1));
        // What an earlier program was asked for is asked no more.
        let asked = |of: &str, words: &str| format!("{of},a,1,auto,rate,missed,0.9,{words}\n");
        let text = format!("{VERDICTS}\n{}{}", asked("p", ">= 1 x b"), asked("q", ">= 2 x b"));
        let row = demanded(&text).unwrap().remove("a").unwrap();
        assert_eq!(row.iter().map(|demand| &*demand.words).collect::<Vec<_>>(), [">= 2 x b"]);
        assert!(demanded(&format!("{VERDICTS}\np,a,1,auto,rate,perhaps,,x\n")).is_err());
        assert!(demanded(&format!("{VERDICTS}\np,a,1,auto\n")).is_err());
        assert!(demanded("bench,case\n").is_err());
    }

    #[test]
    fn a_case_counts_if_it_has_missed_nothing() {
        let text = format!(
            "{VERDICTS}\np,a,1,auto,rate,missed,0.9,x\np,a,1,auto,cpu,reached,1,x\np,a,2,auto,rate,reached,1,x\n\
             p,a,2,auto,cpu,none,,x\np,a,3,auto,rate,none,,x\n"
        );
        let demands = demanded(&text).unwrap().remove("a").unwrap();
        let taken = Taken { day: "2026-01-31".into(), lines: Vec::new(), demands };
        assert_eq!((taken.cases(), taken.tally()), ((2, 1), [2, 1, 2]));
    }
}
