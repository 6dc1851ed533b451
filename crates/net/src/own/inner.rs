//! A stack's lock, and what lies beside it.

use super::descriptor::Descriptor;
use super::inbox::Mesh;
use super::interest::Interest;
use super::lock::Locked;
use super::shard::Shard;
use super::sleep::Sleep;
use crate::carrier::Refused;
use onecopy_chain::notify::zerocopy::Account;
use onecopy_socket::{Error, Op, Result, Wait};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::{AtomicU32, Ordering::Relaxed};
use onecopy_sys::eventfd::EventFd;
use onecopy_sys::fork::Origin;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// What handles, sockets and the stack's own thread share; of a stack with several shards, each of them.
pub(crate) struct Inner {
    shard: Mutex<Shard>,
    /// Whose link and descriptors they are: a fork's child has copies, by which it would speak for its parent.
    origin: Origin,
    begun: Instant,
    /// The link's descriptor, to sleep on without the lock.
    pub(super) link: OwnedFd,
    /// Wakes the thread that drives while it waits for its socket.
    pub(super) wake: EventFd,
    /// Other shards, where there are some.
    pub(super) mesh: Option<Mesh>,
    /// Sends without a copy of all its sockets.
    account: Account,
    /// What of device memory was refused, in whichever shard.
    refused: Arc<Refused>,
    /// What the stack's own thread sleeps on; none where the program drives.
    pub(super) sleep: Option<Sleep>,
    /// What a program that drives polls.
    descriptor: OnceLock<Descriptor>,
    wait: Wait,
    stopped: AtomicU32,
}

impl Inner {
    /// Of a link whose descriptor is `link`. `begun` is when the stack's clock was 0.
    pub(super) fn new(
        shard: Shard,
        link: OwnedFd,
        mesh: Option<Mesh>,
        sleep: Option<Sleep>,
        (begun, account, refused, wait): (Instant, Account, Arc<Refused>, Wait),
    ) -> rustix::io::Result<Inner> {
        Ok(Inner {
            shard: Mutex::new(shard),
            origin: Origin::new()?,
            begun,
            link,
            wake: EventFd::new()?,
            mesh,
            account,
            refused,
            sleep,
            descriptor: OnceLock::new(),
            wait,
            stopped: Default::default(),
        })
    }

    /// Nanoseconds of the stack's clock.
    #[inline]
    pub fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    pub(super) fn lock(&self) -> Locked<'_> {
        Locked::new(&self.shard)
    }

    pub fn account(&self) -> &Account {
        &self.account
    }

    pub fn refused(&self) -> &Arc<Refused> {
        &self.refused
    }

    /// How its sockets wait unless they say otherwise.
    pub fn wait_mode(&self) -> Wait {
        self.wait
    }

    /// Whether this is the process whose stack it is, and not a fork's child.
    pub fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    /// Refuses call `op` in a fork's child.
    ///
    /// # Errors
    ///
    /// EOWNERDEAD.
    pub fn here(&self, op: Op) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(elsewhere(op)) }
    }

    /// As [`Inner::with`], and nothing at all in a fork's child, not even to wait for the lock: a thread of its parent's may have had it, and is not
    /// there to give it back.
    pub fn with_here(&self, act: impl FnOnce(&mut Shard, u64)) {
        if self.is_here() {
            self.with(act);
        }
    }

    /// Takes the lock and calls `act`, which finds out at once; what comes of it is sent.
    pub fn with<R>(&self, act: impl FnOnce(&mut Shard, u64) -> R) -> R {
        let mut shard = self.lock();
        let now = self.now();
        let result = act(&mut shard, now);
        self.finish(&mut shard, now);
        result
    }

    /// Tells and sends what came of a call, and wakes whoever has to be there earlier for it.
    pub(super) fn finish(&self, shard: &mut Shard, now: u64) {
        if !self.is_here() {
            return;
        }
        let news = shard.settle(now);
        let due = shard.deadline();
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
                sleep.watch(&self.link, self.mesh.as_ref(), wanted);
            }
        }
        if let Some(descriptor) = self.descriptor.get() {
            descriptor.describe(&self.link, shard, now);
        }
    }

    /// The descriptor for a program that drives, made with the first call.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP where a thread of the stack's own does, EMFILE.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.here(Op::Wait)?;
        if self.sleep.is_some() {
            return Err(Error::new(Op::Wait, Errno::OPNOTSUPP)
                .because("a thread of the stack's own drives it; build it with Driver::Caller"));
        }
        let mut shard = self.shard.lock();
        if self.descriptor.get().is_none() {
            let new = Descriptor::new(&self.link).map_err(|errno| Error::new(Op::Wait, errno))?;
            // (Only who holds the lock sets it.)
            let _ = self.descriptor.set(new);
        }
        let now = self.now();
        self.finish(&mut shard, now);
        Ok(self.descriptor.get().expect("it was set above").as_fd())
    }

    /// Somebody looks: what the descriptor told of is seen to.
    pub(super) fn looked_at(&self, shard: &mut Shard, now: u64) {
        if let Some(descriptor) = self.descriptor.get() {
            descriptor.looked_at(&self.link, shard, now);
        }
    }

    /// The stack's own thread ends, and so does whoever waits for a send of it.
    pub(super) fn stop(&self) {
        let shard = self.lock();
        // Under the lock, as whoever is about to sleep looks at it.
        self.stopped.store(1, Relaxed);
        shard.followers.iter().for_each(|follower| follower.waiter().tell());
        if shard.leader.is_some() {
            self.wake.ring();
        }
        if let Some(sleep) = &self.sleep {
            sleep.ring();
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed) != 0
    }
}

/// What call `op` is told in a fork's child.
pub(super) fn elsewhere(op: Op) -> Error {
    Error::new(op, Errno::OWNERDEAD)
        .because("the stack, and its link, are those of the process that this one forked from; build a stack of its own here")
}
