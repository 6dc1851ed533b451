//! ICMP: what is answered, what is said to others, and what others say of packets of ours.

use super::complaint::{Complaint, Trouble};
use super::interface::{Interface, is_host};
use super::layout::gather;
use super::output::Outgoing;
use super::stats::Reason;
use crate::wire::checksum::{self, pseudo};
use crate::wire::icmp::Unreachable;
use crate::wire::{Icmp, Icmpv6, Ip, Ipv4, Protocol};
use onecopy_chain::{Checksum, Sum};
use onecopy_link::{Head, HeadTooLong, Packet};
use std::net::IpAddr;

/// MTUs that there are (RFC 1191, section 7.1), the longest first.
const PLATEAUS: [u16; 10] = [32000, 17914, 8166, 4352, 2002, 1492, 1006, 508, 296, 68];

/// Bytes of a complaint's header, the longest IP header and the eight behind it.
const QUOTED: usize = Icmp::LEN + 60 + 8;

/// Bytes of a question's payload that may stand in the head of the answer: IPv6's header and Ethernet's go there, too.
const STAYS: usize = 32;

/// What came of a message.
pub(super) enum Heard {
    Done,
    Reply { id: u16, seq: u16 },
    Complaint(Complaint),
}

impl Interface {
    /// A message to us, `packet` beginning with its header.
    pub(super) fn icmp(
        &mut self,
        now: u64,
        ip: &Ipv4,
        packet: &mut Packet,
        all: bool,
    ) -> Result<Heard, Reason> {
        self.bring(packet, Icmp::LEN, Reason::IcmpMalformed)?;
        match checksum::verify(packet, 0, Sum::ZERO) {
            Ok(true) => {}
            Ok(false) => return Err(Reason::Checksum),
            Err(_) => return Err(Reason::Unreadable),
        }
        // For all that is there of what it quotes.
        let quoted = packet.len().min(QUOTED);
        let (icmp, _) = Icmp::parse(packet.head()).map_err(|_| Reason::IcmpMalformed)?;
        match icmp {
            Icmp::Echo { id, seq } => {
                // RFC 1122, section 3.2.2.6: one to all may be ignored, and makes a crowd otherwise.
                if all {
                    return Err(Reason::Broadcast);
                }
                if !self.limits.echoes.take(now) {
                    return Err(Reason::IcmpTooMany);
                }
                let answer = |head: &mut Head, _| Icmp::EchoReply { id, seq }.write(head);
                self.echo(now, &Ip::V4(*ip), std::mem::take(packet), answer);
                Ok(Heard::Done)
            }
            Icmp::EchoReply { id, seq } => Ok(Heard::Reply { id, seq }),
            _ => {
                let trouble = match icmp {
                    Icmp::Unreachable { code, mtu } => (3, code.0, mtu),
                    Icmp::TimeExceeded { code } => (11, code, 0),
                    Icmp::ParameterProblem { code, .. } => (12, code, 0),
                    // With bytes that are to be ignored.
                    Icmp::Other { kind: kind @ (3 | 11 | 12), code, rest: [.., a, b] } => {
                        (kind, code, u16::from_be_bytes([a, b]))
                    }
                    // Source quench is not to be heard (RFC 6633), nor redirects; the rest is for others.
                    _ => return Err(Reason::IcmpIgnored),
                };
                self.bring(packet, quoted, Reason::IcmpMalformed)?;
                let rest = packet.head().get(Icmp::LEN..quoted).unwrap_or_default();
                let Some(Ok(quoted)) = icmp.quoted(rest) else { return Err(Reason::IcmpMalformed) };
                if !self.is_local(quoted.ip.from()) {
                    return Err(Reason::IcmpForeign);
                }
                let trouble = match trouble {
                    (3, 4, mtu) => Trouble::TooLong { mtu: next_mtu(mtu, quoted.ip.payload_len()) },
                    (3, code, _) => Trouble::Unreachable(Unreachable(code)),
                    (11, code, _) => Trouble::TimeExceeded(code),
                    (_, code, _) => Trouble::Parameter(code),
                };
                Complaint::of(trouble, &quoted).map(Heard::Complaint).ok_or(Reason::IcmpForeign)
            }
        }
    }

    /// Asks whether `to` is there: the answer comes as [`Input::Echo`](super::Input). Needs a packet without headers.
    ///
    /// # Errors
    ///
    /// As [`Interface::output`].
    pub fn ping(
        &mut self,
        now: u64,
        about: &Outgoing,
        (id, seq): (u16, u16),
        mut packet: Packet,
    ) -> Result<(), super::NotSent> {
        // A head that has no room for it has none for IP's header either.
        let written = match about.to {
            IpAddr::V4(_) => Icmp::Echo { id, seq }.write(packet.head_mut()),
            IpAddr::V6(_) => {
                let len = (Icmpv6::LEN + packet.len()) as u32;
                let sum = pseudo(about.from, about.to, Protocol::ICMPV6, len);
                Icmpv6::Echo { id, seq }.write(packet.head_mut(), sum)
            }
        };
        if written.is_ok() {
            let _ = checksum::leave_unfinished(&mut packet, 0, Icmp::CHECKSUM);
        }
        let about = Outgoing { protocol: protocol_for(about.to), ..*about };
        self.output(now, &about, packet)
    }

