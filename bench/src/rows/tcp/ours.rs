//! Ours: onecopy's sockets, on a stack of the worker's own.

use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::proc;
use anyhow::{Context as _, Result};
use onecopy::advanced::chain::{Chain, Fragment};
use onecopy::advanced::link::{Capabilities, Link, Packet, Tap, TapConfig, Xdp, XdpConfig};
use onecopy::advanced::pool::provider::Heap;
use onecopy::advanced::pool::{Page, PagePool, PoolConfig};
use onecopy::tcp::Stream;
use onecopy::{Builder, Mac, Port, Stack, Wait};
use onecopy_sync::atomic::{AtomicU64, Ordering::Relaxed};
use onecopy_sys::netns::Namespace;
use serde_json::{Value, json};

use super::super::job::with;
use super::add_up;
use super::load::{self, End};
use super::plan::{ENGINE, PREFIX, Plan, Way};

/// The engine that copies in and out.
pub fn copy(job: &Value) -> Result<Value> {
    engine(job, false)
}

/// The one that sends pages by reference, and reads where the bytes lie.
pub fn zero_copy(job: &Value) -> Result<Value> {
    engine(job, true)
}

/// The one that copies, past the kernel's IP.
pub fn xdp(job: &Value) -> Result<Value> {
    let plan = Plan::from_job(job)?;
    let namespace = plan.engines.as_deref().context("the interface has no namespace")?;
    let link = Namespace::open(namespace)?.run(|| Xdp::open(XdpConfig::new(&plan.device)))??;
    let about = link.describe();
    let stack = configured(&plan).link(link).build()?;
    let counted = || {
        let link = stack.link_counters();
        let of = |name| link.iter().find(|(one, _)| *one == name).map_or(0, |(_, count)| *count);
        let (received, several) = (of("received"), of("received_several"));
        let (sent, calls) = (of("transmitted"), of("sends"));
        format!(
            "{about}; {received} packets received, {several} in several frames; {sent} sent by {calls} calls"
        )
    };
    run(&plan, &stack, false, |_| counted())
}

fn engine(job: &Value, zero_copy: bool) -> Result<Value> {
    let plan = Plan::from_job(job)?;
    let counts = Arc::new(Counts::default());
    let stack = stack(&plan, &counts)?;
    run(&plan, &stack, zero_copy, |cpu| counts.says(cpu))
}

/// Does what is to be done, and adds what `says` has to say behind it, which gets the CPU time that it took.
fn run(plan: &Plan, stack: &Stack, zero_copy: bool, says: impl Fn(f64) -> String) -> Result<Value> {
    let connect = |stream| -> Result<Ours> {
        let stream = Stream::connect(stack, plan.address(stream).into()).context("connecting")?;
        stream.set_nodelay(plan.nodelay())?;
        // As Linux doubles what it is asked for.
        stream.set(|settings| settings.send_buffer = Some(2 * plan.buffer as u32))?;
        let pages = if zero_copy && plan.verify.is_none() { pages(plan.piece)? } else { Vec::new() };
        Ok(Ours { stream, in_place: zero_copy, pages })
    };
    let ends = (0..plan.streams).map(connect).collect::<Result<Vec<_>>>()?;
    let before = proc::cpu_seconds();
    let figures = load::go(ends, plan, true)?;
    let cpu = proc::cpu_seconds() - before;
    let says = format!("{}, {}", says(cpu), again(stack));
    Ok(with(figures, json!({"buffers": format!("{0} out, {0} in", 2 * plan.buffer), "says": says})))
}

/// What was sent again, and with several shards how the streams are spread, and what came by another one's queue.
fn again(stack: &Stack) -> String {
    let each = |look: fn(&mut onecopy_inet::stack::Stack) -> u64| -> Vec<u64> {
        (0..stack.shards()).map(|shard| stack.with_shard(shard, look)).collect()
    };
    let again: u64 = each(|inet| inet.tcp_stats().retransmitted).iter().sum();
    let mut says = format!("{again} sent again");
    if stack.shards() > 1 {
        let link = stack.link_counters();
        let handed = link.iter().find(|(name, _)| *name == "handed_over").map_or(0, |(_, count)| *count);
        let streams = each(|inet| inet.tcp_stats().active_opens);
        says += &format!(", {streams:?} streams of the shards, {handed} packets handed over");
    }
    says
}

fn stack(plan: &Plan, counts: &Arc<Counts>) -> Result<Stack> {
    let config = TapConfig::new(&plan.device);
    let taps = plan.peers()?.run(|| match plan.shards {
        0 => Tap::open(config).map(|tap| vec![tap]),
        count => Tap::open_queues(config, count.into()),
    })??;
    let counted = taps.into_iter().map(|tap| Counted { tap, counts: Arc::clone(counts) });
    Ok(configured(plan).links(counted).build()?)
}

