//! A queue from one side to another, without a lock: the places of a [`shelf`](crate::shelf()), taken in turn.
//!
//! Neither side publishes a position: a place says by itself whether something is in it.

use crate::shelf::{Filler, Taker, shelf};

/// Puts values in, at the end.
#[derive(Debug)]
pub struct Pusher<T> {
    places: Filler<T>,
    next: usize,
}

/// Takes them out, from the front.
#[derive(Debug)]
pub struct Popper<T> {
    places: Taker<T>,
    next: usize,
}

/// A queue of up to `places` values, and both sides of it. What is in it when both are gone is dropped.
///
/// # Panics
///
/// Without a place.
pub fn queue<T>(places: usize) -> (Pusher<T>, Popper<T>) {
    assert!(places > 0, "a queue without a place");
    let (filler, taker) = shelf(places);
    (Pusher { places: filler, next: 0 }, Popper { places: taker, next: 0 })
}

/// The place behind `at`, of so many.
#[inline]
fn behind(at: usize, places: usize) -> usize {
    if at + 1 == places { 0 } else { at + 1 }
}

impl<T> Pusher<T> {
    /// Puts `value` in. It takes a few instructions, whatever the other side does.
    ///
    /// # Errors
    ///
    /// The value, where the queue is full.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        self.places.try_put(self.next, value)?;
        self.next = behind(self.next, self.places.places());
        Ok(())
    }

    /// Values that it has room for.
    pub fn places(&self) -> usize {
        self.places.places()
    }
}

impl<T> Popper<T> {
    /// Takes out what was put in first.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let value = self.places.take(self.next)?;
        self.next = behind(self.next, self.places.places());
        Some(value)
    }

    /// What is in it now, and no more than there are places: who pushes meanwhile cannot make it endless.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        (0..self.places.places()).map_while(|_| self.pop())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn values_come_out_in_order_and_a_full_queue_gives_them_back() {
        let (mut pusher, mut popper) = queue(3);
        assert_eq!(pusher.places(), 3);
        for turn in 0..5 {
            assert_eq!(popper.pop(), None);
            for value in 0..3 {
                pusher.push(turn * 10 + value).unwrap();
            }
            assert_eq!(pusher.push(99), Err(99));
            assert_eq!(popper.pop(), Some(turn * 10));
            // Behind the last place is the first.
            pusher.push(7).unwrap();
            assert_eq!(popper.drain().collect::<Vec<_>>(), [turn * 10 + 1, turn * 10 + 2, 7]);
        }
    }

    #[test]
    fn what_is_left_is_dropped_with_both_sides() {
        let value = Arc::new(());
        let (mut pusher, popper) = queue(2);
        pusher.push(value.clone()).unwrap();
        drop(popper);
        pusher.push(value.clone()).unwrap();
        assert_eq!(Arc::strong_count(&value), 3);
        drop(pusher);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn a_million_values_pass_between_two_threads_in_order() {
        let (mut pusher, mut popper) = queue(7);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for mut value in 0..1_000_000_u64 {
                    while let Err(back) = pusher.push(value) {
                        value = back;
                        std::thread::yield_now();
                    }
                }
            });
            let mut next = 0;
            while next < 1_000_000 {
                for value in popper.drain() {
                    assert_eq!(value, next);
                    next += 1;
                }
                std::thread::yield_now();
            }
        });
    }
}
