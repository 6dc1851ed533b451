//! What a receiver does when its ring is empty.
//!
//! In this order: it takes the filler of a sender that waits for room, spins, takes doorbells and arms. Then
//! it asks the kernel whether a byte is left that nothing explains: such a byte means that the peer
//! misbehaves. At last it sleeps on the control socket ([`Waiting::sleep`]).

use crate::connection::rx::RxRing;
use crate::control;
use crate::control::Peek;
use crate::core::Core;
use crate::core::kind::Kind;
use crate::members::patience::{BRIEFLY, STUCK};
use onecopy_ring::PeerMisbehaved;
use onecopy_socket::{Error, Op, RecvFlags, Result, Wait};
use onecopy_sync::spin;
use onecopy_sys::signal;
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// How often one call believes a doorbell for which there was no data.
const MAX_EMPTY_DOORBELLS: u32 = 64;

/// What a receive does next when there is nothing to receive.
pub enum Idle {
    /// Looks again.
    Again,
    /// Sleeps on the control socket, then looks again.
    Sleep,
    /// Sleeps on the clock: the queue is readable for a reason that does not go away by itself.
    Nap,
    /// Asks the kernel, which has the last word.
    Ask,
    /// Goes on without the ring: the peer of a datagram socket has left, and all that it had sent here was
    /// received.
    Over,
}

impl RxRing {
    /// Returns what to do next, after the steps that the module names. The ring was empty at the last look.
    pub fn ring_idle(
        &mut self,
        core: &Core,
        waiting: &mut Waiting,
        wait: bool,
    ) -> std::result::Result<Idle, PeerMisbehaved> {
        self.unpark(core)?;
        if wait && self.spin(core, waiting)? {
            return Ok(Idle::Again);
        }
        if self.settle(core)? {
            return Ok(Idle::Again);
        }
        if core.kind() == Kind::Datagram && core.peer_left() {
            // None of its doorbells and fillers may be left behind: what comes from here on are other
            // sockets' datagrams.
            let more = self.settle(core)?;
            self.clear_away(core)?;
            return Ok(if more { Idle::Again } else { Idle::Over });
        }
        if core.kind() == Kind::SeqPacket && core.peer_left() {
            // In the queue are only doorbells and fillers that nobody needs any more.
            self.doorbells.drain(core);
            return Ok(if self.consumer.available(1)? > 0 { Idle::Again } else { Idle::Ask });
        }
        if !waiting.slept && wait && core.settings().wait() != Wait::Spin {
            return Ok(Idle::Sleep);
        }
        // A filler that was under way at the first look may be there by now. The sender looks for an armed doorbell
        // once it is (`room.rs`), and the fence in here pairs with the one before that.
        let parked = self.consumer.header().is_parking();
        if parked {
            self.unpark(core)?;
            if !self.consumer.header().is_parking() {
                return Ok(Idle::Again);
            }
        }
        // The receive was woken for nothing, or must not wait. Is there a byte that nothing explains?
        if core.ask() != Peek::Byte {
            return Ok(if self.consumer.available(1)? > 0 { Idle::Again } else { Idle::Ask });
        }
        if self.consumer.available(1)? > 0 {
            return Ok(Idle::Again);
        }
        if self.doorbells.explain(&mut self.consumer).is_err() {
            if self.doorbells.forgive(core) {
                return Ok(Idle::Again);
            }
            match self.doorbells.find_channel(core) {
                Ok(true) => return Ok(Idle::Again),
                // The channel stays in the queue until this process has room for a descriptor.
                Err(_) => return Ok(Idle::Nap),
                Ok(false) => {}
            }
            // A sender that was killed while it parked leaves bytes that nothing explains.
            if !core.hung_up() {
                return Err(PeerMisbehaved::Doorbells);
            }
            self.doorbells.drain(core);
            return Ok(Idle::Ask);
        }
        waiting.empty_doorbells += 1;
        let late = self.doorbells.is_in_debt() || self.consumer.header().is_rung();
        if late && waiting.empty_doorbells < MAX_EMPTY_DOORBELLS {
            return Ok(Idle::Again);
        }
        // The filler cannot be taken yet. This is rare: the program holds a view, and asks for more.
        Ok(Idle::Nap)
    }