/// A stack that has all but its link.
fn configured(plan: &Plan) -> Builder {
    let buffer = 2 * plan.buffer as u32;
    Stack::builder().address(&format!("{ENGINE}/{PREFIX}")).mac(Mac([2, 0, 0, 0, 0, 2])).wait(wait(plan)).tcp(
        |tcp| {
            // Before it connects, since the window's scale goes by it.
            tcp.rmem = [tcp.rmem[0], buffer, buffer];
            tcp.moderate_rcvbuf = false;
        },
    )
}

/// As the case says; in bulk, as a program has it that says nothing.
pub fn wait(plan: &Plan) -> Wait {
    match (plan.way, plan.spin) {
        (Way::RoundTrips, true) => Wait::Spin,
        (Way::RoundTrips, false) => Wait::Block,
        _ => Wait::default(),
    }
}

/// Pages of a program's own, to be sent again and again.
pub fn pages(len: usize) -> Result<Vec<Page>> {
    let pool = PagePool::new(PoolConfig::new().order(4), Heap::new())?;
    let count = len.div_ceil(pool.page_len() as usize);
    Ok((0..count).map(|_| pool.alloc()).collect::<Result<_, _>>()?)
}

/// An end of a connection.
pub struct Ours {
    pub stream: Stream,
    /// It reads where the bytes lie.
    pub in_place: bool,
    /// What it sends, if that is not copied.
    pub pages: Vec<Page>,
}

impl End for Ours {
    fn send_all(&mut self, bytes: &[u8]) -> Result<()> {
        if self.pages.is_empty() {
            let mut sent = 0;
            while sent < bytes.len() {
                sent += self.stream.send(&bytes[sent..])?;
            }
            return Ok(());
        }
        let mut chain = Chain::new();
        for page in &self.pages {
            chain.append(Fragment::new(page.clone(), 0, page.len())?)?;
        }
        self.stream.send_chain(chain)?;
        Ok(())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<usize> {
        Ok(self.stream.recv(buffer)?)
    }

    fn read(&mut self, buffer: &mut [u8], sum: u64) -> Result<(usize, u64)> {
        if !self.in_place {
            let len = self.recv(buffer)?;
            return Ok((len, add_up(sum, &buffer[..len])));
        }
        let view = self.stream.recv_borrowed(buffer.len())?;
        Ok((view.len(), view.slices().fold(sum, add_up)))
    }

    fn finish(&mut self) -> Result<()> {
        Ok(self.stream.shutdown(Shutdown::Write)?)
    }
}

/// What passed the TAP.
#[derive(Default)]
struct Counts {
    packets: [AtomicU64; 2],
    bytes: [AtomicU64; 2],
    trains: [AtomicU64; 2],
    /// Receives that found nothing.
    idle: AtomicU64,
}

impl Counts {
    fn count(&self, way: usize, packet: &Packet) {
        // Relaxed: counters, read in the end.
        self.packets[way].fetch_add(1, Relaxed);
        self.bytes[way].fetch_add(packet.len() as u64, Relaxed);
        self.trains[way].fetch_add(packet.gso().is_some().into(), Relaxed);
    }

    /// In words, with the CPU time of this process that it took.
    fn says(&self, cpu: f64) -> String {
        let all = |counts: &[AtomicU64; 2]| [counts[0].load(Relaxed), counts[1].load(Relaxed)];
        let ([sent, received], [out, incoming]) = (all(&self.packets), all(&self.bytes));
        let calls = sent + received + self.idle.load(Relaxed);
        format!(
            "{sent} packets out of {} bytes, {received} in of {}, {} of them super-segments, {:.1} calls/MB, {} in vain, its own CPU {:.3} s/GB",
            out / sent.max(1),
            incoming / received.max(1),
            self.trains.iter().map(|count| count.load(Relaxed)).sum::<u64>(),
            calls as f64 / ((out + incoming).max(1) as f64 / 1e6),
            self.idle.load(Relaxed),
            cpu * 1e9 / (out + incoming).max(1) as f64
        )
    }
}

/// The TAP, and what passes it.
struct Counted {
    tap: Tap,
    counts: Arc<Counts>,
}

impl Link for Counted {
    fn capabilities(&self) -> Capabilities {
        self.tap.capabilities()
    }

    fn room(&self, now: u64) -> usize {
        self.tap.room(now)
    }

    fn transmit(&mut self, now: u64, packet: Packet) {
        self.counts.count(0, &packet);
        self.tap.transmit(now, packet);
    }

    fn receive(&mut self, now: u64) -> Option<Packet> {
        let packet = self.tap.receive(now);
        match &packet {
            Some(packet) => self.counts.count(1, packet),
            None => drop(self.counts.idle.fetch_add(1, Relaxed)),
        }
        packet
    }

    fn deadline(&self) -> Option<u64> {
        self.tap.deadline()
    }
}

impl AsFd for Counted {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }
}

impl Port for Counted {}
