//! `devmem`: TCP's payload into a device's memory and out of it, beside host pages on the same stack, and beside a program that copies.

mod ours;
mod tokens;

use anyhow::{Context as _, Result, ensure};
use onecopy::advanced::pool::{DeviceId, DeviceMemory};
use onecopy::{Stack, Transport};
use serde_json::Value;

use super::job::{number, whole};
use super::tcp::net::{Devices, Net, Queues};
use super::tcp::plan::{Plan, Way};
use super::tcp::until_something_comes;
use crate::row::{CPU_PER_GB, Case, Context, Metric, Plot, Reach, Row, Sample, Scale, Session, Work};
use std::time::Duration;

/// The row.
pub const ROW: Row = Row {
    name: "devmem",
    about: "one stream of TCP, some 1 GiB a round, into a device's memory (devmem: fragments, whose tokens are given back at once), into host \
            pages of the same stack by reference (host), and received into a buffer that is then copied to the device (recv-copy); the device is \
            opaque, a stand-in: a memfd that no process maps. tap: the kernel sends over a TAP; pair: another stack of the process, over a cable \
            in it; kernel: the kernel's TCP by io_uring, over a veth; tap/send and kernel/send: out of the device's memory to the kernel, and pair/send to \
            the other stack, which takes it by reference; send-copy first copies it to a buffer. Nobody looks at the bytes; cpu is the machine's, side that of the process that has the device, all its threads; copies: the \
            socket's count of bytes that this program copied; tokens: what giving a token back costs, by a call for each (single), for 64 (batched), \
            or by a push to a ring (ring), and taken: what whoever takes them out of it pays for each",
    stated: &[],
    metrics: &[Metric { name: "rate", unit: "MB/s", larger: true }, CPU_PER_GB, SIDE, COPIES, TOKEN, TAKEN],
    share: 1.0,
    cases,
    workers: &[("devmem/tap", ours::over_tap), ("devmem/pair", ours::over_pair)],
    plot: Plot::Bars,
};

const SIDE: Metric = Metric { name: "side", unit: "CPU s/GB", larger: false };
const TOKEN: Metric = Metric { name: "token", unit: "ns", larger: false };
const TAKEN: Metric = Metric { name: "taken", unit: "ns", larger: false };
const COPIES: Metric = Metric { name: "copies", unit: "copies/byte", larger: false };

/// What each socket is asked to have as its buffers; Linux doubles it, and so do we.
const BUFFER: usize = 1 << 20;
/// What a program gives and takes at a time.
const PIECE: usize = 256 << 10;
/// Bytes that are compared; no multiple of anything.
const VERIFIED: u64 = 5_000_011;
/// What an engine may take for a round.
const LIFE: Duration = Duration::from_secs(60);

/// Over what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Pair,
    Tap,
    Kernel,
}

fn cases(scale: Scale) -> Vec<Case> {
    vec![
        case("pair", Over::Pair, Way::Recv, scale),
        case("pair/send", Over::Pair, Way::Send, scale),
        case("tap", Over::Tap, Way::Recv, scale),
        case("tap/send", Over::Tap, Way::Send, scale),
        case("kernel", Over::Kernel, Way::Recv, scale),
        case("kernel/send", Over::Kernel, Way::Send, scale),
        tokens::case(scale),
    ]
}

fn case(name: &str, over: Over, way: Way, scale: Scale) -> Case {
    // Some 1 GiB; on two CPUs, and for a clock of 100 ticks a second, no less.
    let (warm, seconds) = match scale {
        Scale::Full => (0.1, 0.6),
        Scale::Quick => (0.05, 0.1),
        Scale::Smoke => (0.02, 0.02),
    };
    let plan = Plan { way, warm, seconds, streams: 1, buffer: BUFFER, piece: PIECE, ..Plan::default() };
    let copying = if way == Way::Send { "send-copy" } else { "recv-copy" };
    let mut reach =
        vec![Reach::ratio("devmem", "rate", 0.95, &["host"]), Reach::at_most("devmem", COPIES.name, 0.0)];
    if over != Over::Pair && way == Way::Recv {
        reach.push(Reach::at_most_times("devmem", SIDE.name, 0.75, copying, 0.0));
    }
    Case {
        name: name.to_owned(),
        engines: vec!["host", copying, "devmem"],
        baseline: "host",
        reach,
        work: Work::fixed(1),
        open: Box::new(move |context, engine| {
            Ok(Box::new(Devmem::open(context, over, engine, plan.clone())?))
        }),
    }
}