    /// Lets readiness say that the ring is empty after a receive, where somebody may look. Returns whether
    /// there is data after all. A caller with room for it must not get a short count then: epoll(7) lets it
    /// wait for the next edge after one, and no doorbell will make that edge.
    #[inline]
    pub fn mirror_empty(&mut self, core: &Core) -> Result<bool> {
        if !core.is_mirrored() {
            return Ok(false);
        }
        let misbehaved = |misbehaved| core.misbehaved(Op::Recv, misbehaved);
        Ok(self.consumer.available(1).map_err(misbehaved)? > 0 || self.settle(core).map_err(misbehaved)?)
    }
}

/// How long a receive that spins goes without a look at the control socket, in nanoseconds.
pub const LONGEST_SPIN: u32 = 1_000_000;

impl RxRing {
    /// Spins for data as far as the settings and experience allow. Returns whether it came.
    pub fn spin(&mut self, core: &Core, waiting: &mut Waiting) -> std::result::Result<bool, PeerMisbehaved> {
        let budget = match core.settings().wait() {
            Wait::Block => return Ok(false),
            Wait::Spin => LONGEST_SPIN,
            // After a sleep there is nothing to be gained.
            Wait::Adaptive if waiting.slept => return Ok(false),
            Wait::Adaptive => self.spin.budget(),
        };
        if budget == 0 {
            waiting.start.get_or_insert_with(Instant::now);
            return Ok(false);
        }
        let mut misbehaved = None;
        let consumer = &mut self.consumer;
        if consumer.is_shared() {
            // No spinning with a lock that other processes want: `spin_unlocked` does it.
            return Ok(false);
        }
        // Whoever asked to spin wants each message at once.
        if core.settings().wait() == Wait::Adaptive && self.gather.begins(core.counters().sent.get()) {
            self.gather.pass(|than| consumer.available(than + 1))?;
        }
        let (mut looks, mut came) = (0, 0);
        let spun = spin::until(budget, || {
            looks += 1;
            match consumer.available(1) {
                Ok(0) => {
                    consumer.prefetch();
                    false
                }
                Ok(available) => {
                    came = available;
                    true
                }
                Err(found) => {
                    misbehaved = Some(found);
                    true
                }
            }
        });
        if let Some(misbehaved) = misbehaved {
            return Err(misbehaved);
        }
        match spun {
            Ok(took) => {
                self.spin.paid(took);
                self.gather.ends(looks, came);
                core.counters().spins.add_exclusive(1);
                Ok(true)
            }
            Err(start) => {
                self.spin.in_vain();
                self.gather.in_vain();
                waiting.start.get_or_insert(start);
                // A socket that is set to spin looks at the control socket now and then, and goes on.
                Ok(false)
            }
        }
    }
}

/// The state of one receive's wait, over all its sleeps.
pub struct Waiting {
    /// When the caller began to wait, for the timeout.
    pub(super) began: Option<Instant>,
    /// When the wait for the next byte began. The spin budget learns from it.
    pub(super) start: Option<Instant>,
    /// What the kernel said at the end of the last sleep.
    pub(super) told: Option<Peek>,
    /// The next bytes come over the kernel, where other processes that share the end may be receiving.
    pub(super) over_kernel: bool,
    pub(super) slept: bool,
    /// Processes shared the end at the last look.
    pub(super) shared: bool,
    pub(super) empty_doorbells: u32,
    /// O_NONBLOCK, once the kernel was asked.
    nonblocking: Option<bool>,
    /// Bytes that the caller will surely take if they are there and no mark is among them.
    pub(super) takes: usize,
}

impl Waiting {
    /// Begins a wait. `takes`: how many bytes the caller will surely take if they are there; 0 if it may
    /// leave any.
    pub fn new(takes: usize) -> Waiting {
        Waiting {
            began: None,
            start: None,
            told: None,
            over_kernel: false,
            slept: false,
            shared: false,
            empty_doorbells: 0,
            nonblocking: None,
            takes,
        }
    }

    /// Whether a receive must not wait, as far as is known.
    pub fn does_not_wait(&self, core: &Core, flags: RecvFlags) -> bool {
        flags.contains(RecvFlags::DONTWAIT)
            || self.nonblocking.unwrap_or_else(|| core.settings().nonblocking())
    }

