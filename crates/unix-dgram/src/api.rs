//! Datagram sockets as applications hold them.

use crate::socket::Socket;
use onecopy_unix::connection::call::Call;
use onecopy_unix::handle::Handle;
use onecopy_unix::{
    Ancillary, Config, Error, Op, Received, RecvFlags, Result, SendAncillary, SendFlags, Slot, SocketAddr,
    ToSocketAddr, View,
};
use onecopy_unix::{credential_methods, plain_conversions, socket_methods};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::net::SocketAddrUnix;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// A datagram socket. All methods take `&self`, so several threads may use it. Dropping it closes the socket;
/// a path that it was bound to stays, as with the kernel's.
///
/// It works as std's `UnixDatagram` does, and exchanges datagrams with any other. Two sockets that are
/// connected to each other use shared memory; [`Datagram::path`] tells. A datagram that is sent without a
/// connection, or to a plain peer, goes over the kernel.
///
/// The datagrams of one sender come in order. Between senders there is no order, except that datagrams which
/// were sent over the kernel come in the order in which they were sent.
///
/// ```
/// # fn main() -> onecopy_unix::Result<()> {
/// use onecopy_unix::SocketAddr;
/// use onecopy_unix_dgram::Datagram;
///
/// let name = SocketAddr::from_abstract_name(format!("doc-datagram-{}", std::process::id()))?;
/// let log = Datagram::bind(&name)?;
/// let sender = Datagram::unbound()?;
/// sender.autobind()?;
/// sender.send_to(b"a line", &name)?;
/// let mut buffer = [0; 100];
/// let (n, from) = log.recv_from(&mut buffer)?;
/// log.send_to(b"thanks", &from)?;
/// assert_eq!((n, sender.recv(&mut buffer)?), (6, 6));
/// # Ok(())
/// # }
/// ```
///
/// A datagram socket cannot be passed on to another process as a [`Stream`](onecopy_unix::Stream::into_fds)
/// can: its shared memory is bound to a line between the two processes that paired. Another process that is
/// to receive datagrams binds a socket of its own. After a fork, a socket that shares memory belongs to the
/// process that uses it first; calls of the other process return EBUSY.
#[derive(Debug)]
pub struct Datagram {
    end: Arc<Socket>,
    handle: Handle,
}

impl Datagram {
    fn of(end: Arc<Socket>) -> Datagram {
        Datagram { end, handle: Handle::first() }
    }

    /// Returns the socket inside.
    #[cfg(test)]
    pub(crate) fn socket(&self) -> &Arc<Socket> {
        &self.end
    }

    fn plain(fd: OwnedFd) -> Datagram {
        Datagram::of(Socket::plain(fd))
    }

    /// Makes two sockets that are connected to each other, over shared memory from the first datagram on.
    ///
    /// # Errors
    ///
    /// What socketpair(2) returns.
    pub fn pair() -> Result<(Datagram, Datagram)> {
        Datagram::pair_with(&Config::default())
    }

    /// Makes two sockets that are connected to each other, both with `config`. They use the kernel where
    /// memfds are refused.
    ///
    /// # Errors
    ///
    /// What socketpair(2) returns.
    pub fn pair_with(config: &Config) -> Result<(Datagram, Datagram)> {
        let (a, b) = Socket::pair(config)?;
        Ok((Datagram::of(a), Datagram::of(b)))
    }

    /// Makes a socket without a name and without a peer.
    ///
    /// # Errors
    ///
    /// What socket(2) returns.
    pub fn unbound() -> Result<Datagram> {
        Datagram::unbound_with(&Config::default())
    }

    /// Makes a socket with `config`, without a name and without a peer.
    ///
    /// # Errors
    ///
    /// What socket(2) returns.
    pub fn unbound_with(config: &Config) -> Result<Datagram> {
        Ok(Datagram::of(Socket::unbound(config)?))
    }

