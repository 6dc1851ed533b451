//! What was received and is still held, per connection: who holds too much of the ring has it copied out.

use onecopy::unix::{View, Window};
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use crate::held::{self, Held, Keeps};
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
    list: Mutex<List>,
    /// What was received, in bytes of the ring.
    received: Mutex<u64>,
    /// Windows that addresses are given away in. Those of which a page was replaced are not among them.
    windows: Mutex<Vec<Arc<Window>>>,
    /// Views that were copied out since the connection was made. Locked while it is done: one at a time.
    moved_out: Mutex<u64>,
    /// Tensors whose bytes were not aligned for them, and were copied.
    unaligned: Mutex<u64>,
    /// When there was no memory, or no mapping left, to keep what a window shows.
    refused: Mutex<Option<Instant>>,
}

/// What is held, and who waits for more.
#[derive(Default)]
struct List {
    held: Vec<Weak<Held>>,
    /// Receives that wait for the peer, and have copied out what was held when they began; the process whose threads they are.
    waiting: usize,
    process: u32,
}

/// How long no copies are laid under addresses ahead of need once the kernel has refused: a try copies first, and is refused then.
const PAUSE: Duration = Duration::from_secs(1);

/// A receive that waits, until it is dropped.
pub struct Waits<'a>(&'a Loans);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        lock(&self.0.list).waiting -= 1;
    }
}

impl Loans {
    /// Takes into account what was received. While another thread waits for the peer, nothing stays in place: the peer may be waiting for that room.
    pub fn add(&self, held: &Arc<Held>) {
        // A stack's pages keep no peer from sending.
        if let Some(pages) = held.pages() {
            pages.add(held);
            return;
        }
        if held.in_place() && held.len > 0 {
            let mut list = lock(&self.list);
            if list.waiting > 0 && list.process == process::id() {
                drop(list);
                let mut moved_out = lock(&self.moved_out);
                *moved_out += u64::from(held.move_out());
                return;
            }
            let all = &mut list.held;
            if all.len() == all.capacity() {
                all.retain(|one| one.strong_count() > 0);
            }
            all.push(Arc::downgrade(held));
        }
    }

    /// Begins to wait for the peer: what is held is copied out, and what others receive meanwhile.
    pub fn wait(&self) -> Waits<'_> {
        let mut list = lock(&self.list);
        // A child of fork has none of its parent's threads.
        let here = process::id();
        list.waiting = if list.process == here { list.waiting + 1 } else { 1 };
        list.process = here;
        drop(list);
        let waits = Waits(self);
        self.relieve(0);
        waits
    }

    fn was_refused(&self) -> bool {
        lock(&self.refused).is_some_and(|when| when.elapsed() < PAUSE)
    }

    pub fn note_refused(&self) {
        *lock(&self.refused) = Some(Instant::now());
    }

    /// What was received so far, in bytes of the ring.
    pub fn received(&self) -> u64 {
        *lock(&self.received)
    }

    /// Notes that `len` bytes were received. Returns where in the ring they began.
    pub fn took(&self, len: usize) -> u64 {
        let mut received = lock(&self.received);
        let start = *received;
        *received += len as u64 + FRAME;
        start
    }

    pub fn count_moved_out(&self) {
        *lock(&self.moved_out) += 1;
    }

    pub fn count_unaligned(&self) {
        *lock(&self.unaligned) += 1;
    }

    pub fn unaligned(&self) -> u64 {
        *lock(&self.unaligned)
    }

    pub fn moved_out(&self) -> u64 {
        *lock(&self.moved_out)
    }

    /// Whether anything is held in place.
    pub fn any(&self) -> bool {
        lock(&self.list).held.iter().any(|one| one.strong_count() > 0)
    }

    /// A window with an address for the view. None where the memory can't be mapped once more, or windows have enough of the process's mappings.
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
    fn span(&self, held: &[Arc<Held>]) -> u64 {
        let oldest = held.iter().find(|held| held.keeps() == Keeps::Room);
        oldest.map_or(0, |oldest| self.received() - oldest.start)
    }

    /// Copies out what is held, if more than `allowed` bytes of the ring wait for it: the peer would soon wait for room. With none allowed, pages that it has lent
    /// go back, too: it may wait for these. What nobody looks at comes first; of what somebody does, the copy gets the same address.
    pub fn relieve(&self, allowed: usize) {
        if lock(&self.list).held.is_empty() {
            return;
        }
        let mut moved_out = lock(&self.moved_out);
        let in_place = |one: &Weak<Held>| one.upgrade().filter(|held| held.in_place());
        let mut alive: Vec<Arc<Held>> = Vec::new();
        lock(&self.list).held.retain(|one| {
            let held = in_place(one);
            alive.extend(held.iter().cloned());
            held.is_some()
        });
        alive.retain(|held| held.keeps() == Keeps::Room || allowed == 0);
        let enough = |alive: &[Arc<Held>]| match allowed {
            0 => alive.is_empty(),
            _ => self.span(alive) <= allowed as u64,
        };
        if enough(&alive) {
            return;
        }
        *moved_out += alive.iter().filter(|held| held.move_out()).count() as u64;
        alive.retain(|held| held.in_place());
        // (Who is about to wait asks again: there may be memory now, and nobody asks for it later.)
        if !enough(&alive) && (allowed == 0 || !self.was_refused()) {
            *moved_out += held::keep(&alive, self);
        }
        lock(&self.list).held.retain(|one| in_place(one).is_some());
    }
}
