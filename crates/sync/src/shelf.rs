//! Places that one side fills and another one empties, in any order, without a lock between them.

use crate::atomic::{AtomicU32, Ordering};
use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;

const EMPTY: u32 = 0;
const FULL: u32 = 1;

struct Place<T> {
    /// Whose the value is: [`EMPTY`], then it is uninitialised and [`Filler`]'s; [`FULL`], then it is [`Taker`]'s.
    state: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

struct Shelf<T>(Box<[Place<T>]>);

// SAFETY: a value is reached by one side at a time (`Place::state`), and each side is one value that is used
// exclusively; what passes from side to side are values of `T`.
unsafe impl<T: Send> Send for Shelf<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shelf<T> {}

/// Puts values into places.
pub struct Filler<T>(Arc<Shelf<T>>);

/// Takes them out.
pub struct Taker<T>(Arc<Shelf<T>>);

/// `places` empty places, and both sides of them. What is in them when both sides are gone is dropped.
pub fn shelf<T>(places: usize) -> (Filler<T>, Taker<T>) {
    let place = || Place { state: AtomicU32::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) };
    let shelf = Arc::new(Shelf((0..places).map(|_| place()).collect()));
    (Filler(shelf.clone()), Taker(shelf))
}

impl<T> Filler<T> {
    /// Puts `value` into a place.
    ///
    /// # Panics
    ///
    /// When there is no such place, or something is in it: who fills has to know which ones are empty.
    #[inline]
    pub fn put(&mut self, place: usize, value: T) {
        assert!(self.try_put(place, value).is_ok(), "put into a place that is taken");
    }

    /// Puts `value` into a place, if nothing is in it.
    ///
    /// # Errors
    ///
    /// The value, where something is.
    ///
    /// # Panics
    ///
    /// When there is no such place.
    #[inline]
    pub fn try_put(&mut self, place: usize, value: T) -> Result<(), T> {
        let place = &self.0.0[place];
        // Acquire pairs with the Release store in `take`: the value before was taken out.
        if place.state.load(Ordering::Acquire) != EMPTY {
            return Err(value);
        }
        // SAFETY: it is empty, so that the taker leaves it alone until the store below; and there is one filler, who is
        // borrowed exclusively.
        unsafe { (*place.value.get()).write(value) };
        // Release pairs with the Acquire load in `take`.
        place.state.store(FULL, Ordering::Release);
        Ok(())
    }

    /// How many places there are.
    pub fn places(&self) -> usize {
        self.0.0.len()
    }
}

impl<T> Taker<T> {
    /// Takes out what lies in a place. None where it is empty.
    ///
    /// # Panics
    ///
    /// When there is no such place.
    #[inline]
    pub fn take(&mut self, place: usize) -> Option<T> {
        let place = &self.0.0[place];
        // Acquire pairs with the Release store in `put`.
        if place.state.load(Ordering::Acquire) == EMPTY {
            return None;
        }
        // SAFETY: it is full, so a value was written, which the filler leaves alone until the store below; and there is one
        // taker, who is borrowed exclusively.
        let value = unsafe { (*place.value.get()).assume_init_read() };
        // Release pairs with the Acquire load in `put`.
        place.state.store(EMPTY, Ordering::Release);
        Some(value)
    }

    /// How many places there are.
    pub fn places(&self) -> usize {
        self.0.0.len()
    }

    /// Places that something is in.
    pub fn full(&self) -> usize {
        // Relaxed: a count that may be over before it is told.
        self.0.0.iter().filter(|place| place.state.load(Ordering::Relaxed) == FULL).count()
    }
}

impl<T> Drop for Shelf<T> {
    fn drop(&mut self) {
        for place in &mut self.0 {
            // Acquire: as in `take`.
            if place.state.load(Ordering::Acquire) == FULL {
                // SAFETY: it is full, and nobody else is left.
                unsafe { place.value.get_mut().assume_init_drop() };
            }
        }
    }
}

impl<T> fmt::Debug for Filler<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Filler").field(&self.0.0.len()).finish()
    }
}

impl<T> fmt::Debug for Taker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Taker").field(&self.0.0.len()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_taken_once_and_the_rest_is_dropped() {
        let value = Arc::new(());
        let (mut filler, mut taker) = shelf(3);
        filler.put(2, value.clone());
        filler.put(0, value.clone());
        assert_eq!(taker.full(), 2);
        assert!(taker.take(1).is_none());
        assert!(taker.take(2).is_some() && taker.take(2).is_none());
        filler.put(2, value.clone());
        assert_eq!(Arc::strong_count(&value), 3);
        drop(taker);
        assert_eq!(Arc::strong_count(&value), 3, "the other side may still be there");
        drop(filler);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    #[should_panic(expected = "put into a place that is taken")]
    fn a_place_takes_one_value() {
        let (mut filler, _taker) = shelf(1);
        filler.put(0, 1);
        filler.put(0, 2);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::cell::Cell;

    /// A place is used again as soon as it is empty; loom's cells find out who looks at a value that is not his.
    #[test]
    fn a_value_is_on_one_side_at_a_time() {
        loom::model(|| {
            let (mut filler, mut taker) = shelf(1);
            let thread = loom::thread::spawn(move || {
                let mut taken = Vec::new();
                for _ in 0..3 {
                    if let Some(value) = taker.take(0) {
                        let value: Cell<u32> = value;
                        taken.push(value.get());
                    } else {
                        loom::thread::yield_now();
                    }
                }
                taken
            });
            let mut put = 0;
            for _ in 0..2 {
                if filler.0.0[0].state.load(Ordering::Relaxed) == EMPTY {
                    put += 1;
                    filler.put(0, Cell::new(put));
                } else {
                    loom::thread::yield_now();
                }
            }
            let taken = thread.join().unwrap();
            assert!((1..).zip(&taken).all(|(n, value)| n == *value) && taken.len() <= put as usize);
        });
    }
}
