//! Datagram sockets for tokio. [`onecopy_unix::tokio`] says what holds for all sockets there.

use bytes::BufMut;
use onecopy_socket::tokio::{Direction, Registered, fill};
use onecopy_socket::{ready_methods, registered_methods};
use onecopy_sync::Mutex;
use onecopy_unix::credentials_methods;
use onecopy_unix::named;
use onecopy_unix::{
    Ancillary, Config, Op, Received, RecvFlags, Result, SendAncillary, SendFlags, SocketAddr, ToSocketAddr,
};
use rustix::fd::BorrowedFd;
use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::ReadBuf;
use tokio::time::Sleep;

/// The pause between two tries where no readiness tells of room.
const PAUSE: Duration = Duration::from_millis(1);

/// A datagram socket in a tokio runtime, as tokio's `UnixDatagram`. All methods take `&self`, and several tasks
/// may use it.
///
/// ```
/// use onecopy_unix_dgram::tokio::Datagram;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> onecopy_unix::Result<()> {
/// let log = Datagram::bind("\0onecopy-doc-tokio-datagram")?; // or a path: "/run/log.sock"
/// let client = Datagram::unbound()?;
/// client.connect("\0onecopy-doc-tokio-datagram")?;
/// client.send(b"hello").await?;
/// let mut buffer = [0; 100];
/// let (n, from) = log.recv_from(&mut buffer).await?;
/// assert!(&buffer[..n] == b"hello" && from.is_unnamed());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Datagram {
    io: Registered<crate::Datagram>,
    /// What wakes the task that polls for room at a receiver which this socket is not connected to.
    pause: Mutex<Option<Pin<Box<Sleep>>>>,
}

impl Datagram {
    /// Makes a socket that receives what is sent to `name`. A path that begins with a zero byte is an abstract
    /// name, as with tokio.
    ///
    /// # Errors
    ///
    /// What bind(2) and epoll_ctl(2) return: EADDRINUSE if the name is taken, EACCES without permission.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O.
    pub fn bind(name: impl ToSocketAddr) -> Result<Datagram> {
        Datagram::bind_with(name, &Config::default())
    }

    /// Does as [`Datagram::bind`], with `config`.
    ///
    /// # Errors
    ///
    /// As [`Datagram::bind`].
    ///
    /// # Panics
    ///
    /// As [`Datagram::bind`].
    pub fn bind_with(name: impl ToSocketAddr, config: &Config) -> Result<Datagram> {
        Datagram::new(crate::Datagram::bind_with(named(name)?, config)?)
    }

    /// Makes a socket without a name and without a peer.
    ///
    /// # Errors
    ///
    /// What socket(2) and epoll_ctl(2) return.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O.
    pub fn unbound() -> Result<Datagram> {
        Datagram::unbound_with(&Config::default())
    }

    /// Does as [`Datagram::unbound`], with `config`.
    ///
    /// # Errors
    ///
    /// As [`Datagram::unbound`].
    ///
    /// # Panics
    ///
    /// As [`Datagram::unbound`].
    pub fn unbound_with(config: &Config) -> Result<Datagram> {
        Datagram::new(crate::Datagram::unbound_with(config)?)
    }

    /// Makes two sockets that are connected to each other, over shared memory from the first datagram on.
    ///
    /// # Errors
    ///
    /// What socketpair(2) and epoll_ctl(2) return.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O.
    pub fn pair() -> Result<(Datagram, Datagram)> {
        Datagram::pair_with(&Config::default())
    }

    /// Does as [`Datagram::pair`], both with `config`.
    ///
    /// # Errors
    ///
    /// As [`Datagram::pair`].
    ///
    /// # Panics
    ///
    /// As [`Datagram::pair`].
    pub fn pair_with(config: &Config) -> Result<(Datagram, Datagram)> {
        let (a, b) = crate::Datagram::pair_with(config)?;
        let ready = [Direction::Write];
        Ok((Datagram::assuming(a, &ready)?, Datagram::assuming(b, &ready)?))
    }

    /// Connects to the socket of that name. This waits for nothing.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::connect`].
    pub fn connect(&self, name: impl ToSocketAddr) -> Result<()> {
        self.get_ref().connect(named(name)?)
    }

