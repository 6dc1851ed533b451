//! What a link is.

use crate::packet::Packet;
use crate::rx::{Queues, Sorted};

/// Where packets leave, and where they arrive.
///
/// It has no clock and no thread: time is what its caller says, in nanoseconds of any steady clock, and never goes back. Whoever drives
/// it asks in this order, again and again:
///
/// 1. [`Link::receive`], until it gives none;
/// 2. [`Link::transmit`], at most as often as [`Link::room`] says;
/// 3. [`Link::deadline`]: when to come back at the latest. (A link with a descriptor is readable then, too.)
///
/// The payload goes by reference with what keeps its sends from completing: [`Packet::free`] says what became of it.
pub trait Link {
    /// What it takes. It may become less while the link is open, where the other side refuses what it agreed to; what was told before is
    /// taken all the same, and done by the link itself.
    fn capabilities(&self) -> Capabilities;

    /// Packets that it takes now. What is transmitted beyond that is dropped.
    fn room(&self, now_ns: u64) -> usize;

    /// Takes `packet`, and frees it once its bytes have left, saying how ([`Fate`](onecopy_chain::notify::Fate)): at that moment, if
    /// nobody else holds it, the sends that it carries bytes of complete. One that it has no room for, or does not take (too long, not
    /// among the [`Capabilities`]), is dropped, and counted.
    fn transmit(&mut self, now_ns: u64, packet: Packet);

    /// The next packet that has arrived; `None` when there is none.
    fn receive(&mut self, now_ns: u64) -> Option<Packet>;

    /// As [`Link::receive`], for who sorts what has arrived by `queues`. A link that can puts payload that belongs in the memory of one of them
    /// there itself.
    fn receive_sorted(&mut self, now_ns: u64, queues: &mut Queues) -> Option<Sorted> {
        self.receive(now_ns).map(|packet| queues.sort(packet))
    }

    /// When [`Link::receive`] gives a packet again, or [`Link::room`] more than none; `None` when nobody knows: no packet is on its way,
    /// or only a descriptor tells.
    fn deadline(&self) -> Option<u64>;
}

impl<L: Link + ?Sized> Link for &mut L {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }
    fn room(&self, now_ns: u64) -> usize {
        (**self).room(now_ns)
    }
    fn transmit(&mut self, now_ns: u64, packet: Packet) {
        (**self).transmit(now_ns, packet);
    }
    fn receive(&mut self, now_ns: u64) -> Option<Packet> {
        (**self).receive(now_ns)
    }
    fn receive_sorted(&mut self, now_ns: u64, queues: &mut Queues) -> Option<Sorted> {
        (**self).receive_sorted(now_ns, queues)
    }
    fn deadline(&self) -> Option<u64> {
        (**self).deadline()
    }
}

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
    /// It finishes a checksum ([`Checksum::Partial`](onecopy_chain::Checksum::Partial)) of what is transmitted (NETIF_F_HW_CSUM).
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
        use crate::packet::Train;
        use onecopy_chain::{Checksum, Kind};
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

/// Why a link does not take a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotTaken {
    /// Longer than its MTU, or than its longest super-segment.
    TooLong {
        /// Bytes of the packet.
        len: usize,
        /// The MTU.
        mtu: u32,
    },
    /// A checksum is to be finished, and it finishes none.
    Checksum,
    /// A super-segment, and it cuts none of that kind.
    Segmentation,
    /// More fragments than it gathers.
    Fragments {
        /// Fragments of the payload.
        count: usize,
        /// The most it takes.
        most: usize,
    },
    /// Payload in a device's memory.
    Unreadable,
    /// The headers are not what the packet says they are.
    Malformed,
}

impl std::fmt::Display for NotTaken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NotTaken::TooLong { len, mtu } => {
                write!(f, "a packet of {len} bytes does not go through a link of MTU {mtu}; send it in parts")
            }
            NotTaken::Checksum => f.write_str("the link finishes no checksums; call Packet::finish first"),
            NotTaken::Segmentation => f.write_str("the link cuts no super-segments; call Packet::cut first"),
            NotTaken::Fragments { count, most } => {
                write!(f, "a packet of {count} fragments, where the link gathers {most}; send it in parts")
            }
            NotTaken::Unreadable => {
                f.write_str("the payload lies in a device's memory, which the link does not take; copy it to the host first")
            }
            NotTaken::Malformed => f.write_str("the headers are not what the packet says; build them anew"),
        }
    }
}

impl std::error::Error for NotTaken {}
