//! The shared-memory byte ring: one direction of a stream.
//!
//! A ring lies in a sealed memfd of the *receiver*: one page of [`Header`], then `capacity` bytes of data.
//! Positions are counts of bytes since the beginning, 64 bits, never wrapped; each side keeps its own one
//! privately and publishes a copy. All that the other side wrote is copied, checked against what is possible,
//! then used: a [`Lie`] ends the connection and touches no memory outside of the ring.
//!
//! | module | what |
//! |---|---|
//! | [`header`] | the page that both sides write, and who writes which line |
//! | [`index`] | positions: how much room, how much data, and the checks |
//! | [`bell`] | who wakes whom, and when no system call is needed |
//! | [`memory`] | making, opening and mapping a ring |
//! | [`producer`], [`consumer`] | the two sides, with the bytes |
//! | [`record`] | records, for sockets that have them |

pub mod bell;
pub mod consumer;
pub mod header;
pub mod index;
pub mod memory;
pub mod producer;
pub mod record;

pub use consumer::Consumer;
pub use header::Header;
pub use memory::{MAX_CAPACITY, MIN_CAPACITY, Ring, round_capacity};
pub use producer::Producer;

use std::fmt;

/// What the other side wrote cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// The published end of data is behind what was seen before, or further ahead than the ring is large.
    Head {
        /// What was read.
        read: u64,
        /// The end of data as seen before.
        seen: u64,
    },
    /// The published start of room is behind what was seen before, or beyond all that was ever written.
    Tail {
        /// What was read.
        read: u64,
        /// The start of room as seen before.
        seen: u64,
    },
    /// A filler of impossible size.
    Filler(u32),
    /// A record's header that cannot be: more bytes than were published, or unknown flags.
    Frame {
        /// What was read.
        word: u64,
        /// Bytes that were published from there on.
        available: u64,
    },
    /// The kernel carried other bytes than bells and fillers say.
    Bells,
    /// The switch from the kernel to the ring is said to be at a byte that was already passed.
    Switch {
        /// Byte at which the peer says it switched.
        at: u64,
        /// Bytes already received over the kernel.
        received: u64,
    },
}

impl fmt::Display for Lie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lie::Head { read, seen } => write!(f, "impossible head {read} (seen before: {seen})"),
            Lie::Tail { read, seen } => write!(f, "impossible tail {read} (seen before: {seen})"),
            Lie::Filler(len) => write!(f, "impossible filler of {len} bytes"),
            Lie::Frame { word, available } => {
                write!(f, "impossible record header {word:#x} ({available} bytes published)")
            }
            Lie::Bells => f.write_str("bytes on the control socket that are neither bell nor filler"),
            Lie::Switch { at, received } => {
                write!(f, "impossible switch at byte {at} ({received} already received)")
            }
        }
    }
}
