//! Records: one JSON object a line, and for each day and machine a CSV file of figures, one of verdicts, and the machine's facts.
//!
//! Each run is kept: its lines are added behind those of earlier ones, with what tells its program from others.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use crate::facts::Facts;
use crate::result::{CaseResult, EngineResult, Figure, Verdict};
use crate::row::Row;

/// One line of a record.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Record {
    /// The row.
    pub bench: String,
    /// The case within the row.
    pub case: String,
    /// Who did the work.
    pub engine: String,
    /// What was measured.
    pub metric: String,
    /// In which unit.
    pub unit: String,
    /// The median of the rounds.
    pub median: f64,
    /// The smallest of the rounds.
    pub low: f64,
    /// The largest of the rounds.
    pub high: f64,
    /// How many rounds.
    pub rounds: usize,
    /// The engine that `ratio` is against.
    pub baseline: String,
    /// `engine` against `baseline`, larger is better; null if the baseline has no figure.
    pub ratio: Option<f64>,
}

/// The records of one case.
pub fn of_case(bench: &str, result: &CaseResult) -> Vec<Record> {
    let figures = |engine: &EngineResult| engine.figures.clone();
    let record = |engine: &EngineResult, figure: Figure| Record {
        bench: bench.to_owned(),
        case: result.case.clone(),
        engine: engine.engine.to_owned(),
        metric: figure.metric.name.to_owned(),
        unit: figure.metric.unit.to_owned(),
        median: figure.summary.median,
        low: figure.summary.low,
        high: figure.summary.high,
        rounds: figure.summary.rounds,
        baseline: result.baseline.to_owned(),
        ratio: figure.ratio,
    };
    result.engines.iter().flat_map(|e| figures(e).into_iter().map(move |f| record(e, f))).collect()
}

/// What was demanded of an engine and what came of it, as the table of the run has it.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Judged {
    /// The row.
    pub bench: String,
    /// The case within the row.
    pub case: String,
    /// Of whom it is demanded.
    pub engine: String,
    /// In which metric.
    pub metric: String,
    /// `reached`, `missed`, or `none` where the figures say nothing.
    pub verdict: &'static str,
    /// What was reached: a ratio, a value or a distance, as the demand has it. Null without a verdict.
    pub reached: Option<f64>,
    /// The demand in words. (The last column, since it may have commas.)
    pub demand: String,
}

/// The verdicts of one case.
pub fn verdicts_of_case(bench: &str, result: &CaseResult) -> Vec<Judged> {
    let judged = |verdict: &Verdict| Judged {
        bench: bench.to_owned(),
        case: result.case.clone(),
        engine: verdict.engine.to_owned(),
        metric: verdict.metric.to_owned(),
        verdict: match verdict.reached {
            Some((_, true)) => "reached",
            Some((_, false)) => "missed",
            None => "none",
        },
        reached: verdict.reached.map(|(reached, _)| reached),
        demand: verdict.demand.clone(),
    };
    result.verdicts.iter().map(judged).collect()
}

/// Today, as in the names of the records.
pub fn today() -> String {
    jiff::Zoned::now().date().to_string()
}

/// Makes the folder that [`append`] will write to, and looks at what is there, so that nobody waits for figures that can't be kept.
pub fn prepare(folder: &Path, facts: &Facts) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let [figures, verdicts] = files(folder, facts);
    fits(&figures, COLUMNS)?;
    fits(&verdicts, VERDICTS)
}

/// Today's files of figures and of verdicts.
fn files(folder: &Path, facts: &Facts) -> [PathBuf; 2] {
    let figures = folder.join(format!("{}-{}.csv", today(), facts.slug));
    [figures.clone(), figures.with_extension("verdicts.csv")]
}

/// Whether lines with these columns can be added to a file, which may be none yet.
///
/// # Errors
///
/// It has other ones: a version of this program before, or after, has begun it.
fn fits(path: &Path, columns: &str) -> Result<()> {
    let Ok(file) = File::open(path) else { return Ok(()) };
    let mut heading = String::new();
    BufReader::new(file).read_line(&mut heading).with_context(|| format!("reading {}", path.display()))?;
    ensure!(
        heading.trim_end() == columns,
        "{} has other columns than this version's ({columns}): move it away, or record in another folder (--record FOLDER)",
        path.display()
    );
    Ok(())
}

