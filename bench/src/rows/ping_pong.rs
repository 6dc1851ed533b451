//! `ping-pong`: round trips of one message, and what waiting costs while nothing comes.

use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::aligned::Aligned;
use super::bare::Bare;
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
    name: "ping-pong",
    about: "round trips of one message, copied out on both sides (record, dgram: over seqpacket and connected datagram sockets, ours and the kernel's); spin, block, adaptive is how ours waits, kernel \
            blocks and kernel-spin polls with MSG_DONTWAIT, bare is one cache line bounced by two threads; adaptive-15us: the server computes for as long before \
            it answers; idle: CPU of a process that waits for a byte",
    stated: &[],
    metrics: &[
        Metric { name: "rtt", unit: "us", larger: false },
        Metric { name: "idle", unit: "CPU s/s", larger: false },
    ],
    share: 1.0,
    cases,
    workers: &[("ping-pong/server", server), ("ping-pong/client", client), ("ping-pong/idler", idler)],
    plot: Plot::Bars,
};

const SIZES: [usize; 4] = [1, 64, 4 << 10, 64 << 10];

/// What counts as no CPU at all while idle: a ten-thousandth, which is below a timer's wake-ups.
const IDLE: f64 = 0.0001;

/// What a blocking round trip must reach against the kernel's.
const BLOCK: f64 = 0.95;
/// How much longer than spinning an adaptive one may take.
const ADAPTIVE: f64 = 1.3;
/// How long a server computes, in microseconds, that answers within 20 but not at once: what its client waits is that, and the way there and back.
const WORKS: u64 = 15;

fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    for size in SIZES {
        let mut spin = vec![];
        if size == 64 {
            spin.push(Reach::ratio("auto", "rtt", 15.0, &["kernel"]));
            spin.push(Reach::at_most("auto", "rtt", 0.65));
        }
        let engines: &[_] = match size {
            // One line: what no message can be faster than.
            64 => &["kernel", "kernel-spin", "bare", "auto"],
            _ => &["kernel", "kernel-spin", "auto"],
        };
        cases.push(case(size, "spin", engines, spin));
        cases.push(case(
            size,
            "block",
            &["kernel", "auto"],
            vec![Reach::ratio("auto", "rtt", BLOCK, &["kernel"])],
        ));
        cases.push(case(size, "adaptive", ADAPTIVE_ENGINES, adaptive()));
    }
    cases.push(Case {
        name: format!("64/adaptive-{WORKS}us"),
        open: Box::new(|context, engine| {
            Ok(Box::new(PingPong { works: WORKS, ..session(context, engine, 64, "adaptive", false) }))
        }),
        ..case(64, "adaptive", ADAPTIVE_ENGINES, adaptive())
    });
    for kind in [Kind::Records, Kind::Datagrams] {
        let waits = [(64, "spin"), (64, "block"), (64, "adaptive"), (4 << 10, "spin"), (4 << 10, "block")];
        cases.extend(waits.map(|(size, wait)| message_case(kind, size, wait)));
    }
    cases.push(Case {
        name: "64/idle".to_owned(),
        engines: vec!["kernel", "auto"],
        baseline: "kernel",
        reach: vec![Reach::at_most("auto", "idle", IDLE)],
        work: Work::fixed(1000),
        open: Box::new(|context, engine| Ok(Box::new(session(context, engine, 64, "adaptive", true)))),
    });
    if scale == Scale::Smoke {
        // (See `proc::LIFE`; and there are many cases.)
        cases.iter_mut().for_each(|case| case.work.warmup = 50);
    }
    cases
}

const ADAPTIVE_ENGINES: &[&str] = &["kernel", "auto-spin", "auto-block", "auto"];

fn adaptive() -> Vec<Reach> {
    vec![Reach::at_most_times("auto", "rtt", ADAPTIVE, "auto-spin", 0.0)]
}

