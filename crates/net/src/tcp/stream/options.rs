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
    /// EBADF. Where the kernel carries its bytes, what setsockopt(2) says; EINVAL for taking back `syn_retries`, `window_clamp` or
    /// `fast_open_queue`, for which the kernel has no call, and for `fast_open_connect` once it is connected; and ENOPROTOOPT for `receive_low_water` and
    /// `fast_open_keys`, which are not set there, for the reason that the error gives. Of [`Settings::congestion`] it is ENOENT where this kernel has no such algorithm, EPERM where not everybody may choose it, and EINVAL
    /// for taking a choice back. EOPNOTSUPP for Fast Open where it is not used so: the stack's configuration says that, or net.ipv4.tcp_fastopen.
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

    /// Sets how long close waits for what was sent; zero resets (SO_LINGER). Over the kernel no close waits, so only zero acts: what was sent
    /// leaves while the stack lingers.
    ///
    /// # Errors
    ///
    /// EBADF.
    pub fn set_linger(&self, linger: Option<Duration>) -> Result<()> {
        self.socket.set(|settings| settings.linger = linger)
    }
}

socket_options!(Stream);
