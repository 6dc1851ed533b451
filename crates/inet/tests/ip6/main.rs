//! IPv6: TCP and UDP over it, its own messages, and neighbours.

mod bytes;
mod fragments;
mod headers;
mod hostile;
mod messages;
mod neighbours;
#[allow(dead_code, reason = "each test program uses some of it")]
#[path = "../tcp/net.rs"]
mod net;
mod sockets;
mod trace;
mod world;
