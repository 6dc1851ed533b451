//! Who waits, and who drives meanwhile.

use super::Inner;
use super::shard::{Asleep, Interest, Leader, Shard, Waiter};
use onecopy_socket::Wait;
use onecopy_sync::atomic::spin_loop;
use onecopy_sync::spin::Adaptive;
use onecopy_sync::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where no thread of the stack's own looks at the link, a call that need not wait does, after so many nanoseconds in which nobody has.
const SELDOM: u64 = 100_000;

/// How long a call waits, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub wait: Wait,
    /// It does not.
    pub none: bool,
    pub limit: Option<Duration>,
}

/// Why a call waits no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// It was not to wait, or its limit has come: EAGAIN.
    Late,
    /// A signal has come: EINTR.
    Signal,
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
        waiter: &Arc<Waiter>,
        patience: Patience,
        learnt: &Learnt,
        mut attempt: impl FnMut(&mut Shard, u64) -> Option<R>,
    ) -> Result<R, Gone> {
        let mut shard = self.shard.lock();
        let mut now = self.now();
        let nobody = self.sleep.is_none() || shard.lease(now).is_some();
        if nobody && shard.leader.is_none() && now >= shard.looked + SELDOM {
            // A program whose calls never wait would not look what has come: acknowledgements, its neighbour's address.
            shard.turn(now);
        }
        if let Some(result) = attempt(&mut shard, now) {
            self.finish(&mut shard, now);
            return Ok(result);
        }
        let limit = patience.limit.map(|limit| now.saturating_add(limit.as_nanos() as u64));
        loop {
            // What has arrived may be what it waits for. (While another thread drives, it looks.)
            if shard.leader.is_none() {
                shard.turn(now);
                if let Some(result) = attempt(&mut shard, now) {
                    shard.driven(now);
                    self.finish(&mut shard, now);
                    return Ok(result);
                }
            }
            if patience.none || limit.is_some_and(|limit| limit <= now) {
                self.finish(&mut shard, now);
                return Err(Gone::Late);
            }
            if shard.leader.is_none() {
                return self.lead(shard, waiter, patience.wait, limit, learnt, attempt);
            }
            self.finish(&mut shard, now);
            let seen = waiter.seen();
            waiter.going_to_sleep();
            shard.followers.push(Arc::clone(waiter));
            drop(shard);
            waiter.sleep(seen, until(now, limit));
            shard = self.shard.lock();
            waiter.awake();
            if let Some(at) = shard.followers.iter().position(|one| Arc::ptr_eq(one, waiter)) {
                shard.followers.swap_remove(at);
            }
            now = self.now();
            if let Some(result) = attempt(&mut shard, now) {
                self.finish(&mut shard, now);
                return Ok(result);
            }
        }
    }

    /// Drives the stack until `attempt` gives something.
    fn lead<'a, R>(
        &'a self,
        mut shard: MutexGuard<'a, Shard>,
        waiter: &Waiter,
        wait: Wait,
        limit: Option<u64>,
        learnt: &Learnt,
        mut attempt: impl FnMut(&mut Shard, u64) -> Option<R>,
    ) -> Result<R, Gone> {
        shard.leader = Some(Leader { socket: Some(waiter.id()), asleep: None });
        let mut now = self.now();
        // The stack's own thread is not to be woken meanwhile.
        self.finish(&mut shard, now);
        let mut seen = waiter.seen();
        let budget = match wait {
            Wait::Block => 0,
            Wait::Spin => u32::MAX,
            Wait::Adaptive => learnt.adaptive.lock().budget(),
        };
        let began = now;
        let mut spins = budget > 0;
        let mut slept = false;
        let result = loop {
            if spins {
                drop(shard);
                spin_loop();
                shard = self.shard.lock();
            } else {
                slept = true;
                match self.sleep(shard, limit) {
                    Ok(guard) => shard = guard,
                    Err(guard) => {
                        shard = guard;
                        break Err(Gone::Signal);
                    }
                }
            }
            now = self.now();
            shard.turn(now);
            if waiter.seen() != seen {
                seen = waiter.seen();
                if let Some(result) = attempt(&mut shard, now) {
                    break Ok(result);
                }
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
        if self.sleep.is_none()
            && let Some(next) = shard.followers.first()
        {
            // Nobody else is there to drive.
            next.tell();
        }
        shard.driven(now);
        self.finish(shard, now);
    }

    /// As long as nothing is there, up to `limit`, drives the stack from this thread. Returns whether there was something.
    pub(super) fn drive(&self, limit: Duration) -> Result<bool, Gone> {
        let mut shard = self.shard.lock();
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
        Ok(something)
    }

    /// Until nothing is left of connections that no program holds, but what TIME-WAIT remembers.
    pub(super) fn linger(&self, limit: Duration) {
        let began = Instant::now();
        while let Some(left) = limit.checked_sub(began.elapsed()) {
            {
                let shard = self.shard.lock();
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

    /// Tells and sends what came of a call, and wakes whoever has to be there earlier for it.
    pub(super) fn finish(&self, shard: &mut Shard, now: u64) {
        let news = shard.settle(now);
        let due = shard.inet().deadline();
        let earlier = |until: Option<u64>| due.is_some_and(|due| until.is_none_or(|until| due < until));
        let (interest, lease) = (shard.interest(now), shard.lease(now));
        match &mut shard.leader {
            Some(leader) => {
                if let Some(asleep) = leader.asleep
                    && (news || earlier(asleep.until) || (interest.write && !asleep.interest.write))
                {
                    leader.asleep = None;
                    self.wake.ring();
                }
            }
            None => {
                let sooner =
                    |until: Option<u64>| lease.is_some_and(|end| until.is_none_or(|until| end < until));
                if let (Some(sleep), Some(until)) = (&self.sleep, shard.runner)
                    && (earlier(until) || sooner(until))
                {
                    shard.runner = None;
                    sleep.ring();
                }
            }
        }
        if let Some(sleep) = &self.sleep {
            let taken = shard.leader.is_some() || lease.is_some();
            let wanted = if taken { Interest::default() } else { interest };
            if wanted != shard.watched {
                shard.watched = wanted;
                sleep.watch(&self.link, wanted);
            }
        }
        self.describe(shard, now);
    }

    /// Sleeps until something arrives, is due, or somebody wakes the thread that drives.
    fn sleep<'a>(
        &'a self,
        mut shard: MutexGuard<'a, Shard>,
        limit: Option<u64>,
    ) -> Result<MutexGuard<'a, Shard>, MutexGuard<'a, Shard>> {
        let now = self.now();
        let due = shard.inet().deadline();
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
        let mut fds = [PollFd::new(&self.wake, PollFlags::IN), PollFd::new(&self.link, flags)];
        let count = if interest == Interest::default() { 1 } else { 2 };
        let timeout = until(now, wakes).and_then(|left| Timespec::try_from(left).ok());
        let polled = poll(&mut fds[..count], timeout.as_ref());
        let broken = [PollFlags::ERR, PollFlags::HUP, PollFlags::NVAL];
        let broken = broken.iter().any(|flag| fds[1].revents().contains(*flag));
        if fds[0].revents().contains(PollFlags::IN) {
            self.wake.drain();
        }
        let mut shard = self.shard.lock();
        if let Some(leader) = &mut shard.leader {
            leader.asleep = None;
        }
        if broken {
            shard.goes_down();
        }
        if polled == Err(Errno::INTR) { Err(shard) } else { Ok(shard) }
    }
}
