//! Who has completions, and who wants to hear of it: one word.
//!
//! Lanes (here: items) that have something for the consumer stand in a stack that any
//! thread pushes on and the one consumer takes as a whole, so that no item can come back while somebody still looks at
//! it (no ABA). While the stack is empty the same word says who is to be told when it no longer is: a sleeper,
//! a descriptor, a hook. Whoever pushes on an empty stack finds that in the exchange with which he pushes: one
//! word, so there is nothing for a store and a load to pass each other on, and nobody who does not wait costs a call.

use onecopy_sync::Word;
use onecopy_sync::atomic::{AtomicU32, Ordering};
use onecopy_sync::spin::{self, Adaptive};
use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

#[cfg(not(loom))]
pub(super) use onecopy_sys::eventfd::EventFd;

/// The consumer sleeps on the word.
const WAITER: u32 = 1;
/// The descriptor is not readable: it must be rung.
const BELL: u32 = 2;
/// The hook wants to be called.
const HOOK: u32 = 4;
/// Below: nothing is ready, and the flags count. From here on: `(item + 1) << 3`.
const FIRST: u32 = 8;
/// More items cannot be told apart.
pub(super) const MAX_ITEMS: u32 = (1 << 29) - 2;

type Hook = Box<dyn Fn() + Send + Sync>;

/// What producers see.
#[derive(Default)]
pub(super) struct Ready {
    word: Word,
    bell: OnceLock<EventFd>,
    hook: OnceLock<Hook>,
}

impl Ready {
    /// Puts `item` on the stack and tells whoever wants to know. `link` is the item's own; the item must not be on
    /// the stack already.
    #[inline]
    pub(super) fn push(&self, item: u32, link: &AtomicU32) {
        let mut there = self.word.load(Ordering::Relaxed);
        let told = loop {
            let (next, tell) = if there < FIRST { (0, there) } else { (there, 0) };
            // Relaxed: published by the exchange.
            link.store(next, Ordering::Relaxed);
            // Release publishes the link and what the item has to say; pairs with the Acquire swap in `take`. (Pushes
            // before this one are read by it as well: an exchange continues the release sequence that it reads.)
            match self.word.compare_exchange(there, (item + 1) << 3, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break tell,
                Err(now) => there = now,
            }
        };
        if told != 0 {
            self.tell(told);
        }
    }

