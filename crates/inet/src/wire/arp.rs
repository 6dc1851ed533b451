//! Who has an address: ARP for IPv4 over Ethernet (RFC 826).

use super::ethernet::{EtherType, Mac};
use super::malformed::Malformed;
use onecopy_link::{Head, HeadTooLong};
use std::net::Ipv4Addr;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// RFC 826, "Packet format", with addresses of 6 and 4 bytes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    hardware: U16,
    protocol: U16,
    hardware_len: u8,
    protocol_len: u8,
    operation: U16,
    sender_mac: [u8; 6],
    sender: [u8; 4],
    target_mac: [u8; 6],
    target: [u8; 4],
}

const ETHERNET: u16 = 1;

/// What is asked or said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation(pub u16);

impl Operation {
    /// Who has the target's address?
    pub const REQUEST: Operation = Operation(1);
    /// The sender has its own.
    pub const REPLY: Operation = Operation(2);
}

/// A question, or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Which of them.
    pub operation: Operation,
    /// Who sends it.
    pub sender_mac: Mac,
    /// His address; 0.0.0.0 in a probe (RFC 5227).
    pub sender: Ipv4Addr,
    /// Who is meant, where that is known.
    pub target_mac: Mac,
    /// His address.
    pub target: Ipv4Addr,
}

impl Arp {
    /// Bytes.
    pub const LEN: usize = size_of::<Layout>();

    /// Reads a packet.
    ///
    /// # Errors
    ///
    /// [`Malformed::Short`]; [`Malformed::Version`] for other hardware or another protocol.
    pub fn parse(bytes: &[u8]) -> Result<(Arp, &[u8]), Malformed> {
        let (layout, rest) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::Short)?;
        let is = (layout.hardware.get(), layout.protocol.get(), layout.hardware_len, layout.protocol_len);
        if is != (ETHERNET, EtherType::IPV4.0, 6, 4) {
            return Err(Malformed::Version);
        }
        let arp = Arp {
            operation: Operation(layout.operation.get()),
            sender_mac: Mac(layout.sender_mac),
            sender: layout.sender.into(),
            target_mac: Mac(layout.target_mac),
            target: layout.target.into(),
        };
        Ok((arp, rest))
    }

    /// Puts it in front.
    ///
    /// # Errors
    ///
    /// [`HeadTooLong`].
    pub fn write(&self, head: &mut Head) -> Result<(), HeadTooLong> {
        let layout = Layout {
            hardware: U16::new(ETHERNET),
            protocol: U16::new(EtherType::IPV4.0),
            hardware_len: 6,
            protocol_len: 4,
            operation: U16::new(self.operation.0),
            sender_mac: self.sender_mac.0,
            sender: self.sender.octets(),
            target_mac: self.target_mac.0,
            target: self.target.octets(),
        };
        head.push(Arp::LEN)?.copy_from_slice(layout.as_bytes());
        Ok(())
    }
}
