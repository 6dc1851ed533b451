//! Packets out: headers in front, then to the neighbour, then as the link takes them.

use super::complaint::Complaint;
use super::interface::{Interface, Pair, is_host};
use super::stats::Reason;
use crate::neigh::Hop;
use crate::wire::arp::Operation;
use crate::wire::ipv6::Fragment;
use crate::wire::{Arp, EtherType, Ethernet, Ip, Ipv4, Ipv6, Mac, Protocol};
use onecopy_chain::Checksum;
use onecopy_chain::notify::{Fate, Segment};
use onecopy_link::{Gso, Head, Medium, NotTaken, Packet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

/// What is said of a packet that is to be sent, beside what is in it.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// Our address.
    pub from: IpAddr,
    /// Whom it is for.
    pub to: IpAddr,
    /// What it is.
    pub protocol: Protocol,
    /// The type of service, or traffic class, [`Ecn`](crate::wire::Ecn) in it.
    pub service: u8,
    /// Hops.
    pub ttl: u8,
    /// Nobody may cut it; in IPv6 nobody does on its way.
    pub dont_fragment: bool,
    /// Its number, of a super-segment that of the first packet; one is chosen where it is None (0 for what nobody may cut).
    pub id: Option<u16>,
}

impl Outgoing {
    /// The kernel's default: net.ipv4.ip_default_ttl.
    pub const TTL: u8 = 64;

    /// Nothing particular: 64 hops, and nobody may cut it.
    pub fn new(from: impl Into<IpAddr>, to: impl Into<IpAddr>, protocol: Protocol) -> Outgoing {
        let (from, to) = (from.into(), to.into());
        Outgoing { from, to, protocol, service: 0, ttl: Outgoing::TTL, dont_fragment: true, id: None }
    }
}

/// A packet is not sent, for a reason that is known at once. It was counted and freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotSent(pub Reason);

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let next = match self.0 {
            Reason::NoRoute => "add a route",
            Reason::BadAddress => "send it from an address of ours to another host's",
            Reason::TooLong | Reason::Fragments => "send it in parts",
            Reason::DeviceMemory => "copy it to the host first",
            Reason::QueueFull => "send it again once some have left",
            _ => "build it anew",
        };
        write!(f, "the packet was dropped, since {}; {next}", self.0)
    }
}

impl std::error::Error for NotSent {}

impl Interface {
    /// Sends `packet`, whose head begins with the transport's header, and whose [`Checksum::Partial`] and [`Gso`] count from there
    /// (whatever [`Gso::network`] says): writes the headers before that, has it wait where the neighbour is not known yet, and makes of
    /// it what the link takes: checksums are finished, super-segments cut, where it does neither. What is longer than the way takes, and may
    /// be cut, is sent in parts.
    ///
    /// # Errors
    ///
    /// [`NotSent`]: it was dropped. What goes wrong later comes by [`Interface::complaint`].
    pub fn output(&mut self, now: u64, about: &Outgoing, packet: Packet) -> Result<(), NotSent> {
        self.stats.sent += 1;
        let done = self.send(now, about, packet);
        if let Err(reason) = done {
            self.drop_packet(reason);
        }
        done.map_err(NotSent)
    }

    fn send(&mut self, now: u64, about: &Outgoing, mut packet: Packet) -> Result<(), Reason> {
        let (hop, broadcast) = match self.usual(about.from, about.to) {
            Some(hop) => (hop, false),
            None if !self.is_local(about.from) => return Err(Reason::BadAddress),
            None if self.is_local(about.to) => return self.loop_back(now, about, packet),
            None => self.way(about)?,
        };
        let mtu = self.path_mtu(now, about.to) as usize;
        let whole = Ip::header_len(about.to) + packet.len();
        if whole > mtu && !about.dont_fragment && packet.gso().is_none() {
            return self.in_parts(now, about, hop, broadcast, mtu, packet);
        }
        self.write(about, &mut packet)?;
        self.hand(now, hop, broadcast, packet)
    }

    /// To whom a packet goes next that leaves here, and whether it is for all on a network.
    fn way(&mut self, about: &Outgoing) -> Result<(IpAddr, bool), Reason> {
        // (Nobody else knows whom to answer.)
        if about.from.is_loopback() {
            return Err(Reason::BadAddress);
        }
        let broadcast = self.is_broadcast(about.to);
        if !broadcast && !is_host(about.to) || broadcast && about.protocol == Protocol::TCP {
            return Err(Reason::BadAddress);
        }
        if broadcast {
            return Ok((about.to, true));
        }
        let hop = self.routes.hop(about.to).ok_or(Reason::NoRoute)?;
        self.usual = Some(Pair { ours: about.from, theirs: about.to, hop });
        Ok((hop, false))
    }

