//! Receiving bytes into the caller's buffers.
//!
//! Each step of [`Connection::recv_with`] waits until something is there (`wait.rs`) and then takes bytes
//! from the ring or the kernel, whichever has the next one. A mark in the ring (descriptors, credentials, a
//! page) ends a step.

use crate::connection::Connection;
use crate::connection::call::{Call, chunk, rest};
use crate::connection::idle::Waiting;
use crate::connection::receive_marks::Part;
use crate::connection::rx::{Rx, RxRing};
use crate::connection::side::SideGuard;
use crate::connection::wait::Ready;
use crate::control;
use crate::core::Core;
use onecopy_socket::{Op, RecvFlags, Result};
use rustix::io::Errno;
use std::io::IoSliceMut;

impl Connection {
    /// Receives into `slices`.
    ///
    /// # Errors
    ///
    /// As [`Connection::ready`].
    pub fn recv(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize> {
        self.recv_with(slices, flags, &mut Call::plain())
    }

    /// Receives into `slices`, and descriptors as `call` says.
    ///
    /// # Errors
    ///
    /// As [`Connection::ready`].
    pub fn recv_with(
        &self,
        slices: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        call: &mut Call<'_>,
    ) -> Result<usize> {
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let peek = flags.contains(RecvFlags::PEEK);
        let mut waiting = Waiting::new(0);
        if total == 0 {
            // A receive of no bytes waits like any other, and takes nothing.
            return match self.ready(flags, &mut waiting)? {
                Ready::Plain => self.recv_plain(slices, 0, flags, call),
                _ => Ok(0),
            };
        }
        let mut got = 0;
        let waitall = flags.contains(RecvFlags::WAITALL) && !peek;
        let mut flags = flags;
        while got < total {
            // A peek does not wait for all (net/unix/af_unix.c: it stops at what is queued).
            let mut last = !waitall;
            waiting.takes = if peek { 0 } else { total - got };
            let step = match self.ready(flags, &mut waiting) {
                Ok(Ready::Plain) => {
                    // The kernel has waited for all, as far as it was asked to.
                    last = true;
                    self.recv_plain(slices, got, flags, call)
                }
                Ok(Ready::Kernel(guard, limit)) => {
                    let step = self.recv_kernel(guard, slices, got, limit, peek, call, &mut last);
                    // A look for what follows these bytes in the ring would take a pending error, which
                    // poll(2) must show.
                    last = last || !waitall && !peek && control::is_failed(self.fd());
                    step
                }
                Ok(Ready::Ring(guard, n)) => {
                    match self.recv_ring(guard, slices, got, n, peek, call, &mut last) {
                        // It was a mark without bytes.
                        Ok(None) => continue,
                        Ok(Some(n)) => Ok(n),
                        Err(error) => Err(error),
                    }
                }
                Ok(Ready::End) => Ok(0),
                Err(error) => Err(error),
            };
            match step {
                Ok(0) => break,
                Ok(n) => got += n,
                // The caller first hears what was received. The error comes again, or its cause is still
                // there. A reset is kept, since the kernel reports it once. A receive that waited for all has
                // met the reset, and does not report it (net/unix/af_unix.c: unix_stream_read_generic).
                Err(error) if got > 0 => {
                    if !waitall && error.raw_os_error() == Errno::CONNRESET.raw_os_error() {
                        self.note_reset();
                    }
                    break;
                }
                Err(error) => return Err(error),
            }
            if last {
                break;
            }
            if !waitall {
                // There may be more behind a mark, unless another receiver takes it now.
                flags |= RecvFlags::DONTWAIT;
            }
        }
        Ok(got)
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one call")]
    fn recv_ring(
        &self,
        mut guard: SideGuard<'_, Rx>,
        slices: &mut [IoSliceMut<'_>],
        skip: usize,
        available: usize,
        peek: bool,
        call: &mut Call<'_>,
        last: &mut bool,
    ) -> Result<Option<usize>> {
        let Rx::Ring(ring) = &mut *guard else { return Ok(Some(0)) };
        let total: usize = rest(slices, skip).map(|slice| slice.len()).sum();
        let mut more = false;
        let got = match ring.part(self, available, call, peek, skip)? {
            Part::Again => return Ok(None),
            Part::Stop => {
                *last = true;
                return Ok(Some(0));
            }
            Part::Reference => {
                let got = ring.copy_reference(slices, skip, peek);
                let next =
                    ring.consumer.available(1).map_err(|misbehaved| self.misbehaved(Op::Recv, misbehaved))?;
                more = !peek && (next > 0 || ring.mirror_empty(self)?);
                got
            }
            Part::Bytes(n) => ring.copy_bytes(self, slices, skip, n, peek, call)?,
        };
        self.counters().user_copied_out.add_exclusive(got);
        if let Some(to) = &mut call.fds
            && self.passes_identity()
        {
            ring.pending.tell(to, self.passes_pidfd());
        }
        if peek {
            // Descriptors end a peek, but the bytes that came with them belong to it (af_unix.c:
            // unix_stream_read_generic). A caller with room for descriptors would want a copy of them too.
            // They are not here yet, so its peek ends before them.
            let whole = call.fds.is_none() && call.until == u64::MAX && ring.pending.piece().is_none();
            return Ok(Some(
                got + if whole { ring.peek_behind_fds(self, slices, skip + got, got)? } else { 0 },
            ));
        }
        self.counters().received.add_exclusive(got);
        if got < total && call.until == u64::MAX {
            // What is behind a mark belongs to this receive too.
            *last &= !(more || ring.consumer.at_mark());
        } else if call.until <= ring.consumer.position() {
            *last = true;
        }
        // The last piece was given back without a look at a sender that waits for room: unlocking is the
        // fence that the look needs. (Without the lock, `room` is from before, and there is at least that
        // much.)
        let (room, capacity) = (ring.consumer.room(), ring.consumer.ring().capacity());
        guard.unlock_fenced();
        if self.rx_ring().is_some_and(|ring| ring.header().must_unpark(room, capacity)) {
            self.unpark()?;
        }
        Ok(Some(got))
    }
}

impl RxRing {
    /// Returns what this receive may take next of the `available` bytes in the ring.
    #[inline]
    fn part(
        &mut self,
        core: &Core,
        available: usize,
        call: &mut Call<'_>,
        peek: bool,
        got: usize,
    ) -> Result<Part> {
        let n = self
            .consumer
            .before_mark(available)
            .map_err(|misbehaved| core.misbehaved(Op::Recv, misbehaved))?;
        if n > 0 && !self.pending.has_fds() && call.until == u64::MAX {
            return Ok(Part::Bytes(n));
        }
        self.part_at_mark(core, n, call, peek, got)
    }

    /// Copies the `available` bytes of the ring, and what comes meanwhile, up to the next mark.
    fn copy_bytes(
        &mut self,
        core: &Core,
        slices: &mut [IoSliceMut<'_>],
        skip: usize,
        available: usize,
        peek: bool,
        call: &Call<'_>,
    ) -> Result<usize> {
        let misbehaved = |misbehaved| core.misbehaved(Op::Recv, misbehaved);
        let chunk = chunk(self.consumer.ring().capacity());
        let mut available = available;
        let mut got = 0;
        let total: usize = rest(slices, skip).map(|slice| slice.len()).sum();
        loop {
            let before = got;
            'there: for mut slice in rest(slices, skip + got) {
                while !slice.is_empty() {
                    let want = slice.len().min(chunk);
                    let at = if peek { got } else { 0 };
                    if available < at + want {
                        let there = self.consumer.available(at + want).map_err(misbehaved)?;
                        let left = call.until.saturating_sub(self.consumer.position());
                        available =
                            (self.consumer.before_mark(there).map_err(misbehaved)? as u64).min(left) as usize;
                    }
                    let n = want.min(available.saturating_sub(at));
                    if n == 0 {
                        // What comes at this very moment must go into this slice too, not into the one behind
                        // it.
                        point!("nothing behind");
                        break 'there;
                    }
                    let (now, later) = slice.split_at_mut(n);
                    self.consumer.copy_out(at, now);
                    point!("copied out");
                    slice = later;
                    got += n;
                    if !peek {
                        self.consumer.take(n);
                        point!("taken");
                        available -= n;
                        if !slice.is_empty() {
                            // This is an early look, without the fence. The sure one follows after unlocking.
                            self.unpark_if_seen(core).map_err(misbehaved)?;
                        }
                    }
                }
            }
            // A peek took nothing, so nothing is settled. Where this round got nothing more, a mark comes
            // next.
            if peek || got == before || !self.mirror_empty(core)? || got == total {
                break;
            }
            available = 0;
        }
        Ok(got)
    }
}
