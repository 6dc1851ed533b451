//! The interface itself: what it is made of, and its time.

use super::address::{Cidr, Route, Routes};
use super::icmp::{Complaint, Limits};
use super::layout::Pages;
use super::stats::{Reason, Stats};
use crate::key::{Key, Seed};
use crate::neigh::Cache;
use crate::wire::Mac;
use onecopy_link::{Capabilities, Medium, Packet};
use std::collections::VecDeque;
use std::fmt;
use std::net::Ipv4Addr;

/// How an interface is to be.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the link takes.
    pub capabilities: Capabilities,
    /// Our hardware address; of no meaning where the medium has none.
    pub mac: Mac,
    /// Our addresses. There is a route to the network of each.
    pub addresses: Vec<Cidr>,
    /// Routes beside those; at most 64 in all.
    pub routes: Vec<Route>,
    /// Where chance comes from.
    pub seed: Seed,
    /// Neighbours that are known at once, at most.
    pub neighbours: usize,
    /// Packets that wait to leave, at most.
    pub queue: usize,
}

impl Config {
    /// One of these addresses, 512 neighbours, and 4096 packets that wait to leave.
    pub fn new(capabilities: Capabilities, mac: Mac, addresses: &[Cidr], seed: Seed) -> Config {
        let (addresses, routes) = (addresses.to_vec(), Vec::new());
        Config { capabilities, mac, addresses, routes, seed, neighbours: 512, queue: 4096 }
    }

    /// Has what no route says go to `gateway`.
    #[must_use]
    pub fn gateway(mut self, gateway: Ipv4Addr) -> Config {
        self.routes.push(Route { to: Cidr::ALL, gateway: Some(gateway) });
        self
    }
}

/// Why an interface cannot be so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadConfig {
    /// The hardware address is a group's, or zero.
    Mac(Mac),
    /// No host can have this address.
    Address(Cidr),
    /// The gateway is on none of our networks.
    Gateway(Ipv4Addr),
    /// More routes than are looked at for each packet.
    Routes,
    /// The MTU is less than every host takes (RFC 791, section 3.2: 68), or more than IP's header can say.
    Mtu(u32),
}

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadConfig::Mac(mac) => {
                write!(
                    f,
                    "{mac} is no station's address; take one whose first byte is even, such as 02:00:00:00:00:01"
                )
            }
            BadConfig::Address(cidr) => {
                write!(f, "{cidr} is no address that a host can have; give it another one")
            }
            BadConfig::Gateway(gateway) => {
                write!(
                    f,
                    "the gateway {gateway} is on none of the networks of our addresses; give it an address there"
                )
            }
            BadConfig::Routes => write!(f, "more than {} routes; take larger networks", Routes::MAX),
            BadConfig::Mtu(mtu) => write!(f, "an MTU of {mtu} bytes, where 68 to 65535 can be"),
        }
    }
}

impl std::error::Error for BadConfig {}

/// IPv4 on one link.
///
/// Packets that came go in by [`Interface::input`], what transports send by [`Interface::output`]; what is to be transmitted comes out of
/// [`Interface::transmit`], and what went wrong with packets of ours, wherever, out of [`Input::Complaint`](super::Input) and
/// [`Interface::complaint`]. Whoever drives it comes back with [`Interface::advance`] when [`Interface::deadline`] says.
#[derive(Debug)]
pub struct Interface {
    pub(super) capabilities: Capabilities,
    pub(super) mac: Mac,
    pub(super) addresses: Vec<Cidr>,
    pub(super) routes: Routes,
    pub(super) neighbours: Cache,
    /// What leaves next, as the link takes it.
    pub(super) out: VecDeque<Packet>,
    pub(super) queue: usize,
    /// Parts of a super-segment, on their way to `out`.
    pub(super) parts: Vec<Packet>,
    pub(super) complaints: VecDeque<Complaint>,
    pub(super) limits: Limits,
    pub(super) ids: Ids,
    pub(super) pages: Pages,
    pub(super) stats: Stats,
}

