//! One process and all that it starts: what it says, how it ends, and that it ends.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::shell;

/// How long a process may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// After that long somebody is told that it still runs.
    pub slow: Duration,
    /// After that long it counts as hung, and is killed.
    pub hung: Duration,
}

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// None of one that was killed because it hung.
    pub status: Option<ExitStatus>,
    /// All that it wrote, on standard output and standard error, in the order in which it did.
    pub said: String,
    /// From its start on.
    pub took: Duration,
}

/// The groups of the processes that run, each by the process that leads it.
static GROUPS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// Runs a command in a process group of its own, which is killed if its leader hangs or fails. (What a leader leaves behind
/// that says that all is well, is found where what stays behind is looked for.)
///
/// What it says goes to a file and not through a pipe: a process that it leaves behind with the other end would be
/// waited for.
pub fn run(command: &mut Command, patience: Patience, mut slow: impl FnMut()) -> Result<Ended> {
    ends_with_us();
    let mut file = tempfile::tempfile().context("no file for what a test says")?;
    command.stdout(file.try_clone()?).stderr(file.try_clone()?).process_group(0);
    let began = Instant::now();
    let mut child = {
        // Whoever ends us meanwhile waits for the new group, and ends it with the others.
        let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        let child =
            command.spawn().with_context(|| format!("{:?} could not be started", command.get_program()))?;
        groups.insert(Pid::from_child(&child).as_raw_nonzero().get());
        child
    };
    let pid = Pid::from_child(&child);
    let fine = all_is_well(pid, began, patience, &mut slow);
    if !matches!(fine, Ok(Some(true))) {
        // It is not reaped yet, so that its number is nobody else's.
        let _ = kill_process_group(pid, Signal::KILL);
    }
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner).remove(&pid.as_raw_nonzero().get());
    let status = child.wait()?;
    let status = fine?.map(|_| status);
    Ok(Ended { status, said: all_of(&mut file)?, took: began.elapsed() })
}

/// Waits for a process, and does not reap it: whether it succeeded, None if it hangs.
fn all_is_well(
    pid: Pid,
    began: Instant,
    patience: Patience,
    slow: &mut impl FnMut(),
) -> Result<Option<bool>> {
    let process = pidfd_open(pid, PidfdFlags::empty()).context("pidfd_open")?;
    let mut told = false;
    loop {
        let limit = if told { patience.hung } else { patience.slow.min(patience.hung) };
        let left = Timespec::try_from(limit.saturating_sub(began.elapsed()))?;
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("poll"),
            Ok(0) if limit == patience.hung => return Ok(None),
            Ok(0) => {
                told = true;
                slow();
            }
            Ok(_) => {
                let ended =
                    waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
                let ended = ended.context("waitid")?;
                return Ok(Some(ended.is_some_and(|ended| ended.exit_status() == Some(0))));
            }
        }
    }
}

fn all_of(file: &mut File) -> Result<String> {
    let mut said = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut said)?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// From here on a signal that ends us, such as that of Ctrl-C, ends the groups first: the terminal does not know them.
fn ends_with_us() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let heard = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| !is_ignored(*signal));
        let Ok(mut signals) = Signals::new(heard) else { return };
        thread::spawn(move || {
            for signal in signals.forever() {
                // Held until the end: nothing new starts.
                let groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
                for group in groups.iter().filter_map(|group| Pid::from_raw(*group)) {
                    let _ = kill_process_group(group, Signal::KILL);
                }
                shell::remove_tmpdir();
                let _ = emulate_default_handler(signal);
            }
        });
    });
}

/// Whether a signal is ignored, as those are that nohup(1) or a shell's `&` wants to reach nobody.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rust's programs ignore SIGPIPE from the beginning.
    #[test]
    fn ignored_signals_are_known() {
        assert!(is_ignored(signal_hook::consts::SIGPIPE) && !is_ignored(signal_hook::consts::SIGCHLD));
    }

    const LONG: Duration = Duration::from_secs(600);

    fn shell(script: &str, patience: Patience) -> Ended {
        run(Command::new("sh").args(["-c", script]), patience, || {}).unwrap()
    }

    #[test]
    fn what_is_said_comes_in_its_order_with_the_status() {
        let patience = Patience { slow: LONG, hung: LONG };
        let ended = shell("echo a; echo b >&2; echo c; exit 3", patience);
        assert_eq!((ended.said.as_str(), ended.status.unwrap().code()), ("a\nb\nc\n", Some(3)));
        assert!(shell("true", patience).status.unwrap().success());
        assert!(run(&mut Command::new("/nowhere"), patience, || {}).is_err());
    }

    /// A process that holds the writing end of a pipe, until it is killed: whoever reads hears the end.
    fn waits_for_ever(script: &str, patience: Patience) -> (Ended, u32) {
        let (mut ours, theirs) = std::io::pipe().unwrap();
        let mut slow = 0;
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).stdin(theirs);
        let ended = run(&mut shell, patience, || slow += 1).unwrap();
        drop(shell);
        ours.read_to_end(&mut Vec::new()).unwrap();
        (ended, slow)
    }

    #[test]
    fn one_that_hangs_is_told_of_and_killed_with_what_it_started() {
        let patience = Patience { slow: Duration::from_millis(1), hung: Duration::from_millis(300) };
        let (ended, slow) = waits_for_ever("sleep 600 <&0 & echo started; sleep 600", patience);
        assert!(ended.status.is_none() && slow == 1, "{ended:?}, {slow}");
    }

    #[test]
    fn what_a_failed_one_started_is_killed_too() {
        let patience = Patience { slow: LONG, hung: LONG };
        let (ended, slow) = waits_for_ever("sleep 600 <&0 & exit 1", patience);
        assert_eq!((ended.status.unwrap().code(), slow), (Some(1), 0));
    }
}
