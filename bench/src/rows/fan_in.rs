//! `fan-in`: many senders to one datagram receiver, and one of them floods it.
//!
//! The flood is what fills the machine, so `rate` is what a receiver gets at most. The others are *polite*: each asks for far
//! less than an equal share of that, at a pace which is given, so what holds them up is the flood. `wait` is how long a
//! datagram of theirs is on its way, from the call of send, which may block, to the receiver's look at it; `least` is how
//! much of its pace the one got that got least. Their pace is the same for all engines, so a round is as long for all of
//! them, and who is faster receives more of the flood in it.

use std::thread;

use anyhow::{Context as _, Result, anyhow, ensure};
use onecopy::unix::{Datagram, SocketAddr};
use onecopy_sync::atomic::{AtomicU64, Ordering};
use rustix::thread::{ClockId, clock_nanosleep_absolute};
use rustix::time::Timespec;
use serde_json::{Value, json};

use super::conn::Conn;
use super::job::{number, text, whole, with};
use super::meet::{self, Server};
use super::setup::{Kind, Setup};
use super::{bytes, records};
use crate::proc::{self, Launcher};
use crate::row::{Case, Context, Metric, Plot, Reach, Row, Sample, Scale, Session, Work};
use crate::temp::TempDir;

/// The row.
pub const ROW: Row = Row {
    name: "fan-in",
    about: "one process receives datagrams of 64 bytes, copied out, one at a time, and looks who sent each; another one sends them, \
            a thread and a connected socket for each sender, blocking: the first floods, the others send 10,000 a second \
            between them (kernel: its queue as it is here; kernel-mmsg: 64 to a call, the flood and the receiver; \
            kernel-512: that, with the queue of 512 that systemd asks for)",
    stated: &[],
    metrics: &[
        Metric { name: "rate", unit: "M/s", larger: true },
        Metric { name: "cpu", unit: "CPU ns/datagram", larger: false },
        Metric { name: "wait", unit: "us (p99)", larger: false },
        Metric { name: "least", unit: "% of its pace", larger: true },
    ],
    share: 1.0,
    cases,
    workers: &[("fan-in/receiver", receiver), ("fan-in/senders", senders)],
    plot: Plot::Bars,
};

/// Senders in all. The first one, number 0, floods.
const SENDERS: [u64; 3] = [1, 8, 64];
const FLOOD: u64 = 0;
/// Bytes of a datagram.
const SIZE: usize = 64;
/// Seconds from one polite datagram to the next one, whoever sends it.
const STEP: f64 = 100e-6;
/// What a sender that is slower than this, in percent of its pace, would be: starved.
const STARVED: f64 = 90.0;
/// Datagrams of all senders before the clock starts, at least; and of one at most, which has still to come to share memory.
const GREETINGS: u64 = 4096;
const MOST_GREETINGS: u64 = 100_000;
/// The kernel's engines.
const KERNELS: &[&str] = &["kernel", "kernel-mmsg", LONG];
/// The one with the longer queue, how long that is (systemd's src/core/main.c: bump_unix_max_dgram_qlen), and what each
/// sender may have in it: no less than all of it.
const LONG: &str = "kernel-512";
const QUEUE: u64 = 512;
const QUEUE_BYTES: usize = 1 << 20;
/// Of the network namespace of who looks (proc(5)).
const QUEUE_SYSCTL: &str = "/proc/sys/net/unix/max_dgram_qlen";

fn cases(_: Scale) -> Vec<Case> {
    SENDERS.map(case).into()
}

fn case(count: u64) -> Case {
    let mut reach = vec![Reach::ratio("auto", "rate", 2.0, KERNELS)];
    // Who floods alone sends a number of datagrams; else it is the polite ones that have a number to send, each.
    let work = if count == 1 {
        Work { warmup: 20_000, least: 20_000, most: 100_000_000, step: 1 }
    } else {
        reach.push(Reach::at_least("auto", "least", STARVED));
        // 50 ms to warm up, and never less than 250 ms: to be late once is not to be starved.
        let polite = count - 1;
        Work { warmup: 500 / polite, least: 2500 / polite, most: 10_000, step: 1 }
    };
    Case {
        name: count.to_string(),
        engines: KERNELS.iter().copied().chain(["auto"]).collect(),
        baseline: "kernel",
        reach,
        work,
        open: Box::new(move |context, engine| {
            Ok(Box::new(FanIn { context: context.clone(), engine: engine.to_owned(), count }))
        }),
    }
}

