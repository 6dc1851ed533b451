//! A client's TCP connection, the kernel's or this program's own stack's, and sending on it within its patience.

use super::stacked::Stacked;
use super::timeout::within;
use super::trouble::{Patience, Trouble};
use onecopy::RecvFlags;
use onecopy_sys::sockopt::tcp_acknowledged;
use rustix::fd::AsFd;
use rustix::net::SendFlags;
use std::io::{self, IoSlice};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// A client's connection.
#[derive(Debug)]
pub enum Tcp {
    /// The kernel's.
    Kernel(TcpStream),
    /// Of the proxy's own stack.
    Stack(Stacked),
}

impl Tcp {
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Tcp::Kernel(tcp) => tcp.readable().await,
            Tcp::Stack(tcp) => tcp.readable().await,
        }
    }

    pub async fn writable(&self) -> io::Result<()> {
        match self {
            Tcp::Kernel(tcp) => tcp.writable().await,
            Tcp::Stack(tcp) => tcp.writable().await,
        }
    }

    pub fn try_read(&self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Tcp::Kernel(tcp) => tcp.try_read(room),
            Tcp::Stack(tcp) => tcp.try_io(Interest::READABLE, |stream| Ok(stream.recv(room)?)),
        }
    }

    /// Looks at the first byte, once it is there; 0 at the end.
    pub async fn peek(&self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Tcp::Kernel(tcp) => tcp.peek(room).await,
            Tcp::Stack(tcp) => loop {
                let look = |stream: &onecopy::tcp::Stream| {
                    Ok(stream.recv_with_flags(room, RecvFlags::PEEK | RecvFlags::DONTWAIT)?)
                };
                match tcp.try_io(Interest::READABLE, look) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => tcp.readable().await?,
                    done => return done,
                }
            },
        }
    }

    /// One send; `more` follows at once.
    pub fn try_send(&self, bytes: &[u8], more: bool) -> io::Result<usize> {
        match self {
            Tcp::Kernel(tcp) => {
                let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
                tcp.try_io(Interest::WRITABLE, || Ok(rustix::net::send(tcp, bytes, flags)?))
            }
            Tcp::Stack(tcp) => {
                let flags = if more { onecopy::SendFlags::MORE } else { onecopy::SendFlags::empty() };
                tcp.try_io(Interest::WRITABLE, |stream| Ok(stream.send_with_flags(bytes, flags)?))
            }
        }
    }

    pub fn try_write_vectored(&self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Tcp::Kernel(tcp) => tcp.try_write_vectored(bytes),
            Tcp::Stack(tcp) => tcp.try_io(Interest::WRITABLE, |stream| Ok(stream.send_vectored(bytes)?)),
        }
    }

    /// No more is sent.
    pub fn shut_write(&self) -> io::Result<()> {
        match self {
            Tcp::Kernel(tcp) => Ok(rustix::net::shutdown(tcp, rustix::net::Shutdown::Write)?),
            Tcp::Stack(tcp) => Ok(tcp.stream().shutdown(std::net::Shutdown::Write)?),
        }
    }

    pub fn set_nodelay(&self) {
        let _ = match self {
            Tcp::Kernel(tcp) => tcp.set_nodelay(true),
            Tcp::Stack(tcp) => tcp.stream().set_nodelay(true).map_err(io::Error::from),
        };
    }

    /// Bytes that its side has acknowledged.
    fn acknowledged(&self) -> io::Result<u64> {
        match self {
            Tcp::Kernel(tcp) => Ok(tcp_acknowledged(tcp.as_fd())?),
            Tcp::Stack(tcp) => Ok(tcp.stream().info().bytes_acked),
        }
    }
}

/// Sends all of `bytes` as they are; `more` follows at once.
pub async fn send_all(tcp: &Tcp, mut bytes: &[u8], more: bool, patience: Patience) -> Result<(), Trouble> {
    while !bytes.is_empty() {
        match tcp.try_send(bytes, more) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) => wait_writable(tcp, error, patience.client).await?,
        }
    }
    Ok(())
}

/// After an error of a write: waits if waiting helps, and gives up a client that takes nothing at all for so long.
///
/// An event tells of room only when a third of the socket's buffer is free, which is megabytes where segments are large: a
/// slow reader may need longer for that than any patience. What its side has acknowledged says that it lives.
pub async fn wait_writable(client: &Tcp, error: io::Error, patience: Duration) -> Result<(), Trouble> {
    match error.kind() {
        io::ErrorKind::WouldBlock => {}
        io::ErrorKind::Interrupted => return Ok(()),
        _ => return Err(Trouble::Broken),
    }
    // Most waits are short: only a long one is worth the question.
    let (mut wait, mut before) = (patience / 4, None);
    loop {
        match within(wait, client.writable()).await {
            Some(Ok(())) => return Ok(()),
            Some(Err(_)) => return Err(Trouble::Broken),
            None => {}
        }
        let now = client.acknowledged().map_err(|_| Trouble::Broken)?;
        if before.replace(now) == Some(now) {
            return Err(Trouble::Broken);
        }
        wait = patience;
    }
}
