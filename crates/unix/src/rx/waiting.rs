//! How a receive waits: it spins for a while, with the lock or without, then sleeps on the control socket.

use super::{Rx, RxRing};
use crate::control::{self, Peek};
use crate::end::{BRIEFLY, End, STUCK, stuck};
use crate::making::Kind;
use crate::side::SideGuard;
use crate::{Error, Op, RecvFlags, Result, Wait};
use onecopy_ring::Lie;
use onecopy_sync::atomic::AtomicU32;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sync::spin;
use onecopy_sys::signal;
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Sleep on the clock where readiness tells nothing.
const NAP: Duration = Duration::from_millis(1);
/// Between two looks of one who spins at the control socket, in nanoseconds.
const LONGEST_SPIN: u32 = 1_000_000;

/// A receive's sleeps, added up.
pub struct Waiting {
    /// When the caller began to wait, for the timeout.
    pub(super) began: Option<Instant>,
    /// When the wait for the next byte began, for what is learnt from it.
    pub(super) start: Option<Instant>,
    /// What the kernel said at the end of the last sleep.
    pub(super) told: Option<Peek>,
    /// The next bytes come over the kernel, where other processes that share the end may be receiving.
    pub(super) over_kernel: bool,
    pub(super) slept: bool,
    /// At the last look processes shared the end.
    pub(super) shared: bool,
    pub(super) empty_bells: u32,
    /// O_NONBLOCK, once the kernel was asked.
    nonblocking: Option<bool>,
    /// Bytes that the caller will surely take if they are there and no mark lies among them.
    pub takes: usize,
}

impl Waiting {
    /// Of a caller who will take as many as `takes` bytes if they are there; 0 if he may leave any.
    pub fn new(takes: usize) -> Waiting {
        Waiting {
            began: None,
            start: None,
            told: None,
            over_kernel: false,
            slept: false,
            shared: false,
            empty_bells: 0,
            nonblocking: None,
            takes,
        }
    }
}

/// One of this process's threads that sleep for something to receive.
struct Asleep<'a> {
    count: &'a AtomicU32,
    alone: bool,
}

impl Asleep<'_> {
    fn one_of(count: &AtomicU32) -> Asleep<'_> {
        // Relaxed: of two that come at once one finds the other, which is all.
        Asleep { alone: count.fetch_add(1, Relaxed) == 0, count }
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Relaxed);
    }
}

impl End {
    /// Spins for data as far as the settings and experience allow. Returns whether it came.
    pub(super) fn spin(&self, ring: &mut RxRing, waiting: &mut Waiting) -> std::result::Result<bool, Lie> {
        let budget = match self.settings.wait() {
            Wait::Block => return Ok(false),
            Wait::Spin => LONGEST_SPIN,
            // After a sleep there is nothing to be gained.
            Wait::Adaptive if waiting.slept => return Ok(false),
            Wait::Adaptive => ring.spin.budget(),
        };
        if budget == 0 {
            waiting.start.get_or_insert_with(Instant::now);
            return Ok(false);
        }
        let mut lie = None;
        let consumer = &mut ring.consumer;
        if consumer.is_shared() {
            // Not with a lock that other processes want: `spin_unlocked`.
            return Ok(false);
        }
        let spun = spin::until(budget, || match consumer.available(1) {
            Ok(0) => {
                consumer.prefetch();
                false
            }
            Ok(_) => true,
            Err(found) => {
                lie = Some(found);
                true
            }
        });
        if let Some(lie) = lie {
            return Err(lie);
        }
        match spun {
            Ok(took) => {
                ring.spin.paid(took);
                self.counters.spins.add_exclusive(1);
                Ok(true)
            }
            Err(start) => {
                ring.spin.in_vain();
                waiting.start.get_or_insert(start);
                // Asked to spin: look at the control socket now and then, and go on.
                Ok(false)
            }
        }
    }

    /// For who spins: lets others have the lock for a moment.
    pub(super) fn let_in(&self, guard: SideGuard<'_, Rx>) {
        if guard.is_shared() {
            self.spin_unlocked(guard);
        } else {
            drop(guard.give_way());
        }
    }

    /// Spins without the lock, which other processes want too, one of which may be stopped at any moment. Returns whether
    /// something came.
    #[cold]
    pub(super) fn spin_unlocked(&self, mut guard: SideGuard<'_, Rx>) -> bool {
        let Rx::Ring(ring) = &mut *guard else { return false };
        let budget = if self.settings.wait() == Wait::Spin { LONGEST_SPIN } else { ring.spin.budget() };
        let (seen, header) = (ring.consumer.position(), ring.consumer.ring().clone());
        drop(guard);
        // Relaxed: whether it is true, and what it brings, is found out with the lock.
        let came = || header.header().writer.0.head.load(Relaxed) != seen;
        budget > 0 && spin::until(budget, came).is_ok()
    }

    /// Whether a receive must not wait, as far as is known.
    pub fn does_not_wait(&self, flags: RecvFlags, waiting: &Waiting) -> bool {
        flags.contains(RecvFlags::DONTWAIT)
            || waiting.nonblocking.unwrap_or_else(|| self.settings.nonblocking())
    }

