//! IPv4 and IPv6 on one link: what comes, what leaves, and what is said about either by ICMP.
//!
//! Nothing is passed on: a packet is for us, or dropped. What is sent to an address of ours comes in again, without the link. Each is counted
//! once, by what was done with it, or why not ([`Stats`]).
//!
//! # What of IPv6 is not there
//!
//! Addresses and routes are the configuration's: routers' advertisements and redirects are not heard (nothing is configured by itself but the
//! address on the link alone), nor is it asked before an address is used whether somebody has it (RFC 4862, section 5.4), though whoever asks
//! about ours is told. Groups are joined without saying so (MLD): through a switch that keeps groups apart by that, and sends unknown ones to
//! nobody, neighbours' questions do not come. Flow labels are 0. Extension headers are taken up to 128 bytes, IPv6's own among them; there are
//! no jumbograms, and no IPsec.

mod address;
mod complaint;
mod icmp;
mod icmpv6;
mod input;
mod interface;
mod layout;
mod local;
mod ndp;
mod output;
mod paths;
mod reassembly;
mod stats;

pub use address::{Cidr, Route};
pub use complaint::{Complaint, Trouble};
pub use input::Input;
pub use interface::{BadConfig, Config, Interface};
pub use local::LOCAL_MTU;
pub use output::{NotSent, Outgoing};
pub use stats::{Reason, Stats};

pub(crate) use interface::is_host;
