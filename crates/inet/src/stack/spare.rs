//! Pages that what has come is copied together in, where a connection has more of them than its buffer allows
//! (docs/decisions/0044).

use onecopy_pool::provider::Heap;
use onecopy_pool::{AllocError, Page, PagePool, Pages, PoolConfig};
use std::cell::OnceCell;

/// Bytes of a page: the smallest there are, so that little is little.
const PAGE: u32 = 4096;
/// The most of them: 256 MiB.
const MOST: u32 = 1 << 16;

/// A pool that is made with the first page that somebody asks for. What lies in its pages is charged as what came.
#[derive(Debug, Default)]
pub(super) struct Spare {
    pool: OnceCell<PagePool>,
    limit: u32,
}

impl Spare {
    /// For connections that keep at most `memory` bytes together.
    pub fn new(memory: u64) -> Spare {
        let limit = (memory / u64::from(PAGE)).clamp(1, MOST.into()) as u32;
        Spare { pool: OnceCell::new(), limit }
    }

    /// Gives its memory back, if nobody uses any.
    pub fn rest(&mut self) {
        let idle = |pool: &PagePool| {
            let stats = pool.stats();
            stats.in_flight == stats.in_cache + stats.in_ring
        };
        if self.pool.get().is_some_and(idle) {
            self.pool = OnceCell::new();
        }
    }

    fn pool(&self) -> Result<&PagePool, AllocError> {
        if let Some(pool) = self.pool.get() {
            return Ok(pool);
        }
        // Who asks copies in order to save memory, and does without where there is none.
        let pool = PagePool::new(PoolConfig::new().limit(self.limit), Heap::new());
        let pool = pool.map_err(|_| AllocError::Exhausted { limit: self.limit })?;
        Ok(self.pool.get_or_init(|| pool))
    }
}

impl Pages for Spare {
    fn alloc(&self) -> Result<Page, AllocError> {
        self.pool()?.alloc()
    }

    fn page_len(&self) -> u32 {
        PAGE
    }
}