struct Devmem {
    context: Context,
    over: Over,
    net: Option<Net>,
    job: ours::Job,
}

impl Devmem {
    fn open(context: &Context, over: Over, engine: &str, mut plan: Plan) -> Result<Devmem> {
        let net = match over {
            Over::Pair => None,
            Over::Tap => Some(Net::new(Devices::Tap { mtu: 1500, queues: Queues::One })?),
            Over::Kernel => {
                if engine == "devmem" {
                    // Where it is refused, what that says is the reason that is shown.
                    let stack = Stack::builder().transport(Transport::Kernel).build()?;
                    let memory = DeviceMemory::opaque(64, DeviceId(0))?;
                    if plan.way == Way::Send {
                        drop(stack.bind_tx(&memory)?);
                    } else {
                        stack.set_queues(2)?;
                        drop(stack.bind_rx(&memory, &[1])?);
                    }
                }
                Some(Net::new(Devices::Veth)?)
            }
        };
        if let Some(net) = &net {
            net.tell(&mut plan);
        }
        let job = ours::Job { plan, engine: engine.to_owned(), kernel: over == Over::Kernel };
        Ok(Devmem { context: context.clone(), over, net, job })
    }

    /// Figures of the engine, and of who measured.
    fn pass(&self, job: &ours::Job) -> Result<(Value, Value)> {
        let (launcher, cpus) = (&self.context.launcher, self.context.cpus);
        let engine_job = serde_json::to_value(job)?;
        if self.over == Over::Pair {
            let figures = launcher.start("devmem/pair", &engine_job, None, LIFE)?.figures()?;
            return Ok((figures.clone(), figures));
        }
        let mut peer = launcher.start("tcp/peer", &serde_json::to_value(&job.plan)?, Some(cpus[1]), LIFE)?;
        peer.ready()?;
        let mut engine = launcher.start("devmem/tap", &engine_job, Some(cpus[0]), LIFE)?;
        let engine = engine.figures()?;
        let peer = peer.figures()?;
        let measured = if job.plan.way == Way::Send { peer } else { engine.clone() };
        Ok((engine, measured))
    }
}

impl Session for Devmem {
    fn verify(&mut self) -> Result<()> {
        let each = if self.context.scale == Scale::Smoke { VERIFIED / 8 } else { VERIFIED };
        let plan = Plan { verify: Some(each), ..self.job.plan.clone() };
        let (_, measured) = self.pass(&ours::Job { plan, ..self.job.clone() })?;
        let came = whole(&measured, "verified").context("nothing was compared")?;
        ensure!(came == each, "{came} bytes came instead of {each}");
        Ok(())
    }

    fn run(&mut self, _: u64) -> Result<Sample> {
        let (engine, measured) = until_something_comes(|| self.pass(&self.job))?;
        let (seconds, bytes) = (number(&measured, "seconds")?, number(&measured, "bytes")?);
        let per_gb = |cpu: f64| cpu / (bytes / 1e9);
        let mut values = vec![
            ("rate", bytes / seconds / 1e6),
            (CPU_PER_GB.name, per_gb(number(&measured, "cpu")?)),
            (COPIES.name, number(&engine, "copies")?),
        ];
        // Where it sends, the peer has the clock, and this side's CPU was taken over another time.
        if self.job.plan.way == Way::Recv {
            values.push((SIDE.name, per_gb(number(&measured, "own")?)));
        }
        let mut settings = Vec::new();
        if let Some(net) = &self.net {
            settings.push(("MTU".to_owned(), net.mtu().to_string()));
        }
        if let Some(text) = engine["says"].as_str() {
            settings.push(("says".to_owned(), text.to_owned()));
        }
        Ok(Sample { seconds, values, settings })
    }
}
