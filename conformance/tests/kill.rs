//! The peer is killed with SIGKILL at a random moment, a thousand times for each sort of socket (`KILL_ROUNDS`).
//!
//! Whatever the moment: the survivor gets all that was published, byte for byte, and then the end or ECONNRESET;
//! a survivor that writes learns of it by EPIPE or ECONNRESET, asleep at once, awake within 100 ms; and nothing is
//! left behind: no descriptor, no mapping, no thread, no process, no file. `KILL_SEED` repeats a run.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use onecopy::unix::SocketAddr;
use onecopy::{Carrier, RecvFlags, SendFlags};
use onecopy_conformance::peer::{self, Job, RECEIVED, SENT, Traffic, WRONG};
use onecopy_conformance::socket::{Listening, Socket, Sort};
use onecopy_conformance::tools::{self, Dice};
use onecopy_testing::{LONG, alone};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

/// Who is awake has to notice when he sends so long after the death: then his send must fail. (Whether he has a CPU to send so
/// late, or later, is the machine's affair.)
const AWAKE: Duration = Duration::from_millis(100);
/// Who sleeps is woken, on however busy a machine.
const ASLEEP: Duration = LONG;

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

#[test]
fn a_peer_killed_at_any_moment_leaves_the_bytes_an_end_and_nothing_else() {
    alone!();
    rounds(Sort::Stream);
}

#[test]
fn a_peer_killed_at_any_moment_leaves_the_records_an_end_and_nothing_else() {
    alone!();
    rounds(Sort::Records);
}

#[test]
fn a_peer_killed_at_any_moment_leaves_the_pieces_an_end_and_nothing_else() {
    alone!();
    rounds(Sort::Pieces);
}

/// The rounds go one after the other: what is held is counted of the whole process.
fn rounds(sort: Sort) {
    let rounds = env("KILL_ROUNDS").unwrap_or(1000);
    let first = env("KILL_SEED").unwrap_or_else(|| u64::from(std::process::id()) << 20);
    let before = Held::count();
    let (mut asleep, mut awake, mut got, mut shared) = (Vec::new(), Vec::new(), 0, 0);
    for seed in first..first + rounds {
        match round(sort, seed) {
            Ok(None) => {}
            Ok(Some(seen)) => {
                got += seen.got;
                shared += u64::from(seen.shared);
                if let Some((t, was_asleep)) = seen.learned {
                    if was_asleep { asleep.push(t) } else { awake.push(t) }
                }
            }
            Err(e) => panic!(
                "{sort:?}, round {} of {rounds}: {e:#}\nrepeat it: KILL_SEED={seed} KILL_ROUNDS=1",
                seed - first
            ),
        }
    }
    let after = Held::count();
    let what = if sort == Sort::Records { "records" } else { "bytes" };
    println!(
        "{sort:?}: {rounds} rounds from seed {first}, {shared} over shared memory, {got} {what} received"
    );
    println!("writers learned: asleep {}, awake {}", spread(&mut asleep), spread(&mut awake));
    assert_eq!(before, after, "something was left behind");
    for (t, limit) in asleep.iter().map(|t| (t, ASLEEP)).chain(awake.iter().map(|t| (t, AWAKE))) {
        assert!(*t < limit, "a writer learned of the death after {t:?}, {limit:?} at most are allowed");
    }
    assert!(rounds < 100 || shared > rounds / 4, "few got to shared memory: {shared} of {rounds}");
}

fn spread(times: &mut [Duration]) -> String {
    times.sort();
    let at = |q: usize| times.get(times.len() * q / 100).copied().unwrap_or_default();
    match times.last() {
        None => "never tried".to_owned(),
        Some(max) => format!("{} times, median {:?}, p99 {:?}, most {max:?}", times.len(), at(50), at(99)),
    }
}

/// What a process holds that a connection could leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    memfd_mappings: usize,
    threads: usize,
    children: String,
    files: Vec<String>,
}

