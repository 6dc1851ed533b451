//! An end over a fork: it is locked, and parent and child share it from then on.
//!
//! While one process holds an end, all of its state is on its heap. Before a fork (pthread_atfork(3)) each end gets a page
//! that parent and child share ([`onecopy_ring::page`]); from then on what its two directions are at lies there, and
//! the heap's is a copy (`side.rs`). A lock in the page has the number of its member, which is that of a byte that the
//! member keeps locked in a file all of them have ([`onecopy_sys::life`]): so the death of a member shows, in any pid
//! namespace, and who takes its lock recovers what it left (`mending.rs`).
//!
//! An end that may be passed on has its page in a memfd, and its members lock their bytes in that file, not the family's: so
//! whoever is given the page can be one of them ([`crate::joining`]), and one that means ill has no file in his hands on
//! which anybody else's life depends.
//!
//! What a fork finds unsettled stays so: neither process may take the peer's ring alone, so the direction goes on over
//! the kernel while both hold the end. Settings (policy, waits, timeouts) are each process's own.

use crate::connection::Connection;
use crate::connection::core::broken;
use crate::connection::rx::Rx;
use crate::connection::side::Inner;
use crate::connection::tx::Tx;
use crate::multiprocess::fork::{AtFork, Child, Fork, Over, register};
use crate::multiprocess::membership::{Fresh, Given, Sharing};
use onecopy_sync::OwnedGuard;
use onecopy_sync::atomic::Ordering::{Relaxed, SeqCst};
use onecopy_sync::atomic::fence;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// One end, locked over a fork against the threads of this process. What could not be locked in time the child must not touch.
struct Held {
    end: Arc<Connection>,
    rx: Option<OwnedGuard<Connection, Inner<Rx>>>,
    tx: Option<OwnedGuard<Connection, Inner<Tx>>>,
    /// What was given away, which the child has to look after as well.
    _given: Option<OwnedGuard<Sharing, Vec<Given>>>,
    /// Where the child is entered among those who hold it, and by whom that was kept.
    place: Option<(usize, u32)>,
}

/// How long a fork waits for senders, all of them together: one may be asleep for want of room, or hold a slot.
const SENDERS: Duration = Duration::from_millis(20);
/// What each sender gets of that at least: most hold their side for much less.
const SENDER: Duration = Duration::from_millis(2);
/// How long it waits for receivers, who never sleep with their lock, all of them together.
const RECEIVERS: Duration = Duration::from_secs(1);
/// What each receiver gets of that at least.
const RECEIVER: Duration = Duration::from_millis(20);

impl AtFork for Connection {
    fn before(self: Arc<Self>, fork: &mut Fork<'_>) -> Box<dyn Over> {
        Box::new(hold(self, fork))
    }
}

/// Locks an end, and has it shared if it is not yet.
fn hold(end: Arc<Connection>, fork: &mut Fork<'_>) -> Held {
    let none = |end| Held { end, rx: None, tx: None, _given: None, place: None };
    if end.is_orphan() {
        return none(end);
    }
    let start = fork.start;
    let left = |limit: Duration| limit.saturating_sub(start.elapsed());
    let rx = OwnedGuard::lock_for(end.clone(), |end| end.rx.mutex(), left(RECEIVERS).max(RECEIVER));
    // (It may have been passed on while its lock was waited for.)
    let usable =
        |rx: &OwnedGuard<_, Inner<Rx>>| !end.is_orphan() && (rx.is_shared() || rx.value.can_be_shared(&end));
    let Some(mut rx) = rx.filter(usable) else {
        return none(end);
    };
    let sharing = match end.others.sharing() {
        Some(sharing) => sharing.clone(),
        None if end.config.passable => {
            let Ok(fresh) = Fresh::create(fork.pages) else { return none(end) };
            end.others.share(|| fresh.over()).clone()
        }
        None => {
            let Some((life, me)) = fork.family() else { return none(end) };
            let Ok(sharing) = Sharing::with_family(life, *me) else { return none(end) };
            end.others.share(|| Arc::new(sharing)).clone()
        }
    };
    // The threads' locks suffice: what other processes do meanwhile, both of these two load when they come to it.
    end.share_rx(&mut rx, &sharing);
    // What this process must not touch it does not hand on.
    let sends = end.broken.load(Relaxed) != broken::CANNOT_SEND;
    let tx = sends
        .then(|| OwnedGuard::lock_for(end.clone(), |end| end.tx.mutex(), left(SENDERS).max(SENDER)))
        .flatten();
    let tx = tx.map(|mut tx| {
        end.share_tx(&mut tx, &sharing);
        tx
    });
    // The child's: before there is one.
    let place = sharing.expect_child();
    let place = place.map(|place| (place, sharing.me()));
    Held { end, rx: Some(rx), tx, _given: sharing.hold_given(), place }
}

