//! Waiting for something to receive.
//!
//! [`Connection::ready`] is the loop of every receive. It takes the receiving side and looks: data comes
//! first, then the error, then the end. Where there is none of these, `idle.rs` says what to do next, and the
//! loop looks again, asks the kernel, or sleeps.

use crate::connection::Connection;
use crate::connection::idle::Waiting;
use crate::connection::idle::{Idle, LONGEST_SPIN};
use crate::connection::rx::Rx;
use crate::connection::side::SideGuard;
use crate::control;
use crate::control::Peek;
use crate::core::kind::Kind;
use crate::members::patience::{BRIEFLY, stuck};
use onecopy_ring::Consumer;
use onecopy_socket::{Error, Op, RecvFlags, Result, Wait};
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sync::spin;
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::time::Duration;

/// What a receive may take now.
pub enum Ready<'a> {
    /// The ring has that many bytes. The guard holds the receiving side.
    Ring(SideGuard<'a, Rx>, usize),
    /// The kernel may have bytes, of which at most that many are bytes of the stream.
    Kernel(SideGuard<'a, Rx>, usize),
    /// The peer is plain: the kernel decides everything.
    Plain,
    /// The end of the stream.
    End,
}

impl Connection {
    /// Waits until there is something to receive, as far as `flags` and the settings allow.
    ///
    /// # Errors
    ///
    /// EAGAIN, EINTR, ECONNRESET, EPROTO.
    pub fn ready(&self, flags: RecvFlags, waiting: &mut Waiting) -> Result<Ready<'_>> {
        self.check(Op::Recv)?;
        loop {
            let dontwait = waiting.does_not_wait(self, flags);
            let asleep = !dontwait && self.settings().wait() != Wait::Spin;
            let mut guard = match self.rx.lock_within(|| waiting.patience(self, dontwait)) {
                Some(guard) => guard,
                None if waiting.waits_on_for_lock(self, flags) => continue,
                None => return Err(self.kept(waiting.does_not_wait(self, flags))),
            };
            if let Some(misbehaved) = guard.misbehaved() {
                return Err(self.misbehaved(Op::Recv, misbehaved));
            }
            let misbehaved = |misbehaved| self.misbehaved(Op::Recv, misbehaved);
            let idle = match &mut *guard {
                Rx::Plain => return Ok(Ready::Plain),
                Rx::Undecided(_) | Rx::Switching(_) => match self.kernel_ready(&mut guard)? {
                    Some(0) => {
                        waiting.over_kernel = false;
                        Idle::Again
                    }
                    Some(limit) => return Ok(Ready::Kernel(guard, limit)),
                    None => {
                        point!("nothing over the kernel");
                        waiting.over_kernel = true;
                        Idle::Ask
                    }
                },
                Rx::Ring(ring) => {
                    waiting.over_kernel = false;
                    if waiting.slept {
                        // The two cache lines that the peer wrote then come from its cache at the same time.
                        ring.consumer.prefetch();
                    }
                    let mut n = ring.consumer.available(1).map_err(misbehaved)?;
                    if n > 0 {
                        ring.doorbells.is_explained();
                        if waiting.slept
                            && n <= waiting.takes
                            && ring.consumer.before_mark(n).map_err(misbehaved)? == n
                        {
                            n = ring.settle_ahead(self, n).map_err(misbehaved)?;
                        }
                        if let Some(start) = waiting.start.take_if(|_| waiting.slept) {
                            ring.spin.slept(start.elapsed());
                        }
                        return Ok(Ready::Ring(guard, n));
                    }
                    let idle = ring.ring_idle(self, waiting, !dontwait).map_err(misbehaved)?;
                    if matches!(idle, Idle::Again) && !waiting.slept {
                        // A receive that spun until data came takes it without letting go of the lock.
                        let n = ring.consumer.available(1).map_err(misbehaved)?;
                        if n > 0 {
                            ring.doorbells.is_explained();
                            return Ok(Ready::Ring(guard, n));
                        }
                    }
                    idle
                }
            };
            let idle = match (idle, waiting.told.take()) {
                (Idle::Sleep, Some(Peek::Byte) | None) if !asleep => Idle::Ask,
                // Another call may have taken the byte since the last sleep. What else the kernel said still
                // holds.
                (Idle::Sleep | Idle::Ask, Some(told @ (Peek::End | Peek::Failed(_)))) => {
                    return self.at_end(told);
                }
                (idle, _) => idle,
            };
            match idle {
                Idle::Again => continue,
                Idle::Over => {
                    *guard = Rx::Plain;
                    return Ok(Ready::Plain);
                }
                Idle::Sleep => {}
                Idle::Nap if waiting.was_wrong(self, dontwait, flags) => continue,
                // The one edge of the hang-up may be over: what a peer that is gone left in the queue must
                // not hide the end.
                Idle::Nap if dontwait && !self.hung_up() => {
                    return Err(Error::new(Op::Recv, Errno::AGAIN));
                }
                Idle::Nap => {
                    drop(guard);
                    self.nap(waiting)?;
                    continue;
                }
                Idle::Ask => match self.ask() {
                    Peek::Byte | Peek::Nothing if !asleep && waiting.was_wrong(self, dontwait, flags) => {
                        continue;
                    }
                    // The byte came just now, or `ring_idle` has explained it.
                    Peek::Byte if dontwait && matches!(&*guard, Rx::Ring(_)) => {
                        if self.is_empty(&mut guard)? {
                            // The look before may have reported the error that comes before the end.
                            if self.kind() == Kind::Datagram || !self.hung_up() {
                                return Err(Error::new(Op::Recv, Errno::AGAIN));
                            }
                            if let Rx::Ring(ring) = &mut *guard {
                                ring.doorbells.drain(self);
                            }
                        }
                        continue;
                    }
                    // A receive that spins never sleeps, but it too must find out about a byte that nothing
                    // explains. From here on `ring_idle` asks what the byte is.
                    Peek::Byte if !asleep && matches!(&*guard, Rx::Ring(_)) => {
                        waiting.left(self)?;
                        waiting.slept = true;
                        self.let_in(guard);
                        continue;
                    }
                    Peek::Byte => continue,
                    Peek::Nothing if dontwait => return Err(Error::new(Op::Recv, Errno::AGAIN)),
                    Peek::Nothing if !asleep && matches!(&*guard, Rx::Ring(_)) => {
                        waiting.left(self)?;
                        if self.kind() == Kind::Datagram && control::hung_up(self.fd()) {
                            // It was shut down, which the kernel tells only a thread that sleeps in a
                            // receive.
                            return Ok(Ready::End);
                        }
                        // Other threads want to look, or to give back what they have borrowed. The sender may
                        // wait for that.
                        self.let_in(guard);
                        continue;
                    }
                    Peek::Nothing => {}
                    // What was published before the end comes first.
                    end if self.is_empty(&mut guard)? => return self.at_end(end),
                    _ => continue,
                },
            }
            waiting.shared = guard.is_shared();
            if waiting.shared && !waiting.slept && self.settings().wait() == Wait::Adaptive {
                if self.spin_unlocked(guard) {
                    continue;
                }
            } else {
                drop(guard);
            }
            waiting.told = Some(waiting.sleep(self)?);
            // A fork meanwhile may have left the end to another process.
            self.check(Op::Recv)?;
        }
    }

    /// Returns how many bytes of the stream the kernel has, at most. Some(0) means: look again, since the
    /// peer has switched and the ring is next, or something else has changed.
    pub(super) fn kernel_ready(&self, rx: &mut SideGuard<'_, Rx>) -> Result<Option<usize>> {
        if let Rx::Switching(switching) = &**rx
            && switching.carry().is_pending()
        {
            return Ok(Some(1));
        }
        // The order matters: see `handshake/upgrade.rs`.
        let queued = self.queued().map_err(|errno| Error::new(Op::Recv, errno))?;
        if self.is_joined(rx) {
            return Ok(Some(0));
        }
        let switching = match &mut **rx {
            Rx::Undecided(_) => return Ok(Some(queued).filter(|queued| *queued > 0)),
            Rx::Switching(switching) => switching,
            _ => return Ok(Some(0)),
        };
        let left = switching.left().map_err(|misbehaved| self.misbehaved(Op::Recv, misbehaved))?;
        if left != Some(0) {
            let left = left.map_or(queued, |left| usize::try_from(left).unwrap_or(usize::MAX));
            return Ok(Some(queued.min(left)).filter(|limit| *limit > 0));
        }
        let (ring, recovered) = (switching.ring().clone(), switching.is_recovered());
        **rx = Rx::ring(Consumer::new(ring));
        point!("switched");
        if let Rx::Ring(ring) = &mut **rx
            && recovered
        {
            ring.recover_from_death(self);
        }
        if self.passes_identity() {
            self.pass_no_doorbells().map_err(|errno| Error::new(Op::Recv, errno))?;
        }
        Ok(Some(0))
    }

    fn is_empty(&self, rx: &mut Rx) -> Result<bool> {
        match rx {
            Rx::Ring(ring) => {
                let n =
                    ring.consumer.available(1).map_err(|misbehaved| self.misbehaved(Op::Recv, misbehaved))?;
                Ok(n == 0)
            }
            // The peer may have joined and switched since the last look, and a doorbell that a shutdown
            // overtook is not in the queue.
            Rx::Switching(switching) => Ok(switching.left() != Ok(Some(0))),
            Rx::Undecided(_) => Ok(!self.is_joined(rx)),
            Rx::Plain => Ok(true),
        }
    }

    /// Returns the error, once, then the end. The ring is empty and the kernel has nothing either.
    fn at_end(&self, peek: Peek) -> Result<Ready<'_>> {
        match peek {
            Peek::Failed(Errno::CONNRESET) => {
                self.forget_reset();
                if self.was_reset() { Err(Error::new(Op::Recv, Errno::CONNRESET)) } else { Ok(Ready::End) }
            }
            Peek::Failed(errno) => Err(Error::new(Op::Recv, errno)),
            _ => Ok(Ready::End),
        }
    }

    /// Takes the filler of a sender that waits for room, if there is as much as it waits for.
    #[cold]
    pub fn unpark(&self) -> Result<()> {
        match &mut *self.lock_rx(Op::Recv)? {
            Rx::Ring(ring) => ring.unpark(self).map_err(|misbehaved| self.misbehaved(Op::Recv, misbehaved)),
            _ => Ok(()),
        }
    }
}

