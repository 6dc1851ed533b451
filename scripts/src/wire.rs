//! Segments as bytes of IP packets, written and read apart from what our stack does with them.

use crate::segment::{Choice, Cookie, Ecn, Flags, Segment};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Over which IP a script runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The host under test, as packetdrill has it.
    pub(crate) fn host(self) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::new(192, 168, 0, 1).into(),
            Family::V6 => Ipv6Addr::new(0xfd3d, 0xfa7b, 0xd17d, 0, 0, 0, 0, 1).into(),
        }
    }

    /// Whom the script speaks for; and a router between them, which complains.
    pub(crate) fn peer(self) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
            Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        }
    }

    /// Bits that the addresses of the host's network have in common.
    pub(crate) fn prefix(self) -> u8 {
        if self == Family::V6 { 48 } else { 24 }
    }

    /// Any address of it.
    pub(crate) fn any(self) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// The link's longest packet: so that a segment has 1460 bytes in both, and scripts say the same.
    pub(crate) fn mtu(self) -> u32 {
        if self == Family::V6 { 1520 } else { 1500 }
    }
}
const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_TCP: u8 = 6;
/// The option of Fast Open (RFC 7413, section 4.1.1).
const FAST_OPEN: u8 = 34;

/// A packet of TCP that the host under test has sent.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub segment: Segment,
    pub payload: Vec<u8>,
}

