//! One direction of an end, under its lock: the lock of the threads and, where processes share the end,
//! theirs too.
//!
//! - Unshared, it is a mutex. Besides, only one pointer beside the value is looked at.
//! - Shared, the value is this process's copy of what is in the end's page ([`onecopy_ring::page`]). Locking
//!   takes the page's lock too, and loads what another process has saved since. Unlocking saves first.
//!
//! Threads of one process exclude each other by the mutex, so that the page's lock has one contender in each
//! process.

use crate::members::membership::Sharing;
use onecopy_ring::PeerMisbehaved;
use onecopy_ring::page::{SidePage, WORDS, Words};
use onecopy_sync::atomic::fence_after_rmw;
use onecopy_sync::clock::coarse_ms;
use onecopy_sync::{Mutex, MutexGuard, Taken};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// What processes share of a direction.
pub trait Shared {
    /// The end that owns the direction.
    type Owner: std::fmt::Debug;

    /// Returns the part of the page that belongs to this direction.
    fn page(words: &Words) -> &SidePage;

    /// Writes the state as words.
    fn save(&self, owner: &Self::Owner) -> [u64; WORDS];

    /// Reads the state from words that another process has saved. `died`: a process died while it held the
    /// lock, maybe in the middle of a change.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved`]: the words are impossible, or what is left cannot be recovered.
    fn load(
        &mut self,
        owner: &Self::Owner,
        sharing: &Sharing,
        words: &[u64; WORDS],
        died: bool,
    ) -> Result<(), PeerMisbehaved>;

    /// Turns the value into one that can be looked at. The words were impossible, and a part of them may have
    /// been loaded.
    fn give_up(&mut self);

    /// Takes the direction for this process alone: no other process holds the end any more.
    fn alone(&mut self, owner: &Self::Owner, sharing: &Sharing);

    /// Called when the lock was taken and the words were loaded, if there were new ones.
    fn entered(&mut self, owner: &Self::Owner, sharing: &Sharing);

    /// Called when the state was saved, with the lock still held: what others may be told only now.
    fn saved(&mut self, owner: &Self::Owner, sharing: &Sharing);

    /// Called when the lock was given up.
    fn left(owner: &Self::Owner, sharing: &Sharing);
}

/// One direction.
#[derive(Debug)]
pub struct Side<T: Shared>(Mutex<Inner<T>>);

/// What the lock guards.
#[derive(Debug)]
pub struct Inner<T: Shared> {
    /// None while no other process holds the end.
    shared: Option<Box<Member<T::Owner>>>,
    value: T,
}

#[derive(Debug)]
struct Member<O> {
    owner: Weak<O>,
    sharing: Arc<Sharing>,
    /// The number of the save that the value agrees with.
    seen: Option<u64>,
    /// What was impossible in the page.
    misbehaved: Option<PeerMisbehaved>,
    /// When this process last looked whether others hold the end, in coarse milliseconds.
    looked: u64,
}

/// How often a process looks whether others hold the end. A look costs a system call for each process that
/// does.
const LOOK_MS: u64 = 20;

/// How long to wait for the page's lock.
#[derive(Clone, Copy)]
enum Patience {
    None,
    For(Duration),
}

/// The longest wait for the page's lock with the threads' lock in hand.
const SLICE: Duration = Duration::from_millis(50);

impl<T: Shared> Inner<T> {
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Returns the direction as this process last saw it. Where processes share it, the page may have a newer one.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// Returns the direction, as [`Inner::value`] does, to be changed before it is shared.
    pub fn value_mut(&mut self) -> &mut T {
        &mut self.value
    }

    /// Shares the direction with other processes from here on. They find its state in the page.
    pub fn share(&mut self, owner: &Arc<T::Owner>, sharing: Arc<Sharing>) {
        let state = &T::page(sharing.words()).state;
        let seen = Some(state.save(&self.value.save(owner)));
        self.begin(owner, sharing, seen);
    }

    /// Joins the processes that share the direction. This process finds its state in the page.
    pub fn join(&mut self, owner: &Arc<T::Owner>, sharing: Arc<Sharing>) {
        self.begin(owner, sharing, None);
    }

    fn begin(&mut self, owner: &Arc<T::Owner>, sharing: Arc<Sharing>, seen: Option<u64>) {
        let owner = Arc::downgrade(owner);
        self.shared = Some(Box::new(Member { owner, sharing, seen, misbehaved: None, looked: coarse_ms() }));
    }

    /// Makes a forked child load the state anew: others may have gone on since.
    pub fn inherit(&mut self) {
        if let Some(member) = &mut self.shared {
            member.seen = None;
        }
    }