    /// Asks the kernel for O_NONBLOCK, once a call: where a receive is about to wait, or to return EAGAIN by
    /// what it remembers. Returns whether it asked now.
    pub fn ask_whether_to_wait(&mut self, core: &Core, flags: RecvFlags) -> bool {
        let ask = !flags.contains(RecvFlags::DONTWAIT) && self.nonblocking.is_none();
        if ask {
            self.nonblocking = Some(core.is_nonblocking());
        }
        ask
    }

    /// Asks as [`Waiting::ask_whether_to_wait`]. Returns whether the call went by the wrong answer, and has
    /// to look again.
    pub fn was_wrong(&mut self, core: &Core, dontwait: bool, flags: RecvFlags) -> bool {
        self.ask_whether_to_wait(core, flags) && self.nonblocking != Some(dontwait)
    }

    /// Returns how long to wait for the lock: only briefly, until it is known that the call may wait.
    pub(super) fn patience(&mut self, core: &Core, dontwait: bool) -> Duration {
        if dontwait {
            return BRIEFLY;
        }
        let left = self.left(core).map_or(BRIEFLY, |left| left.unwrap_or(STUCK));
        if self.nonblocking.is_none() { left.min(BRIEFLY) } else { left }
    }

    /// Whether a receive that did not get the lock goes on waiting for it.
    #[cold]
    pub(super) fn waits_on_for_lock(&mut self, core: &Core, flags: RecvFlags) -> bool {
        let asked = self.ask_whether_to_wait(core, flags);
        asked && !self.does_not_wait(core, flags) && self.left(core).is_ok()
    }

    /// Returns what is left of the read timeout, if there is one.
    pub(super) fn left(&mut self, core: &Core) -> Result<Option<Duration>> {
        let began = *self.began.get_or_insert_with(Instant::now);
        control::remaining(began, core.settings().read_timeout()).map_err(|errno| Error::new(Op::Recv, errno))
    }

    /// Sleeps until something is in the queue, and says what.
    pub fn sleep(&mut self, core: &Core) -> Result<Peek> {
        self.slept = true;
        let now = Instant::now();
        self.start.get_or_insert(now);
        self.began.get_or_insert(now);
        core.counters().sleeps.add(1);
        let error = |errno| Error::new(Op::Recv, errno);
        // One byte may ring for many records, but the kernel wakes only one of several threads that sleep in
        // recv(2) for records (net/core/datagram.c: __skb_wait_for_more_packets waits exclusively; on a
        // stream all wake). So at most one thread is in recv(2). The others are in poll(2), where all of them
        // wake as well.
        let asleep = core.falls_asleep();
        let not_alone = core.kind().has_records() && (self.shared || !asleep.is_alone());
        match core.settings().read_timeout() {
            None if !not_alone => {
                match if self.over_kernel { control::wait_for_any(core.fd()) } else { core.peek(true) } {
                    Peek::Nothing => {
                        // Somebody else set O_NONBLOCK. The next call is to know.
                        core.is_nonblocking();
                        Err(error(Errno::AGAIN))
                    }
                    Peek::Failed(Errno::CONNRESET) => {
                        core.note_reset();
                        Ok(Peek::Failed(Errno::CONNRESET))
                    }
                    Peek::Failed(errno) => Err(error(errno)),
                    peek => Ok(peek),
                }
            }
            limit => {
                // poll(2) does not heed O_NONBLOCK. (A receive that does not wait just looks.)
                let now = *self.nonblocking.get_or_insert_with(|| core.is_nonblocking());
                loop {
                    // A receive whose time is over looks once more all the same: this thread may have been
                    // kept from it until now.
                    let left = self.left(core).unwrap_or(Some(Duration::ZERO));
                    let left = if now { Some(Duration::ZERO) } else { left };
                    match control::wait(core.fd(), PollFlags::IN, left) {
                        // recv(2) without a limit would go on.
                        Err(Errno::INTR) if limit.is_none() && signal::all_restart() => {}
                        done => break done.map(drop).map_err(error)?,
                    }
                }
                if self.over_kernel {
                    // The caller looks with the lock in hand at what it is.
                    return Ok(Peek::Byte);
                }
                Ok(match core.ask() {
                    Peek::Nothing if now => return Err(error(Errno::AGAIN)),
                    // A datagram socket that is shut down says so only to a thread that sleeps in a receive.
                    Peek::Nothing if core.kind() == Kind::Datagram && control::hung_up(core.fd()) => {
                        Peek::End
                    }
                    peek => peek,
                })
            }
        }
    }
}
