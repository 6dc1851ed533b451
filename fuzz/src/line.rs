//! What two datagram sockets say to each other before they share memory, written down a second time.

use std::fs::File;
use std::io;

use onecopy_conformance::liar::{Liar, Memory};

/// The first bytes of a hello.
const MAGIC: [u8; 8] = *b"onecopy\x03";
/// Bytes of a hello: magic, nonce (16), capacity (8), send buffer (8), zeroes.
pub const HELLO_LEN: usize = 64;

/// What travels with the memfd of a ring, and in signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Of who is greeted.
    pub nonce: [u8; 16],
    /// Announced data room.
    pub capacity: u64,
    /// Announced send buffer.
    pub send_buffer: u64,
}

impl Hello {
    /// Its bytes.
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let mut wire = [0; HELLO_LEN];
        wire[..8].copy_from_slice(&MAGIC);
        wire[8..24].copy_from_slice(&self.nonce);
        wire[24..32].copy_from_slice(&self.capacity.to_le_bytes());
        wire[32..40].copy_from_slice(&self.send_buffer.to_le_bytes());
        wire
    }
}

/// Receives the victim's hello with its ring, which is who listens on the other end of the line.
///
/// # Errors
///
/// The line's; `InvalidData` where something else came.
pub fn receive_hello(line: &mut Liar) -> io::Result<()> {
    let mut came = line.receive()?;
    let wire = &came.bytes[..];
    let capacity = wire.get(24..32).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    let is_hello = wire.len() == HELLO_LEN && wire[..8] == MAGIC && wire[8..24] == line.nonce;
    match (capacity, came.fds.pop()) {
        (Some(capacity), Some(fd)) if is_hello => {
            line.theirs = Some(Memory { file: File::from(fd), at: 0, capacity });
            Ok(())
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "no hello")),
    }
}
