//! A mutex whose word may lie in memory that processes share.

use crate::atomic::{AtomicU32, Ordering};
use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Nobody holds it.
const FREE: u32 = 0;
/// Somebody holds it, nobody sleeps.
const HELD: u32 = 1;
/// Somebody holds it, and somebody may be asleep on the word.
const CONTENDED: u32 = 2;

/// Mutual exclusion over `T`: one futex word (three states, as in Drepper's "Futexes are tricky"), no pointer
/// and no poison. A holder that panics leaves the value as it was at that moment.
pub struct Mutex<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the word lets one thread at a time reach the value, so `T: Send` is enough, as for std's Mutex.
unsafe impl<T: Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// A free mutex.
    pub fn new(value: T) -> Mutex<T> {
        Mutex { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Takes the lock if nobody holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        // Acquire pairs with the Release swap in `unlock`: what the last holder wrote is seen.
        self.word
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| MutexGuard { mutex: self })
    }

    /// Takes the lock, sleeping as long as it takes.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        match self.try_lock() {
            Some(guard) => guard,
            None => self.lock_slow(None).unwrap_or_else(|| unreachable!("no limit was given")),
        }
    }

    /// Takes the lock after who was just woken for it, if anybody was: see [`MutexGuard::give_way`].
    pub fn lock_behind(&self) -> MutexGuard<'_, T> {
        #[cfg(not(loom))]
        {
            let began = Instant::now();
            while self.word.load(Ordering::Relaxed) == FREE && began.elapsed() < GIVE_WAY {
                std::thread::yield_now();
            }
        }
        self.lock()
    }

    /// Takes the lock, sleeping at most `limit`; None when that was not enough.
    pub fn lock_for(&self, limit: Duration) -> Option<MutexGuard<'_, T>> {
        self.try_lock().or_else(|| self.lock_slow(Some((Instant::now(), limit))))
    }

    #[cold]
    fn lock_slow(&self, limit: Option<(Instant, Duration)>) -> Option<MutexGuard<'_, T>> {
        loop {
            // Whoever passes here has to assume sleepers: it takes the lock as CONTENDED, and its unlock wakes
            // one. Acquire pairs with the Release swap in `unlock`.
            if self.word.swap(CONTENDED, Ordering::Acquire) == FREE {
                return Some(MutexGuard { mutex: self });
            }
            let left = match limit {
                Some((start, limit)) => Some(crate::clock::remaining(start, limit)?),
                None => None,
            };
            self.wait(left);
        }
    }

    #[cfg(not(loom))]
    fn wait(&self, left: Option<Duration>) {
        // Whatever it returns, the loop looks at the word and at the clock again.
        let _ = onecopy_sys::futex::wait(self.word.as_raw(), CONTENDED, left);
    }

    #[cfg(loom)]
    fn wait(&self, _left: Option<Duration>) {
        loom::thread::yield_now();
    }

    #[inline]
    fn unlock(&self) {
        // Release pairs with the Acquire of the next `try_lock` or `lock_slow`.
        if self.word.swap(FREE, Ordering::Release) == CONTENDED {
            #[cfg(not(loom))]
            onecopy_sys::futex::wake(self.word.as_raw(), 1);
        }
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Mutex<T> {
        Mutex::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(value) => f.debug_tuple("Mutex").field(&*value).finish(),
            None => f.write_str("Mutex(held)"),
        }
    }
}

/// The value, until dropped.
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
}

/// Longest that who gives way stays away from the lock: a thread that was woken for it has it by then.
#[cfg(not(loom))]
const GIVE_WAY: Duration = Duration::from_micros(200);