/// Seconds from one datagram of a polite sender to its next one.
fn period(count: u64) -> f64 {
    (count - 1) as f64 * STEP
}

/// When a sender's first datagram is due.
fn first(start: f64, sender: u64) -> f64 {
    start + sender as f64 * STEP
}

struct FanIn {
    context: Context,
    engine: String,
    count: u64,
}

impl FanIn {
    fn pass(&self, work: u64, seed: Option<u64>) -> Result<(Value, Value)> {
        let mut setup = Setup { kind: Kind::Datagrams, ..Setup::new(&self.engine) };
        let mut launcher = self.context.launcher.clone();
        let mut folder = None;
        if self.engine == LONG {
            // The length is the network namespace's, so it gets one of its own, which goes with the worker: nothing of this machine's
            // is changed. Names that are no paths end at it.
            let program = launcher.program.to_string_lossy().into_owned();
            let args = ["--net".to_owned(), "--".to_owned(), program].into_iter().chain(launcher.args);
            launcher = Launcher { program: "unshare".into(), args: args.collect() };
            let made = folder.insert(TempDir::new("fan-in")?);
            setup.name = made.path().join("queue").to_str().context("a folder without a name")?.to_owned();
            setup.buffer = Some(QUEUE_BYTES);
        }
        let job = with(setup.job(), json!({"senders": self.count, "work": work, "seed": seed}));
        let (server, client) = (("fan-in/receiver", &job), ("fan-in/senders", &job));
        launcher.pair(server, client, self.context.cpus, proc::LIFE)
    }
}

impl Session for FanIn {
    fn verify(&mut self) -> Result<()> {
        let work = if self.count == 1 { 10_000 } else { 8 };
        self.pass(work, Some(0x5eed)).map(drop)
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let (receiver, senders) = self.pass(work, None)?;
        let start = number(&senders, "start")?;
        let seconds = number(&receiver, "end")? - start;
        let received = number(&receiver, "received")?;
        let cpu = number(&receiver, "cpu")? + number(&senders, "cpu")?;
        let mut values = vec![("rate", received / seconds / 1e6), ("cpu", cpu * 1e9 / received)];
        let mut settings = vec![("path".to_owned(), text(&senders, "path")?.to_owned())];
        if let Some(queue) = receiver["queue"].as_u64() {
            settings.push(("queue".to_owned(), format!("{queue} datagrams of all")));
            settings.push(("SO_SNDBUF".to_owned(), whole(&senders, "effective")?.to_string()));
        }
        settings.extend(records::waits_settings(&[("receiver", &receiver), ("flood", &senders)], received));
        if self.count > 1 {
            let last = receiver["last"].as_array().context("no times of the senders' last datagrams")?;
            let last: Vec<f64> = last.iter().filter_map(Value::as_f64).collect();
            ensure!(last.len() as u64 == self.count, "{} senders were heard of", last.len());
            let polite = last.iter().enumerate().skip(1);
            let shares = polite.map(|(sender, &last)| share(self.count, sender as u64, start, last, work));
            values.push(("wait", number(&receiver, "p99")? * 1e6));
            values.push(("least", shares.fold(f64::INFINITY, f64::min)));
            let worst = crate::words::number(number(&receiver, "worst")? * 1e6);
            settings.push(("longest wait".to_owned(), format!("{worst} us")));
            let polite = work * (self.count - 1);
            settings.push(("polite".to_owned(), format!("{polite} of {received:.0} datagrams")));
        }
        Ok(Sample { seconds, values, settings })
    }
}

