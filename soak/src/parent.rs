//! The survivor: it listens, kills, starts anew, and looks at what is left.

use std::fs;
use std::io::{BufRead, BufReader, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use onecopy::Transport;
use onecopy::unix::{Config, Datagram, Listener, SeqListener};
use onecopy_conformance::socket::Listening;
use onecopy_conformance::tools::Dice;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::crowd::{Common, Crowd, THREADS};
use crate::held::{Held, Memory, ours_in};
use crate::mail::lock;
use crate::party::{Party, Tally};
use crate::plan::{Kind, Names, config};
use crate::worker::{answer, answer_by_datagram};

/// What the run is bounded by.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// How long
    #[arg(long, value_name = "N", default_value_t = 600)]
    seconds: u64,
    /// Connections that live at any moment
    #[arg(long, value_name = "N", default_value_t = 1000)]
    connections: usize,
    /// Worker processes that hold the other ends, and are killed
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    workers: u64,
    /// Between two kills, in milliseconds, on the average
    #[arg(long, value_name = "MS", default_value_t = 1500)]
    kill_every: u64,
    /// Repeat the plans of a run (the machine's own timing is another each time)
    #[arg(long)]
    seed: Option<u64>,
    /// Tell the outcome as one JSON object
    #[arg(long)]
    json: bool,
    /// Lose one connection's wake-ups, which must be found
    #[arg(long, hide = true)]
    deaf: bool,
    /// Leave a few bytes of each connection behind, which must be found
    #[arg(long, hide = true)]
    leaky: bool,
}

/// The outcome.
#[derive(serde::Serialize)]
struct Summary {
    seed: u64,
    seconds: f64,
    connections: usize,
    /// Quiet moments at which all was counted.
    counts: u64,
    kills: u64,
    /// As the survivor saw it.
    survivor: Tally,
    /// As the workers that were not killed told it.
    workers: Tally,
    before: Held,
    after: Held,
    memory_before: Memory,
    memory_first: Memory,
    memory_after: Memory,
    most_descriptors: usize,
    most_shared_memory: u64,
    wrong: Option<String>,
}

/// Every process here may have this many descriptors.
const DESCRIPTORS_EACH: usize = 8;
/// What the allocator may keep from one quiet moment to the next, beside a quarter.
const KEPT: u64 = 16 << 20;
/// Connections that lived their lives of which some are of each kind.
const ENOUGH: u64 = 800;
/// Longest until all is closed once it was asked for.
const QUIET: Duration = Duration::from_secs(30);

/// A worker, killed when dropped.
struct Worker {
    child: Child,
    generation: u32,
    common: Arc<Common>,
    /// Reads what it says, and gives its last line.
    reader: Option<JoinHandle<String>>,
}

impl Worker {
    /// Its last line, once it has ended.
    fn last_words(&mut self) -> String {
        self.common.post.forget(self.generation);
        lock(&self.common.dead).add(self.generation);
        self.reader.take().and_then(|reader| reader.join().ok()).unwrap_or_default()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.last_words();
    }
}

/// Passes on what a worker says of its connections, until it ends. The line that is none of these is its tally.
fn listen(common: &Common, out: ChildStdout) -> String {
    let mut last = String::new();
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        match line.parse() {
            Ok(line) => common.post.deliver(line),
            Err(_) => last = line,
        }
    }
    last
}

/// A folder that is gone when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What serves, until dropped.
struct Servers {
    common: Arc<Common>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Servers {
    fn drop(&mut self) {
        let _ = self.common.stop.set(());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// SIGINT and SIGTERM, as bytes in a pipe.
fn signals() -> anyhow::Result<OwnedFd> {
    let (told, tell) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK)?;
    let mut tell = Some(tell);
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        // The first one's serves both.
        let fd = match tell.take() {
            Some(fd) => fd,
            None => told.try_clone()?,
        };
        onecopy_sys::signal::catch(signal.as_raw(), fd, true)?;
    }
    Ok(told)
}

fn ready(fd: impl AsFd, within: Duration) -> bool {
    let limit = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&limit)).is_ok_and(|n| n > 0)
}

