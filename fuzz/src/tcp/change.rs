//! How a packet is changed on its way, and made right again: lengths and checksums as the receiver wants them, so that what is behind the
//! checks is reached.

use super::ends::INNOCENT_V6;
use onecopy_chain::Sum;
use onecopy_conformance::tools::Dice;

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const FRAGMENT: u8 = 44;

/// Where the parts of a packet begin.
#[derive(Clone, Copy, Debug)]
struct Parts {
    /// IP's header, behind the link's.
    ip: usize,
    v6: bool,
    /// The transport's header.
    upper: usize,
    protocol: u8,
    /// It is a part of a packet, and another one than the whole.
    part: bool,
}

/// The parts of one of IP, behind `ip` bytes of the link's header.
fn parts(bytes: &[u8], ip: usize) -> Option<Parts> {
    match bytes.get(ip)? >> 4 {
        4 if bytes.len() >= ip + 20 => {
            let upper = ip + (usize::from(bytes[ip] & 15) * 4).max(20);
            let part = u16::from_be_bytes([bytes[ip + 6], bytes[ip + 7]]) & 0x3fff != 0;
            Some(Parts { ip, v6: false, upper, protocol: bytes[ip + 9], part })
        }
        6 if bytes.len() >= ip + 40 => {
            let (mut next, mut at, mut part) = (bytes[ip + 6], ip + 40, false);
            while let Some(header) = bytes.get(at..at + 8).filter(|_| matches!(next, 0 | 43 | 60 | FRAGMENT))
            {
                if next == FRAGMENT {
                    part |= u16::from_be_bytes([header[2], header[3]]) & !6 != 0;
                    at += 8;
                } else {
                    at += 8 + 8 * usize::from(header[1]);
                }
                next = header[0];
            }
            Some(Parts { ip, v6: true, upper: at, protocol: next, part })
        }
        _ => None,
    }
}

/// The same packet with one to three things changed, and right again.
pub(super) fn changed(dice: &mut Dice, mut bytes: Vec<u8>, ip: usize) -> Vec<u8> {
    for _ in 0..=dice.roll() % 3 {
        let Some(parts) = parts(&bytes, ip) else {
            any_byte(dice, &mut bytes, ip);
            continue;
        };
        match dice.roll() % 16 {
            0..10 if parts.upper + 8 <= bytes.len() => bytes = transport(dice, bytes, parts),
            10 => bytes.truncate(parts.upper.min(bytes.len()) + dice.roll() as usize % (bytes.len() + 1)),
            11 => bytes.resize((bytes.len() + dice.roll() as usize % 3000).min(9000), 3),
            12 | 13 => bytes = header(dice, bytes, parts),
            14 => any_byte(dice, &mut bytes, ip),
            _ => bytes = between(dice, bytes, parts),
        }
    }
    right(dice, &mut bytes, ip);
    bytes
}

/// Changes any byte of the first ones, but not who sent it, nor to whom: what the innocent says is not the peer's to say.
fn any_byte(dice: &mut Dice, bytes: &mut [u8], ip: usize) {
    let (at, with) = (dice.roll() as usize % bytes.len().clamp(1, 140), dice.roll() as u8);
    let addresses = match bytes.get(ip).map(|first| first >> 4) {
        Some(6) => ip + 8..ip + 40,
        // (ARP says who in the same place.)
        _ => ip + 8..ip + 20,
    };
    if at >= ip && at < bytes.len() && !addresses.contains(&at) {
        bytes[at] = with;
    }
}