/// What a polite sender got through, in percent of its pace: its last datagram, of `work`, was received at `last`.
fn share(count: u64, sender: u64, start: f64, last: f64, work: u64) -> f64 {
    let period = period(count);
    100.0 * work as f64 * period / (last - first(start, sender) + period)
}

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// From before the clock.
    Greeting,
    /// The last one of these.
    Ready,
    /// One that counts.
    Counted,
    /// The flood's last one, behind all others of its.
    End,
}

const WHATS: [What; 4] = [What::Greeting, What::Ready, What::Counted, What::End];

/// What a datagram begins with. The rest of it is the payload.
#[derive(Clone, Copy, Debug)]
struct Head {
    sender: u64,
    what: What,
    /// Of all that this sender has sent.
    number: u64,
    /// When it was sent, of a polite one that counts.
    sent: f64,
}

/// Bytes of a [`Head`].
const HEAD: usize = 32;

impl Head {
    fn encode(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        let words = [self.sender, self.what as u64, self.number, self.sent.to_bits()];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    fn decode(datagram: &[u8]) -> Result<Head> {
        ensure!(datagram.len() == SIZE, "a datagram has {} bytes", datagram.len());
        let word = |i: usize| u64::from_le_bytes(datagram.as_chunks::<8>().0[i]);
        let what = usize::try_from(word(1)).ok().and_then(|what| WHATS.get(what)).copied();
        let what = what.with_context(|| format!("there is no datagram of kind {}", word(1)))?;
        Ok(Head { sender: word(0), what, number: word(2), sent: f64::from_bits(word(3)) })
    }
}

/// What of a sender's differs from that of others: its payload.
fn seed_of(seed: u64, sender: u64) -> u64 {
    seed ^ sender.wrapping_mul(0x9e37_79b9)
}

/// What the receiver has seen.
struct Tally {
    work: u64,
    seed: Option<u64>,
    /// Senders that have greeted.
    ready: u64,
    /// Datagrams that count, until those that have to be there were.
    received: u64,
    /// The same by sender.
    by_sender: Vec<u64>,
    /// When the last one of each polite sender's came.
    last: Vec<f64>,
    /// How long each polite one was on its way, in seconds.
    waits: Vec<f64>,
    /// Senders that have yet to get all of theirs through; the flood, if it is alone.
    left: u64,
    /// When that was over, and the process's CPU time then.
    end: Option<(f64, f64)>,
    /// The flood's last datagram was there.
    ended: bool,
    /// The number that comes next, by sender, if that is looked at.
    next: Vec<u64>,
    /// What was first found wrong. What comes after that is still received: a sender that is refused could not say more.
    wrong: Option<anyhow::Error>,
}

impl Tally {
    fn new(count: u64, work: u64, seed: Option<u64>) -> Tally {
        let polite = count - 1;
        Tally {
            work,
            seed,
            ready: 0,
            received: 0,
            by_sender: vec![0; count as usize],
            last: vec![0.0; count as usize],
            waits: Vec::with_capacity((polite * work) as usize),
            left: polite.max(1),
            end: None,
            ended: false,
            next: vec![0; count as usize],
            wrong: None,
        }
    }

    fn take(&mut self, datagram: &[u8]) -> Result<()> {
        let head = Head::decode(datagram)?;
        let sender = head.sender as usize;
        ensure!(sender < self.by_sender.len(), "there is no sender {sender}");
        if let Some(seed) = self.seed
            && let Err(error) = self.check(&head, datagram, seed)
        {
            self.wrong.get_or_insert(error);
        }
        match head.what {
            What::Greeting => {}
            What::Ready => self.ready += 1,
            What::Counted => {
                self.by_sender[sender] += 1;
                self.received += u64::from(self.end.is_none());
                let alone = self.by_sender.len() == 1;
                if head.sender != FLOOD {
                    self.last[sender] = proc::now();
                    self.waits.push(self.last[sender] - head.sent);
                }
                if (alone || head.sender != FLOOD) && self.by_sender[sender] == self.work {
                    self.left -= 1;
                    if self.left == 0 {
                        self.end = Some((proc::now(), proc::cpu_seconds()));
                    }
                }
            }
            What::End => self.ended = true,
        }
        Ok(())
    }

