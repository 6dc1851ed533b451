//! Seqpacket sockets for tokio.

use crate::addr::{SocketAddr, ToSocketAddr, named};
use crate::ancillary::attached::{Ancillary, SendAncillary};
use crate::api::slot::Slot;
use crate::api::tokio::connecting;
use crate::byref::pool::Loan;
use crate::config::Config;
use crate::connection::open::Connecting;
use crate::connection::received::Received;
use crate::connection::send_references::NotSent;
use crate::connection::view::View;
use crate::core::kind::Kind;
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use onecopy_socket::tokio::{Direction, Registered, refused};
use onecopy_socket::{Op, ReceivedFlags, RecvFlags, Result, SendFlags};
use rustix::fd::BorrowedFd;
use std::io::{self, IoSlice, IoSliceMut};
use std::task::{Context, Poll};

/// A connected seqpacket socket in a tokio runtime. All methods take `&self`, and several tasks may use it.
///
/// ```
/// use onecopy_unix::tokio::SeqPacket;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> onecopy_unix::Result<()> {
/// let (a, b) = SeqPacket::pair()?;
/// a.send(b"one").await?;
/// a.send(b"and another").await?;
/// let mut buffer = [0; 100];
/// assert_eq!(b.recv(&mut buffer).await?, 3);
/// assert_eq!(b.recv(&mut buffer).await?, 11);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SeqPacket {
    io: Registered<crate::api::seqpacket::SeqPacket>,
}

impl SeqPacket {
    /// Connects to a listener, and waits for room in its backlog as [`crate::tokio::Stream::connect`] does.
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
    pub async fn connect(name: impl ToSocketAddr) -> Result<SeqPacket> {
        SeqPacket::connect_with(name, &Config::default()).await
    }