    /// Takes the page's lock, if the direction is shared. Returns whether that succeeded.
    #[cold]
    fn enter(&mut self, patience: Patience) -> bool {
        let Some(member) = &mut self.shared else { return true };
        let sharing = member.sharing.clone();
        let Some(owner) = member.owner.upgrade() else { return true };
        let page = T::page(sharing.words());
        let lives = |member| sharing.lives(member);
        let taken = match patience {
            Patience::None => page.lock.try_lock(sharing.me(), lives),
            Patience::For(limit) => page.lock.lock(sharing.me(), lives, Some(limit)),
        };
        let Some(taken) = taken else { return false };
        let died = taken == Taken::FromTheDead;
        if died || member.seen != Some(page.state.last()) {
            let (save, words) = page.state.load();
            if let Err(misbehaved) = self.value.load(&owner, &sharing, &words, died) {
                member.misbehaved.get_or_insert(misbehaved);
                self.value.give_up();
            }
            member.seen = Some(save);
        }
        self.value.entered(&owner, &sharing);
        let now = coarse_ms();
        if now.wrapping_sub(member.looked) >= LOOK_MS {
            member.looked = now;
            // A fork of this process needs the threads' lock before it makes another member.
            if member.misbehaved.is_none() && !sharing.has_others() {
                self.value.alone(&owner, &sharing);
                page.lock.unlock(sharing.me());
                self.shared = None;
            }
        }
        true
    }

    /// Saves the state, and gives up the page's lock.
    #[cold]
    fn leave(&mut self) {
        let Some(member) = &mut self.shared else { return };
        let sharing = member.sharing.clone();
        let Some(owner) = member.owner.upgrade() else { return };
        let page = T::page(sharing.words());
        point!("saving");
        member.seen = Some(page.state.save(&self.value.save(&owner)));
        point!("saved");
        self.value.saved(&owner, &sharing);
        if !page.lock.unlock(sharing.me()) {
            member.misbehaved.get_or_insert(PeerMisbehaved::Member);
        }
        T::left(&owner, &sharing);
    }
}

impl<T: Shared> Side<T> {
    pub fn new(value: T) -> Side<T> {
        Side(Mutex::new(Inner { shared: None, value }))
    }

    /// Returns the mutex, which a fork holds.
    pub fn mutex(&self) -> &Mutex<Inner<T>> {
        &self.0
    }

    #[inline]
    pub fn try_lock(&self) -> Option<SideGuard<'_, T>> {
        let mut inner = self.0.try_lock()?;
        if inner.shared.is_some() && !inner.enter(Patience::None) {
            return None;
        }
        Some(SideGuard(inner))
    }

    /// Waits as long as it takes. For ends that no other process can have.
    #[inline]
    pub fn lock(&self) -> SideGuard<'_, T> {
        let mut inner = self.0.lock();
        while inner.shared.is_some() && !inner.enter(Patience::For(SLICE)) {}
        SideGuard(inner)
    }

    /// Waits for threads of this process as long as it takes, and for another process as `limit` says: that
    /// one may be stopped, or misbehave. None only where processes share the direction.
    #[inline]
    pub fn lock_within(&self, limit: impl FnOnce() -> Duration) -> Option<SideGuard<'_, T>> {
        let inner = self.0.lock();
        if inner.shared.is_some() { self.enter_within(inner, limit()) } else { Some(SideGuard(inner)) }
    }

    /// Waits for the page's lock. In between, lets in other threads of this process, which may have less
    /// time.
    #[cold]
    fn enter_within<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner<T>>,
        limit: Duration,
    ) -> Option<SideGuard<'a, T>> {
        let start = Instant::now();
        loop {
            let left = limit.saturating_sub(start.elapsed());
            if inner.enter(Patience::For(left.min(SLICE))) {
                return Some(SideGuard(inner));
            }
            if left <= SLICE {
                return None;
            }
            drop(inner);
            inner = self.0.lock_behind();
        }
    }

    /// Waits at most `limit`, for threads as for processes.
    pub fn lock_for(&self, limit: Duration) -> Option<SideGuard<'_, T>> {
        let start = Instant::now();
        let mut inner = self.0.lock_for(limit)?;
        if inner.shared.is_some() && !inner.enter(Patience::For(limit.saturating_sub(start.elapsed()))) {
            return None;
        }
        Some(SideGuard(inner))
    }
}

/// The direction, locked until this is dropped.
#[derive(Debug)]
pub struct SideGuard<'a, T: Shared>(MutexGuard<'a, Inner<T>>);

impl<'a, T: Shared> SideGuard<'a, T> {
    /// Unlocks, with a full fence behind it: what was stored under the lock comes before what is loaded after
    /// it.
    #[inline]
    pub fn unlock_fenced(self) {
        drop(self);
        fence_after_rmw();
    }

    /// Lets other threads in, if any may want the lock, and takes it again after one of them. (Where
    /// processes share it, the caller lets go of it instead: see `let_in` in `wait.rs`.)
    #[must_use]
    pub fn give_way(self) -> Self {
        if self.is_shared() || !self.0.is_wanted() {
            return self;
        }
        let mutex = self.0.mutex();
        drop(self);
        let mut inner = mutex.lock_behind();
        // A fork may have come between.
        while inner.shared.is_some() && !inner.enter(Patience::For(SLICE)) {
            drop(inner);
            inner = mutex.lock_behind();
        }
        SideGuard(inner)
    }

    /// Whether processes share the direction.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.0.shared.is_some()
    }

    /// Returns what another member left that is impossible.
    #[inline]
    pub fn misbehaved(&self) -> Option<PeerMisbehaved> {
        self.0.shared.as_ref().and_then(|member| member.misbehaved)
    }
}

impl<T: Shared> Deref for SideGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: Shared> DerefMut for SideGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.value
    }
}

impl<T: Shared> Drop for SideGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.0.shared.is_some() {
            self.0.leave();
        }
    }
}