    /// Shuts one or both directions down (shutdown(2)).
    ///
    /// # Errors
    ///
    /// What shutdown(2) returns: ENOTCONN without a peer.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        self.get_ref().shutdown(how)
    }

    /// Waits for room and sends one datagram to the peer, whole or not at all. Returns its length.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::send`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was sent.
    pub async fn send(&self, datagram: &[u8]) -> Result<usize> {
        self.send_with_flags(datagram, SendFlags::empty()).await
    }

    /// Does as [`Datagram::send`], with flags. With [`SendFlags::DONTWAIT`] it does not wait.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send`]; EAGAIN with DONTWAIT where there is no room.
    ///
    /// # Cancel safety
    ///
    /// As [`Datagram::send`].
    pub async fn send_with_flags(&self, datagram: &[u8], flags: SendFlags) -> Result<usize> {
        self.io.send(flags, |socket, flags| socket.send_with_flags(datagram, flags)).await
    }

    /// Sends the slices one after the other, as one datagram, as [`Datagram::send`] does.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send`].
    ///
    /// # Cancel safety
    ///
    /// As [`Datagram::send`].
    pub async fn send_vectored(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        self.send_msg(slices, SendAncillary::default(), SendFlags::empty()).await
    }

    /// Sends as [`Datagram::send`] does, and descriptors with exactly this datagram (SCM_RIGHTS). The peer gets
    /// copies of them.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::send_fds`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was sent, and no descriptor.
    pub async fn send_fds(&self, datagram: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize> {
        self.send_fds_with_flags(datagram, fds, SendFlags::empty()).await
    }

    /// Does as [`Datagram::send_fds`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send_fds`] and [`Datagram::send_with_flags`].
    ///
    /// # Cancel safety
    ///
    /// As [`Datagram::send_fds`].
    pub async fn send_fds_with_flags(
        &self,
        datagram: &[u8],
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<usize> {
        self.send_msg(&[IoSlice::new(datagram)], SendAncillary::fds(fds), flags).await
    }

    /// Sends the slices one after the other, as one datagram, and what `ancillary` says with it (sendmsg(2)),
    /// as [`Datagram::send_fds`] does. Any flags may be given; with DONTWAIT it does not wait.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::send_msg`]; EAGAIN with DONTWAIT.
    ///
    /// # Cancel safety
    ///
    /// As [`Datagram::send_fds`].
    pub async fn send_msg(
        &self,
        slices: &[IoSlice<'_>],
        ancillary: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<usize> {
        self.io.send(flags, |socket, flags| socket.send_msg(slices, ancillary, flags)).await
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
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was sent.
    pub async fn send_to(&self, datagram: &[u8], name: impl ToSocketAddr) -> Result<usize> {
        self.send_to_with_flags(datagram, name, SendFlags::empty()).await
    }

    /// Does as [`Datagram::send_to`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send_to`]; EAGAIN with DONTWAIT where there is no room.
    ///
    /// # Panics
    ///
    /// As [`Datagram::send_to`].
    ///
    /// # Cancel safety
    ///
    /// As [`Datagram::send_to`].
    pub async fn send_to_with_flags(
        &self,
        datagram: &[u8],
        name: impl ToSocketAddr,
        flags: SendFlags,
    ) -> Result<usize> {
        self.send_msg_to(&[IoSlice::new(datagram)], name, SendAncillary::default(), flags).await
    }

    /// Sends the slices one after the other, as one datagram, and what `ancillary` says with it, to the socket
    /// of that name, as [`Datagram::send_to`] does.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::send_msg_to`]; EAGAIN with DONTWAIT.
    ///
    /// # Panics
    ///
    /// As [`Datagram::send_to`].
    ///
    /// # Cancel safety
    ///
    /// As [`Datagram::send_fds`].
    pub async fn send_msg_to(
        &self,
        slices: &[IoSlice<'_>],
        name: impl ToSocketAddr,
        ancillary: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<usize> {
        let name = named(name)?;
        let with = flags | SendFlags::DONTWAIT;
        loop {
            match self.get_ref().send_msg_to(slices, &name, ancillary, with) {
                Err(error) if error.would_block() && !flags.contains(SendFlags::DONTWAIT) => {
                    tokio::time::sleep(PAUSE).await;
                }
                done => return done,
            }
        }
    }

    /// Waits for a datagram and receives it. Bytes that do not fit into the buffer are dropped. Returns how
    /// many bytes were received.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::recv`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was received.
    pub async fn recv(&self, buffer: &mut [u8]) -> Result<usize> {
        self.recv_with_flags(buffer, RecvFlags::empty()).await
    }

    /// Does as [`Datagram::recv`], with flags. With [`RecvFlags::DONTWAIT`] it does not wait. With
    /// [`RecvFlags::TRUNC`] it returns the length of the datagram.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`]; EAGAIN with DONTWAIT where there is no datagram.
    ///
    /// # Cancel safety
    ///
    /// As [`Datagram::recv`].
    pub async fn recv_with_flags(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
        self.io.recv(flags, |socket, flags| socket.recv_with_flags(buffer, flags)).await
    }

    /// Does as [`Datagram::recv`], and leaves the datagram there for the next receive (MSG_PEEK).
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it takes nothing.
    pub async fn peek(&self, buffer: &mut [u8]) -> Result<usize> {
        self.recv_with_flags(buffer, RecvFlags::PEEK).await
    }

    /// Does as [`Datagram::recv`], into the free space of `buffer`, and advances it.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    ///
    /// # Cancel safety
    ///
    /// As [`Datagram::recv`].
    pub async fn recv_buf<B: BufMut>(&self, buffer: &mut B) -> Result<usize> {
        let recv = |socket: &crate::Datagram| {
            fill(buffer, |bytes| socket.recv_with_flags(bytes, RecvFlags::DONTWAIT))
        };
        self.io.wait(Direction::Read, recv).await
    }

    /// Receives as [`Datagram::recv`] does, into the slices one after the other.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    ///
    /// # Cancel safety
    ///
    /// As [`Datagram::recv`].
    pub async fn recv_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> Result<usize> {
        let flags = RecvFlags::empty();
        self.io.recv(flags, |socket, flags| socket.recv_vectored_with_flags(slices, flags)).await
    }

    /// Does as [`Datagram::recv`], and returns the sender's name. A sender without a name cannot be answered.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    ///
    /// # Cancel safety
    ///
    /// As [`Datagram::recv`].
    pub async fn recv_from(&self, buffer: &mut [u8]) -> Result<(usize, SocketAddr)> {
        self.recv_from_with_flags(buffer, RecvFlags::empty()).await
    }

    /// Does as [`Datagram::recv_from`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv_with_flags`].
    ///
    /// # Cancel safety
    ///
    /// As [`Datagram::recv`].
    pub async fn recv_from_with_flags(
        &self,
        buffer: &mut [u8],
        flags: RecvFlags,
    ) -> Result<(usize, SocketAddr)> {
        self.io.recv(flags, |socket, flags| socket.recv_from_with_flags(buffer, flags)).await
    }

    /// Does as [`Datagram::recv_from`], into the free space of `buffer`, and advances it.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    ///
    /// # Cancel safety
    ///
    /// As [`Datagram::recv`].
    pub async fn recv_buf_from<B: BufMut>(&self, buffer: &mut B) -> Result<(usize, SocketAddr)> {
        self.io.wait(Direction::Read, |socket| fill_from(socket, buffer)).await
    }

    /// Does as [`Datagram::recv_from`], and tells whether the datagram was cut, or whether there is none
    /// because this end was shut down.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    ///
    /// # Cancel safety
    ///
    /// As [`Datagram::recv`].
    pub async fn recv_datagram(&self, buffer: &mut [u8]) -> Result<(Received, SocketAddr)> {
        self.recv_datagram_with_flags(buffer, RecvFlags::empty()).await
    }

    /// Does as [`Datagram::recv_datagram`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv_with_flags`].
    ///
    /// # Cancel safety
    ///
    /// As [`Datagram::recv`].
    pub async fn recv_datagram_with_flags(
        &self,
        buffer: &mut [u8],
        flags: RecvFlags,
    ) -> Result<(Received, SocketAddr)> {
        self.io.recv(flags, |socket, flags| socket.recv_datagram_with_flags(buffer, flags)).await
    }

    /// Waits for a datagram and receives it, what was sent with it, and its sender's name.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::recv_fds`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was received, and no descriptor.
    pub async fn recv_fds(&self, buffer: &mut [u8]) -> Result<(Received, Ancillary, SocketAddr)> {
        self.recv_fds_with_flags(buffer, RecvFlags::empty()).await
    }

    /// Does as [`Datagram::recv_fds`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv_fds`] and [`Datagram::recv_with_flags`].
    ///
    /// # Cancel safety
    ///
    /// As [`Datagram::recv_fds`].
    pub async fn recv_fds_with_flags(
        &self,
        buffer: &mut [u8],
        flags: RecvFlags,
    ) -> Result<(Received, Ancillary, SocketAddr)> {
        self.recv_msg(&mut [IoSliceMut::new(buffer)], flags).await
    }

    /// Does as [`Datagram::recv_fds`], into the slices one after the other (recvmsg(2)).
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv_fds_with_flags`].
    ///
    /// # Cancel safety
    ///
    /// As [`Datagram::recv_fds`].
    pub async fn recv_msg(
        &self,
        slices: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<(Received, Ancillary, SocketAddr)> {
        self.io.recv(flags, |socket, flags| socket.recv_msg(slices, flags)).await
    }
}

mod polled;
mod socket;

pub use socket::Socket;

registered_methods!(Datagram, crate::Datagram, SocketAddr, Op::Socket, |_| Ok(()), pause: Mutex::new(None));
ready_methods!(Datagram, SocketAddr);
credentials_methods!(Datagram);

fn fill_from(socket: &crate::Datagram, buffer: &mut impl BufMut) -> Result<(usize, SocketAddr)> {
    let mut from = None;
    let n = fill(buffer, |bytes| {
        let (n, name) = socket.recv_from_with_flags(bytes, RecvFlags::DONTWAIT)?;
        from = Some(name);
        Ok(n)
    })?;
    // Without free space nothing was received.
    Ok((n, from.unwrap_or_else(SocketAddr::unnamed)))
}
