//! A pool's memory as a whole, for who registers it.

use crate::page::Page;
use crate::pool::Monitor;
use std::fmt;
use std::ptr::NonNull;

/// Where a pool's pages lie, as one piece of memory: for io_uring's registered buffers (io_uring_register_buffers(3)), CUDA
/// (cuMemHostRegister), and an AF_XDP socket's umem. It is registered once, and pages are then told by their place in it.
///
/// The memory stays mapped as long as this lives, even when pool and pages are gone: keep it until it is unregistered.
///
/// The address is for such calls. What lies there belongs to whoever has the pages.
#[derive(Clone)]
pub struct Region {
    /// Keeps the memory.
    of: Monitor,
    len: usize,
    page_len: u32,
}

impl Region {
    /// None where the memory is not this process' own.
    pub(crate) fn of(of: Monitor) -> Option<Region> {
        let shared = of.shared();
        let page_len = (crate::config::BASE_LEN << shared.order) as u32;
        let len = shared.limit as usize * page_len as usize;
        let here = !shared.area.host_base().is_null();
        here.then(|| Region { len, page_len, of })
    }

    /// Its first byte: page 0's.
    pub fn base(&self) -> NonNull<u8> {
        NonNull::new(self.of.shared().area.host_base()).expect("looked at when it was made")
    }

    /// The pool, as [`Page::pool_id`].
    pub fn pool_id(&self) -> u64 {
        self.of.shared().id
    }

    /// Whether nobody but regions and monitors is left of the pool: its handle is gone, and no page is out.
    pub fn is_idle(&self) -> bool {
        self.of.shared().in_flight() == 0
    }

    /// Bytes: all pages that the pool can ever have.
    #[allow(clippy::len_without_is_empty, reason = "no pool is without pages")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of a page.
    pub fn page_len(&self) -> u32 {
        self.page_len
    }

    /// Where `page` begins, in bytes from the base; None for a page of another pool.
    pub fn offset_of(&self, page: &Page) -> Option<usize> {
        (page.pool_id() == self.of.shared().id).then(|| page.index() as usize * self.page_len as usize)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes at {:p} of pool {})", self.len, self.base(), self.of.shared().id)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::provider::{Heap, Hugepage, Memfd, Opaque};
    use crate::{About, Area, Batch, DeviceId, MemoryProvider, Need, PagePool, PoolConfig, ProviderError};
    use onecopy_sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::sync::Arc;

    /// Tells when its memory goes.
    struct Told(Arc<dyn MemoryProvider>, Arc<AtomicU32>);

    impl MemoryProvider for Told {
        fn init(&self, need: &Need) -> Result<Area, ProviderError> {
            self.0.init(need)
        }
        fn alloc_netmems(&self, batch: &mut Batch<'_>) -> Result<(), ProviderError> {
            self.0.alloc_netmems(batch)
        }
        fn release_netmem(&self, index: u32) {
            self.0.release_netmem(index);
        }
        fn destroy(&self) {
            self.1.store(1, Relaxed);
            self.0.destroy();
        }
        fn about(&self) -> About {
            self.0.about()
        }
        fn fd(&self) -> Option<rustix::fd::BorrowedFd<'_>> {
            self.0.fd()
        }
    }

    #[test]
    fn pages_lie_where_the_region_says_and_stay_with_it() {
        let providers: [Arc<dyn MemoryProvider>; 3] = [Heap::new(), Memfd::new(), Hugepage::new()];
        for provider in providers {
            let gone = Arc::new(AtomicU32::new(0));
            let provider = Arc::new(Told(provider, gone.clone()));
            let pool = PagePool::new(PoolConfig::new().order(1).limit(256), provider).unwrap();
            let region = pool.region().unwrap();
            assert_eq!((region.len(), region.page_len()), (256 * 8192, 8192));
            let other = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
            assert_eq!(region.offset_of(&other.alloc().unwrap()), None);
            let pages: Vec<_> = (0..256).map(|_| pool.alloc().unwrap()).collect();
            let same = pages[0].region().unwrap();
            assert_eq!((same.base(), same.len()), (region.base(), region.len()));
            drop(same);
            for page in &pages {
                let offset = region.offset_of(page).unwrap();
                assert_eq!(page.bytes().unwrap().as_ptr().addr(), region.base().addr().get() + offset);
                assert!(offset + 8192 <= region.len());
            }
            drop((pages, pool));
            let view = region.clone();
            drop(region);
            assert_eq!((gone.load(Relaxed), view.len()), (0, 256 * 8192), "it is registered somewhere");
            drop(view);
            assert_eq!(gone.load(Relaxed), 1);
        }
    }

    #[test]
    fn a_device_has_no_address_here() {
        let gpu = PagePool::new(PoolConfig::new().limit(1), Opaque::new(DeviceId(1))).unwrap();
        assert!(gpu.region().is_none() && gpu.alloc().unwrap().region().is_none());
    }
}
