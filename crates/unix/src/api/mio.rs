//! Sockets and listeners for mio's `Poll`, non-blocking from birth. They have what those of `mio::net` have, with
//! the same signatures, so that a program for mio changes its `use` lines and no more.
//!
//! Each derefs to the plain socket for all the rest: borrowed receives, room to write into, descriptors, pages by
//! reference, options, counters. Nothing there means anything else here. A call that would wait fails with EAGAIN,
//! which is [`WouldBlock`](io::ErrorKind::WouldBlock); so there is no second list of those methods to learn, and none
//! that can lag behind. (In a runtime it is otherwise: there the same calls are `async`.)
//!
//! mio registers for edges: after an event, receive (or accept, or send) until WouldBlock, and only then poll again.
//! The events are those of a kernel socket, over shared memory as well. Plain sockets can be registered too; have
//! them non-blocking first.
//!
//! ```
//! use mio::{Events, Interest, Poll, Token};
//! use onecopy_unix::mio::{Listener, Stream};
//! use std::io::{ErrorKind, Read, Write};
//!
//! # fn main() -> std::io::Result<()> {
//! let mut listener = Listener::bind("\0onecopy-doc-mio")?;
//! let mut client = Stream::connect("\0onecopy-doc-mio")?;
//! client.write_all(b"hello")?;
//!
//! let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(8));
//! poll.registry().register(&mut listener, Token(0), Interest::READABLE)?;
//! let (mut server, mut heard) = (None, Vec::new());
//! while heard.len() < 5 {
//!     poll.poll(&mut events, None)?;
//!     for event in &events {
//!         match &mut server {
//!             None => {
//!                 let (mut socket, _) = listener.accept()?;
//!                 poll.registry().register(&mut socket, Token(1), Interest::READABLE)?;
//!                 server = Some(socket);
//!             }
//!             Some(socket) => match socket.read_to_end(&mut heard) {
//!                 Err(error) if error.kind() == ErrorKind::WouldBlock => {}
//!                 done => drop(done?),
//!             },
//!         }
//!     }
//! }
//! assert_eq!(heard, b"hello");
//! # Ok(())
//! # }
//! ```

use crate::addr::{SocketAddr, ToSocketAddr, named};
use crate::config::Config;
use crate::connection::Connection;
use crate::connection::open::Connecting;
use crate::core::kind::Kind;
use onecopy_socket::{Result, mio_socket, mio_stream, mio_type};
use std::io;
use std::sync::Arc;

/// Connects, and does not wait for room in the listener's backlog.
fn connect(kind: Kind, name: SocketAddr, config: &Config) -> Result<Arc<Connection>> {
    let mut connecting = Connecting::new(kind, None, name, config)?;
    connecting.set_nonblocking()?;
    connecting.attempt()?;
    connecting.finish()
}

/// Defines what the sockets have that send and receive.
#[doc(hidden)]
#[macro_export]
macro_rules! mio_pair {
    ($name:ident, $plain:ty) => {
        impl $name {
            /// Makes two connected sockets.
            ///
            /// # Errors
            ///
            /// What socketpair(2) says.
            pub fn pair() -> std::io::Result<($name, $name)> {
                $name::pair_with(&$crate::Config::default())
            }

            /// Makes two connected sockets, both with `config`.
            ///
            /// # Errors
            ///
            /// As the plain socket's `pair_with`.
            pub fn pair_with(config: &$crate::Config) -> std::io::Result<($name, $name)> {
                let (a, b) = <$plain>::pair_with(config)?;
                Ok(($name::new(a)?, $name::new(b)?))
            }
        }
    };
}

/// Defines what sockets have that connect to a listener, and that listener.
macro_rules! mio_connection {
    ($name:ident, $plain:ty, $kind:expr, $listener:ident, $plain_listener:ty) => {
        impl $name {
            /// Connects to a listener: of this crate, or any other. It is connected when this returns: a unix socket
            /// has nothing to wait for, unless many others wait there.
            ///
            /// # Errors
            ///
            /// What connect(2) says: ENOENT, ECONNREFUSED, EACCES; EAGAIN where the listener's backlog is full, which
            /// no event tells of: try again later.
            pub fn connect(name: impl ToSocketAddr) -> io::Result<$name> {
                $name::connect_with(name, &Config::default())
            }

            /// Does as `connect`, with `config`.
            ///
            /// # Errors
            ///
            /// As `connect`.
            pub fn connect_with(name: impl ToSocketAddr, config: &Config) -> io::Result<$name> {
                $name::new(<$plain>::of(connect($kind, named(name)?, config)?))
            }

            /// Does as `connect`, for callers that hold a name: one of ours or of std's.
            ///
            /// # Errors
            ///
            /// As `connect`.
            pub fn connect_addr(name: impl Into<SocketAddr>) -> io::Result<$name> {
                $name::connect(name.into())
            }
        }

        mio_pair!($name, $plain);
        mio_socket!($name, SocketAddr);

        impl $listener {
            /// Binds and listens.
            ///
            /// # Errors
            ///
            /// What bind(2) and listen(2) say: EADDRINUSE where the name is taken, EACCES without permission.
            pub fn bind(name: impl ToSocketAddr) -> io::Result<$listener> {
                $listener::bind_with(name, &Config::default())
            }

            /// Binds and listens. Accepted sockets take their buffers, policy and waits from `config`.
            ///
            /// # Errors
            ///
            /// As `bind`.
            pub fn bind_with(name: impl ToSocketAddr, config: &Config) -> io::Result<$listener> {
                $listener::new(<$plain_listener>::bind_with(named(name)?, config)?)
            }

            /// Does as `bind`, for callers that hold a name: one of ours or of std's.
            ///
            /// # Errors
            ///
            /// As `bind`.
            pub fn bind_addr(name: impl Into<SocketAddr>) -> io::Result<$listener> {
                $listener::bind(name.into())
            }

            /// Takes the next connection, with its client's name. After an event, call it until WouldBlock.
            ///
            /// # Errors
            ///
            /// What accept(2) says: EAGAIN when none waits, EINVAL after shutdown, EMFILE.
            pub fn accept(&self) -> io::Result<($name, SocketAddr)> {
                let (socket, name) = self.0.accept()?;
                Ok(($name::new(socket)?, name))
            }
        }
    };
}

mio_type!(
    /// A connected stream socket for mio.
    Stream,
    crate::api::stream::Stream,
    SocketAddr
);
mio_type!(
    /// A listening stream socket for mio.
    Listener,
    crate::api::listener::Listener,
    SocketAddr
);
mio_connection!(Stream, crate::api::stream::Stream, Kind::Stream, Listener, crate::api::listener::Listener);

mio_type!(
    /// A connected seqpacket socket for mio.
    SeqPacket,
    crate::api::seqpacket::SeqPacket,
    SocketAddr
);
mio_type!(
    /// A listening seqpacket socket for mio.
    SeqListener,
    crate::api::listener::SeqListener,
    SocketAddr
);
mio_connection!(
    SeqPacket,
    crate::api::seqpacket::SeqPacket,
    Kind::SeqPacket,
    SeqListener,
    crate::api::listener::SeqListener
);

mio_stream!(Stream);