fn raise_descriptors(want: usize) -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let want = want as u64;
    if now.current.is_some_and(|n| n < want) {
        let current = now.maximum.map_or(want, |most| most.min(want));
        setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: now.maximum })?;
        ensure!(
            current == want,
            "{want} descriptors are needed, and RLIMIT_NOFILE allows {current}: raise it, or ask for fewer --connections"
        );
    }
    Ok(())
}

fn serve(common: &Arc<Common>, run: u64, names: &Names) -> anyhow::Result<Servers> {
    let mut servers = Servers { common: common.clone(), threads: Vec::new() };
    let mut inboxes = Vec::new();
    for n in 0..THREADS {
        let (sender, inbox) = mpsc::channel();
        inboxes.push(sender);
        let crowd = Crowd::new(common.clone(), n, inbox, None, run ^ n as u64);
        servers.threads.push(thread::spawn(move || crowd.run()));
    }
    for kind in Kind::ALL {
        let (config, at) = (config(kind), names.reception(kind));
        let reception = match kind {
            Kind::Stream => Reception::Listening(Listening::Bytes(Listener::bind_with(at, &config)?)),
            Kind::Grams => {
                // (A receiver of many would have a beacon for its senders from the first datagram on, which is no leak.)
                let plain = Config { transport: Transport::Kernel, ..config };
                Reception::Grams(Datagram::bind_with(at, &plain)?, names.clone())
            }
            _ => Reception::Listening(Listening::Records(SeqListener::bind_with(at, &config)?)),
        };
        if let Reception::Listening(listener) = &reception {
            listener.set_nonblocking(true)?;
        }
        let (common, inboxes) = (common.clone(), inboxes.clone());
        servers.threads.push(thread::spawn(move || accept(&common, &reception, run, &inboxes)));
    }
    Ok(servers)
}

/// Where workers come to.
enum Reception {
    Listening(Listening),
    Grams(Datagram, Names),
}

impl Reception {
    /// The next connection, if it is one still.
    fn next(&self, run: u64) -> Result<Option<Party>, String> {
        match self {
            Reception::Grams(reception, names) => answer_by_datagram(reception, names, run),
            Reception::Listening(listener) => match listener.accept() {
                Ok(socket) => answer(socket, run),
                Err(e) if e.would_block() => Ok(None),
                Err(e) => Err(format!("accept: {e}")),
            },
        }
    }
}

impl AsFd for Reception {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Reception::Listening(listener) => listener.as_fd(),
            Reception::Grams(socket, _) => socket.as_fd(),
        }
    }
}

fn accept(common: &Common, reception: &Reception, run: u64, crowds: &[Sender<Party>]) {
    let mut turn = 0;
    while common.stop.get().is_none() {
        if !ready(reception, Duration::from_millis(50)) {
            continue;
        }
        match reception.next(run) {
            Ok(None) => {}
            Ok(Some(party)) => {
                turn += 1;
                let _ = crowds[turn % crowds.len()].send(party);
            }
            Err(what) => common.fail(what),
        }
    }
}

/// Ends the run in an orderly way as soon as anything says so.
struct Run<'a> {
    args: &'a Args,
    seed: u64,
    dice: Dice,
    common: Arc<Common>,
    base: String,
    folder: PathBuf,
    generation: u32,
    kills: u64,
    workers: Vec<Worker>,
    told: Tally,
    most_descriptors: usize,
    most_shared: u64,
}