    /// Where a receive is about to wait, or to say EAGAIN by what is remembered: asks the kernel, once a call. Whether it was asked
    /// now.
    pub fn ask_whether_to_wait(&self, flags: RecvFlags, waiting: &mut Waiting) -> bool {
        let ask = !flags.contains(RecvFlags::DONTWAIT) && waiting.nonblocking.is_none();
        if ask {
            waiting.nonblocking = Some(self.is_nonblocking());
        }
        ask
    }

    /// As [`End::ask_whether_to_wait`]: whether it is not as the call went by, which then has to look again.
    pub fn was_wrong(&self, dontwait: bool, flags: RecvFlags, waiting: &mut Waiting) -> bool {
        self.ask_whether_to_wait(flags, waiting) && waiting.nonblocking != Some(dontwait)
    }

    /// How long to wait for the lock: not for long, until it is known that the call may.
    pub(super) fn patience(&self, dontwait: bool, waiting: &mut Waiting) -> Duration {
        if dontwait {
            return BRIEFLY;
        }
        let left = self.left(waiting).map_or(BRIEFLY, |left| left.unwrap_or(STUCK));
        if waiting.nonblocking.is_none() { left.min(BRIEFLY) } else { left }
    }

    /// Whether a receive that did not get the lock goes on waiting for it.
    #[cold]
    pub(super) fn waits_on_for_lock(&self, flags: RecvFlags, waiting: &mut Waiting) -> bool {
        let asked = self.ask_whether_to_wait(flags, waiting);
        asked && !self.does_not_wait(flags, waiting) && self.left(waiting).is_ok()
    }

    /// What a receive says that did not get the lock.
    #[cold]
    pub(super) fn kept(&self, dontwait: bool) -> Error {
        if !dontwait && self.settings.read_timeout().is_none() {
            return stuck(Op::Recv);
        }
        self.turn_receiver_away();
        Error::new(Op::Recv, Errno::AGAIN)
    }

    /// What is left of the read timeout, if there is one.
    pub(super) fn left(&self, waiting: &mut Waiting) -> Result<Option<Duration>> {
        let began = *waiting.began.get_or_insert_with(Instant::now);
        control::remaining(began, self.settings.read_timeout()).map_err(|errno| Error::new(Op::Recv, errno))
    }

    /// Sleeps a moment, for what the queue's readiness does not tell: room for a sender whose filler lies there.
    /// Wakes at once when the peer goes.
    pub(super) fn nap(&self, waiting: &mut Waiting) -> Result<()> {
        let nap = self.left(waiting)?.map_or(NAP, |left| left.min(NAP));
        match control::wait(self.life(), PollFlags::RDHUP, Some(nap)) {
            Ok(_) => {
                if let Some(mut rx) = self.rx.lock_within(|| BRIEFLY)
                    && let Rx::Ring(ring) = &mut *rx
                {
                    ring.drain(self);
                }
                Ok(())
            }
            Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(Error::new(Op::Recv, errno)),
        }
    }

    /// Sleeps until something is in the queue, and says what.
    pub fn sleep(&self, waiting: &mut Waiting) -> Result<Peek> {
        waiting.slept = true;
        let now = Instant::now();
        waiting.start.get_or_insert(now);
        waiting.began.get_or_insert(now);
        self.counters.sleeps.add(1);
        let error = |errno| Error::new(Op::Recv, errno);
        // One byte may ring for many records, and of those asleep in recv(2) for records the kernel wakes one for it (net/core/
        // datagram.c: __skb_wait_for_more_packets waits exclusively; of a stream all wake). So there is one in recv(2) at most, and
        // the others are in poll(2), which wakes all of them besides.
        let asleep = Asleep::one_of(&self.sleepers);
        let not_alone = self.kind.has_records() && (waiting.shared || !asleep.alone);
        match self.settings.read_timeout() {
            None if !not_alone => {
                match if waiting.over_kernel { control::wait_for_any(self.fd()) } else { self.peek(true) } {
                    Peek::Nothing => {
                        // O_NONBLOCK was set by others, of which the next call is to know.
                        self.is_nonblocking();
                        Err(error(Errno::AGAIN))
                    }
                    Peek::Failed(Errno::CONNRESET) => {
                        self.reset.store(1, Relaxed);
                        Ok(Peek::Failed(Errno::CONNRESET))
                    }
                    Peek::Failed(errno) => Err(error(errno)),
                    peek => Ok(peek),
                }
            }
            limit => {
                // poll(2) does not heed it. (A look then is what a receive does that does not wait.)
                let now = *waiting.nonblocking.get_or_insert_with(|| self.is_nonblocking());
                loop {
                    // Whose time is over looks once more all the same: this thread may have been kept from it until now.
                    let left = self.left(waiting).unwrap_or(Some(Duration::ZERO));
                    let left = if now { Some(Duration::ZERO) } else { left };
                    match control::wait(self.fd(), PollFlags::IN, left) {
                        // recv(2) without a limit would go on.
                        Err(Errno::INTR) if limit.is_none() && signal::all_restart() => {}
                        done => break done.map(drop).map_err(error)?,
                    }
                }
                if waiting.over_kernel {
                    // What it is, is looked at with the lock in hand.
                    return Ok(Peek::Byte);
                }
                Ok(match self.ask() {
                    Peek::Nothing if now => return Err(error(Errno::AGAIN)),
                    // A datagram socket that is shut down says so only to who sleeps in a receive.
                    Peek::Nothing if self.kind == Kind::Datagram && control::hung_up(self.fd()) => Peek::End,
                    peek => peek,
                })
            }
        }
    }
}
