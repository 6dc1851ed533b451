//! Forks: what is looked after around them (pthread_atfork(3)), and held over them.
//!
//! There is one registration for the whole process, whatever kinds of sockets it has: two would lock in opposite orders. Who wants
//! to be looked after is [`AtFork`], and says what of it is [`Over`] a fork.

use crate::doorbell::control;
use crate::multiprocess::generation::{before_fork, in_child};
use onecopy_sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed, spin_loop};
use onecopy_sync::{Mutex, MutexGuard, OwnedGuard};
use onecopy_sys::life::Lifeline;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::time::{Duration, Instant};

/// The file that tells who lives, and this process's number in it.
pub type Joined = (Arc<Lifeline>, u32);

/// What is looked after at forks.
pub trait AtFork: Send + Sync {
    /// Right before a fork: makes ready what parent and child will both have. What it returns is kept over the fork.
    fn before(self: Arc<Self>, fork: &mut Fork<'_>) -> Box<dyn Over>;
}

/// One that is held over a fork.
pub trait Over: Send {
    /// Whether the child is to join those who share it.
    fn expects_child(&self) -> bool {
        false
    }

    /// The inode of the page's file that the child has of it.
    fn page(&self) -> Option<u64> {
        None
    }

    /// In the parent: lets go. What is to be done if the child never comes.
    fn in_parent(self: Box<Self>) -> Option<Box<dyn FnOnce()>>;

    /// In the child.
    fn in_child(self: Box<Self>, child: &mut Child);
}

/// A fork that is about to be.
#[derive(Debug)]
pub struct Fork<'a> {
    /// The files of pages that this process has: by their inodes.
    pub(super) pages: &'a mut Vec<u64>,
    /// When it began.
    pub(super) start: Instant,
    family: OnceLock<Option<Joined>>,
}

impl Fork<'_> {
    /// Who this process is among those that it shares something with.
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
    /// Who it is among those that it shares something with.
    pub fn family(&self) -> Option<&Joined> {
        self.family.get_or_init(|| FAMILY.join().ok()).as_ref()
    }
}

/// All that is looked after in this process, and who it is among those that it shares some with.
struct Family {
    ends: Mutex<Ends>,
    /// Made before the first fork with an end.
    life: OnceLock<Arc<Lifeline>>,
    /// 0: no number yet.
    me: AtomicU32,
    /// What is held over a fork.
    forking: Mutex<Option<Forking>>,
}

#[derive(Default)]
struct Ends {
    list: Vec<Weak<dyn AtFork>>,
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
    })
});

/// What a place says that is none.
const NOWHERE: usize = usize::MAX;

/// Where something stands in the list of all that is looked after. It leaves the list when this is dropped.
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

/// Who stands where nobody stands any more.
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

/// The files of pages that this process has, or is about to have: by their inodes.
pub fn pages<R>(look: impl FnOnce(&mut Vec<u64>) -> R) -> R {
    look(&mut FAMILY.ends().pages)
}

/// Forks look after it from here on.
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

/// What a fork holds.
struct Forking {
    ends: OwnedGuard<Family, Ends>,
    held: Vec<Box<dyn Over>>,
    /// What the parent looks at, and the child closes once it has joined, or by dying before.
    news: Option<(OwnedFd, OwnedFd)>,
}

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
    before_fork();
    let Some(mut ends) = OwnedGuard::lock_for(family.clone(), |family| &family.ends, LIST) else { return };
    // All are kept until the list is unlocked: the last drop of one, whose socket another thread drops now, locks it.
    let all: Vec<Arc<dyn AtFork>> = ends.list.iter().filter_map(Weak::upgrade).collect();
    point!("listed");
    let mut fork = Fork { pages: &mut ends.pages, start: Instant::now(), family: OnceLock::new() };
    let held: Vec<_> = all.into_iter().map(|one| one.before(&mut fork)).collect();
    let news = held.iter().any(|held| held.expects_child()).then(|| {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()
    });
    *family.forking.lock() = Some(Forking { ends, held, news: news.flatten() });
}

extern "C" fn parent() {
    let Some(Forking { ends, held, news }) = FAMILY.forking.lock().take() else { return };
    // Before the next fork, whose child would keep it open.
    let news = news.map(|(mine, childs)| {
        drop(childs);
        mine
    });
    // First: the last drop of one that is held locks the list.
    drop(ends);
    // The locks are given up before this waits for a child that may want them.
    let after: Vec<_> = held.into_iter().filter_map(|held| held.in_parent()).collect();
    if after.is_empty() {
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
        after.into_iter().for_each(|then| then());
    }
}

extern "C" fn child() {
    let family = &*FAMILY;
    // Even where nothing could be prepared: this is another process.
    in_child();
    family.me.store(0, Relaxed);
    let Some(Forking { mut ends, held: all, news }) = family.forking.lock().take() else { return };
    // What another thread was about to take up nobody here will.
    ends.pages.retain(|page| all.iter().any(|held| held.page() == Some(*page)));
    drop(ends);
    let mut child = Child::default();
    all.into_iter().for_each(|held| held.in_child(&mut child));
    // Now the parent knows.
    drop(news);
}
