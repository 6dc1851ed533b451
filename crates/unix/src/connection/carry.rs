//! A piece of a stream record that is in the kernel's queue.

use crate::ancillary::channel::Fds;

/// A piece of a stream record that is in the kernel's queue, and how much of it was received.
#[derive(Debug, Default)]
pub struct Carry {
    pub(super) bytes: Vec<u8>,
    pub(super) at: usize,
    pub(super) end: bool,
    pub(super) pending: bool,
    /// The descriptors that came with it.
    pub(super) fds: Option<Fds>,
}

impl Carry {
    pub fn is_pending(&self) -> bool {
        self.pending
    }

    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub fn has_nothing(&self) -> bool {
        self.bytes.len() == self.at && !self.end && self.fds.as_ref().is_none_or(|fds| fds.list.is_empty())
    }

    /// Returns how many bytes in the kernel's queue are not to be received, or were already.
    pub fn past(&self) -> usize {
        if self.pending { self.at } else { 0 }
    }
}
