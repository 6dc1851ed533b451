//! Packets in: looked at from the first byte on, and dropped at the first that is wrong.

use super::icmp::{Complaint, Heard};
use super::interface::{Interface, is_host};
use super::layout::{Apart, gather, spill, trim};
use super::stats::Reason;
use crate::neigh;
use crate::wire::arp::Operation;
use crate::wire::icmp::Unreachable;
use crate::wire::{Arp, EtherType, Ethernet, Ipv4, Mac, Malformed, Protocol, Tcp, Udp, checksum};
use onecopy_chain::Checksum;
use onecopy_link::{Medium, Packet};
use std::net::Ipv4Addr;

/// Whose a packet is that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// TCP's. The packet has its header, whole, in the head, and nothing else there; the payload ends where IP's header says; it is intact.
    /// Its [`Gso`](onecopy_link::Gso), if it has one, says how long the segments were that it was made of, and no more.
    Tcp(Ipv4),
    /// UDP's, likewise; it may be to all.
    Udp(Ipv4),
    /// Somebody has something to say of a packet of ours.
    Complaint(Complaint),
    /// Somebody is there who was asked ([`Interface::ping`]); the payload is what it was sent.
    Echo {
        /// Who.
        from: Ipv4Addr,
        /// Of the question.
        id: u16,
        /// Of the question.
        seq: u16,
    },
    /// Nobody's: it was answered, taken note of, or dropped.
    Done,
}

impl Interface {
    /// Takes a packet that came. Where it is a transport's, headers below that are taken off, and `packet` is the transport's; else there
    /// is nothing left of it that matters.
    pub fn input(&mut self, now: u64, packet: &mut Packet) -> Input {
        self.stats.received += 1;
        let heard = match self.capabilities.medium {
            Medium::Ethernet => self.ethernet(now, packet),
            Medium::Ip => self.ip(now, packet, false),
        };
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
        if !all && frame.to != self.mac {
            return Err(Reason::OtherStation);
        }
        if !frame.from.is_station() {
            return Err(Reason::BadStation);
        }
        self.pull(packet, Ethernet::LEN);
        match frame.kind {
            EtherType::IPV4 => self.ip(now, packet, all),
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
        let ours = self.is_local(arp.target);
        if self.is_local(arp.sender) {
            return Err(Reason::ArpConflict);
        }
        // In a probe the sender says no address (RFC 5227, section 1.1).
        let mut heard = neigh::Heard::Unknown;
        if is_host(arp.sender) && !self.is_broadcast(arp.sender) {
            let answer = arp.operation == Operation::REPLY && ours && arp.target_mac == self.mac;
            heard = self.neighbours.hear(now, arp.sender, arp.sender_mac, answer);
            self.settle();
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

    fn ip(&mut self, now: u64, packet: &mut Packet, all_stations: bool) -> Result<Input, Reason> {
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
        if ip.is_fragment() {
            return Err(Reason::Fragment);
        }
        if !is_host(ip.from) || self.is_broadcast(ip.from) || self.is_local(ip.from) {
            return Err(Reason::Martian);
        }
        let all = !self.is_local(ip.to);
        if all {
            if !self.is_broadcast(ip.to) {
                return Err(Reason::OtherHost);
            }
        } else if all_stations {
            return Err(Reason::Broadcast);
        }
        trim(packet, whole)?;
        self.pull(packet, header);
        match ip.protocol {
            Protocol::TCP if all => Err(Reason::Broadcast),
            Protocol::TCP => {
                self.tcp(&ip, packet)?;
                self.stats.tcp += 1;
                Ok(Input::Tcp(ip))
            }
            Protocol::UDP => {
                self.udp(&ip, packet)?;
                self.stats.udp += 1;
                Ok(Input::Udp(ip))
            }
            Protocol::ICMP => {
                let heard = self.icmp(now, &ip, packet, all)?;
                let input = match heard {
                    Heard::Done => Input::Done,
                    Heard::Complaint(complaint) => Input::Complaint(complaint),
                    Heard::Reply { id, seq } => {
                        self.split(packet, crate::wire::Icmp::LEN)?;
                        packet.head_mut().pull(crate::wire::Icmp::LEN);
                        Input::Echo { from: ip.from, id, seq }
                    }
                };
                self.stats.icmp += 1;
                Ok(input)
            }
            _ => {
                let some = packet.len().min(8);
                if gather(packet, some).is_ok() {
                    let mut quoted = [0; 8];
                    quoted[..some].copy_from_slice(&packet.head()[..some]);
                    self.complain(now, &ip, &quoted[..some], Unreachable::PROTOCOL);
                }
                Err(Reason::Protocol)
            }
        }
    }

    fn tcp(&mut self, ip: &Ipv4, packet: &mut Packet) -> Result<(), Reason> {
        self.bring(packet, Tcp::LEN, Reason::Transport)?;
        let header = usize::from(packet.head()[12] >> 4) * 4;
        if header < Tcp::LEN {
            return Err(Reason::Transport);
        }
        self.bring(packet, header, Reason::Transport)?;
        self.intact(ip, packet)?;
        self.split(packet, header)
    }

    fn udp(&mut self, ip: &Ipv4, packet: &mut Packet) -> Result<(), Reason> {
        self.bring(packet, Udp::LEN, Reason::Transport)?;
        let (udp, summed, _) = Udp::parse(packet.head()).map_err(|_| Reason::Transport)?;
        let whole = Udp::LEN + usize::from(udp.payload_len);
        if packet.len() < whole {
            return Err(Reason::Transport);
        }
        // What is behind it is nobody's (RFC 9868 gives it to options, which are not spoken here).
        trim(packet, whole)?;
        if summed {
            self.intact(ip, packet)?;
        }
        self.split(packet, Udp::LEN)
    }

    fn intact(&self, ip: &Ipv4, packet: &Packet) -> Result<(), Reason> {
        // At most 65535 bytes: they were held against IP's header.
        let pseudo = checksum::pseudo_v4(ip.from, ip.to, ip.protocol, packet.len() as u32);
        match checksum::verify(packet, 0, pseudo) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Reason::Checksum),
            Err(_) => Err(Reason::Unreadable),
        }
    }

    /// Has the head hold the header alone.
    fn split(&mut self, packet: &mut Packet, header: usize) -> Result<(), Reason> {
        self.stats.moved += u64::from(spill(packet, header, &mut self.pages)?);
        Ok(())
    }
}
