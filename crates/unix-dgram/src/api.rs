//! Datagram sockets: what applications hold.

use crate::socket::Socket;
use onecopy_unix::ancillary::attached::Attached;
use onecopy_unix::connection::call::Call;
use onecopy_unix::{Ancillary, Config, Credentials, Error, Name, Op, Received, RecvFlags, Result, SendFlags};
use onecopy_unix::{credential_methods, socket_methods};
use rustix::fd::BorrowedFd;
use rustix::net::SocketAddrUnix;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// A datagram socket. All methods take `&self`: it may be used from several threads. Dropping it closes it; a path that
/// it was bound to stays, as with the kernel's.
///
/// It works as std's `UnixDatagram` does, and speaks with any other. Two that are connected to each other run over
/// shared memory; [`Datagram::path`] tells. What is sent without a connection, or to a plain peer, goes over the kernel.
///
/// Datagrams of one sender come in order. Between senders there is none, except that who was sent first over the kernel
/// comes first.
///
/// It is not passed on to another process as a [`Stream`](onecopy_unix::Stream::into_fds) is: that it shares memory with its peer is
/// bound to a line between the two processes that have met. Where another process is to receive datagrams, it binds a socket
/// of its own; or fork: one that shares memory then belongs to the process that uses it first, and is EBUSY in the other.
#[derive(Debug)]
pub struct Datagram {
    pub(super) end: Arc<Socket>,
}

impl Datagram {
    /// Two sockets that are connected to each other, over shared memory from the first datagram on.
    ///
    /// # Errors
    ///
    /// What socketpair(2) says.
    pub fn pair() -> Result<(Datagram, Datagram)> {
        Datagram::pair_with(&Config::default())
    }

    /// Two sockets that are connected to each other, both with `config`. Where memfds are refused they run over the
    /// kernel.
    ///
    /// # Errors
    ///
    /// What socketpair(2) says.
    pub fn pair_with(config: &Config) -> Result<(Datagram, Datagram)> {
        let (a, b) = Socket::pair(config)?;
        Ok((Datagram { end: a }, Datagram { end: b }))
    }

    /// A socket without a name and without a peer.
    ///
    /// # Errors
    ///
    /// What socket(2) says.
    pub fn unbound() -> Result<Datagram> {
        Datagram::unbound_with(&Config::default())
    }

    /// A socket without a name and without a peer.
    ///
    /// # Errors
    ///
    /// What socket(2) says.
    pub fn unbound_with(config: &Config) -> Result<Datagram> {
        Ok(Datagram { end: Socket::unbound(config)? })
    }

    /// A socket that receives what is sent to `name`.
    ///
    /// # Errors
    ///
    /// What bind(2) says: EADDRINUSE where the name is taken, EACCES without permission.
    pub fn bind(name: impl Into<Name>) -> Result<Datagram> {
        Datagram::bind_with(name, &Config::default())
    }

    /// A socket that receives what is sent to `name`.
    ///
    /// # Errors
    ///
    /// As [`Datagram::bind`].
    pub fn bind_with(name: impl Into<Name>, config: &Config) -> Result<Datagram> {
        let socket = Datagram::unbound_with(config)?;
        socket.bind_to(name)?;
        Ok(socket)
    }

    /// Gives the socket a name, so that it can be sent to.
    ///
    /// # Errors
    ///
    /// As [`Datagram::bind`]; EINVAL where it has one.
    pub fn bind_to(&self, name: impl Into<Name>) -> Result<()> {
        let address = name.into().address(Op::Bind)?;
        rustix::net::bind(&self.end.fd, &address).map_err(|errno| Error::new(Op::Bind, errno))?;
        self.end.renamed();
        Ok(())
    }

    /// Gives the socket an abstract name that nobody has, if it has none, so that it can be answered (unix(7), "Autobind
    /// feature").
    ///
    /// # Errors
    ///
    /// What bind(2) says.
    pub fn autobind(&self) -> Result<Name> {
        let unnamed = SocketAddrUnix::new_unnamed();
        rustix::net::bind(&self.end.fd, &unnamed).map_err(|errno| Error::new(Op::Bind, errno))?;
        self.end.renamed();
        self.local_name()
    }

    /// From here on `send` goes to the socket of that name, and only what that one sends is received. May be called
    /// again, for another peer: what the old one had sent and was not received is lost then, as Linux has it.
    ///
    /// # Errors
    ///
    /// What connect(2) says: ENOENT, ECONNREFUSED, EACCES, EPROTOTYPE; EPERM where that socket is connected to
    /// another one.
    pub fn connect(&self, name: impl Into<Name>) -> Result<()> {
        self.end.connect_datagram(Some(&name.into().address(Op::Connect)?))
    }

    /// From here on the socket has no peer.
    ///
    /// # Errors
    ///
    /// What connect(2) says.
    pub fn disconnect(&self) -> Result<()> {
        self.end.connect_datagram(None)
    }

    /// Sends one datagram to the peer, whole or not at all, and waits for room unless non-blocking or
    /// [`SendFlags::DONTWAIT`]. Returns its length. A datagram of no bytes is one too.
    ///
    /// # Errors
    ///
    /// ENOTCONN (no peer), EMSGSIZE (longer than [`Datagram::max_datagram`]), EAGAIN (no room, or timed out), ECONNREFUSED
    /// (once, when the peer is gone: from then on there is none), ECONNRESET (once, when the peer left without receiving
    /// all), EPERM (the peer is connected to another socket), EPIPE (it was shut down, and never with a signal), EINTR, EPROTO.
    pub fn send(&self, datagram: &[u8], flags: SendFlags) -> Result<usize> {
        self.end.send_datagram(&[IoSlice::new(datagram)], Attached::default(), flags)
    }

