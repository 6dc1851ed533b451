//! Datagrams in.

use super::{Meta, Socket};
use crate::socket::{PIECE, Way};
use crate::view::View;
use onecopy_chain::Chain;
use onecopy_copy::Hint;
use onecopy_inet::udp::{Error as Cause, Received};
use onecopy_socket::{Error, Op, RecvFlags, Result};
use rustix::io::Errno;
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
        let dont_wait = flags.contains(RecvFlags::DONTWAIT);
        if flags.contains(RecvFlags::PEEK) {
            return self.socket.call(Op::Recv, Way::Read, dont_wait, |shard, id, _| {
                let inet = shard.inet_mut();
                if let Some(error) = inet.udp_take_error(id) {
                    return Err(error);
                }
                let received = inet.udp_peek(id).ok_or(Cause::WouldBlock)?;
                self.copy(received, slices)
            });
        }
        let received = self.take(dont_wait)?;
        let meta = self.copy(&received, slices).map_err(|_| unreadable())?;
        self.socket.counters().received.add(meta.len);
        Ok(meta)
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
        let mut received = self.take(flags.contains(RecvFlags::DONTWAIT))?;
        let meta = Meta::of(&received, received.data.payload().len());
        let counters = self.socket.counters();
        counters.received.add(meta.len);
        counters.referenced.add(meta.len);
        let data = std::mem::replace(&mut received.data, Chain::new().into());
        Ok((View::of(data, self.socket.row()), meta))
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
        let counters = self.socket.counters();
        self.socket.call(Op::Recv, Way::Read, flags.contains(RecvFlags::DONTWAIT), |shard, id, _| {
            let (mut count, mut bytes) = (0, 0);
            for (buffer, meta) in buffers.iter_mut().zip(meta.iter_mut()) {
                let received = match shard.inet_mut().udp_receive(id) {
                    Err(cause) if count == 0 => return Err(cause),
                    Err(_) => break,
                    Ok(received) => received,
                };
                match self.copy(&received, std::slice::from_mut(buffer)) {
                    Err(cause) if count == 0 => return Err(cause),
                    Err(_) => break,
                    Ok(copied) => *meta = copied,
                }
                (count, bytes) = (count + 1, bytes + meta.len);
                if bytes >= PIECE {
                    break;
                }
            }
            counters.received.add(bytes);
            Ok(count)
        })
    }

    /// Takes the next datagram, or train.
    fn take(&self, dont_wait: bool) -> Result<Received> {
        self.socket.call(Op::Recv, Way::Read, dont_wait, |shard, id, _| shard.inet_mut().udp_receive(id))
    }

    /// Copies what fits of `received` into the slices.
    fn copy(&self, received: &Received, slices: &mut [IoSliceMut<'_>]) -> std::result::Result<Meta, Cause> {
        let payload = received.data.payload();
        let mut done = 0;
        if !payload.is_empty() {
            let host = payload.host().map_err(|_| Cause::DeviceMemory)?;
            for slice in slices {
                let n = slice.len().min(payload.len() - done);
                // Within what it has.
                let copied = host.copy_to(done, &mut slice[..n], Hint::AUTO);
                copied.map_err(|_| Cause::Invalid)?;
                done += n;
            }
        }
        self.socket.counters().user_copied_out.add(done);
        Ok(Meta::of(received, done))
    }
}

fn unreadable() -> Error {
    Error::new(Op::Recv, Errno::FAULT)
        .because("this CPU cannot read its memory; receive it with recv_borrowed")
}