/// The sum of 16-bit words (RFC 1071).
fn sum(parts: &[&[u8]]) -> u16 {
    let mut total: u64 = 0;
    // Each part begins at an even place: those before have an even length.
    for part in parts {
        for pair in part.chunks(2) {
            total += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// What the checksum covers beside the segment. (The sum of IPv6's is IPv4's, whose fields are shorter.)
fn pseudo(from: IpAddr, to: IpAddr, len: usize) -> Vec<u8> {
    let mut bytes = [octets(from), octets(to)].concat();
    bytes.extend([0, PROTOCOL_TCP]);
    bytes.extend((len as u16).to_be_bytes());
    bytes
}

fn ip(from: IpAddr, to: IpAddr, protocol: u8, ecn: Option<Ecn>, payload: &[u8]) -> Vec<u8> {
    let service = ecn.map_or(0, |ecn| ecn as u8);
    if from.is_ipv6() {
        let [high, low] = (payload.len() as u16).to_be_bytes();
        let mut bytes = vec![0x60, service << 4, 0, 0, high, low, protocol, 255];
        bytes.extend(octets(from));
        bytes.extend(octets(to));
        bytes.extend(payload);
        return bytes;
    }
    let [high, low] = ((20 + payload.len()) as u16).to_be_bytes();
    let mut bytes = vec![0x45, service, high, low, 0, 0, 0x40, 0, 255, protocol, 0, 0];
    bytes.extend(octets(from));
    bytes.extend(octets(to));
    let checksum = !sum(&[&bytes]);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn options(list: &[Choice]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for choice in list {
        match choice {
            Choice::End => bytes.push(0),
            Choice::Nop => bytes.push(1),
            Choice::Mss(mss) => {
                bytes.extend([2, 4]);
                bytes.extend(mss.to_be_bytes());
            }
            Choice::WindowScale(shift) => bytes.extend([3, 3, *shift]),
            Choice::SackOk => bytes.extend([4, 2]),
            Choice::Sack(blocks) => {
                bytes.extend([5, 2 + 8 * blocks.len() as u8]);
                for (from, until) in blocks {
                    bytes.extend(from.to_be_bytes());
                    bytes.extend(until.to_be_bytes());
                }
            }
            Choice::Timestamps { value, echo } => {
                bytes.extend([8, 10]);
                bytes.extend(value.to_be_bytes());
                bytes.extend(echo.to_be_bytes());
            }
            Choice::FastOpen(cookie) => {
                // (Whose it is was put in before.)
                let cookie = if let Cookie::Bytes(bytes) = cookie { bytes.as_slice() } else { &[] };
                bytes.extend([FAST_OPEN, 2 + cookie.len() as u8]);
                bytes.extend(cookie);
            }
            Choice::Other { kind, data } => {
                bytes.extend([*kind, 2 + data.len() as u8]);
                bytes.extend(data);
            }
        }
    }
    bytes
}

/// A segment's header, with a checksum of zero.
fn header(ports: (u16, u16), segment: &Segment) -> Vec<u8> {
    let options = options(segment.options.as_deref().unwrap_or_default());
    let mut tcp = Vec::new();
    tcp.extend(ports.0.to_be_bytes());
    tcp.extend(ports.1.to_be_bytes());
    tcp.extend(segment.seq.to_be_bytes());
    tcp.extend(segment.ack.unwrap_or(0).to_be_bytes());
    let words = ((20 + options.len()) / 4) as u16;
    tcp.extend((words << 12 | segment.flags.0).to_be_bytes());
    tcp.extend(segment.window.unwrap_or(0).to_be_bytes());
    tcp.extend([0, 0]);
    tcp.extend(segment.urgent.unwrap_or(0).to_be_bytes());
    tcp.extend(options);
    tcp
}

/// A packet from the peer.
pub(crate) fn build(from: SocketAddr, to: SocketAddr, segment: &Segment, payload: &[u8]) -> Vec<u8> {
    let mut tcp = header((from.port(), to.port()), segment);
    let len = tcp.len() + payload.len();
    let checksum = !sum(&[&pseudo(from.ip(), to.ip(), len), &tcp, payload]);
    tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
    tcp.extend(payload);
    ip(from.ip(), to.ip(), PROTOCOL_TCP, segment.ecn, &tcp)
}

/// A router's complaint about a segment that the host under test has sent over IPv4.
pub(crate) fn build_unreachable(
    code: u8,
    mtu: u16,
    from: SocketAddr,
    to: SocketAddr,
    about: &Segment,
) -> Vec<u8> {
    let mut quoted = header((from.port(), to.port()), about);
    quoted.resize(quoted.len() + about.len as usize, 0);
    let mut quoted = ip(from.ip(), to.ip(), PROTOCOL_TCP, None, &quoted);
    quoted.truncate(28);
    let mut icmp = vec![3, code, 0, 0, 0, 0];
    icmp.extend(mtu.to_be_bytes());
    icmp.extend(quoted);
    let checksum = !sum(&[&icmp]);
    icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
    ip(to.ip(), from.ip(), PROTOCOL_ICMP, None, &icmp)
}

/// Reads a packet of the host under test; none where it isn't TCP. `finished` says that its checksums have to be right.
pub(crate) fn read(bytes: &[u8], finished: bool) -> Result<Option<Seen>, String> {
    let at = |range: std::ops::Range<usize>| bytes.get(range).ok_or("a packet is too short");
    let short =
        |place: usize| at(place..place + 2).map(|two| usize::from(u16::from_be_bytes([two[0], two[1]])));
    let (network, total, service, from, to): (_, _, _, IpAddr, IpAddr) =
        match bytes.first().map(|first| first >> 4) {
            Some(4) if *at(9..10)? == [PROTOCOL_TCP] => {
                if sum(&[at(0..20)?]) != 0xffff {
                    return Err("an IP header's checksum is wrong".to_owned());
                }
                let address =
                    |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]).into();
                (usize::from(bytes[0] & 15) * 4, short(2)?, bytes[1], address(12), address(16))
            }
            Some(6) if *at(6..7)? == [PROTOCOL_TCP] => {
                let address = |place: usize| {
                    at(place..place + 16).map(|bytes| {
                        let mut all = [0; 16];
                        all.copy_from_slice(bytes);
                        IpAddr::from(all)
                    })
                };
                (40, 40 + short(4)?, (short(0)? >> 4) as u8, address(8)?, address(24)?)
            }
            _ => return Ok(None),
        };
    if total != bytes.len() || network != if from.is_ipv6() { 40 } else { 20 } {
        return Err(format!("a packet of {} bytes says {total}, with {network} for IP", bytes.len()));
    }
    let tcp = &bytes[network..];
    if tcp.len() < 20 {
        return Err("a TCP header is too short".to_owned());
    }
    if finished && sum(&[&pseudo(from, to, tcp.len()), tcp]) != 0xffff {
        return Err("a TCP checksum is wrong".to_owned());
    }
    let half = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let word = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
    let header = usize::from(tcp[12] >> 4) * 4;
    let Some(list) = tcp.get(20..header) else {
        return Err(format!("a TCP header of {header} bytes in {}", tcp.len()));
    };
    let flags = Flags(half(12) & 0xfff);
    let payload = tcp[header..].to_vec();
    let segment = Segment {
        ecn: Some(Ecn::of(service)),
        flags,
        seq: word(4),
        len: payload.len() as u32,
        ack: flags.has(Flags::ACK).then(|| word(8)),
        window: Some(half(14)),
        urgent: Some(half(18)),
        options: Some(read_options(list)?),
    };
    let (from, to) = (SocketAddr::new(from, half(0)), SocketAddr::new(to, half(2)));
    Ok(Some(Seen { from, to, segment, payload }))
}

fn read_options(mut bytes: &[u8]) -> Result<Vec<Choice>, String> {
    let mut list = Vec::new();
    while let [kind, rest @ ..] = bytes {
        if *kind < 2 {
            list.push(if *kind == 0 { Choice::End } else { Choice::Nop });
            bytes = rest;
            continue;
        }
        let len = rest.first().map_or(0, |len| usize::from(*len));
        let Some(data) = bytes.get(2..len) else {
            return Err(format!("option {kind} says {len} bytes, of {}", bytes.len()));
        };
        let word = |at: usize| u32::from_be_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
        list.push(match (kind, data.len()) {
            (2, 2) => Choice::Mss(u16::from_be_bytes([data[0], data[1]])),
            (3, 1) => Choice::WindowScale(data[0]),
            (4, 0) => Choice::SackOk,
            (5, n) if n > 0 && n.is_multiple_of(8) => {
                Choice::Sack((0..n / 8).map(|block| (word(8 * block), word(8 * block + 4))).collect())
            }
            (8, 8) => Choice::Timestamps { value: word(0), echo: word(4) },
            (&FAST_OPEN, _) => Choice::FastOpen(Cookie::Bytes(data.to_vec())),
            _ => Choice::Other { kind: *kind, data: data.to_vec() },
        });
        bytes = &bytes[len..];
    }
    Ok(list)
}

/// The byte at place `at` of a direction's stream, counted from the first one.
pub(crate) fn byte(at: u32) -> u8 {
    (at ^ at >> 8 ^ at >> 16).wrapping_mul(31) as u8
}

/// `len` of them.
pub(crate) fn bytes(at: u32, len: u32) -> Vec<u8> {
    (0..len).map(|more| byte(at.wrapping_add(more))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let segment = Segment {
            ecn: Some(Ecn::Ce),
            flags: Flags::ACK.with(Flags::PSH),
            seq: 4_294_967_000,
            len: 700,
            ack: Some(7),
            window: Some(9),
            urgent: Some(0),
            options: Some(vec![
                Choice::Nop,
                Choice::Nop,
                Choice::Timestamps { value: 1, echo: 2 },
                Choice::Nop,
                Choice::Nop,
                Choice::Sack(vec![(5, 6), (7, 8)]),
            ]),
        };
        for family in [Family::V4, Family::V6] {
            let (from, to) = (SocketAddr::new(family.peer(), 80), SocketAddr::new(family.host(), 81));
            let mut packet = build(from, to, &segment, &bytes(0, 700));
            let seen = read(&packet, true).unwrap().unwrap();
            assert_eq!((seen.from, seen.to, &seen.segment), (from, to, &segment));
            assert_eq!(seen.payload, bytes(0, 700));
            packet[130] ^= 1;
            assert!(read(&packet, true).is_err() && read(&packet, false).is_ok());
            packet.truncate(99);
            assert!(read(&packet, false).is_err());
        }
        let (from, to) = (SocketAddr::new(Family::V4.peer(), 80), SocketAddr::new(Family::V4.host(), 81));
        assert!(read(&build_unreachable(4, 1200, to, from, &segment), true).unwrap().is_none());
    }
}
