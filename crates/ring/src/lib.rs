//! The shared-memory byte ring: one direction of a stream.
//!
//! A ring lies in a sealed memfd of the *receiver*: one page of [`Header`], then `capacity` bytes of data.
//! Positions are counts of bytes since the beginning, 64 bits, never wrapped; each side keeps its own one
//! privately and publishes a copy. All that the other side wrote is copied, checked against what is possible,
//! then used: a [`PeerMisbehaved`] ends the connection and touches no memory outside of the ring.
//!
//! | module | what |
//! |---|---|
//! | [`header`] | the page that both sides write, and who writes which line |
//! | [`index`] | positions: how much room, how much data, and the checks |
//! | [`marks`] | what the stream carries besides bytes, each at its position |
//! | [`lend`] | how pages that were sent by reference come back |
//! | [`doorbell`] | who wakes whom, and when no system call is needed |
//! | [`memory`] | making, opening and mapping a ring |
//! | [`shared`] | a pool of the peer, whose pages come by reference |
//! | [`producer`], [`consumer`] | the two sides, with the bytes |
//! | [`page`] | what the processes share that hold one end |
//! | [`record`] | records, for sockets that have them |

pub mod consumer;
pub mod doorbell;
pub mod header;
pub mod index;
pub mod lend;
pub mod marks;
pub mod memory;
pub mod page;
pub mod producer;
pub mod record;
pub mod shared;

pub use consumer::Consumer;
pub use header::Header;
pub use marks::Mark;
pub use memory::{MAX_CAPACITY, MIN_CAPACITY, Ring, round_capacity};
pub use producer::Producer;

use std::fmt;

/// What the other side wrote cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerMisbehaved {
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
    /// An impossible count of marks.
    Marks {
        /// What was read.
        read: u64,
        /// Marks that were received before.
        seen: u64,
    },
    /// A mark of no known kind, or where none can be.
    Mark {
        /// Where it is said to be.
        position: u64,
        /// What it is said to be.
        kind: u32,
    },
    /// A reference to what is no page of a pool that the peer has told of, or no part of it.
    Reference,
    /// A pool that is none: no sealed memfd that only the peer can write, or not of the announced size.
    Pool,
    /// The channel for descriptors and credentials, or the message that a mark says is in it, is not there; the message is of
    /// another user than the peer; or marks were taken and their messages left.
    Channel,
    /// A page came back that is not lent.
    Returned(u32),
    /// A filler of impossible size.
    Filler(u32),
    /// A record's header that cannot be: more bytes than were published, or unknown flags.
    Frame {
        /// What was read.
        word: u64,
        /// Bytes that were published from there on.
        available: u64,
    },
    /// The kernel carried other bytes than doorbells and fillers say.
    Doorbells,
    /// Another process that holds this end left a state of it that cannot be.
    Member,
    /// The switch from the kernel to the ring is said to be at a byte that was already passed.
    Switch {
        /// Byte at which the peer says it switched.
        at: u64,
        /// Bytes already received over the kernel.
        received: u64,
    },
}

impl fmt::Display for PeerMisbehaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerMisbehaved::Head { read, seen } => write!(f, "impossible head {read} (seen before: {seen})"),
            PeerMisbehaved::Tail { read, seen } => write!(f, "impossible tail {read} (seen before: {seen})"),
            PeerMisbehaved::Marks { read, seen } => {
                write!(f, "impossible count of marks {read} (received: {seen})")
            }
            PeerMisbehaved::Mark { position, kind } => {
                write!(f, "impossible mark of kind {kind} at {position}")
            }
            PeerMisbehaved::Reference => f.write_str("a reference to what is no page of the peer's pools"),
            PeerMisbehaved::Pool => f.write_str("a pool that is no memfd sealed for its owner alone"),
            PeerMisbehaved::Channel => {
                f.write_str("descriptors or credentials that are not there, not the peer's, or not taken")
            }
            PeerMisbehaved::Returned(slot) => write!(f, "slot {slot} was given back, which is not lent"),
            PeerMisbehaved::Filler(len) => write!(f, "impossible filler of {len} bytes"),
            PeerMisbehaved::Frame { word, available } => {
                write!(f, "impossible record header {word:#x} ({available} bytes published)")
            }
            PeerMisbehaved::Doorbells => {
                f.write_str("bytes on the control socket that are neither doorbell nor filler")
            }
            PeerMisbehaved::Member => {
                f.write_str("an impossible state, left by a process that shares this end")
            }
            PeerMisbehaved::Switch { at, received } => {
                write!(f, "impossible switch at byte {at} ({received} already received)")
            }
        }
    }
}
