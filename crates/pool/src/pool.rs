//! The owner's handle.

use crate::cache::{BULK, bump};
use crate::config::PoolConfig;
use crate::debug::What;
use crate::desc::REF;
use crate::error::{AllocError, Lie, OpenError, ReturnError};
use crate::home;
use crate::netmem::Netmem;
use crate::page::{Page, Tagged};
use crate::provider::{About, Batch, MemoryProvider};
use crate::region::Region;
use crate::runs::{LONGEST, Runs};
use crate::shared::Shared;
use crate::shares::{Piece, Shares};
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
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<onecopy_pool::PagePool>();
/// ```
pub struct PagePool {
    shared: NonNull<Shared>,
    /// The page that pieces are cut from. (A Cell, as all of the owner's state: a handle is not Sync.)
    cut: Cell<Option<Cut>>,
    /// Debug mode: pages that are kept out of use.
    damaged: Cell<Vec<u32>>,
}

struct Cut {
    shares: Shares,
    /// Where the next piece begins, in bytes.
    at: u32,
}

/// Pieces begin at cache lines, so that no two writers share one.
const LINE: u32 = 64;

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
        Ok(PagePool {
            shared: Shared::open(&config, provider)?,
            cut: Cell::new(None),
            damaged: Cell::new(Vec::new()),
        })
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
    #[track_caller]
    pub fn alloc(&self) -> Result<Page, AllocError> {
        match self.shared().cache.pop() {
            // SAFETY: a page in the cache has one reference, which is the cache's.
            Some(page) => Ok(unsafe { Page::from_tagged(page) }),
            None => self.alloc_slow(),
        }
    }

    /// Up to `pages` neighbours as one page, at least one: as many as lie together. One, where pages do not go out as runs.
    ///
    /// # Errors
    ///
    /// As [`PagePool::alloc`].
    pub(crate) fn alloc_run(&self, pages: u32) -> Result<Page, AllocError> {
        match &self.shared().runs {
            Some(runs) => self.draw(runs, pages),
            None => self.alloc(),
        }
    }

    /// Out of those that are home, and as long as there are no such neighbours, of those that the provider gives.
    fn draw(&self, runs: &Runs, pages: u32) -> Result<Page, AllocError> {
        let (shared, pages) = (self.shared(), pages.clamp(1, LONGEST));
        let (first, pages) = loop {
            if let Some(first) = runs.take_all(pages) {
                break (first, pages);
            }
            let refused = match shared.in_flight() < shared.limit {
                true => {
                    bump(&shared.counts.empty, 1);
                    let mut fresh = [0; BULK];
                    match self.ask_provider(&mut fresh) {
                        Ok(count) => {
                            bump(&shared.counts.slow, 1);
                            for &page in &fresh[..count] {
                                // SAFETY: it was just claimed, and nobody has it.
                                unsafe { home::put_run(self.shared, page, 1) }
                            }
                            continue;
                        }
                        Err(error) => Some(error),
                    }
                }
                false => None,
            };
            match runs.take(pages) {
                Some(found) => break found,
                None => {
                    bump(&shared.counts.exhausted, u64::from(refused.is_none()));
                    return Err(refused.unwrap_or(AllocError::Exhausted { limit: shared.limit }));
                }
            }
        };
        let page = shared.tagged(first);
        // SAFETY: they were home, so each has one reference, which is nobody's: the first one's is now the caller's, and the others go with it.
        unsafe {
            // Relaxed: ours alone; who gets a reference later gets it from this one.
            page.desc().as_ref().len.store(pages * shared.page_len() as u32, Ordering::Relaxed);
            Ok(Page::from_tagged(page))
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn alloc_slow(&self) -> Result<Page, AllocError> {
        let shared = self.shared();
        if let Some(runs) = &shared.runs {
            return self.draw(runs, 1);
        }
        if shared.debug.is_some() {
            return self.alloc_watched();
        }
        let mut fresh = [0; BULK];
        let mut count = shared.ring.pop(&mut fresh);
        if count > 0 {
            bump(&shared.counts.refill, 1);
        } else {
            bump(&shared.counts.empty, 1);
            count = self.ask_provider(&mut fresh)?;
            bump(&shared.counts.slow, 1);
        }
        for &index in &fresh[1..count] {
            let page = shared.tagged(index);
            if !shared.cache.stock(page) {
                // The cache was empty, but the provider may have dropped pages of this very pool since.
                // SAFETY: a page from ring or provider has one reference, given up here.
                unsafe { home::put_ring(self.shared, page) }
            }
        }
        // SAFETY: as above; the reference is now the caller's.
        Ok(unsafe { Page::from_tagged(shared.tagged(fresh[0])) })
    }

    /// Debug mode: one page at a time, looked at before it goes out.
    #[track_caller]
    fn alloc_watched(&self) -> Result<Page, AllocError> {
        let shared = self.shared();
        let mut one = [0];
        let recycled = shared.ring.pop(&mut one) == 1;
        if recycled {
            bump(&shared.counts.refill, 1);
        } else {
            bump(&shared.counts.empty, 1);
            self.ask_provider(&mut one)?;
            bump(&shared.counts.slow, 1);
            shared.watch(one[0], What::FromProvider);
        }
        // SAFETY: a page from ring or provider is ours alone.
        match unsafe { shared.watch_alloc(one[0], recycled) } {
            // SAFETY: `watch_alloc` left it one reference, which is now the caller's.
            Ok(()) => Ok(unsafe { Page::from_tagged(shared.tagged(one[0])) }),
            Err(damage) => {
                bump(&shared.counts.waive, 1);
                let mut damaged = self.damaged.take();
                damaged.push(one[0]);
                self.damaged.set(damaged);
                Err(AllocError::Damaged(damage))
            }
        }
    }

    /// At least one page, else why there is none.
    fn ask_provider(&self, out: &mut [u32]) -> Result<usize, AllocError> {
        let shared = self.shared();
        let room = shared.limit.saturating_sub(shared.in_flight()).min(out.len() as u32);
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
        match (taken, lie, outcome) {
            (1.., ..) => Ok(taken as usize),
            (0, Some(lie), _) => Err(AllocError::Lie(lie)),
            (0, None, Err(error)) => Err(AllocError::Provider(error)),
            (0, None, Ok(())) => {
                bump(&shared.counts.provider_lied, 1);
                Err(AllocError::Lie(Lie::Nothing))
            }
        }
    }

    /// A piece of a page, `len` bytes rounded up to whole cache lines, of which nobody else has a byte: many small
    /// buffers out of few pages, at the cost of a subtraction. The page comes home with the last of its pieces.
    ///
    /// # Errors
    ///
    /// [`AllocError::Size`] for an empty piece or one that is larger than a page; else as [`PagePool::alloc`].
    #[inline]
    #[track_caller]
    pub fn alloc_piece(&self, len: u32) -> Result<Piece, AllocError> {
        let page_len = self.page_len();
        if len == 0 || len > page_len {
            return Err(AllocError::Size { asked: len, page_len });
        }
        let step = len.next_multiple_of(LINE);
        let mut cut = match self.cut.take() {
            Some(cut) if cut.at + step <= page_len => cut,
            old => self.cut_another(old)?,
        };
        let piece = Piece::new(cut.shares.take(), cut.at, len);
        cut.at += step;
        self.cut.set(Some(cut));
        Ok(piece)
    }

    #[cold]
    #[track_caller]
    fn cut_another(&self, old: Option<Cut>) -> Result<Cut, AllocError> {
        let page = match old.and_then(|cut| cut.shares.drain()) {
            // All its pieces are back already: the same once more, as the kernel does.
            // SAFETY: `drain` gave us the only reference.
            Some(page) if self.shared().debug.is_none() => unsafe { Page::from_tagged(page) },
            Some(page) => {
                // SAFETY: as above, given up here.
                unsafe { home::put_last(page) }
                self.alloc()?
            }
            None => self.alloc()?,
        };
        Ok(Cut { shares: Shares::cut(page), at: 0 })
    }

    /// Gives a page back as the owner: into the cache, if this is its last reference. A page of another pool goes
    /// home to that one.
    #[inline]
    pub fn recycle(&self, page: Page) {
        let page = page.into_tagged();
        // SAFETY: the reference that was the page's keeps the descriptor valid. If it is the only one it goes to the
        // cache, which is ours to touch: we are the owner (`PagePool` is not Sync).
        unsafe {
            let desc = page.desc().as_ptr();
            // Acquire, and why the load comes first: as in `home::put`.
            let ours = (*desc).refs.load(Ordering::Acquire) == REF && (*desc).shared == self.shared;
            if ours && self.shared().cache.push(page) {
                return;
            }
            self.recycle_slow(page, ours);
        }
    }

    /// What `recycle` does not find room for, or does not have alone.
    ///
    /// # Safety
    ///
    /// The caller owns a reference, which is gone; if `full`, it is the only one and the page is of this pool, whose
    /// cache is full.
    #[cold]
    #[inline(never)]
    unsafe fn recycle_slow(&self, page: Tagged, full: bool) {
        // SAFETY: as the caller says.
        unsafe {
            if full {
                bump(&self.shared().counts.cache_full, 1);
                home::put_ring(self.shared, page);
            } else {
                home::put(page);
            }
        }
    }

    /// Takes a plain reference back that [`Page::into_netmem`] gave out.
    ///
    /// # Errors
    ///
    /// [`ReturnError`], counted as [`refused`](crate::TroubleStats::refused): it is not of this pool, or was returned
    /// already.
    #[track_caller]
    pub fn take_back(&self, netmem: Netmem) -> Result<Page, ReturnError> {
        self.shared().take_back(netmem)
    }

    /// Binds the pool to this thread: pages whose last reference is dropped here go straight into the cache.
    pub fn bind(self) -> BoundPool {
        self.shared().bind(true);
        BoundPool { pool: self, not_send: PhantomData }
    }

    /// Calls `act`. Pages of the pool whose last reference this thread drops meanwhile go straight into the cache, as where the pool is bound.
    pub fn bound<R>(&self, act: impl FnOnce() -> R) -> R {
        /// Also where `act` panics.
        struct Unbind<'a>(&'a Shared);
        impl Drop for Unbind<'_> {
            fn drop(&mut self) {
                self.0.bind(false);
            }
        }
        let shared = self.shared();
        if shared.is_bound() {
            return act();
        }
        // (A handle is not Sync: as long as this borrows it, it stays with the thread.)
        shared.bind(true);
        let _unbind = Unbind(shared);
        act()
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

    /// Where all pages lie, for who registers the memory as a whole; None where it is not this process' own (a peer's, a device's).
    pub fn region(&self) -> Option<Region> {
        Region::of(self.monitor())
    }

    /// A handle for any thread, which outlives the pool's.
    pub fn monitor(&self) -> Monitor {
        self.shared().monitor()
    }

    /// Shuts the pool down: what lies in cache and ring goes back to the provider, and pages in use follow as they
    /// are dropped. The monitor tells how many are still out. (Dropping the pool does the same.)
    pub fn shutdown(self) -> Monitor {
        self.monitor()
    }
}

