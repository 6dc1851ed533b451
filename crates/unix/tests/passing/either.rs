//! A socket of either kind, for tests that pass on both.

use crate::PATIENCE;
use onecopy_unix::{Config, Records, RecvFlags, Result, SendFlags, SeqPacket, Stream};
use rustix::fd::{BorrowedFd, OwnedFd};

/// A socket of either kind.
pub enum Socket {
    Stream(Stream),
    Records(SeqPacket),
}

impl Socket {
    pub fn pair(kind: &str, config: &Config) -> (Socket, Socket) {
        let (a, b) = match kind {
            "stream" => {
                let (a, b) = Stream::pair_with(config).unwrap();
                (Socket::Stream(a), Socket::Stream(b))
            }
            _ => {
                let (a, b) = SeqPacket::pair_with(&Config { records: records(kind), ..*config }).unwrap();
                (Socket::Records(a), Socket::Records(b))
            }
        };
        (a.patient(), b.patient())
    }

    pub fn patient(self) -> Socket {
        match &self {
            Socket::Stream(socket) => {
                socket.set_read_timeout(PATIENCE).unwrap();
                socket.set_write_timeout(PATIENCE).unwrap();
            }
            Socket::Records(socket) => {
                socket.set_read_timeout(PATIENCE).unwrap();
                socket.set_write_timeout(PATIENCE).unwrap();
            }
        }
        self
    }

    pub fn from_fds(kind: &str, fds: Vec<OwnedFd>) -> Result<Socket> {
        let config = Config { passable: true, ..Config::default() };
        Ok(match kind {
            "stream" => Socket::Stream(Stream::from_fds_with(fds, &config)?),
            _ => Socket::Records(SeqPacket::from_fds_with(fds, &config)?),
        })
    }

    pub fn into_fds(self) -> Vec<OwnedFd> {
        match self {
            Socket::Stream(socket) => socket.into_fds().unwrap(),
            Socket::Records(socket) => socket.into_fds().unwrap(),
        }
    }

    pub fn share_fds(&self) -> Vec<OwnedFd> {
        match self {
            Socket::Stream(socket) => socket.share_fds().unwrap(),
            Socket::Records(socket) => socket.share_fds().unwrap(),
        }
    }

    pub fn send(&self, bytes: &[u8]) {
        let flags = SendFlags::EOR;
        let n = match self {
            Socket::Stream(socket) => socket.send(bytes),
            Socket::Records(socket) => socket.send_with_flags(bytes, flags),
        };
        assert_eq!(n.unwrap(), bytes.len());
    }

    /// Returns the number of bytes, and the descriptors that came.
    pub fn recv(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<(usize, Vec<OwnedFd>)> {
        match self {
            Socket::Stream(socket) => {
                socket.recv_fds_with_flags(buffer, flags).map(|(n, with)| (n, with.fds))
            }
            Socket::Records(socket) => {
                socket.recv_fds_with_flags(buffer, flags).map(|(got, with)| (got.len, with.fds))
            }
        }
    }

    pub fn send_fd(&self, bytes: &[u8], fd: BorrowedFd<'_>) {
        let flags = SendFlags::EOR;
        let n = match self {
            Socket::Stream(socket) => socket.send_fds(bytes, &[fd]),
            Socket::Records(socket) => socket.send_fds_with_flags(bytes, &[fd], flags),
        };
        assert_eq!(n.unwrap(), bytes.len());
    }

    pub fn protocol_errors(&self) -> u64 {
        match self {
            Socket::Stream(socket) => socket.stats().protocol_errors,
            Socket::Records(socket) => socket.stats().protocol_errors,
        }
    }

    pub fn is_shared_memory(&self) -> bool {
        match self {
            Socket::Stream(socket) => socket.path().is_shared_memory(),
            Socket::Records(socket) => socket.path().is_shared_memory(),
        }
    }
}

pub fn records(kind: &str) -> Records {
    if kind == "parts" { Records::Stream } else { Records::Atomic }
}
