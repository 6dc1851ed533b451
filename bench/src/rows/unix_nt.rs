//! `unix-nt`: objects of 1 MiB to a reader that passes them on and never looks at them, as a proxy that splices.
//!
//! The kernel's best way: splice from the socket into a pipe and on to /dev/null, with the send buffer and pipe that
//! do best on this machine (tried first). Ours: borrow, the same call on the borrowed piece, give back.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use anyhow::{Context as _, Result, ensure};
use onecopy::unix::Stream;
use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, pipe, splice};
use serde_json::{Value, json};

use super::conn::{Conn, work_settings};
use super::job::{number, text, whole, with};
use super::meet;
use super::setup::Setup;
use super::{bytes, feed};
use crate::proc;
use crate::row::{CPU_PER_GB, Case, Context, Metric, Plot, Reach, Row, Sample, Scale, Session, Work};
use crate::words::size_name;

/// The row.
pub const ROW: Row = Row {
    name: "unix-nt",
    about: "1 MiB objects; the reader forwards each piece to /dev/null untouched (kernel: splice, one write a piece; \
            ours: one write of the borrowed piece); buffer = ours, the kernel's is the best of those tried",
    stated: &[],
    metrics: &[Metric { name: "rate", unit: "GB/s", larger: true }, CPU_PER_GB],
    share: 1.0,
    cases,
    workers: &[("unix-nt/reader", reader), ("unix-nt/writer", writer)],
    plot: Plot::Bars,
};

const OBJECT: usize = 1 << 20;
const KERNEL: &str = "kernel-splice";

/// What the kernel may use: bytes asked for as SO_SNDBUF and as pipe. The first are its defaults.
const KERNEL_BUFFERS: &[Option<usize>] =
    &[None, Some(512 << 10), Some(2 << 20), Some(8 << 20), Some(128 << 20)];
const KERNEL_PIPES: &[usize] = &[256 << 10, 64 << 10, 1 << 20];

fn cases(_: Scale) -> Vec<Case> {
    [("128K", 128 << 10), ("512K", 512 << 10), ("256M", 256 << 20)]
        .map(|(name, ring)| case(name, ring))
        .into()
}

fn case(name: &str, ring: usize) -> Case {
    let mut reach = vec![
        Reach::ratio("auto", "rate", if name == "256M" { 1.6 } else { 3.0 }, &[KERNEL]),
        Reach::ratio("auto", "rate", 0.95, &["cached", "nt"]),
    ];
    if name == "256M" {
        reach.push(Reach::ratio("nt", "rate", 1.4, &["cached"]));
    }
    Case {
        name: name.to_owned(),
        engines: vec![KERNEL, "cached", "nt", "auto"],
        baseline: KERNEL,
        reach,
        work: Work { warmup: 16 << 20, least: 16 << 20, most: 16 << 30, step: OBJECT as u64 },
        open: Box::new(move |context, engine| {
            let mut session =
                Nt { context: context.clone(), engine: engine.to_owned(), buffer: None, pipe: 0, ring };
            if engine == KERNEL {
                (session.buffer, session.pipe) = session.kernel_best()?;
            } else {
                // What is asked for is doubled; the case's name is what is in force.
                session.buffer = Some(ring / 2);
            }
            Ok(Box::new(session))
        }),
    }
}

struct Nt {
    context: Context,
    engine: String,
    buffer: Option<usize>,
    pipe: usize,
    ring: usize,
}

impl Nt {
    fn transfer(&self, warm: u64, bytes: u64, seed: Option<u64>) -> Result<(Value, Value)> {
        let setup = Setup { buffer: self.buffer, untouched: true, ..Setup::new(&self.engine) };
        let job = with(setup.job(), json!({"warm": warm, "bytes": bytes, "seed": seed, "pipe": self.pipe}));
        let (server, client) = (("unix-nt/reader", &job), ("unix-nt/writer", &job));
        self.context.launcher.pair(server, client, self.context.cpus, proc::LIFE)
    }

    fn seconds(&self, warm: u64, bytes: u64) -> Result<f64> {
        let (reader, writer) = self.transfer(warm, bytes, None)?;
        Ok(number(&reader, "end")? - number(&writer, "start")?)
    }

    /// Tries the kernel's buffers, and then its pipes, once for all cases; the better of two rounds each.
    fn kernel_best(&self) -> Result<(Option<usize>, usize)> {
        static BEST: Mutex<Option<(Option<usize>, usize)>> = Mutex::new(None);
        let mut known = BEST.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(best) = *known {
            return Ok(best);
        }
        let bytes = if self.context.scale == Scale::Smoke { 1 << 20 } else { 96 << 20 };
        let seconds = |buffer, pipe| {
            let (context, engine) = (self.context.clone(), self.engine.clone());
            let tried = Nt { context, engine, buffer, pipe, ring: 0 };
            Ok::<_, anyhow::Error>(tried.seconds(bytes / 8, bytes)?.min(tried.seconds(bytes / 8, bytes)?))
        };
        let mut best = (f64::INFINITY, None, KERNEL_PIPES[0]);
        for &buffer in KERNEL_BUFFERS {
            best = faster(best, (seconds(buffer, best.2)?, buffer, best.2));
        }
        for &pipe in &KERNEL_PIPES[1..] {
            best = faster(best, (seconds(best.1, pipe)?, best.1, pipe));
        }
        *known = Some((best.1, best.2));
        Ok((best.1, best.2))
    }
}

