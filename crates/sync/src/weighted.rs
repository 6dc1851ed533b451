//! Shared ownership whose references are handed out and put together without a locked instruction.

use crate::atomic::{AtomicU64, Ordering, fence};
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

/// What a handle gets that has none left to hand out: a locked instruction for as many handles.
const SUPPLY: u32 = 1 << 16;

struct Inner<T> {
    /// The weights of all handles.
    count: AtomicU64,
    value: T,
}

/// As [`Arc`](std::sync::Arc), with weighted reference counting (Bevan; Watson and Watson, PARLE 1987): a handle has a weight, which it can
/// [divide](WeightedArc::split) with another one, and [take over](WeightedArc::merge) another one's. Only dropping a handle, cloning one that
/// is shared, and dividing one that has nothing left touch the count that all have.
///
/// It is for what is handed from one owner to the next at a high rate: a locked instruction takes some 20 cycles, an addition one.
pub struct WeightedArc<T> {
    inner: NonNull<Inner<T>>,
    /// At least 1, and counted in `Inner::count`.
    weight: u32,
}

// SAFETY: as Arc's: handles in several threads share a `&T`, and whichever goes last drops the value.
unsafe impl<T: Send + Sync> Send for WeightedArc<T> {}
// SAFETY: as above; a `&WeightedArc` makes handles that other threads may drop.
unsafe impl<T: Send + Sync> Sync for WeightedArc<T> {}

impl<T> WeightedArc<T> {
    /// The first handle of `value`.
    pub fn new(value: T) -> WeightedArc<T> {
        let inner = Box::new(Inner { count: AtomicU64::new(SUPPLY.into()), value });
        WeightedArc { inner: NonNull::from(Box::leak(inner)), weight: SUPPLY }
    }

    #[inline]
    fn inner(&self) -> &Inner<T> {
        // SAFETY: it is freed by whoever takes the count to 0, and this handle's weight, at least 1, is in it.
        unsafe { self.inner.as_ref() }
    }

    /// Counts `weight` more, which a handle is about to have.
    #[inline]
    fn add(&self, weight: u32) {
        // Relaxed: as Arc's. Who makes a handle has one, and what the new one may look at is handed over with it.
        let before = self.inner().count.fetch_add(weight.into(), Ordering::Relaxed);
        if before > u64::MAX / 2 {
            // As Arc: only somebody who forgets handles gets here, and running over would free for free.
            std::process::abort();
        }
    }

    /// One more handle, of a part of this one's weight.
    #[inline]
    pub fn split(&mut self) -> WeightedArc<T> {
        if self.weight == 1 {
            self.add(SUPPLY);
            self.weight += SUPPLY;
        }
        self.weight -= 1;
        WeightedArc { inner: self.inner, weight: 1 }
    }

    /// Takes over the weight of `other`, if it is a handle of the same value; else `other` is dropped.
    #[inline]
    pub fn merge(&mut self, other: WeightedArc<T>) {
        if let (true, Some(sum)) = (Self::ptr_eq(self, &other), self.weight.checked_add(other.weight)) {
            self.weight = sum;
            // Its weight is ours.
            std::mem::forget(other);
        }
    }

    /// Whether both are handles of one value.
    #[inline]
    pub fn ptr_eq(this: &WeightedArc<T>, other: &WeightedArc<T>) -> bool {
        this.inner == other.inner
    }
}

impl<T> Clone for WeightedArc<T> {
    #[inline]
    fn clone(&self) -> WeightedArc<T> {
        self.add(1);
        WeightedArc { inner: self.inner, weight: 1 }
    }
}

