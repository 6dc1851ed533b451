//! What a pool's handle and its pages hold together.

use crate::cache::Cache;
use crate::config::{BASE_LEN, PoolConfig};
use crate::debug::{self, Histories, What};
use crate::desc::{AWAY, Desc, MARKS, REF, REFS, WATCHED};
use crate::error::{Damage, Lie, OpenError, ReturnError};
use crate::memory::Area;
use crate::netmem::Netmem;
use crate::page::{Page, Tagged};
use crate::provider::{MemoryProvider, Need};
use crate::ring::Ring;
use crate::runs::Runs;
use crate::stats::{AllocStats, RecycleStats, Stats, TroubleStats};
use crate::thread;
use onecopy_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// In [`Shared::life`]: a handle. Below it: pages that the provider has given.
const HANDLE: u64 = 1 << 32;

/// Handles beyond which a loop is leaking them.
const TOO_MANY_HANDLES: u64 = 1 << 63;

/// In [`Shared::owner`]: no thread's drops go into the cache.
const UNBOUND: u64 = u64::MAX;

/// Numbers of pools, beginning with 1.
fn next_id() -> u64 {
    static LAST: Mutex<u64> = Mutex::new(0);
    count_up(&LAST)
}

/// A static cannot hold one of loom's atomics, and nothing is ordered by these numbers.
pub(crate) fn count_up(last: &Mutex<u64>) -> u64 {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    *last += 1;
    *last
}

/// The pool's memory. It is made by the handle, and goes when there is neither a handle nor a page out of the
/// provider's hands: `life` counts both.
pub(crate) struct Shared {
    pub cache: Cache,
    pub ring: Ring,
    /// Which thread's drops may go straight into the cache: its number, else [`UNBOUND`]. Only the bound thread itself
    /// ever writes its number here or takes it away, so whoever reads its own number is the owner.
    pub owner: AtomicU64,
    life: AtomicU64,
    pub id: u64,
    pub limit: u32,
    pub area: Area,
    pub provider: Arc<dyn MemoryProvider>,
    /// `limit` descriptors, from Box::into_raw: pages point at them while the box would move.
    descs: NonNull<Desc>,
    pub order: u8,
    pub debug: Option<Histories>,
    /// The free pages, where they go out as runs: then there are none in cache and ring.
    pub runs: Option<Runs>,
    pub trouble: Trouble,
    pub counts: Counts,
}

// SAFETY: all that is not atomic or immutable is the cache, whose methods only the owner calls (see `owner`, and
// `PagePool`, which is not Sync). Area and provider are Send and Sync; descriptors are immutable but for atomics.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// What seldom happens: counted by whoever meets it.
#[derive(Default)]
pub(crate) struct Trouble {
    pub ring_full: AtomicU64,
    pub released_refcnt: AtomicU64,
    pub refused: AtomicU64,
    pub damaged: AtomicU64,
}

/// What the owner counts outside of the fast way.
#[derive(Default)]
pub(crate) struct Counts {
    pub slow: AtomicU64,
    pub empty: AtomicU64,
    pub refill: AtomicU64,
    pub waive: AtomicU64,
    pub cache_full: AtomicU64,
    pub exhausted: AtomicU64,
    pub provider_failed: AtomicU64,
    pub provider_lied: AtomicU64,
}

impl Shared {
    /// With one handle, which is the caller's.
    pub fn open(
        config: &PoolConfig,
        provider: Arc<dyn MemoryProvider>,
    ) -> Result<NonNull<Shared>, OpenError> {
        Shared::open_as(next_id(), config, provider)
    }

