//! `reference-or-copy/unix`: messages from one process to another, which lie in pages of a shared pool: the same loan, told to be copied into the
//! ring, told to be lent, and left to what the stream finds out.

use anyhow::{Result, bail, ensure};
use onecopy::unix::{SharedPool, Stream};
use onecopy::zerocopy::Small;
use serde_json::{Value, json};

use super::RATE;
use crate::proc;
use crate::row::{CPU_PER_GB, Context, Sample, Session};
use crate::rows::bytes;
use crate::rows::conn::{Conn, work_settings};
use crate::rows::job::{number, text, whole, with};
use crate::rows::meet;
use crate::rows::setup::Setup;

/// Pages that may be under way, and the bytes of all of them at most.
const PAGES: usize = 256;
const POOL: usize = 32 << 20;
/// What is asked for as buffer: its ring takes several of all but the largest messages, and a second-level cache holds it.
const BUFFER: usize = 256 << 10;
/// Messages that are sent before the clock runs: enough for the caches, the page tables and the waiting to settle, and for the stream to have
/// found out which way is faster.
const WARM: u64 = 100_000;

/// One way of one size.
pub struct Unix {
    context: Context,
    way: String,
    size: usize,
}

impl Unix {
    pub fn open(context: &Context, way: &str, size: usize) -> Unix {
        Unix { context: context.clone(), way: way.to_owned(), size }
    }

    fn transfer(&self, warm: u64, count: u64, seed: Option<u64>) -> Result<(Value, Value)> {
        let job = json!({"way": self.way, "size": self.size, "warm": warm, "count": count, "seed": seed});
        let setup = Setup { buffer: Some(BUFFER), ..Setup::new("auto") };
        let job = with(setup.job(), job);
        let (server, client) = (("auto/reader", &job), ("auto/writer", &job));
        self.context.launcher.pair(server, client, self.context.cpus, proc::LIFE)
    }
}

impl Session for Unix {
    fn verify(&mut self) -> Result<()> {
        // More than lies in the ring, and more pages than there are.
        let count = ((4 << 20) / self.size as u64).clamp(2 * (POOL / self.size).min(PAGES) as u64, 20_000);
        self.transfer(0, count, Some(0x5eed)).map(drop)
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let count = work.div_ceil(self.size as u64);
        let (reader, writer) = self.transfer(count.min(WARM), count, None)?;
        let seconds = number(&reader, "end")? - number(&writer, "start")?;
        let cpu = number(&reader, "cpu")? + number(&writer, "cpu")?;
        let gigabytes = (count * self.size as u64) as f64 / 1e9;
        let mut settings = vec![
            ("path".to_owned(), text(&writer, "path")?.to_owned()),
            ("lent".to_owned(), format!("{} of {} B", whole(&writer, "lent")?, count * self.size as u64)),
        ];
        settings.extend(work_settings(&writer["work"], &reader["work"]));
        let values = vec![(RATE, gigabytes / seconds), (CPU_PER_GB.name, cpu / gigabytes)];
        Ok(Sample { seconds, values, settings })
    }
}

/// Takes messages where they lie, and looks at them only with a seed.
pub fn reader(job: &Value) -> Result<Value> {
    let (size, seed) = (whole(job, "size")?, job["seed"].as_u64());
    let mut conn = meet::accept(&Setup::from_job(job)?)?;
    drain(ours(&conn)?, whole(job, "warm")? * size, None)?;
    conn.sign()?;
    let cpu = proc::cpu_seconds();
    drain(ours(&conn)?, whole(job, "count")? * size, seed)?;
    let (end, cpu) = (proc::now(), proc::cpu_seconds() - cpu);
    conn.sign()?;
    Ok(json!({"end": end, "cpu": cpu, "work": conn.work()}))
}

fn ours(conn: &Conn) -> Result<&Stream> {
    match conn {
        Conn::Ours(stream) => Ok(stream),
        _ => bail!("not one of our streams"),
    }
}

fn drain(stream: &Stream, total: u64, seed: Option<u64>) -> Result<()> {
    let mut at = 0;
    while at < total {
        let view = stream.recv_borrowed(usize::MAX)?;
        ensure!(!view.is_empty(), "the stream ended after {at} of {total} bytes");
        if let Some(seed) = seed {
            let (mut here, mut checked) = (at, Ok(()));
            view.for_each_chunk(|chunk| {
                if checked.is_ok() {
                    checked = bytes::check(chunk, seed, here);
                }
                here += chunk.len() as u64;
            });
            checked?;
        }
        at += view.len() as u64;
    }
    ensure!(at == total, "{at} bytes came instead of {total}");
    Ok(())
}

/// Who sends pages of a pool as they come home. With a seed it writes each message first.
struct Writer {
    conn: Conn,
    pool: SharedPool,
    size: usize,
}

impl Writer {
    fn send(&mut self, count: u64, seed: Option<u64>) -> Result<()> {
        for number in 0..count {
            let at = number * self.size as u64;
            let mut loan = self.pool.loan_within(self.size, proc::LIFE)?;
            if let Some(seed) = seed {
                bytes::fill(&mut loan, seed, at);
            }
            ours(&self.conn)?.send_loan(loan)?;
        }
        Ok(())
    }
}

/// Sends, waits for the reader's sign, and sends what counts.
pub fn writer(job: &Value) -> Result<Value> {
    let size = whole(job, "size")? as usize;
    let small = match text(job, "way")? {
        "copy" => Small::Below(u32::MAX),
        "lend" => Small::Below(0),
        "auto" => Small::Measured,
        other => bail!("there is no way {other}"),
    };
    let conn = meet::connect(&Setup::from_job(job)?)?;
    ours(&conn)?.set_small(small);
    let pool = SharedPool::new(size, (POOL / size).min(PAGES))?;
    let mut writer = Writer { conn, pool, size };
    writer.send(whole(job, "warm")?, None)?;
    writer.conn.wait_sign()?;
    let lent = |conn: &Conn| conn.stats().map_or(0, |stats| stats.referenced);
    let (before, start, cpu) = (lent(&writer.conn), proc::now(), proc::cpu_seconds());
    writer.send(whole(job, "count")?, job["seed"].as_u64())?;
    let cpu = proc::cpu_seconds() - cpu;
    writer.conn.wait_sign()?;
    let lent = lent(&writer.conn) - before;
    Ok(
        json!({"start": start, "cpu": cpu, "lent": lent, "path": writer.conn.path(), "work": writer.conn.work()}),
    )
}
