//! `reference`: pages handed from process to process where they lie, against copying and against iceoryx2.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use onecopy::Carrier;
use onecopy::unix::{Look, SharedPool, Stream};
use onecopy::zerocopy::Small;
use serde_json::{Value, json};

use super::aligned::Aligned;
use super::bytes;
use super::conn::Conn;
use super::job::{number, text, whole, with};
use super::meet;
use super::setup::Setup;
use crate::proc::{self, Launcher};
use crate::rivals::Rival;
use crate::row::{Case, Context, Metric, Plot, Reach, Row, Sample, Scale, Session, Work};
use crate::temp::TempDir;
use crate::words::size_name;

/// The row.
pub const ROW: Row = Row {
    name: "reference",
    about: "one message there and one back, both sides spinning, one way is half of it; auto and iceoryx2 hand over a \
            page that nobody touches, kernel copies it; read: the reader adds up all of it where it lies, ours by 64 bytes \
            in registers, since a peer's page has no slice; auto-64 is ours with 64 bytes",
    stated: &[],
    metrics: &[Metric { name: "latency", unit: "us", larger: false }],
    share: 1.0,
    cases,
    workers: &[("reference/server", server), ("reference/client", client)],
    plot: Plot::Bars,
};

const SIZES: [usize; 4] = [64, 4 << 10, 64 << 10, 1 << 20];
/// What a size may cost besides: the noise of the shortest round.
const SLACK: f64 = 0.05;
/// Pages of each side: one in use, some on their way home.
const PAGES: usize = 16;

fn cases(scale: Scale) -> Vec<Case> {
    let sizes = if scale == Scale::Smoke { &SIZES[..2] } else { &SIZES[..] };
    let mut cases: Vec<Case> = sizes.iter().map(|&size| case(size, false)).collect();
    cases.push(case(sizes[sizes.len() - 1], true));
    cases
}

fn case(size: usize, read: bool) -> Case {
    let mut engines = vec!["kernel", "iceoryx2", "auto"];
    let mut reach = vec![Reach::ratio("auto", "latency", if read { 1.0 } else { 2.0 }, &["iceoryx2"])];
    if !read && size > 64 {
        engines.push("auto-64");
        reach.push(Reach::within("auto", "latency", SLACK, &["auto-64"]));
    }
    Case {
        name: format!("{}{}", size_name(size as u64), if read { "/read" } else { "" }),
        engines,
        baseline: "kernel",
        reach,
        work: Work { warmup: 100, least: 100, most: 10_000_000, step: 1 },
        open: Box::new(move |context, engine| {
            let rival = if engine == "iceoryx2" { Some(RIVAL.built()?) } else { None };
            let size = if engine == "auto-64" { 64 } else { size };
            let (context, engine) = (context.clone(), engine.to_owned());
            Ok(Box::new(Reference { context, engine, rival, size, read }))
        }),
    }
}

/// The rival's worker.
const RIVAL: Rival = Rival {
    name: "iceoryx2",
    worker: "target/release/onecopy-rival-iceoryx2",
    build: "cargo build --release",
    variable: "ONECOPY_RIVAL_ICEORYX2",
};

struct Reference {
    context: Context,
    engine: String,
    rival: Option<PathBuf>,
    size: usize,
    read: bool,
}

impl Reference {
    fn trips(&self, trips: u64, seed: Option<u64>) -> Result<Value> {
        let engine = self.engine.split('-').next().unwrap_or_default();
        let setup = Setup { wait: "spin".to_owned(), ..Setup::new(engine) };
        let job =
            with(setup.job(), json!({"size": self.size, "trips": trips, "seed": seed, "read": self.read}));
        let cpus = self.context.cpus;
        let Some(rival) = &self.rival else {
            let (server, client) = (("reference/server", &job), ("reference/client", &job));
            return Ok(self.context.launcher.pair(server, client, cpus, proc::LIFE)?.1);
        };
        let launcher = Launcher { program: rival.clone(), args: Vec::new() };
        // Where it keeps what it knows about services.
        let root = TempDir::new("iceoryx2")?;
        let job = with(job, json!({"root": root.path()}));
        Ok(launcher.pair(("server", &job), ("client", &job), cpus, proc::LIFE)?.1)
    }
}

impl Session for Reference {
    fn verify(&mut self) -> Result<()> {
        self.trips(20, Some(0x5eed)).map(drop)
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let figures = self.trips(work, None)?;
        let seconds = number(&figures, "seconds")?;
        let mut settings = vec![("path".to_owned(), text(&figures, "path")?.to_owned())];
        if let Some(copied) = figures["copied"].as_u64() {
            settings.push(("copied by send and recv".to_owned(), format!("{copied} B")));
        }
        Ok(Sample { seconds, values: vec![("latency", seconds / work as f64 / 2.0 * 1e6)], settings })
    }
}

/// One side.
struct Side {
    conn: Conn,
    /// Ours: where the messages that it sends lie.
    pool: Option<SharedPool>,
    /// The kernel's: the message.
    message: Aligned,
    size: usize,
    read: bool,
    seed: Option<u64>,
    /// What was read, so that reading is not optimised away.
    sum: u64,
}

