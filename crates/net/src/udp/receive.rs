//! Datagrams in.

use super::{Meta, Socket};
use crate::view::View;
use onecopy_socket::{RecvFlags, Result};
use std::io::IoSliceMut;
use std::net::SocketAddr;

impl Socket {
    /// Waits for a datagram and copies it into `buffer`; what does not fit is lost. Returns how many bytes: 0 for an empty one.
    ///
    /// # Errors
    ///
    /// What was said of a datagram that was sent (ECONNREFUSED, EHOSTUNREACH); EAGAIN where it is not to wait, or its limit has come, EINTR.
    pub fn recv(&self, buffer: &mut [u8]) -> Result<usize> {
        self.recv_with_flags(buffer, RecvFlags::empty())
    }

    /// As [`Socket::recv`], with flags. With [`RecvFlags::TRUNC`] it returns the datagram's whole length; WAITALL has no meaning.
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`].
    pub fn recv_with_flags(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
        Ok(self.recv_from_with_flags(buffer, flags)?.0)
    }

    /// As [`Socket::recv`], and says who sent it.
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`].
    pub fn recv_from(&self, buffer: &mut [u8]) -> Result<(usize, SocketAddr)> {
        self.recv_from_with_flags(buffer, RecvFlags::empty())
    }

    /// As [`Socket::recv_from`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`].
    pub fn recv_from_with_flags(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<(usize, SocketAddr)> {
        let meta = self.recv_msg(&mut [IoSliceMut::new(buffer)], flags)?;
        Ok((if flags.contains(RecvFlags::TRUNC) { meta.full } else { meta.len }, meta.from))
    }

    /// As [`Socket::recv`], and leaves it there (MSG_PEEK).
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`].
    pub fn peek(&self, buffer: &mut [u8]) -> Result<usize> {
        self.recv_with_flags(buffer, RecvFlags::PEEK)
    }

    /// As [`Socket::recv_from`], and leaves it there (MSG_PEEK).
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`].
    pub fn peek_from(&self, buffer: &mut [u8]) -> Result<(usize, SocketAddr)> {
        self.recv_from_with_flags(buffer, RecvFlags::PEEK)
    }

    /// Receives a datagram into the slices, one after the other, and says all that is known of it (recvmsg(2)).
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`].
    pub fn recv_msg(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<Meta> {
        self.socket.recv_msg(slices, flags)
    }

    /// Receives a datagram, or a train of them whole, where the socket takes such ([`Socket::set_gro`]) and one arrived: of datagrams of
    /// [`Meta::segment_size`] bytes each, but for a last one that may be shorter. `buffer` is best as long as the longest train, 65,507 bytes.
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`].
    pub fn recv_segments(&self, buffer: &mut [u8]) -> Result<Meta> {
        self.recv_msg(&mut [IoSliceMut::new(buffer)], RecvFlags::empty())
    }

    /// Receives a datagram, or a train, where it lies: no copy.
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`].
    pub fn recv_borrowed(&self) -> Result<(View, Meta)> {
        self.recv_borrowed_with_flags(RecvFlags::empty())
    }

    /// As [`Socket::recv_borrowed`], with flags ([`RecvFlags::DONTWAIT`]; others have no meaning here).
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`].
    pub fn recv_borrowed_with_flags(&self, flags: RecvFlags) -> Result<(View, Meta)> {
        let (data, meta) = self.socket.recv_segment(flags.contains(RecvFlags::DONTWAIT))?;
        let counters = self.socket.counters();
        counters.received.add(meta.len);
        counters.referenced.add(meta.len);
        Ok((View::of(data, self.socket.counts()), meta))
    }

    /// Waits for a datagram, and receives it and those that came with it by one call, one into each of `buffers`, and what is known of it into
    /// `meta` at the same place (recvmmsg(2) with MSG_WAITFORONE). Returns how many.
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`].
    pub fn recv_many(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [Meta],
        flags: RecvFlags,
    ) -> Result<usize> {
        if buffers.is_empty() || meta.is_empty() {
            return Ok(0);
        }
        self.socket.recv_many(buffers, meta, flags.contains(RecvFlags::DONTWAIT))
    }
}