    /// Sends the slices one after the other, as one datagram.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send`].
    pub fn send_vectored(&self, slices: &[IoSlice<'_>], flags: SendFlags) -> Result<usize> {
        self.end.send_datagram(slices, Attached::default(), flags)
    }

    /// Sends one datagram to the socket of that name, connected or not.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send`]; ENOENT, ECONNREFUSED (each time), EACCES, EPROTOTYPE as [`Datagram::connect`].
    pub fn send_to(&self, datagram: &[u8], name: impl Into<Name>, flags: SendFlags) -> Result<usize> {
        self.end.send_datagram_to(&[IoSlice::new(datagram)], &name.into(), Attached::default(), flags)
    }

    /// Sends the slices one after the other, as one datagram, to the socket of that name.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send_to`].
    pub fn send_vectored_to(
        &self,
        slices: &[IoSlice<'_>],
        name: impl Into<Name>,
        flags: SendFlags,
    ) -> Result<usize> {
        self.end.send_datagram_to(slices, &name.into(), Attached::default(), flags)
    }

    /// Sends one datagram to the peer with descriptors (SCM_RIGHTS, unix(7)): it gets copies of them with exactly this
    /// datagram, which may have no bytes. All is sent or nothing.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send`]; EINVAL for more than 253 descriptors, ETOOMANYREFS when more are on their way than
    /// RLIMIT_NOFILE allows.
    pub fn send_with(&self, datagram: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) -> Result<usize> {
        self.end.send_datagram(&[IoSlice::new(datagram)], Attached::fds(fds), flags)
    }

    /// As [`Datagram::send_with`], to the socket of that name.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send_with`] and [`Datagram::send_to`].
    pub fn send_with_to(
        &self,
        datagram: &[u8],
        name: impl Into<Name>,
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<usize> {
        self.end.send_datagram_to(&[IoSlice::new(datagram)], &name.into(), Attached::fds(fds), flags)
    }

    /// As [`Datagram::send_with`], by a sender that says who it is (SCM_CREDENTIALS): its process, and a user and a group
    /// that it is, effectively or really; anything else takes a privilege. It holds for this datagram alone.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send_with`]; EPERM for what this process may not claim, ESRCH for a process that is not there.
    pub fn send_as(
        &self,
        datagram: &[u8],
        who: Credentials,
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<usize> {
        let attached = Attached { fds, who: Some(who.into()) };
        self.end.send_datagram(&[IoSlice::new(datagram)], attached, flags)
    }

    /// As [`Datagram::send_as`], to the socket of that name.
    ///
    /// # Errors
    ///
    /// As [`Datagram::send_as`] and [`Datagram::send_to`].
    pub fn send_as_to(
        &self,
        datagram: &[u8],
        name: impl Into<Name>,
        who: Credentials,
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<usize> {
        let attached = Attached { fds, who: Some(who.into()) };
        self.end.send_datagram_to(&[IoSlice::new(datagram)], &name.into(), attached, flags)
    }

    /// Receives one datagram, waiting for it; what does not fit into the buffer is dropped. Returns bytes received, or with
    /// [`RecvFlags::TRUNC`] the length of the datagram.
    ///
    /// # Errors
    ///
    /// EAGAIN (nothing there, or timed out), ECONNRESET (once, when the peer left without receiving all that was sent
    /// to it), EINTR, EPROTO.
    pub fn recv(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
        let slices = &mut [IoSliceMut::new(buffer)];
        let received = self.end.recv_datagram(slices, flags, None, &mut Call::plain())?;
        Ok(if flags.contains(RecvFlags::TRUNC) { received.full } else { received.len })
    }

    /// As [`Datagram::recv`], and tells who sent it. A socket that has no name cannot be answered.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    pub fn recv_from(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<(usize, Name)> {
        let (received, name) = self.recv_datagram(buffer, flags)?;
        Ok((if flags.contains(RecvFlags::TRUNC) { received.full } else { received.len }, name))
    }

    /// As [`Datagram::recv_from`], and tells whether the datagram was cut, or whether this end was shut down and there
    /// is none (recvmsg(2)).
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    pub fn recv_datagram(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<(Received, Name)> {
        self.recv_vectored(&mut [IoSliceMut::new(buffer)], flags)
    }

    /// As [`Datagram::recv_datagram`], into the slices one after the other.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`].
    pub fn recv_vectored(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<(Received, Name)> {
        let mut from = Name::unnamed();
        let received = self.end.recv_datagram(slices, flags, Some(&mut from), &mut Call::plain())?;
        Ok((received, from))
    }

    /// Receives one datagram, what was sent with it, and its sender's name. A receive that does not ask for descriptors
    /// closes those of its datagram.
    ///
    /// # Errors
    ///
    /// As [`Datagram::recv`]. Descriptors that this process has no room for are lost, and
    /// [`Ancillary::truncated`] says so.
    pub fn recv_with(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<(Received, Ancillary, Name)> {
        self.end.recv_ancillary(buffer, flags)
    }

    /// Bytes of the longest datagram that can be sent to the peer now: what its ring takes, or SO_SNDBUF less 32 where
    /// the kernel carries it (net/unix/af_unix.c: unix_dgram_sendmsg).
    pub fn max_datagram(&self) -> usize {
        self.end.lane().map_or_else(|| self.end.max_record(), |lane| lane.end.max_record())
    }
}

socket_methods!(Datagram);
credential_methods!(Datagram);
