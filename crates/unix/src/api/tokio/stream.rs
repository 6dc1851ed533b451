//! Streams for tokio.

use crate::addr::{SocketAddr, ToSocketAddr, named};
use crate::ancillary::attached::{Ancillary, SendAncillary};
use crate::api::slot::Slot;
use crate::api::tokio::connecting;
use crate::byref::pool::Loan;
use crate::config::Config;
use crate::connection::open::Connecting;
use crate::connection::send_references::NotSent;
use crate::connection::view::View;
use crate::core::kind::Kind;
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use onecopy_socket::tokio::{Direction, Registered, refused};
use onecopy_socket::{
    Op, RecvFlags, Result, SendFlags, ready_methods, registered_methods, tokio_halves, tokio_stream,
};
use rustix::fd::BorrowedFd;
use std::io::{IoSlice, IoSliceMut};

/// A connected stream in a tokio runtime, as tokio's `UnixStream`. All methods but those of `AsyncRead` and
/// `AsyncWrite` take `&self`, and several tasks may use it: whole sends never interleave.
///
/// ```
/// use onecopy_unix::tokio::Stream;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (mut a, mut b) = Stream::pair()?;
/// a.write_all(b"as with tokio").await?;
/// b.read_exact(&mut [0; 13]).await?;
///
/// // Room where the peer will read: one copy, or none with `Slot::read_from`. Read in place at the other end.
/// let mut slot = a.reserve(9).await?;
/// slot.copy_from(b"and more!");
/// slot.commit()?;
/// assert_eq!(b.recv_borrowed(100).await?.len(), 9);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Stream {
    io: Registered<crate::api::stream::Stream>,
}

impl Stream {
    /// Connects to a listener, and waits for room in its backlog, without a thread that waits: it tries again
    /// after 1 ms, and then after longer pauses of up to 32 ms. A path that begins with a zero byte is an
    /// abstract name, as with tokio.
    ///
    /// # Errors
    ///
    /// What connect(2) says: ENOENT, ECONNREFUSED, EACCES, EPROTOTYPE; ECONNRESET if the listener is closed
    /// before it accepts.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O; and in one without a timer, if the backlog is full.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, the socket is closed. The listener may see a connection that ends at
    /// once.
    pub async fn connect(name: impl ToSocketAddr) -> Result<Stream> {
        Stream::connect_with(name, &Config::default()).await
    }

    /// Does as [`Stream::connect`], by a name that was made before.
    ///
    /// # Errors
    ///
    /// As [`Stream::connect`].
    ///
    /// # Cancel safety
    ///
    /// As [`Stream::connect`].
    pub async fn connect_addr(address: &SocketAddr) -> Result<Stream> {
        Stream::connect(address).await
    }

    /// Does as [`Stream::connect`], with `config`.
    ///
    /// # Errors
    ///
    /// As [`Stream::connect`].
    ///
    /// # Cancel safety
    ///
    /// As [`Stream::connect`].
    pub async fn connect_with(name: impl ToSocketAddr, config: &Config) -> Result<Stream> {
        Stream::connect_by(None, named(name)?, config).await
    }

    /// Binds to the name `local`, so that the listener sees who connects, and connects. Such a connection stays
    /// with the kernel, as with [`crate::Stream::connect_from`].
    ///
    /// # Errors
    ///
    /// What bind(2) says of `local`: EADDRINUSE, EACCES; as [`Stream::connect`].
    ///
    /// # Cancel safety
    ///
    /// As [`Stream::connect`]. A path that it was bound to stays.
    pub async fn connect_from(
        local: impl ToSocketAddr,
        name: impl ToSocketAddr,
        config: &Config,
    ) -> Result<Stream> {
        Stream::connect_by(Some(named(local)?), named(name)?, config).await
    }

    async fn connect_by(local: Option<SocketAddr>, name: SocketAddr, config: &Config) -> Result<Stream> {
        Stream::connected(Connecting::new(Kind::Stream, local, name, config)?).await
    }

    pub(super) async fn connected(connecting: Connecting) -> Result<Stream> {
        let end = connecting::connect(connecting).await?;
        let stream = Stream::new(crate::api::stream::Stream::of(end))?;
        // A listener that goes away takes with it what it has not accepted.
        stream.writable().await.map_err(refused(Op::Connect))?;
        match stream.take_error()? {
            Some(pending) => Err(connecting::given_up(pending)),
            None => Ok(stream),
        }
    }

