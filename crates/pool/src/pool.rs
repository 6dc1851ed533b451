//! The owner's handle.

use crate::cache::{BULK, bump};
use crate::config::PoolConfig;
use crate::desc::REF;
use crate::error::{AllocError, Lie, OpenError, ReturnError};
use crate::netmem::Netmem;
use crate::page::Page;
use crate::provider::{About, Batch, MemoryProvider};
use crate::shared::{self, Shared};
use crate::stats::Stats;
use onecopy_sync::atomic::Ordering;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// A pool of pages of one size, in the hands of its owner: it can be sent to another thread, not shared. Dropping it
/// shuts it down; its memory goes when the last page has come home.
pub struct PagePool {
    shared: NonNull<Shared>,
    /// The cache is the owner's alone: no second thread may have a reference.
    not_sync: PhantomData<Cell<()>>,
}

// SAFETY: the cache goes with the handle, of which there is one, and to which `Shared::owner` grants no thread access
// while a handle can be sent (a `BoundPool` can't).
unsafe impl Send for PagePool {}

impl PagePool {
    /// A pool of pages that `provider` gives.
    ///
    /// # Errors
    ///
    /// [`OpenError`]: a configuration that cannot be, a provider without memory.
    pub fn new(config: PoolConfig, provider: Arc<dyn MemoryProvider>) -> Result<PagePool, OpenError> {
        Ok(PagePool { shared: Shared::open(&config, provider)?, not_sync: PhantomData })
    }

    #[inline]
    fn shared(&self) -> &Shared {
        // SAFETY: our handle keeps it alive.
        unsafe { self.shared.as_ref() }
    }

    /// A page, the one that came home last. What is in it is what was in it then.
    ///
    /// # Errors
    ///
    /// [`AllocError`]: the limit is reached, or the provider failed. It may well succeed later.
    #[inline]
    pub fn alloc(&self) -> Result<Page, AllocError> {
        match self.shared().cache.pop() {
            // SAFETY: a page in the cache has one reference, which is the cache's.
            Some(page) => Ok(unsafe { Page::from_tagged(page) }),
            None => self.alloc_slow(),
        }
    }

    #[cold]
    #[inline(never)]
    fn alloc_slow(&self) -> Result<Page, AllocError> {
        let shared = self.shared();
        let mut fresh = [0; BULK];
        let mut count = shared.ring.pop(&mut fresh);
        if count > 0 {
            bump(&shared.counts.refill, 1);
        } else {
            bump(&shared.counts.empty, 1);
            count = self.ask_provider(&mut fresh)?;
            bump(&shared.counts.slow, 1);
        }
        // One for the caller; the cache, which was empty, has room for the rest.
        for &index in &fresh[1..count] {
            let kept = shared.cache.stock(shared.tagged(index));
            debug_assert!(kept);
        }
        // SAFETY: it came from the ring with one reference, or `claim` gave it one.
        Ok(unsafe { Page::from_tagged(shared.tagged(fresh[0])) })
    }

    /// At least one page, else why there is none.
    fn ask_provider(&self, out: &mut [u32; BULK]) -> Result<usize, AllocError> {
        let shared = self.shared();
        let room = shared.limit.saturating_sub(shared.in_flight()).min(BULK as u32);
        if room == 0 {
            bump(&shared.counts.exhausted, 1);
            return Err(AllocError::Exhausted { limit: shared.limit });
        }
        let mut batch = Batch::new(shared, &mut out[..room as usize]);
        let outcome = shared.provider.alloc_netmems(&mut batch);
        let (taken, lied, lie) = batch.outcome();
        shared.count(taken);
        bump(&shared.counts.provider_lied, u64::from(lied));
        bump(&shared.counts.provider_failed, u64::from(outcome.is_err()));
        match (taken, outcome, lie) {
            (1.., _, _) => Ok(taken as usize),
            (0, _, Some(lie)) => Err(AllocError::Lie(lie)),
            (0, Err(error), None) => Err(AllocError::Provider(error)),
            (0, Ok(()), None) => {
                bump(&shared.counts.provider_lied, 1);
                Err(AllocError::Lie(Lie::Nothing))
            }
        }
    }

    /// Gives a page back as the owner: into the cache, if this is its last reference. A page of another pool goes
    /// home to that one.
    #[inline]
    pub fn recycle(&self, page: Page) {
        let desc = page.desc();
        // Acquire, and why the load comes first: as in `shared::put`.
        if desc.refs.load(Ordering::Acquire) == REF && desc.shared == self.shared {
            // SAFETY: we are the owner (`PagePool` is not Sync), and have the only reference, given up here.
            unsafe { shared::put_cached(self.shared, page.into_tagged()) }
        }
    }

