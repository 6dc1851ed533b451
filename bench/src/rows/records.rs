//! `records`: seqpacket records one way, as fast as they go.

use std::io::IoSlice;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use onecopy::unix::{Config, Name, RecvFlags, SendFlags, SeqListener, SeqPacket};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, MMsgHdr, SendAncillaryBuffer, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{Value, json};

use super::conn::{Aligned, fresh_name, number, text, whole, with};
use super::{bytes, size_name};
use crate::proc;
use crate::row::{Case, Context, Metric, Plot, Reach, Row, Sample, Scale, Session, Work};

/// The row.
pub const ROW: Row = Row {
    name: "records",
    about: "one process sends seqpacket records, one at a time, another receives them, one at a time (kernel-mmsg: 64 to a \
            call of sendmmsg and recvmmsg); both sides' default buffers",
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
const BATCH: usize = onecopy_sys::socket::MANY;

fn cases(_: Scale) -> Vec<Case> {
    SIZES.map(case).into()
}

fn case(size: usize) -> Case {
    let kernels = &["kernel", "kernel-mmsg"];
    Case {
        name: size_name(size as u64),
        engines: vec!["kernel", "kernel-mmsg", "auto"],
        baseline: "kernel",
        reach: if size == 64 { vec![Reach::ratio("auto", "rate", 5.0, kernels)] } else { vec![] },
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
        let job = json!({
            "engine": self.engine, "name": fresh_name(), "size": self.size,
            "warm": warm, "records": records, "seed": seed
        });
        let (server, client) = (("records/reader", &job), ("records/writer", &job));
        self.context.launcher.pair(server, client, self.context.cpus, Duration::from_secs(20))
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
        for (end, figures) in [("writer", &writer), ("reader", &reader)] {
            if let (Some(sleeps), Some(spins)) = (figures["sleeps"].as_u64(), figures["spins"].as_u64()) {
                let of = |count: u64| crate::show::number(count as f64 / work as f64 * 1e6);
                settings.push((end.to_owned(), format!("{} sleeps {} spins / M", of(sleeps), of(spins))));
            }
        }
        let values = vec![("rate", work as f64 / seconds / 1e6), ("cpu", cpu * 1e9 / work as f64)];
        Ok(Sample { seconds, values, settings })
    }
}

/// One end of a connection.
enum Conn {
    Kernel(OwnedFd),
    Batched(OwnedFd),
    Ours(SeqPacket),
}

fn kernel_socket() -> Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl Conn {
    fn over_kernel(engine: &str, fd: OwnedFd) -> Result<Conn> {
        match engine {
            "kernel" => Ok(Conn::Kernel(fd)),
            "kernel-mmsg" => Ok(Conn::Batched(fd)),
            other => bail!("there is no engine {other} for records"),
        }
    }

    fn accept(job: &Value) -> Result<Conn> {
        let (engine, name) = (text(job, "engine")?, text(job, "name")?);
        if engine == "auto" {
            let listener = SeqListener::bind_with(Name::abstract_(name), &Config::default())?;
            proc::say_ready()?;
            return Ok(Conn::Ours(listener.accept()?));
        }
        let listener = kernel_socket()?;
        rustix::net::bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        rustix::net::listen(&listener, 1)?;
        proc::say_ready()?;
        Conn::over_kernel(engine, rustix::net::accept_with(&listener, SocketFlags::CLOEXEC)?)
    }

    fn connect(job: &Value) -> Result<Conn> {
        let (engine, name) = (text(job, "engine")?, text(job, "name")?);
        if engine == "auto" {
            return Ok(Conn::Ours(SeqPacket::connect(Name::abstract_(name))?));
        }
        let fd = kernel_socket()?;
        rustix::net::connect(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)
            .context("connecting")?;
        Conn::over_kernel(engine, fd)
    }

    fn send(&self, record: &[u8]) -> Result<()> {
        let n = match self {
            Conn::Kernel(fd) | Conn::Batched(fd) => {
                rustix::net::send(fd, record, rustix::net::SendFlags::empty())?
            }
            Conn::Ours(socket) => socket.send(record, SendFlags::empty())?,
        };
        ensure!(n == record.len(), "{n} bytes of {} were sent", record.len());
        Ok(())
    }

    fn recv(&self, buffer: &mut [u8]) -> Result<usize> {
        Ok(match self {
            Conn::Kernel(fd) | Conn::Batched(fd) => {
                rustix::net::recv(fd, &mut buffer[..], rustix::net::RecvFlags::empty())?.1
            }
            Conn::Ours(socket) => socket.recv(buffer, RecvFlags::empty())?,
        })
    }

    /// Sends `count` records: the same one again and again, or each with bytes of its own.
    fn send_many(&self, record: &mut [u8], count: u64, seed: Option<u64>) -> Result<()> {
        if let (Conn::Batched(fd), None) = (self, seed) {
            return send_batches(fd, record, count);
        }
        for i in 0..count {
            if let Some(seed) = seed {
                bytes::fill(record, seed, i * record.len() as u64);
            }
            self.send(record)?;
        }
        Ok(())
    }

    /// Receives `count` records of `size` bytes; `buffer` has room for a batch.
    fn recv_many(&self, buffer: &mut [u8], size: usize, count: u64, seed: Option<u64>) -> Result<()> {
        if let (Conn::Batched(fd), None) = (self, seed) {
            return recv_batches(fd, buffer, size, count);
        }
        for i in 0..count {
            let n = self.recv(&mut buffer[..size])?;
            ensure!(n == size, "record {i} has {n} bytes");
            if let Some(seed) = seed {
                bytes::check(&buffer[..n], seed, i * size as u64)?;
            }
        }
        Ok(())
    }

    fn effective(&self) -> Result<usize> {
        match self {
            Conn::Kernel(fd) | Conn::Batched(fd) => Ok(rustix::net::sockopt::socket_send_buffer_size(fd)?),
            Conn::Ours(socket) => Ok(socket.capacity().0),
        }
    }

    fn path(&self) -> &'static str {
        match self {
            Conn::Ours(socket) if socket.path().is_shared_memory() => "shared memory",
            _ => "kernel",
        }
    }

    fn waits(&self) -> Value {
        match self {
            Conn::Ours(socket) => {
                let stats = socket.stats();
                json!({"sleeps": stats.sleeps, "spins": stats.spins + stats.room_spins})
            }
            _ => json!({}),
        }
    }
}

