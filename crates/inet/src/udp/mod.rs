//! UDP (RFC 768), without ports, clock or link: what one socket holds. [`Stack`](crate::stack::Stack) has the sockets, their ports and
//! their packets.
//!
//! A datagram goes down, and comes up, by reference, in any kind of memory. A train of them ([`Envelope::gso`], UDP_SEGMENT) goes down as one
//! packet, which the link cuts if it can; one that comes up whole is handed over whole where the socket asks ([`Settings::gro`], UDP_GRO), and
//! cut else, by reference too.
//!
//! What is longer than the way takes in one packet is refused ([`Error::TooLong`]), unless it may be cut ([`Settings::dont_fragment`]): then
//! [`ip`](crate::ip) sends it in parts. Nothing goes to this host's own addresses, or to groups.

mod envelope;
mod error;
mod inbox;
mod settings;
mod socket;
mod stats;

pub use envelope::Envelope;
pub use error::Error;
pub use inbox::Received;
pub use settings::{Config, Settings};
pub use stats::Stats;

pub(crate) use error::meaning;
pub(crate) use inbox::Full;
pub(crate) use socket::Socket;

/// The most datagrams of a train: UDP_MAX_SEGMENTS of Linux 6.18 (64 on older ones).
pub const MAX_SEGMENTS: usize = 128;

/// Bytes of the longest datagram, and of the longest train, over IPv4: what its total length leaves.
pub const MAX_LEN: usize = u16::MAX as usize - crate::wire::Ipv4::LEN - crate::wire::Udp::LEN;
