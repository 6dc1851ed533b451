//! How two workers come to be connected, over the kernel or over ours.

use std::os::unix::net::UnixListener;

use anyhow::{Context as _, Result, bail};
use onecopy::unix::{Listener, SeqListener, SeqPacket, SocketAddr, Stream};

use super::conn::Conn;
use super::dgram;
use super::setup::{Kind, Setup};

/// A listener.
pub enum Server {
    /// The kernel's.
    Kernel(UnixListener),
    /// Ours.
    Ours(Listener),
    /// Ours, of records.
    Records(SeqListener),
}

impl Server {
    /// Binds the name and says that the peer may come.
    pub fn listen(setup: &Setup) -> Result<Server> {
        let server = Server::bind(setup)?;
        crate::proc::say_ready()?;
        Ok(server)
    }

    /// Binds the name. The peer is not told yet.
    pub fn bind(setup: &Setup) -> Result<Server> {
        let name = || SocketAddr::from_abstract_name(&setup.name);
        Ok(match setup.kind {
            kind if setup.is_kernel() => {
                let fd = kind.kernel_socket()?;
                rustix::net::bind(&fd, &setup.address()?)?;
                // As many as may be, which is what std's listener asks for.
                rustix::net::listen(&fd, -1)?;
                Server::Kernel(fd.into())
            }
            Kind::Stream => Server::Ours(Listener::bind_with(name()?, &setup.config()?)?),
            Kind::Records => Server::Records(SeqListener::bind_with(name()?, &setup.config()?)?),
            Kind::Datagrams => bail!("datagram sockets do not listen"),
        })
    }

    /// The next connection.
    pub fn accept(&self, setup: &Setup) -> Result<Conn> {
        match self {
            Server::Kernel(listener) => Conn::kernel(listener.accept()?.0, setup),
            Server::Ours(listener) => Ok(Conn::Ours(listener.accept()?.0)),
            Server::Records(listener) => Ok(Conn::Records(listener.accept()?.0)),
        }
    }
}

/// Accepts the one peer of this name.
pub fn accept(setup: &Setup) -> Result<Conn> {
    match setup.kind {
        Kind::Datagrams => dgram::accept(setup),
        _ => Server::listen(setup)?.accept(setup),
    }
}

/// Connects to the name.
pub fn connect(setup: &Setup) -> Result<Conn> {
    let name = || SocketAddr::from_abstract_name(&setup.name);
    match setup.kind {
        Kind::Datagrams => dgram::connect(setup),
        kind if setup.is_kernel() => {
            let fd = kind.kernel_socket()?;
            rustix::net::connect(&fd, &setup.address()?).context("connecting")?;
            Conn::kernel(fd.into(), setup)
        }
        Kind::Stream => Ok(Conn::Ours(Stream::connect_with(name()?, &setup.config()?)?)),
        Kind::Records => Ok(Conn::Records(SeqPacket::connect_with(name()?, &setup.config()?)?)),
    }
}