/// Changes IP's own header.
fn header(dice: &mut Dice, mut bytes: Vec<u8>, parts: Parts) -> Vec<u8> {
    let (ip, random) = (parts.ip, dice.roll());
    match (parts.v6, random >> 61) {
        // Fragments, the type of service, hops.
        (false, 0..3) => bytes[ip + 6..ip + 8].copy_from_slice(&(random as u16).to_be_bytes()),
        (_, 3 | 4) => bytes[ip + 1] = random as u8,
        (false, 5) => bytes[ip + 8] = random as u8,
        (true, 5) => bytes[ip + 7] = random as u8,
        (false, _) => {
            // Options: ones that are known, with any content.
            let mut options: Vec<u8> = Vec::new();
            while options.len() < 36 && !dice.one_in(4) {
                let kind = [0, 1, 7, 68, 131, 137, 148, 130][dice.roll() as usize % 8];
                options.push(kind);
                if kind > 1 {
                    options.push(if dice.one_in(4) { dice.roll() as u8 } else { 3 + dice.roll() as u8 % 9 });
                    (0..dice.roll() % 10).for_each(|_| options.push(dice.roll() as u8));
                }
            }
            options.truncate(40);
            options.resize(options.len().next_multiple_of(4), 0);
            bytes = [&bytes[..ip + 20], &options, &bytes[parts.upper.min(bytes.len())..]].concat();
            bytes[ip] = 0x45 + options.len() as u8 / 4;
        }
        (true, _) => bytes = between(dice, bytes, parts),
    }
    bytes
}

/// Puts an extension header behind IPv6's own.
fn between(dice: &mut Dice, mut bytes: Vec<u8>, parts: Parts) -> Vec<u8> {
    if !parts.v6 {
        return bytes;
    }
    let kind = [0, 43, FRAGMENT, 60, 60, 135][dice.roll() as usize % 6];
    let mut header = vec![bytes[parts.ip + 6], 0];
    if kind == FRAGMENT {
        let offset = if dice.one_in(2) { 0 } else { dice.roll() as u16 };
        header.extend_from_slice(&offset.to_be_bytes());
        header.extend_from_slice(&(dice.roll() as u32 & 3).to_be_bytes());
    } else {
        // Options, or segments that are left.
        while header.len() < 64 && !dice.one_in(3) {
            let kind = [0, 1, 5, 0x3e, 0x7e, 0xbe, 0xc2, 0xfe][dice.roll() as usize % 8];
            header.push(kind);
            if kind > 0 {
                let len = dice.roll() as u8 % 6;
                header.push(if dice.one_in(8) { dice.roll() as u8 } else { len });
                header.resize(header.len() + usize::from(len), dice.roll() as u8);
            }
        }
        header.resize(header.len().next_multiple_of(8), 0);
        header[1] = (header.len() / 8 - 1) as u8;
        if dice.one_in(8) {
            header[1] = dice.roll() as u8;
        }
    }
    bytes[parts.ip + 6] = kind;
    [&bytes[..parts.ip + 40], &header, &bytes[parts.ip + 40..]].concat()
}

/// Changes the header of the transport, or what an ICMP message says.
fn transport(dice: &mut Dice, mut bytes: Vec<u8>, parts: Parts) -> Vec<u8> {
    let (at, random) = (parts.upper, dice.roll());
    match parts.protocol {
        TCP if bytes.len() >= at + 20 => segment(dice, bytes, at),
        UDP => {
            match random >> 61 {
                0 => bytes[at..at + 2].copy_from_slice(&(random as u16).to_be_bytes()),
                1 => bytes[at + 2..at + 4].copy_from_slice(&(random as u16).to_be_bytes()),
                2 => bytes.truncate(at + 8),
                _ => any_byte(dice, &mut bytes, parts.ip),
            }
            bytes
        }
        ICMP | ICMPV6 => {
            let kinds: &[u8] = match parts.v6 {
                true => &[1, 2, 3, 4, 128, 129, 130, 133, 134, 135, 136, 137, 143],
                false => &[0, 3, 4, 5, 8, 9, 11, 12, 13, 17],
            };
            let behind = at + 8 + random as usize % 60;
            match random >> 61 {
                0 => bytes[at] = kinds[random as usize % kinds.len()],
                1 => bytes[at + 1] = (random % 17) as u8,
                2 => bytes[at + 4..at + 8].copy_from_slice(&(random as u32).to_be_bytes()),
                3 => bytes[at + 6..at + 8].copy_from_slice(&(random as u16 % 1600).to_be_bytes()),
                4 => bytes.truncate(at + 8 + random as usize % (bytes.len() - at - 7)),
                _ if behind < bytes.len() => bytes[behind] = (random >> 32) as u8,
                _ => {}
            }
            bytes
        }
        _ => bytes,
    }
}

