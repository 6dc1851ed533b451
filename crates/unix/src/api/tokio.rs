//! Sockets and listeners for tokio.

use onecopy_socket::{RecvFlags, SendFlags};
use rustix::fd::{AsRawFd, BorrowedFd};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

/// Registers `socket` with the runtime's epoll.
#[allow(
    deprecated,
    reason = "`new` is deprecated for types whose descriptor may change; ours own one for life"
)]
fn register<T: AsRawFd>(socket: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::new(socket)
}

/// A stream in a tokio runtime.
#[derive(Debug)]
pub struct Stream(AsyncFd<crate::api::stream::Stream>);

impl Stream {
    /// Makes `stream` non-blocking and registers it.
    ///
    /// # Errors
    ///
    /// What ioctl(2) and epoll_ctl(2) say.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn new(stream: crate::api::stream::Stream) -> io::Result<Stream> {
        stream.set_nonblocking(true)?;
        Ok(Stream(register(stream)?))
    }

    /// Connects to a listener. (Connecting a unix socket only ever waits for room in the backlog.)
    ///
    /// # Errors
    ///
    /// As [`crate::Stream::connect`].
    pub fn connect(name: impl crate::addr::ToSocketAddr) -> io::Result<Stream> {
        Stream::new(crate::api::stream::Stream::connect(name)?)
    }

    /// Returns the stream itself, for its options and counters.
    pub fn get_ref(&self) -> &crate::api::stream::Stream {
        self.0.get_ref()
    }

    /// Waits for bytes and receives them: at least one, or 0 at the end of the stream. (With WAITALL it takes
    /// what is there: nothing here waits in the call.)
    ///
    /// # Errors
    ///
    /// As [`crate::Stream::recv`].
    pub async fn recv(&self, buffer: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        let flags = flags | RecvFlags::DONTWAIT;
        self.0.async_io(Interest::READABLE, |stream| Ok(stream.recv_with_flags(buffer, flags)?)).await
    }

    /// Waits for bytes and borrows up to `max` of them; empty at the end of the stream.
    ///
    /// # Errors
    ///
    /// As [`crate::Stream::recv_borrowed`].
    pub async fn recv_borrowed(&self, max: usize) -> io::Result<crate::connection::view::View> {
        self.0
            .async_io(Interest::READABLE, |stream| {
                Ok(stream.recv_borrowed_with_flags(max, RecvFlags::DONTWAIT)?)
            })
            .await
    }

    /// Waits for room for `len` bytes (cut to the capacity) and reserves it.
    ///
    /// # Errors
    ///
    /// As [`crate::Stream::reserve`].
    pub async fn reserve(&self, len: usize) -> io::Result<crate::api::slot::Slot<'_>> {
        let flags = SendFlags::DONTWAIT;
        loop {
            let mut guard = self.0.writable().await?;
            match self.0.get_ref().reserve_with_flags(len, flags) {
                Err(error) if error.would_block() => guard.clear_ready(),
                other => return Ok(other?),
            }
        }
    }

    /// Waits for room and sends what fits, at least one byte of a non-empty slice.
    ///
    /// # Errors
    ///
    /// As [`crate::Stream::send`].
    pub async fn send(&self, bytes: &[u8], flags: SendFlags) -> io::Result<usize> {
        let flags = flags | SendFlags::DONTWAIT;
        self.0.async_io(Interest::WRITABLE, |stream| Ok(stream.send_with_flags(bytes, flags)?)).await
    }

    /// Waits for room and sends what fits, with descriptors, which arrive with its first byte.
    ///
    /// # Errors
    ///
    /// As [`crate::Stream::send_with`].
    pub async fn send_with(
        &self,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> io::Result<usize> {
        let flags = flags | SendFlags::DONTWAIT;
        self.0.async_io(Interest::WRITABLE, |stream| Ok(stream.send_fds_with_flags(bytes, fds, flags)?)).await
    }

    /// Waits for bytes and receives them, and what came with the first of them.
    ///
    /// # Errors
    ///
    /// As [`crate::Stream::recv_with`].
    pub async fn recv_with(
        &self,
        buffer: &mut [u8],
        flags: RecvFlags,
    ) -> io::Result<(usize, crate::ancillary::attached::Ancillary)> {
        let flags = flags | RecvFlags::DONTWAIT;
        self.0.async_io(Interest::READABLE, |stream| Ok(stream.recv_fds_with_flags(buffer, flags)?)).await
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(context))?;
            let unfilled = buffer.initialize_unfilled();
            match guard.try_io(|fd| Ok(fd.get_ref().recv_with_flags(unfilled, RecvFlags::DONTWAIT)?)) {
                Ok(result) => {
                    buffer.advance(result?);
                    return Poll::Ready(Ok(()));
                }
                Err(_would_block) => continue,
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(context))?;
            let flags = SendFlags::DONTWAIT;
            match guard.try_io(|fd| Ok(fd.get_ref().send_with_flags(bytes, flags)?)) {
                Ok(result) => return Poll::Ready(result),
                Err(_would_block) => continue,
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(self.0.get_ref().shutdown(std::net::Shutdown::Write)?))
    }
}

