//! Streams, as applications hold them.

use crate::addr::{SocketAddr, ToSocketAddr};
use crate::ancillary::attached::Ancillary;
use crate::ancillary::attached::SendAncillary;
use crate::api::handle::Handle;
use crate::api::slot::Slot;
use crate::byref::pool::Loan;
use crate::config::Config;
use crate::connection::Connection;
use crate::connection::send_references::NotSent;
use crate::connection::view::View;
use crate::core::kind::Kind;
use crate::handshake::rendezvous::Rendezvous;
use crate::multiprocess::arrival::arriving_methods;
use crate::multiprocess::share::sharing_methods;
use crate::multiprocess::transfer::passing_methods;
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use onecopy_chain::notify::zerocopy::Small;
use onecopy_socket::{RecvFlags, Result, SendFlags};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// A connected stream socket. All methods take `&self`: it may be used from several threads, and whole sends
/// never interleave. Dropping it closes it.
///
/// It works as std's `UnixStream` does, over shared memory where the peer is a `Stream` too and over the
/// kernel where it is not; [`Stream::path`] tells.
///
/// ```
/// use onecopy_unix::Stream;
/// use std::io::{Read, Write};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (mut a, mut b) = Stream::pair()?;
/// a.write_all(b"hello")?;
/// let mut buffer = [0; 5];
/// b.read_exact(&mut buffer)?;
/// assert!(&buffer == b"hello" && a.path().is_shared_memory());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Stream {
    end: Arc<Connection>,
    handle: Handle,
}

impl Stream {
    pub(crate) fn of(end: Arc<Connection>) -> Stream {
        Stream { end, handle: Handle::first() }
    }

    fn plain(fd: OwnedFd) -> Stream {
        Stream::of(Connection::plain(fd, Kind::Stream))
    }

    /// Makes two connected streams, over shared memory from the first byte on.
    ///
    /// # Errors
    ///
    /// What socketpair(2) says.
    pub fn pair() -> Result<(Stream, Stream)> {
        Stream::pair_with(&Config::default())
    }

    /// Makes two connected streams, both with `config`. Where memfds are refused they run over the kernel.
    ///
    /// # Errors
    ///
    /// What socketpair(2) says.
    pub fn pair_with(config: &Config) -> Result<(Stream, Stream)> {
        let (a, b) = Connection::pair(Kind::Stream, config)?;
        Ok((Stream::of(a), Stream::of(b)))
    }

    /// Connects to a listener: of this crate, or any other that listens on a unix stream socket.
    ///
    /// # Errors
    ///
    /// What connect(2) says: ENOENT, ECONNREFUSED, EACCES, EPROTOTYPE.
    pub fn connect(name: impl ToSocketAddr) -> Result<Stream> {
        Stream::connect_with(name, &Config::default())
    }

    /// Connects to a listener.
    ///
    /// # Errors
    ///
    /// As [`Stream::connect`].
    pub fn connect_with(name: impl ToSocketAddr, config: &Config) -> Result<Stream> {
        Ok(Stream::of(Connection::connect(Kind::Stream, None, name.to_socket_addr(), config)?))
    }

    /// Does as [`Stream::connect`], for callers that hold a name (std has both).
    ///
    /// # Errors
    ///
    /// As [`Stream::connect`].
    pub fn connect_addr(name: &SocketAddr) -> Result<Stream> {
        Stream::connect(name)
    }

    /// Binds to the name `local`, so that the listener sees who connects, and connects. Such a connection stays
    /// with the kernel: a listener knows a client that can share memory by the name that it is given otherwise.
    ///
    /// # Errors
    ///
    /// What bind(2) says of `local`: EADDRINUSE, EACCES; as [`Stream::connect`].
    pub fn connect_from(local: impl ToSocketAddr, name: impl ToSocketAddr) -> Result<Stream> {
        Stream::connect_from_with(local, name, &Config::default())
    }

    /// Does as [`Stream::connect_from`], with `config`.
    ///
    /// # Errors
    ///
    /// As [`Stream::connect_from`].
    pub fn connect_from_with(
        local: impl ToSocketAddr,
        name: impl ToSocketAddr,
        config: &Config,
    ) -> Result<Stream> {
        let (local, name) = (local.to_socket_addr(), name.to_socket_addr());
        Ok(Stream::of(Connection::connect(Kind::Stream, Some(local), name, config)?))
    }

