//! `unix-bulk`: a writer sends as fast as it can, a reader copies out; each size is write, read and buffer size at once.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::aligned::Aligned;
use super::conn::{Conn, work_settings};
use super::job::{number, text, whole, with};
use super::setup::{Kind, Setup};
use super::{bytes, feed};
use crate::proc;
use crate::row::{CPU_PER_GB, Case, Context, Metric, Plot, Reach, Row, Sample, Scale, Session, Work};

/// The row.
pub const ROW: Row = Row {
    name: "unix-bulk",
    about: "one process writes, another copies out (record, dgram: each write a record of seqpacket sockets, or a datagram of connected ones, ours and the kernel's; \
            connect: the reader, who has accepted, never sends a byte); size = write = read = buffer asked for (effective sizes shown); \
            the payload is touched by the copies only",
    stated: &[],
    metrics: &[Metric { name: "rate", unit: "GB/s", larger: true }, CPU_PER_GB],
    share: 1.0,
    cases,
    workers: &[("unix-bulk/reader", reader), ("unix-bulk/writer", writer)],
    plot: Plot::Bars,
};

/// Sizes of the source document, and the rate that must be reached against the kernel where it is stated.
const SIZES: &[(usize, Option<f64>)] = &[
    (8_000, Some(3.8)),
    (32_000, None),
    (64_000, None),
    (128_000, Some(1.6)),
    (256_000, None),
    (512_000, None),
    (1_000_000, Some(1.9)),
];

/// The size of reads and writes where each side keeps its own default buffers.
const DEFAULT_PIECE: usize = 64 * 1024;

/// What runs before the clock does: enough for the caches, the page tables and the waiting to settle.
const WARM: u64 = 8 << 20;

/// The rate that must be reached there.
const DEFAULT_REACH: f64 = 2.5;

fn cases(_: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [Kind::Stream, Kind::Records, Kind::Datagrams] {
        cases.extend(sizes(kind, false));
    }
    cases.extend(sizes(Kind::Stream, true));
    cases
}

/// The cases of a kind; `one_way`: the reader never sends.
fn sizes(kind: Kind, one_way: bool) -> Vec<Case> {
    let all = kind == Kind::Stream && !one_way;
    let sizes = SIZES.iter().filter(|(_, reach)| all || reach.is_some());
    let sizes = sizes.map(|&(size, reach)| (size.to_string(), size, Some(size), reach));
    let default = ("default".to_owned(), DEFAULT_PIECE, None, Some(DEFAULT_REACH));
    let prefix = if one_way { "connect/" } else { kind.prefix() };
    let cases = sizes.chain([default]).map(|(name, piece, buffer, reach)| {
        let bulk = Bulk { piece, buffer, kind, one_way };
        case(format!("{prefix}{name}"), bulk, reach)
    });
    cases.collect()
}

fn case(name: String, bulk: Bulk, reach: Option<f64>) -> Case {
    let Bulk { piece, kind, .. } = bulk;
    Case {
        name,
        // (Of datagrams there is no row where the reader leaves them untouched, to show NTCOPY in.)
        engines: match kind {
            Kind::Datagrams => vec!["kernel", "cached", "nt", "auto"],
            Kind::Stream | Kind::Records => vec!["kernel", "cached", "auto"],
        },
        baseline: "kernel",
        reach: reach.iter().map(|&times| Reach::ratio("auto", "rate", times, &["kernel"])).collect(),
        work: Work { warmup: 8 << 20, least: 8 << 20, most: 8 << 30, step: piece as u64 },
        open: Box::new(move |context, engine| {
            Ok(Box::new(Transfer { context: context.clone(), engine: engine.to_owned(), bulk }))
        }),
    }
}

/// What is moved, and how.
#[derive(Clone, Copy)]
struct Bulk {
    piece: usize,
    buffer: Option<usize>,
    kind: Kind,
    one_way: bool,
}

struct Transfer {
    context: Context,
    engine: String,
    bulk: Bulk,
}

impl Transfer {
    fn transfer(&self, warm: u64, bytes: u64, seed: Option<u64>) -> Result<(Value, Value)> {
        let Bulk { piece, buffer, kind, one_way } = self.bulk;
        let setup = Setup { buffer, kind, ..Setup::new(&self.engine) };
        let job = json!({"piece": piece, "warm": warm, "bytes": bytes, "seed": seed, "one_way": one_way});
        let job = with(setup.job(), job);
        let (server, client) = (("unix-bulk/reader", &job), ("unix-bulk/writer", &job));
        let (reader, writer) = self.context.launcher.pair(server, client, self.context.cpus, proc::LIFE)?;
        if let Some(asked) = buffer {
            // Linux doubles what is asked for; a ring that were larger would win by its size. (The headers of records
            // and datagrams, which the kernel has elsewhere, are not room for bytes.)
            let effective = whole(&writer, "effective")?;
            ensure!(
                effective <= 2 * asked as u64 + if kind == Kind::Stream { 0 } else { 64 },
                "a buffer of {effective} bytes is larger than the kernel's"
            );
        }
        Ok((reader, writer))
    }
}

impl Session for Transfer {
    fn verify(&mut self) -> Result<()> {
        // More than fits any of the buffers, and not a multiple of a piece.
        self.transfer(100_000, 5_000_001, Some(0x5eed)).map(drop)
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let (reader, writer) = self.transfer(work.min(WARM), work, None)?;
        let seconds = number(&reader, "end")? - number(&writer, "start")?;
        let cpu = number(&reader, "cpu")? + number(&writer, "cpu")?;
        let gigabytes = work as f64 / 1e9;
        let mut settings = vec![
            ("effective buffer".to_owned(), whole(&writer, "effective")?.to_string()),
            ("piece".to_owned(), self.bulk.piece.to_string()),
            ("path".to_owned(), text(&writer, "path")?.to_owned()),
        ];
        settings.extend(work_settings(&writer["work"], &reader["work"]));
        Ok(Sample {
            seconds,
            values: vec![("rate", gigabytes / seconds), (CPU_PER_GB.name, cpu / gigabytes)],
            settings,
        })
    }
}

/// Receives `warm` bytes, gives a sign, receives `bytes`. With a seed it compares them.
fn reader(job: &Value) -> Result<Value> {
    let (warm, bytes) = (whole(job, "warm")?, whole(job, "bytes")?);
    let (mut conn, mut signs) = feed::Signs::accept(job)?;
    let mut buffer = Aligned::new(whole(job, "piece")? as usize, 0);
    let mut drain = |conn: &mut Conn, total: u64, seed: Option<u64>| -> Result<()> {
        let mut at = 0;
        while at < total {
            let n = conn.recv(&mut buffer)?;
            ensure!(n > 0, "the stream ended after {at} of {total} bytes");
            if let Some(seed) = seed {
                bytes::check(&buffer[..n], seed, at)?;
            }
            at += n as u64;
        }
        ensure!(at == total, "{at} bytes came instead of {total}");
        Ok(())
    };
    drain(&mut conn, warm, None)?;
    signs.give(&mut conn)?;
    let cpu = proc::cpu_seconds();
    drain(&mut conn, bytes, job["seed"].as_u64())?;
    let (end, cpu) = (proc::now(), proc::cpu_seconds() - cpu);
    signs.give(&mut conn)?;
    Ok(json!({"end": end, "cpu": cpu, "work": conn.work()}))
}

fn writer(job: &Value) -> Result<Value> {
    feed::writer(job, whole(job, "piece")? as usize)
}
