//! `tcp`: a stack in user space, over a TAP, with the kernel's sockets in another network namespace.
//!
//! | file | what |
//! |---|---|
//! | `plan` | what a worker is to do |
//! | `net` | the namespaces, and the devices in them |
//! | `load` | sending, receiving and round trips, for all that blocks as the kernel's sockets do |
//! | `meter` | how much was received in which time, and the machine's CPU time for it |
//! | `kernel` | the peer of every engine, and the engine that is the kernel |
//! | `smoltcp`, `gvisor` | rivals |
//! | `relay` | what is between the kernel's sockets where both sides have a TAP |
//! | `ours` | crates/inet, over a TAP and by AF_XDP |
//! | `uring` | our sockets, whose bytes the kernel carries |
//! | `idle` | two stacks of ours in this process, with many connections that nothing happens on |

mod gvisor;
mod idle;
mod kernel;
pub(super) mod load;
pub(super) mod meter;
pub(super) mod net;
mod ours;
pub(super) mod plan;
mod relay;
#[cfg(feature = "smoltcp")]
mod smoltcp;
mod uring;

use anyhow::{Result, bail, ensure};
use serde_json::Value;

use self::net::{Devices, Net, Queues};
use self::plan::{Plan, Way};
use super::bytes;
use super::job::{number, whole};
use crate::proc::Launcher;
use crate::row::{CPU_PER_GB, Case, Context, Metric, Plot, Reach, Row, Sample, Scale, Session, Work};
use std::time::Duration;

/// The row.
pub const ROW: Row = Row {
    name: "tcp",
    about: "an engine and the kernel's blocking sockets in a network namespace of their own, with a TAP between them (kernel: a veth pair, \
            and both sides are the kernel's; kernel-taps: a TAP at either side, and a process that carries packets between them): one stream or 16, which the engine sends (send) or receives (recv); 1 MiB asked for as each \
            socket's buffers, cubic; 2shards: the stack is of two, which have the engine's CPU together; the reader copies out, or reads in place, and adds up every byte; cpu is the machine's, since a \
            write to a TAP runs the peer's receive; rr: 64 bytes there and back, both sides blocking or both spinning; uring: our sockets over \
            the kernel's TCP (Transport::Kernel) and a veth; xdp: our stack by AF_XDP on one end of a veth, of which nothing is asked; packet: ns of a packet of 64 bytes between two stacks of ours in one \
            process, with 10,000 idle connections and none",
    stated: &[],
    metrics: &[
        Metric { name: "rate", unit: "MB/s", larger: true },
        CPU_PER_GB,
        P50,
        P99,
        CQES,
        COPIED,
        UNKNOWN,
        PACKET,
    ],
    share: 1.0,
    cases,
    workers: &[
        ("tcp/peer", kernel::peer),
        ("tcp/kernel", kernel::engine),
        ("tcp/relay", relay::relay),
        ("tcp/copy", ours::copy),
        ("tcp/zc", ours::zero_copy),
        ("tcp/xdp", ours::xdp),
        ("tcp/uring", uring::copy),
        ("tcp/uring-zc", uring::zero_copy),
        #[cfg(feature = "smoltcp")]
        ("tcp/smoltcp", smoltcp::engine),
    ],
    plot: Plot::Bars,
};

const P50: Metric = Metric { name: "p50", unit: "us", larger: false };
const P99: Metric = Metric { name: "p99", unit: "us", larger: false };
/// Completions that the ring has told of.
const CQES: Metric = Metric { name: "cqes", unit: "per MB", larger: false };
/// Sends without a copy that the kernel has copied after all (IORING_NOTIF_USAGE_ZC_COPIED), as far as it can be believed: decision 0054.
const COPIED: Metric = Metric { name: "COPIED", unit: "per MB", larger: false };
/// Those of which it does not say whether it has: their notifications came stacked.
const UNKNOWN: Metric = Metric { name: "unknown", unit: "per MB", larger: false };
const PACKET: Metric = Metric { name: "packet", unit: "ns", larger: false };

/// What each socket is asked to have as its send buffer, and as its receive buffer. (Linux doubles it, to have room for what lies around the bytes.)
const BUFFER: usize = 1 << 20;
/// What a program gives and takes at a time.
const PIECE: usize = 128 << 10;
/// Bytes of a message there and back.
const MESSAGE: usize = 64;
/// Bytes of all streams that are compared: of one, more than the buffers of both sides hold; no multiple of anything.
const VERIFIED: u64 = 5_000_011;
/// What an engine may take for a round.
const LIFE: Duration = Duration::from_secs(60);

