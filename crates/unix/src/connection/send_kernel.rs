//! Sending bytes over the kernel: to a plain peer, and before this side's switch.

use crate::ancillary::attached::SendAncillary;
use crate::connection::Connection;
use crate::connection::call::Cursor;
use crate::control;
use crate::handshake::upgrade::offered;
use onecopy_socket::{Error, Op, Result, SendFlags};
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::time::Duration;

/// The longest piece that is sent over the kernel before the next look whether the ring is there.
const KERNEL_PIECE: usize = 64 << 10;

impl Connection {
    /// Sends the next bytes over the kernel. Returns how many, and whether the send goes on: a short count ends it.
    ///
    /// # Errors
    ///
    /// EAGAIN, EPIPE, EINTR.
    pub fn send_kernel(&self, cursor: &mut Cursor<'_, '_>, flags: SendFlags) -> Result<(usize, bool)> {
        self.send_kernel_with(cursor, SendAncillary::default(), flags)
    }

    /// Does as [`Connection::send_kernel`], with what is `attached` to the bytes. Returns how many, and whether
    /// the send goes on: a short count ends it.
    pub fn send_kernel_with(
        &self,
        cursor: &mut Cursor<'_, '_>,
        attached: SendAncillary<'_>,
        flags: SendFlags,
    ) -> Result<(usize, bool)> {
        // Where the ring may come at any moment, a long send is cut, so that its rest can go there. (Acquire
        // pairs with the Release store in `decided_now`.)
        let may_switch = self.handshake.is_open() || self.handshake.offered() != offered::NONE;
        let pieces = cursor.pieces(if may_switch { KERNEL_PIECE } else { usize::MAX });
        let waits = self.handshake.waits_to_switch();
        let n = match self.handshake.send_message(self, &pieces, attached, self.kernel_flags(flags)) {
            Err(Errno::AGAIN) if waits => {
                self.wait_to_switch(flags)?;
                return Ok((0, true));
            }
            sent => sent.map_err(|errno| match errno {
                Errno::PERM if attached.credentials.is_some() => self.no_channel(errno),
                errno => Error::new(Op::Send, errno),
            })?,
        };
        cursor.advance(n);
        self.counters().sent.add_exclusive(n);
        self.counters().kernel_copied.add(n);
        Ok((n, waits || n == pieces.iter().map(|piece| piece.len()).sum::<usize>()))
    }

    /// Returns the flags for the kernel's send. A send that is about to switch does not sleep for room in the
    /// kernel's queue.
    pub fn kernel_flags(&self, flags: SendFlags) -> rustix::net::SendFlags {
        let mut kernel = rustix::net::SendFlags::NOSIGNAL;
        let dontwait = flags.contains(SendFlags::DONTWAIT) || self.handshake.waits_to_switch();
        kernel.set(rustix::net::SendFlags::DONTWAIT, dontwait);
        kernel
    }

    /// Waits until the kernel's queue has room again behind what was sent before the switch.
    ///
    /// # Errors
    ///
    /// EAGAIN, EINTR.
    #[cold]
    pub fn wait_to_switch(&self, flags: SendFlags) -> Result<()> {
        let dontwait = self.must_not_wait(flags, &mut false);
        let limit = if dontwait { Some(Duration::ZERO) } else { self.settings().write_timeout() };
        control::wait(self.fd(), PollFlags::OUT, limit).map(drop).map_err(|errno| Error::new(Op::Send, errno))
    }

    /// Waits until the kernel has room for a record. The record goes whole or not at all, and is in the slot
    /// alone: what `commit` had no room for would be lost.
    ///
    /// # Errors
    ///
    /// EAGAIN, EINTR.
    pub fn wait_for_kernel(&self, flags: SendFlags) -> Result<()> {
        let wait = |limit| control::wait(self.fd(), PollFlags::OUT, limit).map(drop);
        let waited = match wait(Some(Duration::ZERO)) {
            Err(Errno::AGAIN) if !self.must_not_wait(flags, &mut false) => {
                wait(self.settings().write_timeout())
            }
            done => done,
        };
        waited.map_err(|errno| Error::new(Op::Send, errno))
    }
}
