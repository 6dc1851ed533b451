//! Where clients come from: a listener of the kernel's, or of a stack of our own.

use super::congestion::Congestion;
use super::stacked::Stacked;
use super::tcp::Tcp;
use anyhow::Context;
use onecopy::Stack;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpListener, TcpStream};

/// How many may wait to be accepted, as far as net.core.somaxconn allows it: thousands may come at once.
const BACKLOG: i32 = 4096;

/// A listener of the kernel's, and what its clients get: the one that is there, or a new one.
pub fn listen(
    given: Option<std::net::TcpListener>,
    address: SocketAddr,
) -> anyhow::Result<(std::net::TcpListener, Congestion)> {
    if let Some(given) = given {
        let congestion = Congestion::new(&given);
        return Ok((given, congestion));
    }
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    let congestion = Congestion::new(&socket); // before anybody can come
    bind(&socket, &address)
        .and_then(|()| rustix::net::listen(&socket, BACKLOG))
        .with_context(|| format!("cannot listen on {address}"))?;
    Ok((socket.into(), congestion))
}

/// Its connection, which no runtime has yet.
pub enum Arrived {
    Kernel(std::net::TcpStream),
    Stack(onecopy::tcp::Stream),
}

impl Arrived {
    /// In the runtime of the calling thread.
    pub fn settle(self) -> std::io::Result<Tcp> {
        Ok(match self {
            Arrived::Kernel(tcp) => Tcp::Kernel(TcpStream::from_std(tcp)?),
            Arrived::Stack(tcp) => Tcp::Stack(Stacked::new(tcp)?),
        })
    }
}

/// Where clients come from.
pub enum Front {
    Kernel(TcpListener, Congestion),
    Stack(AsyncFd<Listens>),
}

/// What tokio watches of a stack's listener.
pub struct Listens(onecopy::tcp::Listener);

impl AsRawFd for Listens {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Front {
    /// Takes clients of `listener`, or listens at `stack`. Nobody is accepted yet.
    #[allow(
        deprecated,
        reason = "`new` is deprecated for types whose descriptor may change; ours owns one for life"
    )]
    pub fn open(
        address: SocketAddr,
        listener: Option<(std::net::TcpListener, Congestion)>,
        stack: Option<&Stack>,
    ) -> anyhow::Result<(Front, SocketAddr)> {
        let stack = match (listener, stack) {
            (Some((listener, congestion)), _) => {
                let at = listener.local_addr()?;
                return Ok((Front::Kernel(TcpListener::from_std(listener)?, congestion), at));
            }
            (None, stack) => stack.context("no listener and no stack")?,
        };
        let listener = onecopy::tcp::Listener::bind(stack, address);
        let listener = listener.with_context(|| format!("cannot listen on {address} of the stack"))?;
        listener.set_nonblocking(true)?;
        let at = listener.local_addr()?;
        listener.poll_fd()?;
        Ok((Front::Stack(AsyncFd::new(Listens(listener))?), at))
    }

    /// The kernel's listener once more, to be handed to a successor.
    pub fn share(&self) -> anyhow::Result<OwnedFd> {
        match self {
            Front::Kernel(listener, _) => Ok(listener.as_fd().try_clone_to_owned()?),
            Front::Stack(_) => anyhow::bail!("a listener of a stack cannot be handed over"),
        }
    }

    pub async fn accept(&self) -> std::io::Result<(Arrived, SocketAddr)> {
        match self {
            Front::Kernel(listener, congestion) => {
                let (tcp, from) = listener.accept().await?;
                let tcp = tcp.into_std()?;
                if let Ok(at) = tcp.local_addr() {
                    congestion.settle(&tcp, from.ip(), at.ip());
                }
                Ok((Arrived::Kernel(tcp), from))
            }
            Front::Stack(listener) => {
                let accept = |listener: &Listens| Ok(listener.0.accept()?);
                let (tcp, from) = listener.async_io(Interest::READABLE, accept).await?;
                Ok((Arrived::Stack(tcp), from))
            }
        }
    }
}
