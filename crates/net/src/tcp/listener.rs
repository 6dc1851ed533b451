//! Listeners.

use super::stream::Stream;
use crate::carrier::checked;
use crate::carrier::tcp::{Listening, Options};
use crate::error::of;
use crate::stack::Stack;
use onecopy_socket::{Error, Op, Result};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// How many connections may wait to be accepted, as std's listeners have it.
const BACKLOG: u32 = 4096;

/// A socket that accepts connections. It works as std's `TcpListener` does.
#[derive(Debug)]
pub struct Listener {
    socket: Arc<dyn Listening>,
    /// Behind the socket, which is closed before its stack ends.
    stack: Stack,
}

impl Listener {
    /// Listens at `address` of `stack`; port 0 is one that nobody has ([`Listener::local_addr`] tells). An address that connections of an
    /// earlier listener are still in TIME-WAIT at may be taken (SO_REUSEADDR, as std sets it).
    ///
    /// # Errors
    ///
    /// EADDRINUSE, EADDRNOTAVAIL, ENOBUFS.
    pub fn bind(stack: &Stack, address: SocketAddr) -> Result<Listener> {
        Listener::bind_with_backlog(stack, address, BACKLOG)
    }

    /// As [`Listener::bind`], with room for `backlog` connections that wait to be accepted.
    ///
    /// # Errors
    ///
    /// As [`Listener::bind`].
    pub fn bind_with_backlog(stack: &Stack, address: SocketAddr, backlog: u32) -> Result<Listener> {
        Ok(Listener { socket: stack.tcp_listen(address, backlog)?, stack: stack.clone() })
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    ///
    /// EAGAIN where it is not to wait or [`Listener::set_accept_timeout`] has come, EINTR, EINVAL after [`Listener::shutdown`].
    pub fn accept(&self) -> Result<(Stream, SocketAddr)> {
        let (socket, from) = self.socket.accept()?;
        Ok((Stream::of(socket, &self.stack), from))
    }

    /// Accepts connection after connection.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Another handle of the same listener.
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as std's is.
    pub fn try_clone(&self) -> Result<Listener> {
        Ok(Listener { socket: Arc::clone(&self.socket), stack: self.stack.clone() })
    }

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// EINVAL after [`Listener::shutdown`].
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let local = self.socket.addresses().local;
        local.ok_or_else(|| of(Op::Name, onecopy_inet::tcp::Error::Invalid))
    }

    /// Accepts no more: those that wait are reset, and whoever waits in [`Listener::accept`] gets EINVAL.
    ///
    /// # Errors
    ///
    /// What shutdown(2) says.
    pub fn shutdown(&self) -> Result<()> {
        self.socket.shutdown(Shutdown::Read)
    }

    /// Sets whether accept fails with EAGAIN instead of waiting.
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as std's is.
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
        self.socket.settings().set_nonblocking(nonblocking);
        Ok(())
    }

    /// Whether accept fails with EAGAIN instead of waiting.
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as socket2's is.
    pub fn nonblocking(&self) -> Result<bool> {
        Ok(self.socket.settings().nonblocking())
    }

    /// How long accept waits; `None` for ever (SO_RCVTIMEO).
    ///
    /// # Errors
    ///
    /// EINVAL for no time at all.
    pub fn set_accept_timeout(&self, limit: Option<std::time::Duration>) -> Result<()> {
        checked(limit)?;
        self.socket.settings().set_read_timeout(limit);
        Ok(())
    }

    /// Why it failed; always none.
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as std's is.
    pub fn take_error(&self) -> Result<Option<Error>> {
        Ok(self.socket.take_error(Op::Accept))
    }

    /// Changes its options; connections that come from then on begin with them.
    ///
    /// # Errors
    ///
    /// As [`Stream::set`].
    pub fn set(&self, change: impl FnOnce(&mut super::Settings)) -> Result<()> {
        self.socket.set(change)
    }

    /// The descriptor to wait at for connections, with poll(2), epoll or a runtime. It is made with the first call.
    ///
    /// # Errors
    ///
    /// EMFILE.
    pub fn poll_fd(&self) -> Result<BorrowedFd<'_>> {
        self.socket.fd()
    }
}

/// As [`Listener::poll_fd`].
///
/// # Panics
///
/// Where no descriptor is left the first time (EMFILE).
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.fd().unwrap_or_else(|error| panic!("{error}"))
    }
}

/// As [`Listener::poll_fd`].
///
/// # Panics
///
/// As [`AsFd`].
impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// Connections, one after the other; it never ends.
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a Listener,
}

impl Iterator for Incoming<'_> {
    type Item = Result<Stream>;

    fn next(&mut self) -> Option<Result<Stream>> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}

impl std::iter::FusedIterator for Incoming<'_> {}
