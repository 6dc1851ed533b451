//! `connect`: what a connection costs to make, and to keep while nothing happens on it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use super::conn::{Conn, Setup, number, text, whole, with};
use crate::proc;
use crate::row::{Case, Context, Metric, Plot, Reach, Row, Sample, Scale, Session, Work};

/// The row.
pub const ROW: Row = Row {
    name: "connect",
    about: "connect, accept, one byte there and one back, close, one after the other; plain: a client of the kernel's \
            sockets at our listener; idle: what each of many open connections costs the worse off of the two processes",
    metrics: &[
        Metric { name: "rate", unit: "1/s", larger: true },
        Metric { name: "descriptors", unit: "per end", larger: false },
        Metric { name: "rss", unit: "KiB per end", larger: false },
    ],
    share: 1.0,
    cases,
    workers: &[
        ("connect/server", server),
        ("connect/client", client),
        ("connect/idle-server", idle_server),
        ("connect/idle-client", idle_client),
    ],
    plot: Plot::Bars,
};

fn cases(scale: Scale) -> Vec<Case> {
    let connections = match scale {
        Scale::Full => 10_000,
        Scale::Quick => 1_000,
        Scale::Smoke => 50,
    };
    let work = Work { warmup: 100, least: 100, most: 100_000, step: 1 };
    vec![
        case("upgraded", work, vec![Reach::ratio("auto", "rate", 0.25, &["kernel"])]),
        case("plain", work, vec![Reach::ratio("auto", "rate", 0.9, &["kernel"])]),
        case(
            "idle",
            Work::fixed(connections),
            vec![Reach::at_most("auto", "descriptors", 2.0), Reach::at_most("auto", "rss", 16.0)],
        ),
    ]
}

fn case(name: &'static str, work: Work, reach: Vec<Reach>) -> Case {
    Case {
        name: name.to_owned(),
        engines: vec!["kernel", "auto"],
        baseline: "kernel",
        reach,
        work,
        open: Box::new(move |context, engine| {
            Ok(Box::new(Connect { context: context.clone(), engine: engine.to_owned(), case: name }))
        }),
    }
}

struct Connect {
    context: Context,
    engine: String,
    case: &'static str,
}

impl Connect {
    fn pair(&self, roles: [&str; 2], work: u64) -> Result<(Value, Value)> {
        let server = Setup::new(&self.engine);
        // To be told from an upgraded one, a plain connection only needs a client that knows nothing of us.
        let client = if self.case == "plain" {
            Setup { engine: "kernel".to_owned(), ..server.clone() }
        } else {
            server.clone()
        };
        let job = json!({"connections": work});
        let (server, client) = (with(server.job(), job.clone()), with(client.job(), job));
        let (server, client) = ((roles[0], &server), (roles[1], &client));
        self.context.launcher.pair(server, client, self.context.cpus, Duration::from_secs(60))
    }
}

impl Session for Connect {
    fn verify(&mut self) -> Result<()> {
        // Both ends check the byte that each connection brings.
        self.run(20).map(drop)
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        if self.case == "idle" {
            let (server, client) = self.pair(["connect/idle-server", "connect/idle-client"], work)?;
            let path = text(&server, "path")?;
            ensure!(self.engine == "kernel" || path != "kernel", "not all connections were upgraded");
            let worse = |name| Ok::<_, anyhow::Error>(number(&server, name)?.max(number(&client, name)?));
            return Ok(Sample {
                seconds: number(&client, "seconds")?,
                values: vec![("descriptors", worse("descriptors")?), ("rss", worse("rss")?)],
                settings: vec![
                    ("connections".to_owned(), work.to_string()),
                    ("path".to_owned(), path.to_owned()),
                ],
            });
        }
        let (server, client) = self.pair(["connect/server", "connect/client"], work)?;
        let upgraded = whole(&server, "upgraded")?;
        if self.case == "upgraded" && self.engine != "kernel" {
            ensure!(upgraded == work, "{upgraded} of {work} connections were upgraded");
        }
        let seconds = number(&client, "seconds")?;
        Ok(Sample {
            seconds,
            values: vec![("rate", work as f64 / seconds)],
            settings: vec![("upgraded".to_owned(), format!("{upgraded} of {work}"))],
        })
    }
}

