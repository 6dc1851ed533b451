//! Whose a packet is, by a look at its headers, as a card that steers flows takes one.

use crate::capabilities::Medium;
use crate::packet::Packet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A segment of TCP, as far as it matters to where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub from: SocketAddr,
    pub to: SocketAddr,
    /// Bytes of the packet up to its end by IP's header: what is behind is Ethernet's padding.
    pub whole: usize,
    /// Bytes of all headers.
    pub headers: usize,
}

/// None of what is no TCP, a part of a packet, or has headers that nobody steers by. (Whoever takes the packet looks at them in earnest.)
pub(super) fn flow(packet: &Packet, medium: Medium) -> Option<Flow> {
    let (bytes, network) = (&packet.head()[..], medium.header_len());
    if medium == Medium::Ethernet && !matches!(bytes.get(12..14)?, [0x08, 0x00] | [0x86, 0xdd]) {
        return None;
    }
    let ip = bytes.get(network..)?;
    let (from, to, transport, whole): (IpAddr, IpAddr, usize, usize) = match ip.first()? >> 4 {
        4 => {
            let header = usize::from(ip[0] & 15) * 4;
            let fixed: &[u8; 20] = ip.first_chunk()?;
            let part = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff != 0;
            if header < 20 || part || fixed[9] != TCP {
                return None;
            }
            let address = |at: usize| Ipv4Addr::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]);
            let whole = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
            (address(12).into(), address(16).into(), header, whole)
        }
        6 => {
            let fixed: &[u8; 40] = ip.first_chunk()?;
            if fixed[6] != TCP {
                return None;
            }
            let address = |at: usize| {
                fixed
                    .get(at..at + 16)
                    .and_then(|bytes| bytes.first_chunk())
                    .map(|bytes| Ipv6Addr::from(*bytes))
            };
            let whole = 40 + usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
            (address(8)?.into(), address(24)?.into(), 40, whole)
        }
        _ => return None,
    };
    let tcp: &[u8; 20] = ip.get(transport..)?.first_chunk()?;
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let headers = network + transport + usize::from(tcp[12] >> 4).max(5) * 4;
    let whole = network + whole;
    (headers <= whole).then(|| Flow {
        from: SocketAddr::new(from, port(0)),
        to: SocketAddr::new(to, port(2)),
        whole,
        headers,
    })
}

/// TCP's number (RFC 9293, section 3.1).
const TCP: u8 = 6;

impl Flow {
    /// Spreads flows over queues: the same for each packet of one, both ways not alike. (A card's Toeplitz hash has a key against who
    /// would choose the queue; here nothing is to be won by it.)
    pub fn hash(&self) -> u32 {
        let address = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => u128::from(u32::from(ip)),
            IpAddr::V6(ip) => u128::from(ip),
        };
        let ports = u64::from(self.from.port()) << 16 | u64::from(self.to.port());
        [address(self.from.ip()), address(self.to.ip()), ports.into()].iter().fold(0, |hash: u64, word| {
            let folded = (*word as u64) ^ (*word >> 64) as u64;
            (hash ^ folded).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        }) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_chain::notify::Segment;

    fn v4(ihl: u8, part: u16, protocol: u8, whole: u16, doff: u8) -> Vec<u8> {
        let mut bytes = vec![0; 12];
        bytes.extend([0x08, 0x00]);
        let mut ip = vec![0; usize::from(ihl) * 4];
        (ip[0], ip[9]) = (0x40 | ihl, protocol);
        ip[2..4].copy_from_slice(&whole.to_be_bytes());
        ip[6..8].copy_from_slice(&part.to_be_bytes());
        ip[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend(ip);
        let mut tcp = vec![0; 20];
        (tcp[0], tcp[1], tcp[3], tcp[12]) = (1, 2, 80, doff << 4);
        bytes.extend(tcp);
        bytes
    }

    fn look(bytes: &[u8]) -> Option<Flow> {
        flow(&Packet::new(bytes, Segment::default()).unwrap(), Medium::Ethernet)
    }

    #[test]
    fn a_segment_is_known_by_its_ends() {
        let found = look(&v4(5, 0x4000, 6, 40, 5)).unwrap();
        assert_eq!(found.from, "10.0.0.1:258".parse().unwrap());
        assert_eq!(found.to, "10.0.0.2:80".parse().unwrap());
        assert_eq!((found.headers, found.whole), (54, 54));
        assert_eq!(look(&v4(6, 0, 6, 1000, 8)).map(|found| (found.headers, found.whole)), Some((70, 1014)));
        for (name, bytes) in [
            ("a part", v4(5, 0x2000, 6, 40, 5)),
            ("a later part", v4(5, 7, 6, 40, 5)),
            ("UDP", v4(5, 0, 17, 40, 5)),
            ("shorter than its headers", v4(5, 0, 6, 39, 5)),
            ("more options than bytes", v4(5, 0, 6, 40, 15)),
        ] {
            assert_eq!(look(&bytes), None, "{name}");
        }
        let whole = v4(5, 0, 6, 40, 5);
        for len in 0..whole.len() {
            assert_eq!(look(&whole[..len]), None, "{len} bytes of it");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_will_do(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..120), version in 0..3usize) {
            let mut bytes = bytes;
            let start: &[u8] = [&[8, 0, 0x45][..], &[0x86, 0xdd, 0x60], &[]][version];
            for (at, byte) in start.iter().enumerate() {
                if let Some(to) = bytes.get_mut(12 + at) {
                    *to = *byte;
                }
            }
            let packet = Packet::new(&bytes, Segment::default()).unwrap();
            for medium in [Medium::Ethernet, Medium::Ip] {
                if let Some(found) = flow(&packet, medium) {
                    proptest::prop_assert!(found.headers <= found.whole);
                    found.hash();
                }
            }
        }
    }
}