    /// Does as [`SeqPacket::connect`], with `config`.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::connect`] and [`crate::SeqPacket::connect_with`]. EAGAIN where the listener's rendezvous
    /// is full, which only stream records need: connect again.
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::connect`].
    pub async fn connect_with(name: impl ToSocketAddr, config: &Config) -> Result<SeqPacket> {
        SeqPacket::connect_by(None, named(name)?, config).await
    }

    /// Binds to the name `local`, so that the listener sees who connects, and connects. Such a connection stays
    /// with the kernel, as with [`crate::SeqPacket::connect_from`].
    ///
    /// # Errors
    ///
    /// What bind(2) says of `local`: EADDRINUSE, EACCES; as [`SeqPacket::connect_with`].
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::connect`]. A path that it was bound to stays.
    pub async fn connect_from(
        local: impl ToSocketAddr,
        name: impl ToSocketAddr,
        config: &Config,
    ) -> Result<SeqPacket> {
        SeqPacket::connect_by(Some(named(local)?), named(name)?, config).await
    }

    async fn connect_by(local: Option<SocketAddr>, name: SocketAddr, config: &Config) -> Result<SeqPacket> {
        let end = connecting::connect(Connecting::new(Kind::SeqPacket, local, name, config)?).await?;
        let socket = SeqPacket::new(crate::api::seqpacket::SeqPacket::of(end))?;
        // A listener that goes away takes with it what it has not accepted.
        socket.writable().await.map_err(refused(Op::Connect))?;
        match socket.take_error()? {
            Some(pending) => Err(connecting::given_up(pending)),
            None => Ok(socket),
        }
    }

    /// Makes two connected sockets, over shared memory from the first record on.
    ///
    /// # Errors
    ///
    /// What socketpair(2) and epoll_ctl(2) say.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O.
    pub fn pair() -> Result<(SeqPacket, SeqPacket)> {
        SeqPacket::pair_with(&Config::default())
    }

    /// Makes two connected sockets, both with `config`.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::pair`]; EPROTONOSUPPORT for stream records without memfds.
    ///
    /// # Panics
    ///
    /// As [`SeqPacket::pair`].
    pub fn pair_with(config: &Config) -> Result<(SeqPacket, SeqPacket)> {
        let (a, b) = crate::api::seqpacket::SeqPacket::pair_with(config)?;
        let ready = [Direction::Write];
        Ok((SeqPacket::assuming(a, &ready)?, SeqPacket::assuming(b, &ready)?))
    }

    /// Registers an accepted socket. It can send, and most likely its client has sent something.
    pub(super) fn accepted(socket: crate::api::seqpacket::SeqPacket) -> Result<SeqPacket> {
        SeqPacket::assuming(socket, &[Direction::Read, Direction::Write])
    }

    /// Waits for room and sends one record, whole or not at all. Returns its length. Of a stream record
    /// ([`crate::Records::Stream`]) it sends a part, and may send less than all.
    ///
    /// # Errors
    ///
    /// EMSGSIZE, EPIPE, ECONNRESET, EPROTO, as [`crate::SeqPacket::send`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was sent.
    pub async fn send(&self, record: &[u8]) -> Result<usize> {
        self.send_with_flags(record, SendFlags::empty()).await
    }

    /// Does as [`SeqPacket::send`], with flags. With [`SendFlags::DONTWAIT`] it does not wait.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send`]; EAGAIN with DONTWAIT where there is no room.
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::send`].
    pub async fn send_with_flags(&self, record: &[u8], flags: SendFlags) -> Result<usize> {
        self.io.send(flags, |socket, flags| socket.send_with_flags(record, flags)).await
    }

    /// Sends the slices one after the other, as one record, as [`SeqPacket::send`] does.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send`].
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::send`].
    pub async fn send_vectored(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        self.send_vectored_with_flags(slices, SendFlags::empty()).await
    }

    /// Does as [`SeqPacket::send_vectored`], with flags.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send_with_flags`].
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::send`].
    pub async fn send_vectored_with_flags(&self, slices: &[IoSlice<'_>], flags: SendFlags) -> Result<usize> {
        self.io.send(flags, |socket, flags| socket.send_vectored_with_flags(slices, flags)).await
    }

    /// Sends as [`SeqPacket::send`] does, and descriptors with exactly this record (SCM_RIGHTS). The peer gets
    /// copies of them.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::send_fds`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was sent, and no descriptor.
    pub async fn send_fds(&self, record: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize> {
        self.send_fds_with_flags(record, fds, SendFlags::empty()).await
    }

    /// Does as [`SeqPacket::send_fds`], with flags.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send_fds`] and [`SeqPacket::send_with_flags`].
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::send_fds`].
    pub async fn send_fds_with_flags(
        &self,
        record: &[u8],
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<usize> {
        self.io.send(flags, |socket, flags| socket.send_fds_with_flags(record, fds, flags)).await
    }

    /// Sends the slices one after the other, as one record, and what `ancillary` says with it (sendmsg(2)), as
    /// [`SeqPacket::send_fds`] does.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::send_msg`]; EAGAIN with DONTWAIT.
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::send_fds`].
    pub async fn send_msg(
        &self,
        slices: &[IoSlice<'_>],
        ancillary: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<usize> {
        self.io.send(flags, |socket, flags| socket.send_msg(slices, ancillary, flags)).await
    }

    /// Waits for one record and receives it. What does not fit into the buffer is dropped. Returns how many
    /// bytes were received. It returns 0 at the end too; [`SeqPacket::recv_record`] tells the two apart.
    ///
    /// # Errors
    ///
    /// ECONNRESET, EPROTO, as [`crate::SeqPacket::recv`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was received.
    pub async fn recv(&self, buffer: &mut [u8]) -> Result<usize> {
        self.recv_with_flags(buffer, RecvFlags::empty()).await
    }

    /// Does as [`SeqPacket::recv`], with flags. With [`RecvFlags::DONTWAIT`] it does not wait. With
    /// [`RecvFlags::TRUNC`] it returns the length of the record.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv`]; EAGAIN with DONTWAIT where there is no record.
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::recv`].
    pub async fn recv_with_flags(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
        self.io.recv(flags, |socket, flags| socket.recv_with_flags(buffer, flags)).await
    }

    /// Does as [`SeqPacket::recv`], and leaves the record there for the next receive (MSG_PEEK).
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it takes nothing.
    pub async fn peek(&self, buffer: &mut [u8]) -> Result<usize> {
        self.recv_with_flags(buffer, RecvFlags::PEEK).await
    }

    /// Receives as [`SeqPacket::recv`] does, into the slices one after the other.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv`].
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::recv`].
    pub async fn recv_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> Result<usize> {
        self.recv_vectored_with_flags(slices, RecvFlags::empty()).await
    }

    /// Does as [`SeqPacket::recv_vectored`], with flags.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv_with_flags`].
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::recv`].
    pub async fn recv_vectored_with_flags(
        &self,
        slices: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<usize> {
        self.io.recv(flags, |socket, flags| socket.recv_vectored_with_flags(slices, flags)).await
    }

    /// Receives as [`SeqPacket::recv`] does, and tells whether the record was cut, ended, or never came.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv`].
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::recv`].
    pub async fn recv_record(&self, buffer: &mut [u8]) -> Result<Received> {
        self.recv_record_with_flags(buffer, RecvFlags::empty()).await
    }

    /// Does as [`SeqPacket::recv_record`], with flags.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv_with_flags`].
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::recv`].
    pub async fn recv_record_with_flags(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<Received> {
        self.io.recv(flags, |socket, flags| socket.recv_record_with_flags(buffer, flags)).await
    }

    /// Receives one record and the descriptors that were sent with it.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::recv_fds`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped, nothing was received, and no descriptor.
    pub async fn recv_fds(&self, buffer: &mut [u8]) -> Result<(Received, Ancillary)> {
        self.recv_fds_with_flags(buffer, RecvFlags::empty()).await
    }

    /// Does as [`SeqPacket::recv_fds`], with flags.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv_fds`] and [`SeqPacket::recv_with_flags`].
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::recv_fds`].
    pub async fn recv_fds_with_flags(
        &self,
        buffer: &mut [u8],
        flags: RecvFlags,
    ) -> Result<(Received, Ancillary)> {
        self.io.recv(flags, |socket, flags| socket.recv_fds_with_flags(buffer, flags)).await
    }

    /// Does as [`SeqPacket::recv_fds`], into the slices one after the other (recvmsg(2)).
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv_fds_with_flags`].
    ///
    /// # Cancel safety
    ///
    /// As [`SeqPacket::recv_fds`].
    pub async fn recv_msg(
        &self,
        slices: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<(Received, Ancillary)> {
        self.io.recv(flags, |socket, flags| socket.recv_msg(slices, flags)).await
    }
}

