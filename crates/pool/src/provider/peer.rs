//! Pages of a memory that another process owns and names to us.

use super::{About, Batch, MemoryProvider, Need, ProviderError};
use crate::config::PoolConfig;
use crate::error::{AdoptError, Lie, OpenError};
use crate::memory::Area;
use crate::page::Page;
use crate::shared::Shared;
use onecopy_sync::Mutex;
use onecopy_sys::map::Mapping;
use rustix::io::Errno;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// The pages of a peer's pool, as he shares them: he names a page by its number, [`PeerPages::adopt`] makes a [`Page`]
/// of it, and when the last reference to that is dropped, on whatever thread, the hook is called with the number, so
/// that the peer can be told. Any thread may use it. There is neither cache nor ring: these pages are not ours to
/// hand out again.
///
/// The peer may write the memory at any time, and may name any number: what is outside, or was named before and not
/// released yet, is refused. What he can make us keep is bounded by the number of pages.
pub struct PeerPages {
    shared: NonNull<Shared>,
}

// SAFETY: a pool that is closed: its cache is touched by nobody, all the rest is atomic or immutable.
unsafe impl Send for PeerPages {}
// SAFETY: as above.
unsafe impl Sync for PeerPages {}

impl PeerPages {
    /// Pages of 4096 << `order` bytes, `pages` of them, from `offset` of what the peer shares. `released` is called
    /// with a page's number when its last reference is gone: it must not block, since any thread may be in it.
    ///
    /// # Errors
    ///
    /// [`OpenError`]: they do not lie inside of the mapping.
    pub fn new(
        mapping: Arc<Mapping>,
        offset: usize,
        order: u8,
        pages: u32,
        released: impl Fn(u32) + Send + Sync + 'static,
    ) -> Result<PeerPages, OpenError> {
        let config = PoolConfig::new().order(order).limit(pages).ring(1);
        config.check()?;
        let provider = Peer { memory: Mutex::new(Some((mapping, offset))), released };
        let shared = Shared::open(&config, Arc::new(provider))?;
        let peers = PeerPages { shared };
        // From here on whoever drops the last reference finds the ring closed and calls the hook.
        peers.shared().ring.close(|_| ());
        Ok(peers)
    }

    fn shared(&self) -> &Shared {
        // SAFETY: our handle keeps it alive.
        unsafe { self.shared.as_ref() }
    }

    /// The page that the peer named.
    ///
    /// # Errors
    ///
    /// [`AdoptError`]: the peer lies.
    pub fn adopt(&self, index: u32) -> Result<Page, AdoptError> {
        let shared = self.shared();
        shared.claim(index).map_err(|lie| match lie {
            Lie::Foreign { index, pages } => AdoptError::Outside { index, pages },
            _ => AdoptError::Again { index },
        })?;
        shared.count(1);
        // SAFETY: `claim` gave it one reference.
        Ok(unsafe { Page::from_tagged(shared.tagged(index)) })
    }

    /// How many pages are shared.
    pub fn pages(&self) -> u32 {
        self.shared().limit
    }

    /// How many of them are adopted and not released.
    pub fn in_flight(&self) -> u32 {
        self.shared().in_flight()
    }

    /// As [`Page::pool_id`].
    pub fn id(&self) -> u64 {
        self.shared().id
    }
}

impl Drop for PeerPages {
    fn drop(&mut self) {
        // SAFETY: the value owned a handle.
        unsafe { Shared::drop_handle(self.shared) }
    }
}

impl fmt::Debug for PeerPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerPages(pool {}, {} of {} adopted)", self.id(), self.in_flight(), self.pages())
    }
}

struct Peer<F> {
    /// Taken by `init`.
    memory: Mutex<Option<(Arc<Mapping>, usize)>>,
    released: F,
}

impl<F: Fn(u32) + Send + Sync + 'static> MemoryProvider for Peer<F> {
    fn init(&self, need: &Need) -> Result<Area, ProviderError> {
        let (mapping, offset) = self.memory.lock().take().ok_or_else(ProviderError::busy)?;
        Ok(Area::peer(mapping, offset, need.bytes()?))
    }

    fn alloc_netmems(&self, _: &mut Batch<'_>) -> Result<(), ProviderError> {
        Err(ProviderError::new(Errno::OPNOTSUPP, "a peer's pages are adopted as he names them"))
    }

    fn release_netmem(&self, index: u32) {
        (self.released)(index);
    }

    fn about(&self) -> About {
        About {
            name: "peer",
            how: "a peer's memfd, written by him".to_owned(),
            readable: true,
            pinned: false,
            shareable: false,
            device: None,
        }
    }
}
