//! The ends: with the device's memory, with host pages, and with a copy between the socket and the device.

use std::io::IoSlice;
use std::net::{Shutdown, SocketAddr};
use std::thread;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use onecopy::advanced::chain::{Chain, Fragment};
use onecopy::advanced::link::{Tap, TapConfig};
use onecopy::advanced::pool::provider::Heap;
use onecopy::advanced::pool::{DeviceId, DeviceMemory, Page, PagePool, PoolConfig};
use onecopy::devmem::{Binding, TxBinding, TxRange};
use onecopy::tcp::{Listener, Stream};
use onecopy::{Mac, Stack, Transport};
use onecopy_sys::netns::Namespace;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::job::with;
use super::super::tcp::load::{self, End};
use super::super::tcp::plan::{ENGINE, PREFIX, Plan, Way};

/// Pages of the device's memory: 16 MiB, of which a quarter at most is under way.
const PAGES: u32 = 4096;
/// Where a program that copies itself puts what it received: round and round in so many bytes, no more than what is under way, so that they
/// are as warm as the pages that come back.
const ROUND: u64 = 2 << 20;
/// The port that is steered to the bound queue.
const PORT: u16 = 5201;

/// Parameters of an engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub plan: Plan,
    /// `devmem`, `host`, `recv-copy` or `send-copy`.
    pub engine: String,
    /// The kernel's TCP by io_uring, instead of a stack of ours.
    pub kernel: bool,
}

/// An engine with the kernel at the other side.
pub fn over_tap(job: &Value) -> Result<Value> {
    let job = Job::deserialize(job)?;
    let plan = &job.plan;
    let (stack, local) = match job.kernel {
        true => {
            let namespace = plan.engines.as_deref().context("the kernel has no namespace")?;
            Namespace::open(namespace)?.enter().context("entering the engine's namespace")?;
            // One that the round before has not left in TIME-WAIT.
            let port = PORT + (std::process::id() % 20_000) as u16;
            (Stack::builder().transport(Transport::Kernel).build()?, SocketAddr::new(ENGINE.into(), port))
        }
        false => {
            let tap = plan.peers()?.run(|| Tap::open(TapConfig::new(&plan.device)))??;
            (stack(plan, tap, ENGINE, Mac([2, 0, 0, 0, 0, 2]))?, SocketAddr::new(ENGINE.into(), PORT))
        }
    };
    let engine = Engine::new(&job, &stack, local)?;
    let stream = Stream::connect_from(&stack, local, plan.address(0).into());
    let (figures, copies) = engine.go(stream.context("connecting")?, plan)?;
    Ok(with(figures, json!({"copies": copies, "says": engine.says(&stack)})))
}

/// Both ends in this process. The one with the device receives, or sends to one that takes the bytes by reference, whoever sends them.
pub fn over_pair(job: &Value) -> Result<Value> {
    let job = Job::deserialize(job)?;
    let plan = &job.plan;
    let (a, b) = Tap::cable(1500)?;
    let near = stack(plan, a, [10, 77, 0, 1].into(), Mac([2, 0, 0, 0, 0, 1]))?;
    let far = stack(plan, b, ENGINE, Mac([2, 0, 0, 0, 0, 2]))?;
    let at = SocketAddr::new(ENGINE.into(), PORT);
    let sends = plan.way == Way::Send;
    let of_the_device = if sends { &near } else { &far };
    let engine = Engine::new(&job, of_the_device, at)?;
    let listener = Listener::bind(&far, at)?;
    let sender = Stream::connect(&near, at)?;
    let (receiver, _) = listener.accept()?;
    let (own, other) = if sends { (sender, receiver) } else { (receiver, sender) };
    let (engine_figures, copies, peer_figures) = thread::scope(|scope| -> Result<_> {
        let peer = scope.spawn(|| load::go(vec![Host { pages: pages(plan)?, stream: other }], plan, false));
        let (figures, copies) = engine.go(own, plan)?;
        let peer = peer.join().map_err(|_| anyhow!("the peer's thread panicked"))??;
        Ok((figures, copies, peer))
    })?;
    // Who receives has the clock.
    let figures = if sends { peer_figures } else { engine_figures };
    Ok(with(figures, json!({"copies": copies, "says": engine.says(of_the_device)})))
}

fn stack(plan: &Plan, tap: Tap, address: std::net::Ipv4Addr, mac: Mac) -> Result<Stack> {
    let buffer = 2 * plan.buffer as u32;
    let stack = Stack::builder().link(tap).address(&format!("{address}/{PREFIX}")).mac(mac).tcp(|tcp| {
        // Before it connects, since the window's scale goes by it.
        tcp.rmem = [tcp.rmem[0], buffer, buffer];
        tcp.moderate_rcvbuf = false;
    });
    Ok(stack.build()?)
}