/// A seqpacket socket in a tokio runtime.
#[derive(Debug)]
pub struct SeqPacket(AsyncFd<crate::api::seqpacket::SeqPacket>);

impl SeqPacket {
    /// Makes `socket` non-blocking and registers it.
    ///
    /// # Errors
    ///
    /// What ioctl(2) and epoll_ctl(2) say.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn new(socket: crate::api::seqpacket::SeqPacket) -> io::Result<SeqPacket> {
        socket.set_nonblocking(true)?;
        Ok(SeqPacket(register(socket)?))
    }

    /// Connects to a listener.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::connect_with`].
    pub async fn connect_with(
        name: impl crate::addr::ToSocketAddr,
        config: &crate::config::Config,
    ) -> io::Result<SeqPacket> {
        SeqPacket::new(crate::api::seqpacket::SeqPacket::connect_with(name, config)?)
    }

    /// Connects to a listener, with the default configuration.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::connect`].
    pub async fn connect(name: impl crate::addr::ToSocketAddr) -> io::Result<SeqPacket> {
        SeqPacket::connect_with(name, &crate::config::Config::default()).await
    }

    /// Returns the socket itself, for its options and counters.
    pub fn get_ref(&self) -> &crate::api::seqpacket::SeqPacket {
        self.0.get_ref()
    }

    /// Waits for room and sends one record, or a part of a stream record. Of that it may send less than all.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::send`].
    pub async fn send(&self, record: &[u8], flags: SendFlags) -> io::Result<usize> {
        let flags = flags | SendFlags::DONTWAIT;
        self.0.async_io(Interest::WRITABLE, |socket| Ok(socket.send_with_flags(record, flags)?)).await
    }

    /// Waits for a record and receives it.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::recv_record`].
    pub async fn recv_record(
        &self,
        buffer: &mut [u8],
        flags: RecvFlags,
    ) -> io::Result<crate::connection::received::Received> {
        let flags = flags | RecvFlags::DONTWAIT;
        self.0.async_io(Interest::READABLE, |socket| Ok(socket.recv_record_with_flags(buffer, flags)?)).await
    }

    /// Waits for room and sends one record with descriptors.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::send_with`].
    pub async fn send_with(
        &self,
        record: &[u8],
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> io::Result<usize> {
        let flags = flags | SendFlags::DONTWAIT;
        self.0
            .async_io(Interest::WRITABLE, |socket| Ok(socket.send_fds_with_flags(record, fds, flags)?))
            .await
    }

    /// Waits for a record and receives it, and what came with it.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::recv_with`].
    pub async fn recv_with(
        &self,
        buffer: &mut [u8],
        flags: RecvFlags,
    ) -> io::Result<(crate::connection::received::Received, crate::ancillary::attached::Ancillary)> {
        let flags = flags | RecvFlags::DONTWAIT;
        self.0.async_io(Interest::READABLE, |socket| Ok(socket.recv_fds_with_flags(buffer, flags)?)).await
    }

    /// Waits for a record and borrows up to `max` bytes of it.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::recv_borrowed`].
    pub async fn recv_borrowed(
        &self,
        max: usize,
    ) -> io::Result<(crate::connection::view::View, onecopy_socket::ReceivedFlags)> {
        let borrow = |socket: &crate::api::seqpacket::SeqPacket| {
            Ok(socket.recv_borrowed_with_flags(max, RecvFlags::DONTWAIT)?)
        };
        self.0.async_io(Interest::READABLE, borrow).await
    }

    /// Waits for room for a record of `len` bytes and reserves it.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::reserve`].
    pub async fn reserve(&self, len: usize) -> io::Result<crate::api::slot::Slot<'_>> {
        let flags = SendFlags::DONTWAIT;
        loop {
            let mut guard = self.0.writable().await?;
            match self.0.get_ref().reserve_with_flags(len, flags) {
                Err(error) if error.would_block() => guard.clear_ready(),
                other => return Ok(other?),
            }
        }
    }
}

