//! What both ends of a connection are: their addresses, and what their links do.

use std::net::Ipv4Addr;

use onecopy::advanced::link::{Capabilities, Medium};

/// Who sends.
pub const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Who receives.
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Ethernet's MTU, and all that a card does: super-segments, checksums.
pub fn capabilities() -> Capabilities {
    Capabilities::all(Medium::Ip, 1500)
}
