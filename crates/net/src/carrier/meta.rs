//! What is said of a datagram beside its bytes.

use onecopy_inet::udp::{Envelope, Received};
use onecopy_inet::wire::Ecn;
use std::net::{Ipv4Addr, SocketAddr};

/// What is known of a datagram, or a train of them, that was received (recvmsg(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Bytes that were put into the buffer.
    pub len: usize,
    /// Bytes that it has: more than `len` where the buffer was too short, and the rest is lost (MSG_TRUNC).
    pub full: usize,
    /// Who sent it.
    pub from: SocketAddr,
    /// Where it was sent to: an address of the stack, or everybody's (IP_PKTINFO).
    pub to: SocketAddr,
    /// Bytes of each datagram in it, of which the last one may be shorter (UDP_GRO); `full` where it is one alone.
    pub segment_size: usize,
    /// The type of service (IP_RECVTOS), [`Meta::ecn`] in it.
    pub service: u8,
    /// Hops that were left (IP_RECVTTL).
    pub ttl: u8,
}

impl Meta {
    pub(crate) fn of(received: &Received, len: usize) -> Meta {
        let full = received.data.payload().len();
        Meta {
            len,
            full,
            from: received.from,
            to: received.to,
            segment_size: received.size.map_or(full, usize::from),
            service: received.service,
            ttl: received.ttl,
        }
    }

    /// Whether the buffer was too short for it.
    pub fn is_truncated(&self) -> bool {
        self.full > self.len
    }

    /// Congestion on the way (RFC 3168).
    pub fn ecn(&self) -> Ecn {
        Ecn::of(self.service)
    }

    /// How many datagrams it is: an empty one is one, too.
    pub fn datagrams(&self) -> usize {
        self.full.div_ceil(self.segment_size.max(1)).max(1)
    }
}

/// Of nothing that was received: what [`Socket::recv_many`](crate::udp::Socket::recv_many) is given to fill.
impl Default for Meta {
    fn default() -> Meta {
        let nobody = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        Meta { len: 0, full: 0, from: nobody, to: nobody, segment_size: 0, service: 0, ttl: 0 }
    }
}

/// One of the datagrams of [`Socket::send_many`](crate::udp::Socket::send_many).
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Whom it is for, and how it goes.
    pub envelope: Envelope,
}

impl<'a> Message<'a> {
    /// For whom the socket is connected to.
    pub fn new(bytes: &'a [u8]) -> Message<'a> {
        Message { bytes, envelope: Envelope::CONNECTED }
    }

    /// For `to`.
    pub fn to(bytes: &'a [u8], to: SocketAddr) -> Message<'a> {
        Message { bytes, envelope: Envelope::to(to) }
    }
}