type Tried = (f64, Option<usize>, usize);

fn faster(a: Tried, b: Tried) -> Tried {
    if b.0 < a.0 { b } else { a }
}

impl Session for Nt {
    fn verify(&mut self) -> Result<()> {
        self.transfer(0, 5_000_001, Some(0x5eed)).map(drop)
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        // Each page of the ring must be there before the clock starts, and `auto` has six laps to compare the stores; all
        // engines get as many.
        let full = work > 1 << 20 && self.context.scale != Scale::Smoke;
        let warm = if full { (self.ring as u64 * 13 / 2).max(72 << 20) } else { 1 << 20 };
        let (reader, writer) = self.transfer(warm, work, None)?;
        let effective = whole(&writer, "effective")?;
        let full_ring =
            self.engine == KERNEL || text(&writer, "path")? == "kernel" || effective == self.ring as u64;
        ensure!(full_ring, "a ring of {effective} bytes is not what the case says");
        let seconds = number(&reader, "end")? - number(&writer, "start")?;
        let cpu = number(&reader, "cpu")? + number(&writer, "cpu")?;
        let gigabytes = work as f64 / 1e9;
        let mut settings = vec![
            ("effective buffer".to_owned(), size_name(effective)),
            ("bytes a piece".to_owned(), format!("{:.0}", work as f64 / number(&reader, "pieces")?)),
        ];
        if self.engine == KERNEL {
            settings.push(("pipe".to_owned(), size_name(whole(&reader, "pipe")?)));
        } else {
            settings.push(("path".to_owned(), text(&writer, "path")?.to_owned()));
        }
        settings.extend(work_settings(&writer["work"], &reader["work"]));
        Ok(Sample {
            seconds,
            values: vec![("rate", gigabytes / seconds), (CPU_PER_GB.name, cpu / gigabytes)],
            settings,
        })
    }
}

/// The reader's way out.
struct Forward {
    null: File,
    pipe: [OwnedFd; 2],
    pipe_size: usize,
}

impl Forward {
    fn new(pipe_size: usize) -> Result<Forward> {
        let null = OpenOptions::new().write(true).open("/dev/null").context("opening /dev/null")?;
        let (read, write) = pipe()?;
        let pipe_size = fcntl_setpipe_size(&write, pipe_size.max(4096)).context("sizing the pipe")?;
        Ok(Forward { null, pipe: [read, write], pipe_size })
    }

    /// Forwards `total` bytes and says in how many pieces they came. With a seed it reads them instead, at the
    /// place where they would go on.
    fn pass(&mut self, conn: &Conn, total: u64, seed: Option<u64>) -> Result<u64> {
        let (mut at, mut pieces) = (0, 0);
        while at < total {
            let check = seed.map(|seed| (seed, at));
            let n = match conn {
                Conn::Ours(stream) => self.borrow(stream, (total - at).min(OBJECT as u64) as usize, check)?,
                conn => self.splice(conn, (total - at).min(self.pipe_size as u64) as usize, check)?,
            };
            ensure!(n > 0, "the stream ended after {at} of {total} bytes");
            at += n as u64;
            pieces += 1;
        }
        Ok(pieces)
    }

    fn splice(&mut self, conn: &Conn, most: usize, check: Option<(u64, u64)>) -> Result<usize> {
        let [read, write] = &self.pipe;
        let n = splice(conn, None, write, None, most, SpliceFlags::MOVE)?;
        match check {
            Some((seed, at)) => {
                let (mut got, mut filled) = (vec![0; n], 0);
                while filled < n {
                    filled += rustix::io::read(read, &mut got[filled..])?;
                }
                bytes::check(&got, seed, at)?;
            }
            None => {
                let mut left = n;
                while left > 0 {
                    left -= splice(read, None, &self.null, None, left, SpliceFlags::MOVE)?;
                }
            }
        }
        Ok(n)
    }

    fn borrow(&mut self, stream: &Stream, most: usize, check: Option<(u64, u64)>) -> Result<usize> {
        let mut view = stream.recv_borrowed(most)?;
        let n = view.len();
        match check {
            Some((seed, at)) => {
                let mut got = vec![0; n];
                ensure!(view.copy_to(&mut got) == n, "the view is shorter than it says");
                bytes::check(&got, seed, at)?;
            }
            None => {
                while !view.is_empty() {
                    let written = view.write_to(&self.null)?;
                    ensure!(written > 0, "/dev/null took nothing");
                    view.advance(written);
                }
            }
        }
        Ok(n)
    }
}

fn reader(job: &Value) -> Result<Value> {
    let (warm, bytes) = (whole(job, "warm")?, whole(job, "bytes")?);
    let mut conn = meet::accept(&Setup::from_job(job)?)?;
    let mut forward = Forward::new(whole(job, "pipe")? as usize)?;
    forward.pass(&conn, warm, None)?;
    conn.sign()?;
    let cpu = proc::cpu_seconds();
    let pieces = forward.pass(&conn, bytes, job["seed"].as_u64())?;
    let (end, cpu) = (proc::now(), proc::cpu_seconds() - cpu);
    conn.sign()?;
    Ok(json!({"end": end, "cpu": cpu, "pieces": pieces, "pipe": forward.pipe_size, "work": conn.work()}))
}

fn writer(job: &Value) -> Result<Value> {
    feed::writer(job, OBJECT)
}