fn segment(dice: &mut Dice, mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    let random = dice.roll();
    let near = [0, 1, u32::MAX, 1460, 65_536, 1 << 31][dice.roll() as usize % 6];
    let near = if dice.one_in(4) { random as u32 } else { near };
    let tcp = &mut bytes[at..];
    match random % 12 {
        0 | 1 => add(&mut tcp[4..8], near),
        2 | 3 => add(&mut tcp[8..12], near),
        4 | 5 => tcp[13] = (random >> 8) as u8,
        6 => tcp[13] ^= 1 << (random >> 8 & 7),
        7 => tcp[14..16].copy_from_slice(&((random >> 8) as u16).to_be_bytes()),
        8 => tcp[18..20].copy_from_slice(&((random >> 8) as u16).to_be_bytes()),
        9 => bytes.truncate(at + 20 + ((random >> 8) as usize % (bytes.len() - at - 19))),
        _ => bytes = with_options(dice, &bytes, at),
    }
    bytes
}

/// The same with other options: ones that are known, with any content, or none at all.
fn with_options(dice: &mut Dice, bytes: &[u8], at: usize) -> Vec<u8> {
    let old = (usize::from(bytes[at + 12] >> 4) * 4).clamp(20, bytes.len() - at);
    let mut options = Vec::new();
    while options.len() < 36 && !dice.one_in(5) {
        let kind = [0, 1, 2, 3, 4, 5, 8, 34, 254, 28][dice.roll() as usize % 10];
        options.push(kind);
        if kind > 1 {
            let right = match kind {
                2 => 4,
                3 => 3,
                4 => 2,
                5 => 2 + 8 * (dice.roll() % 5) as u8,
                8 => 10,
                _ => 2 + (dice.roll() % 12) as u8,
            };
            let len = if dice.one_in(6) { dice.roll() as u8 } else { right };
            options.push(len);
            (2..len.min(40)).for_each(|_| options.push(dice.roll() as u8));
        }
    }
    options.truncate(40);
    options.resize(options.len().next_multiple_of(4), 0);
    let mut changed = [&bytes[..at + 20], &options, &bytes[at + old..]].concat();
    changed[at + 12] = ((20 + options.len()) as u8 / 4) << 4 | changed[at + 12] & 15;
    changed
}

