//! `onecopy tune`.

use crate::terminal::print;
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use onecopy::Reader;
use onecopy::advanced::copy::Store;
use onecopy::advanced::copy::calibrate::{self, Measured, Options, Point};
use onecopy::advanced::copy::profile::{self, Profile, reader_name};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Flags of `onecopy tune`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show the profile that is saved, and measure nothing
    #[arg(long, conflicts_with_all = ["dry_run", "quick", "max_footprint"])]
    show: bool,
    /// Measure and print, but save nothing
    #[arg(long)]
    dry_run: bool,
    /// Measure for a third of the time (4 seconds): a first look, not for keeps on a busy machine
    #[arg(long)]
    quick: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// The largest destination footprint to measure, in MiB; as much memory is used
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=8192))]
    max_footprint: u32,
    /// Save the profile here instead of $XDG_CONFIG_HOME/onecopy/tune.toml
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs `onecopy tune`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.show {
        return show(args);
    }
    let path = match &args.output {
        Some(path) => Some(path.clone()),
        None if args.dry_run => None,
        // Asked before measuring: the work should not end in "no place to save it".
        None => Some(profile::path()?.with_context(|| {
            format!(
                "{}=off says not to use a profile; unset it, or choose --dry-run or --output FILE",
                profile::PROFILE_VARIABLE
            )
        })?),
    };
    let mut options = Options { max_footprint: (args.max_footprint as usize) << 20, ..Options::default() };
    if args.quick {
        options.stretch = Duration::from_millis(1);
        options.rounds = 2;
        options.limit = Duration::from_secs(4);
    }
    let load = Load::now();
    let measured = measure(&options)?;
    let foreign = load.foreign();
    let saved = match path {
        Some(path) if !args.dry_run => {
            measured.profile.save(&path)?;
            Some(path)
        }
        _ => None,
    };
    if args.json {
        return print(&format!("{}\n", json(&measured, foreign, saved.as_deref())));
    }
    let mut text = String::new();
    head(&mut text, &measured.profile);
    tables(&mut text, &measured);
    meaning(&mut text, &measured.profile);
    text.push_str(&missing(&measured.points));
    if let Some(foreign) = foreign.filter(|&foreign| foreign > BUSY) {
        writeln!(
            text,
            "Other programs used {foreign:.1} CPUs meanwhile, which makes these figures doubtful: measure again when it is quiet."
        )?;
    }
    match saved {
        Some(path) => writeln!(text, "Saved in {}. Programs started from now on use it.", path.display())?,
        None => writeln!(text, "Nothing was saved (--dry-run).")?,
    }
    print(&text)
}

/// Other programs that use more than this many CPUs disturb the measurement.
const BUSY: f64 = 0.1;

/// The CPU time of the whole machine and of this process, to see who else was at work.
struct Load {
    at: Instant,
    machine: Option<f64>,
    own: Option<f64>,
}

impl Load {
    fn now() -> Load {
        Load { at: Instant::now(), machine: Load::machine(), own: Load::own() }
    }

    /// CPUs that other programs kept busy since then; `None` where /proc doesn't say.
    fn foreign(&self) -> Option<f64> {
        let machine = Load::machine()? - self.machine?;
        let own = Load::own()? - self.own?;
        Some(((machine - own) / self.at.elapsed().as_secs_f64()).max(0.0))
    }

    /// Seconds, from the first line of /proc/stat: user, nice, system; then, after idle and iowait, irq, softirq, steal.
    fn machine() -> Option<f64> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        let fields: Vec<f64> =
            text.lines().next()?.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
        let busy: f64 = fields.get(..3)?.iter().chain(fields.get(5..8)?).sum();
        Some(busy / rustix::param::clock_ticks_per_second() as f64)
    }

    /// Seconds, from /proc/self/stat: utime and stime, counted from the end of the name, which may hold anything.
    fn own() -> Option<f64> {
        let text = std::fs::read_to_string("/proc/self/stat").ok()?;
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
        Some(ticks / rustix::param::clock_ticks_per_second() as f64)
    }
}