/// A byte each way, checked, so that both directions have had their chance to be upgraded.
fn greet(conn: &mut Conn, first: bool, number: u64) -> Result<()> {
    let (mut byte, expected) = ([number as u8], number as u8);
    if first {
        conn.send_all(&byte)?;
    }
    byte[0] = !expected;
    ensure!(conn.recv_all(&mut byte)?, "connection {number} ended at once");
    ensure!(byte[0] == expected, "connection {number} brought another's byte");
    if !first {
        conn.send_all(&byte)?;
    }
    Ok(())
}

fn server(job: &Value) -> Result<Value> {
    let setup = Setup::from_job(job)?;
    let listener = setup.listen()?;
    let mut upgraded = 0;
    for number in 0..whole(job, "connections")? {
        let mut conn = listener.accept(&setup)?;
        greet(&mut conn, true, number)?;
        upgraded += u64::from(conn.upgraded());
    }
    Ok(json!({"upgraded": upgraded}))
}

fn client(job: &Value) -> Result<Value> {
    let setup = Setup::from_job(job)?;
    let start = proc::now();
    for number in 0..whole(job, "connections")? {
        let mut conn = setup.connect()?;
        greet(&mut conn, false, number)?;
    }
    Ok(json!({"seconds": proc::now() - start}))
}

fn idle_server(job: &Value) -> Result<Value> {
    let setup = Setup::from_job(job)?;
    let listener = setup.listen()?;
    let connections = whole(job, "connections")?;
    let held = Held::room_for(connections)?;
    let mut conns = Vec::with_capacity(connections as usize);
    for number in 0..connections {
        let mut conn = listener.accept(&setup)?;
        greet(&mut conn, true, number)?;
        conns.push(conn);
    }
    let figures = held.per_connection(&conns)?;
    // The client measures while these are open, and then hangs up.
    if let Some(conn) = conns.first_mut() {
        conn.recv(&mut [0])?;
    }
    Ok(figures)
}

fn idle_client(job: &Value) -> Result<Value> {
    let setup = Setup::from_job(job)?;
    let connections = whole(job, "connections")?;
    let held = Held::room_for(connections)?;
    let mut conns = Vec::with_capacity(connections as usize);
    let start = proc::now();
    for number in 0..connections {
        let mut conn = setup.connect()?;
        greet(&mut conn, false, number)?;
        conns.push(conn);
    }
    let seconds = proc::now() - start;
    Ok(with(held.per_connection(&conns)?, json!({"seconds": seconds})))
}

/// What a process held before the connections were made.
struct Held {
    descriptors: usize,
    rss: u64,
}

impl Held {
    /// Makes room for that many connections, and notes what is held before them.
    fn room_for(connections: u64) -> Result<Held> {
        let wanted = connections * 4 + 100;
        let limit = getrlimit(Resource::Nofile);
        if limit.current.is_some_and(|current| current < wanted) {
            let most = limit.maximum.map_or(wanted, |maximum| maximum.max(wanted));
            let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(most) });
            if raised.is_err() {
                // Only root may go past the hard limit; up to it may be enough.
                setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
            }
        }
        // The vector that will hold the connections is the program's own: touched before, not counted.
        Ok(Held { descriptors: descriptors()?, rss: rss_kib()? })
    }

    fn per_connection(&self, conns: &[Conn]) -> Result<Value> {
        let count = conns.len() as f64;
        let path = if conns.iter().all(Conn::upgraded) { "shared memory" } else { "kernel" };
        Ok(json!({
            "descriptors": (descriptors()? - self.descriptors) as f64 / count,
            "rss": rss_kib()?.saturating_sub(self.rss) as f64 / count,
            "path": path
        }))
    }
}

fn descriptors() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

fn rss_kib() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line =
        status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS in /proc/self/status")?;
    Ok(line.split_whitespace().nth(1).context("VmRSS is empty")?.parse()?)
}
