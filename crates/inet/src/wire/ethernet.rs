//! Ethernet II.

use super::malformed::Malformed;
use onecopy_link::{Head, HeadTooLong};
use std::fmt;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// IEEE 802.3, section 3.1.1, with a type in the place of the length.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    to: [u8; 6],
    from: [u8; 6],
    kind: U16,
}

/// A hardware address.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Everybody's.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Whether it is many stations'.
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether a station may have it: not a group's, and not zero.
    pub fn is_station(self) -> bool {
        !self.is_group() && self != Mac::default()
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a frame carries (IEEE 802 numbers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// [`Ipv4`](super::Ipv4).
    pub const IPV4: EtherType = EtherType(0x0800);
    /// [`Arp`](super::Arp).
    pub const ARP: EtherType = EtherType(0x0806);
    /// IPv6.
    pub const IPV6: EtherType = EtherType(0x86dd);
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ethernet {
    /// Whom it is for.
    pub to: Mac,
    /// Who sent it.
    pub from: Mac,
    /// What comes next.
    pub kind: EtherType,
}

impl Ethernet {
    /// Bytes.
    pub const LEN: usize = size_of::<Layout>();

    /// Reads a header, and gives what is behind it (with a short frame's padding).
    ///
    /// # Errors
    ///
    /// [`Malformed::Short`].
    pub fn parse(bytes: &[u8]) -> Result<(Ethernet, &[u8]), Malformed> {
        let (layout, rest) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::Short)?;
        let kind = EtherType(layout.kind.get());
        Ok((Ethernet { to: Mac(layout.to), from: Mac(layout.from), kind }, rest))
    }

    /// Puts it in front.
    ///
    /// # Errors
    ///
    /// [`HeadTooLong`].
    pub fn write(&self, head: &mut Head) -> Result<(), HeadTooLong> {
        let layout = Layout { to: self.to.0, from: self.from.0, kind: U16::new(self.kind.0) };
        head.push(Ethernet::LEN)?.copy_from_slice(layout.as_bytes());
        Ok(())
    }
}
