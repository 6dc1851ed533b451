//! Whom a pool is for.
//!
//! The memory of a shared pool belongs to one peer's trust domain. Who has a page of it, in a loan or in a chain that went
//! through many hands, finds out which: it is its provider that knows.

use crate::byref::lender::Lender;
use crate::multiprocess::generation::generation;
use onecopy_pool::provider::{About, Batch, Memfd, Need, ProviderError};
use onecopy_pool::{Area, MemoryProvider, Page};
use onecopy_sync::atomic::{AtomicU32, Ordering::Relaxed};
use rustix::fd::BorrowedFd;
use std::any::Any;
use std::sync::{Arc, OnceLock, Weak};

/// What is lent of a pool, in the hands of who owns the pool.
pub type Keeper = OnceLock<Arc<Lender>>;

/// A sealed memfd, and the stream that its pages go over.
#[derive(Debug)]
pub struct Domain {
    memory: Memfd,
    /// Pages, and bytes in one.
    size: OnceLock<(u64, u64)>,
    bound: OnceLock<Bound>,
    keeper: Weak<Keeper>,
    /// 1 once its owner has written to a page.
    written: AtomicU32,
    /// Of the process that made it.
    generation: u32,
}

/// The stream that a pool is for.
#[derive(Debug)]
pub struct Bound {
    /// Not kept from here: it keeps the pages that are lent, and they keep their provider.
    lender: Weak<Lender>,
    /// What references call the pool.
    pub name: u32,
}

impl Bound {
    /// Whether it is this one's.
    #[inline]
    pub fn is_of(&self, lender: &Arc<Lender>) -> bool {
        std::ptr::eq(self.lender.as_ptr(), Arc::as_ptr(lender))
    }
}

impl Domain {
    /// For one pool, whose owner has `keeper`.
    pub fn new(keeper: &Arc<Keeper>) -> Arc<Domain> {
        Arc::new(Domain {
            memory: Memfd::default(),
            size: OnceLock::new(),
            bound: OnceLock::new(),
            keeper: Arc::downgrade(keeper),
            written: AtomicU32::new(0),
            generation: generation(),
        })
    }

    /// Whether this process has made it.
    #[inline]
    pub fn is_own(&self) -> bool {
        self.generation == generation()
    }

    /// Of a page; None where its pool is no shared one.
    #[inline]
    pub fn of(page: &Page) -> Option<&Domain> {
        let provider: &dyn Any = page.provider();
        provider.downcast_ref()
    }

    /// The stream that it is for, if it was sent over one.
    #[inline]
    pub fn bound(&self) -> Option<&Bound> {
        self.bound.get()
    }

    /// Binds it. None where it was bound to another stream meanwhile.
    pub fn bind(&self, lender: &Arc<Lender>, name: u32) -> Option<&Bound> {
        self.bound.set(Bound { lender: Arc::downgrade(lender), name }).ok()?;
        // Without an owner nobody will write a page of it again: who keeps what is lent then is the stream.
        if let Some(keeper) = self.keeper.upgrade() {
            let _ = keeper.set(lender.clone());
        }
        self.bound.get()
    }

    /// Its owner writes to a page.
    #[inline]
    pub fn write(&self) {
        // Relaxed, here and there: a hint.
        self.written.store(1, Relaxed);
    }

    /// Whether its owner has written to a page.
    pub fn is_written(&self) -> bool {
        self.written.load(Relaxed) != 0
    }

    /// Pages.
    pub fn pages(&self) -> u64 {
        self.size.get().map_or(0, |(pages, _)| *pages)
    }

    /// Bytes of a page.
    pub fn page_len(&self) -> u64 {
        self.size.get().map_or(0, |(_, page_len)| *page_len)
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.pages() * self.page_len()
    }
}

impl MemoryProvider for Domain {
    fn init(&self, need: &Need) -> Result<Area, ProviderError> {
        let area = self.memory.init(need)?;
        self.size
            .set((u64::from(need.pages), u64::from(need.page_len)))
            .map_err(|_| ProviderError::busy())?;
        Ok(area)
    }

    fn alloc_netmems(&self, batch: &mut Batch<'_>) -> Result<(), ProviderError> {
        self.memory.alloc_netmems(batch)
    }

    fn release_netmem(&self, index: u32) {
        self.memory.release_netmem(index);
    }

    fn about(&self) -> About {
        About { name: "shared", ..self.memory.about() }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.memory.fd()
    }
}
