//! TCP of our own at random: two stacks with every impairment between them, and a stack that gets segments nobody would send.
//!
//! [`trouble()`] is one connection over [`link::Pair`](onecopy_link::Pair) in virtual time, IPv4 or IPv6, of at least 64 KiB, through at least
//! 1 % loss, delay, a limited rate, duplication, reordering and damage. What must hold: every byte arrives, in order and once; each send by
//! reference is told of once, and not before its bytes have come; no timer runs wild; and in the end no page, socket, port or timer is
//! left. `cargo test -p onecopy-fuzz` plays some, `cargo xtask trouble --cases 1000000` many.
//!
//! [`strike`] changes what a real peer sends on its way to a stack, cuts it into fragments, and makes the checksums right again; and it makes up
//! messages of ICMP, NDP and ARP. It does so over IPv4 and IPv6, with and without Ethernet. What must hold: no panic, memory, neighbours
//! and sockets within their bounds, no storm of answers or timers, nothing left in the end; and a connection and datagrams beside it, of
//! somebody innocent, do not notice. `cargo xtask fuzz` strikes for long.

mod change;
mod ends;
mod hosts;
mod plan;
mod segments;
mod trouble;

pub use ends::Family;
pub use plan::{BYTES, LOSS};
pub use segments::{Strikes, strike};
pub use trouble::{Troubles, trouble};
