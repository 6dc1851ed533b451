//! ICMP for IPv6: as [`icmp`](super::icmp) for IPv4, and who asks for neighbours.

use super::complaint::{Complaint, Trouble};
use super::icmp::Heard;
use super::interface::{Interface, is_host};
use super::layout::{spill, trim};
use super::output::Outgoing;
use super::stats::Reason;
use crate::wire::icmp::{self, Quoted};
use crate::wire::icmpv6::Unreachable;
use crate::wire::{Icmpv6, Ip, Ipv6, Protocol, checksum};
use onecopy_chain::Checksum;
use onecopy_link::{Head, Packet};

/// Bytes of a complaint's header, of IPv6's and the eight behind it, with room for extension headers between.
const QUOTED: usize = Head::MAX;

/// Bytes of a packet that a complaint about it quotes: what the complaint itself goes through everywhere with (RFC 4443, section 2.4).
const QUOTES: usize = Ipv6::MIN_MTU as usize - Ipv6::LEN - Icmpv6::LEN;

impl Interface {
    /// A message to us, `packet` beginning with its header.
    pub(super) fn icmpv6(
        &mut self,
        now: u64,
        ip: &Ipv6,
        packet: &mut Packet,
        all: bool,
    ) -> Result<Heard, Reason> {
        self.bring(packet, Icmpv6::LEN, Reason::IcmpMalformed)?;
        match checksum::verify(packet, 0, Ip::V6(*ip).pseudo(packet.len() as u32)) {
            Ok(true) => {}
            Ok(false) => return Err(Reason::Checksum),
            Err(_) => return Err(Reason::Unreadable),
        }
        let (icmp, _) = Icmpv6::parse(packet.head()).map_err(|_| Reason::IcmpMalformed)?;
        let icmp = icmp.heard();
        if ip.from.is_unspecified() && icmp != Icmpv6::Solicitation {
            return Err(Reason::Martian);
        }
        let trouble = match icmp {
            Icmpv6::Echo { id, seq } => {
                // As in IPv4; RFC 4443, section 4.2, would have one to all be answered.
                if all {
                    return Err(Reason::Broadcast);
                }
                if !self.limits.echoes.take(now) {
                    return Err(Reason::IcmpTooMany);
                }
                let answer = |head: &mut Head, sum| Icmpv6::EchoReply { id, seq }.write(head, sum);
                self.echo(now, &Ip::V6(*ip), std::mem::take(packet), answer);
                return Ok(Heard::Done);
            }
            Icmpv6::EchoReply { id, seq } => return Ok(Heard::Reply { id, seq }),
            Icmpv6::Solicitation | Icmpv6::Advertisement { .. } => return self.ndp(now, ip, packet, icmp),
            Icmpv6::Unreachable(code) => Trouble::Unreachable(match code {
                Unreachable::NO_ROUTE => icmp::Unreachable::NETWORK,
                Unreachable::SCOPE | Unreachable::ADDRESS => icmp::Unreachable::HOST,
                Unreachable::PORT => icmp::Unreachable::PORT,
                // Somebody does not want it: 13 in IPv4.
                Unreachable(1 | 5 | 6) => icmp::Unreachable(13),
                Unreachable(_) => icmp::Unreachable::HOST,
            }),
            // RFC 8021: less than what every link takes says nothing of one.
            Icmpv6::TooLong { mtu } if mtu >= Ipv6::MIN_MTU.into() => {
                Trouble::TooLong { mtu: mtu.min(u16::MAX.into()) as u16 }
            }
            Icmpv6::TimeExceeded { code } => Trouble::TimeExceeded(code),
            Icmpv6::ParameterProblem { code, .. } => Trouble::Parameter(code),
            // Nobody's router, and nobody's group member, is here: advertisements of routers, redirects and what groups ask are not heard.
            _ => return Err(Reason::IcmpIgnored),
        };
        let some = packet.len().min(QUOTED);
        self.bring(packet, some, Reason::IcmpMalformed)?;
        let rest = packet.head().get(Icmpv6::LEN..some).unwrap_or_default();
        let quoted = Quoted::parse(rest).map_err(|_| Reason::IcmpMalformed)?;
        if !matches!(quoted.ip, Ip::V6(_)) {
            return Err(Reason::IcmpMalformed);
        }
        if !self.is_local(quoted.ip.from()) {
            return Err(Reason::IcmpForeign);
        }
        Complaint::of(trouble, &quoted).map(Heard::Complaint).ok_or(Reason::IcmpForeign)
    }

    /// As [`Interface::complain`], whose codes are IPv4's. (Extension headers that were passed over are not quoted.)
    pub(super) fn came_to_nobody(
        &mut self,
        now: u64,
        ip: &Ipv6,
        mut packet: Packet,
        code: icmp::Unreachable,
    ) -> bool {
        if ip.write(packet.head_mut()).is_err() {
            return false;
        }
        let what = match code {
            // Where it says so in the header.
            icmp::Unreachable::PROTOCOL => Icmpv6::ParameterProblem { code: 1, pointer: 6 },
            icmp::Unreachable::PORT => Icmpv6::Unreachable(Unreachable::PORT),
            icmp::Unreachable::NETWORK => Icmpv6::Unreachable(Unreachable::NO_ROUTE),
            _ => Icmpv6::Unreachable(Unreachable::ADDRESS),
        };
        self.complain_v6(now, ip, packet, what)
    }

    /// Tells the sender of `packet`, which begins with IPv6's header, what is wrong with it, now and then. Whether it was told.
    pub(super) fn complain_v6(&mut self, now: u64, ip: &Ipv6, mut packet: Packet, what: Icmpv6) -> bool {
        let to = ip.from.into();
        let own = Some(ip.to.into()).filter(|own| self.is_local(*own));
        let Some(from) = own.or_else(|| self.source(to)) else { return false };
        let host = is_host(to) || self.is_local(to);
        if !host || !self.limits.complaints.take(now) {
            return false;
        }
        let _ = packet.set_checksum(Checksum::None);
        packet.set_gso(None);
        // What is in the head has to make room for headers.
        if trim(&mut packet, QUOTES).is_err() || spill(&mut packet, 0, &mut self.pages).is_err() {
            return false;
        }
        let sum = checksum::pseudo(from, to, Protocol::ICMPV6, (Icmpv6::LEN + packet.len()) as u32);
        let written = what.write(packet.head_mut(), sum).is_ok()
            && checksum::leave_unfinished(&mut packet, 0, Icmpv6::CHECKSUM).is_ok();
        let about = Outgoing { dont_fragment: false, ..Outgoing::new(from, to, Protocol::ICMPV6) };
        let told = written && self.output(now, &about, packet).is_ok();
        self.stats.complaints += u64::from(told);
        told
    }
}
