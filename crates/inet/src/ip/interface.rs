//! The interface itself: what it is made of, and its time.

use super::address::{Cidr, Route, Routes};
use super::complaint::{Complaint, Limits};
use super::layout::Pages;
use super::local::{LOCAL_MTU, Local};
use super::paths::Paths;
use super::reassembly::Reassembly;
use super::stats::{Reason, Stats};
use crate::key::{self, Key, Seed};
use crate::neigh::Cache;
use crate::shard::{Handed, Others, Share};
use crate::wire::ndp::link_local;
use crate::wire::{Ipv6, Mac};
use onecopy_link::{Capabilities, Medium, Packet};
use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How an interface is to be.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the link takes.
    pub capabilities: Capabilities,
    /// Our hardware address; of no meaning where the medium has none.
    pub mac: Mac,
    /// Our addresses. There is a route to the network of each. One of 127.0.0.0/8 makes that whole network ours, which the link neither
    /// brings nor takes. On Ethernet, who has one of IPv6 has one on the link alone, too, which is made of the hardware address (RFC 4291,
    /// section 2.5.6).
    pub addresses: Vec<Cidr>,
    /// Routes beside those; at most 64 in all.
    pub routes: Vec<Route>,
    /// Where chance comes from.
    pub seed: Seed,
    /// Neighbours that are known at once, at most.
    pub neighbours: usize,
    /// Packets that wait to leave, at most.
    pub queue: usize,
    /// Its share of a host's flows, where other stacks have the rest.
    pub share: Option<Share>,
}

impl Config {
    /// One of these addresses, 512 neighbours, and 4096 packets that wait to leave.
    pub fn new(capabilities: Capabilities, mac: Mac, addresses: &[Cidr], seed: Seed) -> Config {
        let (addresses, routes) = (addresses.to_vec(), Vec::new());
        Config { capabilities, mac, addresses, routes, seed, neighbours: 512, queue: 4096, share: None }
    }

    /// Has what no route says, of its family, go to `gateway`.
    #[must_use]
    pub fn gateway(mut self, gateway: impl Into<IpAddr>) -> Config {
        let gateway = gateway.into();
        let to = if gateway.is_ipv4() { Cidr::ALL } else { Cidr::ALL_V6 };
        self.routes.push(Route { to, gateway: Some(gateway) });
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
    Gateway(IpAddr),
    /// The gateway is an address of ours: nothing would ever leave.
    OwnGateway(IpAddr),
    /// The network is of one family, its gateway of the other.
    Family {
        /// The network.
        to: Cidr,
        /// Who was to bring packets there.
        gateway: IpAddr,
    },
    /// More routes than are looked at for each packet.
    Routes,
    /// The MTU is less than every host takes (RFC 791, section 3.2: 68; RFC 8200, section 5: 1280), or more than IP's header can say.
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
            BadConfig::OwnGateway(gateway) => {
                write!(f, "the gateway {gateway} is an address of ours; give it that of a router")
            }
            BadConfig::Family { to, gateway } => {
                write!(
                    f,
                    "{to} is of another family than its gateway {gateway}; give it a router of its own family"
                )
            }
            BadConfig::Routes => write!(f, "more than {} routes; take larger networks", Routes::MAX),
            BadConfig::Mtu(mtu) => {
                write!(f, "an MTU of {mtu} bytes, where 68 to 65535 can be, and with IPv6 1280 at least")
            }
        }
    }
}

impl std::error::Error for BadConfig {}

/// IPv4 and IPv6 on one link.
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
    /// Between whom the last packet went.
    pub(super) usual: Option<Pair>,
    pub(super) neighbours: Cache,
    /// What leaves next, as the link takes it.
    pub(super) out: VecDeque<Packet>,
    pub(super) queue: usize,
    /// What was sent to addresses of ours.
    pub(super) local: Local,
    /// Parts of a super-segment, on their way to `out`.
    pub(super) parts: Vec<Packet>,
    /// Packets that came in parts.
    pub(super) parts_in: Reassembly,
    pub(super) paths: Paths,
    pub(super) complaints: VecDeque<Complaint>,
    pub(super) limits: Limits,
    pub(super) ids: Ids,
    pub(super) pages: Pages,
    pub(super) stats: Stats,
    /// Other stacks of the same host, where there are some.
    pub(crate) others: Option<Others>,
}