impl Held {
    fn count() -> Held {
        tools::what_stays();
        let list = |dir: &str| {
            let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
            names.map(|f| f.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mut files: Vec<String> = ["/tmp", "/dev/shm"].into_iter().flat_map(list).collect();
        // Others use these folders too, other tests among them; ours would carry the name of a ring or of this run.
        let ours = format!("onecopy-kill-{}-", std::process::id());
        files.retain(|f| f.contains("onecopy-ring") || f.contains(&ours));
        files.sort();
        // Our own mappings and descriptors of files there would show whatever the name.
        let fds = list("/proc/self/fd");
        for target in fds.iter().flat_map(|fd| std::fs::read_link(format!("/proc/self/fd/{fd}"))) {
            let target = target.to_string_lossy().into_owned();
            if target.starts_with("/dev/shm/") {
                files.push(target);
            }
        }
        Held {
            descriptors: fds.len(),
            memfd_mappings: maps.lines().filter(|l| l.contains("/memfd:") || l.contains("/dev/shm/")).count(),
            threads: list("/proc/self/task").len(),
            children: std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default(),
            files,
        }
    }
}

struct Seen {
    /// Bytes, or whole records.
    got: u64,
    /// Whether a direction went through shared memory: most jobs have one only.
    shared: bool,
    /// How long after the death a writer learned of it, and whether it slept. One that was awake: how long after it the last
    /// send began that did not fail.
    learned: Option<(Duration, bool)>,
}

/// A peer process, killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn round(sort: Sort, seed: u64) -> anyhow::Result<Option<Seen>> {
    let mut dice = Dice(seed);
    let jobs = [Job::Write, Job::Read, Job::Both, Job::Borrow, Job::Idle];
    let job = jobs[(dice.roll() % 5) as usize];
    let peer_listens = dice.one_in(3);
    let name = format!("onecopy-kill-{}-{seed}-{}", std::process::id(), sort.word());
    let progress = peer::progress_file()?;
    let listener = match peer_listens {
        true => None,
        false => Some(sort.listen(SocketAddr::from_abstract_name(&name).unwrap())?),
    };
    let job_name = format!("{job:?}").to_lowercase();
    let mut child = Killed(
        Command::new(env!("CARGO_BIN_EXE_onecopy-conformance"))
            .args(["peer", sort.word(), &name, &job_name, &seed.to_string()])
            .args(peer_listens.then_some("--listen"))
            .stdin(Stdio::null())
            .stdout(Stdio::from(progress.try_clone()?))
            .stderr(Stdio::null())
            .spawn()?,
    );
    let pid = Pid::from_child(&child.0);
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    // One in four is killed at a moment that does not wait for the connection: in the middle of the upgrade.
    let early = dice.one_in(4);
    let delay = Duration::from_micros(dice.roll() % if early { 8_000 } else { 6_000 });
    std::thread::scope(|s| {
        let killer = |wait: Duration| {
            let pidfd = &pidfd;
            s.spawn(move || {
                std::thread::sleep(wait);
                let _ = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
                let dead = ready(pidfd, LONG);
                (dead, Instant::now())
            })
        };
        let mut death = early.then(|| killer(delay));
        let stream = match &listener {
            Some(listener) => accept(listener, &pidfd)?,
            None => connect(sort, &name, &pidfd)?,
        };
        let Some(stream) = stream else {
            if let Some(death) = death {
                let _ = death.join();
            }
            return Ok(None);
        };
        let death = death.take().unwrap_or_else(|| killer(delay));
        let seen = survive(&stream, sort, job, seed, &mut dice);
        let (dead, at) = death.join().map_err(|_| anyhow::anyhow!("the killer panicked"))?;
        anyhow::ensure!(dead, "the peer did not die");
        child.0.wait()?;
        let (got, learned) = seen?;
        check(&progress, job, got)?;
        let learned = learned.map(|(t, was_asleep)| (t.saturating_duration_since(at), was_asleep));
        let path = stream.path();
        let shared = [path.send, path.receive].contains(&Carrier::SharedMemory);
        Ok(Some(Seen { got, shared, learned }))
    })
}

fn check(progress: &File, job: Job, received: u64) -> anyhow::Result<()> {
    let published = peer::progress(progress, SENT)?;
    anyhow::ensure!(
        received >= published,
        "{job:?}: {published} (bytes or records) were published, only {received} arrived"
    );
    anyhow::ensure!(
        peer::progress(progress, WRONG)? == 0,
        "the peer received what is wrong after {}",
        peer::progress(progress, RECEIVED)?
    );
    Ok(())
}

fn ready(fd: impl AsFd, within: Duration) -> bool {
    let limit = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&limit)).is_ok_and(|n| n > 0)
}

/// The peer's connection, or none if it died before there was one.
fn accept(listener: &Listening, pidfd: &impl AsFd) -> anyhow::Result<Option<Socket>> {
    listener.set_nonblocking(true)?;
    let until = Instant::now() + LONG;
    loop {
        let gone = ready(pidfd, Duration::ZERO);
        match listener.accept() {
            Ok(stream) => {
                stream.set_nonblocking(false)?;
                return Ok(Some(stream));
            }
            Err(e) if e.would_block() && gone => return Ok(None),
            Err(e) if e.would_block() => {
                ready(listener, Duration::from_millis(1));
            }
            Err(e) => return Err(e.into()),
        }
        anyhow::ensure!(Instant::now() < until, "no connection and no death in {LONG:?}");
    }
}