    /// Takes a plain reference back that [`Page::into_netmem`] gave out.
    ///
    /// # Errors
    ///
    /// [`ReturnError`], counted as [`refused`](crate::TroubleStats::refused): it is not of this pool, or was returned
    /// already.
    pub fn take_back(&self, netmem: Netmem) -> Result<Page, ReturnError> {
        self.shared().take_back(netmem)
    }

    /// Binds the pool to this thread: pages whose last reference is dropped here go straight into the cache.
    pub fn bind(self) -> BoundPool {
        self.shared().bind(true);
        BoundPool { pool: self, not_send: PhantomData }
    }

    /// Bytes in a page.
    pub fn page_len(&self) -> u32 {
        (crate::config::BASE_LEN << self.shared().order) as u32
    }

    /// The most pages that there can be at once: the configured limit, or what the provider's memory holds.
    pub fn limit(&self) -> u32 {
        self.shared().limit
    }

    /// The pool's number, as [`Page::pool_id`].
    pub fn id(&self) -> u64 {
        self.shared().id
    }

    /// What the provider says of the memory.
    pub fn about(&self) -> About {
        self.shared().provider.about()
    }

    /// What was done so far.
    pub fn stats(&self) -> Stats {
        self.shared().stats()
    }

    /// A handle for any thread, which outlives the pool's.
    pub fn monitor(&self) -> Monitor {
        self.shared().add_handle();
        Monitor { shared: self.shared }
    }

    /// Shuts the pool down: what lies in cache and ring goes back to the provider, and pages in use follow as they
    /// are dropped. The monitor tells how many are still out. (Dropping the pool does the same.)
    pub fn shutdown(self) -> Monitor {
        self.monitor()
    }
}

impl Drop for PagePool {
    fn drop(&mut self) {
        let shared = self.shared();
        shared.bind(false);
        // SAFETY: what is in cache or ring has one reference, which is the pool's, given up here. Our handle keeps the
        // pool alive behind the last page; then it goes, too.
        unsafe {
            while let Some(page) = shared.cache.flush() {
                Shared::release(page);
            }
            shared.ring.close(|index| Shared::release(shared.tagged(index)));
            Shared::drop_handle(self.shared);
        }
    }
}

impl fmt::Debug for PagePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = self.shared();
        let about = shared.provider.about();
        write!(
            f,
            "PagePool({}: {} pages of {} bytes, {} in flight; {}: {})",
            shared.id,
            shared.limit,
            self.page_len(),
            shared.in_flight(),
            about.name,
            about.how
        )
    }
}

/// A pool that is bound to the thread it was bound on: drops of its pages there go straight into the cache. It can
/// do all that a [`PagePool`] can but leave the thread.
#[derive(Debug)]
pub struct BoundPool {
    pool: PagePool,
    not_send: PhantomData<*const ()>,
}

impl BoundPool {
    /// The pool, free to be sent.
    pub fn unbind(self) -> PagePool {
        self.pool.shared().bind(false);
        self.pool
    }
}

impl Deref for BoundPool {
    type Target = PagePool;
    #[inline]
    fn deref(&self) -> &PagePool {
        &self.pool
    }
}

/// A handle that any thread may have: statistics, pages in flight, plain references to take back. It outlives the
/// pool, so that one can see its last page come home.
pub struct Monitor {
    shared: NonNull<Shared>,
}

// SAFETY: all that it uses of the pool is atomic or immutable.
unsafe impl Send for Monitor {}
// SAFETY: as above.
unsafe impl Sync for Monitor {}

impl Monitor {
    fn shared(&self) -> &Shared {
        // SAFETY: our handle keeps it alive.
        unsafe { self.shared.as_ref() }
    }

    /// What was done so far. The figures of a pool at work may be some steps apart.
    pub fn stats(&self) -> Stats {
        self.shared().stats()
    }

    /// Pages that the provider has given and not got back; after a shutdown, those still in use.
    pub fn in_flight(&self) -> u32 {
        self.shared().in_flight()
    }

    /// As [`PagePool::take_back`].
    ///
    /// # Errors
    ///
    /// As [`PagePool::take_back`].
    pub fn take_back(&self, netmem: Netmem) -> Result<Page, ReturnError> {
        self.shared().take_back(netmem)
    }
}

impl Clone for Monitor {
    fn clone(&self) -> Monitor {
        self.shared().add_handle();
        Monitor { shared: self.shared }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // SAFETY: the value owned a handle.
        unsafe { Shared::drop_handle(self.shared) }
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Monitor(pool {}, {} in flight)", self.shared().id, self.in_flight())
    }
}
