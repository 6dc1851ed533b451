//! Streams: what applications hold.

use crate::ancillary::attached::Attached;
use crate::connection::Connection;
use crate::connection::kind::Kind;
use crate::multiprocess::share::sharing_methods;
use crate::multiprocess::transfer::passing_methods;
use crate::{Ancillary, Config, Credentials, Loan, Name, NotSent, RecvFlags, Result, SendFlags, Slot, View};
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::sync::Arc;

/// A connected stream socket. All methods take `&self`: it may be used from several threads, whole sends never
/// interleave. Dropping it closes it.
///
/// It works as std's `UnixStream` does, over shared memory where the peer is a `Stream` too and over the kernel
/// where it is not; [`Stream::path`] tells.
#[derive(Debug)]
pub struct Stream {
    end: Arc<Connection>,
}

impl Stream {
    /// Two connected streams, over shared memory from the first byte on.
    ///
    /// # Errors
    ///
    /// What socketpair(2) says.
    pub fn pair() -> Result<(Stream, Stream)> {
        Stream::pair_with(&Config::default())
    }

    /// Two connected streams, both with `config`. Where memfds are refused they run over the kernel.
    ///
    /// # Errors
    ///
    /// What socketpair(2) says.
    pub fn pair_with(config: &Config) -> Result<(Stream, Stream)> {
        let (a, b) = Connection::pair(Kind::Stream, config)?;
        Ok((Stream { end: a }, Stream { end: b }))
    }

    /// Connects to a listener: of this crate, or any other that listens on a unix stream socket.
    ///
    /// # Errors
    ///
    /// What connect(2) says: ENOENT, ECONNREFUSED, EACCES, EPROTOTYPE.
    pub fn connect(name: impl Into<Name>) -> Result<Stream> {
        Stream::connect_with(name, &Config::default())
    }

    /// Connects to a listener.
    ///
    /// # Errors
    ///
    /// As [`Stream::connect`].
    pub fn connect_with(name: impl Into<Name>, config: &Config) -> Result<Stream> {
        Ok(Stream { end: Connection::connect(Kind::Stream, name.into(), config)? })
    }

    /// What it is inside.
    #[cfg(test)]
    pub(crate) fn end(&self) -> &Arc<Connection> {
        &self.end
    }

    /// The next connection of a listener.
    pub(crate) fn accept(listener: &OwnedFd, config: &Config) -> Result<Stream> {
        Ok(Stream { end: Connection::accept(listener, Kind::Stream, config)? })
    }

    /// Sends. Waits until all is sent, unless non-blocking or [`SendFlags::DONTWAIT`]: then what there is room
    /// for. Returns bytes sent, which are fewer than asked for only when it does not wait, times out, is
    /// interrupted, or loses the peer half way.
    ///
    /// # Errors
    ///
    /// EAGAIN (no room, or timed out), EPIPE (with SIGPIPE unless [`SendFlags::NOSIGNAL`]), EINTR, EPROTO.
    pub fn send(&self, bytes: &[u8], flags: SendFlags) -> Result<usize> {
        self.end.send(&[IoSlice::new(bytes)], flags)
    }