impl Interface {
    /// One as `config` says.
    ///
    /// # Errors
    ///
    /// [`BadConfig`].
    pub fn new(config: Config) -> Result<Interface, BadConfig> {
        let Config { capabilities, mac, addresses, routes, seed, neighbours, queue } = config;
        if capabilities.medium == Medium::Ethernet && !mac.is_station() {
            return Err(BadConfig::Mac(mac));
        }
        if !(68..=65535).contains(&capabilities.mtu) {
            return Err(BadConfig::Mtu(capabilities.mtu));
        }
        let mut table = Routes::default();
        for own in &addresses {
            let address = own.address();
            let group = own.broadcast() == Some(address) || own.network() == Some(address);
            if group || !is_host(address) {
                return Err(BadConfig::Address(*own));
            }
            if !table.add(Route { to: *own, gateway: None }) {
                return Err(BadConfig::Routes);
            }
        }
        for route in routes {
            if let Some(gateway) = route.gateway
                && !addresses.iter().any(|own| own.contains(gateway))
            {
                return Err(BadConfig::Gateway(gateway));
            }
            if !table.add(route) {
                return Err(BadConfig::Routes);
            }
        }
        Ok(Interface {
            capabilities,
            mac,
            addresses,
            routes: table,
            neighbours: Cache::new(&seed, neighbours),
            out: VecDeque::new(),
            queue,
            parts: Vec::new(),
            complaints: VecDeque::new(),
            limits: Limits::new(),
            ids: Ids::new(&seed),
            pages: Pages::default(),
            stats: Stats::default(),
        })
    }

    /// What the link takes.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Bytes of the longest packet, IP's header among them.
    pub fn mtu(&self) -> u32 {
        self.capabilities.mtu
    }

    /// Our addresses.
    pub fn addresses(&self) -> &[Cidr] {
        &self.addresses
    }

    /// Whether `address` is ours.
    #[inline]
    pub fn is_local(&self, address: Ipv4Addr) -> bool {
        self.addresses.iter().any(|own| own.address() == address)
    }

    /// Whether `address` is that of all on a network of ours.
    #[inline]
    pub fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        let all = |own: &Cidr| own.broadcast() == Some(address) || own.network() == Some(address);
        address.is_broadcast() || self.addresses.iter().any(all)
    }

    /// Our address for packets to `to`: that of the network that the next hop is on, of several there the first one, else the first of all
    /// (RFC 1122, section 3.3.4.3).
    pub fn source(&self, to: Ipv4Addr) -> Option<Ipv4Addr> {
        let hop = self.routes.hop(to)?;
        // Of equals the last one is the greatest.
        let on = self.addresses.iter().rev().filter(|own| own.contains(hop)).max_by_key(|own| own.prefix());
        on.or(self.addresses.first()).map(|own| own.address())
    }

    /// A transport heard from `peer`: the way there is good.
    pub fn confirm(&mut self, now: u64, peer: Ipv4Addr) {
        if self.capabilities.medium == Medium::Ethernet
            && let Some(hop) = self.routes.hop(peer)
        {
            self.neighbours.confirm(now, hop);
        }
    }

    /// Runs what is due: questions about neighbours.
    pub fn advance(&mut self, now: u64) {
        self.neighbours.advance(now);
        self.settle();
    }

    /// When [`Interface::advance`] has something to do, at the latest.
    pub fn deadline(&self) -> Option<u64> {
        self.neighbours.deadline()
    }

    /// Trouble with a packet of ours that was found out here: a neighbour is silent.
    #[inline]
    pub fn complaint(&mut self) -> Option<Complaint> {
        self.complaints.pop_front()
    }

    /// Neighbours.
    pub fn neighbours(&self) -> &Cache {
        &self.neighbours
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Gives back memory that is not needed.
    pub fn rest(&mut self) {
        self.neighbours.rest();
        self.out.shrink_to_fit();
        self.parts.shrink_to_fit();
        self.complaints.shrink_to_fit();
    }

    pub(super) fn drop_packet(&mut self, reason: Reason) {
        self.stats.drop(reason);
    }
}

/// Whether a single host may have it.
pub(super) fn is_host(address: Ipv4Addr) -> bool {
    // "This network", loopback, groups, class E with the address of all.
    !matches!(address.octets()[0], 0 | 127 | 224..)
}

/// Numbers of packets that may be cut on their way: for each pair of hosts one after the other, so that none comes again soon (RFC 6864),
/// and nobody learns from one pair's what goes on between others.
#[derive(Debug)]
pub(super) struct Ids {
    key: Key,
    next: Box<[u16; 256]>,
}

impl Ids {
    fn new(seed: &Seed) -> Ids {
        let key = Key::derive(seed, "packet numbers");
        Ids { next: Box::new(std::array::from_fn(|number| key.secret(&[number as u8]) as u16)), key }
    }

    /// The first of `count` numbers.
    pub fn take(&mut self, from: Ipv4Addr, to: Ipv4Addr, protocol: u8, count: u16) -> u16 {
        let ([a, b, c, d], [e, f, g, h]) = (from.octets(), to.octets());
        let place = self.key.secret(&[a, b, c, d, e, f, g, h, protocol]) as usize % self.next.len();
        let next = self.next[place];
        self.next[place] = next.wrapping_add(count);
        next
    }
}
