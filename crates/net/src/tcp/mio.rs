//! Streams and listeners for mio's `Poll`, non-blocking from birth. They have what mio's `TcpStream` and `TcpListener` have, with the same
//! signatures but for the [`Stack`] that a new one is a socket of.
//!
//! Each derefs to the plain one for all the rest: borrowed receives, pages to write into, options, counters. A call that would wait fails with
//! EAGAIN, which is [`WouldBlock`](io::ErrorKind::WouldBlock).
//!
//! mio registers for edges: after an event, receive (or accept, or send) until WouldBlock, and only then poll again.
//!
//! ```no_run
//! use mio::{Events, Interest, Poll, Token};
//! use onecopy_net::{Stack, tcp::mio::Stream};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let stack = Stack::builder().tap("onecopy0").address("10.0.0.2/24").build()?;
//! let mut stream = Stream::connect(&stack, "10.0.0.1:80".parse()?)?;
//! let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(8));
//! poll.registry().register(&mut stream, Token(0), Interest::WRITABLE)?;
//! poll.poll(&mut events, None)?; // it is connected, or has failed
//! if let Some(error) = stream.take_error()? {
//!     return Err(error.into());
//! }
//! # Ok(())
//! # }
//! ```

use crate::stack::Stack;
use crate::tcp::Settings;
use onecopy_socket::{mio_socket, mio_stream, mio_type};
use std::io;
use std::net::SocketAddr;

mio_type!(
    /// A stream for mio.
    Stream,
    crate::tcp::Stream,
    SocketAddr
);
mio_type!(
    /// A listener for mio.
    Listener,
    crate::tcp::Listener,
    SocketAddr
);
mio_socket!(Stream, SocketAddr);
mio_stream!(Stream);

impl Stream {
    /// Begins to connect. It is writable once it is connected or has failed: `take_error` tells.
    ///
    /// # Errors
    ///
    /// ENETUNREACH, EADDRNOTAVAIL, ENOBUFS.
    pub fn connect(stack: &Stack, address: SocketAddr) -> io::Result<Stream> {
        Ok(Stream(crate::tcp::Stream::connect_nonblocking(stack, address)?))
    }

    /// As [`Stream::connect`], with settings that its SYN is to go by, Fast Open among them: as the plain stream's
    /// [`connect_nonblocking_with`](crate::tcp::Stream::connect_nonblocking_with).
    ///
    /// # Errors
    ///
    /// As the plain stream's.
    pub fn connect_with(
        stack: &Stack,
        address: SocketAddr,
        change: impl Fn(&mut Settings),
    ) -> io::Result<Stream> {
        Ok(Stream(crate::tcp::Stream::connect_nonblocking_with(stack, address, change)?))
    }
}

impl Listener {
    /// Listens at `address` of `stack`.
    ///
    /// # Errors
    ///
    /// As the plain listener's `bind`.
    pub fn bind(stack: &Stack, address: SocketAddr) -> io::Result<Listener> {
        Listener::new(crate::tcp::Listener::bind(stack, address)?)
    }

    /// Takes the next connection, and says who it is with. After an event, call it until WouldBlock.
    ///
    /// # Errors
    ///
    /// EAGAIN when none waits, EINVAL after shutdown.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let (stream, from) = self.0.accept()?;
        Ok((Stream::new(stream)?, from))
    }
}