impl Side {
    fn new(conn: Conn, job: &Value) -> Result<Side> {
        let size = whole(job, "size")? as usize;
        let pool = match &conn {
            // What is measured is the reference, also where a copy would take less.
            Conn::Ours(stream) => {
                stream.set_small(Small::Below(0));
                Some(SharedPool::new(size, PAGES)?)
            }
            _ => None,
        };
        let message = Aligned::new(size, 0x5a);
        let read = job["read"].as_bool().unwrap_or_default();
        Ok(Side { conn, pool, message, size, read, seed: job["seed"].as_u64(), sum: 0 })
    }

    fn send(&mut self, trip: u64) -> Result<()> {
        let at = trip * self.size as u64;
        match (&self.conn, &self.pool) {
            (Conn::Ours(stream), Some(pool)) => {
                let mut loan = pool.loan_within(self.size, proc::LIFE)?;
                if let Some(seed) = self.seed {
                    bytes::fill(&mut loan, seed, at);
                }
                stream.send_loan(loan)?;
                Ok(())
            }
            _ => {
                if let Some(seed) = self.seed {
                    bytes::fill(&mut self.message[..self.size], seed, at);
                }
                self.conn.send_all(&self.message[..self.size])
            }
        }
    }

    fn receive(&mut self, trip: u64) -> Result<()> {
        let at = trip * self.size as u64;
        let Conn::Ours(stream) = &self.conn else {
            ensure!(self.conn.recv_all(&mut self.message[..self.size])?, "the peer is gone");
            if self.read {
                self.sum = add_up(self.sum, &self.message[..self.size]);
            }
            return match self.seed {
                Some(seed) => bytes::check(&self.message[..self.size], seed, at),
                None => Ok(()),
            };
        };
        let view = stream.recv_borrowed(self.size)?;
        ensure!(view.len() == self.size, "{} bytes came instead of {}", view.len(), self.size);
        if self.read {
            self.sum = add_up_in_place(self.sum, view.look());
        }
        if let Some(seed) = self.seed {
            let (mut at, mut checked, mut sum) = (at, Ok(()), 0);
            view.for_each_chunk(|chunk| {
                if checked.is_ok() {
                    checked = bytes::check(chunk, seed, at);
                }
                at += chunk.len() as u64;
                sum = add_up(sum, chunk);
            });
            checked?;
            ensure!(sum == add_up_in_place(0, view.look()), "the sum in place is another");
        }
        Ok(())
    }
}

fn add_up(sum: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(sum, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| sum.wrapping_add(u64::from(*byte)))
}

/// The same sum of a peer's page. Words that are added up side by side are what the compiler makes of a slice, too.
fn add_up_in_place(sum: u64, look: Look<'_>) -> u64 {
    let (words, rest) = look.split_at(look.len() & !7);
    let mut sums = [0u64; 8];
    for block in words.blocks() {
        for (sum, word) in sums.iter_mut().zip(block.words()) {
            *sum = sum.wrapping_add(word);
        }
    }
    let sum = sums.into_iter().fold(sum, u64::wrapping_add);
    rest.blocks().fold(sum, |sum, block| add_up(sum, &block))
}

/// Bytes go both ways until both sides know that the other one shares memory.
fn meet(conn: &mut Conn, first: bool) -> Result<()> {
    for _ in 0..3 {
        if first {
            conn.sign()?;
        }
        conn.wait_sign()?;
        if !first {
            conn.sign()?;
        }
    }
    match conn {
        Conn::Ours(stream) if stream.path().send != Carrier::SharedMemory => {
            bail!("there is no shared memory here")
        }
        _ => Ok(()),
    }
}

/// Answers each message with one of its own.
fn server(job: &Value) -> Result<Value> {
    let mut conn = meet::accept(&Setup::from_job(job)?)?;
    meet(&mut conn, false)?;
    let mut side = Side::new(conn, job)?;
    let trips = whole(job, "trips")?;
    for trip in (0..trips.div_ceil(10)).chain(0..trips) {
        side.receive(trip)?;
        side.send(trip)?;
    }
    // The client goes first: what it still has to receive must stay as it is.
    let _ = side.conn.recv(&mut [0]);
    Ok(json!({"trips": trips, "sum": side.sum}))
}

fn client(job: &Value) -> Result<Value> {
    let mut conn = meet::connect(&Setup::from_job(job)?)?;
    meet(&mut conn, true)?;
    let mut side = Side::new(conn, job)?;
    let trips = whole(job, "trips")?;
    let run = |side: &mut Side, trips: u64| -> Result<f64> {
        let start = proc::now();
        for trip in 0..trips {
            side.send(trip)?;
            side.receive(trip)?;
        }
        Ok(proc::now() - start)
    };
    run(&mut side, trips.div_ceil(10))?;
    let before = copied(&side.conn);
    let seconds = run(&mut side, trips)?;
    let copied = copied(&side.conn).zip(before).map(|(after, before)| after - before);
    let path = match &side.conn {
        Conn::Ours(stream) => by_reference(stream)?,
        _ => "kernel",
    };
    Ok(json!({"seconds": seconds, "path": path, "copied": copied, "sum": side.sum}))
}

fn by_reference(stream: &Stream) -> Result<&'static str> {
    ensure!(stream.stats().references_copied == 0, "messages were copied instead of referenced");
    Ok("by reference")
}

/// Bytes that this end has copied in user space without being asked to.
fn copied(conn: &Conn) -> Option<u64> {
    conn.stats().map(|stats| stats.user_copied_in)
}
