//! What giving a token back costs: each by a call of its own, many by one, or without a call.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use onecopy::RecvFlags;
use onecopy::advanced::link::Tap;
use onecopy::advanced::pool::{DeviceId, DeviceMemory};
use onecopy::devmem::{Binding, Frag, RefillRing, TokenRange};
use onecopy::tcp::{Listener, Stream};
use onecopy::{Stack, Wait};

use super::{TAKEN, TOKEN};
use crate::row::{Case, Context, Reach, Sample, Scale, Session, Work};
use crate::rows::pinned::pinned;

/// Ranges that a call takes.
const MOST: usize = 128;
/// Tokens that are out at a time.
const MANY: usize = 64;
/// Bytes of the fragment that each stands for.
const PIECE: usize = 1024;
const AT: &str = "10.77.0.2:5201";

/// The case.
pub fn case(scale: Scale) -> Case {
    let least = if scale == Scale::Smoke { 10 } else { 1000 };
    Case {
        name: "tokens".to_owned(),
        engines: vec!["single", "batched", "ring"],
        baseline: "single",
        reach: vec![Reach::ratio("ring", TOKEN.name, 1.0, &["batched"])],
        work: Work { warmup: 10, least, most: 100_000, step: 1 },
        open: Box::new(|context: &Context, engine| {
            let how = match engine {
                "single" => How::Single,
                "batched" => How::Batched,
                "ring" => How::Ring,
                other => bail!("there is no engine {other}"),
            };
            pinned(context, || Tokens::open(how))
        }),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Single,
    Batched,
    Ring,
}

struct Tokens {
    how: How,
    /// Of [`How::Ring`] alone.
    ring: Option<RefillRing>,
    sender: Stream,
    receiver: Stream,
    memory: DeviceMemory,
    // Dropped behind the streams: what they were made with.
    _binding: Binding,
    _stacks: [Stack; 2],
}

impl Tokens {
    fn open(how: How) -> Result<Tokens> {
        let (a, b) = Tap::cable(1500)?;
        let stack = |tap, address| Stack::builder().link(tap).address(address).wait(Wait::Block).build();
        let (near, far) = (stack(a, "10.77.0.1/24")?, stack(b, "10.77.0.2/24")?);
        let (memory, at) = (DeviceMemory::opaque(256, DeviceId(0))?, AT.parse::<SocketAddr>()?);
        far.set_queues(2)?;
        far.steer(at, 1)?;
        let binding = far.bind_rx(&memory, &[1])?;
        let listener = Listener::bind(&far, at)?;
        let sender = Stream::connect(&near, at)?;
        let (receiver, _) = listener.accept()?;
        let ring = match how {
            How::Ring => Some(receiver.refill_ring(2 * MANY as u32)?),
            _ => None,
        };
        Ok(Tokens { how, ring, sender, receiver, memory, _binding: binding, _stacks: [near, far] })
    }

    /// Has [`MANY`] tokens, or a few more.
    fn receive(&self) -> Result<Vec<Frag>> {
        let (bytes, mut sent) = (vec![0x5a; MANY * PIECE], 0);
        while sent < bytes.len() {
            sent += self.sender.send(&bytes[sent..])?;
        }
        let (mut frags, mut came) = (Vec::with_capacity(MANY), 0);
        while came < bytes.len() {
            // What is left of one packet's payload may be less than a piece.
            let one = self.receiver.recv_frags_with_flags(PIECE, 1, RecvFlags::empty())?;
            ensure!(!one.is_empty(), "the connection has ended");
            came += one.len();
            frags.extend(one.into_device());
        }
        Ok(frags)
    }

    /// Gives them back: in how many seconds, and how many it takes to take them in where that is done later.
    fn give_back(&mut self, frags: &[Frag]) -> Result<(f64, f64)> {
        if let Some(ring) = &mut self.ring {
            return push(ring, &self.receiver, frags);
        }
        let at_a_time = if self.how == How::Batched { MOST } else { 1 };
        let range = |frag: &Frag| TokenRange { start: frag.token, count: 1 };
        let ranges: Vec<TokenRange> = frags.iter().map(range).collect();
        let began = Instant::now();
        let mut free = 0;
        for ranges in ranges.chunks(at_a_time) {
            free += self.receiver.dont_need(ranges)?;
        }
        let seconds = began.elapsed().as_secs_f64();
        ensure!(free == frags.len(), "{free} of {} were given back", frags.len());
        Ok((seconds, 0.0))
    }
}

/// Gives tokens back one by one, and has them taken in: in how many seconds each.
fn push(ring: &mut RefillRing, receiver: &Stream, frags: &[Frag]) -> Result<(f64, f64)> {
    let before = ring.stats();
    ensure!(before.taken == before.pushed, "the ring is not empty: {before:?}");
    let began = Instant::now();
    for frag in frags {
        ring.push(frag.token);
    }
    let giving = began.elapsed().as_secs_f64();
    let stats = ring.stats();
    ensure!((stats.taken, stats.full) == (before.taken, 0), "a push was a call: {stats:?}");
    let began = Instant::now();
    receiver.dont_need(&[])?;
    let taking = began.elapsed().as_secs_f64();
    let stats = ring.stats();
    ensure!(stats.taken == stats.pushed, "{stats:?} behind a call");
    ensure!(stats.passed_over == before.passed_over, "a token was nobody's: {stats:?}");
    Ok((giving, taking))
}

impl Session for Tokens {
    fn verify(&mut self) -> Result<()> {
        // The page that small pieces are cut from stays taken.
        let frags = self.receive()?;
        self.give_back(&frags)?;
        let before = self.memory.free();
        let frags = self.receive()?;
        ensure!(self.memory.free() < before, "nothing lies in the memory");
        self.give_back(&frags)?;
        ensure!(self.give_back(&frags).is_err(), "tokens were given back twice");
        ensure!(self.memory.free() == before, "pages are missing");
        Ok(())
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let (mut giving, mut taking, mut tokens) = (0.0, 0.0, 0);
        for _ in 0..work {
            let frags = self.receive()?;
            let (given, taken) = self.give_back(&frags)?;
            giving += given;
            taking += taken;
            tokens += frags.len();
        }
        let each = |seconds: f64| seconds * 1e9 / tokens as f64;
        let mut values = vec![(TOKEN.name, each(giving))];
        if self.how == How::Ring {
            values.push((TAKEN.name, each(taking)));
        }
        let at_a_time = match self.how {
            How::Single => "1".to_owned(),
            How::Batched => MANY.to_string(),
            How::Ring => "none".to_owned(),
        };
        let settings = vec![("tokens a call".to_owned(), at_a_time)];
        Ok(Sample { seconds: giving, values, settings })
    }
}