    /// Takes a packet to an address of ours.
    fn loop_back(&mut self, now: u64, about: &Outgoing, mut packet: Packet) -> Result<(), Reason> {
        let ip = self.header(about, packet.len(), &packet)?;
        if self.local.len() >= self.queue {
            return Err(Reason::QueueFull);
        }
        packet.set_checksum(Checksum::Verified).map_err(|_| Reason::Malformed)?;
        packet.set_fate(Fate::Sent);
        self.local.push(now, ip, packet);
        Ok(())
    }

    /// Packets that were sent to addresses of ours, and have not come in again.
    pub fn looped(&self) -> usize {
        self.local.len()
    }

    /// Hands a packet with IP's header to the link, or has it wait for the neighbour.
    fn hand(&mut self, now: u64, hop: IpAddr, broadcast: bool, packet: Packet) -> Result<(), Reason> {
        if self.out.len() >= self.queue {
            return Err(Reason::QueueFull);
        }
        if self.capabilities.medium == Medium::Ip {
            return self.leave(packet);
        }
        if broadcast {
            return self.frame(Mac::BROADCAST, packet);
        }
        match self.neighbours.hop(now, hop) {
            Hop::To(mac) => self.frame(mac, packet),
            Hop::Unknown => {
                // What the link does not take is told now, while there is somebody to tell.
                self.check(&packet)?;
                self.neighbours.wait(now, hop, packet);
                self.settle();
                Ok(())
            }
        }
    }

    /// Sends it in parts that the way takes.
    #[cold]
    fn in_parts(
        &mut self,
        now: u64,
        about: &Outgoing,
        hop: IpAddr,
        broadcast: bool,
        mtu: usize,
        mut packet: Packet,
    ) -> Result<(), Reason> {
        let len = packet.len();
        // Whoever puts it together can say no more.
        let most = usize::from(u16::MAX) - if about.to.is_ipv4() { Ipv4::LEN } else { 0 };
        if len > most {
            return Err(Reason::TooLong);
        }
        let between = if about.to.is_ipv4() { 0 } else { Fragment::LEN };
        // Of all but the last a multiple of 8. An MTU is 68 bytes at least.
        let each = (mtu - Ip::header_len(about.to) - between) & !7;
        if self.room() < len.div_ceil(each) {
            return Err(Reason::QueueFull);
        }
        // Only the whole has a checksum.
        packet.finish().map_err(|_| Reason::DeviceMemory)?;
        let id = self.ids.take(about.from, about.to, about.protocol.0, 1);
        let id = about.id.map_or(id, u32::from);
        let (mut head, mut rest) = packet.into_parts();
        let mut offset = 0;
        while offset < len {
            let size = each.min(len - offset);
            let (more, front) = (offset + size < len, head.len());
            let bytes = size.checked_sub(front).ok_or(Reason::Malformed)?;
            let behind =
                if more { rest.divide(bytes).map_err(|_| Reason::Malformed)? } else { Segment::default() };
            let mut part = Packet::from(std::mem::replace(&mut rest, behind));
            *part.head_mut() = std::mem::take(&mut head);
            self.part(about, (id, offset as u16, more), size, &mut part)?;
            self.hand(now, hop, broadcast, part)?;
            offset += size;
        }
        self.stats.fragmented += 1;
        Ok(())
    }

    /// Puts the headers of a part of `size` bytes in front.
    fn part(
        &mut self,
        about: &Outgoing,
        (id, offset, more): (u32, u16, bool),
        size: usize,
        part: &mut Packet,
    ) -> Result<(), Reason> {
        // What is of all is of each; it has its number, and nobody knows another one of it.
        let about = &Outgoing { id: Some(id as u16), ..*about };
        let head = part.head_mut();
        let between = match about.to {
            IpAddr::V4(_) => Ok(0),
            IpAddr::V6(_) => {
                Fragment { offset, more, id }.write(head, about.protocol).map(|()| Fragment::LEN)
            }
        };
        let between = between.map_err(|_| Reason::Malformed)?;
        let header = match self.header(about, size + between, part)? {
            Ip::V4(ip) => Ip::V4(Ipv4 { more_fragments: more, offset, ..ip }),
            Ip::V6(ip) => Ip::V6(Ipv6 { protocol: Protocol::FRAGMENT, ..ip }),
        };
        header.write(part.head_mut()).map_err(|_| Reason::Malformed)
    }