impl Run<'_> {
    fn start_worker(&mut self) -> anyhow::Result<()> {
        self.generation += 1;
        let workers = self.args.workers as usize;
        let share = self.args.connections / workers
            + usize::from(self.workers.len() < self.args.connections % workers);
        let mut child = Command::new(std::env::current_exe()?)
            .arg("worker")
            .arg(&self.base)
            .arg(&self.folder)
            .args([self.seed.to_string(), self.generation.to_string(), share.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("a worker could not be started")?;
        self.common.post.expect(self.generation);
        if let Some(way) = child.stdin.take() {
            lock(&self.common.post.ways).insert(self.generation, way);
        }
        let common = self.common.clone();
        let reader = child.stdout.take().map(|out| thread::spawn(move || listen(&common, out)));
        let common = self.common.clone();
        self.workers.push(Worker { child, generation: self.generation, common, reader });
        Ok(())
    }

    fn kill_one(&mut self) -> anyhow::Result<()> {
        let at = self.dice.roll() as usize % self.workers.len();
        let mut worker = self.workers.swap_remove(at);
        // One that ended by itself has something to tell.
        if let Some(status) = worker.child.try_wait()? {
            bail!("a worker ended by itself: {status}");
        }
        lock(&self.common.gone).add(worker.generation);
        drop(worker);
        self.kills += 1;
        Ok(())
    }

    /// All workers end, and say what they did; then all connections have ended here, too.
    fn quiet(&mut self) -> anyhow::Result<()> {
        for worker in &mut self.workers {
            lock(&self.common.gone).add(worker.generation);
            lock(&self.common.post.ways).remove(&worker.generation);
        }
        for mut worker in std::mem::take(&mut self.workers) {
            let until = Instant::now() + QUIET;
            while worker.child.try_wait()?.is_none() {
                ensure!(Instant::now() < until, "worker {} does not end", worker.generation);
                thread::sleep(Duration::from_millis(5));
            }
            let status = worker.child.wait()?;
            ensure!(status.success(), "worker {} ended with {status}", worker.generation);
            self.told.add(&serde_json::from_str(&worker.last_words()).context("what a worker said")?);
        }
        let until = Instant::now() + QUIET;
        while *lock(&self.common.live) > 0 && self.common.wrong().is_none() {
            ensure!(
                Instant::now() < until,
                "{} connections of dead workers do not end",
                lock(&self.common.live)
            );
            thread::sleep(Duration::from_millis(5));
        }
        // (What one of them was about to connect may be on its way still.)
        lock(&self.common.gone).add_all_to(self.generation);
        lock(&self.common.dead).add_all_to(self.generation);
        Ok(())
    }
}

/// Soaks.
///
/// # Errors
///
/// What did not hold, or is left.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let seed = args.seed.unwrap_or_else(|| {
        std::time::UNIX_EPOCH.elapsed().map_or(1, |d| d.as_nanos() as u64)
            ^ u64::from(std::process::id()) << 40
    });
    raise_descriptors(args.connections * DESCRIPTORS_EACH + 256)?;
    let told = signals()?;
    let folder = Folder(std::env::temp_dir().join(format!("onecopy-soak-{}", std::process::id())));
    fs::create_dir(&folder.0).with_context(|| folder.0.display().to_string())?;
    let shm_before = ours_in(Path::new("/dev/shm"));
    let common = Arc::new(Common::new(args.deaf, args.leaky));
    let base = format!("onecopy-soak-{}", std::process::id());
    drop(onecopy::unix::Stream::pair());
    let servers = serve(&common, seed, &Names::new(&base, &folder.0))?;
    // What is counted here is what threads keep: they have to have made it.
    let until = Instant::now() + QUIET;
    while *lock(&common.begun) < THREADS {
        ensure!(Instant::now() < until, "the threads that serve do not begin");
        thread::sleep(Duration::from_millis(5));
    }
    let (before, memory_before) = (Held::now(), Memory::now());
    let began = Instant::now();
    let over = began + Duration::from_secs(args.seconds);
    let mut run = Run {
        args,
        seed,
        dice: Dice(seed),
        common: common.clone(),
        base,
        folder: folder.0.clone(),
        generation: 0,
        kills: 0,
        workers: Vec::new(),
        told: Tally::default(),
        most_descriptors: 0,
        most_shared: 0,
    };
    let interrupted = OnceLock::new();
    let mut counts = 0;
    let mut first = Memory::default();
    let mut result = Ok(());
    // A count every minute or so, and four at least.
    let lap = (Duration::from_secs(args.seconds) / 4).min(Duration::from_secs(60));
    while result.is_ok() && Instant::now() < over && interrupted.get().is_none() {
        let until = (Instant::now() + lap).min(over);
        result = one_lap(&mut run, until, &told, &interrupted, began)
            .and_then(|()| run.quiet())
            .and_then(|()| count(&before, &mut first, counts, &shm_before, &folder.0));
        counts += 1;
    }
    // What the end of the workers does to their connections is no failure of its own.
    let wrong = common.wrong().or(result.err().map(|e| format!("{e:#}")));
    lock(&common.gone).add_all_to(run.generation);
    run.workers.clear();
    let survivor = *lock(&common.tally);
    let after = Held::now();
    let memory_after = Memory::now();
    drop(servers);
    let summary = Summary {
        seed,
        seconds: began.elapsed().as_secs_f64(),
        connections: args.connections,
        counts,
        kills: run.kills,
        survivor,
        workers: run.told,
        before,
        after,
        memory_before,
        memory_first: first,
        memory_after,
        most_descriptors: run.most_descriptors,
        most_shared_memory: run.most_shared,
        wrong: wrong.clone(),
    };
    if args.json {
        println!("{}", serde_json::to_string(&summary)?);
    } else {
        tell(&summary);
    }
    if let Some(what) = wrong {
        bail!("{what}\nrepeat the plans: --seed {seed} --connections {}", args.connections);
    }
    if interrupted.get().is_some() {
        bail!("interrupted after {:.0} s; so far all held", began.elapsed().as_secs_f64());
    }
    ensure!(survivor.ended > 0, "no connection lived to its end");
    for (kind, shared) in Kind::ALL.iter().zip(survivor.shared) {
        // (Of datagrams one in forty comes so far, between kills.)
        let must = survivor.ended > ENOUGH;
        ensure!(!must || shared > 0, "no connection of {kind:?} lived to its end over shared memory");
    }
    Ok(())
}

