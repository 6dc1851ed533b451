//! A second place to ring at, and to keep unwritable: of the sending end of a datagram socket's lane, whose peer polls another socket.

use crate::doorbell::control;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::SendFlags;
use std::sync::Weak;

/// What the sending end of a lane has outside of its line.
#[derive(Debug)]
pub struct Elsewhere {
    /// Connected to the receiver.
    door: OwnedFd,
    /// What is sent there.
    doorbell: Box<[u8]>,
    /// The datagram socket that sends.
    front: Weak<dyn AsFd + Send + Sync>,
}

impl Elsewhere {
    /// `doorbell` is sent through `door`; `front` is what the sender's program polls.
    pub fn new(door: OwnedFd, doorbell: &[u8], front: Weak<dyn AsFd + Send + Sync>) -> Elsewhere {
        Elsewhere { door, doorbell: doorbell.into(), front }
    }

    /// Rings at the receiver's own socket. Whatever keeps the doorbell from lying there leaves it readable, or is its end.
    pub fn ring(&self) {
        let _ = rustix::net::send(&self.door, &self.doorbell, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Makes the datagram socket unwritable for as long as the socket that this returns is there.
    ///
    /// # Errors
    ///
    /// What socket(2), bind(2) and sendto(2) say; EAGAIN where it is unwritable anyway.
    pub fn block(&self) -> io::Result<OwnedFd> {
        let front = self.front.upgrade().ok_or(Errno::BADF)?;
        control::fill_elsewhere(front.as_fd())
    }
}
