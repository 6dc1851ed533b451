//! The slots of a socket, and the lease of which one of them at most has.

use onecopy_sync::atomic::AtomicU32;
use onecopy_sync::atomic::Ordering::{Relaxed, SeqCst};
use onecopy_sync::atomic::fence;
use onecopy_sync::{Mutex, MutexGuard};
use onecopy_unix::connection::Connection;
use std::time::Duration;

/// The slots of a socket.
#[derive(Debug, Default)]
pub struct Slots {
    /// Held by the slot that has the lease, or by a thread that reserves. Taken before the sending side.
    one: Mutex<()>,
    /// 1 while a slot has the lease. Set under the sending side.
    leased: AtomicU32,
    /// Slots that were not committed or dropped, wherever their bytes are.
    out: AtomicU32,
    /// How often the socket was connected to another peer, or to none. Changed under the sending side.
    moves: AtomicU32,
}

impl Slots {
    pub fn moves(&self) -> u32 {
        self.moves.load(Relaxed)
    }

    /// Keeps other threads from reserving, unless one does or a slot has the lease.
    #[inline]
    pub fn try_hold(&self) -> Option<MutexGuard<'_, ()>> {
        self.one.try_lock()
    }

    /// Keeps other threads from reserving, once none does and no slot has the lease. Waits for that as long as
    /// `limit` says.
    pub fn hold(&self, limit: Option<Duration>) -> Option<MutexGuard<'_, ()>> {
        match limit {
            Some(limit) => self.one.lock_for(limit),
            None => Some(self.one.lock()),
        }
    }

    /// Notes that the socket has another peer now.
    pub fn move_on(&self) {
        self.moves.fetch_add(1, Relaxed);
    }

    /// Whether somebody may commit a slot.
    pub fn are_out(&self) -> bool {
        self.out.load(Relaxed) != 0
    }

    /// Whether a slot has the lease. For who holds the sending side.
    pub fn are_leased(&self) -> bool {
        self.leased.load(Relaxed) != 0
    }

    /// Whether no thread has the lease or is reserving. For a fork.
    pub fn are_free(&self) -> bool {
        self.one.try_lock().is_some()
    }
}

/// Counts a slot until it is dropped.
#[derive(Debug)]
pub struct Out<'a>(&'a Slots);

impl<'a> Out<'a> {
    pub fn one_more(slots: &'a Slots) -> Out<'a> {
        slots.out.fetch_add(1, Relaxed);
        Out(slots)
    }
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        self.0.out.fetch_sub(1, Relaxed);
    }
}

/// The right to be the only one that puts something into the peer's ring, once it has begun.
#[derive(Debug)]
pub struct Lease<'a> {
    slots: &'a Slots,
    end: &'a Connection,
    one: Option<MutexGuard<'a, ()>>,
}

impl<'a> Lease<'a> {
    /// Makes the lease of a socket's slots, `one` of which has the lock. `end` is the socket's connection.
    pub fn over(slots: &'a Slots, end: &'a Connection, one: MutexGuard<'a, ()>) -> Lease<'a> {
        Lease { slots, end, one: Some(one) }
    }

    /// Keeps all others out from here on. The caller holds the sending side.
    pub fn begin(&self) {
        self.slots.leased.store(1, Relaxed);
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        // Relaxed: who finds the lease under the sending side's lock waits for `one`, and who has that sees
        // this.
        self.slots.leased.store(0, Relaxed);
        drop(self.one.take());
        // Pairs with the fence in `turn_away`: a sender that was turned away is told, or sees that the lease is
        // over.
        fence(SeqCst);
        self.end.welcome_back();
    }
}
