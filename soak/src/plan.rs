//! What both ends of a connection know of it from its seed, so that neither has to believe the other.

use onecopy::unix::Config;
use onecopy_conformance::tools::{Dice, Pattern};

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
    seed: u64,
    records: bool,
}

impl Plan {
    /// Of connection `id` in a run.
    pub fn of(run: u64, id: u64, records: bool) -> Plan {
        Plan { id, seed: Dice(run ^ id.rotate_left(17)).roll(), records }
    }

    /// The generation of workers that it belongs to.
    pub fn generation(&self) -> u32 {
        (self.id >> 32) as u32
    }

    fn dice(&self, side: Side, what: u64) -> Dice {
        Dice(self.seed ^ what << 8 ^ side as u64)
    }

    /// Bytes (of a stream) or records that `side` sends.
    pub fn total(&self, side: Side) -> u64 {
        self.dice(side, 1).size(if self.records { 1500 } else { 1 << 20 }) as u64
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
        if dice.one_in(16) && index + 1 < self.total(side) { 0 } else { dice.size(3000) }
    }

    /// The record number `index` from `side`.
    pub fn record(&self, side: Side, index: u64) -> Vec<u8> {
        Pattern(self.pattern(side).0 ^ index << 32).bytes(0, self.record_len(side, index))
    }

    /// Whether `side` receives in ways that lose no descriptor, so that each of them can be asked for.
    pub fn counts_descriptors(&self, side: Side) -> bool {
        self.dice(side, 5).one_in(3)
    }

    /// Whether `side` sends pages by reference, too.
    pub fn lends(&self, side: Side) -> bool {
        !self.records && self.dice(side, 6).one_in(8)
    }

    /// What the client makes its socket with: mostly little, since there are many.
    pub fn config(&self) -> Config {
        let mut dice = self.dice(Side::Client, 7);
        let sizes = [4 << 10, 8 << 10, 16_384, 30_001];
        let size = sizes[(dice.roll() % 4) as usize];
        let size = if dice.one_in(50) { 256 << 10 } else { size };
        Config { receive_buffer: Some(size), send_buffer: Some(size.min(8 << 10)), ..Config::default() }
    }
}
