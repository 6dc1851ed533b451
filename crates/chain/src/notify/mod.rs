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
//! | [`context`] | who makes lanes, and the queue that their completions come to |
//! | [`lane`] | submission: numbers and limits |
//! | [`segment`] | a payload and its reference, which knows where the bytes of sends lie in it: share, range, split, join, free with its fate |
//! | [`SegmentQueue`] | a list of segments as one run of bytes: what is to be sent or sent again, and what was received |
//! | [`queue`] | completions: reap, wait, a descriptor for poll |
//! | [`ranges`] | the same completions as MSG_ZEROCOPY tells them |
//! | [`zerocopy`] | what programs call: MSG_ZEROCOPY's notices and a handle for each send over one object, small sends copied, memory charged |
//! | [`threshold`] | from how many bytes on that is worth it, measured |
//! | [`loan`] | the buffer itself is given to a send and comes back: future, or blocking wait |
//!
//! # Against stacking as merged in Linux 6.10
//!
//! Completions are in the order of submission, not head first and then newest first. A queue that never runs empty does not
//! grow a chain without bound: segments are not tied to each other, and each is bounded by [`Limits`]. Each send learns
//! exactly whether its own bytes were copied. Two segments that both carry notifications can be joined. And
//! datagrams stack: a payload may be a train of them. (The kernel's scheme itself is `bench/linux-notif`, a rival of the bench row `zc`.)

mod chains;
pub mod context;
mod frontier;
pub mod lane;
mod lazy;
pub mod loan;
mod outcome;
mod pins;
pub mod queue;
pub mod ranges;
mod ready;
mod refused;
pub mod segment;
mod segments;
mod table;
pub mod threshold;
pub mod zerocopy;

#[cfg(all(test, loom))]
mod models;

pub use context::Context;
pub use lane::{Config, Lane, Limits, Notif};
pub use lazy::LazyLane;
pub use loan::{Lend, Lender, Loan};
pub use outcome::{Completion, Fate, First, How};
pub use queue::Queue;
pub use ranges::Range;
pub use refused::Refused;
pub use segment::{NotifRef, Payload, Segment};
pub use segments::SegmentQueue;
pub use zerocopy::{Account, Sent, Zerocopy};
