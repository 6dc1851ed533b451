//! Packets in: looked at from the first byte on, and dropped at the first that is wrong.

use super::complaint::Complaint;
use super::icmp::Heard;
use super::interface::{Interface, is_host};
use super::layout::{Apart, gather, spill, trim};
use super::reassembly::{Gathered, Lost, Part};
use super::stats::Reason;
use crate::neigh;
use crate::shard::{Said, What};
use crate::wire::arp::Operation;
use crate::wire::icmp::Unreachable;
use crate::wire::ipv6::{Behind, Fragment, Stopped, walk};
use crate::wire::{
    Arp, EtherType, Ethernet, Icmp, Icmpv6, Ip, Ipv4, Ipv6, Mac, Malformed, Protocol, Tcp, Udp, checksum,
};
use onecopy_chain::Checksum;
use onecopy_link::{Head, Medium, Packet};
use std::net::IpAddr;

/// Whose a packet is that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// TCP's. The packet has its header, whole, in the head, and nothing else there; the payload ends where IP's header says; it is intact.
    /// Its [`Gso`](onecopy_link::Gso), if it has one, says how long the segments were that it was made of, and no more.
    Tcp(Ip),
    /// UDP's, likewise; it may be to all.
    Udp(Ip),
    /// Somebody has something to say of a packet of ours.
    Complaint(Complaint),
    /// Somebody is there who was asked ([`Interface::ping`]); the payload is what it was sent.
    Echo {
        /// Who.
        from: IpAddr,
        /// Of the question.
        id: u16,
        /// Of the question.
        seq: u16,
    },
    /// Nobody's: it was answered, taken note of, or dropped.
    Done,
}

/// What may stand behind IPv6's header, and is spoken here.
const KNOWN: [Protocol; 3] = [Protocol::TCP, Protocol::UDP, Protocol::ICMPV6];

impl Interface {
    /// Takes a packet that came. Where it is a transport's, headers below that are taken off, and `packet` is the transport's; else there
    /// is nothing left of it that matters.
    pub fn input(&mut self, now: u64, packet: &mut Packet) -> Input {
        self.stats.received += 1;
        let heard = match self.capabilities.medium {
            Medium::Ethernet => self.ethernet(now, packet),
            Medium::Ip => self.either(now, packet),
        };
        self.heard(heard)
    }

    /// The next one of those that were [`looped`](Interface::looped) comes in: as [`Interface::input`] has one that came from the link. Whoever
    /// drives it takes no more at once than that said before: each may be answered by another one.
    pub fn input_looped(&mut self, now: u64) -> Option<(Packet, Input)> {
        let (ip, mut packet) = self.local.pop(now)?;
        self.stats.received += 1;
        self.stats.looped += 1;
        let heard = self.transport(now, ip, &mut packet, false);
        let input = self.heard(heard);
        Some((packet, input))
    }

    /// What a packet came to is counted.
    pub(super) fn heard(&mut self, heard: Result<Input, Reason>) -> Input {
        match heard {
            Ok(input) => input,
            Err(reason) => {
                self.drop_packet(reason);
                Input::Done
            }
        }
    }

    /// Has the first `len` bytes be in the head; `short` where there are fewer.
    pub(super) fn bring(&mut self, packet: &mut Packet, len: usize, short: Reason) -> Result<(), Reason> {
        match gather(packet, len) {
            Ok(moved) => {
                self.stats.moved += u64::from(moved);
                Ok(())
            }
            Err(Apart::Short) => Err(short),
            Err(Apart::Refused(reason)) => Err(reason),
        }
    }

    fn ethernet(&mut self, now: u64, packet: &mut Packet) -> Result<Input, Reason> {
        self.bring(packet, Ethernet::LEN, Reason::Short)?;
        let (frame, _) = Ethernet::parse(packet.head()).map_err(|_| Reason::Short)?;
        let all = frame.to == Mac::BROADCAST;
        if !all && frame.to != self.mac && !self.hears(frame.to) {
            return Err(Reason::OtherStation);
        }
        if !frame.from.is_station() {
            return Err(Reason::BadStation);
        }
        self.pull(packet, Ethernet::LEN);
        match frame.kind {
            EtherType::IPV4 => self.ipv4(now, packet, frame.to != self.mac),
            EtherType::IPV6 => self.ipv6(now, packet, frame.to != self.mac),
            EtherType::ARP => self.arp(now, packet),
            _ => Err(Reason::EtherType),
        }
    }

