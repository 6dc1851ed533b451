//! `connect`: what a connection costs to make, and to keep while nothing happens on it.

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::conn::Conn;
use super::job::{number, whole, with};
use super::meet::{self, Server};
use super::setup::Setup;
use crate::proc;
use crate::row::{Case, Context, Metric, Plot, Reach, Row, Sample, Scale, Session, Work};

/// The row.
pub const ROW: Row = Row {
    name: "connect",
    about: "connect, accept, a byte from the server and one back, close, one connection after the other; undecided: connect, accept, \
            a byte from the client, close, and the client waits for the end; plain: a client of the kernel's sockets at our \
            listener; idle: what each of many open connections costs the worse off of the two processes",
    stated: &[],
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
        case("upgraded", work, vec![Reach::ratio("auto", "rate", 0.4, &["kernel"])]),
        case("undecided", work, vec![Reach::ratio("auto", "rate", 0.4, &["kernel"])]),
        case("plain", work, vec![Reach::ratio("auto", "rate", 0.95, &["kernel"])]),
        case(
            "idle",
            Work::fixed(connections),
            vec![Reach::at_most("auto", "descriptors", 1.0), Reach::at_most("auto", "rss", 14.0)],
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
        let job = json!({"connections": work, "way": if self.case == "undecided" { Way::There } else { Way::Both }});
        let (server, client) = (with(server.job(), job.clone()), with(client.job(), job));
        let (server, client) = ((roles[0], &server), (roles[1], &client));
        self.context.launcher.pair(server, client, self.context.cpus, proc::LIFE)
    }
}

impl Session for Connect {
    fn verify(&mut self) -> Result<()> {
        // Each byte that a connection brings is checked.
        self.run(20).map(drop)
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        if self.case == "idle" {
            let (server, client) = self.pair(["connect/idle-server", "connect/idle-client"], work)?;
            let upgraded = Upgraded::of(&server, &client)?;
            ensure!(
                self.engine == "kernel" || upgraded.is_all_of(work),
                "not all connections were upgraded: {upgraded:?}"
            );
            let worse = |name| Ok::<_, anyhow::Error>(number(&server, name)?.max(number(&client, name)?));
            return Ok(Sample {
                seconds: number(&client, "seconds")?,
                values: vec![("descriptors", worse("descriptors")?), ("rss", worse("rss")?)],
                settings: [("connections".to_owned(), work.to_string())]
                    .into_iter()
                    .chain(upgraded.settings(&self.engine))
                    .collect(),
            });
        }
        let (server, client) = self.pair(["connect/server", "connect/client"], work)?;
        let upgraded = Upgraded::of(&server, &client)?;
        if self.case == "upgraded" && self.engine != "kernel" {
            ensure!(upgraded.is_all_of(work), "not all of {work} connections were upgraded: {upgraded:?}");
        }
        let seconds = number(&client, "seconds")?;
        Ok(Sample {
            seconds,
            values: vec![("rate", work as f64 / seconds)],
            settings: upgraded.settings(&self.engine).into_iter().collect(),
        })
    }
}

/// Connections of which a direction had come to run over shared memory when they were done.
#[derive(Debug, Default)]
struct Upgraded {
    to_server: u64,
    to_client: u64,
}

impl Upgraded {
    /// What one end knows of a connection.
    fn add(&mut self, conn: &Conn, is_server: bool) {
        let [sends, receives] = conn.shares();
        let (to_client, to_server) = if is_server { (sends, receives) } else { (receives, sends) };
        self.to_server += u64::from(to_server);
        self.to_client += u64::from(to_client);
    }

    fn figures(&self) -> Value {
        json!({"to server": self.to_server, "to client": self.to_client})
    }

    /// What both ends know. The sender of a direction may know before its receiver does, or the other way round.
    fn of(server: &Value, client: &Value) -> Result<Upgraded> {
        let either = |way: &str| Ok::<_, anyhow::Error>(whole(server, way)?.max(whole(client, way)?));
        Ok(Upgraded { to_server: either("to server")?, to_client: either("to client")? })
    }

    /// A byte each way upgrades one direction at least: the one of the second byte. The first byte may be what brings the offer of
    /// the other direction, whose next byte would be the first to take it.
    fn is_all_of(&self, connections: u64) -> bool {
        self.to_server.max(self.to_client) == connections
    }

    /// For the connections of `engine`, if they can be.
    fn settings(&self, engine: &str) -> Option<(String, String)> {
        let words = format!("{} to the server {} to the client", self.to_server, self.to_client);
        (engine != "kernel").then(|| ("upgraded".to_owned(), words))
    }
}

/// Which bytes a connection sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Way {
    /// One each way.
    Both,
    /// One from the client.
    There,
}

/// The server's part of a connection.
fn serve(conn: &mut Conn, way: Way, number: u64) -> Result<()> {
    match way {
        Way::Both => greet(conn, true, number),
        Way::There => take(conn, number),
    }
}

