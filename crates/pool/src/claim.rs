//! What a device's memory is bound for, by whatever stack.

use crate::device::DeviceMemory;
use onecopy_sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::fmt;

/// What memory is bound for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// What is received lands in its free pages, and any number of binders may share these.
    Receive,
    /// All of its pages are one binder's, who sends from them.
    Send,
}

/// Who has bound memory: how many to receive into it, or [`SENDER`].
#[derive(Debug, Default)]
pub(crate) struct Claims(AtomicU32);

const SENDER: u32 = u32::MAX;

impl Claims {
    // Relaxed throughout: it is a count, and publishes nothing.
    fn take(&self, purpose: Purpose) -> bool {
        let mut now = self.0.load(Relaxed);
        loop {
            let next = match (purpose, now) {
                (Purpose::Send, 0) => SENDER,
                (Purpose::Receive, now) if now < SENDER - 1 => now + 1,
                _ => return false,
            };
            match self.0.compare_exchange(now, next, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
    }

    fn give_back(&self, purpose: Purpose) {
        match purpose {
            Purpose::Send => self.0.store(0, Relaxed),
            Purpose::Receive => drop(self.0.fetch_sub(1, Relaxed)),
        }
    }
}

/// Memory that is bound for a purpose, as long as this lives ([`DeviceMemory::claim`]).
#[must_use = "dropped, the memory is free for any purpose"]
pub struct Claim {
    memory: DeviceMemory,
    purpose: Purpose,
}

impl Claim {
    /// The memory.
    pub fn memory(&self) -> &DeviceMemory {
        &self.memory
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.memory.claims().give_back(self.purpose);
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({:?} of {:?})", self.purpose, self.memory)
    }
}

impl DeviceMemory {
    /// Claims the memory for a purpose. None where it is bound for the other one, or to be sent from already: what is received would overwrite what
    /// is to be sent.
    pub fn claim(&self, purpose: Purpose) -> Option<Claim> {
        self.claims().take(purpose).then(|| Claim { memory: self.clone(), purpose })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::DeviceId;

    #[test]
    fn memory_has_many_receivers_or_one_sender() {
        let memory = DeviceMemory::opaque(1, DeviceId(1)).unwrap();
        let first = memory.claim(Purpose::Receive).unwrap();
        let second = memory.claim(Purpose::Receive).unwrap();
        assert_eq!(second.memory().id(), memory.id());
        assert!(memory.claim(Purpose::Send).is_none());
        drop(first);
        assert!(memory.claim(Purpose::Send).is_none());
        drop(second);
        let sender = memory.claim(Purpose::Send).unwrap();
        assert!(memory.clone().claim(Purpose::Send).is_none());
        assert!(memory.claim(Purpose::Receive).is_none());
        drop(sender);
        assert!(memory.claim(Purpose::Receive).is_some());
    }
}