/// Lengths (mostly) and checksums as they should be; and of neighbours nothing is said of the innocent.
pub(super) fn right(dice: &mut Dice, bytes: &mut [u8], ip: usize) {
    let Some(Parts { v6, upper, protocol, part, .. }) = parts(bytes, ip) else { return };
    let len = (bytes.len() - ip) as u16;
    if !dice.one_in(16) {
        match v6 {
            true => bytes[ip + 4..ip + 6].copy_from_slice(&(len - 40).to_be_bytes()),
            false => bytes[ip + 2..ip + 4].copy_from_slice(&len.to_be_bytes()),
        }
    }
    if !v6 {
        bytes[ip + 10..ip + 12].fill(0);
        let end = upper.min(bytes.len());
        let sum = Sum::of(&bytes[ip..end]).checksum();
        bytes[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    }
    let Some(len) = bytes.len().checked_sub(upper) else { return };
    if v6 && protocol == ICMPV6 && len >= 24 && matches!(bytes[upper], 135 | 136) {
        // (What is said of a neighbour is believed of whoever is on the link, in both families.)
        if bytes[upper + 8..upper + 24] == INNOCENT_V6.octets() {
            bytes[upper + 23] ^= 1;
        }
    }
    let field = match protocol {
        TCP => 16,
        UDP => 6,
        ICMP | ICMPV6 => 2,
        _ => return,
    };
    // That of a part is not known before the others are there.
    if part || len < field + 2 {
        return;
    }
    if protocol == UDP {
        let len = match dice.roll() % 32 {
            // Around what its own header has.
            0 => dice.roll() as u16 % 16,
            1 => dice.roll() as u16,
            _ => len as u16,
        };
        bytes[upper + 4..upper + 6].copy_from_slice(&len.to_be_bytes());
    }
    bytes[upper + field..upper + field + 2].fill(0);
    let pseudo = match (v6, protocol) {
        (false, ICMP) => Vec::new(),
        (true, _) => [&bytes[ip + 8..ip + 40], &(len as u32).to_be_bytes(), &[0, 0, 0, protocol]].concat(),
        (false, _) => [&bytes[ip + 12..ip + 20], &[0, protocol], &(len as u16).to_be_bytes()].concat(),
    };
    let sum = match Sum::of(&[&pseudo, &bytes[upper..]].concat()).checksum() {
        // Zero would say that there is none (RFC 768).
        0 if protocol == UDP => 0xffff,
        sum => sum,
    };
    bytes[upper + field..upper + field + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Cuts a packet into fragments, and has half of the time something be wrong with them. What is no whole packet is given back as it is.
pub(super) fn cut(dice: &mut Dice, bytes: Vec<u8>, ip: usize, id: u32) -> Vec<Vec<u8>> {
    let Some(Parts { v6, part: false, upper, .. }) = parts(&bytes, ip) else { return vec![bytes] };
    let begins = if v6 { ip + 40 } else { upper };
    if bytes.len() <= begins + 8 {
        return vec![bytes];
    }
    let whole = bytes[begins..].to_vec();
    let size = 8 * (1 + dice.roll() as usize % 180).max(whole.len() / 800);
    let last = whole.len().div_ceil(size) - 1;
    // Where each begins, and whether more follow.
    let mut cuts: Vec<(usize, bool, &[u8])> =
        whole.chunks(size).enumerate().map(|(at, piece)| (at * size / 8, at < last, piece)).collect();
    let which = dice.roll() as usize % cuts.len();
    let mut ids = vec![id; cuts.len() + 1];
    match dice.roll() % 16 {
        0 => cuts.reverse(),
        1 => cuts.push(cuts[which]),
        2 => drop(cuts.remove(which)),
        3 => cuts[which].0 += 1,
        4 => cuts[which].0 = cuts[which].0.saturating_sub(1),
        5 => cuts[which].1 = !cuts[which].1,
        6 => cuts[which].2 = &cuts[which].2[..dice.roll() as usize % (cuts[which].2.len() + 1)],
        7 => cuts[which].0 = dice.roll() as usize % (1 << 13),
        8 => ids[which] ^= 1,
        _ => {}
    }
    let one = |((offset, more, piece), id): ((usize, bool, &[u8]), u32)| {
        let field = (offset as u16) << 3 | u16::from(more);
        let mut bytes = bytes[..begins].to_vec();
        if v6 {
            let next = std::mem::replace(&mut bytes[ip + 6], FRAGMENT);
            bytes.extend_from_slice(&[next, 0]);
            bytes.extend_from_slice(&field.to_be_bytes());
            bytes.extend_from_slice(&id.to_be_bytes());
        } else {
            bytes[ip + 4..ip + 6].copy_from_slice(&(id as u16).to_be_bytes());
            let field = (offset as u16) & 0x1fff | u16::from(more) << 13;
            bytes[ip + 6..ip + 8].copy_from_slice(&field.to_be_bytes());
        }
        bytes.extend_from_slice(piece);
        bytes
    };
    let mut cut: Vec<Vec<u8>> = cuts.into_iter().zip(ids).map(one).collect();
    cut.iter_mut().for_each(|bytes| right(dice, bytes, ip));
    cut
}

/// Adds to a number of a header.
fn add(field: &mut [u8], more: u32) {
    let value = field.iter().fold(0u32, |all, byte| all << 8 | u32::from(*byte));
    field.copy_from_slice(&value.wrapping_add(more).to_be_bytes());
}
