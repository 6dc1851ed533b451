//! The process' own memory.

use super::free::Free;
use super::{About, Batch, MemoryProvider, Need, ProviderError};
use crate::memory::{Area, HostMemory};
use std::sync::Arc;

/// Anonymous memory of the process. It takes up room page by page as it is first touched, and keeps it.
#[derive(Debug, Default)]
pub struct Heap {
    free: Free,
}

impl Heap {
    /// One for a pool.
    #[allow(clippy::new_ret_no_self, reason = "pools take it shared")]
    pub fn new() -> Arc<Heap> {
        Arc::new(Heap::default())
    }
}

impl MemoryProvider for Heap {
    fn init(&self, need: &Need) -> Result<Area, ProviderError> {
        let len = need.bytes()?;
        self.free.start(need)?;
        let memory = HostMemory::anonymous(len).map_err(|errno| {
            self.free.stop();
            ProviderError::new(errno, format!("{len} bytes of address space were refused; lower the limit"))
        })?;
        Ok(Area::host(memory))
    }

    fn alloc_netmems(&self, batch: &mut Batch<'_>) -> Result<(), ProviderError> {
        self.free.give(batch)
    }

    fn release_netmem(&self, index: u32) {
        self.free.take_back(index);
    }

    fn destroy(&self) {
        self.free.stop();
    }

    fn about(&self) -> About {
        About {
            name: "heap",
            how: "anonymous memory, 4 KiB pages".to_owned(),
            readable: true,
            pinned: false,
            shareable: false,
            device: None,
        }
    }
}
