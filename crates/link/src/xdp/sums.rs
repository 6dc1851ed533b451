//! Checksums that a sender on this host left unfinished. AF_XDP does not say so of a packet, as virtio's header does on a TAP; its bytes do.

use crate::packet::Packet;
use crate::parse::Layers;
use onecopy_chain::{Checksum, Sum};

/// Protocols whose checksum covers a pseudo-header, and where their field is.
const TCP: (u8, usize) = (6, 16);
const UDP: (u8, usize) = (17, 6);

/// Whether a packet that begins with `head` is UDP's.
pub(super) fn is_udp(head: &[u8], layers: Layers) -> bool {
    let at = |at: usize| head.get(layers.network + at).copied();
    match at(0).map(|byte| byte >> 4) {
        Some(4) => at(9) == Some(UDP.0),
        Some(6) => at(6) == Some(UDP.0),
        _ => false,
    }
}

/// What is to be said of the checksum of `packet`, whose headers `layers` are: [`Checksum::Partial`], if in the transport's field is the sum of its pseudo-header and
/// nothing else, as it is where a checksum was left to the device (CHECKSUM_PARTIAL; tcp_v4_send_check(), udp4_hwcsum()).
///
/// A finished checksum is that number as well once in 65,536 packets; then the packet is not looked at, though it could be.
pub(super) fn unfinished(packet: &Packet, layers: Layers) -> Option<Checksum> {
    let head: &[u8] = packet.head();
    let header = head.get(layers.network..)?;
    let (protocol, addresses, transport) = match header.first()? >> 4 {
        4 => {
            // Of a fragment the checksum is the whole datagram's.
            let whole = u16::from_be_bytes([*header.get(6)?, *header.get(7)?]) & 0x3fff == 0;
            whole.then_some(())?;
            (*header.get(9)?, header.get(12..20)?, usize::from(header[0] & 15) * 4)
        }
        6 => (*header.get(6)?, header.get(8..40)?, 40),
        _ => return None,
    };
    let (_, field) = [TCP, UDP].into_iter().find(|(known, _)| *known == protocol)?;
    // As long as IP says that it is: Ethernet's padding is none of it.
    let whole = match header[0] >> 4 {
        4 => usize::from(u16::from_be_bytes([header[2], header[3]])).checked_sub(transport)?,
        _ => usize::from(u16::from_be_bytes([header[4], header[5]])),
    };
    let start = layers.network + transport;
    let stored = Sum::new(u16::from_be_bytes([*head.get(start + field)?, *head.get(start + field + 1)?]));
    let rest = Sum::of(&(whole as u32).to_be_bytes()).then(Sum::new(protocol.into()), 4);
    let pseudo = Sum::of(addresses).then(rest, addresses.len());
    let partial = Checksum::Partial { start: start as u16, offset: field as u16 };
    // (UDP's zero is "none", and a pseudo-header's sum is never zero.)
    (stored == pseudo && start + whole <= packet.len()).then_some(partial)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::Medium;
    use crate::parse::layers;
    use onecopy_chain::Chain;

    /// Ethernet, IP and the transport's header, its checksum left to be finished or not.
    fn made(v4: bool, protocol: u8, finished: bool, payload: usize) -> Packet {
        let (header, field) = if protocol == 6 { (20, 16) } else { (8, 6) };
        let mut bytes = vec![2; 12];
        let len = (header + payload) as u16;
        if v4 {
            bytes.extend([8, 0, 0x45, 0]);
            bytes.extend((20 + len).to_be_bytes());
            bytes.extend([0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        } else {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend(len.to_be_bytes());
            bytes.extend([protocol, 64]);
            bytes.extend((0..32).collect::<Vec<u8>>());
        }
        let (network, transport) = (14, bytes.len());
        bytes.resize(transport + usize::from(len), 7);
        if protocol == 6 {
            bytes[transport + 12] = 0x50;
        }
        let addresses =
            if v4 { &bytes[network + 12..network + 20] } else { &bytes[network + 8..network + 40] };
        let mut pseudo = addresses.to_vec();
        pseudo.extend([0, 0, (len >> 8) as u8, len as u8, 0, 0, 0, protocol]);
        bytes[transport + field..][..2].fill(0);
        let sum = match finished {
            true => {
                pseudo.extend(&bytes[transport..]);
                !onecopy_testing::internet_sum(&pseudo)
            }
            false => onecopy_testing::internet_sum(&pseudo),
        };
        bytes[transport + field..][..2].copy_from_slice(&sum.to_be_bytes());
        let end = transport + header;
        let mut payload = Chain::new();
        let pool =
            onecopy_pool::PagePool::new(onecopy_pool::PoolConfig::new(), onecopy_pool::provider::Heap::new())
                .unwrap();
        let mut page = pool.alloc().unwrap();
        let left = bytes.len() - end;
        page.bytes_mut().unwrap()[..left].copy_from_slice(&bytes[end..]);
        if left > 0 {
            payload.append(onecopy_chain::Fragment::new(page, 0, left).unwrap()).unwrap();
        }
        Packet::new(&bytes[..end], payload).unwrap()
    }

    fn said(packet: &Packet) -> Option<Checksum> {
        unfinished(packet, layers(packet.head(), Medium::Ethernet))
    }

    #[test]
    fn what_is_unfinished_is_found_and_what_is_not_is_not() {
        for (v4, start) in [(true, 34), (false, 54)] {
            for (protocol, offset) in [(6, 16), (17, 6)] {
                for payload in [0, 1, 100, 1001] {
                    let what = format!("v4 {v4}, protocol {protocol}, {payload} bytes");
                    let partial = Checksum::Partial { start, offset };
                    let packet = made(v4, protocol, false, payload);
                    assert_eq!(said(&packet), Some(partial), "{what}");
                    assert_eq!(said(&made(v4, protocol, true, payload)), None, "{what}, finished");
                    // Finished from there on, it is what it would have been.
                    let mut packet = packet;
                    packet.set_checksum(partial).unwrap();
                    packet.finish().unwrap();
                    assert_eq!(
                        packet.to_vec().unwrap(),
                        made(v4, protocol, true, payload).to_vec().unwrap(),
                        "{what}"
                    );
                }
            }
        }
    }

    #[test]
    fn of_what_is_no_whole_packet_nothing_is_said() {
        let mut fragment = made(true, 17, false, 100);
        fragment.head_mut()[20] = 0x20;
        assert_eq!(said(&fragment), None, "more fragments follow");
        let mut longer = made(true, 17, false, 100);
        let pseudo = u16::from_be_bytes([longer.head()[40], longer.head()[41]]) + 1;
        (longer.head_mut()[17], longer.head_mut()[38]) = (129, 0);
        longer.head_mut()[40..42].copy_from_slice(&pseudo.to_be_bytes());
        assert_eq!(said(&longer), None, "IP says that it has more bytes than there are");
        let icmp = made(true, 1, false, 8);
        assert_eq!(said(&icmp), None);
        for len in 0..54 {
            let whole = made(true, 6, false, 0).to_vec().unwrap();
            let cut = Packet::new(&whole[..len], Chain::new()).unwrap();
            assert_eq!(said(&cut), None, "{len} bytes");
        }
    }
}
