//! What both ends of a connection know of it from its seed, so that neither has to believe the other.

use std::path::{Path, PathBuf};

use onecopy::unix::{Config, Records, SocketAddr};
use onecopy_conformance::tools::{Dice, Pattern};

/// Kinds of connections, in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes.
    Stream,
    /// Records, each whole or cut, as on Linux.
    Records,
    /// Records whose rest stays, as on FreeBSD.
    Pieces,
    /// Datagrams between two that are connected to each other.
    Grams,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Stream, Kind::Records, Kind::Pieces, Kind::Grams];

    /// Of connection `id`.
    pub fn of(id: u64) -> Kind {
        Kind::ALL[id as usize % Kind::ALL.len()]
    }
}

/// Where workers find the survivor, of a run: an abstract name, of which others are made, and a folder.
#[derive(Clone, Debug)]
pub struct Names {
    base: String,
    folder: PathBuf,
}

/// An abstract name, which a run makes short enough.
fn abstract_name(name: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(name).expect("a name of at most 107 bytes")
}

impl Names {
    /// Of a run.
    pub fn new(base: &str, folder: &Path) -> Names {
        Names { base: base.to_owned(), folder: folder.to_owned() }
    }

    /// Of who listens for connections of that kind; of datagrams: who is told that there is another socket.
    pub fn reception(&self, kind: Kind) -> SocketAddr {
        match kind {
            Kind::Stream => abstract_name(&self.base),
            Kind::Records => SocketAddr::from(self.folder.join("records")),
            Kind::Pieces => abstract_name(&format!("{}-pieces", self.base)),
            Kind::Grams => abstract_name(&format!("{}-grams", self.base)),
        }
    }

    /// Of one datagram socket.
    pub fn of_gram(&self, id: u64, side: Side) -> SocketAddr {
        abstract_name(&format!("{}-{id:x}-{side:?}", self.base))
    }
}

/// Who an end belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// A worker, which connected.
    Client,
    /// The survivor, which accepted.
    Server,
}

impl Side {
    /// The other one.
    pub fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

/// What an end does once it has sent all that it is to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Shuts its sending side, and receives to the end.
    HalfClose,
    /// Closes at once, whatever it has not read.
    Close,
    /// Shuts both sides, then closes.
    ShutBoth,
}

/// The life of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What the client says first: its worker's generation in the upper half, which connection of it in the lower.
    pub id: u64,
    /// What it is.
    pub kind: Kind,
    seed: u64,
}

impl Plan {
    /// Of connection `id` in a run.
    pub fn of(run: u64, id: u64) -> Plan {
        Plan { id, kind: Kind::of(id), seed: Dice(run ^ id.rotate_left(17)).roll() }
    }

    /// The generation of workers that it belongs to.
    pub fn generation(&self) -> u32 {
        (self.id >> 32) as u32
    }

    fn dice(&self, side: Side, what: u64) -> Dice {
        Dice(self.seed ^ what << 8 ^ side as u64)
    }

    /// Bytes (of a stream), records or datagrams that `side` sends.
    pub fn total(&self, side: Side) -> u64 {
        let most = match self.kind {
            Kind::Stream => 1 << 20,
            Kind::Pieces => 500,
            Kind::Records => 1500,
            // (It takes some thousand calls until two look whether they can share memory.)
            Kind::Grams => 3000,
        };
        self.dice(side, 1).size(most) as u64
    }

    /// How `side` ends.
    pub fn ending(&self, side: Side) -> Ending {
        match self.dice(side, 2).roll() % 8 {
            0 => Ending::Close,
            1 => Ending::ShutBoth,
            _ => Ending::HalfClose,
        }
    }

    /// What a stream carries from `side`.
    pub fn pattern(&self, side: Side) -> Pattern {
        Pattern(self.dice(side, 3).roll())
    }

    /// Bytes of the record number `index` from `side`.
    pub fn record_len(&self, side: Side, index: u64) -> usize {
        let mut dice = self.dice(side, 4);
        dice.0 ^= index.wrapping_mul(0x9e37);
        // More than any buffer here holds, which is sent and received in parts.
        let most = if self.kind == Kind::Pieces && dice.one_in(40) { 100_000 } else { 3000 };
        if dice.one_in(16) && index + 1 < self.total(side) { 0 } else { dice.size(most) }
    }

    /// The record number `index` from `side`.
    pub fn record(&self, side: Side, index: u64) -> Vec<u8> {
        self.part(side, index, 0, self.record_len(side, index))
    }

    /// `len` bytes of it, from `at` on.
    pub fn part(&self, side: Side, index: u64, at: usize, len: usize) -> Vec<u8> {
        Pattern(self.pattern(side).0 ^ index << 32).bytes(at, len)
    }

    /// Whether a descriptor comes with the record number `index` from `side`, where records are whole.
    pub fn comes_with(&self, side: Side, index: u64) -> bool {
        let mut dice = self.dice(side, 8);
        dice.0 ^= index.wrapping_mul(0x51ed);
        dice.one_in(24)
    }

    /// Whether `side` receives in ways that lose no descriptor, so that each of them can be asked for.
    pub fn counts_descriptors(&self, side: Side) -> bool {
        self.dice(side, 5).one_in(3)
    }

    /// Whether `side` sends pages by reference, too.
    pub fn lends(&self, side: Side) -> bool {
        matches!(self.kind, Kind::Stream | Kind::Records) && self.dice(side, 6).one_in(4)
    }

    /// What the client makes its socket with: mostly little, since there are many.
    pub fn config(&self) -> Config {
        let mut dice = self.dice(Side::Client, 7);
        let sizes = [4 << 10, 8 << 10, 16_384, 30_001];
        let size = sizes[(dice.roll() % 4) as usize];
        let size = if dice.one_in(50) { 256 << 10 } else { size };
        Config { receive_buffer: Some(size), send_buffer: Some(size.min(8 << 10)), ..config(self.kind) }
    }
}

/// What a socket of that kind is made with, unless something else is said.
pub fn config(kind: Kind) -> Config {
    let records = if kind == Kind::Pieces { Records::Stream } else { Records::Atomic };
    Config { receive_buffer: Some(8 << 10), send_buffer: Some(8 << 10), records, ..Config::default() }
}
