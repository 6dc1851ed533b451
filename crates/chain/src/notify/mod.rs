//! Notifications of sends without a copy: when is a buffer its owner's again?
//!
//! A send that copies nothing is over twice. First it is *accepted*: so many bytes are in segments ([`First`]). Later, when
//! the last segment that carries bytes of it is free (acknowledged, transmitted, reset, whatever), its buffer is its
//! owner's again: exactly one [`Completion`] says so.
//!
//! ```text
//!   Lane::send ─▶ Segment { payload, notif } ─▶ Link::transmit ─▶ freed: last share drops ─▶ Queue::reap, wait, fd
//!    one socket      a chain + a reference          the sink           one publication          one thread
//! ```
//!
//! # Why it costs so little
//!
//! A [`Lane`] numbers the sends of one socket, and its completions come in that order. So nobody has to count the
//! references of each send: a segment that carries the sends `lo..=hi` holds one reference on `lo`, and as long as that
//! stands, completion cannot pass `lo`, nor what is behind it. Stacking one more send on a segment is therefore a
//! few plain stores, joining two segments keeps the lower of two references, and freeing a segment moves *one*
//! number, however many sends that completes.
//!
//! | module | what |
//! |---|---|
//! | [`lane`] | submission: numbers and limits |
//! | [`segment`] | a payload and its reference: share, split, join, free with its fate |
//! | [`queue`] | completions: reap, wait, a descriptor for poll |
//! | [`ranges`] | the same completions as MSG_ZEROCOPY tells them |
//! | [`loan`] | the buffer itself is given to a send and comes back: future, or blocking wait |
//!
//! # Against stacking as merged in Linux 6.10
//!
//! Completions are in the order of submission, not head first and then newest first. A queue that never runs empty does not
//! grow a chain without bound: segments are not tied to each other, and each is bounded by [`Limits`]. Each send learns
//! exactly whether its own bytes were copied. Two segments that both carry notifications can be joined. And
//! datagrams stack: a payload may be a train of them. (The kernel's scheme itself is `bench/linux-notif`, a rival of the bench row `zc`.)

mod chains;
mod frontier;
pub mod lane;
pub mod loan;
mod pins;
pub mod queue;
pub mod ranges;
mod ready;
pub mod segment;

#[cfg(all(test, loom))]
mod models;

pub use lane::{Config, Lane, Limits, Notif};
pub use loan::{Lend, Lender, Loan};
pub use queue::{Context, Queue};
pub use ranges::Range;
pub use segment::{Fate, NotifRef, Segment};

use std::fmt;

/// How a send's bytes left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct How {
    /// Some of its bytes were copied on the way after all (the COPIED bit): without a copy gained nothing there.
    pub copied: bool,
    /// Some of its bytes were freed without having been transmitted: reset, cancelled, closed.
    pub dropped: bool,
}

/// The second step of a send: its buffer is the owner's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the send was given.
    pub user_data: u64,
    /// The lane, as [`Lane::index`] says; another lane may get the number once this one is closed and all of it reaped.
    pub lane: u32,
    /// The send's number in its lane, from 0.
    pub id: u64,
    /// Bytes of the send that went into segments.
    pub bytes: u32,
    /// How they left.
    pub how: How,
}

/// The first step of a send: what became of the request itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First<R> {
    /// What was accepted, or why not.
    pub result: R,
    /// Whether a notification follows (MORE): exactly one, on an error too. Trust this, not the result.
    pub more: bool,
}

/// Why a send or a reference was refused. Nothing was taken, and no completion comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// As many sends as there are slots have not been reaped.
    Full {
        /// The slots.
        capacity: u32,
    },
    /// The lane was closed, or nobody is left to reap its completions.
    Closed,
    /// The segment carries a notification of another context.
    Foreign,
    /// The segment carries as many bytes as [`Limits::bytes`] allows.
    Bytes {
        /// Bytes that it would carry.
        would_be: u64,
        /// The limit.
        limit: u32,
    },
    /// The segment carries as many sends as [`Limits::sends`] allows.
    Sends {
        /// The limit.
        limit: u32,
    },
    /// The segment's payload does not take these bytes: another kind of memory, or it would be too long.
    Payload,
    /// One send would carry 4 GiB or more: let another one take the rest.
    TooLong {
        /// Bytes that it would carry.
        would_be: u64,
    },
    /// The segment's first send has waited for longer than [`Limits::age`].
    Age {
        /// Nanoseconds since then.
        age: u64,
    },
}

impl Refused {
    /// Whether the same send on a fresh segment would not be refused for this reason.
    pub fn wants_fresh_segment(self) -> bool {
        !matches!(self, Refused::Full { .. } | Refused::Closed | Refused::TooLong { .. })
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Full { capacity } => {
                write!(f, "{capacity} sends wait for their completions: reap the queue, or make the lane larger")
            }
            Refused::Closed => f.write_str("the lane is closed: open another one on a queue that somebody reaps"),
            Refused::Foreign => f.write_str(
                "the segment carries a notification of another context: transmit it and open a fresh one",
            ),
            Refused::Bytes { would_be, limit } => write!(
                f,
                "the segment would carry {would_be} bytes of {limit}: transmit it and open a fresh one"
            ),
            Refused::Sends { limit } => {
                write!(f, "the segment carries {limit} sends: transmit it and open a fresh one")
            }
            Refused::Payload => f.write_str(
                "the segment does not take these bytes (another kind of memory, or too many): transmit it and open a fresh one",
            ),
            Refused::TooLong { would_be } => {
                write!(f, "a send of {would_be} bytes: one has at most 4 GiB - 1, make it several")
            }
            Refused::Age { age } => write!(
                f,
                "the segment's first send has waited for {} us: transmit it and open a fresh one",
                age / 1000
            ),
        }
    }
}

impl std::error::Error for Refused {}
