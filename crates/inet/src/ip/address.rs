//! Addresses with their prefix, and where packets go.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address and how many of its bits are the network's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// All of IPv4.
    pub const ALL: Cidr = Cidr { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), prefix: 0 };
    /// All of IPv6.
    pub const ALL_V6: Cidr = Cidr { address: IpAddr::V6(Ipv6Addr::UNSPECIFIED), prefix: 0 };

    /// None for more bits than the address has.
    pub fn new(address: impl Into<IpAddr>, prefix: u8) -> Option<Cidr> {
        let address = address.into();
        let bits = if address.is_ipv4() { Ipv4Addr::BITS } else { Ipv6Addr::BITS };
        (u32::from(prefix) <= bits).then_some(Cidr { address, prefix })
    }

    /// The address.
    #[inline]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Bits of the network.
    #[inline]
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether `address` is in its network.
    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()) & mask_v4(self.prefix) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()) & mask_v6(self.prefix) == 0
            }
            _ => false,
        }
    }

    /// Whether it is a network, and no address in one: no bit is set behind the prefix.
    pub fn is_network(&self) -> bool {
        match self.address {
            IpAddr::V4(own) => own.to_bits() & !mask_v4(self.prefix) == 0,
            IpAddr::V6(own) => own.to_bits() & !mask_v6(self.prefix) == 0,
        }
    }

    /// The address of all in the network; none for one of a single host, or of two (RFC 3021), and none in IPv6.
    #[inline]
    pub fn broadcast(&self) -> Option<IpAddr> {
        self.group(|own, mask| own | !mask)
    }

    /// The network's own address, which hosts of old took for that of all (RFC 1122, section 3.3.6).
    #[inline]
    pub fn network(&self) -> Option<IpAddr> {
        self.group(|own, mask| own & mask)
    }

    #[inline]
    fn group(&self, make: impl Fn(u32, u32) -> u32) -> Option<IpAddr> {
        match self.address {
            IpAddr::V4(own) if self.prefix < 31 => {
                Some(Ipv4Addr::from_bits(make(own.to_bits(), mask_v4(self.prefix))).into())
            }
            _ => None,
        }
    }
}

#[inline]
fn mask_v4(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

#[inline]
fn mask_v6(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Where packets for a network go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network.
    pub to: Cidr,
    /// Who brings them on; they go straight there where nobody does.
    pub gateway: Option<IpAddr>,
}

/// Routes, the longest prefix first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Routes(Vec<Route>);

impl Routes {
    /// Looked at one after the other for each packet: so there are few.
    pub const MAX: usize = 64;

    /// One of a network that there is a route for takes its place. False where there are too many.
    pub fn add(&mut self, route: Route) -> bool {
        let same = |old: &Route| old.to.prefix == route.to.prefix && old.to.contains(route.to.address);
        if let Some(old) = self.0.iter_mut().find(|old| same(old)) {
            *old = route;
            return true;
        }
        let room = self.0.len() < Routes::MAX;
        if room {
            let at = self.0.partition_point(|old| old.to.prefix >= route.to.prefix);
            self.0.insert(at, route);
        }
        room
    }

    /// Who is to get a packet for `to` next.
    #[inline]
    pub fn hop(&self, to: IpAddr) -> Option<IpAddr> {
        self.0.iter().find(|route| route.to.contains(to)).map(|route| route.gateway.unwrap_or(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        let (address, prefix) = text.split_once('/').unwrap();
        Cidr::new(ip(address), prefix.parse().unwrap()).unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_prefix_parts_the_addresses() {
        let net = cidr("10.1.2.3/20");
        assert!(net.contains(ip("10.1.15.255")) && !net.contains(ip("10.1.16.0")));
        assert_eq!(net.broadcast(), Some(ip("10.1.15.255")));
        assert_eq!(net.network(), Some(ip("10.1.0.0")));
        assert_eq!((cidr("10.1.2.3/31").broadcast(), cidr("10.1.2.3/32").network()), (None, None));
        assert!(
            cidr("10.1.2.3/32").contains(ip("10.1.2.3")) && !cidr("10.1.2.3/32").contains(ip("10.1.2.2"))
        );
        assert!(cidr("10.1.16.0/20").is_network() && !net.is_network() && Cidr::ALL.is_network());
        assert!(cidr("10.1.2.3/32").is_network() && !cidr("0.0.0.1/0").is_network());
        assert!(Cidr::ALL.contains(ip("255.255.255.255")) && Cidr::new(ip("1.2.3.4"), 33).is_none());
    }

    #[test]
    fn a_prefix_of_ipv6_does_likewise() {
        let net = cidr("2001:db8:1:2::3/60");
        assert!(net.contains(ip("2001:db8:1:f::")) && !net.contains(ip("2001:db8:1:10::")));
        assert_eq!((net.broadcast(), net.network()), (None, None));
        assert!(cidr("::1/128").contains(ip("::1")) && !cidr("::1/128").contains(ip("::2")));
        assert!(Cidr::ALL_V6.contains(ip("ff02::1")) && Cidr::new(ip("::1"), 129).is_none());
        assert!(cidr("2001:db8:1::/48").is_network() && !net.is_network() && Cidr::ALL_V6.is_network());
        // Neither has anything of the other's.
        assert!(!Cidr::ALL_V6.contains(ip("10.0.0.1")) && !Cidr::ALL.contains(ip("::a00:1")));
    }

    #[test]
    fn the_longest_prefix_counts() {
        let mut routes = Routes::default();
        let mut add =
            |to, gateway: Option<&str>| routes.add(Route { to: cidr(to), gateway: gateway.map(ip) });
        assert!(add("0.0.0.0/0", Some("10.0.0.254")) && add("10.0.0.0/24", None));
        assert!(add("10.7.0.0/16", Some("10.0.0.1")) && add("10.7.7.0/24", Some("10.0.0.2")));
        assert!(add("10.7.7.9/24", Some("10.0.0.3")), "in the place of the one before");
        let hop = |to| routes.hop(ip(to)).unwrap();
        assert_eq!(hop("10.0.0.9"), ip("10.0.0.9"));
        assert_eq!(hop("10.7.1.1"), ip("10.0.0.1"));
        assert_eq!(hop("10.7.7.1"), ip("10.0.0.3"));
        assert_eq!(hop("8.8.8.8"), ip("10.0.0.254"));
        for number in 0..Routes::MAX - 4 {
            assert!(routes.add(Route { to: cidr(&format!("172.16.{number}.0/24")), gateway: None }));
        }
        assert!(!routes.add(Route { to: cidr("172.17.0.0/24"), gateway: None }));
        assert_eq!(Routes::default().hop(ip("10.0.0.9")), None);
    }
}
