//! Where packets leave and arrive: the trait [`Link`], and what travels on one, the [`Packet`].
//!
//! | link | where it leads |
//! |---|---|
//! | [`Pair`] | two ends in one process, in virtual time, with every trouble that a network makes |
//! | [`Tap`] | to the kernel of this host, by a TAP or TUN device |
//! | [`Xdp`] | to what is behind an interface of this host's, past the kernel's IP, by an AF_XDP socket |
//! | [`Sink`] | nowhere: frees what is transmitted |
//!
//! [`rx`] sorts what has arrived into queues, and places payload in a device's memory. [`Stacked`] gathers sends before a link. [`Pcap`] writes down what passes one, for Wireshark.
#![forbid(unsafe_code)]

mod capabilities;
mod counters;
mod cut;
mod link;
mod not_taken;
mod packet;
pub mod pair;
mod parse;
pub mod pcap;
mod registered;
pub mod rx;
mod sink;
mod stacked;
pub mod tap;
pub mod xdp;

pub use capabilities::{Capabilities, Medium};
pub use link::Link;
pub use not_taken::NotTaken;
pub use packet::{Gso, Head, HeadTooLong, Packet, Train};
pub use pair::Pair;
pub use pcap::{Pcap, PcapConfig, PcapStats};
pub use registered::{NotRegistered, Registered};
pub use sink::{Sink, Sunk};
pub use stacked::Stacked;
pub use tap::{Tap, TapConfig};
pub use xdp::{Xdp, XdpConfig};
