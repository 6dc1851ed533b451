//! What went wrong with packets of ours, and how often anything is said of packets.

use crate::bucket::Bucket;
use crate::wire::icmp::{Quoted, Unreachable};
use crate::wire::{Protocol, Seq};
use std::net::SocketAddr;

/// What went wrong with a packet of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It could not be brought there.
    Unreachable(Unreachable),
    /// The next hop's MTU is this, and it was longer ([`Unreachable::TOO_LONG`]). Where the router does not say, a guess (RFC 1191,
    /// section 7.1).
    TooLong {
        /// Bytes, IP's header among them; never less than 68, in IPv6 1280.
        mtu: u16,
    },
    /// It was under way for too long (0), or its fragments were (1).
    TimeExceeded(u8),
    /// Its header is wrong.
    Parameter(u8),
}

/// Trouble with a packet of ours, and which one it was. Anybody may say so: the transport looks whether it has sent such a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// What.
    pub trouble: Trouble,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Our end.
    pub local: SocketAddr,
    /// Whom it was for.
    pub remote: SocketAddr,
    /// Of TCP: its sequence number.
    pub seq: Seq,
}

impl Complaint {
    pub(super) fn of(trouble: Trouble, quoted: &Quoted) -> Option<Complaint> {
        let Quoted { ip, ports: (from, to), seq } = quoted;
        matches!(ip.protocol(), Protocol::TCP | Protocol::UDP).then(|| Complaint {
            trouble,
            protocol: ip.protocol(),
            local: SocketAddr::new(ip.from(), *from),
            remote: SocketAddr::new(ip.to(), *to),
            seq: Seq(*seq),
        })
    }

    /// That a packet, whose head begins with IP's header, found its neighbour silent.
    pub(super) fn silent(head: &[u8]) -> Option<Complaint> {
        Complaint::of(Trouble::Unreachable(Unreachable::HOST), &Quoted::parse(head).ok()?)
    }
}

/// How often ICMP is spoken.
#[derive(Debug)]
pub(super) struct Limits {
    pub echoes: Bucket,
    pub complaints: Bucket,
}

impl Limits {
    pub fn new() -> Limits {
        // The kernel's net.ipv4.icmp_msgs_per_sec and icmp_msgs_burst for complaints. Who asks gets more.
        Limits { echoes: Bucket::new(10_000, 1_000), complaints: Bucket::new(1_000, 50) }
    }
}
