//! Headers as they lie on the wire, and what they say.
//!
//! For each protocol there is a layout (private, with the fields' own widths and order, [`zerocopy`] makes it a view of bytes) and a value
//! with what it means. `parse` takes the bytes from the header's first one on, and gives the value and the bytes behind it; `write` puts
//! the header in front of what a [`Head`](onecopy_link::Head) has. What was parsed and is written again is the same header, but for what is
//! said where it is not.
//!
//! # No panic
//!
//! Bytes come from anywhere. No `parse` panics, loops or allocates, whatever they are: what is too short, or says of itself what cannot be,
//! gives a [`Malformed`]. What is legal and unknown is passed over.
//!
//! # Checksums
//!
//! A header is written with its checksum still to be finished: the pseudo-header's sum stands in the field, or zero where there is none.
//! [`Packet::set_checksum`](onecopy_link::Packet::set_checksum) says so of the packet, whoever finishes it ([`checksum`]). IPv4's own is
//! always written, and looked at by `parse`, since it covers 20 bytes that are at hand.

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod icmp;
pub mod icmpv6;
mod ip;
pub mod ipv4;
pub mod ipv6;
mod malformed;
pub mod ndp;
pub mod tcp;
pub mod udp;

pub use arp::Arp;
pub use ethernet::{EtherType, Ethernet, Mac};
pub use icmp::Icmp;
pub use icmpv6::Icmpv6;
pub use ip::Ip;
pub use ipv4::{Ecn, Ipv4, Protocol};
pub use ipv6::Ipv6;
pub use malformed::Malformed;
pub use ndp::Ndp;
pub use tcp::{Flags, Options, Seq, Tcp};
pub use udp::Udp;
