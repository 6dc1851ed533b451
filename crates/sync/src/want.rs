//! Whether somebody waits for what others bring without a word.

use crate::atomic::{AtomicU32, Ordering, fence};

/// Says that somebody waits, who has found nothing, so that those who bring something call him then, and only then.
///
/// The handshake is Dekker's: store, full fence, load, on both sides. Who waits calls [`Want::ask`] and looks again at what was brought; who
/// brings puts it where it is looked for and calls [`Want::is_asked`], or [`Want::answer`]. Either the one who waits sees it, or the one who brings sees that he waits.
/// `models` in this file proves it with loom, together with [`queue`](crate::queue()).
#[derive(Debug, Default)]
pub struct Want(AtomicU32);

impl Want {
    /// Who waits: from here on he is to be called. He looks at what there is behind this, and not before.
    #[inline]
    pub fn ask(&self) {
        self.0.store(1, Ordering::Relaxed);
        // Pairs with the fences in `is_asked` and `answer`: either they see the store, or what was brought before them is seen behind this.
        fence(Ordering::SeqCst);
    }

    /// Who waits: he does no more. Who brings something at that moment may call him once for nothing.
    #[inline]
    pub fn forget(&self) {
        // It is written only where it changes something: those who bring have the line.
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// Who has brought something: whether somebody waits for it. He waits on until he says otherwise.
    #[inline]
    pub fn is_asked(&self) -> bool {
        // Pairs with the fence in `ask`.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Who has brought something: whether it falls to him to call the one who waits. To one of those who bring it does.
    #[inline]
    pub fn answer(&self) -> bool {
        // Relaxed: to call somebody takes a lock of his.
        self.is_asked() && self.0.swap(0, Ordering::Relaxed) != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_answered_once_and_asked_until_then() {
        let want = Want::default();
        assert!(!want.is_asked() && !want.answer());
        want.ask();
        assert!(want.is_asked() && want.is_asked());
        assert!(want.answer() && !want.answer() && !want.is_asked());
        want.ask();
        want.forget();
        assert!(!want.answer());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::{Popper, Pusher, queue};
    // (Ours has a model of its own; among three threads its waits would be too many to try.)
    use loom::sync::{Arc, Mutex};

    /// Device memory, as a stack and its programs see it: what a program has given back lies in a ring until somebody who holds its lock takes it out, and is
    /// free only behind that (crates/net: `Tokens`, `Hunger`, `own::rx`).
    struct Memory {
        ring: Mutex<Popper<u32>>,
        free: AtomicU32,
        /// A peer may send nothing. It stays so until the stack looks again.
        starved: Want,
        /// A window waits for pages. One of those who free some calls the stack.
        narrowed: Want,
        called: AtomicU32,
    }

    impl Memory {
        fn new(popper: Popper<u32>) -> Arc<Memory> {
            Arc::new(Memory {
                ring: Mutex::new(popper),
                free: AtomicU32::new(0),
                starved: Want::default(),
                narrowed: Want::default(),
                called: AtomicU32::new(0),
            })
        }

        /// Takes out what there is; it is free when this returns.
        fn take(&self) -> u32 {
            let count = self.ring.lock().unwrap().drain().count() as u32;
            // Relaxed, as a pool's counts are.
            self.free.fetch_add(count, Ordering::Relaxed);
            count
        }

        /// A call of the program's: dont_need, or a push that finds a peer starved.
        fn call(&self) {
            if self.take() > 0 && self.narrowed.answer() {
                self.called.fetch_add(1, Ordering::Relaxed);
            }
        }

        fn push(&self, ring: &mut Pusher<u32>, value: u32) {
            assert!(ring.push(value).is_ok(), "there is room");
            if self.starved.is_asked() {
                self.call();
            }
        }

        /// The stack has found nothing free, and is about to sleep: how many it finds after all.
        fn settle(&self) -> u32 {
            self.narrowed.ask();
            self.starved.ask();
            self.take();
            self.free.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_push_is_seen_by_who_is_about_to_sleep_or_calls_him() {
        loom::model(|| {
            let (mut pusher, popper) = queue(1);
            let memory = Memory::new(popper);
            let program = {
                let memory = memory.clone();
                loom::thread::spawn(move || memory.push(&mut pusher, 1))
            };
            let seen = memory.settle();
            program.join().unwrap();
            let called = memory.called.load(Ordering::Relaxed);
            assert!(seen + called > 0, "the stack sleeps, and its page lies in the ring");
        });
    }

    #[test]
    fn so_it_is_where_a_call_takes_from_the_ring_at_that_moment() {
        loom::model(|| {
            let (mut pusher, popper) = queue(2);
            let memory = Memory::new(popper);
            let program = {
                let memory = memory.clone();
                loom::thread::spawn(move || memory.push(&mut pusher, 1))
            };
            let other = {
                let memory = memory.clone();
                loom::thread::spawn(move || memory.call())
            };
            let seen = memory.settle();
            program.join().unwrap();
            other.join().unwrap();
            let called = memory.called.load(Ordering::Relaxed);
            assert!(seen + called > 0, "the stack sleeps, and its page is free or lies in the ring");
        });
    }

    #[test]
    fn every_value_comes_out_once_and_in_order_whoever_takes_it() {
        loom::model(|| {
            let (mut pusher, popper) = queue(1);
            let popper = Arc::new(Mutex::new(popper));
            let other = {
                let popper = popper.clone();
                loom::thread::spawn(move || popper.lock().unwrap().drain().collect::<Vec<u32>>())
            };
            let mut pushed = Vec::new();
            for value in 0..3 {
                if pusher.push(value).is_ok() {
                    pushed.push(value);
                }
            }
            let mut out = other.join().unwrap();
            out.extend(popper.lock().unwrap().drain());
            assert_eq!(out, pushed);
        });
    }
}
