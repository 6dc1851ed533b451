//! Two ends in one process, in virtual time.
//!
//! What leaves one end arrives at the other, later, damaged, twice or never, as the [`Path`] between them has it. Nothing waits and
//! nothing sleeps: time is what the caller says, so an hour of a bad network is over as fast as it is computed. The same seed gives the
//! same run, to the bit; a test that fails prints it ([`SEED`]).
//!
//! ```
//! use onecopy_link::pair::{Pair, PairConfig, Path};
//! use onecopy_link::{Link, Packet};
//! use onecopy_chain::notify::Segment;
//! use std::time::Duration;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = Path::new().delay(Duration::from_millis(10)).rate(1_000_000_000).loss(0.5);
//! let Pair { mut a, mut b, mut wire } = Pair::new(PairConfig::new().seed(7).both(path));
//! let mut arrived = 0;
//! for number in 0..100u8 {
//!     a.transmit(wire.now(), Packet::new(&[number; 54], Segment::default())?);
//! }
//! // What drives two stacks: each does what it can now, then time goes on to the next event.
//! while let Some(now) = wire.step() {
//!     while let Some(packet) = b.receive(now) {
//!         assert_eq!(packet.head().len(), 54);
//!         arrived += 1;
//!     }
//! }
//! assert_eq!(arrived + wire.stats(onecopy_link::pair::Side::A).lost, 100);
//! # Ok(())
//! # }
//! ```
//!
//! # Whose memory arrives
//!
//! The sender's: a packet is received with the very fragments that were transmitted, and with the reference that keeps their sends from
//! completing. So a buffer is its owner's again when the receiver, too, has let go of it, and nothing is ever copied, but for the page
//! that a bit is turned over in. What was lost on the way has left: its fate is [`Sent`](onecopy_chain::notify::Fate::Sent).

mod direction;
mod path;
mod random;

pub use path::{Path, Stats};
pub use random::SEED;

use crate::capabilities::{Capabilities, Medium};
use crate::link::Link;
use crate::packet::Packet;
use direction::{Direction, Gone};
use onecopy_sync::Mutex;
use std::fmt;
use std::sync::Arc;

/// How a pair is to be.
#[derive(Clone, Debug)]
pub struct PairConfig {
    seed: u64,
    capabilities: [Capabilities; 2],
    paths: [Path; 2],
}

impl Default for PairConfig {
    fn default() -> PairConfig {
        PairConfig::new()
    }
}

impl PairConfig {
    /// Ethernet of MTU 1500, whose ends take all there is, without trouble. The seed is the environment's ([`SEED`]), else one by chance.
    pub fn new() -> PairConfig {
        PairConfig {
            seed: random::seed(),
            capabilities: [Capabilities::all(Medium::Ethernet, 1500); 2],
            paths: [Path::new(), Path::new()],
        }
    }

    /// Has chance repeat what it did with this seed.
    #[must_use]
    pub fn seed(self, seed: u64) -> PairConfig {
        PairConfig { seed, ..self }
    }

    /// What both ends take, the MTU among it.
    #[must_use]
    pub fn capabilities(self, of: Capabilities) -> PairConfig {
        PairConfig { capabilities: [of; 2], ..self }
    }

    /// What one end takes.
    #[must_use]
    pub fn capabilities_of(mut self, side: Side, of: Capabilities) -> PairConfig {
        self.capabilities[side as usize] = of;
        self
    }

    /// Both directions.
    #[must_use]
    pub fn both(self, path: Path) -> PairConfig {
        PairConfig { paths: [path.clone(), path], ..self }
    }

    /// The direction in which this end transmits.
    #[must_use]
    pub fn from(mut self, side: Side, path: Path) -> PairConfig {
        self.paths[side as usize] = path;
        self
    }
}

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// [`Pair::a`].
    A = 0,
    /// [`Pair::b`].
    B = 1,
}