/// All of these are there in the cases of bulk; `-N`: the interface's MTU, which else is 1500; `-tso`: 1500, and super-segments both ways.
const BULK: &[&str] = &["kernel", RELAYED, "smoltcp", "smoltcp-65521", "smoltcp-tso", "gvisor", "copy", "zc"];
/// Of engines: our stack is of two shards.
const SHARDS: &str = "2shards";
/// The kernel's sockets at both sides, with a TAP at each, and a process that carries packets from the one to the other: what the way through a TAP costs
/// the kernel itself. Nothing is asked for against it.
const RELAYED: &str = "kernel-taps";
/// The ways of smoltcp that may be its best.
const SMOLTCP_BEST: &[&str] = &["smoltcp-65521", "smoltcp-tso"];

fn cases(scale: Scale) -> Vec<Case> {
    let all: &[(Way, usize)] = &[(Way::Send, 1), (Way::Recv, 1), (Way::Send, 16), (Way::Recv, 16)];
    // Of each kind one: a smoke run starts two processes for each engine, twice.
    let bulks = if scale == Scale::Smoke { &all[1..3] } else { all };
    let mut cases: Vec<Case> = bulks.iter().map(|&(way, streams)| bulk(way, streams, scale)).collect();
    cases.extend(["block", "spin"].map(|wait| round_trips(wait, scale)));
    cases.extend([Way::Send, Way::Recv].map(|way| by_uring(way, scale)));
    cases.push(idle::case(scale));
    cases
}

fn bulk(way: Way, streams: usize, scale: Scale) -> Case {
    let plan = Plan { way, streams, piece: PIECE, ..plan(scale) };
    let name = if way == Way::Send { "send" } else { "recv" };
    let reach = |engine, times, against| Reach::ratio(engine, "rate", times, against);
    let reach = vec![
        reach("copy", 3.0, &["smoltcp"]),
        reach("copy", 1.5, SMOLTCP_BEST),
        reach("copy", 1.5, &["gvisor"]),
        reach("copy", 0.45, &["kernel"]),
        reach("zc", 0.6, &["kernel"]),
    ];
    let mut engines = BULK.to_vec();
    if streams > 1 {
        engines.insert(engines.len() - 1, "copy-2shards");
    } else {
        engines.push("xdp");
    }
    case(format!("{name}/{streams}"), engines, reach, plan)
}

/// It is the same TCP as the kernel's, so nothing is asked for: what the way there costs is shown.
fn by_uring(way: Way, scale: Scale) -> Case {
    let plan = Plan { way, streams: 1, piece: PIECE, ..plan(scale) };
    let name = if way == Way::Send { "uring/send" } else { "uring/recv" };
    case(name.to_owned(), vec!["kernel", "uring", "uring-zc"], Vec::new(), plan)
}

/// Where both sides spin, `kernel-block` shows what sleeping costs.
fn round_trips(wait: &str, scale: Scale) -> Case {
    let spin = wait == "spin";
    let plan = Plan { way: Way::RoundTrips, streams: 1, piece: MESSAGE, spin, ..plan(scale) };
    // (gVisor's device sleeps, however its program waits.)
    let (engines, times) = if spin {
        (vec!["kernel", "kernel-block", "smoltcp", "copy", "xdp"], 0.8)
    } else {
        (vec!["kernel", "smoltcp", "gvisor", "copy", "xdp"], 1.2)
    };
    case(
        format!("rr/{wait}"),
        engines,
        vec![Reach::at_most_times("copy", P50.name, times, "kernel", 0.0)],
        plan,
    )
}

fn plan(scale: Scale) -> Plan {
    // Long enough for windows to have opened before, and for a clock of 100 ticks a second on two CPUs.
    let (warm, seconds) = match scale {
        Scale::Full => (0.1, 0.35),
        Scale::Quick => (0.05, 0.1),
        Scale::Smoke => (0.02, 0.02),
    };
    Plan { warm, seconds, buffer: BUFFER, ..Plan::default() }
}

/// A round is as long for all of its engines: who is faster moves more in it. Its work is one.
fn case(name: String, engines: Vec<&'static str>, reach: Vec<Reach>, plan: Plan) -> Case {
    Case {
        name,
        engines,
        baseline: "kernel",
        reach,
        work: Work::fixed(1),
        open: Box::new(move |context, engine| Ok(Box::new(Tcp::open(context, engine, plan.clone())?))),
    }
}

struct Tcp {
    context: Context,
    /// What starts the engine: this program, or a rival's.
    launcher: Launcher,
    net: Net,
    role: String,
    plan: Plan,
}