    /// Takes a header off. A checksum that is still to be finished is known to be right, and its place of no use any more.
    #[inline]
    fn pull(&mut self, packet: &mut Packet, len: usize) {
        if let Checksum::Partial { .. } = packet.checksum() {
            let verified = packet.set_checksum(Checksum::Verified);
            debug_assert!(verified.is_ok(), "only Partial is refused");
        }
        packet.head_mut().pull(len);
    }

    fn arp(&mut self, now: u64, packet: &mut Packet) -> Result<Input, Reason> {
        self.bring(packet, Arp::LEN, Reason::ArpMalformed)?;
        let (arp, _) = Arp::parse(packet.head()).map_err(|_| Reason::ArpMalformed)?;
        if !arp.sender_mac.is_station() {
            return Err(Reason::ArpMalformed);
        }
        let ours = self.is_local(arp.target.into()) && !arp.target.is_loopback();
        if self.is_local(arp.sender.into()) {
            return Err(Reason::ArpConflict);
        }
        // In a probe the sender says no address (RFC 5227, section 1.1).
        let mut heard = neigh::Heard::Unknown;
        if is_host(arp.sender.into()) && !self.is_broadcast(arp.sender.into()) {
            let answer = arp.operation == Operation::REPLY && ours && arp.target_mac == self.mac;
            let (address, mac) = (arp.sender.into(), Some(arp.sender_mac));
            heard = self.said(now, Said { address, mac, answer, overrides: true });
        }
        let asked = arp.operation == Operation::REQUEST && ours;
        if asked {
            let answer = Arp {
                operation: Operation::REPLY,
                sender_mac: self.mac,
                sender: arp.target,
                target_mac: arp.sender_mac,
                target: arp.sender,
            };
            self.say(arp.sender_mac, &answer);
        }
        match heard {
            neigh::Heard::Answer | neigh::Heard::Known => {}
            _ if asked => {}
            neigh::Heard::TooSoon => return Err(Reason::ArpTooSoon),
            neigh::Heard::Unknown => return Err(Reason::ArpUnknown),
        }
        self.stats.arp += 1;
        Ok(Input::Done)
    }

    /// Of a link that carries nothing but IP.
    fn either(&mut self, now: u64, packet: &mut Packet) -> Result<Input, Reason> {
        self.bring(packet, 1, Reason::Short)?;
        match packet.head()[0] >> 4 {
            6 => self.ipv6(now, packet, false),
            _ => self.ipv4(now, packet, false),
        }
    }

    fn ipv4(&mut self, now: u64, packet: &mut Packet, all_stations: bool) -> Result<Input, Reason> {
        self.bring(packet, Ipv4::LEN, Reason::Short)?;
        let header = usize::from(packet.head()[0] & 15) * 4;
        self.bring(packet, header, Reason::Short)?;
        let (ip, _) = Ipv4::parse(packet.head()).map_err(|malformed| match malformed {
            Malformed::Version => Reason::Version,
            Malformed::Checksum => Reason::HeaderChecksum,
            Malformed::Short => Reason::Short,
            _ => Reason::Header,
        })?;
        let whole = header + usize::from(ip.payload_len);
        if packet.len() < whole {
            return Err(Reason::Truncated);
        }
        let (from, to) = (ip.from.into(), ip.to.into());
        let usual = self.usual(to, from).is_some();
        let loops = ip.to.is_loopback();
        if !usual && (loops || !is_host(from) || self.is_broadcast(from) || self.is_local(from)) {
            return Err(Reason::Martian);
        }
        let all = !usual && !self.is_local(to);
        if all {
            if !self.is_broadcast(to) {
                return Err(Reason::OtherHost);
            }
        } else if all_stations {
            return Err(Reason::Broadcast);
        }
        trim(packet, whole)?;
        if ip.is_fragment() && self.is_others_part(from, to, ip.id.into(), packet) {
            return Ok(Input::Done);
        }
        self.pull(packet, header);
        if ip.is_fragment() {
            let Ipv4 { id, offset, more_fragments: more, .. } = ip;
            let about = (u32::from(id), offset, more);
            let most = usize::from(u16::MAX) - Ipv4::LEN;
            let Some((Ip::V4(first), len)) = self.gather(now, Ip::V4(ip), about, most, packet)? else {
                return Ok(Input::Done);
            };
            let (more_fragments, payload_len) = (false, len);
            return self.transport(now, Ip::V4(Ipv4 { more_fragments, payload_len, ..first }), packet, all);
        }
        self.transport(now, Ip::V4(ip), packet, all)
    }

