//! Who waits for a socket while another thread drives the stack.

use onecopy_inet::stack::slab::Id;
use onecopy_sync::Word;
use onecopy_sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

/// Threads that wait for one socket.
#[derive(Debug)]
pub(crate) struct Waiter {
    id: Id,
    /// Counts what has happened to it.
    news: Word,
    /// Who sleeps; only written under the lock.
    sleepers: Word,
}

impl Waiter {
    pub(super) fn new(id: Id) -> Waiter {
        Waiter { id, news: Word::new(0), sleepers: Word::new(0) }
    }

    pub fn id(&self) -> Id {
        self.id
    }

    /// What it has counted. Under the lock.
    pub(super) fn seen(&self) -> u32 {
        // Acquire pairs with the Release in `tell`; who asks here holds the lock anyway.
        self.news.load(Acquire)
    }

    /// Announces a sleeper. Under the lock.
    pub(super) fn going_to_sleep(&self) {
        self.sleepers.fetch_add(1, Relaxed);
    }

    /// Sleeps until there is more than `seen`, at most for `limit`. Without the lock. Returns whether a signal has come.
    pub(super) fn sleep(&self, seen: u32, limit: Option<Duration>) -> bool {
        self.news.wait(seen, limit)
    }

    /// Under the lock.
    pub(super) fn awake(&self) {
        self.sleepers.fetch_sub(1, Relaxed);
    }

    pub(super) fn tell(&self) {
        // Release pairs with the Acquire in `seen`.
        self.news.fetch_add(1, Release);
        if self.sleepers.load(Relaxed) > 0 {
            self.news.wake(u32::MAX >> 1);
        }
    }
}

/// Who is waited for: a socket, or a send of one.
pub(crate) trait Awaited: Send + Sync {
    fn waiter(&self) -> &Waiter;
}

impl Awaited for Waiter {
    fn waiter(&self) -> &Waiter {
        self
    }
}
