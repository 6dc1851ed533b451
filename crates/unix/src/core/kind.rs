//! The kinds of sockets.

use crate::config::{Config, Records};
use onecopy_socket::{Error, Op, Result};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// The kind of an end's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes: SOCK_STREAM.
    Stream,
    /// Records: SOCK_SEQPACKET.
    SeqPacket,
    /// Records, from anybody: SOCK_DGRAM.
    Datagram,
}

impl Kind {
    pub fn socket_type(self) -> SocketType {
        match self {
            Kind::Stream => SocketType::STREAM,
            Kind::SeqPacket => SocketType::SEQPACKET,
            Kind::Datagram => SocketType::DGRAM,
        }
    }

    /// Whether one receive gets what one send sent, and doorbells are records on the control socket.
    #[inline]
    pub fn has_records(self) -> bool {
        self != Kind::Stream
    }

    /// Makes a kernel socket of this kind.
    ///
    /// # Errors
    ///
    /// What socket(2) says.
    pub fn socket(self) -> Result<OwnedFd> {
        rustix::net::socket_with(AddressFamily::UNIX, self.socket_type(), SocketFlags::CLOEXEC, None)
            .map_err(|errno| Error::new(Op::Socket, errno))
    }

    /// Returns how sockets of this kind keep their records.
    pub fn records(self, config: &Config) -> Records {
        if self == Kind::SeqPacket { config.records } else { Records::Atomic }
    }
}
