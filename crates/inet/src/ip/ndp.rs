//! Who has which address, by NDP (RFC 4861): questions and answers, in both directions.
//!
//! Routers' advertisements and redirects are not heard: addresses and ways are the configuration's. Nor is it asked before an address is used
//! whether somebody has it (RFC 4862, section 5.4); who asks that about one of ours is told.

use super::icmp::Heard;
use super::interface::{Interface, is_host};
use super::stats::Reason;
use crate::neigh;
use crate::shard::Said;
use crate::wire::ndp::{group_mac, solicited};
use crate::wire::{EtherType, Ethernet, Icmpv6, Ip, Ipv6, Mac, Ndp, Protocol, checksum};
use onecopy_link::{Head, Medium, Packet};
use std::net::{IpAddr, Ipv6Addr};

/// All on the link.
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Nobody passes these on, so that one which has all its hops left comes from this link (section 11.2).
const HOPS: u8 = 255;

/// The answer was asked for; and it takes the place of what is known.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

impl Interface {
    /// Whether we are in the group.
    pub(super) fn is_member(&self, group: Ipv6Addr) -> bool {
        group == ALL_NODES && self.own_v6().next().is_some()
            || self.own_v6().any(|own| solicited(own) == group)
    }

    /// Whether a frame for many is for us, too.
    pub(super) fn hears(&self, mac: Mac) -> bool {
        matches!(mac.0, [0x33, 0x33, ..])
            && self.own_v6().any(|own| [group_mac(ALL_NODES), group_mac(solicited(own))].contains(&mac))
    }

    fn own_v6(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.addresses.iter().filter_map(|own| match own.address() {
            // Nobody else knows who that is.
            IpAddr::V6(address) if !address.is_loopback() => Some(address),
            _ => None,
        })
    }

    /// A question or an answer, whose checksum is right.
    pub(super) fn ndp(
        &mut self,
        now: u64,
        ip: &Ipv6,
        packet: &mut Packet,
        icmp: Icmpv6,
    ) -> Result<Heard, Reason> {
        if ip.ttl != HOPS || self.capabilities.medium != Medium::Ethernet {
            return Err(Reason::NdpMalformed);
        }
        let some = packet.len().min(Head::MAX);
        self.bring(packet, some, Reason::NdpMalformed)?;
        let ndp = Ndp::parse(&packet.head()[Icmpv6::LEN..]).map_err(|_| Reason::NdpMalformed)?;
        let good = |mac: Option<Mac>| mac.is_none_or(Mac::is_station);
        if ndp.target.is_multicast() || !good(ndp.source_mac) || !good(ndp.target_mac) {
            return Err(Reason::NdpMalformed);
        }
        match icmp {
            Icmpv6::Advertisement { flags } => self.advertised(now, ip, &ndp, flags),
            _ => self.solicited(now, ip, &ndp),
        }
    }

    fn advertised(&mut self, now: u64, ip: &Ipv6, ndp: &Ndp, flags: u8) -> Result<Heard, Reason> {
        let target = ndp.target.into();
        let answer = flags & SOLICITED != 0;
        // An answer is for who has asked (section 7.1.2).
        if answer && ip.to.is_multicast() {
            return Err(Reason::NdpMalformed);
        }
        if self.is_local(target) {
            return Err(Reason::ArpConflict);
        }
        // To a question that went to it alone it need not say where it is.
        let (mac, overrides) = (ndp.target_mac, flags & OVERRIDE != 0);
        let heard = self.said(now, Said { address: target, mac, answer, overrides });
        self.noted(heard)
    }