/// As a stream's of that size, with its demands.
fn message_case(kind: Kind, size: usize, wait: &'static str) -> Case {
    let (engines, reach): (&[&'static str], Vec<Reach>) = match wait {
        "spin" if size == 64 => (
            &["kernel", "kernel-spin", "auto"],
            vec![Reach::ratio("auto", "rtt", 15.0, &["kernel"]), Reach::at_most("auto", "rtt", 0.65)],
        ),
        "spin" => (&["kernel", "kernel-spin", "auto"], vec![]),
        "block" => (&["kernel", "auto"], vec![Reach::ratio("auto", "rtt", BLOCK, &["kernel"])]),
        _ => (ADAPTIVE_ENGINES, adaptive()),
    };
    Case {
        name: format!("{}{}/{wait}", kind.prefix(), size_name(size as u64)),
        open: Box::new(move |context, engine| {
            Ok(Box::new(PingPong { kind, ..session(context, engine, size, wait, false) }))
        }),
        ..case(size, wait, engines, reach)
    }
}

fn case(size: usize, wait: &'static str, engines: &[&'static str], reach: Vec<Reach>) -> Case {
    Case {
        name: format!("{}/{wait}", size_name(size as u64)),
        engines: engines.to_vec(),
        baseline: "kernel",
        reach,
        work: Work { warmup: 500, least: 500, most: 10_000_000, step: 1 },
        open: Box::new(move |context, engine| {
            Ok(match engine {
                "bare" => Box::new(Bare::new(context)),
                _ => Box::new(session(context, engine, size, wait, false)),
            })
        }),
    }
}

fn session(context: &Context, engine: &str, size: usize, wait: &str, idle: bool) -> PingPong {
    let wait = engine.split_once('-').map_or(wait, |(_, wait)| wait);
    PingPong {
        context: context.clone(),
        engine: engine.to_owned(),
        size,
        wait: wait.to_owned(),
        idle,
        kind: Kind::Stream,
        works: 0,
    }
}

struct PingPong {
    context: Context,
    engine: String,
    size: usize,
    wait: String,
    idle: bool,
    kind: Kind,
    /// Microseconds that the server computes before each answer.
    works: u64,
}

impl PingPong {
    fn job(&self, trips: u64, seed: Option<u64>) -> Value {
        let setup = Setup { wait: self.wait.clone(), kind: self.kind, ..Setup::new(&self.engine) };
        with(setup.job(), json!({"size": self.size, "trips": trips, "seed": seed, "works": self.works}))
    }

    fn trips(&self, trips: u64, seed: Option<u64>) -> Result<Value> {
        let job = self.job(trips, seed);
        let (server, client) = (("ping-pong/server", &job), ("ping-pong/client", &job));
        Ok(self.context.launcher.pair(server, client, self.context.cpus, proc::LIFE)?.1)
    }

    /// CPU seconds a second of the server, which waits in a receive after a few round trips.
    fn idle_cpu(&self, trips: u64) -> Result<(f64, Value)> {
        let job = self.job(trips, None);
        let start = |role, cpu| self.context.launcher.start(role, &job, Some(cpu), proc::LIFE);
        let mut server = start("ping-pong/server", self.context.cpus[1])?;
        server.ready()?;
        let mut client = start("ping-pong/idler", self.context.cpus[0])?;
        let figures = client.figures()?;
        // A spin that lasted longer than this would show in the window, as it should.
        std::thread::sleep(Duration::from_millis(5));
        let window = match self.context.scale {
            Scale::Smoke => Duration::from_millis(20),
            Scale::Quick => Duration::from_millis(300),
            Scale::Full => Duration::from_secs(1),
        };
        let before = proc::cpu_seconds_of(server.pid())?;
        let clock = std::time::Instant::now();
        std::thread::sleep(window);
        let cpu = proc::cpu_seconds_of(server.pid())? - before;
        let share = cpu / clock.elapsed().as_secs_f64();
        client.go()?;
        server.figures()?;
        Ok((share, figures))
    }
}