/// Appends `records` to `<folder>/<date>-<machine>.csv`, and `verdicts` to `....verdicts.csv`, with the machine's facts beside them, and says
/// where. The facts are those of the last run of the day, what `rows` and those of runs before have stated, and of each run when it ended, its rows
/// and its program.
pub fn append(
    folder: &Path,
    facts: &Facts,
    rows: &[&Row],
    records: &[Record],
    verdicts: &[Judged],
) -> Result<PathBuf> {
    prepare(folder, facts)?;
    let [path, judged] = files(folder, facts);
    let program = File::open("/proc/self/exe").context("opening this program")?;
    let program = format!("{:016x}", hash(program)?);
    lines(&path, COLUMNS, records.iter().map(|record| (record, &program)))?;
    lines(&judged, VERDICTS, verdicts.iter().map(|judged| (&program, judged)))?;
    let beside = path.with_extension("txt");
    let before = std::fs::read_to_string(&beside).unwrap_or_default();
    let mut text: String = facts.lines.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
    text.push_str(&stated(rows, &before));
    text.extend(before.lines().filter(|line| line.starts_with(RUN)).map(|line| format!("{line}\n")));
    text.push_str(&run(&program, records));
    std::fs::write(beside, text)?;
    Ok(path)
}

/// The columns of the figures: a [`Record`], and which program gave it.
const COLUMNS: &str = "bench,case,engine,metric,unit,median,low,high,rounds,baseline,ratio,program";
/// The columns of the verdicts: which program, and what was [`Judged`].
const VERDICTS: &str = "program,bench,case,engine,metric,verdict,reached,demand";

/// How a line of what a row has stated begins.
const STATED: &str = "setting: ";

/// What rows have stated: these, and others in the facts of before.
fn stated(rows: &[&Row], before: &str) -> String {
    let of = |row: &Row| format!("{STATED}{}, ", row.name);
    let others = before
        .lines()
        .filter(|line| line.starts_with(STATED) && !rows.iter().any(|row| line.starts_with(&of(row))));
    let mut text: String = others.map(|line| format!("{line}\n")).collect();
    for row in rows {
        text.extend(row.stated.iter().map(|(name, value)| format!("{}{name}: {value}\n", of(row))));
    }
    text
}

/// How the line of a run begins.
const RUN: &str = "run: ";

/// When a run ended, what it measured, and with which program: the figures of two programs are not to be taken for one's.
fn run(program: &str, records: &[Record]) -> String {
    let mut rows: Vec<&str> = records.iter().map(|record| &*record.bench).collect();
    rows.dedup();
    let time = jiff::Zoned::now().strftime("%H:%M");
    format!("{RUN}{time}, program {program}, rows {}\n", rows.join(" "))
}

/// What tells one program from another: FNV-1a of its file.
fn hash(file: File) -> Result<u64> {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let (mut file, mut block) = (BufReader::new(file), [0; 64 << 10]);
    loop {
        match file.read(&mut block).context("reading this program")? {
            0 => return Ok(hash),
            n => {
                for byte in &block[..n] {
                    hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
                }
            }
        }
    }
}