impl Tcp {
    fn open(context: &Context, engine: &str, mut plan: Plan) -> Result<Tcp> {
        let (stack, variant) = engine.split_once('-').unwrap_or((engine, ""));
        let devices = match stack {
            "kernel" if engine == RELAYED => Devices::Taps,
            "kernel" | "uring" => Devices::Veth,
            "xdp" => Devices::BareVeth,
            _ => {
                let queues = if variant == SHARDS { Queues::Many } else { Queues::One };
                Devices::Tap { mtu: variant.parse().unwrap_or(1500), queues }
            }
        };
        if variant == "block" {
            plan.spin = false;
        }
        let net = Net::new(devices)?;
        net.tell(&mut plan);
        plan.segmentation = variant == "tso";
        plan.shards = if variant == SHARDS { 2 } else { 0 };
        let launcher = match stack {
            "gvisor" => Launcher { program: gvisor::find(context.scale)?, args: Vec::new() },
            _ => context.launcher.clone(),
        };
        // (Only of some rivals a variant is a matter of the plan.)
        let role = if stack == "uring" { engine } else { stack };
        Ok(Tcp { context: context.clone(), launcher, net, role: format!("tcp/{role}"), plan })
    }

    /// Figures of the engine, and of who measured: the reader, or who began the round trips.
    fn pass(&self, plan: &Plan) -> Result<(Value, Value)> {
        let job = serde_json::to_value(plan)?;
        let (launcher, cpus) = (&self.context.launcher, self.context.cpus);
        let mut peer = launcher.start("tcp/peer", &job, Some(cpus[1]), LIFE)?;
        peer.ready()?;
        let mut relay = match self.net.is_relayed() {
            true => Some(launcher.start("tcp/relay", &job, None, LIFE)?),
            false => None,
        };
        if let Some(relay) = &mut relay {
            relay.ready()?;
        }
        let mut engine = self.launcher.start(&self.role, &job, Some(cpus[0]), LIFE)?;
        let engine = engine.figures()?;
        let peer = peer.figures()?;
        let measured = if plan.way == Way::Send { peer.clone() } else { engine.clone() };
        Ok((with_peer(engine, &peer), measured))
    }
}

/// Runs rounds until something came to who measures, the second of the two. On a busy machine the clock of a short one may run while
/// nobody else does.
pub(super) fn until_something_comes(
    mut round: impl FnMut() -> Result<(Value, Value)>,
) -> Result<(Value, Value)> {
    for _ in 0..ROUNDS {
        let (engine, measured) = round()?;
        if number(&measured, "bytes")? > 0.0 {
            return Ok((engine, measured));
        }
    }
    bail!("nothing came in {ROUNDS} rounds; run it on a machine that has the time")
}

/// An engine's settings, and the peer's buffers beside them.
fn with_peer(mut engine: Value, peer: &Value) -> Value {
    engine["peer's buffers"] = peer["buffers"].clone();
    engine
}

impl Session for Tcp {
    fn verify(&mut self) -> Result<()> {
        let each = if self.context.scale == Scale::Smoke { VERIFIED / 8 } else { VERIFIED }
            / self.plan.streams as u64;
        let plan = Plan { verify: Some(each), ..self.plan.clone() };
        let (_, measured) = self.pass(&plan)?;
        if plan.way != Way::RoundTrips {
            let all = each * plan.streams as u64;
            ensure!(
                whole(&measured, "verified")? == all,
                "{} bytes came instead of {all}",
                measured["verified"]
            );
        }
        Ok(())
    }

    fn run(&mut self, _: u64) -> Result<Sample> {
        let (engine, measured) = match self.plan.way {
            Way::RoundTrips => self.pass(&self.plan)?,
            Way::Send | Way::Recv => until_something_comes(|| self.pass(&self.plan))?,
        };
        let seconds = number(&measured, "seconds")?;
        let mut values = match self.plan.way {
            Way::RoundTrips => {
                vec![(P50.name, number(&measured, "p50")? * 1e6), (P99.name, number(&measured, "p99")? * 1e6)]
            }
            Way::Send | Way::Recv => {
                let bytes = number(&measured, "bytes")?;
                vec![
                    ("rate", bytes / seconds / 1e6),
                    (CPU_PER_GB.name, number(&measured, "cpu")? / (bytes / 1e9)),
                ]
            }
        };
        for metric in [CQES, COPIED, UNKNOWN] {
            values.extend(engine[metric.name].as_f64().map(|value| (metric.name, value)));
        }
        let mut settings = vec![("MTU".to_owned(), self.net.mtu().to_string())];
        for name in ["buffers", "peer's buffers", "says"] {
            if let Some(text) = engine[name].as_str() {
                settings.push((name.to_owned(), text.to_owned()));
            }
        }
        Ok(Sample { seconds, values, settings })
    }
}

/// Rounds in which nothing comes, before that is an error.
const ROUNDS: u32 = 10;

/// What differs between streams.
fn seed(stream: usize) -> u64 {
    0x5eed + stream as u64
}

/// Adds up bytes, each of them: eight at a time.
pub(super) fn add_up(sum: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(sum, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| sum.wrapping_add(u64::from(*byte)))
}

/// Compares what came of a stream from byte `at` on.
fn check(stream: usize, at: u64, bytes: &[u8]) -> Result<()> {
    bytes::check(bytes, seed(stream), at)
}
