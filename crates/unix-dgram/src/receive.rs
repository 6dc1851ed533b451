//! Receiving datagrams from the ring, from lanes, or from the kernel's queue.

use crate::fan_in::readiness::{CONTROLS, name_of};
use crate::fan_in::receiver::{Asleep, FanInReceiver};
use crate::pairing::state::Head;
use crate::socket::Socket;
use crate::to::To;
use crate::wire::control_message::{CONTROL_LEN, ControlMessage};
use onecopy_ring::PeerMisbehaved;
use onecopy_sys::scm::{self, Space};
use onecopy_sys::socket::unix_address;
use onecopy_unix::ancillary::channel::Fds;
use onecopy_unix::connection::borrow_records::Lending;
use onecopy_unix::connection::call::{Call, IOV_MAX};
use onecopy_unix::connection::idle::Waiting;
use onecopy_unix::connection::received::Taken;
use onecopy_unix::connection::rx::Rx;
use onecopy_unix::connection::wait::Ready;
use onecopy_unix::control;
use onecopy_unix::control::Peek;
use onecopy_unix::{Error, Op, Owner, Received, ReceivedFlags, RecvFlags, Result, SocketAddr, View};
use rustix::io::{self, Errno};
use std::io::IoSliceMut;
use std::sync::{Arc, Weak};

/// Room for a datagram over the kernel, where another process may take the next one away from this one.
const SHARED_ROOM: usize = 256 << 10;

impl Socket {
    /// Returns how much room the next message in the kernel's queue takes, `max` at most. The caller holds
    /// the receiving side.
    ///
    /// # Errors
    ///
    /// EAGAIN if there is none; what recvmsg(2) returns. ECONNRESET is noted.
    fn room_for_next(&self, max: usize) -> io::Result<usize> {
        let (next, _) = self.look_for_control(rustix::net::RecvFlags::PEEK)?;
        let room = if self.is_here_alone() { next.bytes } else { next.bytes.max(SHARED_ROOM) };
        Ok(room.min(max))
    }

    /// Moves the receiving side to where the next datagram is. That is the kernel's queue, once the peer has
    /// left and everything that it sent through memory was received. It is the ring, once the peer has
    /// switched.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved`].
    pub fn leave_empty_ring(&self, rx: &mut Rx) -> std::result::Result<(), PeerMisbehaved> {
        if let (Rx::Plain, Some(pairing)) = (&*rx, self.known_pairing())
            && pairing.is_counting()
        {
            self.look_for_switch(pairing, rx)?;
        }
        let Rx::Ring(ring) = rx else { return Ok(()) };
        // While an error is pending on the socket, doorbells cannot be taken.
        if !ring.is_empty()? || !self.peer_left() || control::is_failed(self.fd()) {
            return Ok(());
        }
        if !ring.settle(self)? {
            ring.clear_away(self)?;
            *rx = Rx::Plain;
        }
        Ok(())
    }

    /// Receives one datagram into `slices`, its sender's name into `from`, and what came with it as `call`
    /// says.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::recv`].
    pub fn recv_datagram(
        &self,
        slices: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        from: Option<&mut SocketAddr>,
        call: &mut Call<'_>,
    ) -> Result<Received> {
        self.recv_to(&mut To::Slices(slices), flags, from, call)
    }

    /// Receives at most `max` bytes of one datagram without a copy, where it came through memory.
    ///
    /// # Errors
    ///
    /// As [`crate::Datagram::recv`].
    pub fn borrow_datagram(
        self: &Arc<Socket>,
        max: usize,
        flags: RecvFlags,
    ) -> Result<(View, Received, SocketAddr)> {
        let mut to = To::View { max, taken: Taken::Heap(Vec::new()), of: None };
        let mut from = SocketAddr::unnamed();
        let flags = flags & RecvFlags::DONTWAIT;
        let received = self.recv_to(&mut to, flags, Some(&mut from), &mut Call::plain())?;
        let (taken, of) = match to {
            To::View { taken, of, .. } if !received.is_end() => (taken, of),
            _ => (Taken::Heap(Vec::new()), None),
        };
        let front: Weak<Socket> = Arc::downgrade(self);
        let end = of.unwrap_or_else(|| front.clone());
        let owner = Owner::new(end, front);
        Ok((View::of_datagram(owner, taken), received, from))
    }

    fn recv_to(
        &self,
        to: &mut To<'_, '_>,
        flags: RecvFlags,
        from: Option<&mut SocketAddr>,
        call: &mut Call<'_>,
    ) -> Result<Received> {
        let received = self.recv_datagram_now(to, flags, from, call);
        if matches!(&received, Err(error) if error.raw_os_error() == Errno::CONNRESET.raw_os_error()) {
            self.mirror_after_reset();
        }
        received
    }