/// The client's part of a connection.
fn visit(conn: &mut Conn, way: Way, number: u64) -> Result<()> {
    if way == Way::Both {
        return greet(conn, false, number);
    }
    conn.send_all(&[number as u8])?;
    match conn.recv(&mut [0]) {
        Ok(0) => Ok(()),
        // A server that closes before it has taken what a client's library says of its own has that end, too.
        Err(error) if is_reset(&error) => Ok(()),
        Ok(_) => bail!("connection {number} brought a byte that nobody sent"),
        Err(error) => Err(error.context(format!("connection {number} did not end"))),
    }
}

fn is_reset(error: &anyhow::Error) -> bool {
    let ours = error.downcast_ref::<onecopy::Error>();
    ours.is_some_and(|error| error.raw_os_error() == rustix::io::Errno::CONNRESET.raw_os_error())
}

/// Receives the byte that belongs to a connection.
fn take(conn: &mut Conn, number: u64) -> Result<()> {
    let (mut byte, expected) = ([!(number as u8)], number as u8);
    ensure!(conn.recv_all(&mut byte)?, "connection {number} ended at once");
    ensure!(byte[0] == expected, "connection {number} brought another's byte");
    Ok(())
}

/// A byte each way, checked, so that both directions have had their chance to be upgraded.
fn greet(conn: &mut Conn, first: bool, number: u64) -> Result<()> {
    if first {
        conn.send_all(&[number as u8])?;
    }
    take(conn, number)?;
    if !first {
        conn.send_all(&[number as u8])?;
    }
    Ok(())
}

fn server(job: &Value) -> Result<Value> {
    let setup = Setup::from_job(job)?;
    let (connections, way) = (whole(job, "connections")?, Way::deserialize(&job["way"])?);
    let listener = Server::listen(&setup)?;
    let mut upgraded = Upgraded::default();
    for number in 0..connections {
        let mut conn = listener.accept(&setup)?;
        serve(&mut conn, way, number)?;
        upgraded.add(&conn, true);
    }
    Ok(upgraded.figures())
}

fn client(job: &Value) -> Result<Value> {
    let setup = Setup::from_job(job)?;
    let (connections, way) = (whole(job, "connections")?, Way::deserialize(&job["way"])?);
    let mut upgraded = Upgraded::default();
    let start = proc::now();
    for number in 0..connections {
        let mut conn = meet::connect(&setup)?;
        visit(&mut conn, way, number)?;
        upgraded.add(&conn, false);
    }
    Ok(with(upgraded.figures(), json!({"seconds": proc::now() - start})))
}

fn idle_server(job: &Value) -> Result<Value> {
    let setup = Setup::from_job(job)?;
    let listener = Server::listen(&setup)?;
    let connections = whole(job, "connections")?;
    make_room(connections)?;
    let mut held = None;
    let mut conns = Vec::with_capacity(connections as usize);
    for number in 0..connections {
        let mut conn = listener.accept(&setup)?;
        greet(&mut conn, true, number)?;
        conns.push(conn);
        if number == 0 {
            held = Some(Held::now()?);
        }
    }
    let figures = held.context("there was no connection")?.per_connection(&conns, true)?;
    // The client measures while these are open, and then hangs up.
    if let Some(conn) = conns.first_mut() {
        conn.recv(&mut [0])?;
    }
    Ok(figures)
}

fn idle_client(job: &Value) -> Result<Value> {
    let setup = Setup::from_job(job)?;
    let connections = whole(job, "connections")?;
    make_room(connections)?;
    let mut held = None;
    let mut conns = Vec::with_capacity(connections as usize);
    let start = proc::now();
    for number in 0..connections {
        let mut conn = meet::connect(&setup)?;
        greet(&mut conn, false, number)?;
        conns.push(conn);
        if number == 0 {
            held = Some(Held::now()?);
        }
    }
    let seconds = proc::now() - start;
    let figures = held.context("there was no connection")?.per_connection(&conns, false)?;
    Ok(with(figures, json!({"seconds": seconds})))
}

/// Makes room for that many connections.
fn make_room(connections: u64) -> Result<()> {
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
    Ok(())
}

/// What a process held with its first connection: what comes once for a process is none of the others' costs.
struct Held {
    descriptors: usize,
    rss: u64,
}

impl Held {
    fn now() -> Result<Held> {
        Ok(Held { descriptors: descriptors()?, rss: rss_kib()? })
    }

    /// What each connection after the first one has cost.
    fn per_connection(&self, conns: &[Conn], is_server: bool) -> Result<Value> {
        let now = Held::now()?;
        let count = (conns.len() - 1) as f64;
        let (descriptors, rss) = (now.descriptors - self.descriptors, now.rss.saturating_sub(self.rss));
        let mut upgraded = Upgraded::default();
        conns.iter().for_each(|conn| upgraded.add(conn, is_server));
        let held = json!({"descriptors": descriptors as f64 / count, "rss": rss as f64 / count});
        Ok(with(upgraded.figures(), held))
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