    /// Makes a socket that receives what is sent to `name`.
    ///
    /// # Errors
    ///
    /// What bind(2) returns: EADDRINUSE if the name is taken, EACCES without permission.
    pub fn bind(name: impl ToSocketAddr) -> Result<Datagram> {
        Datagram::bind_with(name, &Config::default())
    }

    /// Does as [`Datagram::bind`], for callers that hold a name (std has both).
    ///
    /// # Errors
    ///
    /// As [`Datagram::bind`].
    pub fn bind_addr(name: &SocketAddr) -> Result<Datagram> {
        Datagram::bind(name)
    }

    /// Makes a socket with `config` that receives what is sent to `name`.
    ///
    /// # Errors
    ///
    /// As [`Datagram::bind`].
    pub fn bind_with(name: impl ToSocketAddr, config: &Config) -> Result<Datagram> {
        let socket = Datagram::unbound_with(config)?;
        socket.bind_to(name)?;
        Ok(socket)
    }

    /// Gives the socket a name, so that others can send to it.
    ///
    /// # Errors
    ///
    /// As [`Datagram::bind`]; EINVAL if it already has a name.
    pub fn bind_to(&self, name: impl ToSocketAddr) -> Result<()> {
        let address = name.to_socket_addr().address(Op::Bind)?;
        rustix::net::bind(self.end.fd(), &address).map_err(|errno| Error::new(Op::Bind, errno))?;
        self.end.renamed();
        Ok(())
    }

    /// Gives the socket an unused abstract name if it has none, so that others can answer it (unix(7),
    /// "Autobind feature"). Returns its name.
    ///
    /// # Errors
    ///
    /// What bind(2) returns.
    pub fn autobind(&self) -> Result<SocketAddr> {
        let unnamed = SocketAddrUnix::new_unnamed();
        rustix::net::bind(self.end.fd(), &unnamed).map_err(|errno| Error::new(Op::Bind, errno))?;
        self.end.renamed();
        self.local_addr()
    }

    /// Connects to the socket of that name. From then on `send` goes there, and only datagrams of that socket
    /// are received. A program may call it again for another peer; datagrams of the old peer that were not
    /// received are then lost, as Linux has it.
    ///
    /// # Errors
    ///
    /// What connect(2) returns: ENOENT, ECONNREFUSED, EACCES, EPROTOTYPE; EPERM if that socket is connected
    /// to another one.
    pub fn connect(&self, name: impl ToSocketAddr) -> Result<()> {
        self.end.connect_datagram(Some(&name.to_socket_addr().address(Op::Connect)?))
    }

    /// Does as [`Datagram::connect`], for callers that hold a name (std has both).
    ///
    /// # Errors
    ///
    /// As [`Datagram::connect`].
    pub fn connect_addr(&self, name: &SocketAddr) -> Result<()> {
        self.connect(name)
    }

    /// Removes the peer. From then on the socket receives from any sender.
    ///
    /// # Errors
    ///
    /// What connect(2) returns.
    pub fn disconnect(&self) -> Result<()> {
        self.end.connect_datagram(None)
    }

    /// Sends one datagram to the peer, whole or not at all. Waits for room, unless the socket is non-blocking.
    /// Returns the length of the datagram. A datagram may have no bytes.
    ///
    /// # Errors
    ///
    /// - ENOTCONN: there is no peer.
    /// - EMSGSIZE: the datagram is longer than [`Datagram::max_datagram`].
    /// - EAGAIN: there is no room, or the timeout has passed.
    /// - ECONNREFUSED: the peer is gone. Told once; from then on there is no peer.
    /// - ECONNRESET: the peer left without receiving everything. Told once.
    /// - EPERM: the peer is connected to another socket.
    /// - EPIPE: one side was shut down. No signal comes with it.
    /// - EINTR, EPROTO.
    pub fn send(&self, datagram: &[u8]) -> Result<usize> {
        self.send_with_flags(datagram, SendFlags::empty())
    }

