//! Datagram sockets for tokio.

use onecopy_unix::{Ancillary, Received, RecvFlags, SendFlags, SocketAddr, ToSocketAddr};
use rustix::fd::{AsRawFd, BorrowedFd};
use std::io;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers `socket` with the runtime's epoll.
#[allow(
    deprecated,
    reason = "`new` is deprecated for types whose descriptor may change; ours own one for life"
)]
fn register<T: AsRawFd>(socket: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::new(socket)
}

/// The pause between two tries where no readiness tells of room.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

/// A datagram socket in a tokio runtime.
#[derive(Debug)]
pub struct Datagram(AsyncFd<crate::Datagram>);

impl Datagram {
    /// Makes `socket` non-blocking and registers it.
    ///
    /// # Errors
    ///
    /// What ioctl(2) and epoll_ctl(2) return.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn new(socket: crate::Datagram) -> io::Result<Datagram> {
        socket.set_nonblocking(true)?;
        Ok(Datagram(register(socket)?))
    }

    /// Makes a socket that receives what is sent to `name`.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::bind`].
    pub fn bind(name: impl ToSocketAddr) -> io::Result<Datagram> {
        Datagram::new(crate::Datagram::bind(name)?)
    }

    /// Makes two sockets that are connected to each other.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::pair`].
    pub fn pair() -> io::Result<(Datagram, Datagram)> {
        let (a, b) = crate::Datagram::pair()?;
        Ok((Datagram::new(a)?, Datagram::new(b)?))
    }

    /// Connects to the socket of that name. This waits for nothing.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::connect`].
    pub fn connect(&self, name: impl ToSocketAddr) -> io::Result<()> {
        Ok(self.0.get_ref().connect(name)?)
    }

    /// Returns the socket itself, for its options and counters.
    pub fn get_ref(&self) -> &crate::Datagram {
        self.0.get_ref()
    }

    /// Waits for room and sends one datagram to the peer.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::send`].
    pub async fn send(&self, datagram: &[u8], flags: SendFlags) -> io::Result<usize> {
        let flags = flags | SendFlags::DONTWAIT;
        self.0.async_io(Interest::WRITABLE, |socket| Ok(socket.send_with_flags(datagram, flags)?)).await
    }

    /// Sends one datagram to the socket of that name, and waits for room there. No readiness tells of room at
    /// a receiver that this socket is not connected to, so it tries again every millisecond.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::send_to`].
    ///
    /// # Panics
    ///
    /// If it has to wait in a runtime without a timer (`enable_time`).
    pub async fn send_to(
        &self,
        datagram: &[u8],
        name: impl ToSocketAddr,
        flags: SendFlags,
    ) -> io::Result<usize> {
        let (name, flags) = (name.to_socket_addr(), flags | SendFlags::DONTWAIT);
        loop {
            match self.0.get_ref().send_to_with_flags(datagram, &name, flags) {
                Err(error) if error.would_block() => tokio::time::sleep(PAUSE).await,
                other => return Ok(other?),
            }
        }
    }

    /// Waits for room and sends one datagram with descriptors to the peer.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::send_with`].
    pub async fn send_with(
        &self,
        datagram: &[u8],
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> io::Result<usize> {
        let flags = flags | SendFlags::DONTWAIT;
        self.0
            .async_io(Interest::WRITABLE, |socket| Ok(socket.send_fds_with_flags(datagram, fds, flags)?))
            .await
    }

    /// Waits for a datagram and receives it, what was sent with it, and its sender's name.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::recv_with`].
    pub async fn recv_with(
        &self,
        buffer: &mut [u8],
        flags: RecvFlags,
    ) -> io::Result<(Received, Ancillary, SocketAddr)> {
        let flags = flags | RecvFlags::DONTWAIT;
        self.0.async_io(Interest::READABLE, |socket| Ok(socket.recv_fds_with_flags(buffer, flags)?)).await
    }

    /// Waits for a datagram and receives it.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::recv`].
    pub async fn recv(&self, buffer: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        let flags = flags | RecvFlags::DONTWAIT;
        self.0.async_io(Interest::READABLE, |socket| Ok(socket.recv_with_flags(buffer, flags)?)).await
    }

    /// Waits for a datagram and receives it, with its sender's name.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::recv_from`].
    pub async fn recv_from(&self, buffer: &mut [u8], flags: RecvFlags) -> io::Result<(usize, SocketAddr)> {
        let flags = flags | RecvFlags::DONTWAIT;
        self.0.async_io(Interest::READABLE, |socket| Ok(socket.recv_from_with_flags(buffer, flags)?)).await
    }

    /// As [`Datagram::recv_from`], and tells whether the datagram was cut.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::recv_datagram`].
    pub async fn recv_datagram(
        &self,
        buffer: &mut [u8],
        flags: RecvFlags,
    ) -> io::Result<(Received, SocketAddr)> {
        let flags = flags | RecvFlags::DONTWAIT;
        self.0
            .async_io(Interest::READABLE, |socket| Ok(socket.recv_datagram_with_flags(buffer, flags)?))
            .await
    }
}
