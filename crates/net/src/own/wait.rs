//! Who waits, and who drives meanwhile.

use super::inbox::Mesh;
use super::inner::Inner;
use super::interest::Interest;
use super::lock::Locked;
use super::shard::{Asleep, Leader, Shard};
use super::waiter::{Awaited, Waiter};
use crate::zerocopy::{Drives, Waited};
use onecopy_inet::stack::slab::Id;
use onecopy_socket::Wait;
use onecopy_sync::Mutex;
use onecopy_sync::atomic::spin_loop;
use onecopy_sync::spin::Adaptive;
use onecopy_sys::signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// How long a call waits, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub wait: Wait,
    /// It does not.
    pub none: bool,
    pub limit: Option<Duration>,
    /// It looks after each turn of the stack, not only when it was told.
    pub eager: bool,
}

/// Why a call waits no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// It was not to wait, or its limit has come: EAGAIN.
    Late,
    /// A signal has come: EINTR.
    Signal,
    /// It never did: this is a fork's child, and the stack its parent's.
    Elsewhere,
}

/// What one direction of a socket has learnt about its waits.
#[derive(Debug, Default)]
pub(crate) struct Learnt {
    adaptive: Mutex<Adaptive>,
}

/// From now to `at`.
fn until(now: u64, at: Option<u64>) -> Option<Duration> {
    at.map(|at| Duration::from_nanos(at.saturating_sub(now)))
}

impl Inner {
    /// Calls `attempt` until it gives something, waiting for what happens to the socket in between.
    pub fn wait<R>(
        &self,
        awaited: &Arc<impl Awaited + 'static>,
        patience: Patience,
        learnt: &Learnt,
        mut attempt: impl FnMut(&mut Shard, u64) -> Option<R>,
    ) -> Result<R, Gone> {
        if !self.is_here() {
            return Err(Gone::Elsewhere);
        }
        let waiter = awaited.waiter();
        let mut shard = self.lock();
        let mut now = self.now();
        let nobody = self.sleep.is_none() || shard.lease(now).is_some();
        if nobody && shard.leader.is_none() && shard.ought_to_look(now) {
            // A program whose calls never wait would not look what has come: acknowledgements, its neighbour's address.
            shard.turn(now);
        }
        if let Some(result) = attempt(&mut shard, now) {
            if shard.leader.is_none() {
                // A sender of much hardly ever waits. Each acknowledgement would wake the stack's own thread, in the midst of the next call.
                shard.driven(now);
            }
            self.finish(&mut shard, now);
            return Ok(result);
        }
        let limit = patience.limit.map(|limit| now.saturating_add(limit.as_nanos() as u64));
        loop {
            // What has arrived may be what it waits for. (While another thread drives, it looks.)
            if shard.leader.is_none() {
                shard.turn(now);
                if let Some(result) = attempt(&mut shard, now) {
                    self.hand_on(&shard);
                    shard.driven(now);
                    self.finish(&mut shard, now);
                    return Ok(result);
                }
            }
            if patience.none || limit.is_some_and(|limit| limit <= now) {
                self.hand_on(&shard);
                self.finish(&mut shard, now);
                return Err(Gone::Late);
            }
            if shard.leader.is_none() {
                // Outside of what has the lock, which is free when this looks at it.
                let _leads = Leads(self);
                return self.lead(shard, waiter, patience, limit, learnt, attempt);
            }
            // Counted before: what the attempt has left to be sent may leave now, and make the room that it waits for.
            let seen = waiter.seen();
            self.finish(&mut shard, now);
            waiter.going_to_sleep();
            shard.followers.push(Arc::clone(awaited) as Arc<dyn Awaited>);
            drop(shard);
            let signal = waiter.sleep(seen, until(now, limit));
            shard = self.lock();
            waiter.awake();
            if let Some(at) = shard.followers.iter().position(|one| std::ptr::eq(one.waiter(), waiter)) {
                shard.followers.swap_remove(at);
            }
            now = self.now();
            if let Some(result) = attempt(&mut shard, now) {
                self.hand_on(&shard);
                self.finish(&mut shard, now);
                return Ok(result);
            }
            if signal {
                self.hand_on(&shard);
                self.finish(&mut shard, now);
                return Err(Gone::Signal);
            }
        }
    }

