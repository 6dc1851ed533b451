//! Seqpacket sockets, as applications hold them.
//!
//! A record is a frame in the ring ([`onecopy_ring::record`]), with the same positions, doorbells and borrows
//! as for streams. The control socket is a seqpacket socket too. So doorbells and fillers are records on it,
//! and each direction switches at an exact record.

use crate::addr::{SocketAddr, ToSocketAddr};
use crate::ancillary::attached::Ancillary;
use crate::ancillary::attached::SendAncillary;
use crate::api::handle::Handle;
use crate::api::slot::Slot;
use crate::byref::pool::Loan;
use crate::config::Config;
use crate::connection::Connection;
use crate::connection::received::Received;
use crate::connection::send_references::NotSent;
use crate::connection::view::View;
use crate::core::kind::Kind;
use crate::handshake::rendezvous::Rendezvous;
use crate::multiprocess::arrival::arriving_methods;
use crate::multiprocess::share::sharing_methods;
use crate::multiprocess::transfer::passing_methods;
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use onecopy_socket::{ReceivedFlags, RecvFlags, Result, SendFlags};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// A connected seqpacket socket. All methods take `&self`: it may be used from several threads, and records
/// never interleave. Dropping it closes it.
///
/// It works as a SOCK_SEQPACKET socket of Linux does ([`crate::Records::Atomic`]) or as FreeBSD's
/// ([`crate::Records::Stream`]). It goes over shared memory where the peer is a `SeqPacket` too. Where the
/// peer is not, atomic records go over the kernel; [`SeqPacket::path`] tells.
///
/// ```
/// use onecopy_unix::SeqPacket;
/// use std::os::fd::AsFd;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (a, b) = SeqPacket::pair()?;
/// a.send(b"job 1")?;
/// a.send_fds(b"job 2", &[std::io::stderr().as_fd()])?;
/// a.send(b"")?; // a record of no bytes is one too
/// let mut buffer = [0; 100];
/// assert_eq!(b.recv(&mut buffer)?, 5);
/// let (record, with) = b.recv_fds(&mut buffer)?;
/// assert_eq!((&buffer[..record.len], with.fds.len()), (&b"job 2"[..], 1));
/// assert!(!b.recv_record(&mut buffer)?.is_end());
/// drop(a);
/// assert!(b.recv_record(&mut buffer)?.is_end());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SeqPacket {
    end: Arc<Connection>,
    handle: Handle,
}

impl SeqPacket {
    pub(crate) fn of(end: Arc<Connection>) -> SeqPacket {
        SeqPacket { end, handle: Handle::first() }
    }

    /// Returns the connection inside.
    #[cfg(test)]
    pub(crate) fn end(&self) -> &Arc<Connection> {
        &self.end
    }

    fn plain(fd: OwnedFd) -> SeqPacket {
        SeqPacket::of(Connection::plain(fd, Kind::SeqPacket))
    }

    /// Makes two connected sockets, over shared memory from the first record on.
    ///
    /// # Errors
    ///
    /// What socketpair(2) says.
    pub fn pair() -> Result<(SeqPacket, SeqPacket)> {
        SeqPacket::pair_with(&Config::default())
    }

    /// Makes two connected sockets, both with `config`. Where memfds are refused they run over the kernel.
    ///
    /// # Errors
    ///
    /// What socketpair(2) says; EPROTONOSUPPORT for stream records without memfds.
    pub fn pair_with(config: &Config) -> Result<(SeqPacket, SeqPacket)> {
        let (a, b) = Connection::pair(Kind::SeqPacket, config)?;
        Ok((SeqPacket::of(a), SeqPacket::of(b)))
    }

    /// Connects to a listener: of this crate, or any other that listens on a unix seqpacket socket.
    ///
    /// # Errors
    ///
    /// What connect(2) says: ENOENT, ECONNREFUSED, EACCES, EPROTOTYPE.
    pub fn connect(name: impl ToSocketAddr) -> Result<SeqPacket> {
        SeqPacket::connect_with(name, &Config::default())
    }

    /// Connects to a listener. With stream records, sending waits until the listener has accepted, and fails
    /// with EPROTONOSUPPORT where it does not keep records in that way.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::connect`]; EPROTONOSUPPORT for stream records over [`crate::Transport::Kernel`].
    pub fn connect_with(name: impl ToSocketAddr, config: &Config) -> Result<SeqPacket> {
        Ok(SeqPacket::of(Connection::connect(Kind::SeqPacket, None, name.to_socket_addr(), config)?))
    }

