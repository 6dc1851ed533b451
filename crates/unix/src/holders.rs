//! Processes that hold one end: forks, and what they share.
//!
//! While one process holds an end, all of its state is on its heap. Before a fork (pthread_atfork(3)) each end gets a page
//! that parent and child share ([`onecopy_ring::page`]); from then on what its two directions are at lies there, and
//! the heap's is a copy (`side.rs`). A lock in the page has the number of its holder, which is that of a byte that the
//! holder keeps locked in a file all of them have ([`onecopy_sys::life`]): so the death of a holder shows, in any pid
//! namespace, and who takes its lock mends what it left (`mending.rs`).
//!
//! An end that may be passed on has its page in a memfd, and its holders lock their bytes in that file, not the family's: so
//! whoever is given the page can be one of them ([`crate::joining`]), and one that means ill has no file in his hands on
//! which anybody else's life depends.
//!
//! What a fork finds unsettled stays so: neither process may take the peer's ring alone, so the direction goes on over
//! the kernel while both hold the end. Settings (policy, waits, timeouts) are each process's own.

use crate::end::End;
use crate::making::Kind;
use crate::rx::Rx;
use crate::sharing::{Fresh, Given, Sharing};
use crate::side::Inner;
use crate::tx::Tx;
use crate::{Error, Op, control};
use onecopy_sync::atomic::Ordering::{Relaxed, SeqCst};
use onecopy_sync::atomic::{AtomicU32, AtomicUsize, fence, spin_loop};
use onecopy_sync::{Mutex, MutexGuard, OwnedGuard};
use onecopy_sys::life::Lifeline;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::time::{Duration, Instant};

/// All ends of this process, and who it is among those that it shares some with.
struct Family {
    ends: Mutex<Ends>,
    /// Made before the first fork with an end.
    life: OnceLock<Arc<Lifeline>>,
    /// 0: no number yet.
    me: AtomicU32,
    /// What is held over a fork.
    forking: Mutex<Option<Forking>>,
    /// Forks of this process.
    forks: AtomicU32,
}

/// Forks between the first process and this one.
static GENERATION: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(0));

#[derive(Default)]
struct Ends {
    list: Vec<Weak<End>>,
    free: Vec<usize>,
    /// Pages' files that this process has a descriptor of, or is about to: by their inodes.
    pages: Vec<u64>,
}

static FAMILY: LazyLock<Arc<Family>> = LazyLock::new(|| {
    // Without memory for the handlers a child's ends are what they always were: nobody's.
    let _ = onecopy_sys::fork::around(prepare, parent, child);
    Arc::new(Family {
        ends: Mutex::default(),
        life: OnceLock::new(),
        me: AtomicU32::new(0),
        forking: Mutex::new(None),
        forks: AtomicU32::new(0),
    })
});

/// What an end's place says that has none.
const NOWHERE: usize = usize::MAX;

/// Where an end stands in the list of all.
#[derive(Debug)]
pub struct Place(AtomicUsize);

impl Default for Place {
    fn default() -> Self {
        Place(AtomicUsize::new(NOWHERE))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let place = self.0.load(Relaxed);
        if place != NOWHERE {
            let mut ends = FAMILY.ends();
            ends.list[place] = Weak::new();
            ends.free.push(place);
        }
    }
}

/// The files of pages that this process has, or is about to have: by their inodes.
pub fn pages<R>(look: impl FnOnce(&mut Vec<u64>) -> R) -> R {
    look(&mut FAMILY.ends().pages)
}

/// A new end: forks look after it from here on.
pub fn register(end: &Arc<End>) {
    let mut ends = FAMILY.ends();
    let place = match ends.free.pop() {
        Some(place) => {
            ends.list[place] = Arc::downgrade(end);
            place
        }
        None => {
            ends.list.push(Arc::downgrade(end));
            ends.list.len() - 1
        }
    };
    end.place.0.store(place, Relaxed);
}

/// Changes with each fork, in the child: what was made in another generation belongs to the parent.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// Changes with each fork, in the parent too: what was there before one may be a child's as well.
pub fn forks() -> u32 {
    FAMILY.forks.load(Relaxed)
}

/// What a fork holds.
struct Forking {
    ends: OwnedGuard<Family, Ends>,
    held: Vec<Held>,
    /// What was met on the way and is left alone.
    others: Vec<Arc<End>>,
    /// What the parent looks at, and the child closes once it has joined, or by dying before.
    news: Option<(OwnedFd, OwnedFd)>,
}

/// One end, locked over a fork against the threads of this process. What could not be locked in time the child must not touch.
struct Held {
    end: Arc<End>,
    rx: Option<OwnedGuard<End, Inner<Rx>>>,
    tx: Option<OwnedGuard<End, Inner<Tx>>>,
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
/// How long the parent waits to hear of its child.
const CHILD: Duration = Duration::from_secs(1);
/// How long it waits for a list that is locked only for moments.
const LIST: Duration = Duration::from_secs(60);
/// Looks at the list's lock before sleeping for it.
const SPINS: u32 = 100;

impl Family {
    /// The list. Both ends of a connection come and go at once, and its lock is held for less than a sleep takes.
    fn ends(&self) -> MutexGuard<'_, Ends> {
        for _ in 0..SPINS {
            if let Some(ends) = self.ends.try_lock() {
                return ends;
            }
            spin_loop();
        }
        self.ends.lock()
    }

