//! Child processes with a bounded life: reader and writer are two processes, as in real use.
//!
//! A worker is this program again (`onecopy bench --worker ROLE JSON`). It says `ready` on its standard output
//! when a peer may come, and one line of JSON with its figures when it is done. It dies with its parent, it is
//! killed when its time is over, and whatever it does the parent survives it and says what happened.

use std::io::{BufRead, BufReader, Read, Write};
use std::marker::PhantomData;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Deserialize;
use serde_json::{Value, json};

/// How a worker is started.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The program.
    pub program: PathBuf,
    /// Its arguments before the role.
    pub args: Vec<String>,
}

/// What a worker may take before it counts as hung. One that spins, on a machine with much else to do, takes some 10 ms for
/// what takes it a microsecond.
pub const LIFE: Duration = Duration::from_secs(120);

impl Launcher {
    /// This very program, with `args` before the role.
    pub fn current_exe(args: &[&str]) -> Result<Launcher> {
        let program = std::env::current_exe().context("finding this program, to start it as a worker")?;
        Ok(Launcher { program, args: args.iter().map(|a| (*a).to_owned()).collect() })
    }

    /// Starts a worker in `role` with its parameters, pinned to `cpu`, to live no longer than `life`.
    pub fn start(&self, role: &str, job: &Value, cpu: Option<usize>, life: Duration) -> Result<Worker> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).arg(role).arg(job.to_string());
        if let Some(cpu) = cpu {
            command.env(CPU, cpu.to_string());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("starting worker {role} as {}", self.program.display()))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (sender, lines) = channel();
        // A thread for each pipe: a worker that floods one of them can't block on the other.
        std::thread::spawn(move || {
            for line in out.into_iter().flat_map(|out| BufReader::new(out).lines()) {
                if line.is_err() || line.is_ok_and(|line| sender.send(line).is_err()) {
                    break;
                }
            }
        });
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(err) = err {
                let _ = err.take(64 * 1024).read_to_end(&mut text);
            }
            String::from_utf8_lossy(&text).trim().to_owned()
        });
        Ok(Worker {
            role: role.to_owned(),
            child,
            lines,
            errors: Some(errors),
            deadline: Instant::now() + life,
        })
    }

    /// The command line of a foreign server that ends with this process, however this one ends.
    ///
    /// It is told SIGTERM (SIGKILL would leave a master's own children behind).
    pub fn tied(&self, program: &str, args: &[&str]) -> Command {
        let job = json!({ "parent": std::process::id(), "program": program, "args": args });
        let mut command = Command::new(&self.program);
        command.args(&self.args).arg(TIED).arg(job.to_string());
        command
    }

    /// Starts `server`, waits until it is ready, starts `client`, and gives the figures of both. The server gets
    /// the second CPU and the client the first.
    pub fn pair(
        &self,
        (server, server_job): (&str, &Value),
        (client, client_job): (&str, &Value),
        cpus: [usize; 2],
        life: Duration,
    ) -> Result<(Value, Value)> {
        let mut server = self.start(server, server_job, Some(cpus[1]), life)?;
        server.ready()?;
        let mut client = self.start(client, client_job, Some(cpus[0]), life)?;
        // If the client dies, the server sees the hang-up and ends by itself, or runs out of time; the error
        // that explains more is the client's.
        let client_figures = client.figures()?;
        Ok((server.figures()?, client_figures))
    }
}

/// A child process that is killed and reaped when dropped.
#[derive(Debug)]
pub struct Worker {
    role: String,
    child: Child,
    lines: Receiver<String>,
    errors: Option<JoinHandle<String>>,
    deadline: Instant,
}

impl Worker {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the worker says that a peer may come.
    pub fn ready(&mut self) -> Result<()> {
        let line = self.line()?;
        if line == READY { Ok(()) } else { bail!("worker {} said {line:?} instead of {READY:?}", self.role) }
    }

    /// Tells the worker, which waits in [`proceed`], to go on.
    pub fn go(&mut self) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("the worker's input is closed")?;
        stdin.write_all(b"go\n").with_context(|| format!("telling worker {} to go on", self.role))
    }

    /// Waits for the worker's figures. They may come several times, each a line.
    pub fn figures(&mut self) -> Result<Value> {
        let line = self.line()?;
        serde_json::from_str(&line).with_context(|| format!("worker {} said {line:?}", self.role))
    }

    fn line(&mut self) -> Result<String> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(left) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => {
                self.end();
                bail!("worker {} was killed: its time was over", self.role)
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.obituary()),
        }
    }

    /// Why a worker that closed its output is gone.
    fn obituary(&mut self) -> anyhow::Error {
        let until = Instant::now() + Duration::from_secs(1);
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
                _ => break None,
            }
        };
        self.end();
        let words = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        match status {
            Some(status) => match (status.signal(), words.is_empty()) {
                (Some(signal), _) => anyhow!("worker {} died of signal {signal}. {words}", self.role),
                (None, false) => anyhow!("{words}"),
                (None, true) => anyhow!("worker {} ended without a word ({status})", self.role),
            },
            None => anyhow!("worker {} closed its output and did not end; it was killed. {words}", self.role),
        }
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