impl Session for PingPong {
    fn verify(&mut self) -> Result<()> {
        self.trips(20, Some(0x5eed)).map(drop)
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let (value, figures) = if self.idle {
            let (cpu, figures) = self.idle_cpu(work)?;
            (("idle", cpu), figures)
        } else {
            let figures = self.trips(work, None)?;
            (("rtt", number(&figures, "seconds")? / work as f64 * 1e6), figures)
        };
        let mut settings = vec![("path".to_owned(), text(&figures, "path")?.to_owned())];
        if let Some(sleeps) = figures["sleeps"].as_u64() {
            settings.push(("sleeps a trip".to_owned(), format!("{:.3}", sleeps as f64 / work as f64)));
        }
        Ok(Sample { seconds: number(&figures, "seconds")?, values: vec![value], settings })
    }
}

/// Receives into all of `buffer`; the kernel's spinning way never sleeps. False at the end of the stream.
fn receive(conn: &mut Conn, engine: &str, buffer: &mut [u8]) -> Result<bool> {
    if engine != "kernel-spin" {
        return conn.recv_all(buffer);
    }
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::net::recv(&*conn, &mut buffer[filled..], rustix::net::RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Ok(false),
            Ok((_, n)) => filled += n,
            Err(Errno::AGAIN) => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// Uses the CPU for so many seconds.
fn compute(seconds: f64) {
    if seconds > 0.0 {
        let end = proc::now() + seconds;
        while proc::now() < end {
            std::hint::spin_loop();
        }
    }
}

/// Gives back what comes, until the client has finished.
fn server(job: &Value) -> Result<Value> {
    let setup = Setup::from_job(job)?;
    let mut conn = meet::accept(&setup)?;
    let mut message = Aligned::new(whole(job, "size")? as usize, 0);
    let works = whole(job, "works")? as f64 / 1e6;
    let mut trips = 0;
    while receive(&mut conn, &setup.engine, &mut message)? {
        compute(works);
        conn.send_all(&message)?;
        trips += 1;
    }
    Ok(json!({"trips": trips}))
}

fn client(job: &Value) -> Result<Value> {
    let (mut conn, figures) = round_trips(job)?;
    conn.finish(Setup::from_job(job)?.kind)?;
    Ok(figures)
}

/// A client that stays connected and silent after its round trips, until it is told to go.
fn idler(job: &Value) -> Result<Value> {
    let (mut conn, figures) = round_trips(job)?;
    proc::say_figures(&figures)?;
    proc::proceed()?;
    conn.finish(Setup::from_job(job)?.kind)?;
    Ok(json!({}))
}

fn round_trips(job: &Value) -> Result<(Conn, Value)> {
    let setup = Setup::from_job(job)?;
    let trips = whole(job, "trips")?;
    let mut conn = meet::connect(&setup)?;
    let mut message = Aligned::new(whole(job, "size")? as usize, 0x5a);
    let mut run = |conn: &mut Conn, trips: u64, seed: Option<u64>| -> Result<()> {
        for trip in 0..trips {
            let at = trip * message.len() as u64;
            if let Some(seed) = seed {
                bytes::fill(&mut message, seed, at);
            }
            conn.send_all(&message)?;
            if seed.is_some() {
                message.fill(0);
            }
            ensure!(receive(conn, &setup.engine, &mut message)?, "the server is gone");
            if let Some(seed) = seed {
                bytes::check(&message, seed, at)?;
            }
        }
        Ok(())
    };
    run(&mut conn, trips.div_ceil(10), None)?;
    let before = sleeps(&conn);
    let start = proc::now();
    run(&mut conn, trips, job["seed"].as_u64())?;
    let seconds = proc::now() - start;
    let sleeps = sleeps(&conn).zip(before).map(|(after, before)| after - before);
    let figures = json!({"seconds": seconds, "path": conn.path(), "sleeps": sleeps});
    Ok((conn, figures))
}

fn sleeps(conn: &Conn) -> Option<u64> {
    conn.stats().map(|stats| stats.sleeps)
}
