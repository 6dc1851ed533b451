//! When wakers are called: they are code of others, which may do anything, but not under a lock of whoever frees segments.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::task::Waker;

#[derive(Default)]
struct Held {
    holders: usize,
    wake: Vec<Waker>,
    /// Nobody waits by these any more.
    gone: Vec<Waker>,
}

#[cfg(not(loom))]
std::thread_local! {
    static HELD: RefCell<Held> = const { RefCell::new(Held { holders: 0, wake: Vec::new(), gone: Vec::new() }) };
}
#[cfg(loom)]
loom::thread_local! {
    static HELD: RefCell<Held> = RefCell::new(Held::default());
}

/// As long as this thread has one, wakers of what completes on it wait; the last one that is dropped calls them. So do wakers that others have taken
/// the place of: to drop one is code of others as well.
///
/// Whoever frees segments under a lock makes one before he takes the lock, and drops it when the lock is free: a waker may call whatever
/// takes that lock.
///
/// ```
/// use onecopy_chain::notify::zerocopy::HoldWakers;
/// use std::sync::Mutex;
///
/// let stack = Mutex::new(());
/// let held = HoldWakers::new();
/// let guard = stack.lock();
/// // segments are freed here
/// drop(guard);
/// drop(held); // wakers are called
/// ```
#[derive(Debug)]
#[must_use = "wakers are called when it is dropped"]
pub struct HoldWakers {
    /// It is of the thread that made it.
    here: PhantomData<*const ()>,
}

impl HoldWakers {
    /// Has this thread's wakers wait.
    #[inline]
    pub fn new() -> HoldWakers {
        // A thread that ends holds nothing back any more.
        let _ = HELD.try_with(|held| held.borrow_mut().holders += 1);
        HoldWakers { here: PhantomData }
    }

    /// Whether some wait on this thread.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        HELD.try_with(|held| !held.borrow().wake.is_empty()).unwrap_or(false)
    }
}

impl Default for HoldWakers {
    fn default() -> HoldWakers {
        HoldWakers::new()
    }
}

impl Drop for HoldWakers {
    #[inline]
    fn drop(&mut self) {
        let last = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            held.holders = held.holders.saturating_sub(1);
            if held.holders == 0 && !(held.wake.is_empty() && held.gone.is_empty()) {
                Some((std::mem::take(&mut held.wake), std::mem::take(&mut held.gone)))
            } else {
                None
            }
        });
        if let Ok(Some((wake, gone))) = last {
            wake.into_iter().for_each(Waker::wake);
            drop(gone);
        }
    }
}

/// Wakes them now, or once nobody on this thread holds them back.
pub(super) fn wake(mut wakers: Vec<Waker>) {
    if wakers.is_empty() {
        return;
    }
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        if held.holders > 0 {
            held.wake.append(&mut wakers);
        }
    });
    wakers.into_iter().for_each(Waker::wake);
}

/// Drops one that nobody waits by any more, now, or once nobody on this thread holds wakers back.
pub(super) fn let_go(waker: Option<Waker>) {
    let Some(waker) = waker else { return };
    let mut waker = Some(waker);
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        if held.holders > 0 {
            held.gone.extend(waker.take());
        }
    });
}
