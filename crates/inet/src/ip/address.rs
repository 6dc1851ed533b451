//! Addresses with their prefix, and where packets go.

use std::fmt;
use std::net::Ipv4Addr;

/// An address and how many of its bits are the network's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: Ipv4Addr,
    prefix: u8,
}

impl Cidr {
    /// All there is.
    pub const ALL: Cidr = Cidr { address: Ipv4Addr::UNSPECIFIED, prefix: 0 };

    /// None for more than 32 bits.
    pub fn new(address: Ipv4Addr, prefix: u8) -> Option<Cidr> {
        (prefix <= 32).then_some(Cidr { address, prefix })
    }

    /// The address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Bits of the network.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    #[inline]
    fn mask(&self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0)
    }

    /// Whether `address` is in its network.
    #[inline]
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        (address.to_bits() ^ self.address.to_bits()) & self.mask() == 0
    }

    /// The address of all in the network; none for one of a single host, or of two (RFC 3021).
    pub fn broadcast(&self) -> Option<Ipv4Addr> {
        (self.prefix < 31).then(|| Ipv4Addr::from_bits(self.address.to_bits() | !self.mask()))
    }

    /// The network's own address, which hosts of old took for that of all (RFC 1122, section 3.3.6).
    pub fn network(&self) -> Option<Ipv4Addr> {
        (self.prefix < 31).then(|| Ipv4Addr::from_bits(self.address.to_bits() & self.mask()))
    }
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
    pub gateway: Option<Ipv4Addr>,
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
    pub fn hop(&self, to: Ipv4Addr) -> Option<Ipv4Addr> {
        self.0.iter().find(|route| route.to.contains(to)).map(|route| route.gateway.unwrap_or(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        let (address, prefix) = text.split_once('/').unwrap();
        Cidr::new(address.parse().unwrap(), prefix.parse().unwrap()).unwrap()
    }

    fn ip(text: &str) -> Ipv4Addr {
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
        assert!(Cidr::ALL.contains(ip("255.255.255.255")) && Cidr::new(ip("1.2.3.4"), 33).is_none());
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