/// Traffic and kills until `until`.
fn one_lap(
    run: &mut Run<'_>,
    until: Instant,
    told: &OwnedFd,
    interrupted: &OnceLock<()>,
    began: Instant,
) -> anyhow::Result<()> {
    while run.workers.len() < run.args.workers as usize {
        run.start_worker()?;
    }
    let mut shown = Instant::now();
    let mut kill_at = Instant::now() + Duration::from_millis(run.args.kill_every);
    while Instant::now() < until {
        if ready(told, Duration::from_millis(20)) {
            let _ = interrupted.set(());
            return Ok(());
        }
        if let Some(what) = run.common.wrong() {
            bail!(what);
        }
        if Instant::now() > kill_at {
            run.kill_one()?;
            run.start_worker()?;
            let pause = run.dice.roll() % (2 * run.args.kill_every).max(1);
            kill_at = Instant::now() + Duration::from_millis(pause);
        }
        for worker in &mut run.workers {
            if let Some(status) = worker.child.try_wait()? {
                bail!("worker {} ended by itself: {status}", worker.generation);
            }
        }
        let every = if std::io::stderr().is_terminal() { 1 } else { 10 };
        if shown.elapsed() > Duration::from_millis(if run.most_descriptors == 0 { 500 } else { 1000 }) {
            let held = Held::now();
            let memory = Memory::now();
            run.most_descriptors = run.most_descriptors.max(held.descriptors);
            run.most_shared = run.most_shared.max(memory.shared);
            let live = *lock(&run.common.live);
            // Those that are dead but not met yet are beside the living ones.
            let most = (2 * run.args.connections + 64) * DESCRIPTORS_EACH;
            ensure!(held.descriptors < most, "{} descriptors for {live} connections", held.descriptors);
            shown = Instant::now();
            if began.elapsed().as_secs().is_multiple_of(every) {
                let tally = *lock(&run.common.tally);
                eprintln!(
                    "{:4} s  {live} live, {} over, {} cut by {} kills; {:.1} MB in, {} records, {} descriptors; holds {} descriptors, {} mappings, {:.1} MB of its own, {:.1} shared",
                    began.elapsed().as_secs(),
                    tally.ended,
                    tally.cut,
                    run.kills,
                    tally.bytes as f64 / 1e6,
                    tally.records,
                    tally.descriptors,
                    held.descriptors,
                    held.mappings,
                    memory.anonymous as f64 / 1e6,
                    memory.shared as f64 / 1e6,
                );
            }
        }
    }
    Ok(())
}