    /// The file that tells who lives, and this process's number in it.
    fn join(&self) -> rustix::io::Result<(Arc<Lifeline>, u32)> {
        let life = match self.life.get() {
            Some(life) => life.clone(),
            None => {
                let life = Arc::new(Lifeline::create()?);
                self.life.get_or_init(|| life).clone()
            }
        };
        if self.me.load(Relaxed) == 0 {
            self.me.store(life.join()?, Relaxed);
        }
        Ok((life, self.me.load(Relaxed)))
    }
}

extern "C" fn prepare() {
    let family = &*FAMILY;
    family.forks.fetch_add(1, Relaxed);
    let Some(mut ends) = OwnedGuard::lock_for(family.clone(), |family| &family.ends, LIST) else { return };
    // (A datagram socket has peers and a meeting besides: it stays one process's, as far as it shares memory: `dgram/halves.rs`.)
    // All are kept until the list is unlocked: the last drop of one, whose socket another thread drops now, locks it.
    let all: Vec<Arc<End>> = ends.list.iter().filter_map(Weak::upgrade).collect();
    point!("listed");
    let (live, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|end| end.kind != Kind::Datagram);
    others.iter().for_each(|end| end.put_down());
    let joined = if live.is_empty() { None } else { family.join().ok() };
    let start = Instant::now();
    let held = live.into_iter().map(|end| hold(end, joined.as_ref(), &mut ends, start)).collect();
    let held: Vec<Held> = held;
    let news = held.iter().any(|held| held.place.is_some()).then(|| {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()
    });
    *family.forking.lock() = Some(Forking { ends, held, others, news: news.flatten() });
}