    /// Packets that may be sent before too many wait to leave. (A super-segment that the link does not cut is as many as it is cut to;
    /// the last one may go beyond that.)
    pub fn room(&self) -> usize {
        self.queue.saturating_sub(self.out.len().max(self.local.len()))
    }

    /// The next packet for the link.
    #[inline]
    pub fn transmit(&mut self) -> Option<Packet> {
        self.out.pop_front()
    }

    /// Puts IP's header in front.
    fn write(&mut self, about: &Outgoing, packet: &mut Packet) -> Result<(), Reason> {
        let network = self.capabilities.medium.header_len();
        let len = packet.len();
        let gso = packet.gso().map(|gso| Gso { network: network as u8, ..gso });
        let ip = self.header(about, len, packet)?;
        let header = Ip::header_len(about.to);
        let checksum = packet.checksum();
        ip.write(packet.head_mut()).map_err(|_| Reason::Malformed)?;
        packet.set_gso(gso);
        if let Checksum::Partial { start, offset } = checksum {
            // Counted with the link's header before it; it is put there next ([`Interface::frame`] sets it).
            let start = start.checked_add(header as u16).ok_or(Reason::Malformed)?;
            packet.set_checksum(Checksum::Partial { start, offset }).map_err(|_| Reason::Malformed)?;
        }
        Ok(())
    }

