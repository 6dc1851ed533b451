//! What the words of a table mean.

use crate::stats::NAMES;
use onecopy_sync::atomic::AtomicU64;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Name of the memfd, as /proc/PID/fd shows it after `/memfd:`.
pub const NAME: &str = "onecopy-stats";

/// Words of a row, eight bytes each. A row has four cache lines, so no two sockets share one.
pub(crate) const WORDS: usize = 32;
/// Rows of a table, the header included. Pages of memory are taken as rows are used.
pub(super) const ROWS: usize = 1 << 17;
/// Bytes of a table.
pub const SIZE: usize = ROWS * WORDS * 8;

/// The words of a row. The header is row 0.
pub(crate) mod word {
    pub const STATE: usize = 0;
    pub const INODE: usize = 1;
    pub const KIND: usize = 2;
    pub const SETTINGS: usize = 3;
    pub const RECEIVE_CAPACITY: usize = 4;
    pub const SEND_CAPACITY: usize = 5;
    /// State of TCP, as tcp_states.h numbers them; 0 of others.
    pub const STATE_OF_TCP: usize = 6;
    /// Bytes that wait to be received, or connections to be accepted.
    pub const QUEUE: usize = 7;
    pub const COUNTERS: usize = 8;
    /// Two words each, an IPv6 address; IPv4 is mapped into it.
    pub const LOCAL: usize = 26;
    pub const REMOTE: usize = 28;
    /// The ports, 16 bits each: the local one, the remote one; above, a bit each: whether there is an address.
    pub const PORTS: usize = 30;
    /// Bytes that were sent and are not acknowledged.
    pub const UNACKNOWLEDGED: usize = 31;
}

/// The words of the header.
pub(super) mod header {
    pub const MAGIC: usize = 0;
    pub const LAYOUT: usize = 1;
    /// Rows in use or used before, the header included.
    pub const USED: usize = 2;
    /// Sockets that got no row.
    pub const UNLISTED: usize = 3;
}

/// The low bits of a row's state. The bits above count its uses.
pub(super) const STATE: u64 = 3;
pub(super) const FREE: u64 = 0;
pub(super) const CHANGING: u64 = 1;
pub(super) const LIVE: u64 = 2;
pub(super) const USE: u64 = 4;

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"ONECOPYS");

/// A hash of what the words mean. It changes with the version and with the counters.
pub(super) const LAYOUT: u64 = {
    let mut sum = 0xCBF2_9CE4_8422_2325 ^ 5; // FNV-1a, and the version
    let mut name = 0;
    while name < NAMES.len() {
        let bytes = NAMES[name].as_bytes();
        let mut i = 0;
        while i < bytes.len() {
            sum = (sum ^ bytes[i] as u64).wrapping_mul(0x0100_0000_01B3);
            i += 1;
        }
        sum = (sum ^ 0xFF).wrapping_mul(0x0100_0000_01B3);
        name += 1;
    }
    sum
};

const _: () = assert!(word::COUNTERS + NAMES.len() <= word::LOCAL);

pub(crate) type Words = &'static [AtomicU64; WORDS];

/// The type of a socket, as its row shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// SOCK_STREAM.
    Stream,
    /// SOCK_SEQPACKET.
    SeqPacket,
    /// SOCK_DGRAM.
    Datagram,
}

pub(super) const TYPES: [Type; 3] = [Type::Stream, Type::SeqPacket, Type::Datagram];
pub(super) const LISTENING: u64 = 1 << 8;
/// Where the protocol begins.
pub(super) const PROTOCOL: u32 = 16;

/// The protocol of a socket, as its row shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// A unix socket.
    #[default]
    Unix,
    /// TCP on a stack of the program's own: it has no descriptor that names it, and its inode is 0.
    Tcp,
    /// UDP on a stack of the program's own, likewise.
    Udp,
}

pub(super) const PROTOCOLS: [Protocol; 3] = [Protocol::Unix, Protocol::Tcp, Protocol::Udp];

pub(super) fn address_words(address: Option<SocketAddr>) -> [u64; 2] {
    let bits = match address.map(|address| address.ip()) {
        None => 0,
        Some(IpAddr::V4(ip)) => ip.to_ipv6_mapped().to_bits(),
        Some(IpAddr::V6(ip)) => ip.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

pub(super) fn address_of(words: &[u64], port: u16) -> SocketAddr {
    let ip = Ipv6Addr::from_bits(u128::from(words[0]) << 64 | u128::from(words[1]));
    SocketAddr::new(ip.to_canonical(), port)
}
