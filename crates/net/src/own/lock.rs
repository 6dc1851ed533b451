//! The lock around a stack, and what is not done under it.

use super::shard::Shard;
use onecopy_chain::notify::zerocopy::HoldWakers;
use onecopy_sync::{Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};

/// A stack that is locked. Wakers of sends that complete meanwhile are called once it is free: they are code of others, and may call
/// sockets of it.
pub(super) struct Locked<'a> {
    // The order matters: the lock is free when wakers are called.
    guard: MutexGuard<'a, Shard>,
    held: HoldWakers,
}

impl<'a> Locked<'a> {
    #[inline]
    pub fn new(mutex: &'a Mutex<Shard>) -> Locked<'a> {
        let held = HoldWakers::new();
        Locked { guard: mutex.lock(), held }
    }

    /// Lets others have it, and wakers be called, if there are any.
    pub fn give_way(self) -> Locked<'a> {
        let Locked { guard, held } = self;
        if !held.has_waiting() {
            return Locked { guard: guard.give_way(), held };
        }
        let mutex = guard.mutex();
        drop(guard);
        drop(held);
        Locked::new(mutex)
    }
}

impl Deref for Locked<'_> {
    type Target = Shard;

    #[inline]
    fn deref(&self) -> &Shard {
        &self.guard
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Shard {
        &mut self.guard
    }
}