const CPU: &str = "ONECOPY_BENCH_CPU";
/// The role that becomes another program, see [`Launcher::tied`].
const TIED: &str = "tied";
const READY: &str = "ready";

/// Says that a peer may come.
pub fn say_ready() -> Result<()> {
    say(READY)
}

/// Gives figures to the parent before the worker is done.
pub fn say_figures(figures: &Value) -> Result<()> {
    say(&figures.to_string())
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}

/// Waits until the parent says to go on.
pub fn proceed() -> Result<()> {
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line)? == 0 {
        bail!("the bench that started this worker is gone");
    }
    Ok(())
}

/// What a child process does: the job's parameters in, its figures out.
pub type WorkerFn = fn(&Value) -> Result<Value>;

/// The whole life of a worker: `args` are the role and its parameters, and `find` knows what is done in a role.
pub fn worker_main(args: &[String], find: impl Fn(&str) -> Option<WorkerFn>) -> ExitCode {
    let result = (|| {
        let [role, job] = args else { bail!("a worker needs a role and its parameters") };
        if role == TIED {
            return become_tied(&serde_json::from_str(job)?);
        }
        let parent_gone =
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
        parent_gone.context("tying the worker's life to its parent's")?;
        if let Some(cpu) = std::env::var(CPU).ok().and_then(|cpu| cpu.parse().ok()) {
            pin(cpu)?;
        }
        let run = find(role).with_context(|| format!("there is no worker role {role}"))?;
        say_figures(&run(&serde_json::from_str(job)?)?)
    })();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error:#}", args.first().map_or("worker", String::as_str));
            ExitCode::FAILURE
        }
    }
}

/// Who starts a foreign server, and how.
#[derive(Debug, Deserialize)]
struct Tied {
    parent: i32,
    program: String,
    args: Vec<String>,
}

/// Becomes the foreign server, which is told to end when its parent is gone: the kernel keeps that wish over an exec.
fn become_tied(tied: &Tied) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
        .context("tying a server's life to its parent's")?;
    if rustix::process::Pid::as_raw(rustix::process::getppid()) != tied.parent {
        bail!("the bench that started this server is gone");
    }
    Err(Command::new(&tied.program).args(&tied.args).exec())
        .with_context(|| format!("starting {}", tied.program))
}

/// Pins the calling thread, and the threads and processes it will start, to one CPU for good: that is for workers, and for threads
/// that end with their work. All others want [`Pinned`].
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("pinning to CPU {cpu}"))
}

/// Has the calling thread on one CPU as long as it lives; then the thread may run where it could before, and so may what it starts.
#[must_use = "the thread is free again when this is dropped"]
#[derive(Debug)]
pub struct Pinned {
    before: rustix::thread::CpuSet,
    /// It is the calling thread's, and goes to no other.
    _here: PhantomData<*const ()>,
}

impl Pinned {
    /// To `cpu`, from now on.
    pub fn to(cpu: usize) -> Result<Pinned> {
        let before = rustix::thread::sched_getaffinity(None).context("asking where this thread may run")?;
        pin(cpu)?;
        Ok(Pinned { before, _here: PhantomData })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // It fails only where none of those CPUs is left, and then the kernel has chosen others.
        let _ = rustix::thread::sched_setaffinity(None, &self.before);
    }
}

/// The first two CPUs this process may run on; the same one twice if there is only one.
pub fn two_cpus() -> [usize; 2] {
    let allowed = rustix::thread::sched_getaffinity(None);
    let mut cpus =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.as_ref().is_ok_and(|set| set.is_set(cpu)));
    let first = cpus.next().unwrap_or(0);
    [first, cpus.next().unwrap_or(first)]
}

/// CPU seconds, user and system, that this process has used so far.
pub fn cpu_seconds() -> f64 {
    // The process clock counts nanoseconds of all threads, where getrusage's fields may be rounded to ticks.
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

/// CPU seconds that process `pid` has used so far, all its threads that still live.
pub fn cpu_seconds_of(pid: u32) -> Result<f64> {
    let mut seconds = 0.0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?.path();
        let text = std::fs::read_to_string(thread.join("schedstat"))?;
        seconds += text.split(' ').next().unwrap_or("0").parse::<u64>()? as f64 / 1e9;
        // The workers of a master. (A kernel without the file has none to tell.)
        let children = std::fs::read_to_string(thread.join("children")).unwrap_or_default();
        for child in children.split_whitespace() {
            seconds += cpu_seconds_of(child.parse()?)?;
        }
    }
    Ok(seconds)
}

/// Seconds on a clock that all processes of this machine share.
pub fn now() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}
