//! Datagrams out.

use super::{Envelope, Message, Socket};
#[cfg(doc)]
use super::{MAX_LEN, MAX_SEGMENTS};
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use onecopy_socket::{Error, Op, Result, SendFlags};
use rustix::io::Errno;
use std::io::IoSlice;
use std::net::SocketAddr;

impl Socket {
    /// Sends `bytes` as one datagram to whom the socket is connected to. Returns how many bytes: all.
    ///
    /// Sent is what left the stack, or waits for the link or the neighbour's address: whether it arrives nobody knows. It waits only while
    /// too much waits for the link.
    ///
    /// # Errors
    ///
    /// EDESTADDRREQ where it is not connected, EMSGSIZE, ENETUNREACH; what was said of an earlier datagram (ECONNREFUSED, EHOSTUNREACH);
    /// EAGAIN where it is not to wait and there is no room, EINTR.
    pub fn send(&self, bytes: &[u8]) -> Result<usize> {
        self.send_with_flags(bytes, SendFlags::empty())
    }

    /// As [`Socket::send`], with flags: [`SendFlags::NTCOPY`] copies this one with non-temporal stores, [`SendFlags::DONTWAIT`] does not
    /// wait.
    ///
    /// # Errors
    ///
    /// As [`Socket::send`]; EINVAL for [`SendFlags::MORE`]: a datagram is sent by one call.
    pub fn send_with_flags(&self, bytes: &[u8], flags: SendFlags) -> Result<usize> {
        self.send_msg(&[IoSlice::new(bytes)], &Envelope::CONNECTED, flags)
    }

    /// Sends `bytes` as one datagram to `to`. Returns how many bytes: all.
    ///
    /// # Errors
    ///
    /// As [`Socket::send`].
    pub fn send_to(&self, bytes: &[u8], to: SocketAddr) -> Result<usize> {
        self.send_to_with_flags(bytes, to, SendFlags::empty())
    }

    /// As [`Socket::send_to`], with flags.
    ///
    /// # Errors
    ///
    /// As [`Socket::send_with_flags`].
    pub fn send_to_with_flags(&self, bytes: &[u8], to: SocketAddr, flags: SendFlags) -> Result<usize> {
        self.send_msg(&[IoSlice::new(bytes)], &Envelope::to(to), flags)
    }

    /// Sends `bytes` as datagrams of `segment_size` bytes each, the last one of what is left, at most [`MAX_SEGMENTS`] of them and [`MAX_LEN`]
    /// bytes, by one pass through the stack; the link cuts them if it can (UDP_SEGMENT). `to` is none for whom the socket is connected to.
    ///
    /// # Errors
    ///
    /// As [`Socket::send`]; EINVAL for more datagrams, or a size of none.
    pub fn send_segments(&self, bytes: &[u8], segment_size: u16, to: Option<SocketAddr>) -> Result<usize> {
        if segment_size == 0 {
            return Err(Error::new(Op::Send, Errno::INVAL)
                .about("segment_size")
                .because("give the bytes of each datagram, or send one by send_to"));
        }
        let envelope = Envelope { to, ..Envelope::CONNECTED }.gso(segment_size);
        self.send_msg(&[IoSlice::new(bytes)], &envelope, SendFlags::empty())
    }

    /// Sends the slices, one after the other, as one datagram (or one train) that goes as `envelope` says (sendmsg(2)).
    ///
    /// # Errors
    ///
    /// As [`Socket::send_with_flags`].
    pub fn send_msg(&self, slices: &[IoSlice<'_>], envelope: &Envelope, flags: SendFlags) -> Result<usize> {
        whole(flags)?;
        let len = || slices.iter().map(|slice| slice.len()).sum();
        self.socket.send_slices(slices, envelope, flags).map_err(|error| explained(error, len))
    }

    /// Sends a chain by reference, as one datagram (or one train): no copy in user space.
    ///
    /// # Errors
    ///
    /// As [`Socket::send`].
    pub fn send_chain(&self, chain: Chain, envelope: &Envelope) -> Result<usize> {
        self.send_segment(chain.into(), envelope, SendFlags::empty())
    }

    /// As [`Socket::send_chain`], with what waits for its bytes to have left, and flags.
    ///
    /// # Errors
    ///
    /// As [`Socket::send_with_flags`]; EFAULT for a device's memory that the link does not take.
    pub fn send_segment(
        &self,
        mut segment: Segment<Chain>,
        envelope: &Envelope,
        flags: SendFlags,
    ) -> Result<usize> {
        whole(flags)?;
        let len = segment.payload().len();
        self.socket.send_segment(&mut segment, envelope, flags).map_err(|error| explained(error, || len))
    }

    /// Sends many datagrams by one call (sendmmsg(2)). Those that follow each other and are alike (of one length, but for a last one that may
    /// be shorter, and one envelope) make one pass through the stack and the link, where the link cuts trains, and arrive as they would one
    /// by one. Returns how many were sent: fewer only where an error came in between, which the next call may say.
    ///
    /// # Errors
    ///
    /// As [`Socket::send_with_flags`], where none was sent.
    pub fn send_many(&self, messages: &[Message<'_>], flags: SendFlags) -> Result<usize> {
        whole(flags)?;
        let first = || messages.first().map_or(0, |message| message.bytes.len());
        match messages {
            [] => Ok(0),
            _ => self.socket.send_many(messages, flags).map_err(|error| explained(error, first)),
        }
    }
}

/// Refuses to gather a datagram by several calls.
pub(super) fn whole(flags: SendFlags) -> Result<()> {
    match flags.contains(SendFlags::MORE) {
        true => Err(Error::new(Op::Send, Errno::INVAL)
            .about("flags")
            .because("a datagram is sent by one call; give all of its slices to send_msg")),
        false => Ok(()),
    }
}

/// Says how long it was that was too long.
pub(super) fn explained(error: Error, len: impl FnOnce() -> usize) -> Error {
    if error.raw_os_error() == Errno::MSGSIZE.raw_os_error() { error.of_bytes(len()) } else { error }
}