    /// Does as [`Datagram::send`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send`].
    pub fn send_with_flags(&self, datagram: &[u8], flags: SendFlags) -> Result<usize> {
        self.send_msg(&[IoSlice::new(datagram)], SendAncillary::default(), flags)
    }

    /// Sends the slices one after the other, as one datagram.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send`].
    pub fn send_vectored(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        self.send_msg(slices, SendAncillary::default(), SendFlags::empty())
    }

    /// Does as [`Datagram::send_vectored`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send`].
    pub fn send_vectored_with_flags(&self, slices: &[IoSlice<'_>], flags: SendFlags) -> Result<usize> {
        self.send_msg(slices, SendAncillary::default(), flags)
    }

    /// Sends one datagram to the peer with descriptors (SCM_RIGHTS, unix(7)). The peer gets copies of them
    /// with exactly this datagram, which may have no bytes. The call sends everything or nothing.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send`]; EINVAL for more than 253 descriptors, ETOOMANYREFS if more are in flight than
    /// RLIMIT_NOFILE allows.
    pub fn send_fds(&self, datagram: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize> {
        self.send_fds_with_flags(datagram, fds, SendFlags::empty())
    }

    /// Does as [`Datagram::send_fds`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send_fds`].
    pub fn send_fds_with_flags(
        &self,
        datagram: &[u8],
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<usize> {
        self.send_msg(&[IoSlice::new(datagram)], SendAncillary::fds(fds), flags)
    }

    /// Sends the slices one after the other, as one datagram, and what `ancillary` says with it (sendmsg(2)).
    ///
    /// # Errors
    ///
    /// As [`Datagram::send_fds`]; EPERM for credentials that this process may not claim, ESRCH for a process
    /// that does not exist.
    pub fn send_msg(
        &self,
        slices: &[IoSlice<'_>],
        ancillary: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<usize> {
        self.end.send_datagram(slices, ancillary, flags)
    }

    /// Sends one datagram to the socket of that name, whether this socket is connected or not.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send`]; ENOENT, ECONNREFUSED (each time), EACCES, EPROTOTYPE as [`Datagram::connect`].
    pub fn send_to(&self, datagram: &[u8], name: impl ToSocketAddr) -> Result<usize> {
        self.send_to_with_flags(datagram, name, SendFlags::empty())
    }

    /// Does as [`Datagram::send_to`], for callers that hold a name (std has both).
    ///
    /// # Errors
    ///
    /// As [`Datagram::send_to`].
    pub fn send_to_addr(&self, datagram: &[u8], name: &SocketAddr) -> Result<usize> {
        self.send_to(datagram, name)
    }

    /// Does as [`Datagram::send_to`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send_to`].
    pub fn send_to_with_flags(
        &self,
        datagram: &[u8],
        name: impl ToSocketAddr,
        flags: SendFlags,
    ) -> Result<usize> {
        self.send_msg_to(&[IoSlice::new(datagram)], name, SendAncillary::default(), flags)
    }

    /// Sends the slices one after the other, as one datagram, and what `ancillary` says with it, to the socket
    /// of that name (sendmsg(2) with a name).
    ///
    /// # Errors
    ///
    /// As [`Datagram::send_msg`] and [`Datagram::send_to`].
    pub fn send_msg_to(
        &self,
        slices: &[IoSlice<'_>],
        name: impl ToSocketAddr,
        ancillary: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<usize> {
        self.end.send_datagram_to(slices, &name.to_socket_addr(), ancillary, flags)
    }

    /// Receives one datagram and waits for it. Bytes that do not fit into the buffer are dropped. Returns how
    /// many bytes were received.
    ///
    /// # Errors
    ///
    /// EAGAIN (no datagram, or the timeout has passed), ECONNRESET (once, if the peer left without receiving
    /// everything that was sent to it), EINTR, EPROTO.
    pub fn recv(&self, buffer: &mut [u8]) -> Result<usize> {
        self.recv_with_flags(buffer, RecvFlags::empty())
    }

    /// Does as [`Datagram::recv`], with flags. With [`RecvFlags::TRUNC`] it returns the length of the datagram.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    pub fn recv_with_flags(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
        self.recv_vectored_with_flags(&mut [IoSliceMut::new(buffer)], flags)
    }

    /// Does as [`Datagram::recv`], and leaves the datagram there for the next receive (MSG_PEEK).
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    pub fn peek(&self, buffer: &mut [u8]) -> Result<usize> {
        self.recv_with_flags(buffer, RecvFlags::PEEK)
    }

    /// Receives as [`Datagram::recv`] does, into the slices one after the other.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    pub fn recv_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> Result<usize> {
        self.recv_vectored_with_flags(slices, RecvFlags::empty())
    }

    /// Does as [`Datagram::recv_vectored`], with flags, as [`Datagram::recv_with_flags`] has them.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    pub fn recv_vectored_with_flags(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize> {
        Ok(self.end.recv_datagram(slices, flags, None, &mut Call::plain())?.returned(flags))
    }

    /// Does as [`Datagram::recv`], and returns the sender's name. A sender without a name cannot be answered.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    pub fn recv_from(&self, buffer: &mut [u8]) -> Result<(usize, SocketAddr)> {
        self.recv_from_with_flags(buffer, RecvFlags::empty())
    }

    /// Does as [`Datagram::recv_from`], with flags, as [`Datagram::recv_with_flags`] has them.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    pub fn recv_from_with_flags(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<(usize, SocketAddr)> {
        let (received, name) = self.recv_datagram_with_flags(buffer, flags)?;
        Ok((received.returned(flags), name))
    }

    /// Does as [`Datagram::recv_from`], and leaves the datagram there for the next receive (MSG_PEEK).
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    pub fn peek_from(&self, buffer: &mut [u8]) -> Result<(usize, SocketAddr)> {
        self.recv_from_with_flags(buffer, RecvFlags::PEEK)
    }

    /// Does as [`Datagram::recv_from`], and tells whether the datagram was cut, or whether there is none because
    /// this end was shut down.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    pub fn recv_datagram(&self, buffer: &mut [u8]) -> Result<(Received, SocketAddr)> {
        self.recv_datagram_with_flags(buffer, RecvFlags::empty())
    }

    /// Does as [`Datagram::recv_datagram`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    pub fn recv_datagram_with_flags(
        &self,
        buffer: &mut [u8],
        flags: RecvFlags,
    ) -> Result<(Received, SocketAddr)> {
        let mut from = SocketAddr::unnamed();
        let slices = &mut [IoSliceMut::new(buffer)];
        let received = self.end.recv_datagram(slices, flags, Some(&mut from), &mut Call::plain())?;
        Ok((received, from))
    }

