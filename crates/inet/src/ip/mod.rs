//! IPv4 on one link: what comes, what leaves, and what is said about either by ICMP.
//!
//! Nothing is passed on: a packet is for us, or dropped. Each is counted once, by what was done with it, or why not ([`Stats`]).

mod address;
mod icmp;
mod input;
mod interface;
mod layout;
mod output;
mod stats;

pub use address::{Cidr, Route};
pub use icmp::{Complaint, Trouble};
pub use input::Input;
pub use interface::{BadConfig, Config, Interface};
pub use output::{NotSent, Outgoing};
pub use stats::{Reason, Stats};
