//! Receiving bytes into the caller's buffers.
//!
//! Each step of [`Connection::recv_with`] waits until something is there (`wait.rs`) and then takes bytes
//! from the ring or the kernel, whichever has the next one. A mark in the ring (descriptors, credentials, a
//! page) ends a step.

use crate::ancillary::channel::Fds;
use crate::ancillary::pending::Next;
use crate::connection::Connection;
use crate::connection::call::{Call, IOV_MAX, chunk};
use crate::connection::rx::{Rx, RxRing};
use crate::connection::side::SideGuard;
use crate::connection::wait::Ready;
use crate::connection::waiting::Waiting;
use crate::control;
use crate::core::Core;
use crate::core::kind::Kind;
use crate::handshake::undecided::Switching;
use crate::handshake::upgrade::Nonce;
use crate::members::others::Taking;
use onecopy_ring::{Consumer, Mark};
use onecopy_socket::{Error, Op, RecvFlags, Result};
use onecopy_sys::scm::{self, Space};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io::IoSliceMut;

/// What a receive from the ring may take next.
enum Part {
    /// So many bytes.
    Bytes(usize),
    /// Bytes of the page in [`crate::ancillary::pending::Pending::piece`].
    Reference,
    /// Nothing yet: look again.
    Again,
    /// Nothing more in this call.
    Stop,
}

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

    fn recv_plain(
        &self,
        slices: &mut [IoSliceMut<'_>],
        skip: usize,
        flags: RecvFlags,
        call: &mut Call<'_>,
    ) -> Result<usize> {
        let mut kernel = rustix::net::RecvFlags::empty();
        kernel.set(rustix::net::RecvFlags::DONTWAIT, flags.contains(RecvFlags::DONTWAIT));
        kernel.set(rustix::net::RecvFlags::PEEK, flags.contains(RecvFlags::PEEK));
        kernel.set(rustix::net::RecvFlags::WAITALL, flags.contains(RecvFlags::WAITALL));
        let n = self.recvmsg(slices, skip, usize::MAX, kernel, call, false)?;
        if n == 0 && self.is_reset_noted() {
            // The kernel reported the reset while the peer was not known to be plain, and it was kept. What
            // is queued comes before it, even for a receive that takes none of that now.
            let nothing_left = slices.iter().any(|slice| !slice.is_empty()) || self.queued() == Ok(0);
            if nothing_left && self.take_noted_reset() {
                return Err(Error::new(Op::Recv, Errno::CONNRESET));
            }
        }
        if !flags.contains(RecvFlags::PEEK) {
            self.counters().received.add(n);
        }
        Ok(n)
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one call")]
    fn recv_kernel(
        &self,
        mut guard: SideGuard<'_, Rx>,
        slices: &mut [IoSliceMut<'_>],
        skip: usize,
        limit: usize,
        peek: bool,
        call: &mut Call<'_>,
        last: &mut bool,
    ) -> Result<usize> {
        let mut kernel = rustix::net::RecvFlags::DONTWAIT;
        kernel.set(rustix::net::RecvFlags::PEEK, peek);
        // A peek goes on behind what it has room for until it meets descriptors (af_unix.c:
        // unix_stream_read_generic). Once the peer has switched, these may be the channel or the handshake's
        // rings, which are not the caller's.
        let switched = matches!(&*guard, Rx::Switching(switching) if switching.left() != Ok(None));
        let mut limit = limit;
        let may_bring = guard.may_bring_rings();
        if !peek
            && guard.is_shared()
            && let Rx::Switching(switching) = &*guard
        {
            limit = self.others().expect_taking(self.fd(), Taking::Bytes, limit, switching.received());
        }
        let (n, rings) = match may_bring {
            Some(nonce) => self.recv_with_rings(&nonce, slices, skip, limit, kernel, call)?,
            None if peek && switched && call.fds.is_some() => {
                (self.recvmsg(slices, skip, limit, kernel, &mut Call::plain(), false)?, None)
            }
            None => (self.recvmsg(slices, skip, limit, kernel, call, true)?, None),
        };
        // What the kernel does not have is in the ring, and belongs to this receive too, unless descriptors
        // end it or the sender's identity matters. Rings end a receive for the kernel alone.
        let may_go_on = call.until == u64::MAX && !self.passes_identity();
        let switching = match &*guard {
            Rx::Switching(switching) => Some(switching),
            _ => None,
        };
        let ends_here = switching.is_some_and(|switching| self.ends_here(switching, n));
        *last |= !may_go_on;
        if !peek {
            *last &= !(may_go_on && (ends_here || rings.is_some()));
            point!("received over the kernel");
            self.received_over_kernel(&mut guard, n as u64, rings, Op::Recv)?;
            self.counters().received.add_exclusive(n);
        } else if may_go_on
            && ends_here
            && let Some(switching) = switching
        {
            // What follows is in the ring, which is not this side's yet. A peek looks there all the same.
            let mut consumer = Consumer::new(switching.ring().clone());
            let misbehaved = |misbehaved| self.misbehaved(Op::Recv, misbehaved);
            let available = consumer.available(usize::MAX).map_err(misbehaved)?;
            let before_mark = consumer.before_mark(available).map_err(misbehaved)?;
            return Ok(n + copy_ahead(&consumer, slices, skip + n, 0, before_mark));
        }
        Ok(n)
    }

    /// Receives as `recvmsg` does, where the connection's rings may come with the bytes. Takes the rings out
    /// of the descriptors.
    fn recv_with_rings(
        &self,
        nonce: &Nonce,
        slices: &mut [IoSliceMut<'_>],
        skip: usize,
        limit: usize,
        flags: rustix::net::RecvFlags,
        call: &mut Call<'_>,
    ) -> Result<(usize, Option<OwnedFd>)> {
        let mut fds = Fds::default();
        let mut inner = Call { fds: Some(&mut fds), until: u64::MAX };
        let mut n = self.recvmsg(slices, skip, limit, flags, &mut inner, true)?;
        let rings = fds.take_rings(nonce);
        if rings.is_some() && fds.list.is_empty() && flags.contains(rustix::net::RecvFlags::PEEK) {
            // The kernel ends a peek at these descriptors. Without them it would have gone on.
            n += self.peek_behind(slices, skip, n, limit, flags, &mut fds)?;
        }
        if fds.truncated || !fds.list.is_empty() {
            call.until = 0;
        }
        if let Some(to) = &mut call.fds {
            to.add(fds);
        }
        Ok((n, rings))
    }

    /// Peeks behind the first `n` bytes, which are there.
    fn peek_behind(
        &self,
        slices: &mut [IoSliceMut<'_>],
        skip: usize,
        n: usize,
        limit: usize,
        flags: rustix::net::RecvFlags,
        fds: &mut Fds,
    ) -> Result<usize> {
        let at = i32::try_from(n).ok().filter(|_| n < limit && rest(slices, skip + n).next().is_some());
        let Some(Ok(())) = at.map(|at| onecopy_sys::sockopt::set_peek_off(self.fd(), at)) else {
            return Ok(0);
        };
        let mut call = Call { fds: Some(fds), until: u64::MAX };
        let behind = self.recvmsg(slices, skip + n, limit - n, flags, &mut call, true);
        let _ = onecopy_sys::sockopt::set_peek_off(self.fd(), -1);
        // Most often nothing is there.
        Ok(behind.unwrap_or(0))
    }

    /// Whether `n` bytes are all that comes over the kernel.
    fn ends_here(&self, switching: &Switching, n: usize) -> bool {
        self.kind() == Kind::Stream && switching.left() == Ok(Some(n as u64))
    }

    /// Receives from the kernel, behind the first `skip` bytes of the slices. `ends`: whether it matters that
    /// descriptors end a receive.
    fn recvmsg(
        &self,
        slices: &mut [IoSliceMut<'_>],
        skip: usize,
        limit: usize,
        flags: rustix::net::RecvFlags,
        call: &mut Call<'_>,
        ends: bool,
    ) -> Result<usize> {
        let mut left = limit;
        let mut part: Vec<IoSliceMut<'_>> = rest(slices, skip)
            .take(IOV_MAX)
            .map(|slice| {
                let n = slice.len().min(left);
                left -= n;
                IoSliceMut::new(&mut slice[..n])
            })
            .collect();
        let error = |errno| Error::new(Op::Recv, errno);
        let (n, ended) = match &mut call.fds {
            None if !ends => {
                let none = &mut Default::default();
                (rustix::net::recvmsg(self.fd(), &mut part, none, flags).map_err(error)?.bytes, false)
            }
            None => {
                let came = scm::recv(self.fd(), &mut part, Space::Few, flags).map_err(error)?;
                (came.bytes, came.control_cut || !came.fds.is_empty())
            }
            Some(fds) => {
                let n = fds.recv(self.fd(), &mut part, flags).map_err(error)?.bytes;
                (n, fds.truncated || !fds.list.is_empty())
            }
        };
        if ended {
            // They end it whether the receive has room for them or not.
            call.until = 0;
        }
        self.counters().kernel_copied.add(n);
        Ok(n)
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
                let got = ring.copy_reference(self, slices, skip, peek);
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

/// Copies as many as have room of the `len` bytes that are `at` bytes ahead. Takes nothing.
fn copy_ahead(
    consumer: &Consumer,
    slices: &mut [IoSliceMut<'_>],
    skip: usize,
    at: usize,
    len: usize,
) -> usize {
    let mut done = 0;
    for slice in rest(slices, skip) {
        let n = slice.len().min(len - done);
        consumer.copy_out(at + done, &mut slice[..n]);
        done += n;
    }
    done
}

/// Returns the slices behind the first `skip` bytes.
fn rest<'a, 'b>(
    slices: &'a mut [IoSliceMut<'b>],
    mut skip: usize,
) -> impl Iterator<Item = &'a mut [u8]> + use<'a, 'b> {
    slices.iter_mut().filter_map(move |slice| {
        let cut = skip.min(slice.len());
        skip -= cut;
        (cut < slice.len()).then(|| &mut slice[cut..])
    })
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

    #[cold]
    fn part_at_mark(
        &mut self,
        core: &Core,
        n: usize,
        call: &mut Call<'_>,
        peek: bool,
        got: usize,
    ) -> Result<Part> {
        let left = call.until.saturating_sub(self.consumer.position());
        if left == 0 {
            return Ok(Part::Stop);
        }
        if n == 0 {
            let who = |mark| matches!(mark, Mark::Identity { .. });
            if got > 0 && core.passes_identity() && self.consumer.mark().is_ok_and(who) {
                // Bytes of two senders never merge (net/unix/af_unix.c: unix_skb_scm_eq).
                return Ok(Part::Stop);
            }
            return Ok(match self.meet_mark(core)? {
                Next::Reference => Part::Reference,
                Next::Again => Part::Again,
            });
        }
        let mut n = (n as u64).min(left) as usize;
        if self.pending.has_fds() {
            if call.until != u64::MAX {
                // Descriptors of two sends never merge.
                return Ok(Part::Stop);
            }
            call.until = self.take_fds(core, call, peek)?;
            n = (n as u64).min(call.until.saturating_sub(self.consumer.position())) as usize;
        }
        Ok(if n > 0 { Part::Bytes(n) } else { Part::Stop })
    }

    /// Gives the pending descriptors to this receive. Returns the position up to which it may go with them.
    pub fn take_fds(&mut self, core: &Core, call: &mut Call<'_>, peek: bool) -> Result<u64> {
        self.bring_fds(core)?;
        let until = self.pending.fds_until();
        if peek {
            if let (Some(fds), Some(to)) = (self.pending.fds_here(), &mut call.fds) {
                fds.copy_to(to)?;
            }
        } else if let (Some(fds), Some(to)) = (self.pending.take_fds(), &mut call.fds) {
            (to.list, to.truncated) = (fds.list, fds.truncated);
        }
        Ok(until)
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

    /// Copies the bytes that came with the descriptors `at` bytes ahead, if these are there. Takes nothing.
    fn peek_behind_fds(
        &mut self,
        core: &Core,
        slices: &mut [IoSliceMut<'_>],
        skip: usize,
        at: usize,
    ) -> Result<usize> {
        let misbehaved = |misbehaved| core.misbehaved(Op::Recv, misbehaved);
        if rest(slices, skip).next().is_none() || !self.consumer.mark_at(at) {
            return Ok(0);
        }
        let available = self.consumer.available(usize::MAX).map_err(misbehaved)?;
        Ok(match self.consumer.behind_fds(available).map_err(misbehaved)? {
            Some((behind, len)) => copy_ahead(&self.consumer, slices, skip, behind, len),
            None => 0,
        })
    }

    /// Copies from the page that comes next. Its sender gets the page back once all of it was received.
    fn copy_reference(
        &mut self,
        _core: &Core,
        slices: &mut [IoSliceMut<'_>],
        skip: usize,
        peek: bool,
    ) -> usize {
        let Some(piece) = self.pending.piece_mut() else { return 0 };
        let mut got = 0;
        let (mut left, len) = (piece.len(), piece.len());
        for slice in rest(slices, skip) {
            let n = slice.len().min(left);
            if n == 0 {
                break;
            }
            piece.copy_out_from(got, &mut slice[..n]);
            got += n;
            left -= n;
        }
        if !peek && got == len {
            self.take_reference();
        } else if !peek {
            piece.advance(got);
        }
        got
    }
}
