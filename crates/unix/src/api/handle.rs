//! The handles that a program has of one socket: the first, and its clones.

use onecopy_socket::{Error, Op, Result};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;

/// One handle of a socket. The last one that is dropped closes the socket.
#[derive(Debug)]
pub struct Handle {
    /// Shared by the handles. None once this one is dropped.
    socket: Option<Arc<()>>,
    /// A clone's own descriptor, a copy of the first handle's.
    fd: Option<OwnedFd>,
}

impl Handle {
    /// Returns the handle of a socket that was just made.
    pub fn first() -> Handle {
        Handle { socket: Some(Arc::new(())), fd: None }
    }

    /// Returns another handle of the same socket, with a copy of the descriptor `fd`.
    ///
    /// # Errors
    ///
    /// EMFILE.
    pub fn try_clone(&self, fd: BorrowedFd<'_>) -> Result<Handle> {
        let copy = rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(|errno| Error::new(Op::Socket, errno))?;
        Ok(Handle { socket: self.socket.clone(), fd: Some(copy) })
    }

    /// Checks that there is no other handle.
    ///
    /// # Errors
    ///
    /// EBUSY.
    pub fn is_only(&self) -> Result<()> {
        match &self.socket {
            Some(socket) if Arc::strong_count(socket) > 1 => Err(Error::new(Op::Pass, Errno::BUSY)
                .because("a clone of it is still there (try_clone); drop all others first")),
            _ => Ok(()),
        }
    }

    /// Lets go of the socket. Returns whether this was the last handle.
    pub fn release(&mut self) -> bool {
        self.socket.take().and_then(Arc::into_inner).is_some()
    }

    /// Returns this handle's descriptor. `first` is the first handle's.
    pub fn fd<'a>(&'a self, first: BorrowedFd<'a>) -> BorrowedFd<'a> {
        self.fd.as_ref().map_or(first, AsFd::as_fd)
    }
}
