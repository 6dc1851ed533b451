//! What a program sets of a stream.

use super::Stream;
use crate::carrier::tcp::Options;
use crate::options::socket_options;
use crate::tcp::Settings;
use onecopy_socket::Result;
use std::time::Duration;

impl Stream {
    /// Changes options that have no method of their own here, by the names of setsockopt(2).
    ///
    /// # Errors
    ///
    /// EBADF. Where the kernel carries its bytes, what setsockopt(2) says, and ENOPROTOOPT for an option that is not set this way there. Of
    /// [`Settings::congestion`] it is ENOENT where this kernel has no such algorithm, EPERM where not everybody may choose it, and EINVAL
    /// for taking a choice back.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) -> Result<()> {
        self.socket.set(change)
    }

    /// Whether small segments leave at once (TCP_NODELAY).
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as std's is.
    pub fn set_nodelay(&self, nodelay: bool) -> Result<()> {
        self.socket.set(|settings| settings.nodelay = nodelay)?;
        if nodelay {
            // What waits goes.
            self.socket.push();
        }
        Ok(())
    }

    /// See [`Stream::set_nodelay`].
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as std's is.
    pub fn nodelay(&self) -> Result<bool> {
        Ok(self.socket.get(|settings| settings.nodelay))
    }

    /// Sets how long close waits for what was sent; zero resets (SO_LINGER).
    ///
    /// # Errors
    ///
    /// EBADF.
    pub fn set_linger(&self, linger: Option<Duration>) -> Result<()> {
        self.socket.set(|settings| settings.linger = linger)
    }
}

socket_options!(Stream);