/// A listener in a tokio runtime.
#[derive(Debug)]
pub struct Listener(AsyncFd<crate::api::listener::Listener>);

impl Listener {
    /// Makes `listener` non-blocking and registers it.
    ///
    /// # Errors
    ///
    /// What ioctl(2) and epoll_ctl(2) say.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn new(listener: crate::api::listener::Listener) -> io::Result<Listener> {
        listener.set_nonblocking(true)?;
        Ok(Listener(register(listener)?))
    }

    /// Binds and listens.
    ///
    /// # Errors
    ///
    /// As [`crate::Listener::bind`].
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn bind(name: impl crate::addr::ToSocketAddr) -> io::Result<Listener> {
        Listener::new(crate::api::listener::Listener::bind(name)?)
    }

    /// Returns the listener itself.
    pub fn get_ref(&self) -> &crate::api::listener::Listener {
        self.0.get_ref()
    }

    /// Takes the next connection.
    ///
    /// # Errors
    ///
    /// As [`crate::Listener::accept`].
    pub async fn accept(&self) -> io::Result<(Stream, crate::addr::SocketAddr)> {
        let (stream, name) = self.0.async_io(Interest::READABLE, |listener| Ok(listener.accept()?)).await?;
        Ok((Stream::new(stream)?, name))
    }
}

/// A seqpacket listener in a tokio runtime.
#[derive(Debug)]
pub struct SeqListener(AsyncFd<crate::api::listener::SeqListener>);

impl SeqListener {
    /// Makes `listener` non-blocking and registers it.
    ///
    /// # Errors
    ///
    /// What ioctl(2) and epoll_ctl(2) say.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn new(listener: crate::api::listener::SeqListener) -> io::Result<SeqListener> {
        listener.set_nonblocking(true)?;
        Ok(SeqListener(register(listener)?))
    }

    /// Binds and listens.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqListener::bind`].
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn bind(name: impl crate::addr::ToSocketAddr) -> io::Result<SeqListener> {
        SeqListener::new(crate::api::listener::SeqListener::bind(name)?)
    }

    /// Returns the listener itself.
    pub fn get_ref(&self) -> &crate::api::listener::SeqListener {
        self.0.get_ref()
    }

    /// Takes the next connection.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqListener::accept`].
    pub async fn accept(&self) -> io::Result<(SeqPacket, crate::addr::SocketAddr)> {
        let (socket, name) = self.0.async_io(Interest::READABLE, |listener| Ok(listener.accept()?)).await?;
        Ok((SeqPacket::new(socket)?, name))
    }
}