/// How long to sleep on the clock where readiness tells nothing.
const NAP: Duration = Duration::from_millis(1);

impl Connection {
    /// Lets other threads have the lock for a moment. For a receive that spins.
    pub(super) fn let_in(&self, guard: SideGuard<'_, Rx>) {
        if guard.is_shared() {
            self.spin_unlocked(guard);
        } else {
            drop(guard.give_way());
        }
    }

    /// Spins without the lock: other processes want it too, and any of them may be stopped at any moment.
    /// Returns whether something came.
    #[cold]
    pub(super) fn spin_unlocked(&self, mut guard: SideGuard<'_, Rx>) -> bool {
        let Rx::Ring(ring) = &mut *guard else { return false };
        let budget = if self.settings().wait() == Wait::Spin { LONGEST_SPIN } else { ring.spin.budget() };
        let (seen, header) = (ring.consumer.position(), ring.consumer.ring().clone());
        drop(guard);
        // Relaxed: the next look, with the lock, finds out whether it is true and what it brings.
        let came = || header.header().writer.0.head.load(Relaxed) != seen;
        budget > 0 && spin::until(budget, came).is_ok()
    }

    /// Returns the error of a receive that did not get the lock.
    #[cold]
    pub(super) fn kept(&self, dontwait: bool) -> Error {
        if !dontwait && self.settings().read_timeout().is_none() {
            return stuck(Op::Recv);
        }
        self.others().turn_receiver_away();
        Error::new(Op::Recv, Errno::AGAIN)
    }

    /// Sleeps a moment, where the queue's readiness does not tell what it waits for: the filler of a sender
    /// is there, and must wait for room. Wakes at once when the peer goes.
    pub(super) fn nap(&self, waiting: &mut Waiting) -> Result<()> {
        let nap = waiting.left(self)?.map_or(NAP, |left| left.min(NAP));
        match control::wait(self.life(), PollFlags::RDHUP, Some(nap)) {
            Ok(_) => {
                if let Some(mut rx) = self.rx.lock_within(|| BRIEFLY)
                    && let Rx::Ring(ring) = &mut *rx
                {
                    ring.doorbells.drain(self);
                }
                Ok(())
            }
            Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(Error::new(Op::Recv, errno)),
        }
    }
}
