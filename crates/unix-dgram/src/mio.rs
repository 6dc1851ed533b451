//! Datagram sockets for mio's `Poll`, as those of [`onecopy_unix::mio`].

use onecopy_socket::{mio_socket, mio_type};
use onecopy_unix::named;
use onecopy_unix::{Config, SocketAddr, ToSocketAddr, mio_pair};
use std::io;

mio_type!(
    /// A datagram socket for mio.
    Datagram,
    crate::Datagram,
    SocketAddr
);
mio_pair!(Datagram, crate::Datagram);
mio_socket!(Datagram, SocketAddr);

impl Datagram {
    /// Makes a socket without a name and without a peer.
    ///
    /// # Errors
    ///
    /// What socket(2) returns.
    pub fn unbound() -> io::Result<Datagram> {
        Datagram::unbound_with(&Config::default())
    }

    /// Makes a socket with `config`, without a name and without a peer.
    ///
    /// # Errors
    ///
    /// What socket(2) returns.
    pub fn unbound_with(config: &Config) -> io::Result<Datagram> {
        Datagram::new(crate::Datagram::unbound_with(config)?)
    }

    /// Makes a socket that receives what is sent to `name`.
    ///
    /// # Errors
    ///
    /// What bind(2) returns: EADDRINUSE if the name is taken, EACCES without permission.
    pub fn bind(name: impl ToSocketAddr) -> io::Result<Datagram> {
        Datagram::bind_with(name, &Config::default())
    }

    /// Makes a socket with `config` that receives what is sent to `name`.
    ///
    /// # Errors
    ///
    /// As [`Datagram::bind`].
    pub fn bind_with(name: impl ToSocketAddr, config: &Config) -> io::Result<Datagram> {
        Datagram::new(crate::Datagram::bind_with(named(name)?, config)?)
    }

    /// Does as [`Datagram::bind`], for callers that hold a name: one of ours or of std's.
    ///
    /// # Errors
    ///
    /// As [`Datagram::bind`].
    pub fn bind_addr(name: impl Into<SocketAddr>) -> io::Result<Datagram> {
        Datagram::bind(name.into())
    }

    /// Connects to the socket of that name: see [`Datagram::connect`](crate::Datagram::connect) of the plain socket.
    ///
    /// # Errors
    ///
    /// What connect(2) returns: ENOENT, ECONNREFUSED, EACCES, EPROTOTYPE; EPERM if that socket is connected to
    /// another one.
    pub fn connect(&self, name: impl ToSocketAddr) -> io::Result<()> {
        Ok(self.0.connect(named(name)?)?)
    }

    /// Does as [`Datagram::connect`], for callers that hold a name: one of ours or of std's.
    ///
    /// # Errors
    ///
    /// As [`Datagram::connect`].
    pub fn connect_addr(&self, name: impl Into<SocketAddr>) -> io::Result<()> {
        self.connect(name.into())
    }

    /// Sends one datagram to the peer, whole or not at all. Returns its length.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send`](crate::Datagram::send) of the plain socket; EAGAIN where there is no room.
    pub fn send(&self, datagram: &[u8]) -> io::Result<usize> {
        Ok(self.0.send(datagram)?)
    }

    /// Sends one datagram to the socket of that name, whether this socket is connected or not.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send_to`](crate::Datagram::send_to) of the plain socket. EAGAIN where there is no room in *that*
    /// socket's queue, which no event of this one tells of.
    pub fn send_to(&self, datagram: &[u8], name: impl ToSocketAddr) -> io::Result<usize> {
        Ok(self.0.send_to(datagram, named(name)?)?)
    }

    /// Receives one datagram. Bytes that do not fit into the buffer are dropped. Returns how many bytes were
    /// received. After an event, call it until WouldBlock.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`](crate::Datagram::recv) of the plain socket; EAGAIN where there is none.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.0.recv(buffer)?)
    }

    /// Does as [`Datagram::recv`], and returns the sender's name.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        Ok(self.0.recv_from(buffer)?)
    }
}
