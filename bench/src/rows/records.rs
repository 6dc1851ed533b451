//! `records`: seqpacket records one way, as fast as they go.

use std::io::IoSlice;
use std::os::fd::AsFd;

use anyhow::{Result, ensure};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags};
use serde_json::{Value, json};

use super::aligned::Aligned;
use super::bytes;
use super::conn::Conn;
use super::job::{number, text, whole, with};
use super::meet;
use super::setup::{Kind, Setup};
use crate::proc;
use crate::row::{Case, Context, Metric, Plot, Reach, Row, Sample, Scale, Session, Work};
use crate::words::size_name;

/// The row.
pub const ROW: Row = Row {
    name: "records",
    about: "one process sends seqpacket records, one at a time, another receives them, one at a time (kernel-mmsg: 64 to a \
            call of sendmmsg and recvmmsg); both sides' default buffers",
    stated: &[],
    metrics: &[
        Metric { name: "rate", unit: "M/s", larger: true },
        Metric { name: "cpu", unit: "CPU ns/record", larger: false },
    ],
    share: 1.0,
    cases,
    workers: &[("records/reader", reader), ("records/writer", writer)],
    plot: Plot::Bars,
};

const SIZES: [usize; 3] = [64, 1 << 10, 8 << 10];

/// Records before the clock starts.
const WARM: u64 = 100_000;

/// Records in one call of sendmmsg or recvmmsg.
pub(super) const BATCH: usize = onecopy_sys::socket::MANY;

fn cases(_: Scale) -> Vec<Case> {
    SIZES.map(case).into()
}

fn case(size: usize) -> Case {
    let kernels = &["kernel", "kernel-mmsg"];
    Case {
        name: size_name(size as u64),
        engines: vec!["kernel", "kernel-mmsg", "auto"],
        baseline: "kernel",
        reach: if size == 64 { vec![Reach::ratio("auto", "rate", 8.0, kernels)] } else { vec![] },
        work: Work { warmup: 20_000, least: 20_000, most: 100_000_000, step: BATCH as u64 },
        open: Box::new(move |context, engine| {
            Ok(Box::new(Records { context: context.clone(), engine: engine.to_owned(), size }))
        }),
    }
}

struct Records {
    context: Context,
    engine: String,
    size: usize,
}

impl Records {
    fn transfer(&self, warm: u64, records: u64, seed: Option<u64>) -> Result<(Value, Value)> {
        let setup = Setup { kind: Kind::Records, ..Setup::new(&self.engine) };
        let job =
            with(setup.job(), json!({"size": self.size, "warm": warm, "records": records, "seed": seed}));
        let (server, client) = (("records/reader", &job), ("records/writer", &job));
        self.context.launcher.pair(server, client, self.context.cpus, proc::LIFE)
    }
}

impl Session for Records {
    fn verify(&mut self) -> Result<()> {
        self.transfer(1000, 10_000, Some(0x5eed)).map(drop)
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let (reader, writer) = self.transfer(work.min(WARM), work, None)?;
        let seconds = number(&reader, "end")? - number(&writer, "start")?;
        let cpu = number(&reader, "cpu")? + number(&writer, "cpu")?;
        let mut settings = vec![
            ("buffer".to_owned(), whole(&writer, "effective")?.to_string()),
            ("path".to_owned(), text(&writer, "path")?.to_owned()),
        ];
        settings.extend(waits_settings(&[("writer", &writer), ("reader", &reader)], work as f64));
        let values = vec![("rate", work as f64 / seconds / 1e6), ("cpu", cpu * 1e9 / work as f64)];
        Ok(Sample { seconds, values, settings })
    }
}

/// Whether the kernel is to take and give many records to a call.
fn batched(setup: &Setup) -> bool {
    setup.engine == "kernel-mmsg"
}

/// Sends `count` records: the same one again and again, or each with bytes of its own.
fn send(conn: &mut Conn, setup: &Setup, record: &mut [u8], count: u64, seed: Option<u64>) -> Result<()> {
    if batched(setup) && seed.is_none() {
        return send_batches(conn, record, count);
    }
    for i in 0..count {
        if let Some(seed) = seed {
            bytes::fill(record, seed, i * record.len() as u64);
        }
        conn.send_all(record)?;
    }
    Ok(())
}

