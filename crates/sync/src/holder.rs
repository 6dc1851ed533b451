//! A lock between processes, any of which may be killed while it holds it, and the state that it guards.
//!
//! The lock's word has the *number* of its holder, from 1 to 2^30 - 1, not a process id: whether a holder lives is for
//! the caller to find out ([`onecopy_sys::life`]), who is asked only after a wait. Who takes the lock of a dead one is
//! told so. The state is written to the copy that is not in use, then the copies are swapped by one store: a death at
//! any point leaves the state of before or of after.
//!
//! Whoever has the memory can write it: all that is read here is to be checked by who uses it.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Somebody may be asleep on the word.
const ASLEEP: u32 = 1 << 31;
/// Who holds it; 0: nobody.
const HOLDER: u32 = (1 << 30) - 1;
/// How long who waits believes that the holder lives.
const PATIENCE: Duration = Duration::from_millis(20);

/// Mutual exclusion between processes: one word, to lie in memory that they share.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct HolderLock(AtomicU32);

/// How a lock was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// From nobody.
    Free,
    /// From a holder who is dead: what it guards is as that one left it.
    FromTheDead,
}

impl HolderLock {
    /// Takes the lock if nobody living holds it.
    pub fn try_lock(&self, me: u32, lives: impl Fn(u32) -> bool) -> Option<Taken> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let taken = if word & HOLDER == 0 { Taken::Free } else { Taken::FromTheDead };
            if taken == Taken::FromTheDead && lives(word & HOLDER) {
                return None;
            }
            // Acquire pairs with the Release swap in `unlock`. With a dead holder's stores nothing pairs but the swap of the
            // copies in `Snapshot::save`.
            match self.0.compare_exchange(word, me | word & ASLEEP, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(taken),
                Err(now) => word = now,
            }
        }
    }

    /// Takes the lock, sleeping as long as a living process holds it, at most `limit`; None when that was not enough.
    pub fn lock(&self, me: u32, lives: impl Fn(u32) -> bool, limit: Option<Duration>) -> Option<Taken> {
        // A holder is asked about only after a wait: most are gone by then.
        if let Some(taken) = self.try_lock(me, |_| true) {
            return Some(taken);
        }
        let start = Instant::now();
        loop {
            // Whatever the word says, and however often somebody changes it who must not.
            let left = match limit {
                Some(limit) => crate::clock::remaining(start, limit)?.min(PATIENCE),
                None => PATIENCE,
            };
            let word = self.0.load(Ordering::Relaxed);
            if word & HOLDER != 0 {
                // Who sleeps has said so before: the holder's swap sees it, or the futex sees that the word has changed.
                let said = word & ASLEEP != 0
                    || self
                        .0
                        .compare_exchange(word, word | ASLEEP, Ordering::Relaxed, Ordering::Relaxed)
                        .is_ok();
                if said {
                    self.wait(word | ASLEEP, left);
                }
            }
            if let Some(taken) = self.try_lock(me, &lives) {
                // Others may sleep, too, and only one is woken at a time.
                self.0.fetch_or(ASLEEP, Ordering::Relaxed);
                return Some(taken);
            }
        }
    }

    /// Unlocks. Whether it was still this holder's: if not, another one has written what it must not.
    pub fn unlock(&self, me: u32) -> bool {
        // Release pairs with the Acquire in `try_lock`.
        let word = self.0.swap(0, Ordering::Release);
        if word & ASLEEP != 0 {
            #[cfg(not(loom))]
            onecopy_sys::futex::wake(self.0.as_raw(), 1);
        }
        word & HOLDER == me
    }

    /// What a holder writes that means ill: for tests of those who share the lock with it.
    #[doc(hidden)]
    pub fn spoil(&self, word: u32) {
        self.0.store(word, Ordering::Relaxed);
    }

    #[cfg(not(loom))]
    fn wait(&self, word: u32, limit: Duration) {
        // Whatever it returns, the loop looks at the word and at the clock again.
        let _ = onecopy_sys::futex::wait(self.0.as_raw(), word, Some(limit));
    }

    #[cfg(loom)]
    fn wait(&self, _word: u32, _limit: Duration) {
        loom::thread::yield_now();
    }
}

/// `N` words in two copies. Written under a [`HolderLock`], so by one process at a time.
#[derive(Debug)]
#[repr(C)]
pub struct Snapshot<const N: usize> {
    /// Saves so far; its lowest bit says which copy is in use.
    saves: AtomicU64,
    copies: [[AtomicU64; N]; 2],
}

impl<const N: usize> Default for Snapshot<N> {
    fn default() -> Self {
        Snapshot {
            saves: AtomicU64::new(0),
            copies: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
        }
    }
}

impl<const N: usize> Snapshot<N> {
    /// Which save is the last one: who has seen it has nothing to load.
    pub fn last(&self) -> u64 {
        self.saves.load(Ordering::Relaxed)
    }

