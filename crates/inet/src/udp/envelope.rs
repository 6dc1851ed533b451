//! What is said of a datagram beside its bytes.

use std::net::{IpAddr, SocketAddr};

/// Whom a datagram is for, and how it goes: what sendmsg(2) is told beside the bytes. What is none is as the socket has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// Whom it is for; none: whom the socket is connected to.
    pub to: Option<SocketAddr>,
    /// The bytes are a train, of datagrams of so many bytes each, of which the last one may be shorter (UDP_SEGMENT); 0 says that it is none.
    pub gso: Option<u16>,
    /// The type of service, [`Ecn`](crate::wire::Ecn) in it (IP_TOS).
    pub service: Option<u8>,
    /// From which of this side's addresses, whichever the socket is bound to (IP_PKTINFO).
    pub source: Option<IpAddr>,
}

impl Envelope {
    /// For whom the socket is connected to.
    pub const CONNECTED: Envelope = Envelope { to: None, gso: None, service: None, source: None };

    /// For `to`.
    #[must_use]
    pub fn to(to: SocketAddr) -> Envelope {
        Envelope { to: Some(to), ..Envelope::CONNECTED }
    }

    /// A train, of datagrams of `size` bytes.
    #[must_use]
    pub fn gso(self, size: u16) -> Envelope {
        Envelope { gso: Some(size), ..self }
    }

    /// Of this type of service.
    #[must_use]
    pub fn service(self, service: u8) -> Envelope {
        Envelope { service: Some(service), ..self }
    }

    /// From this address.
    #[must_use]
    pub fn source(self, source: IpAddr) -> Envelope {
        Envelope { source: Some(source), ..self }
    }
}