/// What an engine has before there is a connection.
struct Engine {
    how: How,
    memory: DeviceMemory,
    bound: Option<Binding>,
    tx: Option<TxBinding>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Device,
    Host,
    Copy,
}

impl Engine {
    fn new(job: &Job, stack: &Stack, at: SocketAddr) -> Result<Engine> {
        let how = match job.engine.as_str() {
            "devmem" => How::Device,
            "host" => How::Host,
            "recv-copy" | "send-copy" => How::Copy,
            other => bail!("there is no engine {other}"),
        };
        let memory = DeviceMemory::opaque(PAGES, DeviceId(0))?;
        touch(&memory)?;
        let (mut bound, mut tx) = (None, None);
        match (how, job.plan.way) {
            (How::Device, Way::Recv) => {
                stack.set_queues(2)?;
                stack.steer(at, 1)?;
                bound = Some(stack.bind_rx(&memory, &[1])?);
            }
            (How::Device, _) => tx = Some(stack.bind_tx(&memory)?),
            _ => {}
        }
        Ok(Engine { how, memory, bound, tx })
    }

    /// What was done with payload, and by which way.
    fn says(&self, stack: &Stack) -> String {
        if let Some(tx) = &self.tx {
            let counters = stack.link_counters();
            let of =
                |name| counters.iter().find(|(counter, _)| *counter == name).map_or(0, |(_, value)| *value);
            let packets = match of("transmitted") {
                0 => "packets are the kernel's".to_owned(),
                count => format!("{count} packets"),
            };
            return format!(
                "sent {}: {} bytes gathered there, {} staged, {packets}",
                tx.path(),
                of("gathered_bytes"),
                of("staged_bytes"),
            );
        }
        let Some(bound) = &self.bound else { return "no memory is bound".to_owned() };
        let stats = stack.queue_stats(1).unwrap_or_default();
        format!(
            "placed {}: {} bytes in {} pieces of {}, {:.1} % of them landed there, {:.3} s/GB for the others, {} dropped for want of a page",
            bound.path(),
            stats.placed_bytes,
            stats.placed,
            stats.placed_bytes / stats.placed.max(1),
            100.0 * stats.landed_bytes as f64 / stats.placed_bytes.max(1) as f64,
            stats.placing_ns as f64 / (stats.placed_bytes - stats.landed_bytes).max(1) as f64,
            stats.starved
        )
    }

    /// Runs it; gives the figures, and how often the socket says that this program copied each byte.
    fn go(&self, stream: Stream, plan: &Plan) -> Result<(Value, f64)> {
        stream.set(|settings| settings.send_buffer = Some(2 * plan.buffer as u32))?;
        let counted = stream.try_clone()?;
        let figures = match self.how {
            How::Device => {
                let (memory, tx) = (&self.memory, self.tx.as_ref());
                load::go(vec![Device { stream, memory, tx }], plan, true)?
            }
            How::Host => load::go(vec![Host { pages: pages(plan)?, stream }], plan, true)?,
            How::Copy => load::go(
                vec![Copying { stream, memory: &self.memory, at: 0, buffer: Vec::new() }],
                plan,
                true,
            )?,
        };
        let stats = counted.stats();
        Ok((figures, stats.user_copied() as f64 / (stats.sent + stats.received).max(1) as f64))
    }
}

/// Writes all of it once: a device's memory is there before anybody receives, a memfd's pages only once they were written to.
fn touch(memory: &DeviceMemory) -> Result<()> {
    let zeroes = vec![0; 1 << 20];
    for at in (0..memory.len()).step_by(zeroes.len()) {
        let len = (memory.len() - at).min(zeroes.len() as u64) as usize;
        memory.write_at(at, &[IoSlice::new(&zeroes[..len])])?;
    }
    Ok(())
}

/// Whether the peer compares them. When it is timed, all bytes are the same, and what is there is sent instead.
fn is_compared(bytes: &[u8]) -> bool {
    [bytes.first(), bytes.last()] != [Some(&0x5a); 2]
}

/// Into the device's memory, and out of it.
struct Device<'a> {
    stream: Stream,
    memory: &'a DeviceMemory,
    tx: Option<&'a TxBinding>,
}

