//! What was received and is still held, per connection: who holds too much of the ring has it copied out.

use onecopy::unix::{View, Window};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::held::{self, Held};
use crate::memory::Region;

/// Windows that a connection has at most: its ring's, and those of pools that its peer lends from.
const WINDOWS: usize = 4;

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What a record takes of the ring beside its bytes, at most.
const FRAME: u64 = 32;

/// What is held of one connection's ring.
#[derive(Default)]
pub struct Loans {
    held: Mutex<Vec<Weak<Held>>>,
    /// What was received, in bytes of the ring.
    received: Mutex<u64>,
    /// Windows that addresses are given away in. Those of which a page was replaced are not among them.
    windows: Mutex<Vec<Arc<Window>>>,
    /// Views that were copied out since the connection was made. Locked while it is done: one at a time.
    moved_out: Mutex<u64>,
}

impl Loans {
    pub fn add(&self, held: &Arc<Held>) {
        if held.in_place() && held.len > 0 {
            let mut all = lock(&self.held);
            if all.len() == all.capacity() {
                all.retain(|one| one.strong_count() > 0);
            }
            all.push(Arc::downgrade(held));
        }
    }

    /// Notes that `len` bytes were received. Returns where in the ring they began.
    pub fn took(&self, len: usize) -> u64 {
        let mut received = lock(&self.received);
        let start = *received;
        *received += len as u64 + FRAME;
        start
    }

    pub fn moved_out(&self) -> u64 {
        *lock(&self.moved_out)
    }

    /// Whether anything is held in place.
    pub fn any(&self) -> bool {
        lock(&self.held).iter().any(|one| one.strong_count() > 0)
    }

    /// A window with an address for the view. None where the memory can't be mapped once more: then the address is the view's own.
    pub fn window(&self, view: &View) -> Option<(Arc<Window>, Region)> {
        let seated = |window: &Arc<Window>| {
            let at = window.address_of(view)?.cast_mut();
            Some((Arc::clone(window), Region { at, len: view.len() }))
        };
        let mut windows = lock(&self.windows);
        if let Some(found) = windows.iter().find_map(seated) {
            return Some(found);
        }
        let window = Arc::new(view.window().ok()??);
        if windows.len() == WINDOWS {
            windows.remove(0);
        }
        windows.push(Arc::clone(&window));
        seated(&window)
    }

    /// Gives no address in this window away any more.
    pub fn retire(&self, window: &Arc<Window>) {
        lock(&self.windows).retain(|one| !Arc::ptr_eq(one, window));
    }

    /// How much of the ring waits for the oldest of these: room goes back in order.
    fn span<'a>(&self, mut held: impl Iterator<Item = &'a Arc<Held>>) -> u64 {
        held.next().map_or(0, |oldest| *lock(&self.received) - oldest.start)
    }

    /// Copies out what is held, if more than `allowed` bytes of the ring wait for it: the peer would soon wait for room. What nobody looks at comes
    /// first; of what somebody does, the copy gets the same address.
    pub fn relieve(&self, allowed: usize) {
        if lock(&self.held).is_empty() {
            return;
        }
        let mut moved_out = lock(&self.moved_out);
        let in_place = |one: &Weak<Held>| one.upgrade().filter(|held| held.in_place());
        let mut alive: Vec<Arc<Held>> = {
            let mut all = lock(&self.held);
            all.retain(|one| one.strong_count() > 0);
            all.iter().filter_map(in_place).collect()
        };
        if self.span(alive.iter()) <= allowed as u64 {
            return;
        }
        *moved_out += alive.iter().filter(|held| held.move_out()).count() as u64;
        alive.retain(|held| held.in_place());
        if self.span(alive.iter()) > allowed as u64 {
            *moved_out += held::keep(&alive, self);
        }
        lock(&self.held).retain(|one| in_place(one).is_some());
    }
}
