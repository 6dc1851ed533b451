//! IP in user space, sans-IO: packets, calls and the time go in, packets and events come out. No clock, no descriptor, no thread.
//!
//! - [`wire`]: what headers look like.
//! - [`timers`]: when something is due.
//! - [`key`]: secrets, from one seed.
//! - [`stack`]: what all connections share.

#![forbid(unsafe_code)]

pub mod key;
pub mod stack;
pub mod timers;
pub mod wire;