    /// Returns the connection inside.
    #[cfg(test)]
    pub(crate) fn end(&self) -> &Arc<Connection> {
        &self.end
    }

    /// Takes the next connection of a listener.
    pub(crate) fn accept(
        listener: &OwnedFd,
        rendezvous: &Arc<Rendezvous>,
        config: &Config,
    ) -> Result<(Stream, SocketAddr)> {
        let (end, name) = Connection::accept(listener, Kind::Stream, rendezvous, config)?;
        Ok((Stream::of(end), name))
    }

    /// Sends, and waits until all is sent. If non-blocking, sends what there is room for. Returns how many bytes
    /// were sent. They are fewer than asked for only when the send does not wait, times out, is interrupted, or
    /// loses the peer half way.
    ///
    /// # Errors
    ///
    /// EAGAIN (no room, or timed out), EPIPE (with SIGPIPE only if [`SendFlags::SIGPIPE`] asks for it), EINTR,
    /// EPROTO.
    pub fn send(&self, bytes: &[u8]) -> Result<usize> {
        self.send_with_flags(bytes, SendFlags::empty())
    }

    /// Does as [`Stream::send`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn send_with_flags(&self, bytes: &[u8], flags: SendFlags) -> Result<usize> {
        self.end.send(&[IoSlice::new(bytes)], flags)
    }

    /// Sends the slices one after the other, as one send.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn send_vectored(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        self.send_vectored_with_flags(slices, SendFlags::empty())
    }

    /// Does as [`Stream::send_vectored`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn send_vectored_with_flags(&self, slices: &[IoSlice<'_>], flags: SendFlags) -> Result<usize> {
        self.end.send(slices, flags)
    }

    /// Sends bytes and, with the first of them, descriptors (SCM_RIGHTS, unix(7)). The peer gets copies of
    /// them. They are all sent or none. Without a byte to travel with they are dropped, as Linux does on a
    /// stream.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`]; EINVAL for more than 253 descriptors, ETOOMANYREFS when more are on their way
    /// than RLIMIT_NOFILE allows, EMFILE.
    pub fn send_fds(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize> {
        self.send_fds_with_flags(bytes, fds, SendFlags::empty())
    }

    /// Does as [`Stream::send_fds`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::send_fds`].
    pub fn send_fds_with_flags(
        &self,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<usize> {
        self.end.send_msg(&[IoSlice::new(bytes)], SendAncillary::fds(fds), flags)
    }

    /// Sends the slices one after the other, and what `ancillary` says with the first of their bytes
    /// (sendmsg(2)).
    ///
    /// # Errors
    ///
    /// As [`Stream::send_fds`]; EPERM for credentials that this process may not claim, ESRCH for a process that
    /// is not there.
    pub fn send_msg(
        &self,
        slices: &[IoSlice<'_>],
        ancillary: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<usize> {
        self.end.send_msg(slices, ancillary, flags)
    }

    /// Waits for the first byte and receives what is there. Returns how many bytes were received; 0 at the
    /// end of the stream.
    ///
    /// # Errors
    ///
    /// EAGAIN (nothing there, or timed out), ECONNRESET (once, when the peer closed without reading all that
    /// was sent to it, after all that it had sent), EINTR, EPROTO.
    pub fn recv(&self, buffer: &mut [u8]) -> Result<usize> {
        self.recv_with_flags(buffer, RecvFlags::empty())
    }

    /// Does as [`Stream::recv`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_with_flags(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
        self.end.recv(&mut [IoSliceMut::new(buffer)], flags)
    }

    /// Does as [`Stream::recv`], and leaves the bytes there for the next receive (MSG_PEEK).
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn peek(&self, buffer: &mut [u8]) -> Result<usize> {
        self.recv_with_flags(buffer, RecvFlags::PEEK)
    }

    /// Receives into the slices one after the other.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> Result<usize> {
        self.recv_vectored_with_flags(slices, RecvFlags::empty())
    }

    /// Does as [`Stream::recv_vectored`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_vectored_with_flags(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize> {
        self.end.recv(slices, flags)
    }

    /// Receives bytes, and the descriptors that were sent with the first of them. Bytes that were sent before
    /// may come together with them. Bytes that were sent after never do, nor do descriptors of two sends. A
    /// receive that does not ask for descriptors closes those that it passes.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`]. Descriptors that this process has no room for are lost, and
    /// [`Ancillary::truncated`] says so.
    pub fn recv_fds(&self, buffer: &mut [u8]) -> Result<(usize, Ancillary)> {
        self.recv_fds_with_flags(buffer, RecvFlags::empty())
    }

    /// Does as [`Stream::recv_fds`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv_fds`].
    pub fn recv_fds_with_flags(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<(usize, Ancillary)> {
        self.end.recv_ancillary(&mut [IoSliceMut::new(buffer)], flags)
    }

    /// Does as [`Stream::recv_fds`], into the slices one after the other (recvmsg(2)).
    ///
    /// # Errors
    ///
    /// As [`Stream::recv_fds`].
    pub fn recv_msg(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<(usize, Ancillary)> {
        self.end.recv_ancillary(slices, flags)
    }

    /// Sends a page of a [`crate::SharedPool`] by reference. There is no copy, and the cost does not depend
    /// on the page's size. The peer receives it like other bytes, in place with [`Stream::recv_borrowed`],
    /// and the pool gets the page back once the peer is done. Returns how many bytes were sent: all of them.
    ///
    /// Small loans are copied, and their pages are the pool's again at once, where that was found to be faster on this stream
    /// ([`Stream::set_small`]); and all are where the peer is plain, or maps no pools. [`Stream::stats`] counts what was sent by reference, and
    /// what was copied instead.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`], with the loan, cut to what was not sent; EXDEV where its pool belongs to another
    /// stream.
    pub fn send_loan(&self, loan: Loan) -> std::result::Result<usize, Box<NotSent>> {
        self.send_loan_with_flags(loan, SendFlags::empty())
    }

    /// Sets which loans are copied although they could be lent. [`Small::Measured`], as it is by itself, compares the two now and then on the loans
    /// of up to 16 KiB that are sent, thousands of one size at a time, and copies those for which it takes less time; it lends them all where
    /// [`Stream::set_policy`] names the stores of copies. [`Small::Below`] copies those of fewer bytes: `Small::Below(0)` none.
    pub fn set_small(&self, small: Small) {
        let settings = self.end.settings();
        settings.set_copied_below(match small {
            Small::Measured => None,
            Small::Below(bytes) => Some(bytes),
        });
        settings.set_copied_up_to(None);
    }

    /// Returns which loans are copied although they could be lent.
    pub fn small(&self) -> Small {
        self.end.settings().copied_below().map_or(Small::Measured, Small::Below)
    }

    /// Returns up to how many bytes loans were found faster copied on this stream, and are; 0: they are all lent. None: nothing was found out so far,
    /// or [`Stream::set_small`] decides.
    pub fn copied_up_to(&self) -> Option<u32> {
        let settings = self.end.settings();
        settings.copied_below().is_none().then(|| settings.copied_up_to()).flatten()
    }

    /// Does as [`Stream::send_loan`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::send_loan`].
    #[inline]
    pub fn send_loan_with_flags(
        &self,
        loan: Loan,
        flags: SendFlags,
    ) -> std::result::Result<usize, Box<NotSent>> {
        self.end.send_loan(loan, flags)
    }

    /// Sends a chain, one part of a page after the other. Pages of a [`crate::SharedPool`] go by reference,
    /// as with [`Stream::send_loan`], whatever their size. The peer receives them like other bytes, in place
    /// with [`Stream::recv_chain`]. A page comes home once the peer has dropped all that was sent of it.
    ///
    /// The chain may carry notifications (a [`Segment`]). Each of its sends is told exactly once that its
    /// last page is home ([`crate::SharedPool::reclaim_within`] waits for that), and whether bytes were
    /// copied, or the peer went away.
    ///
    /// Fragments of other pools are copied, as all are where the peer is plain or maps no pools;
    /// [`Stream::stats`] counts it. A stream has no records: their ends in the chain mean nothing here.
    ///
    /// Returns how many bytes were sent: all of them.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`], with the chain, cut to what was not sent; EXDEV where a pool belongs to another
    /// stream; EFAULT for a device's memory; EINVAL for a checksum that is to be finished; EOPNOTSUPP for
    /// descriptors and credentials in the chain ([`Stream::send_msg`] sends them).
    pub fn send_chain(
        &self,
        chain: impl Into<Segment<Chain>>,
    ) -> std::result::Result<usize, Box<NotSent<Segment<Chain>>>> {
        self.send_chain_with_flags(chain, SendFlags::empty())
    }

    /// Does as [`Stream::send_chain`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::send_chain`].
    pub fn send_chain_with_flags(
        &self,
        chain: impl Into<Segment<Chain>>,
        flags: SendFlags,
    ) -> std::result::Result<usize, Box<NotSent<Segment<Chain>>>> {
        self.end.send_chain(chain.into(), flags)
    }

    /// Waits for the first byte and receives what is there, at most `max` bytes, as a chain. Empty at the end
    /// of the stream.
    ///
    /// What was sent by reference stays where it is, in pages of the peer's
    /// ([`Kind::Peer`](onecopy_chain::Kind::Peer)). Each of them goes back when the last fragment in it is
    /// dropped, in any order and on any thread. Other bytes are copied to pages of this process, which
    /// [`Stream::stats`] counts ([`Stream::recv_borrowed`] reads them in place). The descriptors that came
    /// with them are marks in the chain. The sender's identity is a mark in front, where
    /// [`Stream::set_pass_credentials`] asks for it.
    ///
    /// One call never gives both kinds of bytes. So a short count says nothing of what follows: under
    /// edge-triggered epoll(7) go on until EAGAIN. A chain does not tell of descriptors that were lost
    /// (MSG_CTRUNC); they are just not there. [`Stream::recv_fds`] tells.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`]; ENOBUFS while received chains hold 16 MiB of copies.
    pub fn recv_chain(&self, max: usize) -> Result<Chain> {
        self.recv_chain_with_flags(max, RecvFlags::empty())
    }

    /// Does as [`Stream::recv_chain`], with [`RecvFlags::DONTWAIT`] (other flags have no meaning here).
    ///
    /// # Errors
    ///
    /// As [`Stream::recv_chain`].
    pub fn recv_chain_with_flags(&self, max: usize, flags: RecvFlags) -> Result<Chain> {
        self.end.recv_chain(max, flags)
    }

    /// Reserves room for `len` bytes (cut to the capacity; see [`Slot::len`]) where the peer will read them,
    /// and waits for it. This is the way to send without a copy in user space.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn reserve(&self, len: usize) -> Result<Slot<'_>> {
        self.reserve_with_flags(len, SendFlags::empty())
    }

    /// Does as [`Stream::reserve`], with flags: EAGAIN under [`SendFlags::DONTWAIT`] unless there is room for
    /// all.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn reserve_with_flags(&self, len: usize, flags: SendFlags) -> Result<Slot<'_>> {
        Slot::reserve(&self.end, len, flags).map_err(|error| match self.end.finish(Err(error), 0, flags) {
            Err(error) => error,
            Ok(_) => error,
        })
    }

    /// Waits for the first byte and borrows what is there, at most `max` bytes. Empty at the end of the
    /// stream.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_borrowed(&self, max: usize) -> Result<View> {
        self.recv_borrowed_with_flags(max, RecvFlags::empty())
    }

    /// Does as [`Stream::recv_borrowed`], with [`RecvFlags::DONTWAIT`] (other flags have no meaning here).
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_borrowed_with_flags(&self, max: usize, flags: RecvFlags) -> Result<View> {
        View::borrow(&self.end, max, flags)
    }
}

socket_methods!(Stream);
passing_methods!(Stream);
arriving_methods!(Stream);
sharing_methods!(Stream);
credential_methods!(Stream);
upgrade_methods!(Stream);
plain_conversions!(Stream, std::os::unix::net::UnixStream);