    /// Does as [`SeqPacket::connect`], for callers that hold a name (std has both).
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::connect`].
    pub fn connect_addr(name: &SocketAddr) -> Result<SeqPacket> {
        SeqPacket::connect(name)
    }

    /// Binds to the name `local`, so that the listener sees who connects, and connects. Such a connection stays
    /// with the kernel: a listener knows a client that can share memory by the name that it is given otherwise.
    ///
    /// # Errors
    ///
    /// What bind(2) says of `local`: EADDRINUSE, EACCES; as [`SeqPacket::connect`]; EPROTONOSUPPORT for stream
    /// records, which need shared memory.
    pub fn connect_from(local: impl ToSocketAddr, name: impl ToSocketAddr) -> Result<SeqPacket> {
        SeqPacket::connect_from_with(local, name, &Config::default())
    }

    /// Does as [`SeqPacket::connect_from`], with `config`.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::connect_from`].
    pub fn connect_from_with(
        local: impl ToSocketAddr,
        name: impl ToSocketAddr,
        config: &Config,
    ) -> Result<SeqPacket> {
        let (local, name) = (local.to_socket_addr(), name.to_socket_addr());
        Ok(SeqPacket::of(Connection::connect(Kind::SeqPacket, Some(local), name, config)?))
    }

    /// Takes the next connection of a listener.
    pub(crate) fn accept(
        listener: &OwnedFd,
        rendezvous: &Arc<Rendezvous>,
        config: &Config,
    ) -> Result<(SeqPacket, SocketAddr)> {
        let (end, name) = Connection::accept(listener, Kind::SeqPacket, rendezvous, config)?;
        Ok((SeqPacket::of(end), name))
    }

    /// Sends one record, whole or not at all, and waits for room unless non-blocking. Returns its length. A
    /// record of no bytes is one too.
    ///
    /// With stream records ([`crate::Records::Stream`]) it sends a part, which ends a record with
    /// [`SendFlags::EOR`]. Then the count may be short, as for streams.
    ///
    /// # Errors
    ///
    /// EMSGSIZE (longer than [`SeqPacket::max_record`]), EAGAIN (no room, or timed out), EPIPE (and never a
    /// signal, as on Linux), ECONNRESET (once, when the peer closed without reading all), EINTR, EPROTO.
    pub fn send(&self, record: &[u8]) -> Result<usize> {
        self.send_with_flags(record, SendFlags::empty())
    }

    /// Does as [`SeqPacket::send`], with flags.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send`].
    pub fn send_with_flags(&self, record: &[u8], flags: SendFlags) -> Result<usize> {
        self.end.send_record(&[IoSlice::new(record)], flags)
    }

    /// Sends the slices one after the other, as one record.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send`].
    pub fn send_vectored(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        self.send_vectored_with_flags(slices, SendFlags::empty())
    }

    /// Does as [`SeqPacket::send_vectored`], with flags.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send`].
    pub fn send_vectored_with_flags(&self, slices: &[IoSlice<'_>], flags: SendFlags) -> Result<usize> {
        self.end.send_record(slices, flags)
    }

    /// Sends one record with descriptors (SCM_RIGHTS, unix(7)). The peer gets copies of them with exactly
    /// this record, which may have no bytes. All is sent or nothing. With stream records they travel with the
    /// first byte of this part, or with the end of a record; with neither they are dropped.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send`]; EINVAL for more than 253 descriptors, ETOOMANYREFS when more are on their way
    /// than RLIMIT_NOFILE allows, EMFILE.
    pub fn send_fds(&self, record: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize> {
        self.send_fds_with_flags(record, fds, SendFlags::empty())
    }

    /// Does as [`SeqPacket::send_fds`], with flags.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send_fds`].
    pub fn send_fds_with_flags(
        &self,
        record: &[u8],
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<usize> {
        self.end.send_record_with(&[IoSlice::new(record)], SendAncillary::fds(fds), flags)
    }

    /// Sends the slices one after the other, as one record, and what `ancillary` says with it (sendmsg(2)).
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send_fds`]; EPERM for credentials that this process may not claim, ESRCH for a process
    /// that is not there.
    pub fn send_msg(
        &self,
        slices: &[IoSlice<'_>],
        ancillary: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<usize> {
        self.end.send_record_with(slices, ancillary, flags)
    }

    /// Waits for one record and receives it. What does not fit into the buffer is dropped. Returns how many
    /// bytes were received. It returns 0 at the end too; [`SeqPacket::recv_record`] tells the two apart.
    ///
    /// With stream records it receives what is there, never past the end of a record.
    ///
    /// # Errors
    ///
    /// EAGAIN (nothing there, or timed out), ECONNRESET (once, when the peer closed without reading all that
    /// was sent to it, before what it had sent), EINTR, EPROTO.
    pub fn recv(&self, buffer: &mut [u8]) -> Result<usize> {
        self.recv_with_flags(buffer, RecvFlags::empty())
    }

    /// Does as [`SeqPacket::recv`], with flags. With [`RecvFlags::TRUNC`] it returns the length of the record.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv`].
    pub fn recv_with_flags(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
        self.recv_vectored_with_flags(&mut [IoSliceMut::new(buffer)], flags)
    }

    /// Does as [`SeqPacket::recv`], and leaves the record there for the next receive (MSG_PEEK).
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv`].
    pub fn peek(&self, buffer: &mut [u8]) -> Result<usize> {
        self.recv_with_flags(buffer, RecvFlags::PEEK)
    }

    /// Receives as [`SeqPacket::recv`] does, into the slices one after the other.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv`].
    pub fn recv_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> Result<usize> {
        self.recv_vectored_with_flags(slices, RecvFlags::empty())
    }

    /// Does as [`SeqPacket::recv_vectored`], with flags, as [`SeqPacket::recv_with_flags`] has them.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv`].
    pub fn recv_vectored_with_flags(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize> {
        Ok(self.end.recv_record(slices, flags)?.returned(flags))
    }

    /// Receives as [`SeqPacket::recv`] does, and tells whether the record was cut, ended, or never came.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv`].
    pub fn recv_record(&self, buffer: &mut [u8]) -> Result<Received> {
        self.recv_record_with_flags(buffer, RecvFlags::empty())
    }

    /// Does as [`SeqPacket::recv_record`], with flags.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv`].
    pub fn recv_record_with_flags(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<Received> {
        self.end.recv_record(&mut [IoSliceMut::new(buffer)], flags)
    }

    /// Receives one record and the descriptors that were sent with it. A receive that does not ask for
    /// descriptors closes those of its record. With stream records, descriptors come with the first bytes
    /// that they were sent with, never with others.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv`]. Descriptors that this process has no room for are lost, and
    /// [`Ancillary::truncated`] says so.
    pub fn recv_fds(&self, buffer: &mut [u8]) -> Result<(Received, Ancillary)> {
        self.recv_fds_with_flags(buffer, RecvFlags::empty())
    }

    /// Does as [`SeqPacket::recv_fds`], with flags.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv_fds`].
    pub fn recv_fds_with_flags(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<(Received, Ancillary)> {
        self.end.recv_record_ancillary(&mut [IoSliceMut::new(buffer)], flags)
    }

    /// Does as [`SeqPacket::recv_fds`], into the slices one after the other (recvmsg(2)).
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv_fds`].
    pub fn recv_msg(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<(Received, Ancillary)> {
        self.end.recv_record_ancillary(slices, flags)
    }

    /// Reserves room for a record of at most `len` bytes where the peer will read it, and waits for it. The
    /// record is what is filled when the slot is committed.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send`].
    pub fn reserve(&self, len: usize) -> Result<Slot<'_>> {
        self.reserve_with_flags(len, SendFlags::empty())
    }

    /// Does as [`SeqPacket::reserve`], with flags.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send`].
    pub fn reserve_with_flags(&self, len: usize, flags: SendFlags) -> Result<Slot<'_>> {
        Slot::reserve(&self.end, len, flags).map_err(|error| match self.end.finish(Err(error), 0, flags) {
            Err(error) => error,
            Ok(_) => error,
        })
    }

    /// Waits for the next record and borrows at most `max` bytes of it; the rest is dropped. With stream
    /// records it borrows what is there of the record. The flags tell the end from a record of no bytes.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv`].
    pub fn recv_borrowed(&self, max: usize) -> Result<(View, ReceivedFlags)> {
        self.recv_borrowed_with_flags(max, RecvFlags::empty())
    }

    /// Does as [`SeqPacket::recv_borrowed`], with [`RecvFlags::DONTWAIT`] (other flags have no meaning here).
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv`].
    pub fn recv_borrowed_with_flags(&self, max: usize, flags: RecvFlags) -> Result<(View, ReceivedFlags)> {
        self.end.borrow_record(max, flags)
    }

    /// Sends a page of a [`crate::SharedPool`] by reference, as one record. There is no copy, and the cost
    /// does not depend on the page's size, which [`SeqPacket::max_record`] does not bound. The peer receives
    /// it as any other record, in place with [`SeqPacket::recv_borrowed`], and the pool gets the page back
    /// once the peer is done. Where the peer is plain, or maps no pools, it is a copy, which
    /// [`SeqPacket::stats`] counts and `max_record` bounds. Returns its length.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send_chain`], with the loan as a chain, of which nothing was sent.
    pub fn send_loan(&self, loan: Loan) -> std::result::Result<usize, Box<NotSent<Segment<Chain>>>> {
        self.send_loan_with_flags(loan, SendFlags::empty())
    }

    /// Does as [`SeqPacket::send_loan`], with flags.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send_loan`].
    pub fn send_loan_with_flags(
        &self,
        loan: Loan,
        flags: SendFlags,
    ) -> std::result::Result<usize, Box<NotSent<Segment<Chain>>>> {
        self.end.send_record_chain(&[], loan.into(), flags)
    }

    /// Sends one record: the bytes of `head`, which are copied, and behind them those of a chain, each part
    /// of a page of a [`crate::SharedPool`] by reference. A fragment of another pool is copied, and so is
    /// what comes before it in the chain. All of the chain is copied where the peer is plain or maps no
    /// pools. [`SeqPacket::stats`] counts it. All is sent, or nothing. The chain may carry notifications (a
    /// [`Segment`]), as with [`crate::Stream::send_chain`].
    ///
    /// A receive that asks for bytes copies them out of the pages, and finds no difference.
    /// [`SeqPacket::recv_chain`] gets the pages themselves. Returns the record's length.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send`], with the chain, of which nothing was sent; EMSGSIZE also for more than 256
    /// parts of pages; EAGAIN also while the peer holds so many pages that there are no places for these;
    /// EXDEV where a pool belongs to another socket; EFAULT for a device's memory; EINVAL for a checksum that
    /// is to be finished; EOPNOTSUPP for descriptors and credentials in the chain, a record that ends within
    /// it, and for stream records.
    pub fn send_chain(
        &self,
        head: &[u8],
        chain: impl Into<Segment<Chain>>,
    ) -> std::result::Result<usize, Box<NotSent<Segment<Chain>>>> {
        self.send_chain_with_flags(head, chain, SendFlags::empty())
    }

    /// Does as [`SeqPacket::send_chain`], with flags.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::send_chain`].
    pub fn send_chain_with_flags(
        &self,
        head: &[u8],
        chain: impl Into<Segment<Chain>>,
        flags: SendFlags,
    ) -> std::result::Result<usize, Box<NotSent<Segment<Chain>>>> {
        self.end.send_record_chain(head, chain.into(), flags)
    }

    /// Waits for one record and receives it. What was sent of it as bytes goes into `head`. What was sent by
    /// reference comes behind those, as a chain of the peer's pages themselves. Each page goes back when the
    /// last fragment in it is dropped, in any order and on any thread. Bytes that have no room in `head` are
    /// dropped ([`ReceivedFlags::TRUNC`]). [`Received::len`] counts those in `head`, [`Received::full`] all
    /// of the record.
    ///
    /// A record without references, and any stream record, is received as [`SeqPacket::recv_record`] does,
    /// with an empty chain.
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv`]; EOVERFLOW for pages of 4 GiB and more, which a buffer can take.
    pub fn recv_chain(&self, head: &mut [u8]) -> Result<(Received, Chain)> {
        self.recv_chain_with_flags(head, RecvFlags::empty())
    }

    /// Does as [`SeqPacket::recv_chain`], with [`RecvFlags::DONTWAIT`] (other flags have no meaning here).
    ///
    /// # Errors
    ///
    /// As [`SeqPacket::recv_chain`].
    pub fn recv_chain_with_flags(&self, head: &mut [u8], flags: RecvFlags) -> Result<(Received, Chain)> {
        self.end.recv_record_chain(head, flags)
    }

    /// Returns the length of the longest record that can be sent now: what the peer's ring takes, or
    /// SO_SNDBUF less 32 where the kernel carries it (net/unix/af_unix.c: unix_dgram_sendmsg).
    pub fn max_record(&self) -> usize {
        self.end.max_record()
    }
}

socket_methods!(SeqPacket);
passing_methods!(SeqPacket);
arriving_methods!(SeqPacket);
sharing_methods!(SeqPacket);
credential_methods!(SeqPacket);
upgrade_methods!(SeqPacket);
plain_conversions!(SeqPacket);