    /// As [`Shared::open`], for pages of the memory of another pool, whose number it has: what they are looked up by is that memory.
    pub fn open_as(
        id: u64,
        config: &PoolConfig,
        provider: Arc<dyn MemoryProvider>,
    ) -> Result<NonNull<Shared>, OpenError> {
        config.check()?;
        let page_len = config.page_len();
        let need = Need { pool_id: id, page_len, pages: config.limit };
        let area = provider.init(&need).map_err(OpenError::Provider)?;
        let pages = area.pages(page_len, config.limit);
        let limit = match pages.and_then(|pages| area.agrees(&*provider, page_len, pages).map(|()| pages)) {
            Ok(pages) => pages,
            Err(error) => {
                provider.destroy();
                return Err(OpenError::Area(error));
            }
        };
        let mut descs = Vec::new();
        if descs.try_reserve_exact(limit as usize).is_err() {
            provider.destroy();
            return Err(OpenError::Descriptors(limit));
        }
        let base = area.host_base();
        let shared = NonNull::from(Box::leak(Box::new(Shared {
            cache: Cache::new(),
            ring: Ring::new(config.ring),
            owner: AtomicU64::new(UNBOUND),
            life: AtomicU64::new(HANDLE),
            id,
            limit,
            area,
            provider,
            descs: NonNull::dangling(),
            order: config.order,
            debug: config.debug.then(|| Histories::of(limit)),
            runs: (config.runs && !config.debug && base.is_null()).then(|| Runs::new(limit)),
            trouble: Trouble::default(),
            counts: Counts::default(),
        })));
        let desc = |index: u32| Desc {
            refs: AtomicU64::new(if config.debug { AWAY | WATCHED } else { AWAY }),
            shared,
            // Null stays null: a page of other memory has no address.
            base: if base.is_null() { base } else { base.wrapping_add(index as usize * page_len as usize) },
            len: AtomicU32::new(page_len),
            index,
            place: AtomicU32::new(index),
            tokens: AtomicU32::new(0),
        };
        descs.extend((0..limit).map(desc));
        let descs = descs.into_boxed_slice();
        // SAFETY: nobody else knows of `shared` yet; a box is never null.
        unsafe {
            (*shared.as_ptr()).descs = NonNull::new_unchecked(Box::into_raw(descs).cast::<Desc>());
        }
        Ok(shared)
    }

    /// The reference to page `index`, which is less than `limit`.
    #[inline]
    pub fn tagged(&self, index: u32) -> Tagged {
        debug_assert!(index < self.limit);
        // SAFETY: `descs` has `limit` entries, and no other number gets here: `claim` and `take_back` check.
        let desc = unsafe { self.descs.add(index as usize) };
        Tagged::new(desc, self.area.device_id().is_some())
    }

    /// Bytes of a page.
    #[inline]
    pub fn page_len(&self) -> u64 {
        (BASE_LEN as u64) << self.order
    }

    /// What [`Desc::refs`] is while a page lies with the provider.
    #[inline]
    pub fn away(&self) -> u64 {
        if self.debug.is_some() { AWAY | WATCHED } else { AWAY }
    }

    /// Makes page `index` the pool's, with one reference; it is not counted in `life` yet.
    pub fn claim(&self, index: u32) -> Result<(), Lie> {
        if index >= self.limit {
            return Err(Lie::Foreign { index, pages: self.limit });
        }
        // SAFETY: descriptors live as long as `self`.
        let refs = unsafe { &self.tagged(index).desc().as_ref().refs };
        // Acquire pairs with the Release store in `release`: its last user is done with it.
        refs.compare_exchange(self.away(), REF, Ordering::Acquire, Ordering::Relaxed)
            .map(drop)
            .map_err(|_| Lie::Duplicate { index })
    }

    /// Keeps a page for the next one who wants it, that was just claimed and counted, and handed to nobody.
    #[cold]
    pub fn keep(&self, index: u32) {
        // SAFETY: the claim's reference is the only one; here it is made a page, and dropped as any other.
        unsafe {
            // A page that comes from the provider is not looked at.
            let fresh = self.watch_alloc(index, false);
            debug_assert!(fresh.is_ok());
            drop(Page::from_tagged(self.tagged(index)));
        }
    }

    /// Counts pages that the provider has given.
    pub fn count(&self, pages: u32) {
        // Relaxed: the caller holds a handle, so nobody frees anything because of what was there before.
        self.life.fetch_add(u64::from(pages), Ordering::Relaxed);
    }

    /// Pages that the provider has given and not got back.
    pub fn in_flight(&self) -> u32 {
        self.life.load(Ordering::Relaxed) as u32
    }

    /// Counts another handle.
    pub fn add_handle(&self) {
        // Relaxed: as in `count`.
        if self.life.fetch_add(HANDLE, Ordering::Relaxed) >= TOO_MANY_HANDLES {
            eprintln!("onecopy-pool: far too many monitors of a pool: they are being leaked in a loop");
            // As Arc does: a count that overflows would free what is in use.
            std::process::abort()
        }
    }

    /// Gives up a handle; the last of all frees the pool.
    ///
    /// # Safety
    ///
    /// The caller owns a handle, and uses it no more.
    pub unsafe fn drop_handle(shared: NonNull<Shared>) {
        // SAFETY: as the caller says.
        unsafe { Shared::leave(shared, HANDLE) }
    }