/// Appends lines to a CSV file, which gets its heading with the first. Without any it does nothing.
fn lines(path: &Path, columns: &str, lines: impl ExactSizeIterator<Item: Serialize>) -> Result<()> {
    if lines.len() == 0 {
        return Ok(());
    }
    let fresh = !path.exists();
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("opening {}", path.display()))?;
    if fresh {
        writeln!(file, "{columns}")?;
    }
    let mut out = csv::WriterBuilder::new().has_headers(false).from_writer(file);
    for line in lines {
        out.serialize(line)?;
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::temp::TempDir;

    fn record() -> Record {
        Record {
            bench: "unix-bulk".into(),
            case: "8000".into(),
            engine: "auto".into(),
            metric: "rate".into(),
            unit: "GB/s".into(),
            median: 5.0,
            low: 4.5,
            high: 5.25,
            rounds: 5,
            baseline: "kernel".into(),
            ratio: Some(4.0),
        }
    }

    #[test]
    fn json_has_the_documented_names_in_order() {
        assert_eq!(
            serde_json::to_string(&record()).unwrap(),
            r#"{"bench":"unix-bulk","case":"8000","engine":"auto","metric":"rate","unit":"GB/s","median":5.0,"low":4.5,"high":5.25,"rounds":5,"baseline":"kernel","ratio":4.0}"#
        );
    }

    fn judged(verdict: Option<(f64, bool)>) -> Vec<Judged> {
        let verdict = Verdict {
            engine: "auto",
            metric: "rate",
            demand: ">= 0.95 x best of cached, nt".into(),
            line: None,
            reached: verdict,
            noise: None,
            lacking: Vec::new(),
        };
        let case = CaseResult {
            case: "8000".into(),
            baseline: "kernel",
            engines: Vec::new(),
            verdicts: vec![verdict],
        };
        verdicts_of_case("unix-bulk", &case)
    }

    #[test]
    fn csv_appends_under_one_heading() {
        let folder = std::env::temp_dir().join(format!("onecopy-record-{}", std::process::id()));
        let facts = Facts { lines: vec![("CPU", "x".into())], slug: "test".into() };
        let missed = judged(Some((0.75, false)));
        let row = |name, stated| Row { name, stated, ..*crate::rows::ROWS[0] };
        let (first, other) =
            (row("unix-bulk", &[("pace", "1")]), row("auto", &[("horizon", "far"), ("x", "y")]));
        append(
            &folder,
            &facts,
            &[&first, &other],
            &[record()],
            &[missed, judged(Some((1.0, true)))].concat(),
        )
        .unwrap();
        let again = row("unix-bulk", &[("pace", "2")]);
        let path =
            append(&folder, &facts, &[&again], &[Record { ratio: None, ..record() }], &judged(None)).unwrap();
        let read = |kind: &str| std::fs::read_to_string(path.with_extension(kind)).unwrap();
        let (text, verdicts, facts) = (read("csv"), read("verdicts.csv"), read("txt"));
        std::fs::remove_dir_all(&folder).unwrap();
        let program = format!("{:016x}", hash(File::open("/proc/self/exe").unwrap()).unwrap());
        let figures = "bench,case,engine,metric,unit,median,low,high,rounds,baseline,ratio,program\n\
                       unix-bulk,8000,auto,rate,GB/s,5.0,4.5,5.25,5,kernel,4.0,P\n\
                       unix-bulk,8000,auto,rate,GB/s,5.0,4.5,5.25,5,kernel,,P\n";
        assert_eq!(text, figures.replace("P\n", &format!("{program}\n")));
        let judged = "program,bench,case,engine,metric,verdict,reached,demand\n\
                      P,unix-bulk,8000,auto,rate,missed,0.75,\">= 0.95 x best of cached, nt\"\n\
                      P,unix-bulk,8000,auto,rate,reached,1.0,\">= 0.95 x best of cached, nt\"\n\
                      P,unix-bulk,8000,auto,rate,none,,\">= 0.95 x best of cached, nt\"\n";
        assert_eq!(verdicts, judged.replace("P,", &format!("{program},")));
        assert_eq!(facts.lines().filter(|line| line.starts_with("CPU: x")).count(), 1, "{facts}");
        let stated: Vec<&str> = facts.lines().filter(|line| line.starts_with(STATED)).collect();
        assert_eq!(
            stated,
            ["setting: auto, horizon: far", "setting: auto, x: y", "setting: unix-bulk, pace: 2"]
        );
        let runs: Vec<&str> = facts.lines().filter(|line| line.starts_with(RUN)).collect();
        assert_eq!(runs.len(), 2, "{facts}");
        assert!(runs.iter().all(|run| run.ends_with("rows unix-bulk")), "{facts}");
    }

    #[test]
    fn a_file_with_other_columns_is_left_alone() {
        let folder = TempDir::new("columns").unwrap();
        let facts = Facts { lines: vec![], slug: "test".into() };
        let path = folder.path().join(format!("{}-test.csv", today()));
        std::fs::write(&path, "bench,case\n").unwrap();
        let refused = append(folder.path(), &facts, &[], &[record()], &[]).unwrap_err().to_string();
        assert!(refused.contains("has other columns") && refused.contains("move it away"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "bench,case\n");
    }

    #[test]
    fn programs_are_told_apart_by_their_bytes() {
        let folder = std::env::temp_dir().join(format!("onecopy-programs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let of = |bytes: &[u8]| {
            let path = folder.join("program");
            std::fs::write(&path, bytes).unwrap();
            hash(File::open(path).unwrap()).unwrap()
        };
        // The values of draft-eastlake-fnv, appendix C.
        let hashes = [of(b""), of(b"a"), of(b"foobar")];
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(hashes, [0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c, 0x8594_4171_f739_67e8]);
    }
}