    /// Drives the stack until `attempt` gives something.
    fn lead<'a, R>(
        &'a self,
        mut shard: Locked<'a>,
        waiter: &Waiter,
        Patience { wait, eager, .. }: Patience,
        limit: Option<u64>,
        learnt: &Learnt,
        mut attempt: impl FnMut(&mut Shard, u64) -> Option<R>,
    ) -> Result<R, Gone> {
        shard.leader = Some(Leader { socket: Some(waiter.id()), asleep: None });
        let mut now = self.now();
        // Counted before: what the attempt has left to be sent may leave now, and make the room that it waits for.
        let mut seen = waiter.seen();
        // The stack's own thread is not to be woken meanwhile.
        self.finish(&mut shard, now);
        let budget = match wait {
            Wait::Block => 0,
            Wait::Spin => u32::MAX,
            Wait::Adaptive => learnt.adaptive.lock().budget(),
        };
        let began = now;
        let mut spins = budget > 0;
        let mut slept = false;
        let result = loop {
            if waiter.seen() != seen {
                // It was told already. Others may want the stack all the same: a sender of much is told each time.
                shard = shard.give_way();
            } else if spins {
                drop(shard);
                spin_loop();
                shard = self.lock();
            } else {
                slept = true;
                match self.sleep(shard, limit) {
                    Ok(guard) => shard = guard,
                    // poll(2) is never restarted, other calls that wait are, without a limit (signal(7)).
                    Err(guard) if limit.is_none() && signal::all_restart() => shard = guard,
                    Err(guard) => {
                        shard = guard;
                        break Err(Gone::Signal);
                    }
                }
            }
            now = self.now();
            shard.turn(now);
            if eager || waiter.seen() != seen {
                seen = waiter.seen();
                if let Some(result) = attempt(&mut shard, now) {
                    break Ok(result);
                }
                // Part of it may be done: a send that has filled what there was room for. That leaves before anybody sleeps.
                shard.settle(now);
            }
            if limit.is_some_and(|limit| limit <= now) {
                break Err(Gone::Late);
            }
            if spins && wait == Wait::Adaptive && now - began > u64::from(budget) {
                spins = false;
                learnt.adaptive.lock().in_vain();
            }
        };
        if wait == Wait::Adaptive && result.is_ok() {
            let took = Duration::from_nanos(now - began);
            let mut learnt = learnt.adaptive.lock();
            if slept { learnt.slept(took) } else { learnt.paid(took) }
        }
        self.leave(&mut shard, now);
        result
    }

    /// The thread that drives stops doing so.
    fn leave(&self, shard: &mut Shard, now: u64) {
        shard.leader = None;
        self.hand_on(shard);
        shard.driven(now);
        self.finish(shard, now);
    }

    /// Where nobody drives, and no thread of the stack's own will, one of those that wait has to. (Whoever was told so may find that it
    /// need not wait any more: it hands that on.)
    fn hand_on(&self, shard: &Shard) {
        if self.sleep.is_none()
            && shard.leader.is_none()
            && let Some(next) = shard.followers.first()
        {
            next.waiter().tell();
        }
    }

    /// As long as nothing is there, up to `limit`, drives the stack from this thread. Returns whether there was something.
    pub fn drive(&self, limit: Duration) -> Result<bool, Gone> {
        if !self.is_here() {
            return Err(Gone::Elsewhere);
        }
        let mut leads = None;
        let mut shard = self.lock();
        let mut now = self.now();
        let until = now.saturating_add(limit.as_nanos() as u64);
        self.looked_at(&mut shard, now);
        if shard.leader.is_some() {
            // Another thread does.
            drop(shard);
            std::thread::sleep(limit.min(Duration::from_millis(1)));
            return Ok(false);
        }
        let mut something = shard.turn(now).happened;
        if !something && limit > Duration::ZERO {
            shard.leader = Some(Leader { socket: None, asleep: None });
            leads = Some(Leads(self));
            self.finish(&mut shard, now);
            let slept = self.sleep(shard, Some(until));
            let signal = slept.is_err();
            shard = slept.unwrap_or_else(|shard| shard);
            now = self.now();
            something = shard.turn(now).happened;
            self.leave(&mut shard, now);
            if signal && !something {
                return Err(Gone::Signal);
            }
        } else {
            self.finish(&mut shard, now);
        }
        drop((shard, leads));
        Ok(something)
    }

    /// Until nothing is left of connections that no program holds, but what TIME-WAIT remembers.
    pub(super) fn linger(&self, limit: Duration) {
        let began = Instant::now();
        while let Some(left) = limit.checked_sub(began.elapsed()) {
            {
                let shard = self.lock();
                let census = shard.inet().census();
                if shard.is_down() || census.sockets <= census.over {
                    return;
                }
            }
            if self.drive(left.min(Duration::from_millis(10))).is_err() {
                return;
            }
        }
    }

    /// Sleeps until something arrives, is due, or somebody wakes the thread that drives.
    fn sleep<'a>(&'a self, mut shard: Locked<'a>, limit: Option<u64>) -> Result<Locked<'a>, Locked<'a>> {
        let now = self.now();
        let due = shard.deadline();
        let wakes = match (due, limit) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let interest = shard.interest(now);
        if let Some(leader) = &mut shard.leader {
            leader.asleep = Some(Asleep { until: wakes, interest });
        }
        drop(shard);
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, interest.read);
        flags.set(PollFlags::OUT, interest.write);
        // (Without other shards there is no third one.)
        let inbox = self.mesh.as_ref().map_or(&self.wake, Mesh::bell);
        let mut fds = [
            PollFd::new(&self.wake, PollFlags::IN),
            PollFd::new(&self.link, flags),
            PollFd::new(inbox, PollFlags::IN),
        ];
        let count = match (interest == Interest::default(), &self.mesh) {
            (true, _) => 1,
            (false, None) => 2,
            (false, Some(_)) => 3,
        };
        let timeout = until(now, wakes).and_then(|left| Timespec::try_from(left).ok());
        let polled = poll(&mut fds[..count], timeout.as_ref());
        let broken = [PollFlags::ERR, PollFlags::HUP, PollFlags::NVAL];
        let broken = broken.iter().any(|flag| fds[1].revents().contains(*flag));
        if fds[0].revents().contains(PollFlags::IN) {
            self.wake.drain();
        }
        let mut shard = self.lock();
        if let Some(leader) = &mut shard.leader {
            leader.asleep = None;
        }
        if broken {
            shard.goes_down();
        }
        if polled == Err(Errno::INTR) { Err(shard) } else { Ok(shard) }
    }
}