    /// # Safety
    ///
    /// The caller owns what `share` counts, and uses the pool no more.
    pub unsafe fn leave(shared: NonNull<Shared>, share: u64) {
        // SAFETY: the caller's share keeps the pool alive up to the subtraction, and whoever takes the last one is
        // alone with it.
        unsafe {
            // AcqRel: our use of the pool comes before its end, and everybody else's before ours if we are the last.
            if (*shared.as_ptr()).life.fetch_sub(share, Ordering::AcqRel) == share {
                Shared::destroy(shared);
            }
        }
    }

    /// # Safety
    ///
    /// Nobody else uses the pool, and nobody will.
    #[cold]
    unsafe fn destroy(shared: NonNull<Shared>) {
        // SAFETY: `open` made both boxes, and nobody uses them any more.
        unsafe {
            let shared = Box::from_raw(shared.as_ptr());
            let descs = std::ptr::slice_from_raw_parts_mut(shared.descs.as_ptr(), shared.limit as usize);
            drop(Box::from_raw(descs));
            shared.provider.destroy();
        }
    }

    /// Gives a page back to the provider.
    ///
    /// # Safety
    ///
    /// The caller owns the only reference, which is gone.
    #[cold]
    pub unsafe fn release(page: Tagged) {
        let desc = page.desc();
        // SAFETY: the page keeps pool and descriptor alive until `leave`.
        unsafe {
            let shared = (*desc.as_ptr()).shared;
            let index = (*desc.as_ptr()).index;
            // Release pairs with the Acquire exchange in `claim`.
            (*desc.as_ptr()).refs.store((*shared.as_ptr()).away(), Ordering::Release);
            if let Some(histories) = &(*shared.as_ptr()).debug {
                histories.note(index, What::ToProvider);
            }
            (*shared.as_ptr()).provider.release_netmem(index);
            Shared::leave(shared, 1);
        }
    }

    /// Gives a page back to the provider, and of a run all of its pages.
    ///
    /// # Safety
    ///
    /// As [`Shared::release`].
    pub unsafe fn release_all(page: Tagged) {
        let desc = page.desc().as_ptr();
        // SAFETY: as the caller says; each page that is not released yet keeps the pool alive.
        unsafe {
            let shared = (*desc).shared;
            if (*shared.as_ptr()).runs.is_none() {
                return Shared::release(page);
            }
            // Relaxed: the only reference is ours.
            let len = (*desc).len.load(Ordering::Relaxed);
            let (first, pages) = ((*desc).index, (u64::from(len) / (*shared.as_ptr()).page_len()) as u32);
            for page in first..first + pages {
                Shared::release((*shared.as_ptr()).tagged(page));
            }
        }
    }

    /// Checks a plain reference that claims to be one of ours, and makes a page of it.
    #[track_caller]
    pub fn take_back(&self, netmem: Netmem) -> Result<Page, ReturnError> {
        let refuse = |error| {
            self.trouble.refused.fetch_add(1, Ordering::Relaxed);
            Err(error)
        };
        let from = netmem.to_word().get().wrapping_sub(self.descs.addr().get());
        let index = from / size_of::<Desc>();
        if index >= self.limit as usize || self.tagged(index as u32).netmem() != netmem {
            return refuse(ReturnError::Foreign(netmem));
        }
        let page = self.tagged(index as u32);
        // SAFETY: descriptors live as long as `self`.
        let tokens = unsafe { &page.desc().as_ref().tokens };
        let mut out = tokens.load(Ordering::Relaxed);
        while out > 0 {
            // Acquire pairs with the Release addition in `Page::into_netmem`.
            match tokens.compare_exchange(out, out - 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    self.watch(index as u32, What::TakenBack);
                    // SAFETY: each count of `tokens` stands for a reference that was given away, and we took one.
                    return Ok(unsafe { Page::from_tagged(page) });
                }
                Err(now) => out = now,
            }
        }
        let history =
            self.debug.as_ref().map(|histories| histories.of_page(index as u32)).unwrap_or_default();
        refuse(ReturnError::NotOut { netmem, history })
    }

    /// Lets drops of this thread go into the cache, or no thread's.
    pub fn bind(&self, bound: bool) {
        // Relaxed: see `owner`; only a thread's own writes matter to it.
        // In debug mode nobody is: no page ever gets into the cache.
        let owner = if bound && self.debug.is_none() { thread::number() } else { UNBOUND };
        self.owner.store(owner, Ordering::Relaxed);
    }

    /// Whether drops of a thread go into the cache. For the owner.
    pub fn is_bound(&self) -> bool {
        self.owner.load(Ordering::Relaxed) != UNBOUND
    }

    /// What was done so far. From another thread than the owner's the figures may be some steps apart.
    pub fn stats(&self) -> Stats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (fast, cached, in_cache) = self.cache.counts();
        let (ring, in_ring) = self.ring.counts();
        let slow = of(&self.counts.slow);
        Stats {
            alloc: AllocStats {
                fast,
                slow: if self.order == 0 { slow } else { 0 },
                slow_high_order: if self.order == 0 { 0 } else { slow },
                empty: of(&self.counts.empty),
                refill: of(&self.counts.refill),
                waive: of(&self.counts.waive),
            },
            recycle: RecycleStats {
                cached,
                cache_full: of(&self.counts.cache_full),
                ring,
                ring_full: of(&self.trouble.ring_full),
                released_refcnt: of(&self.trouble.released_refcnt),
            },
            trouble: TroubleStats {
                exhausted: of(&self.counts.exhausted),
                provider_failed: of(&self.counts.provider_failed),
                provider_lied: of(&self.counts.provider_lied),
                refused: of(&self.trouble.refused),
                damaged: of(&self.trouble.damaged),
            },
            in_flight: u64::from(self.in_flight()),
            in_cache,
            in_ring: in_ring + self.runs.as_ref().map_or(0, Runs::home),
        }
    }
}

