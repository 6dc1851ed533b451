//! Received bytes, where they lie.

use crate::carrier::Counts;
use onecopy_chain::notify::{Fate, Segment};
use onecopy_chain::{Chain, Host};
use onecopy_copy::Hint;
use onecopy_socket::Counters;
use std::io;
use std::os::fd::AsFd;
use std::sync::Weak;

/// Bytes that were received, in the pages where the link put them. Nobody else writes those; they are free again once it is dropped.
#[derive(Debug)]
pub struct View {
    data: Segment<Chain>,
    /// Where its socket counts, as long as there is that socket.
    socket: Weak<dyn Counts>,
}

impl View {
    pub(crate) fn of(data: Segment<Chain>, socket: Weak<dyn Counts>) -> View {
        View { data, socket }
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.data.payload().len()
    }

    /// Whether there are none: of a stream, the peer sends no more; of a datagram, it is an empty one.
    pub fn is_empty(&self) -> bool {
        self.data.payload().is_empty()
    }

    /// Bytes of the pages that it keeps, which are its own as long as it lives.
    pub fn true_size(&self) -> usize {
        self.data.payload().true_size()
    }

    fn host(&self) -> Option<Host<'_>> {
        self.data.payload().host().ok()
    }

    /// Its parts, one after the other, to be read in place. There are none of a device's memory.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.host().into_iter().flat_map(Host::slices)
    }

    /// Copies what fits into `buffer`; returns how many bytes. They count as copied in user space ([`Stats::user_copied_out`](crate::Stats::user_copied_out)).
    pub fn copy_to(&self, buffer: &mut [u8]) -> usize {
        let len = buffer.len().min(self.len());
        match self.host().map(|host| host.copy_to(0, &mut buffer[..len], Hint::AUTO)) {
            Some(Ok(_)) => self.copied(len),
            _ => 0,
        }
    }

    /// A copy, which counts as that of [`View::copy_to`].
    pub fn to_vec(&self) -> Vec<u8> {
        let bytes = self.host().map(Host::to_vec).unwrap_or_default();
        self.copied(bytes.len());
        bytes
    }

    fn copied(&self, len: usize) -> usize {
        if let Some(socket) = self.socket.upgrade() {
            socket.counters().user_copied_out.add(len);
        }
        len
    }

    /// Writes from where they lie, by writev(2), without a copy in user space: of up to 64 parts. Returns bytes written, which
    /// count as copied by the kernel; [`View::advance`] drops them.
    ///
    /// # Errors
    ///
    /// What writev(2) says.
    pub fn write_to(&self, fd: impl AsFd) -> io::Result<usize> {
        let written = self.data.payload().write_to(fd)?;
        if let Some(socket) = self.socket.upgrade() {
            socket.counters().kernel_copied.add(written);
        }
        Ok(written)
    }

    /// Drops its first `n` bytes.
    ///
    /// # Panics
    ///
    /// Where there are fewer.
    pub fn advance(&mut self, n: usize) {
        self.data.advance(n, Fate::Sent).unwrap_or_else(|error| panic!("{error}"));
    }

    /// The chain, to be sent on by reference.
    pub fn into_segment(self) -> Segment<Chain> {
        self.data
    }
}

/// Copies `data` into `buffer`, and counts.
pub(crate) fn copy_out(data: &Segment<Chain>, buffer: &mut [u8], counters: &Counters) -> Option<usize> {
    let len = data.payload().len();
    data.payload().host().ok()?.copy_to(0, &mut buffer[..len], Hint::AUTO).ok()?;
    counters.user_copied_out.add(len);
    Some(len)
}