impl<'a, T> MutexGuard<'a, T> {
    /// Lets others in, if any sleep for the lock, and takes it again after one of them. Who holds it for long while he
    /// waits for something calls this now and then: a plain unlock and lock would take it back before a thread that was
    /// just woken runs.
    #[must_use]
    pub fn give_way(self) -> MutexGuard<'a, T> {
        // A sleeper that is missed is seen the next time.
        if !self.is_wanted() {
            return self;
        }
        let mutex = self.mutex;
        drop(self);
        mutex.lock_behind()
    }

    /// Whether somebody may be asleep for the lock.
    pub fn is_wanted(&self) -> bool {
        self.mutex.word.load(Ordering::Relaxed) == CONTENDED
    }

    /// What it is a guard of.
    pub fn mutex(&self) -> &'a Mutex<T> {
        self.mutex
    }

    /// Unlocks, with a full fence behind: what was stored under the lock comes before what is loaded after it. On
    /// x86-64 unlocking is that fence already.
    #[inline]
    pub fn unlock_fenced(self) {
        drop(self);
        // The CPU's fence is the swap; this one is the compiler's.
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        #[cfg(any(not(target_arch = "x86_64"), loom))]
        crate::atomic::fence(Ordering::SeqCst);
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a guard exists for one holder at a time.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: a guard exists for one holder at a time, and it is borrowed mutably.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.mutex.unlock();
    }
}

/// A guard that keeps what its mutex lies in alive, so that it can be put aside: over a fork, say.
#[derive(Debug)]
pub struct OwnedGuard<O, T> {
    /// Lies in `_owner`.
    mutex: NonNull<Mutex<T>>,
    _owner: Arc<O>,
}

// SAFETY: it is an `Arc<O>`, and exclusive access to a `T` in it; the lock may be unlocked by any thread.
unsafe impl<O: Send + Sync, T: Send> Send for OwnedGuard<O, T> {}

impl<O, T> OwnedGuard<O, T> {
    /// Takes the lock of a part of `owner`, sleeping at most `limit`; None when that was not enough.
    pub fn lock_for(owner: Arc<O>, part: for<'a> fn(&'a O) -> &'a Mutex<T>, limit: Duration) -> Option<Self> {
        let mutex = part(&owner);
        std::mem::forget(mutex.lock_for(limit)?);
        Some(OwnedGuard { mutex: NonNull::from(mutex), _owner: owner })
    }
}

impl<O, T> Deref for OwnedGuard<O, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the mutex is borrowed from what `_owner` keeps alive, which nobody can borrow mutably or move out of as
        // long as this second owner is there; and the lock is held.
        unsafe { &*self.mutex.as_ref().value.get() }
    }
}

impl<O, T> DerefMut for OwnedGuard<O, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and the guard is borrowed mutably.
        unsafe { &mut *self.mutex.as_ref().value.get() }
    }
}

impl<O, T> Drop for OwnedGuard<O, T> {
    fn drop(&mut self) {
        // SAFETY: as in `deref`; it is unlocked once.
        unsafe { self.mutex.as_ref() }.unlock();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_increments_from_four_threads_are_all_there() {
        let mutex = Mutex::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        *mutex.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*mutex.lock(), 4000);
    }

    #[test]
    fn who_gives_way_gets_the_lock_after_the_sleeper() {
        let mutex = Mutex::new(false);
        std::thread::scope(|scope| {
            let mut guard = mutex.lock();
            scope.spawn(|| *mutex.lock() = true);
            while !*guard {
                guard = guard.give_way();
            }
        });
    }

    #[test]
    fn an_owned_guard_holds_the_lock_wherever_it_goes() {
        let owner = Arc::new((1, Mutex::new(5)));
        let guard = OwnedGuard::lock_for(owner.clone(), |owner| &owner.1, Duration::ZERO).unwrap();
        assert!(owner.1.try_lock().is_none());
        std::thread::spawn(move || {
            let mut guard = guard;
            *guard += 1;
        })
        .join()
        .unwrap();
        assert_eq!(*owner.1.try_lock().unwrap(), 6);
    }

    #[test]
    fn a_held_lock_is_refused_and_times_out() {
        let mutex = Mutex::new(());
        let guard = mutex.lock();
        assert!(mutex.try_lock().is_none());
        assert!(mutex.lock_for(Duration::from_millis(5)).is_none());
        drop(guard);
        assert!(mutex.lock_for(Duration::from_millis(5)).is_some());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;

    #[test]
    fn one_holder_at_a_time_and_nobody_is_left_asleep() {
        loom::model(|| {
            let mutex = Arc::new(Mutex::new(0u32));
            let other = {
                let mutex = mutex.clone();
                loom::thread::spawn(move || *mutex.lock() += 1)
            };
            *mutex.lock() += 1;
            other.join().unwrap();
            assert_eq!(*mutex.lock(), 2);
        });
    }
}