    /// What was saved last, and which save it was.
    pub fn load(&self) -> (u64, [u64; N]) {
        // Acquire pairs with the Release store in `save`: of a dead holder too, all that it saved is seen.
        let saves = self.saves.load(Ordering::Acquire);
        let copy = &self.copies[(saves & 1) as usize];
        (saves, std::array::from_fn(|i| copy[i].load(Ordering::Relaxed)))
    }

    /// As [`HolderLock::spoil`], of the count.
    #[doc(hidden)]
    pub fn spoil(&self, saves: u64) {
        self.saves.store(saves, Ordering::Relaxed);
    }

    /// Saves the first words, all or nothing. Returns which save it is.
    pub fn save(&self, words: &[u64]) -> u64 {
        let saves = self.saves.load(Ordering::Relaxed).wrapping_add(1);
        for (to, word) in self.copies[(saves & 1) as usize].iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
        // Release pairs with the Acquire load in `load`.
        self.saves.store(saves, Ordering::Release);
        saves
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_living_exclude_each_other_and_the_dead_nobody() {
        let lock = HolderLock::default();
        assert_eq!(lock.try_lock(1, |_| true), Some(Taken::Free));
        assert_eq!(lock.try_lock(2, |_| true), None);
        assert_eq!(lock.lock(2, |_| true, Some(Duration::from_millis(5))), None);
        assert_eq!(lock.lock(2, |holder| holder != 1, None), Some(Taken::FromTheDead));
        assert!(lock.unlock(2));
        assert_eq!(lock.lock(3, |_| true, None), Some(Taken::Free));
        assert!(!lock.unlock(2), "somebody else's");
    }

    #[test]
    fn a_thousand_increments_from_four_holders_are_all_there() {
        let (lock, state) = (HolderLock::default(), Snapshot::<2>::default());
        std::thread::scope(|scope| {
            for me in 1..5 {
                let (lock, state) = (&lock, &state);
                scope.spawn(move || {
                    for _ in 0..1000 {
                        lock.lock(me, |_| true, None).unwrap();
                        let (_, [a, b]) = state.load();
                        assert_eq!(a, b);
                        state.save(&[a + 1, b + 1]);
                        assert!(lock.unlock(me));
                    }
                });
            }
        });
        assert_eq!(state.load(), (4000, [4000, 4000]));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;

    #[test]
    fn one_holder_at_a_time() {
        loom::model(|| {
            let shared = Arc::new((HolderLock::default(), Snapshot::<2>::default()));
            let add = |me: u32, shared: &(HolderLock, Snapshot<2>)| {
                shared.0.lock(me, |_| true, None).unwrap();
                let (_, [a, b]) = shared.1.load();
                assert_eq!(a, b);
                shared.1.save(&[a + 1, b + 1]);
                assert!(shared.0.unlock(me));
            };
            let other = shared.clone();
            let thread = loom::thread::spawn(move || add(2, &other));
            add(1, &shared);
            thread.join().unwrap();
            assert_eq!(shared.1.load().1, [2, 2]);
        });
    }

    /// A holder that dies before, in, or after its save: the next one sees all of it or nothing.
    #[test]
    fn what_the_dead_left_is_whole() {
        for stores in 0..=3 {
            loom::model(move || {
                let shared = Arc::new((HolderLock::default(), Snapshot::<2>::default(), AtomicU32::new(0)));
                let other = shared.clone();
                let thread = loom::thread::spawn(move || {
                    let (lock, state, dead) = &*other;
                    if lock.try_lock(2, |_| true).is_some() {
                        // `Snapshot::save`, cut off after so many stores.
                        let saves = state.saves.load(Ordering::Relaxed) + 1;
                        let copy = &state.copies[(saves & 1) as usize];
                        for word in copy.iter().take(stores) {
                            word.store(7, Ordering::Relaxed);
                        }
                        if stores > 2 {
                            state.saves.store(saves, Ordering::Release);
                        }
                        // The kernel drops the byte's lock after all that the process did.
                        dead.store(1, Ordering::Release);
                    }
                });
                let (lock, state, dead) = &*shared;
                let taken = lock.lock(1, |holder| holder == 2 && dead.load(Ordering::Acquire) == 0, None);
                let (saves, words) = state.load();
                match taken {
                    Some(Taken::FromTheDead) if stores > 2 => assert_eq!((saves, words), (1, [7, 7])),
                    _ => assert_eq!((saves, words), (0, [0, 0])),
                }
                state.save(&[words[0] + 1, words[1] + 1]);
                assert_eq!(state.load(), (saves + 1, [words[0] + 1, words[1] + 1]));
                lock.unlock(1);
                thread.join().unwrap();
            });
        }
    }
}