impl Side {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

/// Two ends and what is between them, to be taken apart: each stack gets an end, and who drives them keeps the wire.
#[derive(Debug)]
pub struct Pair {
    /// One end.
    pub a: End,
    /// The other one.
    pub b: End,
    /// What is between them.
    pub wire: Wire,
}

impl Pair {
    /// A pair, at time 0.
    pub fn new(config: PairConfig) -> Pair {
        let PairConfig { seed, capabilities, paths: [from_a, from_b] } = config;
        let ways = [Direction::new(from_a, seed, 0), Direction::new(from_b, seed, 1)];
        let shared = Arc::new(Shared { seed, state: Mutex::new(State { now: 0, ways }) });
        let end =
            |side: Side| End { shared: shared.clone(), side, capabilities: capabilities[side as usize] };
        Pair { a: end(Side::A), b: end(Side::B), wire: Wire { shared: shared.clone() } }
    }
}

struct Shared {
    seed: u64,
    /// Nothing is locked inside it, and nobody's code runs: packets are freed when it is given back.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    now: u64,
    /// By the end that transmits.
    ways: [Direction; 2],
}

impl State {
    /// Time never goes back.
    fn at(&mut self, now: u64) -> u64 {
        self.now = self.now.max(now);
        self.now
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {:#018x}", self.seed)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("a pair of {self:?} was at work: {SEED}={:#x} repeats what it did", self.seed);
        }
    }
}

/// What is between the two ends of a pair, for who drives them.
#[derive(Debug)]
pub struct Wire {
    shared: Arc<Shared>,
}

impl Wire {
    /// What repeats the run.
    pub fn seed(&self) -> u64 {
        self.shared.seed
    }

    /// The latest time that anybody said, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.shared.state.lock().now
    }

    /// When something happens next, behind now: a packet arrives, or there is room where there is none. None when all has arrived. (What has
    /// arrived waits for [`Link::receive`].)
    pub fn next(&self) -> Option<u64> {
        let state = self.shared.state.lock();
        let events = state.ways.iter().flat_map(|way| [way.next(state.now), way.room_at(state.now)]);
        events.flatten().filter(|at| *at > state.now).min()
    }

    /// Says what time it is, where that is later than now. Returns now.
    pub fn advance(&mut self, to_ns: u64) -> u64 {
        self.shared.state.lock().at(to_ns)
    }

    /// Goes on to what happens next. Returns when that is; None where nothing does.
    pub fn step(&mut self) -> Option<u64> {
        let next = self.next()?;
        Some(self.advance(next))
    }

    /// What became of the packets that one end transmitted.
    pub fn stats(&self, from: Side) -> Stats {
        self.shared.state.lock().ways[from as usize].stats
    }

    /// Packets from one end that are on their way, or have arrived and were not received.
    pub fn in_flight(&self, from: Side) -> usize {
        self.shared.state.lock().ways[from as usize].in_flight()
    }

    /// Changes a direction, for what is transmitted from now on: a link that fails, or recovers.
    pub fn set_path(&mut self, from: Side, path: Path) {
        self.shared.state.lock().ways[from as usize].path = path;
    }
}

/// One end of a [`Pair`]. Dropped, all that comes for it is lost.
#[derive(Debug)]
pub struct End {
    shared: Arc<Shared>,
    side: Side,
    capabilities: Capabilities,
}

impl End {
    /// Which one it is.
    pub fn side(&self) -> Side {
        self.side
    }
}

impl Link for End {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn room(&self, now_ns: u64) -> usize {
        let mut state = self.shared.state.lock();
        let now = state.at(now_ns);
        let frame = u64::from(self.capabilities.mtu) + self.capabilities.medium.header_len() as u64;
        state.ways[self.side as usize].room(now, frame)
    }

    fn transmit(&mut self, now_ns: u64, packet: Packet) {
        let mut gone = Gone::new();
        let mut state = self.shared.state.lock();
        let now = state.at(now_ns);
        state.ways[self.side as usize].transmit(now, &self.capabilities, packet, &mut gone);
        drop(state);
        drop(gone);
    }

    fn receive(&mut self, now_ns: u64) -> Option<Packet> {
        let mut state = self.shared.state.lock();
        let now = state.at(now_ns);
        state.ways[self.side.other() as usize].receive(now)
    }

    fn deadline(&self) -> Option<u64> {
        let state = self.shared.state.lock();
        let arrives = state.ways[self.side.other() as usize].first();
        let room = state.ways[self.side as usize].room_at(state.now);
        arrives.into_iter().chain(room).min()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let gone = self.shared.state.lock().ways[self.side.other() as usize].close();
        drop(gone);
    }
}