    /// A sender's datagrams come in its order, none twice and none left out, and with what it sent.
    fn check(&mut self, head: &Head, datagram: &[u8], seed: u64) -> Result<()> {
        let (sender, number) = (head.sender, head.number);
        let expected = std::mem::replace(&mut self.next[sender as usize], number + 1);
        ensure!(number == expected, "datagram {number} of sender {sender} came in place of {expected}");
        bytes::check(&datagram[HEAD..], seed_of(seed, sender), number * SIZE as u64)
            .with_context(|| format!("datagram {number} of sender {sender}"))
    }

    fn figures(mut self) -> Result<Value> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let (end, cpu) = self.end.context("the flood ended before the others were through")?;
        for (sender, &got) in self.by_sender.iter().enumerate().skip(1) {
            ensure!(got == self.work, "{got} datagrams of sender {sender} came instead of {}", self.work);
        }
        self.waits.sort_by(f64::total_cmp);
        let at = |share: f64| {
            self.waits.get(((self.waits.len() as f64 * share) as usize).min(self.waits.len().max(1) - 1))
        };
        Ok(json!({
            "end": end, "cpu": cpu, "received": self.received, "last": self.last,
            "p99": at(0.99), "worst": at(1.0)
        }))
    }
}

/// Whether the kernel is to take and give many datagrams to a call.
fn batched(setup: &Setup, seed: Option<u64>) -> bool {
    setup.is_kernel() && setup.engine != "kernel" && seed.is_none()
}

/// Receives what is there, as `batched` says, into parts of `buffer`.
fn receive(conn: &mut Conn, batched: bool, buffer: &mut [u8], tally: &mut Tally) -> Result<()> {
    if !batched {
        let n = conn.recv(&mut buffer[..SIZE])?;
        return tally.take(&buffer[..n]);
    }
    let mut lens = [0; records::BATCH];
    let n = onecopy_sys::socket::recv_many(&*conn, buffer, SIZE, &mut lens)?;
    for (datagram, len) in buffer.chunks(SIZE).zip(&lens[..n]) {
        tally.take(&datagram[..*len])?;
    }
    Ok(())
}

/// Binds the name that all senders connect to.
fn bound(setup: &Setup) -> Result<Conn> {
    if setup.is_kernel() {
        let fd = Kind::Datagrams.kernel_socket()?;
        rustix::net::bind(&fd, &setup.address()?)?;
        return Ok(Conn::Kernel(fd.into()));
    }
    Ok(Conn::Datagrams(Datagram::bind_with(SocketAddr::from_abstract_name(&setup.name)?, &setup.config()?)?))
}

/// A socket that sends there.
fn connected(setup: &Setup) -> Result<Conn> {
    if setup.is_kernel() {
        let fd = Kind::Datagrams.kernel_socket()?;
        rustix::net::connect(&fd, &setup.address()?).context("connecting")?;
        return Conn::kernel(fd.into(), setup);
    }
    let socket = Datagram::unbound_with(&setup.config()?)?;
    socket.connect(SocketAddr::from_abstract_name(&setup.name)?)?;
    Ok(Conn::Datagrams(socket))
}

/// Receives the greetings of all senders, gives a sign, and receives until the flood is over.
fn receiver(job: &Value) -> Result<Value> {
    let setup = Setup::from_job(job)?;
    let (count, work, seed) = (whole(job, "senders")?, whole(job, "work")?, job["seed"].as_u64());
    if setup.engine == LONG {
        // Of the namespace that `pass` has made.
        std::fs::write(QUEUE_SYSCTL, QUEUE.to_string()).with_context(|| format!("writing {QUEUE_SYSCTL}"))?;
    }
    let aside = setup.aside();
    let door = Server::bind(&aside)?;
    let mut conn = bound(&setup)?;
    proc::say_ready()?;
    let mut aside = door.accept(&aside)?;
    let batched = batched(&setup, seed);
    let mut buffer = vec![0; SIZE * records::BATCH];
    let mut tally = Tally::new(count, work, seed);
    while tally.ready < count {
        receive(&mut conn, batched, &mut buffer, &mut tally)?;
    }
    aside.sign()?;
    let cpu = proc::cpu_seconds();
    while !tally.ended || tally.end.is_none() {
        receive(&mut conn, batched, &mut buffer, &mut tally)?;
    }
    let figures = tally.figures()?;
    let cpu = number(&figures, "cpu")? - cpu;
    let queue = match setup.is_kernel() {
        true => std::fs::read_to_string(QUEUE_SYSCTL)?.trim().parse::<u64>().ok(),
        false => None,
    };
    Ok(with(with(figures, records::waits(&conn)), json!({"cpu": cpu, "queue": queue})))
}