/// A thread that drives, or is about to. Should it panic, it drives no more, and others do not wait for it.
struct Leads<'a>(&'a Inner);

impl Drop for Leads<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let mut shard = self.0.lock();
        shard.leader = None;
        self.0.hand_on(&shard);
        if let Some(sleep) = &self.0.sleep {
            // It looks at the link again. (Nothing of the stack is called here: that may be what panics.)
            shard.runner = None;
            sleep.ring();
        }
    }
}

impl Drives for Inner {
    fn poll_until(
        self: Arc<Self>,
        id: Id,
        wait: Wait,
        limit: Option<Duration>,
        poll: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> Waited {
        let began = Instant::now();
        // One of its own: the socket's is told of what happens to the socket.
        let waiter = Arc::new(Waiter::new(id));
        let waker =
            Waker::from(Arc::new(Tells { inner: Arc::downgrade(&self), waiter: Arc::clone(&waiter) }));
        let (learnt, mut context) = (Learnt::default(), Context::from_waker(&waker));
        loop {
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            let patience = Patience { wait, none: false, limit: left, eager: true };
            let waited = self.wait(&waiter, patience, &learnt, |_, _| {
                if poll(&mut context).is_ready() {
                    return Some(Waited::Ready);
                }
                self.is_stopped().then_some(Waited::Ended)
            });
            match waited {
                Ok(waited) => return waited,
                Err(Gone::Late) => return Waited::Late,
                Err(Gone::Signal) => {}
                Err(Gone::Elsewhere) => return Waited::Ended,
            }
        }
    }
}

/// Tells a thread that waits in [`Drives::poll_until`].
struct Tells {
    inner: Weak<Inner>,
    waiter: Arc<Waiter>,
}

impl Wake for Tells {
    fn wake(self: Arc<Self>) {
        let Some(inner) = self.inner.upgrade() else { return };
        let mut shard = inner.lock();
        self.waiter.tell();
        // That thread may be the one that drives.
        if let Some(leader) = &mut shard.leader
            && leader.asleep.take().is_some()
        {
            inner.wake.ring();
        }
    }
}
