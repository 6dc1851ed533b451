//! Receiving records: from the ring or the kernel, whichever has the next one.

use crate::ancillary::channel::Fds;
use crate::byref::listed::Contents;
use crate::config::Records;
use crate::connection::Connection;
use crate::connection::call::{Call, IOV_MAX, scatter};
use crate::connection::idle::Waiting;
use crate::connection::received::Received;
use crate::connection::received::Rest;
use crate::connection::rx::{Rx, RxRing};
use crate::connection::side::SideGuard;
use crate::connection::wait::Ready;
use crate::control;
use crate::core::Core;
use crate::members::others::Taking;
use onecopy_ring::record::{HEADER, With};
use onecopy_socket::{Error, Op, ReceivedFlags, RecvFlags, Result};
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::scm::{self, Space};
use rustix::io::Errno;
use std::io::IoSliceMut;

impl Connection {
    /// Receives a record, or a part of one, into `slices`.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::recv`].
    #[inline]
    pub fn recv_record(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<Received> {
        self.recv_record_with(slices, flags, &mut Call::plain())
    }

    /// Does as [`Connection::recv_record`], and receives descriptors as `call` says.
    ///
    /// # Errors
    ///
    /// As [`crate::SeqPacket::recv`].
    #[inline]
    pub fn recv_record_with(
        &self,
        slices: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        call: &mut Call<'_>,
    ) -> Result<Received> {
        if self.config().records == Records::Stream {
            return self.recv_parts(slices, flags, call);
        }
        let mut waiting = Waiting::new(0);
        self.error_first()?;
        match self.ready(flags, &mut waiting)? {
            Ready::Ring(guard, available) => self.recv_frame(guard, slices, available, flags, call),
            Ready::Kernel(guard, _) => self.recv_kernel_record(Some(guard), slices, flags, call),
            Ready::Plain => self.recv_kernel_record(None, slices, flags, call),
            Ready::End => Ok(Received::end()),
        }
    }

    /// Returns a pending error, which comes before queued data (net/core/datagram.c:
    /// __skb_try_recv_datagram). Asking for it costs a system call, so it only asks when the peer has said
    /// that it is leaving. Of a killed peer, the data comes first.
    #[inline]
    pub fn error_first(&self) -> Result<()> {
        let says_so = match self.tx_ring() {
            Some(ring) => ring.header().info.0.shut.load(Relaxed) != 0,
            None => self.handshake.has_left_offer(),
        };
        if says_so && self.take_reset() { Err(Error::new(Op::Recv, Errno::CONNRESET)) } else { Ok(()) }
    }

    #[inline]
    pub fn recv_frame(
        &self,
        mut guard: SideGuard<'_, Rx>,
        slices: &mut [IoSliceMut<'_>],
        available: usize,
        flags: RecvFlags,
        call: &mut Call<'_>,
    ) -> Result<Received> {
        let Rx::Ring(ring) = &mut *guard else { return Ok(Received::end()) };
        let frame =
            ring.atomic_frame(available).map_err(|misbehaved| self.misbehaved(Op::Recv, misbehaved))?;
        let size = frame.size(ring.consumer.ring().capacity());
        let peek = flags.contains(RecvFlags::PEEK);
        let mut said = ReceivedFlags::empty();
        if !frame.with.is_nothing() {
            said = match ring.find(self, frame, call, peek)? {
                Contents::Bytes(said) => said,
                Contents::List(said) => {
                    ring.tell_identity(self, call);
                    let mut received = self.recv_list(guard, slices, frame, peek)?;
                    received.flags |= said;
                    return Ok(received);
                }
                Contents::Again => {
                    drop(guard);
                    return self.recv_record_with(slices, flags, call);
                }
            };
        }
        ring.tell_identity(self, call);
        ring.consumer.prefetch_frames(size, available);
        let mut len = 0;
        for slice in slices {
            let n = slice.len().min(frame.len - len);
            ring.consumer.copy_out(HEADER + len, &mut slice[..n]);
            len += n;
        }
        self.counters().user_copied_out.add_exclusive(len);
        let mut received = Received::atomic(len, frame.len);
        received.flags |= said;
        if peek {
            return Ok(received);
        }
        point!("copied out");
        ring.consumer.take(size);
        point!("taken");
        self.counters().received.add_exclusive(len);
        ring.mirror_empty(self)?;
        self.give_back(guard)?;
        Ok(received)
    }

    /// Unlocks after a receive, and takes the filler of a sender that waits for the room that was made.
    #[inline]
    pub fn give_back(&self, guard: SideGuard<'_, Rx>) -> Result<()> {
        let Rx::Ring(ring) = &*guard else { return Ok(()) };
        let (room, capacity) = (ring.consumer.room(), ring.consumer.ring().capacity());
        guard.unlock_fenced();
        if self.rx_ring().is_some_and(|ring| ring.header().must_unpark(room, capacity)) {
            self.unpark()?;
        }
        Ok(())
    }

    /// Receives one of the kernel's records. It is there under the lock, or a plain peer will send it.
    fn recv_kernel_record(
        &self,
        guard: Option<SideGuard<'_, Rx>>,
        slices: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        call: &mut Call<'_>,
    ) -> Result<Received> {
        let error = |errno| Error::new(Op::Recv, errno);
        if guard.is_none() && self.take_noted_reset() {
            // The kernel reported it while the peer was not known to be plain, and it was kept.
            return Err(error(Errno::CONNRESET));
        }
        let peek = flags.contains(RecvFlags::PEEK);
        // Where processes share the end, a call looks at the record, and another one that brings nothing
        // takes it. So the recovery after a death finds it taken or not (`multiprocess/snapshot.rs`).
        let shared = guard.as_ref().is_some_and(SideGuard::is_shared);
        let mut kernel = rustix::net::RecvFlags::TRUNC;
        kernel.set(rustix::net::RecvFlags::DONTWAIT, guard.is_some() || flags.contains(RecvFlags::DONTWAIT));
        kernel.set(rustix::net::RecvFlags::PEEK, peek || shared);
        let room = slices.iter().map(|slice| slice.len()).sum();
        let mut pieces: Vec<IoSliceMut<'_>> =
            slices.iter_mut().take(IOV_MAX).map(|slice| IoSliceMut::new(slice)).collect();
        // The caller does not ask for the rings of this connection. They make a record neither cut nor
        // larger.
        let may_bring = guard.as_ref().and_then(|rx| rx.may_bring_rings());
        let (mut rings, mut more) = (None, false);
        let received = match (&mut call.fds, may_bring) {
            (None, None) => scm::recv(self.fd(), &mut pieces, Space::None, kernel),
            (Some(fds), None) => fds.recv(self.fd(), &mut pieces, kernel),
            (to, Some(nonce)) => {
                let mut fds = Fds::default();
                fds.recv(self.fd(), &mut pieces, kernel).map(|mut message| {
                    rings = fds.take_rings(&nonce);
                    more = !fds.list.is_empty();
                    match to {
                        Some(to) => to.add(fds),
                        None => message.control_cut |= more,
                    }
                    message
                })
            }
        };
        let message = match received {
            Ok(message) => message,
            Err(Errno::CONNRESET) if guard.is_some() && !self.was_reset() => {
                // Only doorbells were left unread. The next look sees what is there.
                drop(guard);
                return self.recv_record_with(slices, flags, call);
            }
            Err(errno) => return Err(error(errno)),
        };
        let full = message.bytes;
        let len = full.min(room);
        // A record of no bytes has its sender's name, if there is one, or descriptors, and may have others
        // behind it. The end has none of these.
        let with = message.control_cut
            || more
            || rings.is_some()
            || call.fds.as_ref().is_some_and(|fds| !fds.list.is_empty());
        if full == 0
            && message.name.is_none()
            && !with
            && control::hung_up(self.fd())
            && control::queued(self.fd()) == Ok(0)
        {
            return Ok(Received::end());
        }
        self.counters().kernel_copied.add(len);
        if !peek {
            if let Some(mut guard) = guard {
                if shared {
                    if let Rx::Switching(switching) = &*guard {
                        let what = if full > 0 { Taking::Record } else { Taking::Empty };
                        self.others().expect_taking(self.fd(), what, 1, switching.received());
                    }
                    self.take_piece()?;
                }
                point!("received over the kernel");
                self.received_over_kernel(&mut guard, 1, rings, Op::Recv)?;
            }
            self.counters().received.add(len);
        }
        let mut received = Received::atomic(len, full);
        received.flags.set(ReceivedFlags::CTRUNC, message.control_cut);
        Ok(received)
    }

    /// Receives stream records: what is there, up to the end of a record. Under WAITALL, all that fits.
    fn recv_parts(
        &self,
        slices: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        call: &mut Call<'_>,
    ) -> Result<Received> {
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let peek = flags.contains(RecvFlags::PEEK);
        let mut last = peek || !flags.contains(RecvFlags::WAITALL);
        let mut waiting = Waiting::new(0);
        let mut got = Received::default();
        loop {
            let mut again = false;
            let step = self.error_first().and_then(|()| match self.ready(flags, &mut waiting)? {
                Ready::Ring(guard, available) => {
                    self.parts_from_ring(guard, slices, &mut got, available, peek, call, &mut last)
                }
                Ready::Kernel(mut guard, _) => {
                    again = self.take_rings_ahead(&mut guard)?;
                    if again {
                        return Ok(());
                    }
                    self.part_from_kernel(guard, slices, &mut got, peek, call, &mut last)
                }
                Ready::Plain if !control::hung_up(self.fd()) => Err(self.no_agreement(Op::Recv)),
                Ready::Plain | Ready::End => {
                    got.flags |= ReceivedFlags::END;
                    Ok(())
                }
            });
            match step {
                // The caller first hears what was received. The error comes again, or its cause is still
                // there.
                Err(_) if got.len > 0 => {}
                Err(error) => return Err(error),
                Ok(()) if again => continue,
                Ok(()) if got.len < total && !got.flags.intersects(OVER) && !last => continue,
                Ok(()) => {}
            }
            if got.len > 0 {
                got.flags.remove(ReceivedFlags::END);
            }
            got.full = got.len;
            return Ok(got);
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one call")]
    fn parts_from_ring(
        &self,
        mut guard: SideGuard<'_, Rx>,
        slices: &mut [IoSliceMut<'_>],
        got: &mut Received,
        mut available: usize,
        peek: bool,
        call: &mut Call<'_>,
        last: &mut bool,
    ) -> Result<()> {
        let Rx::Ring(ring) = &mut *guard else { return Ok(()) };
        let misbehaved = |misbehaved| self.misbehaved(Op::Recv, misbehaved);
        let before = got.len;
        // How far a peek has looked. (A receive takes what it has seen.)
        let mut at = 0;
        let mut next = ring.rest;
        let mut room = slices.iter().map(|slice| slice.len()).sum::<usize>() - got.len;
        while room > 0 {
            let mut rest = match next {
                Some(rest) => rest,
                None => {
                    if available <= at {
                        available = ring.consumer.available(at + 1).map_err(misbehaved)?;
                    }
                    if available <= at {
                        break;
                    }
                    let frame = ring.consumer.frame(at, available).map_err(misbehaved)?;
                    if !frame.with.is_nothing() {
                        if (got.len > 0 || at > 0) && (frame.with.fds() > 0 || self.passes_identity()) {
                            // FreeBSD's rule (uipc_usrreq.c): what comes with bytes comes with the first
                            // ones.
                            *last = true;
                            break;
                        }
                        if at == 0
                            && let Contents::Bytes(said) = ring.find(self, frame, call, peek)?
                        {
                            got.flags |= said;
                        }
                    }
                    pass(ring, &mut at, &mut available, HEADER, peek);
                    Rest::of(frame, ring.consumer.ring().capacity())
                }
            };
            if got.len == 0 {
                ring.tell_identity(self, call);
            }
            let n = rest.left.min(room);
            scatter(slices, got.len, n, |done, part| ring.consumer.copy_out(at + done, part));
            point!("copied out");
            pass(ring, &mut at, &mut available, n, peek);
            (got.len, room, rest.left) = (got.len + n, room - n, rest.left - n);
            next = Some(rest).filter(|rest| rest.left > 0);
            if next.is_none() {
                pass(ring, &mut at, &mut available, rest.padding, peek);
            }
            if !peek {
                point!("taken");
                ring.rest = next;
                // This is an early look, without the fence. The sure one follows after unlocking.
                ring.unpark_if_seen(self).map_err(misbehaved)?;
            }
            if next.is_none() && rest.end {
                got.flags |= ReceivedFlags::EOR;
                break;
            }
        }
        let n = got.len - before;
        self.counters().user_copied_out.add_exclusive(n);
        if peek {
            return Ok(());
        }
        self.counters().received.add_exclusive(n);
        ring.mirror_empty(self)?;
        self.give_back(guard)
    }
}

/// The flags with which a receive of a part is over.
const OVER: ReceivedFlags = ReceivedFlags::EOR.union(ReceivedFlags::END);

/// Goes on by `n` bytes: takes them, or only looks behind them.
fn pass(ring: &mut RxRing, at: &mut usize, available: &mut usize, n: usize, peek: bool) {
    if peek {
        *at += n;
    } else {
        ring.consumer.take(n);
        *available -= n;
    }
}

impl RxRing {
    /// Gives the descriptors and credentials of the next frame to the receive. A peek gets copies.
    #[cold]
    pub fn receive_with(
        &mut self,
        core: &Core,
        with: With,
        call: &mut Call<'_>,
        peek: bool,
    ) -> Result<ReceivedFlags> {
        self.meet_frame(core, with)?;
        let cut = self.pending.has_fds() && (call.fds.is_none() || self.pending.fds_are_cut());
        self.take_fds(core, call, peek)?;
        Ok(if cut { ReceivedFlags::CTRUNC } else { ReceivedFlags::empty() })
    }

    /// Tells a receive that asks for it who sent what it gets.
    #[inline]
    fn tell_identity(&self, core: &Core, call: &mut Call<'_>) {
        if let Some(to) = &mut call.fds
            && core.passes_identity()
        {
            self.pending.tell(to, core.passes_pidfd());
        }
    }
}
