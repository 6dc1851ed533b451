//! What daemon and proxy ask of the process they run in.

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::future::Future;
use std::time::{Duration, Instant};
use std::{fmt, io};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Raises the limit of open files to the most that is allowed, and gives it: idle connections cost descriptors.
pub fn raise_open_files() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok() {
        return maximum.unwrap_or(u64::MAX);
    }
    current.unwrap_or(u64::MAX)
}

/// Keeps this process, and the threads it will start, on one CPU.
pub fn pin(cpu: usize) -> anyhow::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    anyhow::ensure!(cpu < rustix::thread::CpuSet::MAX_CPU, "CPU {cpu} does not exist");
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("cannot stay on CPU {cpu}"))
}

/// Ties this process's life to that of the process `parent`, which started it: SIGTERM when that is gone, however it went.
pub fn die_with_parent(parent: i32) -> anyhow::Result<()> {
    let term = Some(rustix::process::Signal::TERM);
    rustix::process::set_parent_process_death_signal(term)
        .context("cannot ask to be told of the parent's end")?;
    // It may have gone before that.
    let now = rustix::process::Pid::as_raw(rustix::process::getppid());
    anyhow::ensure!(
        now == parent,
        "process {parent}, which was to end this one, is gone or did not start it"
    );
    Ok(())
}

/// A signal that asks a program to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Ctrl-C.
    Interrupt,
    /// kill, a service manager.
    Terminate,
    /// The terminal is gone.
    HangUp,
}

impl Stop {
    /// The exit status that a shell gives to a program which that signal ended.
    pub fn code(self) -> i32 {
        match self {
            Stop::Interrupt => 130,
            Stop::Terminate => 143,
            Stop::HangUp => 129,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stop::Interrupt => "SIGINT",
            Stop::Terminate => "SIGTERM",
            Stop::HangUp => "SIGHUP",
        })
    }
}

/// Where these signals come in, from the moment on in which this is made.
struct Signals {
    term: Signal,
    int: Signal,
    hup: Option<Signal>,
}

impl Signals {
    /// SIGHUP, too, with `hang_up`, unless who started this program has it ignored (nohup(1)).
    fn new(hang_up: bool) -> io::Result<Signals> {
        let hup = match hang_up && !hang_up_is_ignored() {
            true => Some(signal(SignalKind::hangup())?),
            false => None,
        };
        Ok(Signals { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())?, hup })
    }

    async fn next(&mut self) -> Stop {
        let hung_up = async {
            match &mut self.hup {
                Some(hup) => hup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.term.recv() => Stop::Terminate,
            _ = self.int.recv() => Stop::Interrupt,
            _ = hung_up => Stop::HangUp,
        }
    }
}

/// As proc(5) tells it.
fn hang_up_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    ignored >> (rustix::process::Signal::HUP.as_raw() - 1) & 1 == 1
}

/// Does `work` on a thread of its own, and waits for it or for a signal to stop: then the servers that it has started end
/// with this process, to whose life they are tied, and its files go. `name` is the program's, as told.
pub fn measure(name: &str, work: impl FnOnce() -> anyhow::Result<()> + Send + 'static) -> anyhow::Result<()> {
    let signal = match beside(work)? {
        Ok(result) => return result,
        Err(signal) => signal,
    };
    onecopy_bench::temp::end(|| {
        tell!("{name}: {signal}; servers stopped, files removed");
        std::process::exit(signal.code())
    })
}

/// Does `work` on a thread of its own, and waits for it, or for a signal to stop: then the thread is left to itself.
pub fn beside<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<Result<anyhow::Result<T>, Stop>> {
    let (done, finished) = tokio::sync::oneshot::channel();
    block_on(async {
        let mut signals = Signals::new(true)?;
        let stop = tokio::task::spawn_local(async move { signals.next().await });
        tokio::task::yield_now().await; // the handlers are in place before there is anything to be left behind
        std::thread::Builder::new().name("work".into()).spawn(move || done.send(work()))?;
        tokio::select! {
            result = finished => Ok(Ok(result.context("the working thread died")?)),
            signal = stop => Ok(Err(signal?)),
        }
    })
}

/// What comes sooner after the first signal is taken for the same wish: a wrapper passes on what its whole group got, a
/// terminal that goes says so twice.
const SAME_WISH: Duration = Duration::from_secs(1);

/// Whether a further signal, so long after the first, cuts what is in flight. Only a person at a terminal who asks again does:
/// a service manager has --grace for that, and SIGKILL.
fn cuts(signal: Stop, since: Duration) -> bool {
    signal == Stop::Interrupt && since >= SAME_WISH
}

/// Why the program called `name` was asked to stop; whether SIGHUP is a reason is told. Should what is in flight be cut, `last` is what it
/// does before it ends.
pub async fn asked_to_stop(
    name: &'static str,
    hang_up: bool,
    last: impl FnOnce() + Send + 'static,
) -> anyhow::Result<Stop> {
    let why = Signals::new(hang_up)?.next().await;
    let (begun, mut signals) = (Instant::now(), Signals::new(false)?);
    // On a thread of its own: the one that serves may be waiting in its own way by then.
    let watch = async move {
        let mut told = false;
        loop {
            let again = signals.next().await;
            if cuts(again, begun.elapsed()) {
                tell!("{name}: {again} again: what was in flight is cut");
                last();
                std::process::exit(again.code());
            }
            if !std::mem::replace(&mut told, true) {
                tell!(
                    "{name}: {again} again: still finishing what is in flight; SIGINT in a second ends it at once"
                );
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(|| block_on::<()>(watch))?;
    Ok(why)
}

/// Calls `report` at every SIGUSR1, for ever.
pub async fn at_usr1(report: impl Fn()) -> anyhow::Result<()> {
    at(SignalKind::user_defined1(), async || report()).await
}

/// Calls `again` at every SIGHUP, for ever; once for all those that come while it is at work.
pub async fn at_hup(again: impl AsyncFn()) -> anyhow::Result<()> {
    at(SignalKind::hangup(), again).await
}

async fn at(kind: SignalKind, act: impl AsyncFn()) -> anyhow::Result<()> {
    let mut signals = signal(kind)?;
    while signals.recv().await.is_some() {
        act().await;
    }
    Ok(())
}

/// Runs `main` on this thread.
pub fn block_on<T>(main: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = tokio::task::LocalSet::new().block_on(&runtime, main);
    // A thread of the runtime may still be waiting for a backend that takes no connection: nobody waits for that.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_late_ctrl_c_cuts() {
        let (soon, late) = (SAME_WISH - Duration::from_millis(1), SAME_WISH);
        for signal in [Stop::Interrupt, Stop::Terminate, Stop::HangUp] {
            assert!(!cuts(signal, soon));
            assert_eq!(cuts(signal, late), signal == Stop::Interrupt);
        }
    }
}