/// All connections are closed: what is left?
fn count(
    before: &Held,
    first: &mut Memory,
    counts: u64,
    shm_before: &std::collections::BTreeSet<String>,
    folder: &Path,
) -> anyhow::Result<()> {
    // Connections that were never counted as live may be on their way still: accepted or in the backlog, of a worker
    // that ended before it said which they are. What is left over stays, what is on its way goes.
    let until = Instant::now() + QUIET;
    let mut after = Held::now();
    while *before != after && Instant::now() < until {
        thread::sleep(Duration::from_millis(10));
        after = Held::now();
    }
    ensure!(*before == after, "left in the survivor: {before:?} became {after:?}");
    let memory = Memory::now();
    if counts == 0 {
        *first = memory;
    }
    memory.has_no_more_than(first).map_err(|what| anyhow::anyhow!("left in the survivor: {what}"))?;
    let most = first.anonymous + first.anonymous / 4 + KEPT;
    ensure!(
        memory.anonymous <= most,
        "memory grows: {} bytes, {} after the first lap",
        memory.anonymous,
        first.anonymous
    );
    ensure!(
        memory.shared <= first.shared.min(KEPT) + (1 << 20),
        "{} bytes of shared memory are left",
        memory.shared
    );
    let shm: Vec<_> = ours_in(Path::new("/dev/shm")).difference(shm_before).cloned().collect();
    ensure!(shm.is_empty(), "left in /dev/shm: {shm:?}");
    let files = fs::read_dir(folder)?.count();
    ensure!(files == 1, "{files} files where the listener's one should be");
    Ok(())
}

fn tell(s: &Summary) {
    println!(
        "{:.0} s, {} connections at a time, {} kills, seed {}",
        s.seconds, s.connections, s.kills, s.seed
    );
    for (who, t) in [("survivor", &s.survivor), ("workers", &s.workers)] {
        println!(
            "{who:10} {} connections lived their lives (over shared memory {} streams, {} of records, {} of records in parts, {} of datagrams), {} were cut; verified {:.1} MB, {} records, {} descriptors; {} pages lent, {} pools whole after a death",
            t.ended,
            t.shared[0],
            t.shared[1],
            t.shared[2],
            t.shared[3],
            t.cut,
            t.bytes as f64 / 1e6,
            t.records,
            t.descriptors,
            t.pages,
            t.homes,
        );
        println!("{:10} {} times nothing happened for long, and both ends were asked", "", t.asked);
    }
    println!(
        "held before {:?}; after {:?}; at most {} descriptors and {:.1} MB of shared memory; {} counts",
        s.before,
        s.after,
        s.most_descriptors,
        s.most_shared_memory as f64 / 1e6,
        s.counts
    );
    for (when, memory) in
        [("before", s.memory_before), ("after a lap", s.memory_first), ("at the end", s.memory_after)]
    {
        println!(
            "{when:12} {:.3} MB in {} pieces allocated; {:.1} MB resident of its own, with what the allocator keeps",
            memory.allocated as f64 / 1e6,
            memory.pieces,
            memory.anonymous as f64 / 1e6
        );
    }
}
