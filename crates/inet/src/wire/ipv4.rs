//! IPv4 (RFC 791).

use super::malformed::Malformed;
use onecopy_chain::Sum;
use onecopy_link::{Head, HeadTooLong};
use std::net::Ipv4Addr;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// RFC 791, section 3.1, without options.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    version_and_len: u8,
    service: u8,
    total_len: U16,
    id: U16,
    flags_and_offset: U16,
    ttl: u8,
    protocol: u8,
    checksum: U16,
    from: [u8; 4],
    to: [u8; 4],
}

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
/// In units of 8 bytes.
const OFFSET: u16 = 0x1fff;

/// What a packet carries (IANA's protocol numbers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// [`Icmp`](super::Icmp).
    pub const ICMP: Protocol = Protocol(1);
    /// [`Tcp`](super::Tcp).
    pub const TCP: Protocol = Protocol(6);
    /// [`Udp`](super::Udp).
    pub const UDP: Protocol = Protocol(17);
    /// A part of an IPv6 packet ([`Fragment`](super::ipv6::Fragment)).
    pub const FRAGMENT: Protocol = Protocol(44);
    /// [`Icmpv6`](super::Icmpv6).
    pub const ICMPV6: Protocol = Protocol(58);
    /// Nothing at all, in IPv6 (RFC 8200, section 4.7).
    pub const NOTHING: Protocol = Protocol(59);
}

/// Congestion, in the two low bits of the type of service (RFC 3168, section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// The sender does not take part.
    #[default]
    NotEct = 0,
    /// It takes part: ECT(1), since RFC 8311 for experiments.
    Ect1 = 1,
    /// It takes part: ECT(0).
    Ect0 = 2,
    /// There was congestion on the way.
    Ce = 3,
}

impl Ecn {
    /// Of a type of service, or a traffic class.
    pub fn of(service: u8) -> Ecn {
        match service & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }
}

/// A packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// Who sent it.
    pub from: Ipv4Addr,
    /// Whom it is for.
    pub to: Ipv4Addr,
    /// What comes next.
    pub protocol: Protocol,
    /// Hops that are left.
    pub ttl: u8,
    /// The type of service: differentiated services, and [`Ecn`].
    pub service: u8,
    /// What its fragments have in common.
    pub id: u16,
    /// Nobody may cut it.
    pub dont_fragment: bool,
    /// It is a fragment, and not the last one.
    pub more_fragments: bool,
    /// Where the fragment's bytes begin in the packet's payload; a multiple of 8, below 65536.
    pub offset: u16,
    /// Bytes behind the header. What is there beyond that is the link's padding.
    pub payload_len: u16,
    /// Bytes of options, which are passed over, and not written.
    pub options_len: u8,
}

impl Ipv4 {
    /// Bytes without options.
    pub const LEN: usize = size_of::<Layout>();

    /// One of a packet that nobody may cut, with 64 hops (net.ipv4.ip_default_ttl), and nothing particular.
    pub fn new(from: Ipv4Addr, to: Ipv4Addr, protocol: Protocol, payload_len: u16) -> Ipv4 {
        Ipv4 {
            from,
            to,
            protocol,
            ttl: 64,
            service: 0,
            id: 0,
            dont_fragment: true,
            more_fragments: false,
            offset: 0,
            payload_len,
            options_len: 0,
        }
    }

    /// Reads a header with its checksum, and gives what is behind it and its options. Whether `payload_len` bytes are there is the
    /// caller's to see, who knows where they lie.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<(Ipv4, &[u8]), Malformed> {
        let (ip, rest) = Ipv4::parse_quoted(bytes)?;
        let header = bytes.get(..bytes.len() - rest.len()).unwrap_or(bytes);
        if Sum::of(header).is_valid() { Ok((ip, rest)) } else { Err(Malformed::Checksum) }
    }

    /// As [`Ipv4::parse`], of a packet that an ICMP message quotes: routers that change a header need not mend its checksum, so that
    /// is not looked at (RFC 1812, section 4.3.2.3).
    ///
    /// # Errors
    ///
    /// [`Malformed`], but for [`Malformed::Checksum`].
    pub fn parse_quoted(bytes: &[u8]) -> Result<(Ipv4, &[u8]), Malformed> {
        let (layout, _) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::Short)?;
        if layout.version_and_len >> 4 != 4 {
            return Err(Malformed::Version);
        }
        let header = usize::from(layout.version_and_len & 15) * 4;
        let payload_len = usize::from(layout.total_len.get()).checked_sub(header).ok_or(Malformed::Length)?;
        let options_len = header.checked_sub(Ipv4::LEN).ok_or(Malformed::Length)?;
        let rest = bytes.get(header..).ok_or(Malformed::Short)?;
        let flags = layout.flags_and_offset.get();
        let ip = Ipv4 {
            from: layout.from.into(),
            to: layout.to.into(),
            protocol: Protocol(layout.protocol),
            ttl: layout.ttl,
            service: layout.service,
            id: layout.id.get(),
            dont_fragment: flags & DONT_FRAGMENT != 0,
            more_fragments: flags & MORE_FRAGMENTS != 0,
            offset: (flags & OFFSET) * 8,
            // Both fit: 65535 bytes at most, 40 of them options.
            payload_len: payload_len as u16,
            options_len: options_len as u8,
        };
        Ok((ip, rest))
    }

    /// Whether it is a part of a packet.
    pub fn is_fragment(&self) -> bool {
        self.more_fragments || self.offset > 0
    }

    /// Congestion on the way.
    pub fn ecn(&self) -> Ecn {
        Ecn::of(self.service)
    }

    /// Puts it in front, without options. (A super-segment's length is written as far as 16 bits go: what cuts it writes each packet's.)
    ///
    /// # Errors
    ///
    /// [`HeadTooLong`].
    pub fn write(&self, head: &mut Head) -> Result<(), HeadTooLong> {
        let dont = if self.dont_fragment { DONT_FRAGMENT } else { 0 };
        let more = if self.more_fragments { MORE_FRAGMENTS } else { 0 };
        let flags = dont | more | (self.offset / 8);
        let mut layout = Layout {
            version_and_len: 4 << 4 | (Ipv4::LEN / 4) as u8,
            service: self.service,
            total_len: U16::new(self.payload_len.saturating_add(Ipv4::LEN as u16)),
            id: U16::new(self.id),
            flags_and_offset: U16::new(flags),
            ttl: self.ttl,
            protocol: self.protocol.0,
            checksum: U16::ZERO,
            from: self.from.octets(),
            to: self.to.octets(),
        };
        layout.checksum = U16::new(Sum::of(layout.as_bytes()).checksum());
        head.push(Ipv4::LEN)?.copy_from_slice(layout.as_bytes());
        Ok(())
    }
}
