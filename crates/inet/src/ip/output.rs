//! Packets out: headers in front, then to the neighbour, then as the link takes them.

use super::icmp::Complaint;
use super::interface::{Interface, is_host};
use super::stats::Reason;
use crate::neigh::Hop;
use crate::wire::arp::Operation;
use crate::wire::{Arp, EtherType, Ethernet, Ipv4, Mac, Protocol};
use onecopy_chain::Checksum;
use onecopy_link::{Gso, Head, Medium, NotTaken, Packet};
use std::fmt;
use std::net::Ipv4Addr;

/// What is said of a packet that is to be sent, beside what is in it.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// Our address.
    pub from: Ipv4Addr,
    /// Whom it is for.
    pub to: Ipv4Addr,
    /// What it is.
    pub protocol: Protocol,
    /// The type of service, [`Ecn`](crate::wire::Ecn) in it.
    pub service: u8,
    /// Hops.
    pub ttl: u8,
    /// Nobody may cut it.
    pub dont_fragment: bool,
    /// Its number, of a super-segment that of the first packet; one is chosen where it is None (0 for what nobody may cut).
    pub id: Option<u16>,
}

impl Outgoing {
    /// The kernel's default: net.ipv4.ip_default_ttl.
    pub const TTL: u8 = 64;

    /// Nothing particular: 64 hops, and nobody may cut it.
    pub fn new(from: Ipv4Addr, to: Ipv4Addr, protocol: Protocol) -> Outgoing {
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
    /// it what the link takes: checksums are finished, super-segments cut, where it does neither.
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
        // Not to ourselves: nothing would come back from the link.
        if !self.is_local(about.from) || self.is_local(about.to) {
            return Err(Reason::BadAddress);
        }
        let broadcast = self.is_broadcast(about.to);
        if !broadcast && !is_host(about.to) || broadcast && about.protocol == Protocol::TCP {
            return Err(Reason::BadAddress);
        }
        let hop = if broadcast { about.to } else { self.routes.hop(about.to).ok_or(Reason::NoRoute)? };
        self.write(about, &mut packet)?;
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

    /// Packets that may be sent before too many wait to leave. (A super-segment that the link does not cut is as many as it is cut to;
    /// the last one may go beyond that.)
    pub fn room(&self) -> usize {
        self.queue.saturating_sub(self.out.len())
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
        let payload_len = match u16::try_from(len) {
            Ok(payload_len) if len + Ipv4::LEN <= usize::from(u16::MAX) => payload_len,
            _ => return Err(Reason::TooLong),
        };
        let id = about.id.unwrap_or_else(|| {
            // Each part of a train gets one; what nobody cuts needs none (RFC 6864, section 4.1).
            let parts =
                gso.map_or(1, |gso| packet.payload().payload().len().div_ceil(gso.size.max(1).into()));
            match about.dont_fragment {
                true => 0,
                false => self.ids.take(about.from, about.to, about.protocol.0, parts as u16),
            }
        });
        let ip = Ipv4 {
            from: about.from,
            to: about.to,
            protocol: about.protocol,
            ttl: about.ttl,
            service: about.service,
            id,
            dont_fragment: about.dont_fragment,
            more_fragments: false,
            offset: 0,
            payload_len,
            options_len: 0,
        };
        let checksum = packet.checksum();
        ip.write(packet.head_mut()).map_err(|_| Reason::Malformed)?;
        packet.set_gso(gso);
        if let Checksum::Partial { start, offset } = checksum {
            // Counted with the link's header before it; it is put there next ([`Interface::frame`] sets it).
            let start = start.checked_add(Ipv4::LEN as u16).ok_or(Reason::Malformed)?;
            packet.set_checksum(Checksum::Partial { start, offset }).map_err(|_| Reason::Malformed)?;
        }
        Ok(())
    }

    /// Puts the link's header in front, and has it leave.
    fn frame(&mut self, to: Mac, mut packet: Packet) -> Result<(), Reason> {
        let checksum = packet.checksum();
        let header = Ethernet { to, from: self.mac, kind: EtherType::IPV4 };
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
            // The address of the network that it is on, which it may have an answer for.
            let Some(sender) = self.source(ask.address) else { continue };
            self.stats.asked += 1;
            let target_mac = if ask.to == Mac::BROADCAST { Mac::default() } else { ask.to };
            let question = Arp {
                operation: Operation::REQUEST,
                sender_mac: self.mac,
                sender,
                target_mac,
                target: ask.address,
            };
            self.say(ask.to, &question);
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