    /// Sends a question back as its answer, its payload as it is: `answer` writes the header, and is told the pseudo-header's sum.
    pub(super) fn echo(
        &mut self,
        now: u64,
        ip: &Ip,
        mut packet: Packet,
        answer: impl FnOnce(&mut Head, Sum) -> Result<(), HeadTooLong>,
    ) {
        // Bytes in the head behind the message's header stay there, where they leave room for headers. (Without a page nothing is answered.)
        if packet.head().len() > Icmp::LEN + STAYS && self.split(&mut packet, Icmp::LEN).is_err() {
            return;
        }
        let _ = packet.set_checksum(Checksum::None);
        packet.set_gso(None);
        let sum = ip.pseudo(packet.len() as u32);
        packet.head_mut().pull(Icmp::LEN);
        if answer(packet.head_mut(), sum).is_ok() {
            let _ = checksum::leave_unfinished(&mut packet, 0, Icmp::CHECKSUM);
        }
        let about = Outgoing {
            service: ip.service() & !3,
            dont_fragment: false,
            ..Outgoing::new(ip.to(), ip.from(), ip.protocol())
        };
        self.stats.echoes += 1;
        // It was counted: nobody is to be told.
        let _ = self.output(now, &about, packet);
    }

    /// Tells the sender of a packet to us, of which `ip` is the header and `packet` what is behind it, that it came to nobody, as `code`
    /// says: now and then, and nobody who is many (RFC 1122, section 3.2.2; RFC 4443, section 2.4). Whether it was told.
    pub fn complain(&mut self, now: u64, ip: &Ip, packet: Packet, code: Unreachable) -> bool {
        let host = is_host(ip.from()) || self.is_local(ip.from());
        if !self.is_local(ip.to()) || !host {
            return false;
        }
        match ip {
            Ip::V4(ip) => self.complain_v4(now, ip, packet, Icmp::Unreachable { code, mtu: 0 }),
            Ip::V6(ip) => self.came_to_nobody(now, ip, packet, code),
        }
    }

    /// The same with another complaint, of IPv4.
    pub(super) fn complain_v4(&mut self, now: u64, ip: &Ipv4, mut about: Packet, complaint: Icmp) -> bool {
        let some = about.len().min(8);
        if gather(&mut about, some).is_err() || ip.offset > 0 || !self.limits.complaints.take(now) {
            return false;
        }
        let mut packet = Packet::default();
        let head = packet.head_mut();
        let quoted = &about.head()[..some];
        let written = head.push(quoted.len()).map(|room| room.copy_from_slice(quoted));
        let written = written.and_then(|()| ip.write(head));
        if written.and_then(|()| complaint.write(head)).is_err() {
            return false;
        }
        let _ = checksum::leave_unfinished(&mut packet, 0, Icmp::CHECKSUM);
        // RFC 1812, section 4.3.2.5: of the precedence of what matters to the network, as the kernel does.
        let about = Outgoing {
            service: ip.service & 0x1c | 0xc0,
            dont_fragment: false,
            ..Outgoing::new(ip.to, ip.from, Protocol::ICMP)
        };
        let told = self.output(now, &about, packet).is_ok();
        self.stats.complaints += u64::from(told);
        told
    }
}

/// ICMP's number in the family that `address` is of.
fn protocol_for(address: IpAddr) -> Protocol {
    if address.is_ipv4() { Protocol::ICMP } else { Protocol::ICMPV6 }
}

/// The MTU that a router says, or the next one below the packet's length where it says none, or what cannot be.
fn next_mtu(said: u16, payload_len: u16) -> u16 {
    // Of ours, which have no options.
    let len = payload_len.saturating_add(Ipv4::LEN as u16);
    if (68..len).contains(&said) {
        return said;
    }
    PLATEAUS.into_iter().find(|mtu| *mtu < len).unwrap_or(68)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_that_says_no_mtu_is_guessed_for() {
        for (said, len, mtu) in [
            (1400, 1500, 1400),
            (0, 1500, 1492),
            (0, 1492, 1006),
            (67, 100, 68),
            (1500, 1500, 1492),
            (9000, 1500, 1492),
            (0, 68, 68),
            (0, 20, 68),
            (0, 65535, 32000),
        ] {
            assert_eq!(next_mtu(said, len - 20), mtu, "said {said} of {len}");
        }
    }
}