    /// Brings the mirrored readiness up to date after the program was told of a reset. While a reset is
    /// pending doorbells cannot be taken: the receive that takes one would be told the reset instead of the
    /// program.
    #[cold]
    pub fn mirror_after_reset(&self) {
        if let Rx::Ring(rx) = &mut *self.rx().lock() {
            // If the doorbells are wrong, the next call tells.
            let _ = rx.mirror_empty(self);
        }
    }

    /// Returns the name of the peer whose datagrams are in the ring. The kernel knows the name of the
    /// connected peer. Once the kernel has told this side that the peer is gone, it knows none; then it is
    /// the name that the pairing noted.
    fn sender_name(&self) -> SocketAddr {
        let known = || self.known_pairing().and_then(|pairing| pairing.sender());
        self.peer_addr().ok().or_else(known).unwrap_or_else(SocketAddr::unnamed)
    }

    fn recv_datagram_now(
        &self,
        to: &mut To<'_, '_>,
        flags: RecvFlags,
        from: Option<&mut SocketAddr>,
        call: &mut Call<'_>,
    ) -> Result<Received> {
        self.pair_now_and_then();
        let mut waiting = Waiting::new(0);
        loop {
            self.error_first()?;
            match self.ready(flags, &mut waiting)? {
                Ready::Ring(guard, available) => {
                    let received = match to {
                        To::Slices(slices) => self.recv_frame(guard, slices, available, flags, call)?,
                        To::View { max, taken, .. } => match self.take_frame(guard, available, *max)? {
                            Lending::Taken(bytes, received) => {
                                *taken = bytes;
                                received
                            }
                            // Of datagrams there are none: a peer that sends a list has misbehaved.
                            Lending::List(..) | Lending::Again => continue,
                        },
                    };
                    if let Some(from) = from {
                        *from = self.sender_name();
                    }
                    return Ok(received);
                }
                Ready::End => return Ok(Received::end()),
                Ready::Kernel(..) | Ready::Plain => {}
            }
            if let Some((received, name)) = self.recv_queued(to, flags, &mut waiting, call)? {
                if let Some(from) = from {
                    *from = name;
                }
                return Ok(received);
            }
        }
    }

