//! What two datagram sockets tell each other on their line before they share memory.

use onecopy_sys::scm::{self, Space};
use onecopy_unix::handshake::upgrade::Nonce;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::io::IoSliceMut;

/// Bytes of a hello on the wire.
pub const HELLO_LEN: usize = 64;

const MAGIC: [u8; 8] = *b"onecopy\x04";

/// What travels with the memfd of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// From a sender that comes to a fan-in receiver: the nonce that its join request will have.
    pub nonce: Nonce,
    /// Bytes of data room in the ring whose memfd is attached.
    pub capacity: u64,
    /// Bytes of send buffer that this side asked for, doubled; 0 for none in particular.
    pub send_buffer: u64,
}

impl Hello {
    /// Returns the bytes on the wire: magic and version, nonce, capacity, send buffer (little-endian),
    /// zeroes.
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let mut wire = [0; HELLO_LEN];
        wire[..8].copy_from_slice(&MAGIC);
        wire[8..24].copy_from_slice(&self.nonce);
        wire[24..32].copy_from_slice(&self.capacity.to_le_bytes());
        wire[32..40].copy_from_slice(&self.send_buffer.to_le_bytes());
        wire
    }

    /// Returns the hello in `wire`, if it is one.
    pub fn decode(wire: &[u8]) -> Option<Hello> {
        let wire: &[u8; HELLO_LEN] = wire.try_into().ok()?;
        if wire[..8] != MAGIC {
            return None;
        }
        let number = |at: usize| wire[at..at + 8].try_into().map(u64::from_le_bytes);
        Some(Hello {
            nonce: wire[8..24].try_into().ok()?,
            capacity: number(24).ok()?,
            send_buffer: number(32).ok()?,
        })
    }
}

/// Takes the next message off the queue, with its descriptors, and its hello if it is one.
///
/// # Errors
///
/// What recvmsg(2) returns; EPIPE at the end of the line.
pub fn receive_hello(socket: BorrowedFd<'_>) -> rustix::io::Result<(Option<Hello>, Vec<OwnedFd>)> {
    let mut wire = [0u8; HELLO_LEN];
    let came = scm::recv(socket, &mut [IoSliceMut::new(&mut wire)], Space::Few, RecvFlags::DONTWAIT)?;
    if came.bytes == 0 {
        return Err(Errno::PIPE);
    }
    Ok((Hello::decode(&wire[..came.bytes]), came.fds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn garbage_is_none() {
        assert_eq!(Hello::decode(&[0; HELLO_LEN]), None);
        assert_eq!(Hello::decode(b"onecopy\x04"), None);
    }

    proptest! {
        #[test]
        fn a_hello_is_whole_or_none(nonce: Nonce, capacity: u64, send_buffer: u64, at in 0..HELLO_LEN, byte: u8) {
            let hello = Hello { nonce, capacity, send_buffer };
            let mut wire = hello.encode();
            prop_assert_eq!(Hello::decode(&wire), Some(hello));
            prop_assert_eq!(Hello::decode(&wire[..at]), None);
            let magic = wire[at] != byte && at < 8;
            wire[at] = byte;
            prop_assert_eq!(Hello::decode(&wire).is_none(), magic);
        }
    }
}
