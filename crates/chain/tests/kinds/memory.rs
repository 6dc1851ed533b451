//! Pools of each kind of memory.

use onecopy_pool::provider::{About, Batch, Heap, LentPages, Need, ProviderError};
use onecopy_pool::{Area, DeviceId, MemoryProvider, PagePool, PoolConfig};
use onecopy_sys::map::{Mapping, Span};
use onecopy_sys::memfd;
use std::sync::Arc;
use std::sync::Mutex;

pub const PAGE: usize = 4096;

pub fn host(pages: u32) -> PagePool {
    PagePool::new(PoolConfig::new().limit(pages), Heap::new()).unwrap()
}

/// Pages that somebody holds.
pub fn in_use(pool: &PagePool) -> u64 {
    let stats = pool.stats();
    stats.in_flight - stats.in_cache - stats.in_ring
}

/// A device that has no memory: nothing that may be done with its pages needs any.
struct NoDevice {
    id: DeviceId,
    free: Mutex<Vec<u32>>,
}

impl MemoryProvider for NoDevice {
    fn init(&self, need: &Need) -> Result<Area, ProviderError> {
        self.free.lock().unwrap().extend(0..need.pages);
        Ok(Area::device(self.id, need.bytes()?))
    }

    fn alloc_netmems(&self, batch: &mut Batch<'_>) -> Result<(), ProviderError> {
        while batch.wanted() > 0
            && let Some(index) = self.free.lock().unwrap().pop()
        {
            batch.push(index).expect("a page that is free");
        }
        Ok(())
    }

    fn release_netmem(&self, index: u32) {
        self.free.lock().unwrap().push(index);
    }

    fn about(&self) -> About {
        About {
            name: "none",
            how: "no memory".to_owned(),
            readable: false,
            pinned: true,
            shareable: false,
            device: Some(self.id),
        }
    }
}

/// Pages of 4096 << `order` bytes of device `id`.
pub fn device(id: u32, pages: u32, order: u8) -> PagePool {
    let provider = NoDevice { id: DeviceId(id), free: Mutex::default() };
    PagePool::new(PoolConfig::new().limit(pages).order(order), Arc::new(provider)).unwrap()
}

/// A peer's pages, and his own view of them: `write` is what he does.
pub struct Peer {
    pub pages: LentPages,
    theirs: Mapping,
}

pub fn peer(pages: u32) -> Peer {
    let len = pages as usize * PAGE;
    let (fd, theirs) = memfd::create_owned("onecopy-chain-test", len).unwrap();
    let ours = Arc::new(Mapping::read_only(&fd, len).unwrap());
    Peer { pages: LentPages::new(ours, 0, pages, pages, |_| ()).unwrap(), theirs }
}

impl Peer {
    /// Writes as the peer does, at any time: the kernel does it, by way of a file.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let file = rustix::fs::memfd_create("onecopy-chain-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(rustix::io::write(&file, bytes).unwrap(), bytes.len());
        let spans = [self.theirs.span(at, bytes.len()), Span::EMPTY];
        assert_eq!(onecopy_sys::spans::pread(file, &spans, 0).unwrap(), bytes.len());
    }
}
