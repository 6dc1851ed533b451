//! IP in user space, sans-IO: packets, calls and the time go in, packets and events come out. No clock, no descriptor, no thread.
//!
//! So far there is [`wire`]: what headers look like.

#![forbid(unsafe_code)]

pub mod wire;
