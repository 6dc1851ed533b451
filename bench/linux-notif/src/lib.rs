//! Notifications of sends without a copy, stacked as merged in Linux 6.10 (io_uring/notif.c), with the fix of September
//! 2025 for the comparison that looked at the wrong notification: the rival of `onecopy::advanced::notify`.
//!
//! Six cases ([`Notif::link`]). The segment
//!
//! 1. has no notification: it takes a reference on this one, wherever that is linked;
//! 2. has this one already: nothing to do;
//! 3. has another one, and this one is linked: refused, two links can't be joined;
//! 4. has one of another provider: refused;
//! 5. has one of another context or task: refused, since one task finishes the whole chain;
//! 6. else this one goes into the chain behind the segment's, and takes a reference on the chain's head.
//!
//! A member without references drops its one on the head; a head without references posts the whole chain. What comes of it is kept
//! as well: the order is head first, then newest first; a chain that always gets a new member before its last segment is
//! free grows without bound; and a member that asks whether it was copied hears yes, since only the notification that a
//! segment has at first hears how the segment left.

#![forbid(unsafe_code)]

mod context;
mod first;
#[cfg(all(test, loom))]
mod models;
mod node;
mod notif;
mod posted;
mod refused;
mod segment;
mod task;

pub use context::Context;
pub use first::First;
pub use notif::Notif;
pub use refused::Refused;
pub use segment::{Fate, Segment};
