//! A sender's lane, and what the sender knows while it asks for one.

use crate::wire::control_message::{Answer, CONTROL_LEN, ControlMessage};
use crate::wire::proof;
use onecopy_ring::{Consumer, Producer, Ring};
use onecopy_sync::atomic::{AtomicU32, Ordering::Release};
use onecopy_sys::scm::{self, Space};
use onecopy_unix::Records;
use onecopy_unix::connection::Connection;
use onecopy_unix::connection::rx::Rx;
use onecopy_unix::connection::tx::Tx;
use onecopy_unix::core::kind::Kind;
use onecopy_unix::handshake::upgrade::Nonce;
use onecopy_unix::{Config, Result};
use rustix::fd::OwnedFd;
use rustix::io::{self, Errno};
use rustix::net::RecvFlags;
use std::io::IoSliceMut;
use std::sync::Arc;

/// What a sender knows while it is joining a fan-in receiver.
#[derive(Debug)]
pub struct JoinRequest {
    pub(super) line: OwnedFd,
    pub(super) hello: Nonce,
    pub(super) secret: Nonce,
    /// Join requests that went with datagrams, and datagrams since the last one.
    pub(super) sent: u32,
    pub(super) since: u64,
}

impl JoinRequest {
    /// Whether a join request is to go with the next datagram.
    pub fn is_due(&self) -> bool {
        proof::is_due(self.sent, self.since)
    }

    /// Counts one more datagram that went over the kernel, with a join request if `asked`.
    pub fn sent_one(&mut self, asked: bool) {
        (self.sent, self.since) = if asked { (self.sent + 1, 1) } else { (self.sent, self.since + 1) };
    }
}

/// A sender's lane.
#[derive(Debug)]
pub struct Lane {
    pub(super) end: Arc<Connection>,
    /// Says whose lane it is. It goes in a datagram, with which the kernel tells its sender's name.
    pub(super) switched: ControlMessage,
    /// 1 while the receiver is to be told of a new name.
    pub(super) renamed: AtomicU32,
}

#[cfg(test)]
impl Lane {
    pub fn switched(&self) -> ControlMessage {
        self.switched
    }
}

impl Lane {
    /// Returns the connection to the receiver.
    pub fn connection(&self) -> &Connection {
        &self.end
    }

    /// Tells the receiver that what is sent from here on is in the lane.
    pub fn switch(&self) {
        if let Some(ring) = self.end.tx_ring() {
            // Release pairs with the Acquire load in `look_who_switched`: a receiver that finds the switch
            // finds everything that was sent before it in the kernel's queue.
            ring.header().writer.0.switch_at.store(1, Release);
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.end.close();
    }
}

/// Makes a connection over a line, which receives from `mine` and sends into `theirs`.
pub fn over_line(line: OwnedFd, mine: Ring, theirs: Ring, config: &Config) -> Result<Arc<Connection>> {
    let config = Config {
        records: Records::Atomic,
        receive_buffer: None,
        send_buffer: None,
        pass_credentials: false,
        passable: false,
        // Nothing goes by reference: once it is sent, a datagram does not depend on its sender.
        max_shared: 0,
        ..*config
    };
    let (rx, tx) = (Rx::ring(Consumer::new(mine.clone())), Tx::ring(Producer::new(theirs.clone())));
    let end = Connection::make(line, Kind::SeqPacket, &config, rx, tx)?;
    end.set_rx_ring(mine);
    end.set_tx_ring(theirs);
    Ok(end)
}

/// Receives the receiver's answer, if it is there.
pub fn hear_answer(line: &OwnedFd) -> io::Result<Option<(Answer, [OwnedFd; 2])>> {
    let mut wire = [0; CONTROL_LEN];
    let came = match scm::recv(line, &mut [IoSliceMut::new(&mut wire)], Space::Few, RecvFlags::DONTWAIT) {
        Ok(came) => came,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    if came.bytes == 0 {
        return Err(Errno::PIPE);
    }
    let answer = Answer::decode(&wire[..came.bytes.min(CONTROL_LEN)]);
    answer.zip(came.fds.try_into().ok()).map(Some).ok_or(Errno::PROTO)
}
