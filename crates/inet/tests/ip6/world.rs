//! Two hosts that have addresses of IPv6, too.

pub use crate::net::{A, B, Net, receive, send};
use onecopy_inet::ip::Cidr;
use onecopy_link::Capabilities;
use onecopy_link::pair::{Path, Side};
use std::net::Ipv6Addr;

pub const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
pub const B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

/// `b` listens at its one.
pub fn six(path: Path, seed: u64, of: Capabilities) -> Net {
    let mut net = Net::with(path, seed, of, |side, config| {
        let own = if side == Side::A { A6 } else { B6 };
        config.ip.addresses.push(Cidr::new(own, 64).unwrap());
    });
    net.server = B6.into();
    net
}
