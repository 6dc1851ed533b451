//! A word that threads sleep on.

use crate::atomic::AtomicU32;
#[cfg(any(loom, test))]
use crate::atomic::Ordering;
use std::ops::Deref;
use std::time::Duration;

/// An atomic whose value threads wait to change: futex(2), and under loom a lock with a condition, so that a model
/// in which a wake-up is forgotten ends in a deadlock that loom reports.
#[derive(Debug, Default)]
pub struct Word {
    value: AtomicU32,
    #[cfg(loom)]
    bucket: (loom::sync::Mutex<()>, loom::sync::Condvar),
}

impl Word {
    /// With a first value.
    pub fn new(value: u32) -> Word {
        Word {
            value: AtomicU32::new(value),
            #[cfg(loom)]
            bucket: Default::default(),
        }
    }

    /// Sleeps while `expected` is there, at most `limit`. It also returns on a signal, and now and then for no
    /// reason: the caller looks at the value and at the clock again. Returns whether it was a signal; one whose handler lets calls be
    /// restarted (SA_RESTART) is none where there is no limit, as with accept(2) and recv(2) (signal(7)).
    #[cfg(not(loom))]
    pub fn wait(&self, expected: u32, limit: Option<Duration>) -> bool {
        // Whatever else it returns, the caller looks again.
        onecopy_sys::futex::wait(self.value.as_raw(), expected, limit) == Err(rustix::io::Errno::INTR)
    }

    /// Wakes at most `count` sleepers. The value must have been changed before.
    #[cfg(not(loom))]
    pub fn wake(&self, count: u32) {
        onecopy_sys::futex::wake(self.value.as_raw(), count);
    }

    /// As the kernel's, with the lock in the place of the futex's hash bucket.
    #[cfg(loom)]
    pub fn wait(&self, expected: u32, _limit: Option<Duration>) -> bool {
        let mut bucket = self.bucket.0.lock().unwrap();
        while self.value.load(Ordering::Relaxed) == expected {
            bucket = self.bucket.1.wait(bucket).unwrap();
        }
        false
    }

    /// As the kernel's, with the lock in the place of the futex's hash bucket.
    #[cfg(loom)]
    pub fn wake(&self, _count: u32) {
        let _bucket = self.bucket.0.lock().unwrap();
        self.bucket.1.notify_all();
    }
}

impl Deref for Word {
    type Target = AtomicU32;
    #[inline]
    fn deref(&self) -> &AtomicU32 {
        &self.value
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_changed_value_wakes_and_an_unchanged_one_times_out() {
        let word = Word::new(1);
        word.wait(0, None);
        word.wait(1, Some(Duration::from_millis(2)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Acquire) == 1 {
                    word.wait(1, None);
                }
            });
            // Release pairs with the Acquire above.
            word.store(2, Ordering::Release);
            word.wake(1);
        });
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;

    #[test]
    fn a_change_before_the_wake_is_never_slept_over() {
        loom::model(|| {
            let word = Arc::new(Word::new(1));
            let other = word.clone();
            let waker = loom::thread::spawn(move || {
                other.store(2, Ordering::Release);
                other.wake(1);
            });
            word.wait(1, None);
            waker.join().unwrap();
            assert_eq!(word.load(Ordering::Acquire), 2);
        });
    }
}
