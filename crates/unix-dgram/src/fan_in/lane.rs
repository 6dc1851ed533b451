//! A sender's lane, and what it knows while it asks for one.

use crate::wire::sign;
use crate::wire::words::{Answer, WORD, Word};
use onecopy_ring::{Consumer, Producer, Ring};
use onecopy_sync::atomic::{AtomicU32, Ordering::Release};
use onecopy_sys::scm::{self, Space};
use onecopy_unix::Records;
use onecopy_unix::internals::connection::End;
use onecopy_unix::internals::connection::kind::Kind;
use onecopy_unix::internals::connection::rx::Rx;
use onecopy_unix::internals::connection::tx::Tx;
use onecopy_unix::internals::handshake::upgrade::Nonce;
use onecopy_unix::{Config, Result};
use rustix::fd::OwnedFd;
use rustix::io::{self, Errno};
use rustix::net::RecvFlags;
use std::io::IoSliceMut;
use std::sync::Arc;

/// What a sender knows that has knocked, or is about to.
#[derive(Debug)]
pub struct Knocking {
    pub(super) line: OwnedFd,
    pub(super) hello: Nonce,
    pub(super) secret: Nonce,
    /// Knocks that went with datagrams, and datagrams since the last.
    pub(super) sent: u32,
    pub(super) since: u64,
}

impl Knocking {
    /// Whether the next datagram is to knock.
    pub fn is_due(&self) -> bool {
        sign::is_due(self.sent, self.since)
    }

    /// One more datagram went over the kernel, and knocked or did not.
    pub fn sent_one(&mut self, knocked: bool) {
        (self.sent, self.since) = if knocked { (self.sent + 1, 1) } else { (self.sent, self.since + 1) };
    }
}

/// A sender's lane.
#[derive(Debug)]
pub struct Lane {
    pub end: Arc<End>,
    /// What says whose lane it is, in a datagram that the kernel says the name of its sender with.
    pub(super) switched: Word,
    /// 1 while the receiver is to be told of a new name.
    pub(super) renamed: AtomicU32,
}

#[cfg(test)]
impl Lane {
    pub fn switched(&self) -> Word {
        self.switched
    }
}

impl Lane {
    /// What is sent from here on lies in the lane.
    pub fn switch(&self) {
        if let Some(ring) = self.end.tx_ring.get() {
            // Release: who finds that finds all that was sent before in the kernel's queue.
            ring.header().writer.0.switch_at.store(1, Release);
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.end.close();
    }
}

/// An end over a line, that receives from `mine` and sends into `theirs`.
pub fn over_line(line: OwnedFd, mine: Ring, theirs: Ring, config: &Config) -> Result<Arc<End>> {
    let config = Config {
        records: Records::Atomic,
        receive_buffer: None,
        send_buffer: None,
        pass_credentials: false,
        passable: false,
        // Nothing goes by reference: a datagram is its sender's no longer.
        max_shared: 0,
        ..*config
    };
    let (rx, tx) = (Rx::ring(Consumer::new(mine.clone())), Tx::ring(Producer::new(theirs.clone())));
    let end = End::make(line, Kind::SeqPacket, &config, rx, tx)?;
    end.set_rx_ring(mine);
    end.set_tx_ring(theirs);
    Ok(end)
}

/// The receiver's answer, if it is there.
pub fn hear_answer(line: &OwnedFd) -> io::Result<Option<(Answer, [OwnedFd; 2])>> {
    let mut wire = [0; WORD];
    let came = match scm::recv(line, &mut [IoSliceMut::new(&mut wire)], Space::Few, RecvFlags::DONTWAIT) {
        Ok(came) => came,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    if came.bytes == 0 {
        return Err(Errno::PIPE);
    }
    let answer = Answer::decode(&wire[..came.bytes.min(WORD)]);
    answer.zip(came.fds.try_into().ok()).map(Some).ok_or(Errno::PROTO)
}