    #[cold]
    fn tell(&self, told: u32) {
        if told & WAITER != 0 {
            self.word.wake(1);
        }
        if told & BELL != 0
            && let Some(bell) = self.bell.get()
        {
            bell.ring();
        }
        if told & HOOK != 0
            && let Some(hook) = self.hook.get()
        {
            hook();
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.word.load(Ordering::Relaxed) < FIRST
    }

    /// Adds a flag while the stack is empty; false if it is not.
    fn arm(&self, flag: u32) -> bool {
        let mut there = self.word.load(Ordering::Relaxed);
        while there < FIRST {
            if there & flag != 0 {
                return true;
            }
            // Relaxed: the flag says nothing of other memory. What comes with the item that replaces it is
            // acquired by `take`.
            match self.word.compare_exchange(there, there | flag, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => there = now,
            }
        }
        false
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ready({:#x})", self.word.load(Ordering::Relaxed))
    }
}

/// What the one consumer of a [`Ready`] knows beside it.
#[derive(Debug, Default)]
pub(super) struct Consumer {
    /// The descriptor has been asked for: it is kept true from there on.
    exposed: bool,
    /// BELL was set in the word by us, and was there when last looked at.
    armed: bool,
    /// Rings that were made or are about to be, less those taken from the descriptor. For a moment below zero: a
    /// ring was taken before the item that it was for.
    owed: i64,
    spin: Adaptive,
}

impl Consumer {
    /// Takes all that is ready: the newest item, whose link leads to the older ones.
    #[inline]
    pub(super) fn take(&mut self, ready: &Ready) -> Option<u32> {
        if ready.is_empty() {
            return None;
        }
        // Acquire pairs with the Release exchanges in `push`.
        let head = ready.word.swap(0, Ordering::Acquire);
        if self.armed {
            // Whoever came first has taken our flag, and rings.
            self.armed = false;
            self.owed += 1;
        }
        item(head)
    }

    /// The consumer found nothing: the descriptor, where somebody has it, must not be readable, and ring again.
    /// True if something came meanwhile.
    pub(super) fn rest(&mut self, ready: &Ready) -> bool {
        let Some(bell) = ready.bell.get().filter(|_| self.exposed) else { return !ready.is_empty() };
        if self.owed > 0 {
            // A ring may still be on its way: then it is taken the next time.
            self.owed -= i64::try_from(bell.drain()).unwrap_or(i64::MAX);
        }
        self.armed = ready.arm(BELL) || self.armed;
        if ready.is_empty() {
            return false;
        }
        // Not armed, or the ring that told of it has just been taken.
        bell.ring();
        self.owed += 1;
        true
    }

    /// The descriptor: readable while something is ready. `left` says whether the consumer holds more that it took.
    #[cfg(not(loom))]
    pub(super) fn expose<'a>(&mut self, ready: &'a Ready, left: bool) -> rustix::io::Result<&'a EventFd> {
        let bell = match ready.bell.get() {
            Some(bell) => bell,
            None => {
                let fresh = EventFd::new()?;
                ready.bell.get_or_init(|| fresh)
            }
        };
        if !self.exposed {
            self.begin(ready, bell, left);
        }
        Ok(bell)
    }

    #[cfg(any(test, not(loom)))]
    fn begin(&mut self, ready: &Ready, bell: &EventFd, left: bool) {
        self.exposed = true;
        self.armed = ready.arm(BELL);
        if !self.armed || left {
            bell.ring();
            self.owed += 1;
        }
    }

    #[cfg(all(test, loom))]
    pub(super) fn expose<'a>(&mut self, ready: &'a Ready, left: bool) -> &'a EventFd {
        let bell = ready.bell.get_or_init(EventFd::default);
        if !self.exposed {
            self.begin(ready, bell, left);
        }
        bell
    }

    /// Waits until something is ready, at most `limit`: spins where that pays, then sleeps. Whether something is.
    pub(super) fn wait(&mut self, ready: &Ready, limit: Option<Duration>) -> bool {
        if !ready.is_empty() {
            return true;
        }
        let start = Instant::now();
        let budget = if cfg!(loom) { 0 } else { self.spin.budget() };
        let budget =
            limit.map_or(budget, |limit| budget.min(u32::try_from(limit.as_nanos()).unwrap_or(u32::MAX)));
        if budget > 0 {
            match spin::until(budget, || !ready.is_empty()) {
                Ok(took) => {
                    self.spin.paid(took);
                    return true;
                }
                Err(_) => self.spin.in_vain(),
            }
        }
        loop {
            let left = match limit.map(|limit| onecopy_sync::clock::remaining(start, limit)) {
                Some(None) => break,
                Some(left) => left,
                None => None,
            };
            let there = ready.word.load(Ordering::Relaxed);
            if there >= FIRST || !ready.arm(WAITER) {
                self.spin.slept(start.elapsed());
                return true;
            }
            ready.word.wait(there | WAITER, left);
        }
        // Nobody sleeps any more. Relaxed, as where it was armed.
        let mut there = ready.word.load(Ordering::Relaxed);
        while there < FIRST {
            match ready.word.compare_exchange(there, there & !WAITER, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return false,
                Err(now) => there = now,
            }
        }
        true
    }

    /// Sets what is called, from whichever thread, when something is ready after [`Consumer::hook_next`]. Once.
    pub(super) fn set_hook(ready: &Ready, hook: Hook) {
        let _ = ready.hook.set(hook);
    }

    /// Lets the hook be called for the next item; false if something is ready now.
    pub(super) fn hook_next(ready: &Ready) -> bool {
        ready.arm(HOOK)
    }
}

/// The item that a word or a link names.
#[inline]
pub(super) fn item(link: u32) -> Option<u32> {
    (link >> 3).checked_sub(1)
}

/// An eventfd as loom sees it: a count, and whether poll(2) would return.
#[cfg(loom)]
#[derive(Debug, Default)]
pub(super) struct EventFd {
    count: loom::sync::Mutex<u64>,
    rung: loom::sync::Condvar,
}

#[cfg(loom)]
impl EventFd {
    pub(super) fn ring(&self) {
        *self.count.lock().unwrap() += 1;
        self.rung.notify_all();
    }

    pub(super) fn drain(&self) -> u64 {
        std::mem::take(&mut *self.count.lock().unwrap())
    }

    #[cfg(test)]
    pub(super) fn poll(&self) {
        let mut count = self.count.lock().unwrap();
        while *count == 0 {
            count = self.rung.wait(count).unwrap();
        }
    }
}