/// Two hosts' addresses of which all is known that is asked of a packet's, since nothing of ours changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    /// One of ours, and no loopback.
    pub ours: IpAddr,
    /// Another host's, not that of all.
    pub theirs: IpAddr,
    /// Who is to get packets for it next.
    pub hop: IpAddr,
}

impl Interface {
    /// One as `config` says.
    ///
    /// # Errors
    ///
    /// [`BadConfig`].
    pub fn new(config: Config) -> Result<Interface, BadConfig> {
        let Config { capabilities, mac, mut addresses, routes, seed, neighbours, queue, share } = config;
        if capabilities.medium == Medium::Ethernet && !mac.is_station() {
            return Err(BadConfig::Mac(mac));
        }
        if !(68..=65535).contains(&capabilities.mtu) {
            return Err(BadConfig::Mtu(capabilities.mtu));
        }
        let any_v6 = addresses.iter().any(|own| own.address().is_ipv6() && !own.address().is_loopback());
        if any_v6 && capabilities.mtu < Ipv6::MIN_MTU.into() {
            return Err(BadConfig::Mtu(capabilities.mtu));
        }
        let has_local = addresses
            .iter()
            .any(|own| matches!(own.address(), IpAddr::V6(own) if own.is_unicast_link_local()));
        if any_v6 && !has_local && capabilities.medium == Medium::Ethernet {
            addresses.extend(Cidr::new(link_local(mac), 64));
        }
        let mut table = Routes::default();
        for own in &addresses {
            let address = own.address();
            let group = own.broadcast() == Some(address) || own.network() == Some(address);
            // Those of 127.0.0.0/8, and ::1, are this host's, if anybody wants them.
            let loops = address.is_loopback();
            if group || !is_host(address) && !loops {
                return Err(BadConfig::Address(*own));
            }
            if !table.add(Route { to: *own, gateway: None }) {
                return Err(BadConfig::Routes);
            }
        }
        for route in routes {
            if let Some(gateway) = route.gateway {
                if gateway.is_ipv4() != route.to.address().is_ipv4() {
                    return Err(BadConfig::Family { to: route.to, gateway });
                }
                if addresses.iter().any(|own| own.address() == gateway) {
                    return Err(BadConfig::OwnGateway(gateway));
                }
                if gateway.is_loopback() || !addresses.iter().any(|own| own.contains(gateway)) {
                    return Err(BadConfig::Gateway(gateway));
                }
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
            usual: None,
            neighbours: Cache::new(&seed, neighbours),
            out: VecDeque::new(),
            queue,
            local: Local::default(),
            parts: Vec::new(),
            parts_in: Reassembly::default(),
            paths: Paths::new(&seed),
            complaints: VecDeque::new(),
            limits: Limits::new(),
            ids: Ids::new(&seed, share),
            pages: Pages::default(),
            stats: Stats::default(),
            others: share.map(Others::new),
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

    /// From now on at most `packets` wait to leave (`ip link set ... txqueuelen`): what is sent beyond that is dropped, and its sender told.
    pub fn set_queue(&mut self, packets: usize) {
        self.queue = packets;
    }

    /// The longest packet to `to` that leaves whole, IP's header among its bytes: as routers say, where somebody else has the address.
    #[inline]
    pub fn mtu_to(&self, now: u64, to: IpAddr) -> u32 {
        if self.is_local(to) { LOCAL_MTU } else { self.path_mtu(now, to) }
    }

    /// The same of an address that is not ours.
    #[inline]
    pub(crate) fn path_mtu(&self, now: u64, to: IpAddr) -> u32 {
        self.paths.mtu(now, to, self.capabilities.mtu)
    }

    /// A router says what its next link takes, of a packet that its transport knows. For ten minutes it is believed, by all who send there; it
    /// makes no way longer, nor shorter than a network may have (net.ipv4.route.min_pmtu; RFC 8200, section 5). Whether it is news.
    pub fn path_shrunk(&mut self, now: u64, to: IpAddr, mtu: u16) -> bool {
        let least = if to.is_ipv4() { 552 } else { Ipv6::MIN_MTU };
        self.paths.shrink(now, to, mtu.max(least), self.capabilities.mtu)
    }

    /// Our addresses.
    pub fn addresses(&self) -> &[Cidr] {
        &self.addresses
    }

    /// Whether `address` is ours.
    #[inline]
    pub fn is_local(&self, address: IpAddr) -> bool {
        let loops = matches!(address, IpAddr::V4(address) if address.is_loopback());
        let all = |own: &Cidr| loops && own.address().is_ipv4() && own.address().is_loopback();
        self.addresses.iter().any(|own| own.address() == address || all(own))
    }

    /// Whether packets went lately from `ours` to `theirs`, and to whom next.
    #[inline]
    pub(crate) fn usual(&self, ours: IpAddr, theirs: IpAddr) -> Option<IpAddr> {
        self.usual.filter(|pair| pair.ours == ours && pair.theirs == theirs).map(|pair| pair.hop)
    }

    /// Whether `address` is that of all on a network of ours.
    #[inline]
    pub fn is_broadcast(&self, address: IpAddr) -> bool {
        let all = |own: &Cidr| own.broadcast() == Some(address) || own.network() == Some(address);
        address == IpAddr::V4(Ipv4Addr::BROADCAST) || !address.is_loopback() && self.addresses.iter().any(all)
    }

    /// Our address for packets to `to`: that of the network that the next hop is on, of several there the first one, else the first of all
    /// (RFC 1122, section 3.3.4.3). For one of ours it is that one, for others of 127.0.0.0/8 the one there that is ours by name.
    pub fn source(&self, to: IpAddr) -> Option<IpAddr> {
        if self.is_local(to) {
            let same = self.addresses.iter().find(|own| own.address() == to);
            return same.map(Cidr::address).or_else(|| self.loopback_like(to));
        }
        let hop = self.routes.hop(to).filter(|_| !to.is_loopback())?;
        if let IpAddr::V6(to) = to {
            return self.source_v6(to).map(IpAddr::V6);
        }
        let usable =
            self.addresses.iter().rev().filter(|own| own.contains(hop) && !own.address().is_loopback());
        // Of equals the last one is the greatest.
        let on = usable.max_by_key(|own| own.prefix());
        on.map(Cidr::address).or_else(|| self.first_like(to))
    }

    /// RFC 6724, section 5: of the same scope, else of the next larger one, else of the largest (rule 2); then the one that has the longest
    /// prefix in common with `to` (rule 8). The other rules are of what there is not here: addresses that are deprecated, or of homes, or
    /// temporary, other links, and tables of labels.
    fn source_v6(&self, to: Ipv6Addr) -> Option<Ipv6Addr> {
        let own = self.addresses.iter().rev().filter_map(|own| match own.address() {
            IpAddr::V6(address) if !address.is_loopback() => Some((address, own.prefix())),
            _ => None,
        });
        let wanted = scope(to);
        let key = |&(address, prefix): &(Ipv6Addr, u8)| {
            let scope = scope(address);
            let fits = match scope >= wanted {
                true => u8::MAX - scope,
                false => scope,
            };
            let common = (address.to_bits() ^ to.to_bits()).leading_zeros().min(prefix.into());
            (scope >= wanted, fits, common)
        };
        // Of equals the last one is the greatest.
        own.max_by_key(key).map(|(address, _)| address)
    }

    /// The first of our addresses of the family that `other` is of, for packets that leave.
    pub fn first_like(&self, other: IpAddr) -> Option<IpAddr> {
        let mut all = self.addresses.iter().map(Cidr::address);
        all.find(|own| own.is_ipv4() == other.is_ipv4() && !own.is_loopback())
    }

    /// The first of those of the same family that are for this host alone.
    pub fn loopback_like(&self, other: IpAddr) -> Option<IpAddr> {
        let mut all = self.addresses.iter().map(Cidr::address);
        all.find(|own| own.is_ipv4() == other.is_ipv4() && own.is_loopback())
    }

    /// A transport heard from `peer`: the way there is good.
    pub fn confirm(&mut self, now: u64, peer: IpAddr) {
        if self.capabilities.medium == Medium::Ethernet
            && let Some(hop) = self.routes.hop(peer)
        {
            self.neighbours.confirm(now, hop);
        }
    }

    /// Runs what is due: questions about neighbours, and packets whose parts are waited for no longer.
    pub fn advance(&mut self, now: u64) {
        self.neighbours.advance(now);
        self.lose_overdue(now);
        self.settle();
    }

    /// When [`Interface::advance`] has something to do, or [`Interface::input_looped`], at the latest.
    pub fn deadline(&self) -> Option<u64> {
        let all = [self.neighbours.deadline(), self.parts_in.deadline(), self.local.deadline()];
        all.into_iter().flatten().min()
    }

    /// Trouble with a packet of ours that was found out here: a neighbour is silent.
    #[inline]
    pub fn complaint(&mut self) -> Option<Complaint> {
        self.complaints.pop_front()
    }

    /// The next thing for another stack of the same host, and which one that is.
    #[inline]
    pub fn handed(&mut self) -> Option<(usize, Handed)> {
        self.others.as_mut()?.next()
    }

    /// Its share of the host's flows; none where all are its own.
    pub fn share(&self) -> Option<&Share> {
        self.others.as_ref().map(Others::share)
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
        self.local.rest();
        self.parts.shrink_to_fit();
        self.parts_in.rest();
        self.paths.rest();
        self.complaints.shrink_to_fit();
        if let Some(others) = &mut self.others {
            others.rest();
        }
    }

    pub(super) fn drop_packet(&mut self, reason: Reason) {
        self.stats.drop(reason);
    }
}

/// Whether a single host may have it.
#[inline]
pub(crate) fn is_host(address: IpAddr) -> bool {
    match address {
        // "This network", loopback, groups, class E with the address of all.
        IpAddr::V4(address) => !matches!(address.octets()[0], 0 | 127 | 224..),
        // One of IPv4 in IPv6's form is of programs alone (RFC 4291, section 2.5.5.2).
        IpAddr::V6(address) => {
            !address.is_unspecified()
                && !address.is_loopback()
                && !address.is_multicast()
                && address.to_ipv4_mapped().is_none()
        }
    }
}

/// How far an address of IPv6 reaches (RFC 6724, section 3.1; RFC 4291, section 2.7).
fn scope(address: Ipv6Addr) -> u8 {
    match address.octets() {
        [0xff, scope, ..] => scope & 15,
        _ if address.is_unicast_link_local() || address.is_loopback() => 2,
        _ => 14,
    }
}

/// Numbers of packets that may be cut on their way: for each pair of hosts one after the other, so that none comes again soon (RFC 6864),
/// and nobody learns from one pair's what goes on between others.
#[derive(Debug)]
pub(super) struct Ids {
    key: Key,
    next: Box<[u32; 256]>,
    share: Option<Share>,
}

impl Ids {
    fn new(seed: &Seed, share: Option<Share>) -> Ids {
        let key = Key::derive(seed, "packet numbers");
        let next = Box::new(std::array::from_fn(|number| key.secret(&[number as u8]) as u32));
        Ids { next, key, share }
    }

    /// The first of `count` numbers.
    pub fn take(&mut self, from: IpAddr, to: IpAddr, protocol: u8, count: u16) -> u32 {
        let place = key::of_pair(from, to, [protocol], |bytes| self.key.secret(bytes));
        let place = place as usize % self.next.len();
        let next = self.next[place];
        let next = self.share.map_or(next, |share| share.fit(next, count));
        self.next[place] = next.wrapping_add(count.into());
        self.share.map_or(next, |share| share.number(next))
    }
}