mod by_reference;

/// For tasks that poll or try, as tokio's sockets have it.
impl SeqPacket {
    /// Does as [`SeqPacket::readable`], for a task that polls. Only the last task that polled for receiving is
    /// woken.
    ///
    /// # Errors
    ///
    /// When the runtime shuts down.
    pub fn poll_recv_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_ready(context, Direction::Read)
    }

    /// Does as [`SeqPacket::writable`], for a task that polls. Only the last task that polled for sending is
    /// woken.
    ///
    /// # Errors
    ///
    /// When the runtime shuts down.
    pub fn poll_send_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_ready(context, Direction::Write)
    }

    /// Does as [`SeqPacket::recv_record`], for a task that polls. Only the last one is woken.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv`].
    pub fn poll_recv_record(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<Received>> {
        let recv = |socket: &crate::api::seqpacket::SeqPacket| {
            socket.recv_record_with_flags(buffer, RecvFlags::DONTWAIT)
        };
        self.io.poll(context, Direction::Read, recv)
    }

    /// Does as [`SeqPacket::send`], for a task that polls. Only the last one is woken.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send`].
    pub fn poll_send(&self, context: &mut Context<'_>, record: &[u8]) -> Poll<io::Result<usize>> {
        let send =
            |socket: &crate::api::seqpacket::SeqPacket| socket.send_with_flags(record, SendFlags::DONTWAIT);
        self.io.poll(context, Direction::Write, send)
    }

    /// Receives the record that is there now.
    ///
    /// # Errors
    ///
    /// EAGAIN (`WouldBlock`) if there is none; as [`SeqPacket::recv`].
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let flags = RecvFlags::DONTWAIT;
        Ok(self.io.attempt(Direction::Read, |socket| socket.recv_with_flags(buffer, flags))?)
    }

    /// Sends one record if there is room now.
    ///
    /// # Errors
    ///
    /// EAGAIN (`WouldBlock`) if there is none; as [`SeqPacket::send`].
    pub fn try_send(&self, record: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT;
        Ok(self.io.attempt(Direction::Write, |socket| socket.send_with_flags(record, flags))?)
    }
}

onecopy_socket::registered_methods!(
    SeqPacket,
    crate::api::seqpacket::SeqPacket,
    SocketAddr,
    Op::Socket,
    |_| Ok(())
);
onecopy_socket::ready_methods!(SeqPacket, SocketAddr);
credentials_methods!(SeqPacket);
upgrade_methods!(SeqPacket, SeqPacket);