    /// Receives from the kernel's queue, and waits. Returns None if the peer's ring came into use meanwhile.
    fn recv_queued(
        &self,
        to: &mut To<'_, '_>,
        flags: RecvFlags,
        waiting: &mut Waiting,
        call: &mut Call<'_>,
    ) -> Result<Option<(Received, SocketAddr)>> {
        let error = |errno| Error::new(Op::Recv, errno);
        let peek = flags.contains(RecvFlags::PEEK);
        let mut kernel = rustix::net::RecvFlags::TRUNC | rustix::net::RecvFlags::DONTWAIT;
        kernel.set(rustix::net::RecvFlags::PEEK, peek);
        let (mut ended, mut controls) = (false, 0);
        loop {
            let (mut empty, dontwait) = (false, waiting.does_not_wait(self, flags));
            if self.take_noted_reset() {
                return Err(error(Errno::CONNRESET));
            }
            let mut guard = self.rx().lock();
            if !matches!(&*guard, Rx::Plain) {
                return Ok(None);
            }
            let mut fan_in = self.fan_in().map(FanInReceiver::lock);
            if let Some(fan_in) = &mut fan_in
                && let Some(received) = self.recv_in_turn(fan_in, to, flags, call)?
            {
                return Ok(Some(received));
            }
            let pairing = self.known_pairing();
            if let Some(pairing) = pairing
                && pairing.is_counting()
            {
                let next = self.look_for_switch(pairing, &mut guard);
                match next.map_err(|misbehaved| self.misbehaved(Op::Recv, misbehaved))? {
                    Head::Switched => return Ok(None),
                    Head::Other if self.is_reset_noted() => continue, // the look consumed the reset
                    Head::Other => {}
                    // A message that arrives after this look could be a doorbell, so do not receive now.
                    Head::Nothing => empty = true,
                }
            }
            if let To::View { max, taken, .. } = to
                && !empty
            {
                match self.room_for_next(*max) {
                    Ok(room) => *taken = Taken::Heap(vec![0; room]),
                    Err(_) if self.is_reset_noted() => continue, // the look consumed the reset
                    // A message that arrives now may be longer than any room.
                    Err(Errno::AGAIN) => empty = true,
                    Err(errno) => return Err(error(errno)),
                }
            }
            point!("about to receive");
            let mut pieces: Vec<IoSliceMut<'_>> = match to {
                To::Slices(slices) => {
                    slices.iter_mut().take(IOV_MAX).map(|slice| IoSliceMut::new(slice)).collect()
                }
                To::View { taken: Taken::Heap(bytes), .. } => vec![IoSliceMut::new(bytes)],
                To::View { .. } => Vec::new(),
            };
            let mut room: usize = pieces.iter().map(|piece| piece.len()).sum();
            let mut behind = [0; CONTROL_LEN];
            if fan_in.is_some() && room < CONTROL_LEN {
                // A control message that was cut could not be told from a datagram any more, and one may come
                // at any moment.
                if pieces.len() == IOV_MAX {
                    room -= pieces.pop().map_or(0, |piece| piece.len());
                }
                pieces.push(IoSliceMut::new(&mut behind));
            }
            let (mut unasked, mut control) = (Fds::default(), None);
            let came = match call.fds() {
                _ if empty => Err(Errno::AGAIN),
                None if pairing.is_none() && fan_in.is_none() => {
                    scm::recv(self.fd(), &mut pieces, Space::None, kernel)
                }
                fds => {
                    let asked = fds.is_some();
                    let fds = fds.unwrap_or(&mut unasked);
                    let came = fds.recv(self.fd(), &mut pieces, kernel);
                    // Loaded only now: another thread may just have given the token away.
                    let token = pairing.map_or(0, |pairing| pairing.token());
                    control = ControlMessage::take_from(fds, token, fan_in.is_some());
                    came.map(|mut came| {
                        // The kernel sets MSG_CTRUNC for a caller without room only if something came
                        // (net/core/scm.h: scm_recv).
                        came.control_cut |= !asked && fds.has_some();
                        came
                    })
                }
            };
            if let Some(fan_in) = &mut fan_in {
                if let (Some(control @ ControlMessage::Join { .. }), Ok(message), false) =
                    (control, &came, peek)
                {
                    self.handle_join(fan_in, control, name_of(message));
                }
                match &came {
                    Ok(message)
                        if message.bytes == CONTROL_LEN
                            && self.is_control(fan_in, &pieces, message, peek) =>
                    {
                        if let Some(fds) = call.fds() {
                            *fds = Fds::default();
                        }
                        controls += 1;
                        if controls % CONTROLS == 0 {
                            // Some sender rings as fast as this loop takes. Let the lanes have their turns,
                            // and do not hold up a call that must not wait.
                            fan_in.kernel_had_its_turn();
                            waiting.ask_whether_to_wait(self, flags);
                            if waiting.does_not_wait(self, flags) && self.leave_for_now(fan_in) {
                                return Err(error(Errno::AGAIN));
                            }
                        }
                        continue;
                    }
                    Ok(_) => {
                        if !peek {
                            fan_in.kernel_had_its_turn();
                        }
                        self.call_who_switched(fan_in);
                        self.mirror_fan_in(fan_in);
                    }
                    Err(Errno::AGAIN) if self.arm_lanes(fan_in) => continue,
                    Err(_) => {}
                }
            } else if came.is_ok() && !peek {
                self.begin_fan_in();
            }
            if let (Some(pairing), Ok(_), false) = (pairing, &came, peek) {
                self.received_datagram(pairing, control);
            }
            let asleep = match (&came, self.fan_in()) {
                (Err(Errno::AGAIN), Some(fan_in)) if !dontwait && !ended => Some(Asleep::at(fan_in)),
                _ => None,
            };
            drop(fan_in);
            drop(guard);
            match came {
                Ok(message) => {
                    let len = message.bytes.min(room);
                    if let To::View { taken: Taken::Heap(bytes), .. } = to {
                        bytes.truncate(len);
                    }
                    self.counters().kernel_copied.add(len);
                    if !peek {
                        self.counters().received.add(len);
                    }
                    let address = message.name.and_then(|name| unix_address(*name));
                    let name = address.map_or_else(SocketAddr::unnamed, |address| SocketAddr::of(&address));
                    let mut received = Received::atomic(len, message.bytes);
                    received.flags.set(ReceivedFlags::CTRUNC, message.control_cut);
                    return Ok(Some((received, name)));
                }
                Err(Errno::AGAIN) if ended => return Ok(Some((Received::end(), SocketAddr::unnamed()))),
                Err(Errno::AGAIN) if !dontwait => {}
                Err(Errno::AGAIN) if waiting.was_wrong(self, dontwait, flags) => continue,
                Err(errno) => return Err(error(errno)),
            }
            let woken = waiting.sleep(self);
            drop(asleep);
            match woken? {
                // A look cannot tell an empty datagram from the end, so ask the kernel whether this is the
                // end.
                Peek::End => ended = control::hung_up(self.fd()),
                Peek::Failed(errno) => {
                    self.take_noted_reset();
                    return Err(error(errno));
                }
                Peek::Byte | Peek::Nothing => {}
            }
        }
    }
}