impl<T> Deref for WeightedArc<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T> Drop for WeightedArc<T> {
    #[inline]
    fn drop(&mut self) {
        let weight = u64::from(self.weight);
        // Release pairs with the Acquire fence of whoever goes last: all that was done through this handle comes before the value is dropped.
        if self.inner().count.fetch_sub(weight, Ordering::Release) == weight {
            fence(Ordering::Acquire);
            // SAFETY: it is `new`'s box, and no weight is left: there is no other handle, and none can be made.
            drop(unsafe { Box::from_raw(self.inner.as_ptr()) });
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for WeightedArc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::rc::Rc;

    fn count<T>(handle: &WeightedArc<T>) -> u64 {
        handle.inner().count.load(Ordering::Relaxed)
    }

    #[test]
    fn the_value_goes_with_the_last_handle() {
        let value = Rc::new(7);
        let mut first = WeightedArc::new(value.clone());
        let second = first.split();
        let third = second.clone();
        assert!(WeightedArc::ptr_eq(&first, &third));
        assert_eq!(**third, 7);
        drop(first);
        drop(third);
        assert_eq!(Rc::strong_count(&value), 2);
        drop(second);
        assert_eq!(Rc::strong_count(&value), 1);
    }

    #[test]
    fn handles_are_divided_and_put_together_without_the_count() {
        let mut first = WeightedArc::new(());
        let mut kept = first.split();
        let before = count(&first);
        for _ in 0..1000 {
            let handed_on = first.split();
            kept.merge(handed_on);
        }
        assert_eq!(count(&first), before);
        assert_eq!((first.weight, kept.weight), (SUPPLY - 1001, 1001));
    }

    #[test]
    fn a_handle_without_weight_gets_a_supply() {
        let value = Rc::new(());
        let mut first = WeightedArc::new(value.clone());
        let mut last = first.split();
        drop(first);
        let parts: Vec<_> = (0..=SUPPLY).map(|_| last.split()).collect();
        let weights = u64::from(last.weight) + parts.len() as u64;
        assert_eq!(count(&last), weights);
        drop((parts, last));
        assert_eq!(Rc::strong_count(&value), 1);
    }

    #[test]
    fn handles_of_two_values_are_not_put_together() {
        let value = Rc::new(());
        let mut first = WeightedArc::new(Rc::new(()));
        first.merge(WeightedArc::new(value.clone()));
        assert_eq!(Rc::strong_count(&value), 1, "the other one is dropped");
        assert_eq!(first.weight, SUPPLY);
    }

    #[test]
    fn a_weight_that_would_run_over_is_given_back() {
        let mut first = WeightedArc::new(());
        let mut second = first.split();
        first.add(u32::MAX - 1);
        second.weight = u32::MAX;
        let before = count(&first);
        let handed_on = first.split();
        second.merge(handed_on);
        assert_eq!((second.weight, count(&first)), (u32::MAX, before - 1));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::thread;

    /// Looks at what every handle's user did, and tells that it was dropped.
    struct Seen(UnsafeCell<u32>, loom::sync::Arc<AtomicU64>);

    // SAFETY: the model's threads take turns by the handle's own ordering, which is what loom checks.
    unsafe impl Send for Seen {}
    // SAFETY: as above.
    unsafe impl Sync for Seen {}

    impl Drop for Seen {
        fn drop(&mut self) {
            // A write: it races with any access that does not come before it.
            self.0.with_mut(|_| ());
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn whoever_goes_last_drops_once_and_after_all_others() {
        loom::model(|| {
            let dropped = loom::sync::Arc::new(AtomicU64::new(0));
            let mut first = WeightedArc::new(Seen(UnsafeCell::new(0), dropped.clone()));
            let second = first.split();
            let other = thread::spawn(move || {
                let third = second.clone();
                third.0.with(|_| ());
                drop(second);
                third
            });
            first.0.with(|_| ());
            let parts = first.split();
            drop(first);
            let mut third = other.join().unwrap();
            third.merge(parts);
            let fourth = third.split();
            let other = thread::spawn(move || fourth.0.with(|_| ()));
            drop(third);
            other.join().unwrap();
            assert_eq!(dropped.load(Ordering::Relaxed), 1);
        });
    }
}
