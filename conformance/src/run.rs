//! Running cases, each in a process of its own, and judging what they saw.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::case::{Case, Ctx, Expect};
use crate::impls::{Column, Impl};
use crate::skips::Skips;
use crate::stop::Stop;

/// Bounds on a case.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A case that runs longer hangs: it is killed and named.
    pub hang: Duration,
}

impl Default for Limits {
    /// Longer than a case waits for what must come ([`crate::tools::SOON`]), so that it can say what did not; or `CONFORMANCE_HANG_S`.
    fn default() -> Limits {
        let s = std::env::var("CONFORMANCE_HANG_S").ok().and_then(|s| s.parse().ok()).unwrap_or(180);
        Limits { hang: Duration::from_secs(s) }
    }
}

/// What came of one case on one implementation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The answer.
    Value(String),
    /// The implementation has no such call.
    NotOffered(String),
    /// This machine lacks a tool that the case needs.
    Lacking(String),
    /// It could not be carried out, crashed or hung.
    Broken(String),
}

/// Runs `case` here and now. For the process that was started for it.
pub fn here(case: &Case, imp: &dyn Impl, dir: PathBuf) -> Seen {
    if !imp.sleeps() {
        crate::tools::nobody_sleeps();
    }
    match (case.run)(&Ctx { imp, kind: case.kind, dir }) {
        Ok(value) => Seen::Value(value),
        Err(Stop::NotOffered(why)) => Seen::NotOffered(why.to_owned()),
        Err(Stop::Lacking(tool)) => Seen::Lacking(tool.to_owned()),
        Err(Stop::Broken(what)) => Seen::Broken(what),
    }
}

impl Seen {
    /// As the started process says it.
    pub fn to_line(&self) -> String {
        let (word, text) = match self {
            Seen::Value(t) => ("value", t),
            Seen::NotOffered(t) => ("not-offered", t),
            Seen::Lacking(t) => ("lacking", t),
            Seen::Broken(t) => ("broken", t),
        };
        format!("seen {word} {}", text.replace('\n', " / "))
    }

    fn from_output(out: &str) -> Option<Seen> {
        let line = out.lines().rev().find_map(|l| l.strip_prefix("seen "))?;
        let (word, text) = line.split_once(' ').unwrap_or((line, ""));
        let text = text.to_owned();
        Some(match word {
            "value" => Seen::Value(text),
            "not-offered" => Seen::NotOffered(text),
            "lacking" => Seen::Lacking(text),
            "broken" => Seen::Broken(text),
            _ => return None,
        })
    }
}

/// Runs `case` in a process of its own: `exe one CASE IMPLEMENTATION DIR`; unless it is not to be tried there.
pub fn apart(exe: &Path, case: &Case, imp: &dyn Impl, limits: Limits, skips: &Skips) -> Seen {
    if skips.find(case.name, imp.name()).is_some_and(|s| s.sees == "not tried") {
        return Seen::NotOffered("not tried".to_owned());
    }
    process(exe, &["one", case.name, imp.name()], limits)
}

/// Runs `exe ARGS... DIR`, which prints what it saw, within the limits. The folder is new and then gone.
pub fn process(exe: &Path, args: &[&str], limits: Limits) -> Seen {
    match try_process(exe, args, limits) {
        Ok(seen) => seen,
        Err(e) => Seen::Broken(format!("{e:#}")),
    }
}

fn try_process(exe: &Path, args: &[&str], limits: Limits) -> anyhow::Result<Seen> {
    let dir = Folder::new()?;
    let mut child = Command::new(exe)
        .args(args)
        .arg(&dir.0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", exe.display()))?;
    let pid = Pid::from_child(&child);
    let ended = ended_within(pid, limits.hang)?;
    let stuck = if ended { String::new() } else { where_stuck(pid) };
    // Whatever the case left running ends with it.
    let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    let status = child.wait()?;
    let (out, err) = (all_of(&mut child, true), all_of(&mut child, false));
    let err = err
        .trim()
        .lines()
        .rev()
        .take(6)
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .collect::<Vec<_>>()
        .join(" / ");
    Ok(if !ended {
        Seen::Broken(format!("hung for {:?}: {stuck} {err}", limits.hang))
    } else if status.success() {
        Seen::from_output(&out).unwrap_or_else(|| Seen::Broken(format!("said nothing: {out:?} {err}")))
    } else {
        let how = status.signal().map_or(format!("{status}"), |s| format!("killed by signal {s}"));
        Seen::Broken(format!("{how}: {err}"))
    })
}

fn ended_within(pid: Pid, limit: Duration) -> anyhow::Result<bool> {
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).context("pidfd_open")?;
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match rustix::event::poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            r => return Ok(r? > 0),
        }
    }
}

