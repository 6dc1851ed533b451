//! Where headers end: just enough of each to know, and nothing else. Whoever takes the packet reads them in earnest.

use crate::capabilities::Medium;

/// Where the headers of a packet are that begins with `bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layers {
    /// Where the network's header begins.
    pub network: usize,
    /// Where the headers end, as far as `bytes` go: behind the last one that is whole there.
    pub end: usize,
}

/// Extension headers that are looked behind. (Nobody sends more in earnest.)
const EXTENSIONS: usize = 8;

/// Finds them in the first bytes of a packet.
pub(crate) fn layers(bytes: &[u8], medium: Medium) -> Layers {
    let mut kind = match (medium, bytes.first().map(|byte| byte >> 4)) {
        (Medium::Ethernet, _) => word(bytes, 12),
        (Medium::Ip, Some(4)) => Some(0x0800),
        (Medium::Ip, Some(6)) => Some(0x86dd),
        (Medium::Ip, _) => None,
    };
    let mut network = medium.header_len();
    // IEEE 802.1Q, and a second tag (802.1ad).
    for _ in 0..2 {
        if let Some(0x8100 | 0x88a8) = kind {
            kind = word(bytes, network + 2);
            network += 4;
        }
    }
    let end = kind.and_then(|kind| match kind {
        0x0800 => ipv4(bytes, network),
        0x86dd => ipv6(bytes, network),
        0x0806 => whole(bytes, network + 28),
        _ => None,
    });
    // What is not known is all payload.
    Layers { network, end: end.or(whole(bytes, network)).unwrap_or(0) }
}

/// The end, if it is among the bytes.
fn whole(bytes: &[u8], end: usize) -> Option<usize> {
    (end <= bytes.len()).then_some(end)
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn ipv4(bytes: &[u8], at: usize) -> Option<usize> {
    let len = usize::from(bytes.get(at)? & 15) * 4;
    let end = whole(bytes, at + len.max(20))?;
    // Only the first fragment has the transport's header, and not the whole datagram's: it is put together below that.
    let fragment = word(bytes, at + 6)? & 0x3fff != 0;
    Some(if fragment { end } else { transport(bytes, end, bytes[at + 9]) })
}

fn ipv6(bytes: &[u8], at: usize) -> Option<usize> {
    let mut end = whole(bytes, at + 40)?;
    let mut next = bytes[at + 6];
    for _ in 0..EXTENSIONS {
        // Hop by hop, routing, destination (RFC 8200, section 4).
        let (0 | 43 | 60, Some(&[following, len])) = (next, bytes.get(end..end + 2)) else { break };
        match whole(bytes, end + (usize::from(len) + 1) * 8) {
            Some(behind) => (next, end) = (following, behind),
            None => return Some(end),
        }
    }
    Some(transport(bytes, end, next))
}

/// The transport's header, where it is known and whole.
fn transport(bytes: &[u8], at: usize, protocol: u8) -> usize {
    let end = match protocol {
        6 => bytes.get(at + 12).map(|byte| at + usize::from(byte >> 4).max(5) * 4),
        // UDP, and ICMP's fixed part.
        17 | 1 | 58 => Some(at + 8),
        _ => None,
    };
    end.and_then(|end| whole(bytes, end)).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ethernet(kind: u16, rest: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![0; 12];
        bytes.extend_from_slice(&kind.to_be_bytes());
        rest.iter().for_each(|part| bytes.extend_from_slice(part));
        bytes
    }

    fn ip4(words: u8, fragment: u16, protocol: u8) -> Vec<u8> {
        let mut ip = vec![0; usize::from(words) * 4];
        (ip[0], ip[9]) = (0x40 | words, protocol);
        ip[6..8].copy_from_slice(&fragment.to_be_bytes());
        ip
    }

    fn ip6(next: u8) -> Vec<u8> {
        let mut ip = vec![0; 40];
        (ip[0], ip[6]) = (0x60, next);
        ip
    }

    fn tcp(words: u8) -> Vec<u8> {
        let mut tcp = vec![0; usize::from(words) * 4];
        tcp[12] = words << 4;
        tcp
    }

    #[test]
    fn headers_end_behind_the_transports() {
        let payload = [9; 30];
        let hop: &[u8] = &[6, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let cases: [(&str, Vec<u8>, usize, usize); 13] = [
            ("tcp", ethernet(0x0800, &[&ip4(5, 0x4000, 6), &tcp(5), &payload]), 14, 54),
            ("with options", ethernet(0x0800, &[&ip4(6, 0, 6), &tcp(8), &payload]), 14, 70),
            ("udp", ethernet(0x0800, &[&ip4(5, 0, 17), &payload]), 14, 42),
            ("icmp", ethernet(0x0800, &[&ip4(5, 0, 1), &payload]), 14, 42),
            ("another one", ethernet(0x0800, &[&ip4(5, 0, 132), &payload]), 14, 34),
            ("first fragment", ethernet(0x0800, &[&ip4(5, 0x2000, 6), &tcp(5), &payload]), 14, 34),
            ("later fragment", ethernet(0x0800, &[&ip4(5, 7, 6), &payload]), 14, 34),
            ("arp", ethernet(0x0806, &[&payload]), 14, 42),
            ("unknown", ethernet(0x88cc, &[&payload]), 14, 14),
            ("tagged", ethernet(0x8100, &[&[0, 5, 8, 0], &ip4(5, 0, 6), &tcp(5)]), 18, 58),
            ("twice", ethernet(0x88a8, &[&[0, 5, 0x81, 0, 0, 6, 0x86, 0xdd], &ip6(6), &tcp(5)]), 22, 82),
            ("ipv6", ethernet(0x86dd, &[&ip6(6), &tcp(8), &payload]), 14, 86),
            ("hop by hop", ethernet(0x86dd, &[&ip6(0), hop, &tcp(5), &payload]), 14, 90),
        ];
        for (name, bytes, network, end) in cases {
            assert_eq!(layers(&bytes, Medium::Ethernet), Layers { network, end }, "{name}");
            if network == 14 && !["arp", "unknown"].contains(&name) {
                let without = layers(&bytes[14..], Medium::Ip);
                assert_eq!(without, Layers { network: 0, end: end - 14 }, "{name} without ethernet");
            }
            // However few of them are there, it ends among them, behind a header.
            for len in 0..bytes.len() {
                let cut = layers(&bytes[..len], Medium::Ethernet);
                assert!(cut.end <= len && cut.end <= end, "{name}, {len} bytes: {cut:?}");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_will_do(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200), start in 0..6usize) {
            let mut bytes = bytes;
            // So that it is led further than by chance.
            let starts: [&[u8]; 6] = [&[], &[8, 0, 0x45], &[0x86, 0xdd, 0x60], &[0x81, 0, 0, 0, 8, 0, 0x4f], &[8, 6], &[8, 0, 0x40]];
            for (at, byte) in starts[start].iter().enumerate() {
                if let Some(to) = bytes.get_mut(12 + at) {
                    *to = *byte;
                }
            }
            for medium in [Medium::Ethernet, Medium::Ip] {
                let found = layers(&bytes, medium);
                proptest::prop_assert!(found.end <= bytes.len());
                proptest::prop_assert!(found.end == 0 || found.end >= medium.header_len());
            }
        }
    }
}