/// One of those who send.
struct Sender {
    conn: Conn,
    id: u64,
    sent: u64,
    seed: Option<u64>,
    datagram: [u8; SIZE],
}

impl Sender {
    fn compose(&mut self, what: What, sent: f64) {
        let head = Head { sender: self.id, what, number: self.sent, sent };
        self.datagram[..HEAD].copy_from_slice(&head.encode());
        if let Some(seed) = self.seed {
            bytes::fill(&mut self.datagram[HEAD..], seed_of(seed, self.id), self.sent * SIZE as u64);
        }
    }

    fn send(&mut self, what: What, sent: f64) -> Result<()> {
        self.compose(what, sent);
        self.sent += 1;
        self.conn.send_all(&self.datagram)
    }

    /// Connects, and sends `least` datagrams, and more until they go the way that they are to go.
    fn greet(setup: &Setup, id: u64, least: u64, seed: Option<u64>) -> Result<Sender> {
        let mut sender = Sender { conn: connected(setup)?, id, sent: 0, seed, datagram: [0x5a; SIZE] };
        while sender.sent < least || !(setup.is_kernel() || sender.conn.shares()[0]) {
            ensure!(
                sender.sent < MOST_GREETINGS,
                "sender {id} did not come to share memory with the receiver; `onecopy doctor` says what it takes"
            );
            sender.send(What::Greeting, 0.0)?;
        }
        sender.send(What::Ready, 0.0)?;
        Ok(sender)
    }

    /// Sends `work` datagrams, each when it is due, or as soon after that as the one before it is gone.
    fn pace(&mut self, start: f64, count: u64, work: u64) -> Result<()> {
        let (first, period) = (first(start, self.id), period(count));
        for i in 0..work {
            sleep_until(first + i as f64 * period)?;
            self.send(What::Counted, proc::now())?;
        }
        Ok(())
    }

    /// Sends without a pause, until `enough` of so many says so, and says that this is the end.
    fn flood(&mut self, start: f64, batched: bool, enough: impl Fn(u64) -> bool) -> Result<()> {
        sleep_until(start)?;
        let before = self.sent;
        while !enough(self.sent - before) {
            if batched {
                self.compose(What::Counted, 0.0);
                records::send_batches(&self.conn, &self.datagram, records::BATCH as u64)?;
                self.sent += records::BATCH as u64;
            } else {
                self.send(What::Counted, 0.0)?;
            }
        }
        self.send(What::End, 0.0)
    }
}

fn sleep_until(when: f64) -> Result<()> {
    let time = Timespec { tv_sec: when as i64, tv_nsec: (when.fract() * 1e9) as i64 };
    while let Err(errno) = clock_nanosleep_absolute(ClockId::Monotonic, &time) {
        ensure!(errno == rustix::io::Errno::INTR, "sleeping: {errno}");
    }
    Ok(())
}

