//! Sums that a transport's checksum covers beside its own bytes.

use super::ipv4::Protocol;
use onecopy_chain::{Checksum, Sum};
use onecopy_link::{NotTaken, Packet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The sum of IPv4's pseudo-header (RFC 9293, section 3.1) for `len` bytes of transport, its header among them.
pub fn pseudo_v4(from: Ipv4Addr, to: Ipv4Addr, protocol: Protocol, len: u32) -> Sum {
    let halves = |word: u32| (word >> 16) + (word & 0xffff);
    let sum = halves(from.to_bits()) + halves(to.to_bits()) + halves(len) + u32::from(protocol.0);
    // Of so few words two carries are all.
    Sum::new(halves(halves(sum)) as u16)
}

/// The sum of IPv6's pseudo-header (RFC 8200, section 8.1), likewise.
pub fn pseudo_v6(from: Ipv6Addr, to: Ipv6Addr, protocol: Protocol, len: u32) -> Sum {
    // Each part has an even number of bytes, so that none turns the next one round.
    let addresses = Sum::of(&from.octets()).then(Sum::of(&to.octets()), 16);
    addresses.then(rest(protocol, len), 32)
}

/// The sum of the pseudo-header between two addresses of one family.
#[inline]
pub fn pseudo(from: IpAddr, to: IpAddr, protocol: Protocol, len: u32) -> Sum {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => pseudo_v4(from, to, protocol, len),
        (IpAddr::V6(from), IpAddr::V6(to)) => pseudo_v6(from, to, protocol, len),
        // Of two families there is no packet.
        _ => Sum::ZERO,
    }
}

fn rest(protocol: Protocol, len: u32) -> Sum {
    Sum::of(&len.to_be_bytes()).then(Sum::new(u16::from(protocol.0)), 4)
}

/// Whether the transport's bytes, from byte `from` of the packet's head on, are intact: with `pseudo`, the sum of their pseudo-header, or
/// [`Sum::ZERO`] for ICMP. They are read only where nobody knows more: one that is still to be finished comes from this machine and has
/// been on no wire, and one that was verified is right.
///
/// `Err` where nothing is known and the payload cannot be read: only a device can say then.
///
/// # Errors
///
/// As [`Packet::sum`].
pub fn verify(packet: &Packet, from: usize, pseudo: Sum) -> Result<bool, onecopy_chain::ChainError> {
    match packet.checksum() {
        Checksum::Verified | Checksum::Partial { .. } => Ok(true),
        Checksum::None | Checksum::Known(_) => Ok(pseudo.then(packet.sum(from)?, 0).is_valid()),
    }
}

/// Says of a packet whose transport's header begins at byte `start` of its head, and has the checksum `offset` bytes on, that it is to
/// be finished.
///
/// # Errors
///
/// [`NotTaken::Malformed`] where the field is not in the head.
pub fn leave_unfinished(packet: &mut Packet, start: usize, offset: usize) -> Result<(), NotTaken> {
    let narrow = |n| u16::try_from(n).map_err(|_| NotTaken::Malformed);
    packet.set_checksum(Checksum::Partial { start: narrow(start)?, offset: narrow(offset)? })
}
