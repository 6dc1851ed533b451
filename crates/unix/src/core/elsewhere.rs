//! A second socket to ring at, and to keep unwritable. The sending end of a datagram socket's lane needs it,
//! since its peer polls another socket than the lane's.

use crate::control;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::SendFlags;
use std::sync::Weak;

/// The sockets that the sending end of a lane has besides its lane's.
#[derive(Debug)]
pub struct Elsewhere {
    /// Connected to the receiver.
    door: OwnedFd,
    /// The bytes that are sent through `door`.
    doorbell: Box<[u8]>,
    /// The datagram socket that sends.
    front: Weak<dyn AsFd + Send + Sync>,
}

impl Elsewhere {
    /// Makes the pair: `doorbell` is sent through `door`, and `front` is what the sender's program polls.
    pub fn new(door: OwnedFd, doorbell: &[u8], front: Weak<dyn AsFd + Send + Sync>) -> Elsewhere {
        Elsewhere { door, doorbell: doorbell.into(), front }
    }

    /// Rings at the receiver's own socket. If the doorbell cannot be queued there, the socket is readable
    /// anyway, or gone.
    pub fn ring(&self) {
        let _ = rustix::net::send(&self.door, &self.doorbell, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Makes the datagram socket unwritable for as long as the socket that this returns is there.
    ///
    /// # Errors
    ///
    /// The errors of socket(2), bind(2) and sendto(2); EAGAIN if it is unwritable anyway.
    pub fn block(&self) -> io::Result<OwnedFd> {
        let front = self.front.upgrade().ok_or(Errno::BADF)?;
        control::fill_elsewhere(front.as_fd())
    }
}