    fn ipv6(&mut self, now: u64, packet: &mut Packet, all_stations: bool) -> Result<Input, Reason> {
        self.bring(packet, Ipv6::LEN, Reason::Short)?;
        let (ip, _) = Ipv6::parse(packet.head()).map_err(|_| Reason::Version)?;
        let whole = Ipv6::LEN + usize::from(ip.payload_len);
        if packet.len() < whole {
            return Err(Reason::Truncated);
        }
        let from = ip.from.into();
        // Who has no address yet asks whether anybody has the one that he wants (RFC 4862, section 5.4.2).
        let nobody = ip.from.is_unspecified() && ip.protocol == Protocol::ICMPV6;
        let loops = ip.to.is_loopback();
        if loops || !nobody && !is_host(from) || self.is_local(from) {
            return Err(Reason::Martian);
        }
        let all = !self.is_local(ip.to.into());
        if all {
            if !self.is_member(ip.to) {
                return Err(Reason::OtherHost);
            }
        } else if all_stations {
            return Err(Reason::Broadcast);
        }
        trim(packet, whole)?;
        self.upper(now, ip, packet, all, true)
    }

    /// What is behind IPv6's header, which `packet` begins with; `part`: it may be one of a packet.
    fn upper(
        &mut self,
        now: u64,
        mut ip: Ipv6,
        packet: &mut Packet,
        all: bool,
        part: bool,
    ) -> Result<Input, Reason> {
        if KNOWN.contains(&ip.protocol) {
            self.pull(packet, Ipv6::LEN);
            return self.transport(now, Ip::V6(ip), packet, all);
        }
        let behind = self.behind(now, &ip, packet, all)?;
        // As if what is between had not been there.
        let len = packet.len() - behind.at;
        let Some(Fragment { offset, more, id }) = behind.fragment else {
            (ip.protocol, ip.payload_len) = (behind.protocol, len as u16);
            self.pull(packet, behind.at);
            return self.transport(now, Ip::V6(ip), packet, all);
        };
        let wrong = if more && !len.is_multiple_of(8) {
            Some(4)
        } else if usize::from(offset) + len > usize::from(u16::MAX) {
            Some(behind.says as u32 + 2)
        } else {
            None
        };
        if let Some(pointer) = wrong {
            let what = Icmpv6::ParameterProblem { code: 0, pointer };
            if !all {
                self.complain_v6(now, &ip, std::mem::take(packet), what);
            }
            return Err(Reason::Fragment);
        }
        if !part {
            return Err(Reason::Fragment);
        }
        if self.is_others_part(ip.from.into(), ip.to.into(), id, packet) {
            return Ok(Input::Done);
        }
        ip.protocol = behind.protocol;
        self.pull(packet, behind.at);
        let about = (id, offset, more);
        let Some((Ip::V6(first), len)) = self.gather(now, Ip::V6(ip), about, u16::MAX.into(), packet)? else {
            return Ok(Input::Done);
        };
        // There may be more headers behind that of the fragments.
        let ip = Ipv6 { payload_len: len, ..first };
        ip.write(packet.head_mut()).map_err(|_| Reason::Fragment)?;
        self.upper(now, ip, packet, all, false)
    }

    /// Whether another stack of this host puts the packet together that this is a part of, beginning with IP's header: it gets it then.
    fn is_others_part(&mut self, from: IpAddr, to: IpAddr, id: u32, packet: &mut Packet) -> bool {
        let Some(others) = &mut self.others else { return false };
        let Some(other) = others.other(|share| share.of_parts(from, to, id)) else { return false };
        others.hand(other, What::Part(std::mem::take(packet)));
        true
    }

