//! IP in user space, sans-IO: packets, calls and the time go in, packets and events come out. No clock, no descriptor, no thread.
//!
//! - [`wire`]: what headers look like.
//! - [`timers`]: when something is due.
//! - [`key`]: secrets, from one seed.
//! - [`neigh`]: whose hardware address a neighbour's address is.
//! - [`ip`]: IPv4 and IPv6 on one link, with ICMP and fragments.
//! - [`mod@tcp`], which has connections, without addresses.
//! - [`udp`]: datagrams, likewise.
//! - [`stack`]: sockets by name, and who drives all of it.
//! - [`shard`]: one host of several stacks.
//! - [`trace`]: what packets say, a line each.

#![forbid(unsafe_code)]

mod bucket;
pub mod ip;
pub mod key;
pub mod neigh;
pub mod shard;
pub mod stack;
pub mod tcp;
pub mod timers;
pub mod trace;
pub mod udp;
pub mod wire;
