//! What a packet meets on its way.

use std::time::Duration;

/// One direction of a [`Pair`](super::Pair), and what becomes of packets there. By default nothing does: they arrive at once, in order.
///
/// Chances are between 0 and 1, and each is drawn for each packet, whether it matters or not: so a run with one of them changed meets
/// the others where it met them before.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    pub(crate) delay_ns: u64,
    pub(crate) jitter_ns: u64,
    pub(crate) rate: Option<u64>,
    pub(crate) queue: u64,
    pub(crate) in_flight: usize,
    pub(crate) loss: f64,
    pub(crate) duplicate: f64,
    pub(crate) reorder: f64,
    pub(crate) reorder_ns: u64,
    pub(crate) corrupt: f64,
    pub(crate) mark_above: Option<u64>,
    pub(crate) whole: bool,
}

impl Default for Path {
    fn default() -> Path {
        Path::new()
    }
}

impl Path {
    /// One without trouble: no delay, no limit to its rate, at most 65536 packets on it.
    pub fn new() -> Path {
        Path {
            delay_ns: 0,
            jitter_ns: 0,
            rate: None,
            queue: 1 << 20,
            in_flight: 65536,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_ns: 1_000_000,
            corrupt: 0.0,
            mark_above: None,
            whole: true,
        }
    }

    /// How long a packet is on its way, once it has left.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Path {
        Path { delay_ns: nanos(delay), ..self }
    }

    /// Up to so much longer, by chance. Packets stay in order.
    #[must_use]
    pub fn jitter(self, jitter: Duration) -> Path {
        Path { jitter_ns: nanos(jitter), ..self }
    }

    /// Bits per second that leave. Packets wait for each other, in a queue of [`Path::queue`] bytes.
    #[must_use]
    pub fn rate(self, bits: u64) -> Path {
        Path { rate: Some(bits.max(1)), ..self }
    }

    /// Bytes that may wait to leave: with more there is no room, and what is transmitted all the same is dropped. 1 MiB if nothing is said.
    #[must_use]
    pub fn queue(self, bytes: u64) -> Path {
        Path { queue: bytes, ..self }
    }

    /// Packets that may be on the way and not yet received: beyond that there is no room. One that arrives twice counts once, as does a
    /// super-segment, whatever it is cut to.
    #[must_use]
    pub fn in_flight(self, packets: usize) -> Path {
        Path { in_flight: packets.max(1), ..self }
    }

    /// How many of 1 are lost.
    #[must_use]
    pub fn loss(self, chance: f64) -> Path {
        Path { loss: chance, ..self }
    }

    /// How many of 1 arrive twice.
    #[must_use]
    pub fn duplicate(self, chance: f64) -> Path {
        Path { duplicate: chance, ..self }
    }

    /// How many of 1 are overtaken by those that come behind them, within `by`.
    #[must_use]
    pub fn reorder(self, chance: f64, by: Duration) -> Path {
        Path { reorder: chance, reorder_ns: nanos(by), ..self }
    }

    /// How many of 1 arrive with one bit turned over. Their checksum is finished before, so that it can be found out, and the bytes are
    /// copied where others have them, too. One whose payload cannot be read is lost instead.
    #[must_use]
    pub fn corrupt(self, chance: f64) -> Path {
        Path { corrupt: chance, ..self }
    }

    /// Packets that may bear it are marked (CE, RFC 3168) while more than so many bytes wait to leave.
    #[must_use]
    pub fn mark_above(self, bytes: u64) -> Path {
        Path { mark_above: Some(bytes), ..self }
    }

    /// Whether super-segments, and checksums that are still to be finished, arrive as they were transmitted, as between two ends of a veth;
    /// else as on a wire: cut to packets, and finished. True if nothing is said.
    #[must_use]
    pub fn whole(self, whole: bool) -> Path {
        Path { whole, ..self }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}

/// What became of the packets of one direction. Those of a super-segment that is cut count each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets that were transmitted.
    pub transmitted: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that were received, those that came twice among them.
    pub received: u64,
    /// Super-segments that were cut.
    pub cut: u64,
    /// Lost on the way.
    pub lost: u64,
    /// Arrived twice.
    pub duplicated: u64,
    /// Held back, for others to overtake them.
    pub reordered: u64,
    /// Arrived with a bit turned over.
    pub corrupted: u64,
    /// Marked.
    pub marked: u64,
    /// Dropped: there was no room.
    pub full: u64,
    /// Dropped: it was none that the end takes ([`Capabilities::takes`](crate::Capabilities::takes)), or could not be cut or finished.
    pub not_taken: u64,
    /// Lost: the other end was gone.
    pub unreceived: u64,
}
