//! virtio's header, which stands in front of each packet (VIRTIO 1.2, section 5.1.6; linux/virtio_net.h, `struct virtio_net_hdr`).

use crate::packet::{Gso, Packet, Train};
use onecopy_chain::Checksum;

/// Bytes of it. (There is a longer one, whose count of buffers means nothing on a TAP.)
pub(super) const LEN: usize = 10;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const TCPV4: u8 = 1;
const TCPV6: u8 = 4;
const UDP_L4: u8 = 5;
const ECN: u8 = 0x80;

/// Congestion window reduced: a flag of TCP's (RFC 3168).
const CWR: u8 = 0x80;

/// What it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub flags: u8,
    pub gso_type: u8,
    pub header_len: u16,
    pub gso_size: u16,
    pub start: u16,
    pub offset: u16,
}

impl Header {
    /// In the host's order, which is a TAP's unless it is told otherwise (TUNSETVNETLE).
    pub fn to_bytes(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        (bytes[0], bytes[1]) = (self.flags, self.gso_type);
        let words = [self.header_len, self.gso_size, self.start, self.offset];
        for (to, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    pub fn of_bytes(bytes: &[u8; LEN]) -> Header {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Header {
            flags: bytes[0],
            gso_type: bytes[1],
            header_len: word(2),
            gso_size: word(4),
            start: word(6),
            offset: word(8),
        }
    }

    /// What is to be said of a packet; None where its parts do not fit together.
    pub fn of(packet: &Packet) -> Option<Header> {
        let head = packet.head();
        let mut header = Header::default();
        if let Checksum::Partial { start, offset } = packet.checksum() {
            // Kernels want all headers in it, down to the checksum's field at least.
            let header_len = head.len() as u16;
            header = Header { flags: NEEDS_CSUM, start, offset, header_len, ..header };
        }
        if let Some(gso) = packet.gso() {
            // A super-segment's checksum is the kernel's to finish, always.
            if header.flags != NEEDS_CSUM || gso.size == 0 {
                return None;
            }
            let v4 = match head.get(usize::from(gso.network))? >> 4 {
                4 => true,
                6 => false,
                _ => return None,
            };
            header.gso_size = gso.size;
            header.gso_type = match (gso.train, v4) {
                (Train::Udp, _) => UDP_L4,
                (Train::Tcp, true) => TCPV4,
                (Train::Tcp, false) => TCPV6,
            };
            if gso.train == Train::Tcp && head.get(usize::from(header.start) + 13)? & CWR != 0 {
                header.gso_type |= ECN;
            }
        }
        Some(header)
    }

    /// What is known of the checksum of a packet that came with it.
    pub fn checksum(&self) -> Checksum {
        if self.flags & NEEDS_CSUM != 0 {
            Checksum::Partial { start: self.start, offset: self.offset }
        } else if self.flags & DATA_VALID != 0 {
            Checksum::Verified
        } else {
            Checksum::None
        }
    }

    /// How a packet that came with it was put together, where its network's header begins at `network`; an error for what nobody asked for.
    pub fn gso(&self, network: u8) -> Result<Option<Gso>, Unasked> {
        let train = match self.gso_type & !ECN {
            0 => return Ok(None),
            TCPV4 | TCPV6 => Train::Tcp,
            UDP_L4 => Train::Udp,
            _ => return Err(Unasked),
        };
        match self.gso_size {
            0 => Err(Unasked),
            size => Ok(Some(Gso { train, size, network })),
        }
    }
}

/// A super-segment of a kind that was not agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unasked;

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_chain::notify::Segment;

    /// Ethernet, IP of this version and TCP with these flags, nothing else in them.
    fn packet(version: u8, flags: u8) -> Packet {
        let mut head = [0; 54];
        (head[14], head[34 + 13]) = (version << 4, flags);
        let mut packet = Packet::new(&head, Segment::default()).unwrap();
        packet.set_checksum(Checksum::Partial { start: 34, offset: 16 }).unwrap();
        packet
    }

    #[test]
    fn it_says_what_the_packet_says() {
        let plain = Packet::new(&[0; 54], Segment::default()).unwrap();
        assert_eq!(Header::of(&plain).unwrap().to_bytes(), [0; LEN]);
        let gso = |train| Some(Gso { train, size: 1448, network: 14 });
        for (version, flags, train, kind) in [
            (4, 0x10, Train::Tcp, 1),
            (4, 0x90, Train::Tcp, 0x81),
            (6, 0x18, Train::Tcp, 4),
            (6, 0x80, Train::Tcp, 0x84),
            (4, 0xff, Train::Udp, 5),
        ] {
            let mut packet = packet(version, flags);
            let header = Header::of(&packet).unwrap();
            assert_eq!(
                header,
                Header { flags: 1, start: 34, offset: 16, header_len: 54, ..Header::default() }
            );
            packet.set_gso(gso(train));
            let header = Header { gso_type: kind, gso_size: 1448, ..header };
            assert_eq!(Header::of(&packet), Some(header));
            assert_eq!(Header::of_bytes(&header.to_bytes()), header);
            assert_eq!((header.checksum(), header.gso(14)), (packet.checksum(), Ok(packet.gso())));
        }
    }

    #[test]
    fn what_does_not_fit_together_is_not_said() {
        let gso = Gso { train: Train::Tcp, size: 1448, network: 14 };
        let mut unsummed = packet(4, 0x10);
        unsummed.set_checksum(Checksum::None).unwrap();
        unsummed.set_gso(Some(gso));
        assert_eq!(Header::of(&unsummed), None);
        for wrong in [Gso { size: 0, ..gso }, Gso { network: 13, ..gso }, Gso { network: 200, ..gso }] {
            let mut packet = packet(4, 0x10);
            packet.set_gso(Some(wrong));
            assert_eq!(Header::of(&packet), None, "{wrong:?}");
        }
    }

    #[test]
    fn what_nobody_asked_for_is_told() {
        let said = |gso_type, gso_size| Header { gso_type, gso_size, ..Header::default() };
        // 3: UDP's fragments, which no kernel makes any more.
        for header in [said(3, 1400), said(0x7f, 1400), said(1, 0)] {
            assert_eq!(header.gso(0), Err(Unasked));
        }
        assert_eq!(said(0, 7).gso(0), Ok(None));
        assert_eq!(Header { flags: DATA_VALID, ..said(0, 0) }.checksum(), Checksum::Verified);
        assert_eq!(said(0, 0).checksum(), Checksum::None);
    }
}