    /// A part comes from another stack of this host: from here on as [`Interface::input`].
    pub(crate) fn input_part(&mut self, now: u64, packet: &mut Packet) -> Input {
        let heard = self.either(now, packet);
        self.heard(heard)
    }

    /// A neighbour says something, which the other stacks of this host are told.
    pub(super) fn said(&mut self, now: u64, said: Said) -> neigh::Heard {
        if let Some(others) = &mut self.others {
            others.tell(said);
        }
        self.learn(now, said)
    }

    /// Takes note of what a neighbour has said.
    pub(crate) fn learn(&mut self, now: u64, said: Said) -> neigh::Heard {
        let Said { address, mac, answer, overrides } = said;
        let known = self.neighbours.get(address);
        let Some(mac) = mac.or(known) else { return neigh::Heard::Unknown };
        if !overrides && known.is_some_and(|known| known != mac) {
            self.neighbours.doubt(address);
            return neigh::Heard::TooSoon;
        }
        let heard = self.neighbours.hear(now, address, mac, answer);
        self.settle();
        heard
    }

    /// Keeps a part until the others are there: then `packet` is all of it, without a header; the first one's, and how long it is, is returned.
    #[cold]
    fn gather(
        &mut self,
        now: u64,
        ip: Ip,
        (id, offset, more): (u32, u16, bool),
        most: usize,
        packet: &mut Packet,
    ) -> Result<Option<(Ip, u16)>, Reason> {
        let len = packet.len();
        // One that is whole is nobody's part (RFC 6946).
        let alone = offset == 0 && !more;
        if usize::from(offset) + len > most || more && !len.is_multiple_of(8) || len == 0 && !alone {
            return Err(Reason::Fragment);
        }
        if alone {
            return Ok(Some((ip, len as u16)));
        }
        self.split(packet, 0)?;
        let (_, data) = std::mem::take(packet).into_parts();
        let part = Part { ip, id, offset, more, data };
        // It may make room for itself.
        self.stats.fragments += 1;
        let stats = &mut self.stats;
        let mut lost = |lost: Lost| stats.lose_parts(Reason::FragmentMemory, lost.parts);
        let gathered = self.parts_in.take(now, part, &mut lost);
        if !matches!(gathered, Gathered::Kept) {
            self.stats.fragments -= 1;
        }
        match gathered {
            Gathered::Kept => Ok(None),
            Gathered::Whole(ip, data) => {
                self.stats.reassembled += 1;
                let len = data.payload().len() as u16;
                *packet = Packet::from(data);
                Ok(Some((ip, len)))
            }
            Gathered::Overlap(others) => {
                self.stats.lose_parts(Reason::FragmentOverlap, others);
                Err(Reason::FragmentOverlap)
            }
            Gathered::Twice => Err(Reason::FragmentTwice),
            Gathered::TooMany(others) => {
                self.stats.lose_parts(Reason::FragmentMemory, others);
                Err(Reason::FragmentMemory)
            }
        }
    }

    /// Drops packets whose other parts did not come in time. Who sent one is told, if its first part is there (RFC 792; RFC 8200, section 4.5).
    pub(super) fn lose_overdue(&mut self, now: u64) {
        while let Some(Lost { parts, first }) = self.parts_in.overdue(now) {
            self.stats.lose_parts(Reason::FragmentTimeout, parts);
            match first {
                Some((Ip::V4(ip), data)) => {
                    let what = Icmp::TimeExceeded { code: 1 };
                    self.complain_v4(now, &ip, Packet::from(data), what);
                }
                Some((Ip::V6(ip), data)) => {
                    let mut packet = Packet::from(data);
                    if ip.write(packet.head_mut()).is_ok() {
                        self.complain_v6(now, &ip, packet, Icmpv6::TimeExceeded { code: 1 });
                    }
                }
                None => {}
            }
        }
    }

