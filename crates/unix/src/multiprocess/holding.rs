//! Forks lock an end. From then on parent and child share it.
//!
//! While one process holds an end, all of the end's state is on that process's heap. Before a fork
//! (pthread_atfork(3)) each end gets a page that parent and child share ([`onecopy_ring::page`]). From then
//! on the state of its two directions is in that page, and the heap has a copy
//! ([`Side`](crate::connection::side::Side)).
//!
//! A lock in the page holds the number of the member that has it. That is also the number of a byte that the
//! member keeps locked in a file that all members have ([`onecopy_sys::life`]). So the death of a member
//! shows, in any pid namespace. The next member that takes its lock recovers what it left
//! ([`snapshot`](super::snapshot)).
//!
//! An end that may be passed on has its page in a memfd. Its members lock their bytes in that file, not in
//! the family's. So a process that is given the page can become a member ([`share`](super::share)). If it
//! means ill, it holds no file on which the life of anybody else depends.
//!
//! A direction that still uses the kernel at the fork does so while both processes hold the end. Neither of
//! them may take the peer's ring alone. Settings (policy, waits, timeouts) belong to each process.

use crate::connection::Connection;
use crate::connection::rx::Rx;
use crate::connection::side::Inner;
use crate::connection::tx::Tx;
use crate::core::broken;
use crate::members::fork::{AtFork, Child, Fork, Over};
use crate::members::membership::{Fresh, Given, Sharing};
use onecopy_sync::OwnedGuard;
use onecopy_sync::atomic::Ordering::SeqCst;
use onecopy_sync::atomic::fence;
use std::sync::Arc;
use std::time::Duration;

/// An end that is locked during a fork, against the threads of this process. The child must not touch a side
/// that could not be locked in time.
struct Held {
    end: Arc<Connection>,
    rx: Option<OwnedGuard<Connection, Inner<Rx>>>,
    tx: Option<OwnedGuard<Connection, Inner<Tx>>>,
    /// The list of tokens that were given away, which the child has to look after as well.
    _given: Option<OwnedGuard<Sharing, Vec<Given>>>,
    /// The child's place among the members, and the number of the member that reserved it.
    place: Option<(usize, u32)>,
}

/// How long a fork waits for senders, all of them together. A sender may be asleep for want of room, or hold
/// a slot.
const SENDERS: Duration = Duration::from_millis(20);
/// The least that each sender gets of that. Most hold their side for much less.
const SENDER: Duration = Duration::from_millis(2);
/// How long a fork waits for receivers, all of them together. They never sleep with their lock.
const RECEIVERS: Duration = Duration::from_secs(1);
/// The least that each receiver gets of that.
const RECEIVER: Duration = Duration::from_millis(20);

impl AtFork for Connection {
    fn before(self: Arc<Self>, fork: &mut Fork<'_>) -> Box<dyn Over> {
        Box::new(hold(self, fork))
    }
}

/// Locks an end, and begins to share it if it is not shared yet.
fn hold(end: Arc<Connection>, fork: &mut Fork<'_>) -> Held {
    let none = |end| Held { end, rx: None, tx: None, _given: None, place: None };
    if end.is_orphan() {
        return none(end);
    }
    let rx = OwnedGuard::lock_for(end.clone(), |end| end.rx().mutex(), fork.left(RECEIVERS).max(RECEIVER));
    // Another thread may have passed the end on while this one waited for its lock.
    let usable = |rx: &OwnedGuard<_, Inner<Rx>>| {
        !end.is_orphan() && (rx.is_shared() || rx.value().can_be_shared(&end))
    };
    let Some(mut rx) = rx.filter(usable) else {
        return none(end);
    };
    let sharing = match end.others().sharing() {
        Some(sharing) => sharing.clone(),
        None if end.config().passable => {
            let Ok(fresh) = Fresh::create(fork.pages()) else { return none(end) };
            end.others().share(|| fresh.over()).clone()
        }
        None => {
            let Some((life, me)) = fork.family() else { return none(end) };
            let Ok(sharing) = Sharing::with_family(life, *me) else { return none(end) };
            end.others().share(|| Arc::new(sharing)).clone()
        }
    };
    // The locks of the threads suffice. What other processes do meanwhile, parent and child load when they
    // next take a lock.
    share_rx(&end, &mut rx, &sharing);
    // This process does not hand on a side that it must not touch itself.
    let sends = end.broken() != broken::CANNOT_SEND;
    let tx = sends
        .then(|| OwnedGuard::lock_for(end.clone(), |end| end.tx().mutex(), fork.left(SENDERS).max(SENDER)))
        .flatten();
    let tx = tx.map(|mut tx| {
        share_tx(&end, &mut tx, &sharing);
        tx
    });
    // The child's place is reserved before there is a child.
    let place = sharing.expect_child();
    let place = place.map(|place| (place, sharing.me()));
    Held { end, rx: Some(rx), tx, _given: sharing.hold_given(), place }
}

impl Over for Held {
    fn expects_child(&self) -> bool {
        self.place.is_some()
    }

    fn page(&self) -> Option<u64> {
        self.end.others().sharing().and_then(|sharing| sharing.file()).map(|file| file.1)
    }

    fn in_parent(self: Box<Self>) -> Option<Box<dyn FnOnce()>> {
        let Held { end, place, .. } = *self;
        let (place, me) = place?;
        Some(Box::new(move || {
            if let Some(sharing) = end.others().sharing() {
                sharing.words().members.0.give_up(place, me);
            }
        }))
    }

    fn in_child(self: Box<Self>, child: &mut Child) {
        let Held { end, rx, tx, _given: given, place } = *self;
        drop(given);
        end.forget_sleepers();
        let me = end.others().sharing().and_then(|sharing| sharing.join_as_child(|| child.family()));
        let (Some(mut rx), Some(me), Some(sharing)) = (rx, me, end.others().sharing()) else {
            return orphan(&end, true);
        };
        if let Some((place, parent)) = place {
            sharing.words().members.0.arrive(place, parent, me);
        }
        rx.inherit();
        match tx {
            Some(mut tx) => tx.inherit(),
            None => orphan(&end, false),
        }
    }
}

/// Begins to share the receiving side. The threads' lock, which the caller has, keeps all others out.
pub fn share_rx(connection: &Arc<Connection>, rx: &mut Inner<Rx>, sharing: &Arc<Sharing>) {
    if !rx.is_shared() {
        rx.value_mut().begin_sharing(connection, sharing.me());
        rx.share(connection, sharing.clone());
    }
}

/// Begins to share the sending side. The caller has its lock, as with [`share_rx`].
pub fn share_tx(connection: &Arc<Connection>, tx: &mut Inner<Tx>, sharing: &Arc<Sharing>) {
    if !tx.is_shared() {
        // The peer's ring must be in all processes, or in none.
        connection.adopt(tx.value_mut());
        connection.decline_offer();
        tx.share(connection, sharing.clone());
        sharing.sends_too();
        // A thread that has published and unlocked, and now finds the side shared, leaves the doorbell to
        // this one.
        fence(SeqCst);
        let _ = connection.ring_under_lock();
    }
}

fn orphan(connection: &Connection, whole: bool) {
    connection.set_broken(if whole { broken::ORPHAN } else { broken::CANNOT_SEND });
}