impl End for Device<'_> {
    fn send_all(&mut self, bytes: &[u8]) -> Result<()> {
        let tx = self.tx.context("no memory is bound to be sent from")?;
        let len = bytes.len() as u64;
        // (To be compared by the peer; when it is timed, what is there is sent.)
        if is_compared(bytes) {
            // Nothing that is under way is written to.
            self.memory.write_at(0, &[IoSlice::new(bytes)])?;
            self.stream.send_device(tx, &[TxRange { offset: 0, len }])?.wait();
            return Ok(());
        }
        // The same bytes again and again, and by the same call, as host pages are sent: what differs is where they lie.
        self.stream.send_chain(tx.chain(&[TxRange { offset: 0, len }])?)?;
        Ok(())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.tx.is_some() {
            return Ok(self.stream.recv(buffer)?);
        }
        let frags = self.stream.recv_frags(buffer.len())?;
        ensure!(frags.linear().is_none_or(|view| view.is_empty()), "bytes came into the host's memory");
        let mut at = 0;
        for frag in frags.device() {
            let len = frag.len as usize;
            self.memory.read_at(frag.offset, &mut buffer[at..at + len])?;
            at += len;
        }
        Ok(at)
    }

    fn read(&mut self, buffer: &mut [u8], sum: u64) -> Result<(usize, u64)> {
        let frags = self.stream.recv_frags(buffer.len())?;
        // Dropped, its tokens are given back.
        Ok((frags.len(), sum))
    }

    fn finish(&mut self) -> Result<()> {
        Ok(self.stream.shutdown(Shutdown::Write)?)
    }
}

/// Pages to be sent again and again.
fn pages(plan: &Plan) -> Result<Vec<Page>> {
    let pool = PagePool::new(PoolConfig::new().order(4), Heap::new())?;
    let count = plan.piece.div_ceil(pool.page_len() as usize);
    Ok((0..count).map(|_| pool.alloc()).collect::<Result<_, _>>()?)
}

/// Host pages by reference, both ways.
struct Host {
    stream: Stream,
    pages: Vec<Page>,
}

impl End for Host {
    fn send_all(&mut self, bytes: &[u8]) -> Result<()> {
        if is_compared(bytes) {
            let mut sent = 0;
            while sent < bytes.len() {
                sent += self.stream.send(&bytes[sent..])?;
            }
            return Ok(());
        }
        let (mut chain, mut left) = (Chain::new(), bytes.len());
        for page in &self.pages {
            let len = left.min(page.len());
            chain.append(Fragment::new(page.clone(), 0, len)?)?;
            left -= len;
        }
        self.stream.send_chain(chain)?;
        Ok(())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<usize> {
        Ok(self.stream.recv(buffer)?)
    }

    fn read(&mut self, buffer: &mut [u8], sum: u64) -> Result<(usize, u64)> {
        let view = self.stream.recv_borrowed(buffer.len())?;
        Ok((view.len(), sum))
    }

    fn finish(&mut self) -> Result<()> {
        Ok(self.stream.shutdown(Shutdown::Write)?)
    }
}

/// A buffer between the socket and the device.
struct Copying<'a> {
    stream: Stream,
    memory: &'a DeviceMemory,
    at: u64,
    /// What it sends, out of the device.
    buffer: Vec<u8>,
}

impl Copying<'_> {
    /// Where the next `len` bytes lie on the device.
    fn place(&mut self, len: usize) -> u64 {
        let at = if self.at + len as u64 > ROUND { 0 } else { self.at };
        self.at = at + len as u64;
        at
    }
}

impl End for Copying<'_> {
    fn send_all(&mut self, bytes: &[u8]) -> Result<()> {
        let place = self.place(bytes.len());
        if is_compared(bytes) {
            self.memory.write_at(place, &[IoSlice::new(bytes)])?;
        }
        self.buffer.resize(bytes.len(), 0);
        self.memory.read_at(place, &mut self.buffer)?;
        let mut sent = 0;
        while sent < self.buffer.len() {
            sent += self.stream.send(&self.buffer[sent..])?;
        }
        Ok(())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let len = self.stream.recv(buffer)?;
        let place = self.place(len);
        self.memory.write_at(place, &[IoSlice::new(&buffer[..len])])?;
        buffer[..len].fill(0);
        self.memory.read_at(place, &mut buffer[..len])?;
        Ok(len)
    }

    fn read(&mut self, buffer: &mut [u8], sum: u64) -> Result<(usize, u64)> {
        let len = self.stream.recv(buffer)?;
        let place = self.place(len);
        self.memory.write_at(place, &[IoSlice::new(&buffer[..len])])?;
        Ok((len, sum))
    }

    fn finish(&mut self) -> Result<()> {
        Ok(self.stream.shutdown(Shutdown::Write)?)
    }
}