/// Debug mode.
impl Shared {
    /// Notes what happens to a page.
    #[track_caller]
    pub fn watch(&self, index: u32, what: What) {
        if let Some(histories) = &self.debug {
            histories.note(index, what);
        }
    }

    /// A page is about to go out: checks that it was left alone, and marks it.
    ///
    /// # Safety
    ///
    /// The caller has the only reference.
    #[track_caller]
    pub unsafe fn watch_alloc(&self, index: u32, recycled: bool) -> Result<(), Box<Damage>> {
        let Some(histories) = &self.debug else { return Ok(()) };
        // SAFETY: ours alone, as the caller says; `free_bytes` too.
        unsafe {
            let desc = self.tagged(index).desc();
            if recycled && let Some(found) = Shared::free_bytes(desc).and_then(|bytes| debug::damage(bytes)) {
                self.trouble.damaged.fetch_add(1, Ordering::Relaxed);
                return Err(Box::new(histories.damaged(index, found)));
            }
            histories.note(index, What::Allocated);
            (*desc.as_ptr()).refs.store(REF | WATCHED, Ordering::Relaxed);
        }
        Ok(())
    }

    /// References are about to be given up: checks that they can be.
    ///
    /// # Panics
    ///
    /// When the page is free already, or has fewer references.
    ///
    /// # Safety
    ///
    /// `shared` and `desc` are valid.
    #[cold]
    pub unsafe fn watch_drop(shared: NonNull<Shared>, desc: NonNull<Desc>, refs: u64, count: u64) {
        // SAFETY: as the caller says.
        let (shared, index) = unsafe { (shared.as_ref(), (*desc.as_ptr()).index) };
        if refs & REFS < count {
            shared.given_back_twice(index);
        }
        if refs & !MARKS != count {
            shared.watch(index, What::Dropped);
        }
    }

    /// A page came home: fills it.
    ///
    /// # Safety
    ///
    /// The caller has the only reference, and nobody a slice.
    #[cold]
    pub unsafe fn watch_free(shared: NonNull<Shared>, desc: NonNull<Desc>) {
        // SAFETY: as the caller says.
        unsafe {
            let index = (*desc.as_ptr()).index;
            shared.as_ref().watch(index, What::CameHome);
            if let Some(bytes) = Shared::free_bytes(desc) {
                debug::poison(bytes);
            }
        }
    }

    /// A reference is given up of a page that is not watched, in a pool that watches all that are out.
    #[cold]
    pub fn given_back_twice(&self, index: u32) -> ! {
        let history = self.debug.as_ref().map(|histories| histories.of_page(index)).unwrap_or_default();
        panic!(
            "a reference to page {index} of pool {} was given back twice; its history:\n{history}",
            self.id
        )
    }

    /// The bytes of a host page that nobody has a reference to.
    ///
    /// # Safety
    ///
    /// The caller has the only reference, and nobody a slice, for `'a`.
    unsafe fn free_bytes<'a>(desc: NonNull<Desc>) -> Option<&'a mut [u8]> {
        // SAFETY: `base` and `len` are those of the page, see `Page::bytes`.
        unsafe {
            let (base, len) = ((*desc.as_ptr()).base, (*desc.as_ptr()).len.load(Ordering::Relaxed));
            (!base.is_null()).then(|| std::slice::from_raw_parts_mut(base, len as usize))
        }
    }
}
