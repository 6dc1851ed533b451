//! Pages for bytes that come as copies.

use crate::generation::generation;
use onecopy_pool::provider::Heap;
use onecopy_pool::{Page, PagePool, PoolConfig};
use onecopy_socket::{Error, Op, Result};
use onecopy_sync::Mutex;
use rustix::io::Errno;
use std::sync::OnceLock;

/// The size of these pages, 16 KiB, and the most of them.
const ORDER: u8 = 2;

const PAGES: u32 = 1024;

/// Pages for bytes that come as copies. They are made when the first such bytes come.
#[derive(Debug)]
pub struct Copies {
    pool: Mutex<Option<PagePool>>,
    /// The generation of the process that made the pool. At a fork another thread of that process may hold
    /// the lock, which then never opens in the child.
    generation: u32,
    /// The child's own pages.
    own: OnceLock<Box<Copies>>,
}

impl Default for Copies {
    fn default() -> Self {
        Copies { pool: Mutex::default(), generation: generation(), own: OnceLock::new() }
    }
}

impl Copies {
    /// Returns a page that nobody else has.
    pub fn page(&self) -> Result<Page> {
        if self.generation != generation() {
            return self.own.get_or_init(Box::default).page();
        }
        let mut pool = self.pool.lock();
        if pool.is_none() {
            let config = PoolConfig::new().order(ORDER).limit(PAGES).ring(PAGES);
            let made = PagePool::new(config, Heap::new());
            *pool = Some(made.map_err(|refused| Error::new(Op::Recv, refused.errno()))?);
        }
        let page = pool.as_ref().and_then(|pool| pool.alloc().ok());
        page.ok_or(Error::new(Op::Recv, Errno::NOBUFS).because(
            "received chains hold all the pages that there are for copies; drop some of them, or receive into a buffer",
        ))
    }
}

#[cfg(test)]
impl Copies {
    /// Runs `meanwhile` with the lock held, as a thread holds it that is making the pool.
    pub fn keep_locked(&self, meanwhile: impl FnOnce()) {
        let _pool = self.pool.lock();
        meanwhile();
    }
}
