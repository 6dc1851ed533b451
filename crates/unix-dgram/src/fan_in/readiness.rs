//! Receiving from lanes and from the kernel's queue in turns, so that no sender waits behind what another one
//! sends.
//!
//! **Turns.** The receiver takes a datagram from the next lane that has one. After [`TURN`] of them it is the
//! kernel's turn, which costs a system call. It is also the kernel's turn whenever no lane has anything. So a
//! lane with a datagram waits for at most one datagram of each other lane that has any, once it was looked at; of those that had nothing only eight are looked at
//! for each datagram. A datagram in the kernel's queue waits for at most [`TURN`] of the lanes', besides those before it in the queue.
//!
//! **Readiness.** poll(2) watches the kernel's queue, and receivers sleep on it. The receiver arms a lane
//! that it found empty, and that lane's sender rings with the next datagram. If a lane that is not armed has
//! something left, and somebody may poll or sleep, there is a *token* in the queue, which this socket has
//! sent to itself. The token stays there while lanes have something; the kernel's turns take it and leave it
//! again. So while datagrams come faster than they are received, readiness costs less than one system call
//! for four of them. Every message there that is no datagram stands for something in a lane. Once the lanes
//! are empty, the receiver takes doorbells and tokens from the head of the queue, so that it is readable only
//! for a datagram.
//!
//! All of this happens under the lock of the receiving side.

use crate::fan_in::receiver::{FanIn, LANES};
use crate::socket::Socket;
use crate::to::To;
use crate::wire::control_message::{CONTROL_LEN, ControlMessage};
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::scm::{self, Message, Space};
use onecopy_sys::socket::unix_address;
use onecopy_unix::connection::Connection;
use onecopy_unix::connection::call::Call;
use onecopy_unix::connection::received::Taken;
use onecopy_unix::connection::rx::Rx;
use onecopy_unix::control;
use onecopy_unix::{Received, RecvFlags, Result, SocketAddr};
use rustix::io::{self, Errno};
use std::io::IoSliceMut;
use std::sync::{Arc, Weak};

/// Datagrams from lanes between two looks into the kernel's queue, while all lanes have some.
pub const TURN: u32 = 16;
/// Control messages that are taken in one go. A queue holds that many at a time, and a sender with a lane may
/// go on sending them.
pub const CONTROLS: u32 = 64;
/// Looks at lanes that seem empty while control messages come. After so many the socket is left readable even
/// if it has nothing.
const LOOKS: u32 = 4;
/// Receives between two looks at which senders have died.
const RARELY: u32 = 64;