impl Drop for PagePool {
    fn drop(&mut self) {
        self.cut.take();
        let shared = self.shared();
        shared.bind(false);
        // SAFETY: what is in cache or ring has one reference, which is the pool's, given up here. Our handle keeps the
        // pool alive behind the last page; then it goes, too.
        unsafe {
            while let Some(page) = shared.cache.flush() {
                Shared::release(page);
            }
            shared.ring.close(|index| Shared::release(shared.tagged(index)));
            if let Some(runs) = &shared.runs {
                runs.close(|index| Shared::release(shared.tagged(index)));
            }
            for index in self.damaged.take() {
                Shared::release(shared.tagged(index));
            }
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
///
/// ```compile_fail,E0277
/// fn sent<T: Send>() {}
/// sent::<onecopy_pool::BoundPool>();
/// ```
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

impl Shared {
    /// A handle of the pool that this is of, for whoever has one, or a page of it.
    pub(crate) fn monitor(&self) -> Monitor {
        self.add_handle();
        Monitor { shared: NonNull::from(self) }
    }
}

impl Monitor {
    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: our handle keeps it alive.
        unsafe { self.shared.as_ref() }
    }

    /// Debug mode: the pages that somebody has a reference to, each with its history, a line for each use. Who looks
    /// for a leak finds here who took the page.
    pub fn report(&self) -> Vec<(u32, String)> {
        let Some(histories) = &self.shared().debug else { return Vec::new() };
        histories.out().into_iter().map(|index| (index, histories.of_page(index))).collect()
    }

    /// What was done so far. The figures of a pool at work may be some steps apart.
    pub fn stats(&self) -> Stats {
        self.shared().stats()
    }

    /// The pool's number, as [`Page::pool_id`].
    pub fn pool_id(&self) -> u64 {
        self.shared().id
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
    #[track_caller]
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