fn show(args: &Args) -> anyhow::Result<()> {
    let path = match &args.output {
        Some(path) => path.clone(),
        None => profile::path()?.with_context(|| {
            format!(
                "{}=off says not to use a profile; unset it to see the one saved",
                profile::PROFILE_VARIABLE
            )
        })?,
    };
    if !path.exists() {
        anyhow::bail!("there is no profile in {}; measure one with `onecopy tune`", path.display());
    }
    let profile = Profile::load(&path)?;
    if args.json {
        return print(&format!("{}\n", serde_json::to_string(&profile)?));
    }
    let mut text = format!("profile    {}\n", path.display());
    if profile.machine != profile::machine() {
        writeln!(text, "           NOT in use: this machine is {:?}", profile::machine())?;
    }
    head(&mut text, &profile);
    text.push('\n');
    meaning(&mut text, &profile);
    print(&text)
}

/// Measures, with a progress bar where standard error is a terminal (indicatif draws nowhere else).
fn measure(options: &Options) -> anyhow::Result<Measured> {
    let bar = ProgressBar::new(0);
    bar.set_style(ProgressStyle::with_template("{bar:30} {percent:>3}%  {eta:>4}  {msg}")?);
    let measured = calibrate::measure(options, &mut |step| {
        bar.set_length(step.total as u64);
        bar.set_position(step.done as u64);
        bar.set_message(step.what.clone());
    })
    .context("cannot choose the CPU to measure on; is sched_setaffinity forbidden here?")?;
    bar.finish_and_clear();
    Ok(measured)
}

fn json(measured: &Measured, foreign: Option<f64>, saved: Option<&std::path::Path>) -> serde_json::Value {
    let rate = |len: usize, seconds: f64| len as f64 / seconds / 1e9;
    serde_json::json!({
        "profile": measured.profile,
        "saved": saved,
        "foreign CPUs": foreign,
        "cpus": [measured.cpus.0, measured.cpus.1],
        "kernels": measured.kernels.iter().map(|point| serde_json::json!({
            "kernel": point.kernel,
            "store": store(point.place.store),
            "len": point.place.len,
            "hot": point.place.footprint == point.place.len,
            "GB/s": rate(point.place.len, point.seconds),
        })).collect::<Vec<_>>(),
        "points": measured.points.iter().map(|point| serde_json::json!({
            "reader": reader_name(point.reader),
            "footprint": point.footprint,
            "len": point.len,
            "cached GB/s": point.cached.map(|seconds| rate(point.len, seconds)),
            "nt GB/s": point.stream.map(|seconds| rate(point.len, seconds)),
        })).collect::<Vec<_>>(),
    })
}

