//! What an end has noted of itself: that it is lost, shut down, reset, mirrored, left. Most of it is one word that one thread
//! stores and others load; none of it guards anything else.

use crate::core::Core;
use crate::core::elsewhere::Elsewhere;
use crate::generation::forks;
use crate::members::claim::Claim;
use onecopy_sync::atomic::Ordering::{Relaxed, SeqCst};
use onecopy_sync::atomic::{AtomicU32, fence};
use rustix::fd::OwnedFd;
use std::sync::Arc;

impl Core {
    /// Whether the end is lost, and why: see [`broken`].
    #[inline]
    pub fn broken(&self) -> u32 {
        self.broken.load(Relaxed)
    }

    /// Notes why the end is lost, or that it is not any more.
    pub fn set_broken(&self, why: u32) {
        self.broken.store(why, Relaxed);
    }

    /// Returns how many bytes were sent over the kernel before the sending side switched to the ring.
    pub fn kernel_sent(&self) -> u64 {
        self.kernel_sent.load(Relaxed)
    }

    pub fn set_kernel_sent(&self, bytes: u64) {
        self.kernel_sent.store(bytes, Relaxed);
    }

    /// Notes that the kernel has said ECONNRESET.
    pub fn note_reset(&self) {
        self.reset.store(1, Relaxed);
    }

    /// Whether the kernel has said ECONNRESET, and nobody was told.
    pub fn is_reset_noted(&self) -> bool {
        self.reset.load(Relaxed) != 0
    }

    /// Notes which sides were shut down where the end was before.
    pub fn set_shut(&self, sending: bool, receiving: bool) {
        self.send_shut.store(sending.into(), Relaxed);
        self.recv_shut.store(receiving.into(), Relaxed);
    }

    /// Notes that another process that shares the end has shut it down for sending.
    pub fn note_send_shut(&self) {
        self.send_shut.store(1, Relaxed);
    }

    /// Notes that this end was shut down for receiving. Whoever looks for the ring behind it finds the one that this is to be
    /// said in, or the ring's maker finds the note.
    pub fn note_recv_shut(&self) {
        self.recv_shut.store(1, Relaxed);
        // Pairs with the fence in `set_rx_ring`.
        fence(SeqCst);
    }

    pub fn is_send_shut(&self) -> bool {
        self.send_shut.load(Relaxed) != 0
    }

    pub fn is_recv_shut(&self) -> bool {
        self.recv_shut.load(Relaxed) != 0
    }

    /// Whether the kernel socket's readiness mirrors that of the ring.
    pub fn is_mirrored(&self) -> bool {
        self.mirror.load(Relaxed) != 0
    }

    /// Notes that another process that shares the end has asked for the mirror.
    pub fn note_mirror(&self) {
        self.mirror.store(1, Relaxed);
    }

    /// Notes that another process has turned a sender away ([`Core::turn_away`]).
    pub fn note_turned_away(&self) {
        self.turned_away.store(1, Relaxed);
    }

    /// Counts this thread among those that sleep for something to receive, until the result is dropped.
    pub fn falls_asleep(&self) -> Asleep<'_> {
        // Relaxed: of two threads that come at once, one finds the other. No more is needed.
        Asleep { alone: self.sleepers.fetch_add(1, Relaxed) == 0, count: &self.sleepers }
    }

    /// Forgets the threads that sleep: they do so in the parent of this process.
    pub fn forget_sleepers(&self) {
        self.sleepers.store(0, Relaxed);
    }

    /// Whether this process made the end and has not forked since: nobody else can have it.
    pub fn is_here_alone(&self) -> bool {
        self.forks == forks() && self.is_made_here()
    }

    /// Takes back that the kernel has said ECONNRESET.
    pub fn forget_reset(&self) {
        self.reset.store(0, Relaxed);
    }

    /// Takes back that the kernel has said ECONNRESET. Returns whether it had.
    pub fn take_noted_reset(&self) -> bool {
        self.reset.swap(0, Relaxed) != 0
    }

    /// Notes that the kernel has said ECONNREFUSED, which it says once, to something that the program did not send.
    pub fn note_refused(&self) {
        self.refused.store(1, Relaxed);
    }

    /// Whether the kernel has said ECONNREFUSED, and the program was not told.
    pub fn is_refusal_noted(&self) -> bool {
        self.refused.load(Relaxed) != 0
    }

    /// Takes back that the kernel has said ECONNREFUSED. Returns whether it had.
    pub fn take_noted_refusal(&self) -> bool {
        self.refused.swap(0, Relaxed) != 0
    }

    /// Has the readiness mirrored from here on. Returns whether it was before.
    pub fn begin_mirror(&self) -> bool {
        self.mirror.swap(1, Relaxed) != 0
    }

    /// Returns the lifeline of a datagram socket, once it shares memory with its peer.
    pub fn lifeline(&self) -> Option<&Arc<OwnedFd>> {
        self.life.get()
    }

    /// Sets the lifeline, if there is none.
    pub fn set_lifeline(&self, line: Arc<OwnedFd>) {
        let _ = self.life.set(line);
    }

    /// Sets what the sending end of a lane has outside of its line.
    pub fn set_elsewhere(&self, elsewhere: Elsewhere) {
        let _ = self.elsewhere.set(Box::new(elsewhere));
    }

    /// Returns which process may use an end that only one may use after a fork.
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Whether a datagram socket has left the peer that it shared memory with.
    pub fn has_parted(&self) -> bool {
        self.parted.load(Relaxed) != 0
    }

    /// Notes that it has.
    pub fn part(&self) {
        self.parted.store(1, Relaxed);
    }

    /// Does `connect`. Meanwhile a sender that sleeps lets the caller have the sending side.
    pub fn while_connecting<T>(&self, connect: impl FnOnce() -> T) -> T {
        self.connecting.fetch_add(1, Relaxed);
        let result = connect();
        self.connecting.fetch_sub(1, Relaxed);
        result
    }

    /// Whether a thread is connecting the socket.
    pub fn is_connecting(&self) -> bool {
        self.connecting.load(Relaxed) != 0
    }

    /// Whether this process made the end.
    pub fn is_made_here(&self) -> bool {
        self.maker == std::process::id()
    }
}

/// A thread of this process that sleeps for something to receive.
#[derive(Debug)]
pub struct Asleep<'a> {
    count: &'a AtomicU32,
    alone: bool,
}

impl Asleep<'_> {
    /// Whether no other thread of this process slept when this one began to.
    pub fn is_alone(&self) -> bool {
        self.alone
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Relaxed);
    }
}