    /// Sends the slices one after the other, as one send.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn send_vectored(&self, slices: &[IoSlice<'_>], flags: SendFlags) -> Result<usize> {
        self.end.send(slices, flags)
    }

    /// Receives what is there, waiting for the first byte. Returns bytes received; 0 at the end of the stream.
    ///
    /// # Errors
    ///
    /// EAGAIN (nothing there, or timed out), ECONNRESET (once, when the peer closed without reading all that was
    /// sent to it, after all that it had sent), EINTR, EPROTO.
    pub fn recv(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
        self.end.recv(&mut [IoSliceMut::new(buffer)], flags)
    }

    /// Receives into the slices one after the other.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_vectored(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize> {
        self.end.recv(slices, flags)
    }

    /// Sends a page of a [`crate::SharedPool`] by reference: no copy, at a cost that does not depend on its size. The peer
    /// receives it like other bytes, in place with [`Stream::recv_borrowed`], and the pool gets the page back once it is
    /// done. Where the peer is a plain one, or maps no pools, the bytes are copied, which [`Stream::stats`] counts.
    /// Returns bytes sent: all of them.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`], with the loan, cut to what was not sent; EXDEV where its pool belongs to another stream.
    pub fn send_loan(&self, loan: Loan) -> std::result::Result<usize, Box<NotSent>> {
        self.send_loan_with(loan, SendFlags::NOSIGNAL)
    }

    /// As [`Stream::send_loan`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::send_loan`].
    #[inline]
    pub fn send_loan_with(&self, loan: Loan, flags: SendFlags) -> std::result::Result<usize, Box<NotSent>> {
        self.end.send_loan(loan, flags)
    }

    /// Sends a chain, one part of a page after the other: those of the pages of a [`crate::SharedPool`] by reference, as
    /// [`Stream::send_loan`], whatever their size. The peer receives them like other bytes, in place with
    /// [`Stream::recv_chain`]; a page comes home once all that was sent of it was dropped there. The chain may carry
    /// notifications (a [`Segment`]): each of its sends is told exactly once that its last page is home
    /// ([`crate::SharedPool::reclaim_within`] waits for that), and whether bytes were copied, or the peer went away.
    ///
    /// Fragments of other pools are copied, as all are where the peer is a plain one or maps no pools; [`Stream::stats`] counts
    /// it. A stream has no records: their ends in the chain say nothing here.
    ///
    /// Returns bytes sent: all of them.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`], with the chain, cut to what was not sent; EXDEV where a pool belongs to another stream; EFAULT for a
    /// device's memory; EINVAL for a checksum that is to be finished; EOPNOTSUPP for descriptors and credentials
    /// in the chain ([`Stream::send_with`] and [`Stream::send_as`] send them). Ends of records mean nothing on a stream.
    pub fn send_chain(
        &self,
        chain: impl Into<Segment<Chain>>,
    ) -> std::result::Result<usize, Box<NotSent<Segment<Chain>>>> {
        self.send_chain_with(chain, SendFlags::NOSIGNAL)
    }

    /// As [`Stream::send_chain`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Stream::send_chain`].
    pub fn send_chain_with(
        &self,
        chain: impl Into<Segment<Chain>>,
        flags: SendFlags,
    ) -> std::result::Result<usize, Box<NotSent<Segment<Chain>>>> {
        self.end.send_chain(chain.into(), flags)
    }

    /// Receives what is there, at most `max` bytes, as a chain, waiting for the first byte. Empty at the end of the stream.
    ///
    /// What was sent by reference stays where it lies, in pages of the peer's ([`Kind::Peer`](onecopy_chain::Kind::Peer)), each
    /// of which goes back when the last fragment in it is dropped, in any order and on any thread. Other bytes are copied
    /// to pages of this process, which [`Stream::stats`] counts ([`Stream::recv_borrowed`] has them in place), with the
    /// descriptors that came as marks. Who sent it is a mark in front, where [`Stream::set_pass_credentials`] asks for it. One call never gives both, so a short count says nothing of what follows: under
    /// edge-triggered epoll(7) go on until EAGAIN. Of descriptors that were lost (MSG_CTRUNC) a chain does not tell; they
    /// are not there. [`Stream::recv_with`] tells.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`]; ENOBUFS while received chains hold 16 MiB of copies.
    pub fn recv_chain(&self, max: usize) -> Result<Chain> {
        self.recv_chain_with(max, RecvFlags::empty())
    }

    /// As [`Stream::recv_chain`], with [`RecvFlags::DONTWAIT`] (other flags have no meaning here).
    ///
    /// # Errors
    ///
    /// As [`Stream::recv_chain`].
    pub fn recv_chain_with(&self, max: usize, flags: RecvFlags) -> Result<Chain> {
        self.end.recv_chain(max, flags)
    }

    /// Sends bytes and, with the first of them, descriptors (SCM_RIGHTS, unix(7)): the peer gets copies of them. They
    /// are all sent or none; without a byte to travel with they are dropped, as Linux does on a stream.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`]; EINVAL for more than 253 descriptors, ETOOMANYREFS when more are on their way than
    /// RLIMIT_NOFILE allows, EMFILE.
    pub fn send_with(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) -> Result<usize> {
        self.end.send_with(bytes, Attached::fds(fds), flags)
    }

    /// As `send_with`, by a sender that says who it is (SCM_CREDENTIALS): its process, and a user and a group that it is,
    /// effectively or really; anything else takes a privilege. It holds for this send alone.
    ///
    /// # Errors
    ///
    /// As `send_with`; EPERM for what this process may not claim, ESRCH for a process that is not there.
    pub fn send_as(
        &self,
        bytes: &[u8],
        who: Credentials,
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<usize> {
        let attached = Attached { fds, who: Some(who.into()) };
        self.end.send_with(bytes, attached, flags)
    }

    /// Receives bytes, and the descriptors that were sent with the first of them. Bytes that were sent before may come
    /// together with them, bytes that were sent after never do, nor do descriptors of two sends. A receive that does
    /// not ask for descriptors closes those that it passes.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`]. Descriptors that this process has no room for are lost, and
    /// [`Ancillary::truncated`] says so.
    pub fn recv_with(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<(usize, Ancillary)> {
        self.end.recv_ancillary(buffer, flags)
    }

    /// Reserves room for `len` bytes (cut to the capacity; see [`Slot::len`]) where the peer will read them, and
    /// waits for it. The way to send with no copy of our own.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn reserve(&self, len: usize) -> Result<Slot<'_>> {
        self.reserve_with(len, SendFlags::NOSIGNAL)
    }

    /// As [`Stream::reserve`], with flags: EAGAIN under [`SendFlags::DONTWAIT`] unless there is room for all.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn reserve_with(&self, len: usize, flags: SendFlags) -> Result<Slot<'_>> {
        Slot::reserve(&self.end, len, flags).map_err(|error| match self.end.finish(Err(error), 0, flags) {
            Err(error) => error,
            Ok(_) => error,
        })
    }

    /// Borrows what is there, at most `max` bytes, waiting for the first byte. Empty at the end of the stream.
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_borrowed(&self, max: usize) -> Result<View> {
        self.recv_borrowed_with(max, RecvFlags::empty())
    }

    /// As [`Stream::recv_borrowed`], with [`RecvFlags::DONTWAIT`] (other flags have no meaning here).
    ///
    /// # Errors
    ///
    /// As [`Stream::recv`].
    pub fn recv_borrowed_with(&self, max: usize, flags: RecvFlags) -> Result<View> {
        View::borrow(&self.end, max, flags)
    }
}

socket_methods!(Stream);
passing_methods!(Stream);
sharing_methods!(Stream);
credential_methods!(Stream);

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv(buffer, RecvFlags::empty())?)
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(self.recv_vectored(slices, RecvFlags::empty())?)
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.send(bytes, SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(self.send_vectored(slices, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(slices)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
