//! A stream socket that is neither listening nor connected yet.

use crate::addr::{ToSocketAddr, named};
use crate::api::tokio::{Listener, Stream};
use crate::config::Config;
use crate::connection::open::Connecting;
use crate::core::kind::Kind;
use onecopy_socket::{Error, Op, Result};
use rustix::fd::OwnedFd;

/// The half of tokio's `UnixSocket` that is about streams: `onecopy::unix::tokio::Socket` has the other, too.
#[derive(Debug)]
pub struct StreamSocket(OwnedFd);

impl StreamSocket {
    /// Makes the socket.
    ///
    /// # Errors
    ///
    /// What socket(2) says.
    pub fn new() -> Result<StreamSocket> {
        Ok(StreamSocket(Kind::Stream.socket()?))
    }

    /// Binds it.
    ///
    /// # Errors
    ///
    /// What bind(2) says.
    pub fn bind(&self, name: impl ToSocketAddr) -> Result<()> {
        let address = named(name)?.address(Op::Bind)?;
        rustix::net::bind(&self.0, &address).map_err(|errno| Error::new(Op::Bind, errno))
    }

    /// Listens.
    ///
    /// # Errors
    ///
    /// What listen(2) says: EINVAL without a name.
    pub fn listen(self, backlog: u32) -> Result<Listener> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        rustix::net::listen(&self.0, backlog).map_err(|errno| Error::new(Op::Bind, errno))?;
        Listener::new(crate::api::listener::Listener::from_fds(vec![self.0])?)
    }

    /// Connects, and stays with the kernel if it has a name of its own.
    ///
    /// # Errors
    ///
    /// As [`Stream::connect_from`].
    pub async fn connect(self, name: impl ToSocketAddr) -> Result<Stream> {
        let is_bound = !crate::connection::options::local_addr(&self.0)?.is_unnamed();
        let name = named(name)?;
        let config = Config::default();
        Stream::connected(Connecting::over(self.0, Kind::Stream, is_bound, name, &config)?).await
    }
}
