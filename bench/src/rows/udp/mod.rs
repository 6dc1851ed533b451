//! `udp`: datagrams of a stack in user space, over a TAP, with the kernel's sockets in another network namespace.
//!
//! | file | what |
//! |---|---|
//! | `load` | sending and receiving, for whatever has datagrams |
//! | `kernel` | the peer of both engines, and the engine that is the kernel |
//! | `ours` | `onecopy::udp` |
//! | `quic` | quinn over both |
//!
//! Namespaces, devices and the meter are those of the row `tcp`.

mod kernel;
mod load;
mod ours;
#[cfg(feature = "quinn")]
mod quic;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::time::Duration;

use self::load::Mode;
use super::job::{number, whole, with};
use super::tcp::net::{Devices, Net, Queues};
use super::tcp::plan::{Plan, Way};
use super::tcp::until_something_comes;
use crate::row::{CPU_PER_GB, Case, Context, Metric, Plot, Reach, Row, Sample, Scale, Session, Work};

/// The row.
pub const ROW: Row = Row {
    name: "udp",
    about: "an engine and the kernel's blocking sockets in a network namespace of their own, with a TAP between them (kernel: a veth pair, \
            and both sides are the kernel's): what came to the receiver, which adds up every byte. bulk: trains of 44 datagrams of 1472 \
            bytes a call (UDP_SEGMENT, UDP_GRO); 64: 64 datagrams of 64 bytes a call (sendmmsg, recvmmsg), or one; the engine sends, \
            or (recv) receives; 4 MiB asked for as receive buffer; quinn: one stream of QUIC, the server has the kernel's socket; cpu is the machine's",
    stated: &[],
    metrics: &[
        Metric { name: "datagrams", unit: "M/s", larger: true },
        Metric { name: "rate", unit: "MB/s", larger: true },
        CPU_PER_GB,
    ],
    share: 0.6,
    cases,
    workers: &[
        ("udp/peer", kernel::peer),
        ("udp/kernel", kernel::engine),
        ("udp/copy", ours::engine),
        #[cfg(feature = "quinn")]
        ("udp/quinn-peer", quic::peer),
        #[cfg(feature = "quinn")]
        ("udp/quinn-kernel", quic::kernel),
        #[cfg(feature = "quinn")]
        ("udp/quinn-copy", quic::ours),
    ],
    plot: Plot::Bars,
};

/// What each socket is asked to have as its receive buffer. (Linux doubles it.)
const BUFFER: usize = 4 << 20;
/// What an engine may take for a round.
const LIFE: Duration = Duration::from_secs(60);

fn cases(scale: Scale) -> Vec<Case> {
    let all = [
        ("bulk", Mode::Train, Way::Send),
        ("64", Mode::Many, Way::Send),
        ("64/one", Mode::One, Way::Send),
        ("bulk/recv", Mode::Train, Way::Recv),
        ("64/recv", Mode::Many, Way::Recv),
        ("64/one-recv", Mode::One, Way::Recv),
    ];
    // Of each mode one: a smoke run starts two processes for each engine, twice.
    let all = if scale == Scale::Smoke { &all[..4] } else { &all[..] };
    let mut cases: Vec<Case> = all.iter().map(|&(name, mode, way)| case(name, mode, way, scale)).collect();
    #[cfg(feature = "quinn")]
    cases.push(quic::case(plan(Way::Send, 0, scale)));
    cases
}

/// A round is as long for all of its engines: its work is one.
fn plan(way: Way, piece: usize, scale: Scale) -> Plan {
    let (warm, seconds) = match scale {
        Scale::Full => (0.1, 0.35),
        Scale::Quick => (0.05, 0.1),
        Scale::Smoke => (0.02, 0.02),
    };
    Plan { way, streams: 1, piece, warm, seconds, buffer: BUFFER, ..Plan::default() }
}

fn case(name: &str, mode: Mode, way: Way, scale: Scale) -> Case {
    let plan = plan(way, mode.size(), scale);
    // What is asked for of 64 bytes is asked for of sending.
    let asked = way == Way::Send && mode != Mode::Train;
    Case {
        name: name.to_owned(),
        engines: vec!["kernel", "copy"],
        baseline: "kernel",
        reach: if asked { vec![Reach::ratio("copy", "datagrams", 0.5, &["kernel"])] } else { vec![] },
        work: Work::fixed(1),
        open: Box::new(move |context, engine| Ok(Box::new(Udp::open(context, engine, mode, plan.clone())?))),
    }
}

struct Udp {
    context: Context,
    net: Net,
    role: String,
    mode: Mode,
    plan: Plan,
}

impl Udp {
    fn open(context: &Context, engine: &str, mode: Mode, mut plan: Plan) -> Result<Udp> {
        let tap = Devices::Tap { mtu: 1500, queues: Queues::One };
        let devices = if engine == "kernel" { Devices::Veth } else { tap };
        let net = Net::new(devices)?;
        net.tell(&mut plan);
        Ok(Udp { context: context.clone(), net, role: format!("udp/{engine}"), mode, plan })
    }

    /// Figures of who sent, and of who received.
    fn pass(&self, plan: &Plan) -> Result<(Value, Value)> {
        let job = with(serde_json::to_value(plan)?, json!({"mode": self.mode}));
        let (launcher, cpus) = (&self.context.launcher, self.context.cpus);
        let mut peer = launcher.start("udp/peer", &job, Some(cpus[1]), LIFE)?;
        peer.ready()?;
        let mut engine = launcher.start(&self.role, &job, Some(cpus[0]), LIFE)?;
        let engine = engine.figures()?;
        let peer = peer.figures()?;
        Ok(if plan.way == Way::Send { (engine, peer) } else { (peer, engine) })
    }
}

impl Session for Udp {
    fn verify(&mut self) -> Result<()> {
        let plan = Plan { verify: Some(load::VERIFIED), ..self.plan.clone() };
        let (_, receiver) = self.pass(&plan)?;
        ensure!(whole(&receiver, "verified")? == load::VERIFIED, "{} bursts came", receiver["verified"]);
        Ok(())
    }

    fn run(&mut self, _: u64) -> Result<Sample> {
        let (sender, receiver) = until_something_comes(|| self.pass(&self.plan))?;
        let (bytes, seconds) = (number(&receiver, "bytes")?, number(&receiver, "seconds")?);
        let each = self.mode.size() as f64;
        let came = bytes / each / seconds;
        let values = vec![
            ("datagrams", came / 1e6),
            ("rate", bytes / seconds / 1e6),
            (CPU_PER_GB.name, number(&receiver, "cpu")? / (bytes / 1e9)),
        ];
        let sent = number(&sender, "datagrams")?;
        let settings = vec![
            ("MTU".to_owned(), self.net.mtu().to_string()),
            ("buffer".to_owned(), receiver["buffer"].to_string()),
            (
                "came".to_owned(),
                format!("{:.0} % of {:.2} M/s", (100.0 * came / sent).min(100.0), sent / 1e6),
            ),
        ];
        Ok(Sample { seconds, values, settings })
    }
}