impl Over for Held {
    fn expects_child(&self) -> bool {
        self.place.is_some()
    }

    fn page(&self) -> Option<u64> {
        self.end.others.sharing().and_then(|sharing| sharing.file()).map(|file| file.1)
    }

    fn in_parent(self: Box<Self>) -> Option<Box<dyn FnOnce()>> {
        let Held { end, place, .. } = *self;
        let (place, me) = place?;
        Some(Box::new(move || {
            if let Some(sharing) = end.others.sharing() {
                sharing.words().members.0.give_up(place, me);
            }
        }))
    }

    fn in_child(self: Box<Self>, child: &mut Child) {
        let Held { end, rx, tx, _given: given, place } = *self;
        drop(given);
        // Whoever sleeps does so in the parent.
        end.sleepers.store(0, Relaxed);
        let me = end.others.sharing().and_then(|sharing| sharing.join_as_child(child.family()));
        let (Some(mut rx), Some(me), Some(sharing)) = (rx, me, end.others.sharing()) else {
            return end.orphan(true);
        };
        if let Some((place, parent)) = place {
            sharing.words().members.0.arrive(place, parent, me);
        }
        rx.inherit();
        match tx {
            Some(mut tx) => tx.inherit(),
            None => end.orphan(false),
        }
    }
}

impl Connection {
    /// Forks look after it from here on.
    pub fn look_after(self: &Arc<Self>) {
        let one: Weak<Connection> = Arc::downgrade(self);
        register(one, &self.place);
    }

    /// The receiving side is shared from here on. (Who holds it is kept out by the threads' lock.)
    pub fn share_rx(self: &Arc<Self>, rx: &mut Inner<Rx>, sharing: &Arc<Sharing>) {
        if !rx.is_shared() {
            rx.value.begin_sharing(self, sharing.me());
            rx.share(self, sharing.clone());
        }
    }

    /// As [`Connection::share_rx`], the sending side.
    pub fn share_tx(self: &Arc<Self>, tx: &mut Inner<Tx>, sharing: &Arc<Sharing>) {
        if !tx.is_shared() {
            // The peer's ring must be in all processes, or in none.
            self.adopt(&mut tx.value);
            self.handshake.decline_offer();
            tx.share(self, sharing.clone());
            sharing.sends_too();
            // A thread that has published and unlocked, and now finds the side shared, leaves the doorbell to this one.
            fence(SeqCst);
            let _ = self.ring_under_lock();
        }
    }

    fn orphan(&self, whole: bool) {
        self.broken.store(if whole { broken::ORPHAN } else { broken::CANNOT_SEND }, Relaxed);
    }

    /// This process closes the end. Whether no other one holds it.
    pub fn leave(&self) -> bool {
        match self.others.sharing() {
            _ if self.is_orphan() => false,
            Some(sharing) => {
                sharing.words().members.0.leave(sharing.me());
                !sharing.has_others()
            }
            None => self.maker == std::process::id(),
        }
    }
}