fn connect(sort: Sort, name: &str, pidfd: &impl AsFd) -> anyhow::Result<Option<Socket>> {
    let until = Instant::now() + LONG;
    loop {
        let gone = ready(pidfd, Duration::ZERO);
        match sort.connect(SocketAddr::from_abstract_name(name).unwrap()) {
            Ok(stream) => return Ok(Some(stream)),
            Err(_) if gone => return Ok(None),
            // (Of a process that is just dying what it is known by may be gone, and its listener not yet.)
            Err(e)
                if e.kind() == ErrorKind::ConnectionRefused
                    || e.raw_os_error() == rustix::io::Errno::PROTONOSUPPORT.raw_os_error() =>
            {
                anyhow::ensure!(Instant::now() < until, "no connection and no death in {LONG:?}: {e}");
                std::thread::sleep(Duration::from_micros(200))
            }
            Err(e) => return Err(e.into()),
        }
    }
}

/// What is left to the survivor: how many bytes or records it received, and when and how it learned of the death if it wrote.
type Learned = (u64, Option<(Instant, bool)>);

fn survive(stream: &Socket, sort: Sort, job: Job, seed: u64, dice: &mut Dice) -> anyhow::Result<Learned> {
    let (one, two) = (dice.roll(), dice.roll());
    let (theirs, ours) = (Traffic::of_peer(sort, seed), Traffic::to_peer(sort, seed));
    match job {
        Job::Write => Ok((read(stream, theirs, one)?, None)),
        Job::Idle if dice.one_in(2) => Ok((read(stream, theirs, one)?, None)),
        Job::Read | Job::Borrow | Job::Idle => {
            let learned = write(stream, ours, two)?;
            Ok((read(stream, theirs, one)?, Some(learned)))
        }
        Job::Both => std::thread::scope(|s| {
            let writer = s.spawn(|| write(stream, ours, two));
            let bytes = read(stream, theirs, one);
            let learned = writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
            Ok((bytes?, Some(learned)))
        }),
    }
}

/// Receives all there is; how many bytes or records, all of them right.
fn read(stream: &Socket, traffic: Traffic, dice: u64) -> anyhow::Result<u64> {
    let (mut dice, mut at) = (Dice(dice), 0);
    let mut buf = vec![0; 300_000];
    let mut resets = 0;
    loop {
        let max = dice.size(buf.len());
        let mut taken = true;
        let got = match dice.roll() % 5 {
            0 => stream.recv_with_flags(&mut buf[..max], RecvFlags::WAITALL),
            1 => match stream.recv_borrowed_with_flags(max, RecvFlags::empty()) {
                Some(view) => view.map(|view| view.copy_to(&mut buf)),
                None => stream.recv_with_flags(&mut buf[..max], RecvFlags::empty()),
            },
            2 => {
                taken = false;
                stream.recv_with_flags(&mut buf[..max], RecvFlags::PEEK)
            }
            3 => {
                ready(stream, Duration::from_secs(5));
                stream.recv_with_flags(&mut buf[..max], RecvFlags::DONTWAIT)
            }
            _ => stream.recv_with_flags(&mut buf[..max], RecvFlags::empty()),
        };
        match got {
            Ok(0) => return Ok(at as u64),
            Ok(n) => {
                let further = traffic.check(at, &buf[..n], max)?;
                at += if taken { further } else { 0 };
            }
            // Ready for a borrow's end or a doorbell that was all: allowed, as on every non-blocking socket.
            Err(e) if e.would_block() => {}
            Err(e) if e.kind() == ErrorKind::ConnectionReset && resets == 0 => resets += 1,
            Err(e) => anyhow::bail!("recv after {at}: {e}"),
        }
    }
}

/// Sends until it fails; when that was, and whether the call slept. If not, when the one before it began.
fn write(stream: &Socket, traffic: Traffic, dice: u64) -> anyhow::Result<(Instant, bool)> {
    let (mut dice, mut at) = (Dice(dice), 0);
    // One in two keeps room: small sends, with pauses.
    let gently = dice.one_in(2);
    // A sleeper learns by a short count; the error itself comes with the next call.
    let mut freed = None;
    let mut last = Instant::now();
    loop {
        let bytes = traffic.next(at, dice.size(if gently { 100 } else { 500_000 }));
        let sleeps = stream.stats().sleeps;
        let began = Instant::now();
        match stream.send_with_flags(&bytes, SendFlags::EOR) {
            Ok(sent) => {
                at += traffic.sent(sent);
                last = began;
                freed = (sent < bytes.len()).then(Instant::now);
            }
            Err(e) if [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&e.kind()) => {
                let slept = freed.is_some() || stream.stats().sleeps > sleeps;
                return Ok((if slept { freed.unwrap_or_else(Instant::now) } else { last }, slept));
            }
            Err(e) => anyhow::bail!("send after {at}: {e}"),
        }
        if gently {
            std::thread::sleep(Duration::from_micros(dice.roll() % 300));
        }
    }
}