/// Sends `count` records, many to a call.
fn send_batches(fd: &OwnedFd, record: &[u8], count: u64) -> Result<()> {
    let slices = [IoSlice::new(record)];
    let mut none: Vec<SendAncillaryBuffer<'_, '_, '_>> = (0..BATCH).map(|_| Default::default()).collect();
    let mut messages: Vec<_> = none.iter_mut().map(|none| MMsgHdr::new(&slices, none)).collect();
    let mut left = count as usize;
    while left > 0 {
        let n = left.min(BATCH);
        left -= rustix::net::sendmmsg(fd, &mut messages[..n], rustix::net::SendFlags::empty())?;
    }
    Ok(())
}

/// Receives `count` records, as many to a call as are there, each into its own part of `buffer`.
fn recv_batches(fd: &OwnedFd, buffer: &mut [u8], size: usize, count: u64) -> Result<()> {
    let mut lens = [0; BATCH];
    let mut left = count as usize;
    while left > 0 {
        let most = left.min(BATCH);
        let n = onecopy_sys::socket::recv_many(fd, buffer, size, &mut lens[..most])?;
        ensure!(lens[..n].iter().all(|len| *len == size), "a record has another length");
        left -= n;
    }
    Ok(())
}

/// Receives `warm` records, gives a sign, receives `records`. With a seed it compares them.
fn reader(job: &Value) -> Result<Value> {
    let (size, warm, records) = (whole(job, "size")? as usize, whole(job, "warm")?, whole(job, "records")?);
    let conn = Conn::accept(job)?;
    let mut buffer = Aligned::new(size * BATCH, 0);
    conn.recv_many(&mut buffer, size, warm, None)?;
    conn.send(&[1])?;
    let cpu = proc::cpu_seconds();
    conn.recv_many(&mut buffer, size, records, job["seed"].as_u64())?;
    let (end, cpu) = (proc::now(), proc::cpu_seconds() - cpu);
    conn.send(&[1])?;
    Ok(with(conn.waits(), json!({"end": end, "cpu": cpu})))
}

/// Sends `warm` records, waits for the sign, sends `records`: the buffer is empty when the clock starts.
fn writer(job: &Value) -> Result<Value> {
    let (size, warm, records) = (whole(job, "size")? as usize, whole(job, "warm")?, whole(job, "records")?);
    let conn = Conn::connect(job)?;
    let mut buffer = Aligned::new(size, 0x5a);
    conn.send_many(&mut buffer, warm, None)?;
    ensure!(conn.recv(&mut [0])? == 1, "the reader is gone");
    let (start, cpu) = (proc::now(), proc::cpu_seconds());
    conn.send_many(&mut buffer, records, job["seed"].as_u64())?;
    let cpu = proc::cpu_seconds() - cpu;
    let (effective, path) = (conn.effective()?, conn.path());
    ensure!(conn.recv(&mut [0])? == 1, "the reader is gone");
    Ok(with(conn.waits(), json!({"start": start, "cpu": cpu, "effective": effective, "path": path})))
}
