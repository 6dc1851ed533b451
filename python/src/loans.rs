//! What was received and is still held, per connection: who holds too much of the ring has it copied out.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::memory::Region;
use crate::transport::Data;

/// Received bytes that Python holds, in the ring or in a buffer of their own.
pub struct Held {
    state: Mutex<State>,
    pub len: usize,
}

struct State {
    data: Option<Data>,
    /// Buffers and capsules that know the address.
    exports: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Copies a view into a buffer of its own, which the socket counts.
fn copied(data: &Data) -> Vec<u8> {
    match data {
        Data::Place(view) => {
            let mut bytes = vec![0; view.len()];
            view.copy_to(&mut bytes);
            bytes
        }
        Data::Own(bytes) => bytes.clone(),
    }
}

impl Held {
    /// Holds `data`, in one piece: what wraps in the ring is copied, as Python knows no buffer of two pieces.
    pub fn new(data: Data) -> Held {
        let data = match data {
            Data::Place(view) if view.raw_parts()[1].1 > 0 => Data::Own(view.into_vec()),
            other => other,
        };
        let len = match &data {
            Data::Place(view) => view.len(),
            Data::Own(bytes) => bytes.len(),
        };
        Held { state: Mutex::new(State { data: Some(data), exports: 0 }), len }
    }

    /// Whether the bytes lie in memory that the peer wrote to.
    pub fn in_place(&self) -> bool {
        matches!(lock(&self.state).data, Some(Data::Place(_)))
    }

    /// Gives the address away, and keeps the memory where it is until [`Held::unpin`]. None once it was released.
    pub fn pin(&self) -> Option<Region> {
        let mut state = lock(&self.state);
        let region = match state.data.as_ref()? {
            Data::Place(view) => {
                let [(at, len), _] = view.raw_parts();
                Region { at: at.cast_mut(), len }
            }
            Data::Own(bytes) => Region::of(bytes),
        };
        state.exports += 1;
        Some(if region.len == 0 { Region::EMPTY } else { region })
    }

    pub fn unpin(&self) {
        lock(&self.state).exports -= 1;
    }

    /// Gives the bytes back to the sender. False while somebody has their address.
    pub fn release(&self) -> bool {
        let mut state = lock(&self.state);
        let free = state.exports == 0;
        if free {
            let data = state.data.take();
            drop(state);
            drop(data);
        }
        free
    }

    /// Copies the bytes to `buffer`, which is as long as they. False once they were released.
    pub fn copy_to(&self, buffer: &mut [u8]) -> bool {
        match &lock(&self.state).data {
            Some(Data::Place(view)) => view.copy_to(buffer) == buffer.len(),
            Some(Data::Own(bytes)) => {
                buffer.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    /// Moves the bytes out of the ring, if nobody has their address. Returns whether it did.
    fn move_out(&self) -> bool {
        let mut state = lock(&self.state);
        if state.exports > 0 {
            return false;
        }
        let Some(data @ Data::Place(_)) = &state.data else { return false };
        let bytes = copied(data);
        let old = state.data.replace(Data::Own(bytes));
        drop(state);
        drop(old);
        true
    }
}

/// What is held of one connection's ring.
#[derive(Default)]
pub struct Loans {
    held: Mutex<Vec<Weak<Held>>>,
    /// Views that were copied out since the connection was made.
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

    pub fn moved_out(&self) -> u64 {
        *lock(&self.moved_out)
    }

    /// Whether anything is held in place.
    pub fn any(&self) -> bool {
        lock(&self.held).iter().any(|one| one.strong_count() > 0)
    }

    /// Copies out what is held, if that is more than `allowed` bytes: the peer would soon wait for room. What has been exported can't be moved.
    pub fn relieve(&self, allowed: usize) {
        let mut all = lock(&self.held);
        if all.is_empty() {
            return;
        }
        all.retain(|one| one.strong_count() > 0);
        let alive: Vec<Arc<Held>> = all.iter().filter_map(Weak::upgrade).collect();
        drop(all);
        if alive.iter().map(|held| held.len).sum::<usize>() > allowed {
            let moved = alive.iter().filter(|held| held.move_out()).count();
            *lock(&self.moved_out) += moved as u64;
            lock(&self.held).retain(|one| one.upgrade().is_some_and(|held| held.in_place()));
        }
    }
}