    /// IP's header for `len` bytes.
    pub(super) fn header(&mut self, about: &Outgoing, len: usize, packet: &Packet) -> Result<Ip, Reason> {
        let payload_len = u16::try_from(len).map_err(|_| Reason::TooLong)?;
        let Outgoing { protocol, ttl, service, dont_fragment, .. } = *about;
        match (about.from, about.to) {
            (IpAddr::V4(_), IpAddr::V4(_)) if len + Ipv4::LEN > usize::from(u16::MAX) => Err(Reason::TooLong),
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let id = about.id.unwrap_or_else(|| {
                    // Each part of a train gets one; what nobody cuts needs none (RFC 6864, section 4.1).
                    let all = packet.payload().payload().len();
                    let parts = packet.gso().map_or(1, |gso| all.div_ceil(gso.size.max(1).into()));
                    match dont_fragment {
                        true => 0,
                        false => self.ids.take(about.from, about.to, protocol.0, parts as u16) as u16,
                    }
                });
                let usual = Ipv4::new(from, to, protocol, payload_len);
                Ok(Ip::V4(Ipv4 { ttl, service, id, dont_fragment, ..usual }))
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                Ok(Ip::V6(Ipv6 { ttl, service, ..Ipv6::new(from, to, protocol, payload_len) }))
            }
            _ => Err(Reason::BadAddress),
        }
    }

    /// Puts the link's header in front, and has it leave.
    fn frame(&mut self, to: Mac, mut packet: Packet) -> Result<(), Reason> {
        let checksum = packet.checksum();
        let kind = match packet.head().first().map(|first| first >> 4) {
            Some(6) => EtherType::IPV6,
            _ => EtherType::IPV4,
        };
        let header = Ethernet { to, from: self.mac, kind };
        header.write(packet.head_mut()).map_err(|_| Reason::Malformed)?;
        if let Checksum::Partial { start, offset } = checksum {
            let start = start.checked_add(Ethernet::LEN as u16).ok_or(Reason::Malformed)?;
            packet.set_checksum(Checksum::Partial { start, offset }).map_err(|_| Reason::Malformed)?;
        }
        self.leave(packet)
    }

    /// Whether the link will take a packet that has no header of the link's yet, as it is or finished and cut.
    fn check(&self, packet: &Packet) -> Result<(), Reason> {
        let room = self.capabilities.mtu as usize;
        let each = packet.gso().map_or(packet.payload().payload().len(), |gso| gso.size.into());
        let payload = packet.payload().payload();
        if packet.head().len() + each.min(payload.len()) > room {
            return Err(Reason::TooLong);
        }
        if payload.kind() == Some(onecopy_chain::Kind::Device) && !self.capabilities.unreadable {
            return Err(Reason::DeviceMemory);
        }
        if packet.gso().is_none() && payload.fragment_count() > self.capabilities.fragments {
            return Err(Reason::Fragments);
        }
        Ok(())
    }

    /// Makes of a whole packet what the link takes, and puts it where it leaves.
    fn leave(&mut self, mut packet: Packet) -> Result<(), Reason> {
        loop {
            match self.capabilities.takes(&packet) {
                Ok(()) => {
                    self.out.push_back(packet);
                    return Ok(());
                }
                Err(NotTaken::Checksum) => {
                    packet.finish().map_err(|_| Reason::DeviceMemory)?;
                    self.stats.finished += 1;
                }
                Err(NotTaken::Segmentation) => return self.cut(packet),
                // It may be too long, or of too many fragments, in one piece alone.
                Err(NotTaken::TooLong { .. } | NotTaken::Fragments { .. }) if packet.gso().is_some() => {
                    return self.cut(packet);
                }
                Err(NotTaken::TooLong { .. }) => return Err(Reason::TooLong),
                Err(NotTaken::Fragments { .. }) => return Err(Reason::Fragments),
                Err(NotTaken::Unreadable) => return Err(Reason::DeviceMemory),
                Err(_) => return Err(Reason::Malformed),
            }
        }
    }

    /// Cuts a super-segment. Where the link takes none of its parts all go, as one that was dropped.
    fn cut(&mut self, packet: Packet) -> Result<(), Reason> {
        let mut parts = std::mem::take(&mut self.parts);
        let (before, finished) = (self.out.len(), self.stats.finished);
        let cut = packet.cut(|part| parts.push(part)).map_err(|_| Reason::Malformed);
        let done = cut.and_then(|()| parts.drain(..).try_for_each(|part| self.leave(part)));
        if done.is_ok() {
            self.stats.cut += 1;
        } else {
            self.out.truncate(before);
            self.stats.finished = finished;
        }
        parts.clear();
        self.parts = parts;
        done
    }

    /// Does what the neighbours' state asks for: sends questions, and what waited for an answer, and says what waited in vain.
    pub(super) fn settle(&mut self) {
        while let Some((mac, packet)) = self.neighbours.ready() {
            let done = match self.out.len() >= self.queue {
                true => Err(Reason::QueueFull),
                false => self.frame(mac, packet),
            };
            if let Err(reason) = done {
                self.drop_packet(reason);
            }
        }
        while let Some(ask) = self.neighbours.question() {
            match ask.address {
                IpAddr::V4(address) => self.ask_v4(address, ask.to),
                IpAddr::V6(address) => self.ask_v6(address, ask.to),
            }
        }
        while let Some(packet) = self.neighbours.failed() {
            self.drop_packet(Reason::NeighbourSilent);
            if self.complaints.len() < MOST_COMPLAINTS
                && let Some(complaint) = Complaint::silent(packet.head())
            {
                self.complaints.push_back(complaint);
            }
        }
        let displaced = self.neighbours.displaced();
        self.stats.drop_many(Reason::NeighbourQueue, displaced - self.stats.dropped(Reason::NeighbourQueue));
    }

    /// Asks for a neighbour by ARP: everybody, or itself alone.
    fn ask_v4(&mut self, target: Ipv4Addr, to: Option<Mac>) {
        // The address of the network that it is on, which it may have an answer for.
        let Some(IpAddr::V4(sender)) = self.source(target.into()) else { return };
        self.stats.asked += 1;
        let (operation, sender_mac) = (Operation::REQUEST, self.mac);
        let question = Arp { operation, sender_mac, sender, target_mac: to.unwrap_or_default(), target };
        self.say(to.unwrap_or(Mac::BROADCAST), &question);
    }

    /// Sends a packet of ARP.
    pub(super) fn say(&mut self, to: Mac, arp: &Arp) {
        self.stats.sent += 1;
        let mut packet = Packet::default();
        let header = Ethernet { to, from: self.mac, kind: EtherType::ARP };
        let head: &mut Head = packet.head_mut();
        let written = arp.write(head).and_then(|()| header.write(head));
        match written {
            Ok(()) if self.out.len() < self.queue => self.out.push_back(packet),
            Ok(()) => self.drop_packet(Reason::QueueFull),
            Err(_) => self.drop_packet(Reason::Malformed),
        }
    }
}

/// Complaints that wait to be fetched.
const MOST_COMPLAINTS: usize = 64;