/// Locks an end, and has it shared if it is not yet.
fn hold(end: Arc<End>, joined: Option<&(Arc<Lifeline>, u32)>, ends: &mut Ends, start: Instant) -> Held {
    let none = |end| Held { end, rx: None, tx: None, _given: None, place: None };
    if end.is_orphan() {
        return none(end);
    }
    let left = |limit: Duration| limit.saturating_sub(start.elapsed());
    let rx = OwnedGuard::lock_for(end.clone(), |end| end.rx.mutex(), left(RECEIVERS).max(RECEIVER));
    // (It may have been passed on while its lock was waited for.)
    let usable =
        |rx: &OwnedGuard<_, Inner<Rx>>| !end.is_orphan() && (rx.is_shared() || rx.value.can_be_shared(&end));
    let Some(mut rx) = rx.filter(usable) else {
        return none(end);
    };
    let sharing = match (end.sharing.get(), joined) {
        (Some(sharing), _) => sharing.clone(),
        (None, _) if end.config.passable => {
            let Ok(fresh) = Fresh::create(&mut ends.pages) else { return none(end) };
            end.sharing.get_or_init(|| fresh.over(&end)).clone()
        }
        (None, Some((life, me))) => {
            let Ok(sharing) = Sharing::with_family(&end, life, *me) else { return none(end) };
            end.sharing.get_or_init(|| Arc::new(sharing)).clone()
        }
        (None, None) => return none(end),
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

extern "C" fn parent() {
    let Some(Forking { ends, held, others: _others, news }) = FAMILY.forking.lock().take() else { return };
    // Before the next fork, whose child would keep it open.
    let news = news.map(|(mine, childs)| {
        drop(childs);
        mine
    });
    // First: the last drop of an end locks the list.
    drop(ends);
    // The locks are given up before this waits for a child that may want them.
    let places: Vec<_> = held.into_iter().filter_map(|Held { end, place, .. }| Some((end, place?))).collect();
    if places.is_empty() {
        return;
    }
    // It hangs up when the child has joined, at once where there is none, since fork has failed. A child that is stopped before it
    // comes to that keeps its places.
    let hung_up = news.is_some_and(|news| {
        use rustix::event::PollFlags;
        let start = Instant::now();
        loop {
            match control::wait(news.as_fd(), PollFlags::empty(), Some(CHILD.saturating_sub(start.elapsed())))
            {
                Err(Errno::INTR) => {}
                other => return other.is_ok(),
            }
        }
    });
    if hung_up {
        for (end, (place, me)) in places {
            if let Some(sharing) = end.sharing.get() {
                sharing.words().holders.0.give_up(place, me);
            }
        }
    }
}

extern "C" fn child() {
    let family = &*FAMILY;
    // Even where nothing could be prepared: this is another process.
    GENERATION.fetch_add(1, Relaxed);
    family.me.store(0, Relaxed);
    let Some(Forking { mut ends, held: all, others, news }) = family.forking.lock().take() else { return };
    // What another thread was about to take up nobody here will.
    let held_inode =
        |held: &Held| held.end.sharing.get().and_then(|sharing| sharing.file()).map(|file| file.1);
    ends.pages.retain(|page| all.iter().any(|held| held_inode(held) == Some(*page)));
    drop(ends);
    others.iter().for_each(|end| end.pick_up_later());
    // Whoever sleeps does so in the parent.
    all.iter().map(|held| &held.end).chain(&others).for_each(|end| end.sleepers.store(0, Relaxed));
    let joined = if all.is_empty() { None } else { family.join().ok() };
    for held in all {
        let Held { end, rx, tx, _given: given, place } = held;
        drop(given);
        let me = end.sharing.get().and_then(|sharing| sharing.join_as_child(joined.as_ref()));
        let (Some(mut rx), Some(me), Some(sharing)) = (rx, me, end.sharing.get()) else {
            end.orphan(true);
            continue;
        };
        if let Some((place, parent)) = place {
            sharing.words().holders.0.arrive(place, parent, me);
        }
        rx.inherit();
        match tx {
            Some(mut tx) => tx.inherit(),
            None => end.orphan(false),
        }
    }
    // Now the parent knows.
    drop(news);
}

/// What `End::broken` says.
pub mod broken {
    /// Nothing is wrong.
    pub const NOT: u32 = 0;
    /// The peer, or a holder, lied.
    pub const LIED: u32 = 1;
    /// This process has inherited an end that it cannot use: another thread of its parent was using it.
    pub const ORPHAN: u32 = 2;
    /// As `ORPHAN`, of its sending side only.
    pub const CANNOT_SEND: u32 = 3;
    /// This process has passed it on, and is letting go of it.
    pub const PASSED: u32 = 4;
    /// There was a fork, and this process has not used it since: a datagram socket, which only one of them may.
    pub const UNCLAIMED: u32 = 5;
}

impl End {
    /// The receiving side is shared from here on. (Who holds it is kept out by the threads' lock.)
    pub fn share_rx(&self, rx: &mut Inner<Rx>, sharing: &Arc<Sharing>) {
        if !rx.is_shared() {
            rx.value.begin_sharing(self, sharing.me());
            rx.share(sharing.clone());
        }
    }

    /// As [`End::share_rx`], the sending side.
    pub fn share_tx(&self, tx: &mut Inner<Tx>, sharing: &Arc<Sharing>) {
        if !tx.is_shared() {
            // The peer's ring must be in all processes, or in none.
            self.adopt(&mut tx.value);
            self.decline_offer();
            tx.share(sharing.clone());
            sharing.sends_too();
            // A thread that has published and unlocked, and now finds the side shared, leaves the bell to this one.
            fence(SeqCst);
            let _ = self.ring_under_lock();
        }
    }

    /// Whether another process may hold this end now.
    pub fn is_shared(&self) -> bool {
        self.sharing.get().is_some_and(|sharing| sharing.has_others())
    }

    /// Whether another process lives that has shared this end under that number, and has not closed it.
    pub fn is_held_by(&self, holder: u32) -> bool {
        let held = |sharing: &Arc<Sharing>| sharing.lives(holder) && sharing.words().holders.0.lists(holder);
        self.sharing.get().is_some_and(held)
    }

    /// Whether this process must not touch what the end is at: it inherited one that it cannot use, or has passed it on.
    pub fn is_orphan(&self) -> bool {
        matches!(self.broken.load(Relaxed), broken::ORPHAN | broken::PASSED)
    }

    fn orphan(&self, whole: bool) {
        self.broken.store(if whole { broken::ORPHAN } else { broken::CANNOT_SEND }, Relaxed);
    }

    /// What calls say on an end that is lost.
    #[cold]
    pub fn why_broken(&self, op: Op) -> Result<(), Error> {
        match self.broken.load(Relaxed) {
            broken::CANNOT_SEND if op != Op::Send => Ok(()),
            broken::UNCLAIMED => self.pick_up(op),
            broken::ORPHAN | broken::CANNOT_SEND => Err(Error::new(op, Errno::BUSY).because(
                "another thread was using this socket when this process was forked; use it in the parent, \
                 or fork while nobody sends",
            )),
            _ => Err(Error::new(op, Errno::PROTO)),
        }
    }

    /// This process closes the end. Whether no other one holds it.
    pub fn leave(&self) -> bool {
        match self.sharing.get() {
            _ if self.is_orphan() => false,
            Some(sharing) => {
                sharing.words().holders.0.leave(sharing.me());
                !sharing.has_others()
            }
            // (A datagram end is never shared. Whether a child has a copy in use is not known, so after a fork the
            // peer finds out when the last copy is closed: the lifeline hangs up, and the kernel refuses.)
            None if self.kind == Kind::Datagram && self.forks != forks() => false,
            None => self.maker == std::process::id(),
        }
    }
}