impl Socket {
    /// Receives from the lane whose turn it is. Returns None if it is the kernel's turn.
    ///
    /// # Errors
    ///
    /// EMFILE: this process has no room for the descriptors of the next datagram. EBUSY: another process has
    /// what the next datagram needs, one that this process was forked from or has forked. The datagram stays,
    /// and the next lane has its turn. A sender's misbehaviour is no error: it costs the lane.
    pub fn recv_in_turn(
        &self,
        fan_in: &mut FanIn,
        to: &mut To<'_, '_>,
        flags: RecvFlags,
        call: &mut Call<'_>,
    ) -> Result<Option<(Received, SocketAddr)>> {
        fan_in.left = fan_in.left.checked_sub(1).unwrap_or_else(|| {
            fan_in.look_who_died();
            fan_in.let_in();
            RARELY
        });
        if fan_in.closing
            && let Some(all) = self.fan_in()
            && fan_in.next(self).is_none()
            && !fan_in.arm(self)
        {
            // This comes before the look into the kernel's queue, where the peer may have said that it shares
            // memory.
            fan_in.end(all);
        }
        if fan_in.lanes.is_empty() {
            return Ok(None);
        }
        // A pending error comes before what is queued (net/core/datagram.c: __skb_try_recv_datagram), and only
        // a socket that is connected has one.
        if fan_in.closing && control::is_failed(self.fd()) {
            return Ok(None);
        }
        // A sender that has switched waits for what is left of its own in the kernel's queue, which is not
        // long.
        if (fan_in.look_who_switched() || fan_in.since_kernel >= TURN) && !fan_in.closing {
            return Ok(None);
        }
        // Another process that shares the lanes may take what this one has seen.
        for _ in 0..2 * LANES {
            let Some(at) = fan_in.next(self) else { return Ok(None) };
            let member = &fan_in.lanes[at];
            let came = match to {
                To::Slices(slices) => member.end.recv_record_with(slices, flags | RecvFlags::DONTWAIT, call),
                To::View { max, taken, of } => member.end.take_record(*max).map(|(bytes, received)| {
                    let lane: Weak<Connection> = Arc::downgrade(&member.end);
                    *taken = bytes;
                    *of = Some(lane);
                    received
                }),
            };
            if came.as_ref().map_or(true, Received::is_end) {
                // The failed receive may have brought descriptors or credentials. They do not belong to the
                // next datagram.
                call.forget();
            }
            match came {
                Ok(received) if !received.is_end() => {
                    let name = member.name.clone();
                    if flags.contains(RecvFlags::PEEK) {
                        fan_in.turns.again(at);
                    } else {
                        fan_in.had_its_turn(at);
                        fan_in.since_kernel += 1;
                        self.counters().received.add(received.len);
                    }
                    if !matches!(to, To::View { taken: Taken::Ring { .. }, .. }) {
                        self.counters().user_copied_out.add(received.len);
                    }
                    self.mirror_fan_in(fan_in);
                    return Ok(Some((received, name)));
                }
                Ok(_) => fan_in.close(at),
                Err(error) if error.would_block() => fan_in.had_its_turn(at),
                Err(error) if error.raw_os_error() == Errno::CONNRESET.raw_os_error() => {}
                Err(error) if error.raw_os_error() == Errno::PROTO.raw_os_error() => {
                    self.counters().protocol_errors.add(1);
                    fan_in.close(at);
                }
                Err(error) if error.raw_os_error() == Errno::MFILE.raw_os_error() && member.forgo() => {}
                Err(error) => {
                    // The sender is not at fault, so it does not lose its other datagrams.
                    fan_in.had_its_turn(at);
                    self.mirror_fan_in(fan_in);
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// Handles an empty kernel queue. Returns whether lanes have something; if not, their senders ring for
    /// the next datagram.
    pub fn arm_lanes(&self, fan_in: &mut FanIn) -> bool {
        fan_in.kernel_had_its_turn();
        if fan_in.lanes.is_empty() {
            return false;
        }
        fan_in.let_switched();
        // Whatever a sender that is gone had still to say would have been in the queue.
        fan_in.keep(|member| member.live || !member.dead);
        for member in &mut fan_in.lanes {
            member.named |= member.dead;
        }
        let some = fan_in.next(self).is_some() || fan_in.arm(self);
        if !some && let Some(all) = self.fan_in() {
            fan_in.end(all);
        }
        some
    }

    /// Leaves a flood of control messages to a later call, since this one does not wait. Returns whether the
    /// lanes are empty too. Then their senders ring for the next datagram. The socket also becomes readable
    /// once more, for programs that poll and for what is behind the control messages.
    #[cold]
    pub fn leave_for_now(&self, fan_in: &mut FanIn) -> bool {
        if fan_in.next(self).is_some() || fan_in.arm(self) {
            return false;
        }
        fan_in.token = false;
        self.leave_token(fan_in);
        true
    }

    /// After a receive: keeps the socket readable while lanes have something, if somebody may look.
    pub fn mirror_fan_in(&self, fan_in: &mut FanIn) {
        let Some(all) = self.fan_in() else { return };
        if !self.is_mirrored() && all.sleepers.load(Relaxed) == 0 {
            return;
        }
        for _ in 0..LOOKS {
            fan_in.look_who_switched();
            if fan_in.next(self).is_some() || fan_in.arm(self) {
                break;
            }
            fan_in.end(all);
            point!("lanes are empty");
            if !self.handle_controls(fan_in) {
                return;
            }
            // One of them may have been a doorbell for what is in a lane by now, and lanes that have just
            // switched were not armed.
        }
        // After so many looks some sender rings as fast as this loop takes, so leave a token whether lanes
        // have something or not. Each token wakes one thread that sleeps, and only when it arrives.
        fan_in.token &= all.sleepers.load(Relaxed) == 0;
        self.leave_token(fan_in);
    }

    /// Takes control messages from the head of the kernel's queue. Returns whether there were any. Then lanes
    /// may have something that no doorbell will come for, and the caller must look at them.
    pub fn handle_controls(&self, fan_in: &mut FanIn) -> bool {
        let peek = rustix::net::RecvFlags::PEEK;
        for taken in 0..CONTROLS {
            let (message, wire) = match self.look_for_control(peek) {
                Ok(some) => some,
                Err(Errno::AGAIN) => return fan_in.let_switched() || taken > 0,
                Err(_) => return taken > 0,
            };
            let Some(control) = ControlMessage::decode(&wire).filter(|_| message.bytes == CONTROL_LEN) else {
                return taken > 0;
            };
            if !self.handle_control(fan_in, control, name_of(&message)) {
                return taken > 0;
            }
            let _ = self.look_for_control(rustix::net::RecvFlags::empty());
        }
        true
    }

    /// Looks at the head of the kernel's queue with PEEK among `flags`, or takes it.
    ///
    /// # Errors
    ///
    /// EAGAIN if there is none; what recvmsg(2) returns.
    pub fn look_for_control(
        &self,
        flags: rustix::net::RecvFlags,
    ) -> io::Result<(Message, [u8; CONTROL_LEN])> {
        let flags = flags | rustix::net::RecvFlags::DONTWAIT | rustix::net::RecvFlags::TRUNC;
        let mut wire = [0; CONTROL_LEN];
        match scm::recv(self.fd(), &mut [IoSliceMut::new(&mut wire)], Space::None, flags) {
            Ok(message) => Ok((message, wire)),
            Err(errno) => {
                if errno == Errno::CONNRESET {
                    // The kernel tells it once. Whichever call comes next reports it.
                    self.note_reset();
                }
                Err(errno)
            }
        }
    }

    /// Whether what was received into `slices` is a control message. If so it is handled, and taken from the
    /// queue if the receive was a peek.
    #[cold]
    pub fn is_control(
        &self,
        fan_in: &mut FanIn,
        slices: &[IoSliceMut<'_>],
        message: &Message,
        peek: bool,
    ) -> bool {
        let mut wire = [0; CONTROL_LEN];
        let mut bytes = slices.iter().flat_map(|slice| slice.iter());
        wire.iter_mut().zip(&mut bytes).for_each(|(to, from)| *to = *from);
        let Some(control) = ControlMessage::decode(&wire) else { return false };
        let from = name_of(message);
        if !self.handle_control(fan_in, control, from) {
            return false;
        }
        if peek {
            let _ = self.look_for_control(rustix::net::RecvFlags::empty());
        }
        true
    }

    /// Returns the bytes of the datagram that is received next, if it is in a lane.
    pub fn next_in_lanes(&self) -> Option<usize> {
        let mut fan_in = self.fan_in()?.lock();
        // Then a message in the kernel's queue comes first, if there is one.
        let kernels = (fan_in.look_who_switched() || fan_in.since_kernel >= TURN) && !fan_in.closing;
        let heeded = (kernels || fan_in.next(self).is_none()) && self.handle_controls(&mut fan_in);
        let theirs = kernels && self.look_for_control(rustix::net::RecvFlags::PEEK).is_ok();
        if heeded {
            // Those were to wake threads that poll or sleep.
            self.mirror_fan_in(&mut fan_in);
        }
        if theirs {
            return None;
        }
        let at = fan_in.next(self)?;
        let mut rx = fan_in.lanes[at].end.rx().try_lock()?;
        let Rx::Ring(ring) = &mut *rx else { return None };
        ring.next_datagram().ok()
    }

    /// Mirrors readiness from here on, since somebody may poll.
    pub fn reflect_fan_in(&self) {
        if let Some(fan_in) = self.fan_in() {
            self.mirror_fan_in(&mut fan_in.lock());
        }
    }

    /// Whether datagrams are received through memory.
    pub fn has_lanes(&self) -> bool {
        self.fan_in().is_some_and(|fan_in| fan_in.lock().lanes.iter().any(|member| member.live))
    }
}

/// Returns the name of the socket that has sent the message.
pub fn name_of(message: &Message) -> SocketAddr {
    let address = message.name.as_ref().and_then(|name| unix_address((**name).clone()));
    address.map_or_else(SocketAddr::unnamed, |address| SocketAddr::of(&address))
}
