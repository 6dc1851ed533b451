//! What a link takes, and which packets.

use crate::not_taken::NotTaken;
use crate::packet::{Packet, Train};
use onecopy_chain::{Checksum, Kind};

/// What stands in front of the network layer's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// An Ethernet header of 14 bytes.
    #[default]
    Ethernet,
    /// Nothing: packets are IP's.
    Ip,
}

impl Medium {
    /// Bytes of the link's own header.
    pub fn header_len(self) -> usize {
        match self {
            Medium::Ethernet => 14,
            Medium::Ip => 0,
        }
    }
}

/// What a link takes and does, so that who stands above need not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// What packets begin with.
    pub medium: Medium,
    /// Bytes of the longest packet, from the network layer's header on.
    pub mtu: u32,
    /// It finishes a checksum ([`Checksum::Partial`]) of what is transmitted (NETIF_F_HW_CSUM).
    pub checksum: bool,
    /// It cuts TCP's super-segments (NETIF_F_TSO, NETIF_F_TSO6).
    pub tcp_segmentation: bool,
    /// It cuts UDP's trains of datagrams (NETIF_F_GSO_UDP_L4).
    pub udp_segmentation: bool,
    /// Bytes of the longest super-segment, headers and all (GSO_MAX_SIZE); of no meaning without segmentation.
    pub super_segment: u32,
    /// Fragments of payload that a packet may have (MAX_SKB_FRAGS).
    pub fragments: usize,
    /// It takes payload that the CPU cannot read, a device's memory (netmem_tx).
    pub unreadable: bool,
}

impl Capabilities {
    /// The longest super-segment by default: the kernel's GSO_LEGACY_MAX_SIZE.
    pub const SUPER_SEGMENT: u32 = 65536;

    /// Nothing but packets of whole bytes that can be read.
    pub fn none(medium: Medium, mtu: u32) -> Capabilities {
        Capabilities {
            medium,
            mtu,
            checksum: false,
            tcp_segmentation: false,
            udp_segmentation: false,
            super_segment: 0,
            fragments: usize::MAX,
            unreadable: false,
        }
    }

    /// All there is.
    pub fn all(medium: Medium, mtu: u32) -> Capabilities {
        Capabilities {
            checksum: true,
            tcp_segmentation: true,
            udp_segmentation: true,
            super_segment: Capabilities::SUPER_SEGMENT,
            unreadable: true,
            ..Capabilities::none(medium, mtu)
        }
    }

    /// Why it does not take `packet`, if it does not.
    ///
    /// # Errors
    ///
    /// [`NotTaken`].
    pub fn takes(&self, packet: &Packet) -> Result<(), NotTaken> {
        let (len, header) = (packet.len(), self.medium.header_len());
        if packet.head().len() < header {
            return Err(NotTaken::Malformed);
        }
        if let Some(gso) = packet.gso() {
            let does = match gso.train {
                Train::Tcp => self.tcp_segmentation,
                Train::Udp => self.udp_segmentation,
            };
            // One that is no longer than a packet is cut as well, and refused as well.
            if !does {
                return Err(NotTaken::Segmentation);
            }
            let each = packet.head().len() - header + usize::from(gso.size);
            if each > self.mtu as usize || len > self.super_segment as usize {
                return Err(NotTaken::TooLong { len, mtu: self.mtu });
            }
        } else if len - header > self.mtu as usize {
            return Err(NotTaken::TooLong { len, mtu: self.mtu });
        }
        if matches!(packet.checksum(), Checksum::Partial { .. }) && !self.checksum {
            return Err(NotTaken::Checksum);
        }
        let payload = packet.payload().payload();
        if payload.fragment_count() > self.fragments {
            return Err(NotTaken::Fragments { count: payload.fragment_count(), most: self.fragments });
        }
        if payload.kind() == Some(Kind::Device) && !self.unreadable {
            return Err(NotTaken::Unreadable);
        }
        Ok(())
    }
}
