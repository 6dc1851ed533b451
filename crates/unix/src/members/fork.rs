//! The handlers around fork(2) (pthread_atfork(3)), and what they hold from before a fork until after it.
//!
//! There is one registration for the whole process, whatever kinds of sockets it has: two registrations would
//! take locks in opposite orders. A socket that takes part implements [`AtFork`]. Its `before` returns an
//! [`Over`], which is kept during the fork. Then the parent and the child each call a method of theirs on it.
//!
//! The steps, all in the thread that forks:
//!
//! 1. `prepare` locks the list of registered sockets and calls [`AtFork::before`] on each.
//! 2. `parent` calls [`Over::in_parent`] on each. It then waits for the child to join, and cleans up if the
//!    child never does.
//! 3. `child` calls [`Over::in_child`] on each. It then closes a socket, which tells the parent that it has
//!    joined.

use crate::control;
use crate::generation::{before_fork, in_child};
use onecopy_sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed, spin_loop};
use onecopy_sync::{Mutex, MutexGuard, OwnedGuard};
use onecopy_sys::life::Lifeline;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::time::{Duration, Instant};

/// The file that tells which members live, and this process's number in it.
pub type Joined = (Arc<Lifeline>, u32);

/// A socket that takes part in forks.
pub trait AtFork: Send + Sync {
    /// Prepares, right before a fork, what parent and child will both have. The result is kept during the
    /// fork.
    fn before(self: Arc<Self>, fork: &mut Fork<'_>) -> Box<dyn Over>;
}

/// Something that a socket holds during a fork.
pub trait Over: Send {
    /// Returns whether the child is to join those who share the socket.
    fn expects_child(&self) -> bool {
        false
    }

    /// Returns the inode of the page's file that the child has of it.
    fn page(&self) -> Option<u64> {
        None
    }

    /// Lets go, in the parent. Returns what is to be done if the child never joins.
    fn in_parent(self: Box<Self>) -> Option<Box<dyn FnOnce()>>;

    /// Lets go, in the child, and joins those who share the socket.
    fn in_child(self: Box<Self>, child: &mut Child);
}

/// A fork that is about to happen.
#[derive(Debug)]
pub struct Fork<'a> {
    /// The inodes of the pages' files that this process has.
    pages: &'a mut Vec<u64>,
    /// When the fork began.
    start: Instant,
    family: OnceLock<Option<Joined>>,
}

impl Fork<'_> {
    /// Returns the list of the pages' files that this process has.
    pub fn pages(&mut self) -> &mut Vec<u64> {
        self.pages
    }

    /// Returns what is left of a wait that began with the fork and may last `limit`.
    pub fn left(&self, limit: Duration) -> Duration {
        limit.saturating_sub(self.start.elapsed())
    }

    /// Returns the family's file and this process's number in it, or `None` if there is none to be had.
    pub fn family(&self) -> Option<&Joined> {
        self.family.get_or_init(|| FAMILY.join().ok()).as_ref()
    }
}

/// A process that was just forked.
#[derive(Debug, Default)]
pub struct Child {
    family: OnceLock<Option<Joined>>,
}

impl Child {
    /// Returns the family's file and this child's number in it, or `None` if there is none to be had.
    pub fn family(&self) -> Option<&Joined> {
        self.family.get_or_init(|| FAMILY.join().ok()).as_ref()
    }
}

/// All sockets of this process that take part in forks, and its own number among parents and children.
struct Family {
    ends: Mutex<Ends>,
    /// Made before the first fork of a process that has an end.
    life: OnceLock<Arc<Lifeline>>,
    /// This process's number in `life`; 0 while it has none.
    me: AtomicU32,
    /// The state of a fork that is under way.
    forking: Mutex<Option<Forking>>,
}

#[derive(Default)]
struct Ends {
    list: Vec<Weak<dyn AtFork>>,
    free: Vec<usize>,
    /// The inodes of the pages' files of which this process has a descriptor, or is about to have one.
    pages: Vec<u64>,
}

static FAMILY: LazyLock<Arc<Family>> = LazyLock::new(|| {
    // If there is no memory for the handlers, a child cannot use the ends it inherits, as if nothing had been
    // prepared.
    let _ = onecopy_sys::fork::around(prepare, parent, child);
    Arc::new(Family {
        ends: Mutex::default(),
        life: OnceLock::new(),
        me: AtomicU32::new(0),
        forking: Mutex::new(None),
    })
});

/// The value of a [`Place`] that is not in the list.
const NOWHERE: usize = usize::MAX;