    /// Makes two connected streams, over shared memory from the first byte on.
    ///
    /// # Errors
    ///
    /// What socketpair(2) and epoll_ctl(2) say.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O.
    pub fn pair() -> Result<(Stream, Stream)> {
        Stream::pair_with(&Config::default())
    }

    /// Makes two connected streams, both with `config`. Where memfds are refused they run over the kernel.
    ///
    /// # Errors
    ///
    /// As [`Stream::pair`].
    ///
    /// # Panics
    ///
    /// As [`Stream::pair`].
    pub fn pair_with(config: &Config) -> Result<(Stream, Stream)> {
        let (a, b) = crate::api::stream::Stream::pair_with(config)?;
        let ready = [Direction::Write];
        Ok((Stream::assuming(a, &ready)?, Stream::assuming(b, &ready)?))
    }

    /// Registers an accepted stream. It can send, and most likely its client has sent something.
    pub(super) fn accepted(stream: crate::api::stream::Stream) -> Result<Stream> {
        Stream::assuming(stream, &[Direction::Read, Direction::Write])
    }

    /// Sends as [`Stream::send`] does, and descriptors with the first byte (SCM_RIGHTS). The peer gets copies
    /// of them. If a part of the bytes was sent, all of the descriptors were.
    ///
    /// # Errors
    ///
    /// As [`crate::Stream::send_fds`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was sent, and no descriptor.
    pub async fn send_fds(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize> {
        self.send_fds_with_flags(bytes, fds, SendFlags::empty()).await
    }

    /// Does as [`Stream::send_fds`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::send_fds`] and [`Stream::send_with_flags`].
    ///
    /// # Cancel safety
    ///
    /// As [`Stream::send_fds`].
    pub async fn send_fds_with_flags(
        &self,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<usize> {
        self.io.send(flags, |stream, flags| stream.send_fds_with_flags(bytes, fds, flags)).await
    }

    /// Sends the slices one after the other, and what `ancillary` says with the first of their bytes
    /// (sendmsg(2)), as [`Stream::send_fds`] does.
    ///
    /// # Errors
    ///
    /// As [`crate::Stream::send_msg`]; EAGAIN with DONTWAIT.
    ///
    /// # Cancel safety
    ///
    /// As [`Stream::send_fds`].
    pub async fn send_msg(
        &self,
        slices: &[IoSlice<'_>],
        ancillary: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<usize> {
        self.io.send(flags, |stream, flags| stream.send_msg(slices, ancillary, flags)).await
    }

    /// Receives as [`Stream::recv`] does, and the descriptors that were sent with the first of the bytes.
    ///
    /// # Errors
    ///
    /// As [`crate::Stream::recv_fds`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was received, and no descriptor.
    pub async fn recv_fds(&self, buffer: &mut [u8]) -> Result<(usize, Ancillary)> {
        self.recv_fds_with_flags(buffer, RecvFlags::empty()).await
    }

    /// Does as [`Stream::recv_fds`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv_fds`] and [`Stream::recv_with_flags`].
    ///
    /// # Cancel safety
    ///
    /// As [`Stream::recv_fds`].
    pub async fn recv_fds_with_flags(
        &self,
        buffer: &mut [u8],
        flags: RecvFlags,
    ) -> Result<(usize, Ancillary)> {
        self.io.recv(flags, |stream, flags| stream.recv_fds_with_flags(buffer, flags)).await
    }

    /// Does as [`Stream::recv_fds`], into the slices one after the other (recvmsg(2)).
    ///
    /// # Errors
    ///
    /// As [`Stream::recv_fds_with_flags`].
    ///
    /// # Cancel safety
    ///
    /// As [`Stream::recv_fds`].
    pub async fn recv_msg(
        &self,
        slices: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<(usize, Ancillary)> {
        self.io.recv(flags, |stream, flags| stream.recv_msg(slices, flags)).await
    }
}

mod by_reference;

registered_methods!(Stream, crate::api::stream::Stream, SocketAddr, Op::Socket, |_| Ok(()));
ready_methods!(Stream, SocketAddr);
tokio_stream!(crate::api::stream::Stream);
credentials_methods!(Stream);
upgrade_methods!(Stream, Stream);

tokio_halves!(SocketAddr);
