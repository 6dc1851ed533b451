//! Handing a chain to the kernel, from where it lies.

use crate::chain::Chain;
use crate::error::ChainError;
use onecopy_sys::map::Span;
use onecopy_sys::spans::{MAX_GATHER, send_gathered, write_gathered};
use rustix::net::SendFlags;
use std::io;
use std::os::fd::AsFd;

impl Chain {
    /// writev(2) of its first bytes, of at most 64 fragments: no copy in user space. Returns bytes written;
    /// [`Chain::advance`] drops them. Marks are not written: where a record ends matters, write record by record
    /// ([`Chain::split_record`]).
    ///
    /// # Errors
    ///
    /// What writev(2) says; [`ChainError::Unreadable`] (EFAULT in the kernel) as an [`io::Error`] for a device's memory.
    pub fn write_to(&self, fd: impl AsFd) -> io::Result<usize> {
        let mut spans = [Span::EMPTY; MAX_GATHER];
        Ok(write_gathered(fd, self.first_spans(&mut spans)?)?)
    }

    /// sendmsg(2) of its first bytes, of at most 64 fragments: no copy in user space, and no SIGPIPE. It waits as the
    /// socket's O_NONBLOCK has it. Returns bytes sent; otherwise as [`Chain::write_to`].
    ///
    /// # Errors
    ///
    /// What sendmsg(2) says; [`ChainError::Unreadable`] as an [`io::Error`] for a device's memory.
    pub fn send_to(&self, fd: impl AsFd) -> io::Result<usize> {
        let mut spans = [Span::EMPTY; MAX_GATHER];
        Ok(send_gathered(fd, self.first_spans(&mut spans)?, SendFlags::NOSIGNAL.bits() as i32)?)
    }

    fn first_spans<'a, 's>(
        &'a self,
        spans: &'s mut [Span<'a>; MAX_GATHER],
    ) -> Result<&'s [Span<'a>], ChainError> {
        let mut count = 0;
        for (index, (entry, fragment)) in spans.iter_mut().zip(self.fragments()).enumerate() {
            let unreadable =
                || ChainError::Unreadable { index, kind: fragment.kind(), device: fragment.device() };
            *entry = fragment.page().span(fragment.offset(), fragment.len()).ok_or_else(unreadable)?;
            count += 1;
        }
        Ok(&spans[..count])
    }
}
