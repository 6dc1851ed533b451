//! Receiving bytes over the kernel: from a plain peer, and before the peer's switch.

use crate::ancillary::channel::Fds;
use crate::connection::Connection;
use crate::connection::call::{Call, IOV_MAX, copy_ahead, rest};
use crate::connection::rx::Rx;
use crate::connection::side::SideGuard;
use crate::core::kind::Kind;
use crate::handshake::undecided::Switching;
use crate::handshake::upgrade::Nonce;
use crate::members::others::Taking;
use onecopy_ring::Consumer;
use onecopy_socket::{Error, Op, RecvFlags, Result};
use onecopy_sys::scm::{self, Space};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io::IoSliceMut;

impl Connection {
    /// Receives from the kernel, which decides everything: the peer is plain.
    pub(super) fn recv_plain(
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
    pub(super) fn recv_kernel(
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
}
