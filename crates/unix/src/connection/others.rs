//! The seam to the processes that share an end: what a connection tells them, and asks about them.
//!
//! While one process holds the end there is nothing here but a pointer that is null, which is all that the plain path looks at.

use crate::multiprocess::membership::Sharing;
use onecopy_ring::consumer::BorrowId;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::sockopt;
use rustix::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

/// In [`SidePage::doing`](onecopy_ring::page::SidePage::doing): a doorbell is being rung.
pub const RINGING: u64 = 1;
/// A filler is being parked; above, how much memory lay unread before.
pub const PARKING: u64 = 2;

/// What is being taken from the kernel's queue, before the peer's switch: in
/// [`SidePage::doing`](onecopy_ring::page::SidePage::doing) of the receiving side, with
/// the most that it may be (from bit 8 on), and how much had been received before (from bit 32 on). What has been taken when
/// its receiver dies the kernel knows: SO_PEEK_OFF is set to that most, and becomes less by each byte that is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// Bytes of a stream.
    Bytes = 3,
    /// A record of some bytes, by a call that has no room for them, so all of it or nothing.
    Record = 4,
    /// One of none, of which the kernel counts nothing.
    Empty = 5,
}

/// Borrows that processes know of each other: as many as have room in what they share.
pub const MAX_LENT: usize = 25;

/// Most bytes of a stream that are taken from the kernel at once where processes share the end.
pub const MOST: usize = (1 << 24) - 1;

/// The other processes that hold an end, once it was in one that forked or was shared.
#[derive(Debug, Default)]
pub struct Others(OnceLock<Arc<Sharing>>);

impl Others {
    /// What this process shares with them.
    pub fn sharing(&self) -> Option<&Arc<Sharing>> {
        self.0.get()
    }

    /// Begins to share.
    pub fn share(&self, make: impl FnOnce() -> Arc<Sharing>) -> &Arc<Sharing> {
        self.0.get_or_init(make)
    }

    /// Whether there ever were any.
    #[inline]
    pub fn were_there(&self) -> bool {
        self.0.get().is_some()
    }

    /// Whether any may hold the end now.
    pub fn are_there(&self) -> bool {
        self.0.get().is_some_and(|sharing| sharing.has_others())
    }

    /// Whether the process with that number lives, and has not closed the end.
    pub fn has(&self, member: u32) -> bool {
        let holds = |sharing: &Arc<Sharing>| sharing.lives(member) && sharing.words().members.0.lists(member);
        self.0.get().is_some_and(holds)
    }

    /// Whether they share the sending side, so that whoever unlocks it rings.
    #[inline]
    pub fn send(&self) -> bool {
        self.0.get().is_some_and(|sharing| sharing.sends())
    }

    /// A sender that does not wait found the sending side held.
    pub fn turn_sender_away(&self) {
        if let Some(sharing) = self.0.get() {
            sharing.words().about.0.turned_away.store(1, Relaxed);
        }
    }

    /// A receiver that does not wait found the receiving side kept by one of them. That one sees it after unlocking.
    #[cold]
    pub fn turn_receiver_away(&self) {
        if let Some(sharing) = self.0.get() {
            sharing.words().about.0.receiver_turned_away.store(1, Relaxed);
        }
    }

    /// A view is given back whose release one of them keeps this process from: done by who takes the receiving side next.
    #[cold]
    pub fn release_later(&self, id: BorrowId, len: usize) {
        if let Some(sharing) = self.0.get() {
            sharing.late.lock().push((id, len));
        }
    }

    /// This end was shut down for sending.
    pub fn shut_sending(&self) {
        if let Some(sharing) = self.0.get() {
            sharing.words().about.0.send_shut.store(1, Relaxed);
        }
    }

    /// So many channels were made. (The receiver takes one only while that lives: who is killed with it made must not leave
    /// others to make another.)
    pub fn have_channel(&self, made: u32) {
        if let Some(sharing) = self.0.get() {
            sharing.words().about.0.channel.store(made, Relaxed);
        }
    }

    /// For who holds the sending side: tells who comes after what this process is about, should it die. 0: nothing.
    #[inline]
    pub fn expect(&self, doing: u64) {
        if let Some(sharing) = self.0.get() {
            // Relaxed: who reads it knows that this process is dead, which the kernel says after all that it did.
            sharing.words().tx.0.doing.store(doing, Relaxed);
        }
    }

    /// For who holds the receiving side, where processes share it and `received` were received: before it takes up to `most` bytes
    /// from the queue of `control`, which are there. How many it may take.
    ///
    /// (At least as many are there as are counted down from: so one that looks at the queue at this moment begins behind bytes
    /// that are there, and sleeps for the first that comes.)
    pub fn expect_taking(&self, control: BorrowedFd<'_>, what: Taking, most: usize, received: u64) -> usize {
        let Some(sharing) = self.0.get() else { return most };
        let most = most.min(MOST);
        // 0: it cannot be known.
        let counts = sockopt::set_peek_off(control, most as i32).map_or(0, |()| most as u64);
        let doing = &sharing.words().rx.0.doing;
        // Relaxed: as in `expect`.
        doing.store(what as u64 | counts << 8 | received << 32, Relaxed);
        point!("taking");
        most
    }
}