fn store(store: Store) -> &'static str {
    match store {
        Store::Cached => "cached",
        Store::NonTemporal => "nt",
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

fn head(text: &mut String, profile: &Profile) {
    let kernels = &profile.kernels;
    let long = if kernels.long == kernels.cached {
        String::new()
    } else {
        format!(", {} from {}", kernels.long, size(kernels.long_from))
    };
    let steps: Vec<_> =
        profile.steps.iter().map(|step| format!("{:.1} ns up to {}", step.ns, size(step.bytes))).collect();
    let _ = writeln!(text, "machine    {}", profile.machine);
    let _ = writeln!(text, "loads      {}", steps.join(", "));
    let _ = writeln!(text, "kernels    cached: {}{long}; non-temporal: {}", kernels.cached, kernels.stream);
}

/// One table per reader: a row per footprint, a column per length, "cached / non-temporal" in each field.
fn tables(text: &mut String, measured: &Measured) {
    for reader in [Reader::OtherCore, Reader::SameCore, Reader::NoCpu] {
        let points: Vec<_> = measured.points.iter().filter(|point| point.reader == reader).collect();
        if points.is_empty() {
            continue;
        }
        let mut lens: Vec<_> = points.iter().map(|point| point.len).collect();
        lens.sort_unstable();
        lens.dedup();
        let mut footprints: Vec<_> = points.iter().map(|point| point.footprint).collect();
        footprints.dedup();
        let who = match reader {
            Reader::OtherCore => "another core copies the data out",
            Reader::SameCore => "the same core copies the data out, at once",
            Reader::NoCpu | Reader::Unknown => "no CPU reads",
        };
        let _ = writeln!(text, "\n{who}: GB/s cached / non-temporal, * where Auto streams");
        let _ = write!(text, "{:>9}", "footprint");
        lens.iter().for_each(|&len| {
            let _ = write!(text, "{:>14} ", size(len as u64));
        });
        text.push('\n');
        for footprint in footprints {
            let min_len = crossing(&measured.profile, reader, footprint);
            let _ = write!(text, "{:>9}", size(footprint as u64));
            for len in &lens {
                match points.iter().find(|point| point.footprint == footprint && point.len == *len) {
                    Some(point) => field(text, point, min_len.is_some_and(|min| *len >= min as usize)),
                    None => text.push_str(&" ".repeat(15)),
                }
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
    }
    text.push('\n');
}

fn field(text: &mut String, point: &Point, streams: bool) {
    let rate = |seconds: Option<f64>| match seconds {
        Some(seconds) => format!("{:.1}", point.len as f64 / seconds / 1e9),
        None => "?".to_owned(),
    };
    let mark = if streams { '*' } else { ' ' };
    let _ = write!(text, "{:>14}{mark}", format!("{} / {}", rate(point.cached), rate(point.stream)));
}

/// Says how much there is of which nothing plausible was measured.
fn missing(points: &[Point]) -> String {
    let unknown =
        points.iter().flat_map(|point| [point.cached, point.stream]).filter(Option::is_none).count();
    match unknown {
        0 => String::new(),
        _ => format!(
            "{unknown} of {} figures are missing (?): what was measured was not plausible, and not when it was measured again, \
             or the time was up. They have no say in the rules: measure again when the machine is quiet.\n",
            2 * points.len()
        ),
    }
}

fn crossing(profile: &Profile, reader: Reader, footprint: usize) -> Option<u32> {
    profile
        .crossovers
        .iter()
        .find(|row| row.reader == reader_name(reader) && row.footprint == footprint as u64)
        .and_then(|row| row.min_len)
}

/// What the profile makes `Auto` do, in a line per reader.
fn meaning(text: &mut String, profile: &Profile) {
    text.push_str("What Auto does with it, by the memory that the destination cycles through:\n");
    for (reader, who) in [
        (Reader::OtherCore, "another core reads"),
        (Reader::SameCore, "this core reads"),
        (Reader::NoCpu, "no CPU reads"),
        (Reader::Unknown, "reader not known"),
    ] {
        let mut rows: Vec<_> =
            profile.crossovers.iter().filter(|row| row.reader == reader_name(reader)).collect();
        rows.sort_by_key(|row| row.footprint);
        // Only where something changes.
        let mut parts = Vec::new();
        let mut before = None;
        for row in rows {
            if row.min_len != before {
                parts.push(match row.min_len {
                    Some(min) => {
                        format!(
                            "from {} on, copies of {} or more stream",
                            size(row.footprint),
                            size(min.into())
                        )
                    }
                    None => format!("from {} on, none streams", size(row.footprint)),
                });
                before = row.min_len;
            }
        }
        let said = if parts.is_empty() { "always cached".to_owned() } else { parts.join("; ") };
        let _ = writeln!(text, "  {who:<19} {said}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said() {
        let point = Point {
            reader: Reader::OtherCore,
            footprint: 1 << 20,
            len: 64 << 10,
            cached: None,
            stream: Some((64 << 10) as f64 / 8e9),
        };
        let mut text = String::new();
        field(&mut text, &point, true);
        assert_eq!(text.trim(), "? / 8.0*");
        let whole = Point { cached: point.stream, ..point.clone() };
        assert!(missing(&[point, whole.clone()]).starts_with("1 of 4 figures are missing"));
        assert_eq!(missing(&[whole]), "");
    }
}
