//! The shared-memory byte ring: one direction of a stream.
//!
//! A ring is in a sealed memfd, which the receiver made, or the maker of a pair of rings ([`Ring::pair`]). It
//! consists of a [`Header`] and `capacity` bytes of data.
//!
//! Positions count bytes since the ring began. They have 64 bits and never wrap. Each side keeps its own
//! position privately and publishes a copy.
//!
//! Each side copies what the other side wrote, checks the copy, and only then uses it. A [`PeerMisbehaved`]
//! ends the connection; no memory outside of the ring is touched.
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
//! | [`page`] | what the processes that hold one end share |
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

/// The other side wrote something impossible.
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
    /// The count of marks is impossible.
    Marks {
        /// What was read.
        read: u64,
        /// Marks that were received before.
        seen: u64,
    },
    /// A mark has an unknown kind, or is at a position where no mark can be.
    Mark {
        /// The position that the mark states.
        position: u64,
        /// The kind that the mark states.
        kind: u32,
    },
    /// A reference names no page of an announced pool, or a part that the page does not have.
    Reference,
    /// A pool is not a sealed memfd that only the peer can write, or it does not have the announced size.
    Pool,
    /// The channel for descriptors and credentials broke the protocol. Either the channel, or the message
    /// that a mark announces, is missing; or the message comes from another user than the peer; or marks were
    /// taken and their messages stayed behind.
    Channel,
    /// A page came back that is not lent.
    Returned(u32),
    /// The size of a filler is impossible.
    Filler(u32),
    /// A record's header is impossible: it states more bytes than were published, or has unknown flags.
    Frame {
        /// What was read.
        word: u64,
        /// Bytes that were published from the header on.
        available: u64,
    },
    /// The bytes that the kernel carried do not match the doorbells and fillers.
    Doorbells,
    /// Another process that holds this end left an impossible state.
    Member,
    /// The peer says that it switched from the kernel to the ring at a byte that already passed.
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
