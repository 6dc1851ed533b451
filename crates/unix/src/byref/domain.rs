//! The peer that a shared pool is for.
//!
//! The memory of a shared pool belongs to the trust domain of one peer. A page of it may be in a loan, or in
//! a chain that went through many hands. Its provider, which is this domain, tells which peer it is for.

use crate::byref::lender::Lender;
use crate::generation::generation;
use onecopy_pool::provider::{About, Batch, Memfd, Need, ProviderError};
use onecopy_pool::{Area, MemoryProvider, Page};
use onecopy_sync::atomic::{AtomicU32, Ordering::Relaxed};
use rustix::fd::BorrowedFd;
use std::any::Any;
use std::sync::{Arc, OnceLock, Weak};

/// What is lent of a pool. The pool's owner has it.
pub type Keeper = OnceLock<Arc<Lender>>;

/// A sealed memfd, and the stream that its pages go over.
#[derive(Debug)]
pub struct Domain {
    memory: Memfd,
    /// The number of pages, and bytes in one.
    size: OnceLock<(u64, u64)>,
    bound: OnceLock<Bound>,
    keeper: Weak<Keeper>,
    /// 1 once the owner has written to a page.
    written: AtomicU32,
    /// The generation of the process that made it.
    generation: u32,
}

/// The stream that a pool is for.
#[derive(Debug)]
pub struct Bound {
    /// Weak: the lender keeps the pages that are lent, and they keep their provider.
    lender: Weak<Lender>,
    /// The pool's name in references.
    name: u32,
}

impl Bound {
    /// Returns the pool's name in references.
    #[inline]
    pub fn name(&self) -> u32 {
        self.name
    }

    /// Whether the pool is bound to that lender's stream.
    #[inline]
    pub fn is_of(&self, lender: &Arc<Lender>) -> bool {
        std::ptr::eq(self.lender.as_ptr(), Arc::as_ptr(lender))
    }
}

impl Domain {
    /// Makes the domain of one pool, whose owner has `keeper`.
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

    /// Returns the domain of a page; None if its pool is not a shared one.
    #[inline]
    pub fn of(page: &Page) -> Option<&Domain> {
        let provider: &dyn Any = page.provider();
        provider.downcast_ref()
    }

    /// Returns the stream that the pool is for, if it was sent over one.
    #[inline]
    pub fn bound(&self) -> Option<&Bound> {
        self.bound.get()
    }

    /// Binds the pool. Returns None if it was bound to another stream meanwhile.
    pub fn bind(&self, lender: &Arc<Lender>, name: u32) -> Option<&Bound> {
        self.bound.set(Bound { lender: Arc::downgrade(lender), name }).ok()?;
        // Without an owner nobody will write a page of it again. Then the stream keeps what is lent.
        if let Some(keeper) = self.keeper.upgrade() {
            let _ = keeper.set(lender.clone());
        }
        self.bound.get()
    }

    /// Notes that the owner writes to a page.
    #[inline]
    pub fn write(&self) {
        // Relaxed, here and in `is_written`: a hint.
        self.written.store(1, Relaxed);
    }

    /// Whether the owner has written to a page.
    pub fn is_written(&self) -> bool {
        self.written.load(Relaxed) != 0
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> u64 {
        self.size.get().map_or(0, |(pages, _)| *pages)
    }

    /// Returns the bytes of a page.
    pub fn page_len(&self) -> u64 {
        self.size.get().map_or(0, |(_, page_len)| *page_len)
    }

    /// Returns the bytes of all pages.
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