    /// Passes over IPv6's extension headers.
    #[cold]
    fn behind(&mut self, now: u64, ip: &Ipv6, packet: &mut Packet, all: bool) -> Result<Behind, Reason> {
        let most = packet.len().min(Head::MAX);
        self.bring(packet, most, Reason::Extension)?;
        let stopped = match walk(ip, packet.head()) {
            // What is known of protocols is that of both families.
            Ok(Behind { protocol: Protocol::NOTHING, .. }) => return Err(Reason::Nothing),
            Ok(behind) if behind.fragment.is_some() => return Ok(behind),
            Ok(behind) if KNOWN.contains(&behind.protocol) => {
                return Ok(behind);
            }
            Ok(Behind { says, .. }) => {
                Stopped::Problem { code: 1, pointer: says as u32, even_if_many: false }
            }
            Err(stopped) => stopped,
        };
        match stopped {
            Stopped::Short | Stopped::Silently => Err(Reason::Extension),
            Stopped::Problem { code, pointer, even_if_many } => {
                if !all || even_if_many {
                    let what = Icmpv6::ParameterProblem { code, pointer };
                    // It begins with IPv6's header still.
                    self.complain_v6(now, ip, std::mem::take(packet), what);
                }
                Err(if code == 1 { Reason::Protocol } else { Reason::Extension })
            }
        }
    }

    /// What is behind IP's header, whichever that is; `all`: it is for more hosts than us.
    pub(super) fn transport(
        &mut self,
        now: u64,
        ip: Ip,
        packet: &mut Packet,
        all: bool,
    ) -> Result<Input, Reason> {
        let heard = match (ip.protocol(), &ip) {
            (Protocol::TCP, _) if all => return Err(Reason::Broadcast),
            (Protocol::TCP, _) => {
                self.tcp(&ip, packet)?;
                self.stats.tcp += 1;
                return Ok(Input::Tcp(ip));
            }
            (Protocol::UDP, _) => {
                self.udp(&ip, packet)?;
                self.stats.udp += 1;
                return Ok(Input::Udp(ip));
            }
            (Protocol::ICMP, Ip::V4(ip)) => self.icmp(now, ip, packet, all)?,
            (Protocol::ICMPV6, Ip::V6(ip)) => self.icmpv6(now, ip, packet, all)?,
            _ => {
                self.complain(now, &ip, std::mem::take(packet), Unreachable::PROTOCOL);
                return Err(Reason::Protocol);
            }
        };
        self.stats.icmp += 1;
        Ok(match heard {
            Heard::Done => Input::Done,
            Heard::Complaint(complaint) => Input::Complaint(complaint),
            Heard::Reply { id, seq } => {
                self.split(packet, Icmp::LEN)?;
                packet.head_mut().pull(Icmp::LEN);
                Input::Echo { from: ip.from(), id, seq }
            }
        })
    }

    fn tcp(&mut self, ip: &Ip, packet: &mut Packet) -> Result<(), Reason> {
        self.bring(packet, Tcp::LEN, Reason::Transport)?;
        let header = usize::from(packet.head()[12] >> 4) * 4;
        if header < Tcp::LEN {
            return Err(Reason::Transport);
        }
        self.bring(packet, header, Reason::Transport)?;
        self.intact(ip, packet)?;
        self.split(packet, header)
    }

    fn udp(&mut self, ip: &Ip, packet: &mut Packet) -> Result<(), Reason> {
        self.bring(packet, Udp::LEN, Reason::Transport)?;
        let (udp, summed, _) = Udp::parse(packet.head()).map_err(|_| Reason::Transport)?;
        let whole = Udp::LEN + usize::from(udp.payload_len);
        if packet.len() < whole {
            return Err(Reason::Transport);
        }
        // What is behind it is nobody's (RFC 9868 gives it to options, which are not spoken here).
        trim(packet, whole)?;
        match (summed, ip) {
            (true, _) => self.intact(ip, packet)?,
            (false, Ip::V4(_)) => {}
            // RFC 8200, section 8.1.
            (false, Ip::V6(_)) => return Err(Reason::Checksum),
        }
        self.split(packet, Udp::LEN)
    }

    fn intact(&self, ip: &Ip, packet: &Packet) -> Result<(), Reason> {
        // At most 65535 bytes: they were held against IP's header.
        match checksum::verify(packet, 0, ip.pseudo(packet.len() as u32)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Reason::Checksum),
            Err(_) => Err(Reason::Unreadable),
        }
    }

    /// Has the head hold the header alone.
    pub(super) fn split(&mut self, packet: &mut Packet, header: usize) -> Result<(), Reason> {
        self.stats.moved += u64::from(spill(packet, header, &mut self.pages)?);
        Ok(())
    }
}