/// Receives `count` records of `size` bytes; `buffer` has room for a batch.
fn receive(
    conn: &mut Conn,
    setup: &Setup,
    buffer: &mut [u8],
    (size, count): (usize, u64),
    seed: Option<u64>,
) -> Result<()> {
    if batched(setup) && seed.is_none() {
        return receive_batches(conn, buffer, size, count);
    }
    for i in 0..count {
        let n = conn.recv(&mut buffer[..size])?;
        ensure!(n == size, "record {i} has {n} bytes");
        if let Some(seed) = seed {
            bytes::check(&buffer[..n], seed, i * size as u64)?;
        }
    }
    Ok(())
}

/// Sends `count` records, many to a call.
pub(super) fn send_batches(conn: &Conn, record: &[u8], count: u64) -> Result<()> {
    let slices = [IoSlice::new(record)];
    let mut none: Vec<SendAncillaryBuffer<'_, '_, '_>> = (0..BATCH).map(|_| Default::default()).collect();
    let mut messages: Vec<_> = none.iter_mut().map(|none| MMsgHdr::new(&slices, none)).collect();
    let mut left = count as usize;
    while left > 0 {
        let n = left.min(BATCH);
        left -= rustix::net::sendmmsg(conn, &mut messages[..n], SendFlags::empty())?;
    }
    Ok(())
}

/// Receives `count` records, as many to a call as are there, each into its own part of `buffer`.
fn receive_batches(conn: &Conn, buffer: &mut [u8], size: usize, count: u64) -> Result<()> {
    let mut lens = [0; BATCH];
    let mut left = count as usize;
    while left > 0 {
        let most = left.min(BATCH);
        let n = onecopy_sys::socket::recv_many(conn.as_fd(), buffer, size, &mut lens[..most])?;
        ensure!(lens[..n].iter().all(|len| *len == size), "a record has another length");
        left -= n;
    }
    Ok(())
}

/// Receives `warm` records, gives a sign, receives `records`. With a seed it compares them.
fn reader(job: &Value) -> Result<Value> {
    let (size, warm, records) = (whole(job, "size")? as usize, whole(job, "warm")?, whole(job, "records")?);
    let setup = Setup::from_job(job)?;
    let mut conn = meet::accept(&setup)?;
    let mut buffer = Aligned::new(size * BATCH, 0);
    receive(&mut conn, &setup, &mut buffer, (size, warm), None)?;
    conn.sign()?;
    let cpu = proc::cpu_seconds();
    receive(&mut conn, &setup, &mut buffer, (size, records), job["seed"].as_u64())?;
    let (end, cpu) = (proc::now(), proc::cpu_seconds() - cpu);
    conn.sign()?;
    Ok(with(waits(&conn), json!({"end": end, "cpu": cpu})))
}

/// Sends `warm` records, waits for the sign, sends `records`: the buffer is empty when the clock starts.
fn writer(job: &Value) -> Result<Value> {
    let (size, warm, records) = (whole(job, "size")? as usize, whole(job, "warm")?, whole(job, "records")?);
    let setup = Setup::from_job(job)?;
    let mut conn = meet::connect(&setup)?;
    let mut buffer = Aligned::new(size, 0x5a);
    send(&mut conn, &setup, &mut buffer, warm, None)?;
    conn.wait_sign()?;
    let (start, cpu) = (proc::now(), proc::cpu_seconds());
    send(&mut conn, &setup, &mut buffer, records, job["seed"].as_u64())?;
    let cpu = proc::cpu_seconds() - cpu;
    let (effective, path) = (conn.effective()?, conn.path());
    conn.wait_sign()?;
    Ok(with(waits(&conn), json!({"start": start, "cpu": cpu, "effective": effective, "path": path})))
}

/// How this end has waited so far, if it is ours.
pub(super) fn waits(conn: &Conn) -> Value {
    match conn.stats() {
        Some(stats) => json!({"sleeps": stats.sleeps, "spins": stats.spins + stats.room_spins}),
        None => json!({}),
    }
}

/// What [`waits`] of those ends said, for a million of the `count` records, as settings.
pub(super) fn waits_settings(ends: &[(&str, &Value)], count: f64) -> Vec<(String, String)> {
    let words = |figures: &Value| {
        let of = |name: &str| Some(crate::words::number(figures[name].as_u64()? as f64 / count * 1e6));
        Some(format!("{} sleeps {} spins / M", of("sleeps")?, of("spins")?))
    };
    ends.iter().filter_map(|(end, figures)| Some(((*end).to_owned(), words(figures)?))).collect()
}