    fn solicited(&mut self, now: u64, ip: &Ipv6, ndp: &Ndp) -> Result<Heard, Reason> {
        let from = ip.from.into();
        // Who has no address yet says no hardware address, and asks those who may have it (section 7.1.1).
        let nobody = ip.from.is_unspecified();
        if nobody && (ndp.source_mac.is_some() || ip.to != solicited(ndp.target)) {
            return Err(Reason::NdpMalformed);
        }
        if !self.own_v6().any(|own| own == ndp.target) {
            return Err(Reason::ArpUnknown);
        }
        // What is said by the way is no answer, and makes nobody known.
        if let Some(mac) = ndp.source_mac
            && is_host(from)
        {
            let said = Said { address: from, mac: Some(mac), answer: false, overrides: true };
            let _ = self.said(now, said);
        }
        let (to, flags) = if nobody { (ALL_NODES, OVERRIDE) } else { (ip.from, SOLICITED | OVERRIDE) };
        let answer = Ndp { target: ndp.target, source_mac: None, target_mac: Some(self.mac) };
        let mac = if nobody { Some(group_mac(ALL_NODES)) } else { ndp.source_mac };
        let mac = mac.or_else(|| self.neighbours.get(from));
        let icmp = Icmpv6::Advertisement { flags };
        match mac {
            Some(mac) => self.say_ndp(mac, (ndp.target, to), icmp, &answer),
            // It has to be asked in its turn.
            None => self.answer_unknown(now, (ndp.target, to), icmp, &answer),
        }
        self.stats.ndp += 1;
        Ok(Heard::Done)
    }

    fn noted(&mut self, heard: neigh::Heard) -> Result<Heard, Reason> {
        match heard {
            neigh::Heard::Answer | neigh::Heard::Known => {
                self.stats.ndp += 1;
                Ok(Heard::Done)
            }
            neigh::Heard::TooSoon => Err(Reason::ArpTooSoon),
            neigh::Heard::Unknown => Err(Reason::ArpUnknown),
        }
    }

    /// Asks for a neighbour, by way of the group that it is in, or itself alone.
    pub(super) fn ask_v6(&mut self, address: Ipv6Addr, mac: Option<Mac>) {
        let Some(IpAddr::V6(from)) = self.source(address.into()) else { return };
        let to = if mac.is_some() { address } else { solicited(address) };
        let question = Ndp { target: address, source_mac: Some(self.mac), target_mac: None };
        self.stats.asked += 1;
        self.say_ndp(mac.unwrap_or(group_mac(to)), (from, to), Icmpv6::Solicitation, &question);
    }

    /// A message with all its headers but the link's.
    fn ndp_packet(&self, (from, to): (Ipv6Addr, Ipv6Addr), icmp: Icmpv6, ndp: &Ndp) -> Option<Packet> {
        let mut packet = Packet::default();
        ndp.write(packet.head_mut()).ok()?;
        let len = (Icmpv6::LEN + packet.len()) as u16;
        let ip = Ipv6 { ttl: HOPS, ..Ipv6::new(from, to, Protocol::ICMPV6, len) };
        icmp.write(packet.head_mut(), Ip::V6(ip).pseudo(len.into())).ok()?;
        checksum::leave_unfinished(&mut packet, 0, Icmpv6::CHECKSUM).ok()?;
        packet.finish().ok()?;
        ip.write(packet.head_mut()).ok()?;
        Some(packet)
    }

    fn say_ndp(&mut self, mac: Mac, ends: (Ipv6Addr, Ipv6Addr), icmp: Icmpv6, ndp: &Ndp) {
        self.stats.sent += 1;
        let Some(mut packet) = self.ndp_packet(ends, icmp, ndp) else {
            return self.drop_packet(Reason::Malformed);
        };
        let header = Ethernet { to: mac, from: self.mac, kind: EtherType::IPV6 };
        match header.write(packet.head_mut()) {
            Ok(()) if self.out.len() < self.queue => self.out.push_back(packet),
            Ok(()) => self.drop_packet(Reason::QueueFull),
            Err(_) => self.drop_packet(Reason::Malformed),
        }
    }

    fn answer_unknown(&mut self, now: u64, ends: (Ipv6Addr, Ipv6Addr), icmp: Icmpv6, ndp: &Ndp) {
        self.stats.sent += 1;
        match (self.ndp_packet(ends, icmp, ndp), self.routes.hop(ends.1.into())) {
            (Some(packet), Some(hop)) => {
                self.neighbours.wait(now, hop, packet);
                self.settle();
            }
            (None, _) => self.drop_packet(Reason::Malformed),
            (_, None) => self.drop_packet(Reason::NoRoute),
        }
    }
}
