//! Listeners for tokio.

use super::Stream;
use crate::stack::Stack;
use onecopy_socket::registered_methods;
use onecopy_socket::tokio::{Direction, Registered};
use onecopy_socket::{Op, Result};
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

/// A listener in a tokio runtime, as tokio's `TcpListener`.
#[derive(Debug)]
pub struct Listener {
    io: Registered<crate::tcp::Listener>,
}

impl Listener {
    /// Listens at `address` of `stack`; port 0 is one that nobody has. (It awaits nothing; tokio's may look a name up.)
    ///
    /// # Errors
    ///
    /// EADDRINUSE, EADDRNOTAVAIL, ENOBUFS; EMFILE.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O.
    pub async fn bind(stack: &Stack, address: SocketAddr) -> Result<Listener> {
        Listener::new(crate::tcp::Listener::bind(stack, address)?)
    }

    /// Waits for a connection and takes it, and says who it is with.
    ///
    /// # Errors
    ///
    /// EINVAL after shutdown. A connection that cannot be registered with the runtime is closed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, no connection was taken.
    pub async fn accept(&self) -> Result<(Stream, SocketAddr)> {
        let (stream, from) = self.io.wait(Direction::Read, |listener| listener.accept()).await?;
        Ok((Stream::accepted(stream)?, from))
    }

    /// Does as [`Listener::accept`], for a task that polls. Only the last task that polled is woken.
    ///
    /// # Errors
    ///
    /// As [`Listener::accept`].
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<(Stream, SocketAddr)>> {
        let accept = |listener: &crate::tcp::Listener| listener.accept();
        let (stream, from) = ready!(self.io.poll(context, Direction::Read, accept))?;
        Poll::Ready(Ok((Stream::accepted(stream)?, from)))
    }
}

registered_methods!(Listener, crate::tcp::Listener, SocketAddr, Op::Accept, |listener| {
    listener.poll_fd().map(drop)
});