/// A socket's place in the list of those that take part in forks. Dropping it takes the socket off the list.
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
            ends.list[place] = Weak::<Nobody>::new();
            ends.free.push(place);
        }
    }
}

/// Stands at a place in the list that was given up.
struct Nobody;

impl AtFork for Nobody {
    fn before(self: Arc<Self>, _fork: &mut Fork<'_>) -> Box<dyn Over> {
        Box::new(Nobody)
    }
}

impl Over for Nobody {
    fn in_parent(self: Box<Self>) -> Option<Box<dyn FnOnce()>> {
        None
    }

    fn in_child(self: Box<Self>, _child: &mut Child) {}
}

/// Gives `look` the inodes of the pages' files that this process has, or is about to have.
pub(crate) fn pages<R>(look: impl FnOnce(&mut Vec<u64>) -> R) -> R {
    look(&mut FAMILY.ends().pages)
}

/// Registers a socket: forks prepare it from here on.
pub fn register(one: Weak<dyn AtFork>, place: &Place) {
    let mut ends = FAMILY.ends();
    let at = match ends.free.pop() {
        Some(at) => {
            ends.list[at] = one;
            at
        }
        None => {
            ends.list.push(one);
            ends.list.len() - 1
        }
    };
    place.0.store(at, Relaxed);
}

/// All that is held during a fork.
struct Forking {
    ends: OwnedGuard<Family, Ends>,
    held: Vec<Box<dyn Over>>,
    /// The sockets. Another thread may drop one meanwhile, and what a last drop closes may be another socket
    /// whose locks are held here. So they are dropped when no lock is held any more.
    all: Vec<Arc<dyn AtFork>>,
    /// A socket pair. The parent watches the first end; the child closes the second one when it has joined,
    /// or by dying before.
    news: Option<(OwnedFd, OwnedFd)>,
}

/// How long the parent waits to hear of its child.
const CHILD: Duration = Duration::from_secs(1);
/// How long a fork waits for the list, which others lock only for moments.
const LIST: Duration = Duration::from_secs(60);
/// How often a thread looks at the list's lock before it sleeps for it.
const SPINS: u32 = 100;

impl Family {
    /// Locks the list. Both ends of a connection come and go at once, and each holds the lock for less time
    /// than a sleep takes.
    fn ends(&self) -> MutexGuard<'_, Ends> {
        for _ in 0..SPINS {
            if let Some(ends) = self.ends.try_lock() {
                return ends;
            }
            spin_loop();
        }
        self.ends.lock()
    }

    /// Returns the file that tells which members live, and this process's number in it. Makes both if needed.
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
    before_fork();
    let Some(mut ends) = OwnedGuard::lock_for(family.clone(), |family| &family.ends, LIST) else { return };
    let all: Vec<Arc<dyn AtFork>> = ends.list.iter().filter_map(Weak::upgrade).collect();
    point!("listed");
    let mut fork = Fork { pages: &mut ends.pages, start: Instant::now(), family: OnceLock::new() };
    let held: Vec<_> = all.iter().map(|one| one.clone().before(&mut fork)).collect();
    let news = held.iter().any(|held| held.expects_child()).then(|| {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()
    });
    *family.forking.lock() = Some(Forking { ends, held, all, news: news.flatten() });
}

extern "C" fn parent() {
    let Some(Forking { ends, held, all, news }) = FAMILY.forking.lock().take() else { return };
    // Closed before the next fork, whose child would keep it open.
    let news = news.map(|(mine, childs)| {
        drop(childs);
        mine
    });
    // The list is unlocked first: the last drop of a socket that is held locks it.
    drop(ends);
    // The sockets' locks are released before this waits for a child that may want them.
    let after: Vec<_> = held.into_iter().filter_map(|held| held.in_parent()).collect();
    drop(all);
    if after.is_empty() {
        return;
    }
    // The socket hangs up when the child has joined. If fork failed and there is no child, it hangs up at
    // once. A child that is stopped before it joins keeps its places.
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
        after.into_iter().for_each(|then| then());
    }
}

extern "C" fn child() {
    let family = &*FAMILY;
    // Counted even if nothing could be prepared: this is another process.
    in_child();
    family.me.store(0, Relaxed);
    let Some(Forking { mut ends, held, all, news }) = family.forking.lock().take() else { return };
    // Another thread of the parent may have been about to open some page. Nobody in the child will.
    ends.pages.retain(|page| held.iter().any(|held| held.page() == Some(*page)));
    drop(ends);
    let mut child = Child::default();
    held.into_iter().for_each(|held| held.in_child(&mut child));
    // This tells the parent that the child has joined.
    drop(news);
    drop(all);
}
