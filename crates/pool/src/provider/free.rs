//! Which pages of an area are free: what providers share.

use super::{Batch, Need, ProviderError};
use onecopy_sync::Mutex;
use rustix::io::Errno;

/// Page numbers that are free: those that came back (the last one first: it is warm), then those never given out. A provider whose area
/// is one piece of memory has one, and passes its calls on.
#[derive(Debug, Default)]
pub struct Free(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    serving: bool,
    back: Vec<u32>,
    fresh: std::ops::Range<u32>,
}

impl Free {
    /// All of `need.pages` are free ([`MemoryProvider::init`](super::MemoryProvider::init)).
    ///
    /// # Errors
    ///
    /// EBUSY while it serves a pool.
    pub fn start(&self, need: &Need) -> Result<(), ProviderError> {
        let mut state = self.0.lock();
        if state.serving {
            return Err(ProviderError::busy());
        }
        *state = State { serving: true, back: Vec::new(), fresh: 0..need.pages };
        Ok(())
    }

    /// Hands out as many as are wanted and free ([`MemoryProvider::alloc_netmems`](super::MemoryProvider::alloc_netmems)).
    ///
    /// # Errors
    ///
    /// ENOBUFS where fewer are free.
    pub fn give(&self, batch: &mut Batch<'_>) -> Result<(), ProviderError> {
        let mut state = self.0.lock();
        let State { back, fresh, .. } = &mut *state;
        while batch.wanted() > 0 {
            let Some(index) = back.pop().or_else(|| fresh.next()) else {
                return Err(ProviderError::new(Errno::NOBUFS, "all pages of its memory are in use"));
            };
            // A number that the pool refuses was not ours to give: it would be refused again.
            let _ = batch.push(index);
        }
        Ok(())
    }

    /// One came back ([`MemoryProvider::release_netmem`](super::MemoryProvider::release_netmem)).
    pub fn take_back(&self, index: u32) {
        self.0.lock().back.push(index);
    }

    /// The pool is gone: another one may come ([`MemoryProvider::destroy`](super::MemoryProvider::destroy)).
    pub fn stop(&self) {
        *self.0.lock() = State::default();
    }
}