/// One less, however it went: who waits for all of them has not to wait for ever.
struct Leaves<'a>(&'a AtomicU64);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        // Relaxed: the flood looks at nothing else.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All senders greet; after the receiver's sign they begin at the same time.
fn senders(job: &Value) -> Result<Value> {
    let setup = Setup::from_job(job)?;
    let (count, work, seed) = (whole(job, "senders")?, whole(job, "work")?, job["seed"].as_u64());
    let mut aside = meet::connect(&setup.aside())?;
    // One after the other, as programs are started.
    let greet = |id| Sender::greet(&setup, id, GREETINGS / count, seed);
    let mut all = (0..count).map(greet).collect::<Result<Vec<_>>>()?;
    aside.wait_sign()?;
    // Time enough for each thread to be there.
    let start = proc::now() + 0.01;
    let polite = AtomicU64::new(count - 1);
    let (left, batched) = (&polite, batched(&setup, seed));
    let send = |sender: &mut Sender| {
        if sender.id == FLOOD {
            let enough = |sent| if count == 1 { sent >= work } else { left.load(Ordering::Relaxed) == 0 };
            return sender.flood(start, batched, enough);
        }
        let _leaves = Leaves(left);
        sender.pace(start, count, work)
    };
    let before = thread::scope(|scope| {
        let send = &send;
        let threads: Vec<_> = all.iter_mut().map(|sender| scope.spawn(move || send(sender))).collect();
        sleep_until(start)?;
        let before = proc::cpu_seconds();
        // The first error, once all have ended.
        let done: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        done.into_iter().try_for_each(|done| done.map_err(|_| anyhow!("a sender panicked"))?)?;
        anyhow::Ok(before)
    })?;
    let cpu = proc::cpu_seconds() - before;
    let flood = all.first().context("nobody floods")?;
    let (effective, path) = (flood.conn.effective()?, flood.conn.path());
    Ok(with(
        records::waits(&flood.conn),
        json!({"start": start, "cpu": cpu, "effective": effective, "path": path}),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(sender: u64, what: What, number: u64) -> [u8; SIZE] {
        let mut datagram = [0; SIZE];
        datagram[..HEAD].copy_from_slice(&Head { sender, what, number, sent: 0.0 }.encode());
        bytes::fill(&mut datagram[HEAD..], seed_of(7, sender), number * SIZE as u64);
        datagram
    }

    /// What the tally of two senders says, of which the polite one has two to send.
    fn told(datagrams: &[[u8; SIZE]]) -> Result<Value> {
        let mut tally = Tally::new(2, 2, Some(7));
        datagrams.iter().try_for_each(|datagram| tally.take(datagram))?;
        tally.figures()
    }

    #[test]
    fn all_that_came_until_the_polite_were_through_counts() {
        let count = What::Counted;
        let figures = told(&[
            datagram(1, What::Ready, 0),
            datagram(0, count, 0),
            datagram(1, count, 1),
            datagram(0, count, 1),
            datagram(1, count, 2),
            datagram(0, count, 2),
            datagram(0, What::End, 3),
        ]);
        assert_eq!(figures.unwrap()["received"], 4);
    }

    #[test]
    fn what_is_lost_doubled_out_of_order_or_another_senders_is_found() {
        let polite = |number| datagram(1, What::Counted, number);
        let error = |datagrams: &[[u8; SIZE]]| told(datagrams).unwrap_err().to_string();
        assert_eq!(error(&[polite(0), polite(2)]), "datagram 2 of sender 1 came in place of 1");
        assert_eq!(error(&[polite(0), polite(0)]), "datagram 0 of sender 1 came in place of 1");
        assert_eq!(error(&[polite(1), polite(0)]), "datagram 1 of sender 1 came in place of 0");
        let mut taken = polite(0);
        taken[HEAD..].copy_from_slice(&datagram(0, What::Counted, 0)[HEAD..]);
        assert_eq!(error(&[taken, polite(1)]), "datagram 0 of sender 1");
        assert_eq!(error(&[polite(0)]), "the flood ended before the others were through");
        assert_eq!(error(&[polite(0), polite(1), polite(2)]), "3 datagrams of sender 1 came instead of 2");
        assert!(error(&[datagram(2, What::Counted, 0)]).contains("no sender 2"));
    }

    #[test]
    fn a_sender_that_is_held_up_has_less_than_its_pace() {
        // Of eight, each has a datagram every 700 us; this one's first is due at 300 us.
        let on_time = 10.0 + 300e-6 + 9.0 * 700e-6;
        assert!((share(8, 3, 10.0, on_time, 10) - 100.0).abs() < 0.01);
        assert!((share(8, 3, 10.0, on_time + 7e-3, 10) - 50.0).abs() < 0.01);
    }
}
