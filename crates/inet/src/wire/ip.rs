//! A header of either family.

use super::checksum::pseudo;
use super::ipv4::{Ecn, Ipv4, Protocol};
use super::ipv6::Ipv6;
use super::malformed::Malformed;
use onecopy_chain::Sum;
use onecopy_link::{Head, HeadTooLong};
use std::net::IpAddr;

/// A packet's header, whichever version it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ip {
    /// Version 4.
    V4(Ipv4),
    /// Version 6.
    V6(Ipv6),
}

impl Ip {
    /// Who sent it.
    #[inline]
    pub fn from(&self) -> IpAddr {
        match self {
            Ip::V4(ip) => ip.from.into(),
            Ip::V6(ip) => ip.from.into(),
        }
    }

    /// Whom it is for.
    #[inline]
    pub fn to(&self) -> IpAddr {
        match self {
            Ip::V4(ip) => ip.to.into(),
            Ip::V6(ip) => ip.to.into(),
        }
    }

    /// What comes next.
    #[inline]
    pub fn protocol(&self) -> Protocol {
        match self {
            Ip::V4(ip) => ip.protocol,
            Ip::V6(ip) => ip.protocol,
        }
    }

    /// Hops that are left.
    #[inline]
    pub fn ttl(&self) -> u8 {
        match self {
            Ip::V4(ip) => ip.ttl,
            Ip::V6(ip) => ip.ttl,
        }
    }

    /// The type of service, or the traffic class.
    #[inline]
    pub fn service(&self) -> u8 {
        match self {
            Ip::V4(ip) => ip.service,
            Ip::V6(ip) => ip.service,
        }
    }

    /// Congestion on the way.
    #[inline]
    pub fn ecn(&self) -> Ecn {
        Ecn::of(self.service())
    }

    /// Bytes behind the header.
    #[inline]
    pub fn payload_len(&self) -> u16 {
        match self {
            Ip::V4(ip) => ip.payload_len,
            Ip::V6(ip) => ip.payload_len,
        }
    }

    /// Bytes of a header of the family that `address` is of, without options.
    #[inline]
    pub fn header_len(address: IpAddr) -> usize {
        if address.is_ipv4() { Ipv4::LEN } else { Ipv6::LEN }
    }

    /// The sum of the pseudo-header for `len` bytes of transport.
    #[inline]
    pub fn pseudo(&self, len: u32) -> Sum {
        pseudo(self.from(), self.to(), self.protocol(), len)
    }

    /// Reads what an ICMP message quotes, of the family that the message is of.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: [`Malformed::Fragment`] for one that has no transport's header.
    pub fn parse_quoted(bytes: &[u8]) -> Result<(Ip, &[u8]), Malformed> {
        match bytes.first().map(|first| first >> 4) {
            Some(4) => {
                let (ip, rest) = Ipv4::parse_quoted(bytes)?;
                if ip.offset > 0 { Err(Malformed::Fragment) } else { Ok((Ip::V4(ip), rest)) }
            }
            Some(6) => {
                let (mut ip, _) = Ipv6::parse(bytes)?;
                let behind = super::ipv6::walk(&ip, bytes).map_err(|_| Malformed::Length)?;
                if behind.fragment.is_some_and(|fragment| fragment.offset > 0) {
                    return Err(Malformed::Fragment);
                }
                ip.protocol = behind.protocol;
                Ok((Ip::V6(ip), bytes.get(behind.at..).ok_or(Malformed::Short)?))
            }
            Some(_) => Err(Malformed::Version),
            None => Err(Malformed::Short),
        }
    }

    /// Puts it in front.
    ///
    /// # Errors
    ///
    /// [`HeadTooLong`].
    pub fn write(&self, head: &mut Head) -> Result<(), HeadTooLong> {
        match self {
            Ip::V4(ip) => ip.write(head),
            Ip::V6(ip) => ip.write(head),
        }
    }
}

impl From<Ipv4> for Ip {
    fn from(ip: Ipv4) -> Ip {
        Ip::V4(ip)
    }
}

impl From<Ipv6> for Ip {
    fn from(ip: Ipv6) -> Ip {
        Ip::V6(ip)
    }
}
