//! The seam to the processes that share an end: what a connection tells them, and asks about them.
//!
//! While one process holds the end, all that is here is a null pointer. The plain path looks at nothing else.

use crate::members::membership::Sharing;
use onecopy_ring::consumer::BorrowId;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::sockopt;
use rustix::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

/// A value of [`SidePage::doing`](onecopy_ring::page::SidePage::doing): the process rings a doorbell.
pub const RINGING: u64 = 1;
/// Another value: the process parks a filler. The bits above say how much memory was unread before.
pub const PARKING: u64 = 2;

/// What a process takes from the kernel's queue, before the peer's switch. It is a value of
/// [`SidePage::doing`](onecopy_ring::page::SidePage::doing) of the receiving side. The most that is taken is
/// added from bit 8 on, and how much had been received before from bit 32 on. When the receiver dies, the
/// kernel knows how much it has taken: SO_PEEK_OFF is set to that most, and becomes less by each byte that is
/// received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// Bytes of a stream.
    Bytes = 3,
    /// A record of some bytes, by a call that has no room for them: all of the record or nothing.
    Record = 4,
    /// A record of no bytes, of which the kernel counts nothing.
    Empty = 5,
}

/// How many borrows processes know of each other: as many as have room in what they share.
pub const MAX_LENT: usize = 25;

/// The most bytes of a stream that are taken from the kernel at once where processes share the end.
pub const MOST: usize = (1 << 24) - 1;

/// The other processes that hold an end, once it was in a process that forked or was shared.
#[derive(Debug, Default)]
pub struct Others(OnceLock<Arc<Sharing>>);

impl Others {
    /// Returns what this process shares with them.
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

    /// Leaves them, as this process closes the end. Returns whether it was the last one, or None if there never were
    /// any.
    pub fn leave(&self) -> Option<bool> {
        self.0.get().map(|sharing| {
            sharing.words().members.0.leave(sharing.me());
            !sharing.has_others()
        })
    }

    /// Whether the process with that number lives, and has not closed the end.
    pub fn has(&self, member: u32) -> bool {
        let holds = |sharing: &Arc<Sharing>| sharing.lives(member) && sharing.words().members.0.lists(member);
        self.0.get().is_some_and(holds)
    }

    /// Whether they share the sending side, so that unlocking it rings.
    #[inline]
    pub fn send(&self) -> bool {
        self.0.get().is_some_and(|sharing| sharing.sends())
    }

    /// Notes that a sender that does not wait found the sending side held.
    pub fn turn_sender_away(&self) {
        if let Some(sharing) = self.0.get() {
            sharing.words().about.0.turned_away.store(1, Relaxed);
        }
    }

    /// Notes that a receiver that does not wait found the receiving side held by one of them. That process
    /// sees the note after unlocking.
    #[cold]
    pub fn turn_receiver_away(&self) {
        if let Some(sharing) = self.0.get() {
            sharing.words().about.0.receiver_turned_away.store(1, Relaxed);
        }
    }

    /// Notes a view that was given back while one of them held the receiving side. The next thread of this
    /// process that takes the side releases it.
    #[cold]
    pub fn release_later(&self, id: BorrowId, len: usize) {
        if let Some(sharing) = self.0.get() {
            sharing.note_late(id, len);
        }
    }

    /// Notes that this end was shut down for sending.
    pub fn shut_sending(&self) {
        if let Some(sharing) = self.0.get() {
            sharing.words().about.0.send_shut.store(1, Relaxed);
        }
    }

    /// Notes how many channels were made. (The receiver takes no second channel while the first one lives. So
    /// where a process is killed that has made one, the others must not make another.)
    pub fn have_channel(&self, made: u32) {
        if let Some(sharing) = self.0.get() {
            sharing.words().about.0.channel.store(made, Relaxed);
        }
    }

    /// Notes what this process is about, for the next process that takes the sending side should this one
    /// die. 0: nothing. The caller holds the sending side.
    #[inline]
    pub fn expect(&self, doing: u64) {
        if let Some(sharing) = self.0.get() {
            // Relaxed: a process that reads it knows that this one is dead, and the kernel says so after all
            // that this one did.
            sharing.words().tx.0.doing.store(doing, Relaxed);
        }
    }

    /// Notes that up to `most` bytes are about to be taken from the queue of `control`, where they are.
    /// Returns how many may be taken. `received` bytes were received before. The caller holds the receiving
    /// side, which processes may share.
    ///
    /// At least as many bytes are there as SO_PEEK_OFF counts down from. So a process that peeks at the queue
    /// at this moment begins behind bytes that are there, and sleeps for the first one that comes.
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
