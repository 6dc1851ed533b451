//! A socket that is not yet of any use: to be bound first.

use super::Datagram;
use onecopy_unix::named;
use onecopy_unix::tokio::{Listener, Stream, StreamSocket};
use onecopy_unix::{Error, Op, Result, ToSocketAddr};
use rustix::io::Errno;

/// A socket that is to be bound before it listens, connects, or takes datagrams, as tokio's `UnixSocket`.
/// [`Listener::bind`], [`Stream::connect_from`] and [`Datagram::bind`] do both at once, and take a
/// [`Config`](onecopy_unix::Config).
///
/// ```
/// use onecopy_unix_dgram::tokio::Socket;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> onecopy_unix::Result<()> {
/// let socket = Socket::new_stream()?;
/// socket.bind("\0onecopy-doc-tokio-socket")?;
/// let listener = socket.listen(128)?;
/// let client = Socket::new_stream()?.connect("\0onecopy-doc-tokio-socket").await?;
/// listener.accept().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Socket(Kind);

#[derive(Debug)]
enum Kind {
    Stream(StreamSocket),
    Datagram(crate::Datagram),
}

fn unfit(op: Op, why: &'static str) -> Error {
    Error::new(op, Errno::OPNOTSUPP).because(why)
}

impl Socket {
    /// Makes a stream socket.
    ///
    /// # Errors
    ///
    /// What socket(2) returns.
    pub fn new_stream() -> Result<Socket> {
        Ok(Socket(Kind::Stream(StreamSocket::new()?)))
    }

    /// Makes a datagram socket.
    ///
    /// # Errors
    ///
    /// What socket(2) returns.
    pub fn new_datagram() -> Result<Socket> {
        Ok(Socket(Kind::Datagram(crate::Datagram::unbound()?)))
    }

    /// Binds it to a name.
    ///
    /// # Errors
    ///
    /// What bind(2) returns: EADDRINUSE if the name is taken, EACCES without permission.
    pub fn bind(&self, name: impl ToSocketAddr) -> Result<()> {
        match &self.0 {
            Kind::Stream(socket) => socket.bind(name),
            Kind::Datagram(socket) => socket.bind_to(named(name)?),
        }
    }

    /// Listens, with room for `backlog` connections that wait to be accepted.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP for a datagram socket; what listen(2) returns: EINVAL without a name.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O.
    pub fn listen(self, backlog: u32) -> Result<Listener> {
        match self.0 {
            Kind::Stream(socket) => socket.listen(backlog),
            Kind::Datagram(_) => Err(unfit(Op::Bind, "listen cannot be called on a datagram socket")),
        }
    }

    /// Connects to a listener. A socket that is bound stays with the kernel, as with [`Stream::connect_from`].
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP for a datagram socket ([`Socket::datagram`] makes one that connects); as [`Stream::connect`].
    ///
    /// # Panics
    ///
    /// As [`Stream::connect`].
    ///
    /// # Cancel safety
    ///
    /// As [`Stream::connect`].
    pub async fn connect(self, name: impl ToSocketAddr) -> Result<Stream> {
        match self.0 {
            Kind::Stream(socket) => socket.connect(name).await,
            Kind::Datagram(_) => Err(unfit(
                Op::Connect,
                "connect cannot be called on a datagram socket; `datagram` makes one that connects",
            )),
        }
    }

    /// Makes it a datagram socket in the runtime.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP for a stream socket; what epoll_ctl(2) returns.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O.
    pub fn datagram(self) -> Result<Datagram> {
        match self.0 {
            Kind::Datagram(socket) => Datagram::new(socket),
            Kind::Stream(_) => Err(unfit(Op::Socket, "datagram cannot be called on a stream socket")),
        }
    }
}