    /// Receives one datagram, what was sent with it, and its sender's name. A receive that does not ask for
    /// descriptors closes those of its datagram.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`]. Descriptors that this process has no room for are lost;
    /// [`Ancillary::truncated`] tells.
    pub fn recv_fds(&self, buffer: &mut [u8]) -> Result<(Received, Ancillary, SocketAddr)> {
        self.recv_fds_with_flags(buffer, RecvFlags::empty())
    }

    /// Does as [`Datagram::recv_fds`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv_fds`].
    pub fn recv_fds_with_flags(
        &self,
        buffer: &mut [u8],
        flags: RecvFlags,
    ) -> Result<(Received, Ancillary, SocketAddr)> {
        self.recv_msg(&mut [IoSliceMut::new(buffer)], flags)
    }

    /// Does as [`Datagram::recv_fds`], into the slices one after the other (recvmsg(2)).
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv_fds`].
    pub fn recv_msg(
        &self,
        slices: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<(Received, Ancillary, SocketAddr)> {
        self.end.recv_ancillary(slices, flags)
    }

    /// Reserves room for a datagram of at most `len` bytes where the peer will read it, and waits for that
    /// room. The datagram is what is filled when the slot is committed, which may be nothing. A slot that is
    /// dropped sends nothing.
    ///
    /// The room is in the ring of the peer, or in this sender's lane at a receiver of many. While the slot is
    /// there, other sends to the peer wait or return EAGAIN. Where the kernel carries datagrams, the room is in a
    /// buffer of this process, and keeps nobody out. The kernel reserves nothing, so [`Slot::commit`] may have to
    /// wait for room then, or return EAGAIN.
    ///
    /// A slot is for the peer that the socket has now, and goes to no other one. If the way there changes before
    /// it is committed (the two begin or cease to share memory), `commit` sends what is filled the new way, with
    /// one copy more.
    ///
    /// ```
    /// # fn main() -> onecopy_unix::Result<()> {
    /// use onecopy_unix_dgram::Datagram;
    ///
    /// let (a, b) = Datagram::pair()?;
    /// let mut slot = a.reserve(64)?;
    /// slot.copy_from(b"written where ");
    /// slot.copy_from(b"it is read");
    /// slot.commit()?;
    ///
    /// let (view, received, _from) = b.recv_borrowed(1 << 16)?;
    /// assert_eq!((view.len(), received.full), (24, 24));
    /// assert_eq!(b.stats().user_copied_out, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Datagram::send`]; what only the kernel knows, `commit` tells. It also returns ECANCELED if the socket
    /// was connected to another peer meanwhile, ENOTCONN if it has none any more, and EBUSY in a forked child.
    pub fn reserve(&self, len: usize) -> Result<Slot<'_>> {
        self.reserve_with_flags(len, SendFlags::empty())
    }

    /// Does as [`Datagram::reserve`], with flags, which hold for `commit` too.
    ///
    /// # Errors
    ///
    /// As [`Datagram::reserve`].
    pub fn reserve_with_flags(&self, len: usize, flags: SendFlags) -> Result<Slot<'_>> {
        self.end.reserve(len, flags)
    }

    /// Waits for the next datagram and borrows at most `max` bytes of it; the rest is dropped. Also returns what
    /// [`Datagram::recv_datagram`] does: its length, and its sender's name.
    ///
    /// The bytes lie where their sender has written them, if the two share memory, and the sender gets their room
    /// back when the view is dropped. The view of one lane keeps no other sender waiting. What the kernel carried
    /// is a copy of its own. A view stays as it is when the socket is dropped or connected to another peer, and
    /// does not keep the socket open. Descriptors that came with the datagram are closed, as by recv(2).
    ///
    /// A fork while views of a peer's ring are held leaves the socket to the parent. In a child, a view gives
    /// nothing back.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    pub fn recv_borrowed(&self, max: usize) -> Result<(View, Received, SocketAddr)> {
        self.recv_borrowed_with_flags(max, RecvFlags::empty())
    }

    /// Does as [`Datagram::recv_borrowed`], with [`RecvFlags::DONTWAIT`] (other flags have no meaning here).
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    pub fn recv_borrowed_with_flags(
        &self,
        max: usize,
        flags: RecvFlags,
    ) -> Result<(View, Received, SocketAddr)> {
        self.end.borrow_datagram(max, flags)
    }

    /// Returns the length in bytes of the longest datagram that can be sent to the peer now. It is what the
    /// peer's ring takes, or SO_SNDBUF less 32 if the kernel carries the datagram (net/unix/af_unix.c:
    /// unix_dgram_sendmsg).
    pub fn max_datagram(&self) -> usize {
        self.end.lane().map_or_else(|| self.end.max_record(), |lane| lane.connection().max_record())
    }
}

socket_methods!(Datagram);
credential_methods!(Datagram);
plain_conversions!(Datagram, std::os::unix::net::UnixDatagram);