fn all_of(child: &mut Child, out: bool) -> String {
    let mut bytes = Vec::new();
    let _ = match out {
        true => child.stdout.take().map(|mut s| s.read_to_end(&mut bytes)),
        false => child.stderr.take().map(|mut s| s.read_to_end(&mut bytes)),
    };
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The state and system call of each thread of a process that hangs.
fn where_stuck(pid: Pid) -> String {
    let base = format!("/proc/{}/task", pid.as_raw_nonzero());
    let mut threads = Vec::new();
    for task in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let read = |f: &str| std::fs::read_to_string(task.path().join(f)).unwrap_or_default();
        let stat = read("stat");
        let state = stat.rsplit(") ").next().and_then(|s| s.chars().next()).unwrap_or('?');
        let call = read("syscall");
        let call: Vec<&str> = call.split_whitespace().take(3).collect();
        threads.push(format!(
            "thread {} {state} syscall {}",
            task.file_name().to_string_lossy(),
            call.join(" ")
        ));
    }
    threads.join("; ")
}

/// A folder that is gone when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Folder> {
        static COUNT: Mutex<u64> = Mutex::new(0);
        let n = {
            let mut count = COUNT.lock().unwrap_or_else(|e| e.into_inner());
            *count += 1;
            *count
        };
        let dir = std::env::temp_dir().join(format!("ocf-{}-{n}", std::process::id()));
        std::fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Folder(dir))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether what was seen is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As expected.
    Right,
    /// Otherwise, as `skips.toml` says it would be; the reason.
    Skipped(String),
    /// Not tried here: this machine lacks a tool.
    NotTried(String),
    /// Wrong; why.
    Wrong(String),
}

/// Judges what `imp` answered. `oracle` is what the kernel answered to the same case.
pub fn judge(case: &Case, imp: &dyn Impl, seen: &Seen, oracle: &Seen, skips: &Skips) -> Verdict {
    let want = match case.expect {
        Expect::Same(fixed) => match (imp.column(), oracle) {
            (Column::Shared | Column::OnKernel, Seen::Value(v)) => v,
            _ => fixed,
        },
        Expect::Oracle => match (imp.column(), oracle) {
            (Column::Kernel, _) => "*",
            (_, Seen::Value(v)) => v,
            _ => "an answer of the kernel",
        },
        Expect::Each { kernel, shared, on_kernel } => match imp.column() {
            Column::Kernel => kernel,
            Column::Shared => shared,
            Column::OnKernel => on_kernel,
        },
    };
    let right = match seen {
        Seen::Value(v) => want == "*" || v == want,
        Seen::NotOffered(_) => want == "not offered",
        _ => false,
    };
    let skip = skips.find(case.name, imp.name());
    match (seen, skip) {
        (Seen::Broken(what), _) => Verdict::Wrong(format!("{}: {what}", case.rule)),
        (Seen::Lacking(tool), _) => Verdict::NotTried((*tool).clone()),
        (_, None) if right => Verdict::Right,
        (_, Some(s)) if right && s.sees == "*" => Verdict::Right,
        (_, Some(_)) if right => {
            Verdict::Wrong("skips.toml has an entry for this, but it is right: remove it".into())
        }
        (Seen::NotOffered(_), Some(s)) if ["not offered", "not tried"].contains(&s.sees.as_str()) => {
            Verdict::Skipped(s.reason.clone())
        }
        (Seen::Value(v), Some(s)) if s.sees == "*" || s.sees == *v => Verdict::Skipped(s.reason.clone()),
        (seen, skip) => Verdict::Wrong(format!(
            "{}\n  want: {want}\n  seen: {}{}",
            case.rule,
            match seen {
                Seen::Value(v) => v.clone(),
                Seen::NotOffered(why) => format!("not offered ({why})"),
                Seen::Lacking(t) | Seen::Broken(t) => t.clone(),
            },
            skip.map(|s| format!("\n  skips.toml says: {}", s.sees)).unwrap_or_default()
        )),
    }
}
