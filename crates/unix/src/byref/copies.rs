//! Pages for what comes as copies.

use crate::multiprocess::generation::generation;
use crate::{Error, Op, Result};
use onecopy_pool::provider::Heap;
use onecopy_pool::{Page, PagePool, PoolConfig};
use onecopy_sync::Mutex;
use rustix::io::Errno;
use std::sync::OnceLock;

/// Pages for what comes as copies: of 16 KiB, and so many of them at most.
const ORDER: u8 = 2;

const PAGES: u32 = 1024;

/// Pages for what comes as copies, made when the first one does.
#[derive(Debug)]
pub struct Copies {
    pool: Mutex<Option<PagePool>>,
    /// Of the process that made it: at a fork another thread of that may hold the lock, which then never opens in the child.
    generation: u32,
    /// A child's own.
    own: OnceLock<Box<Copies>>,
}

impl Default for Copies {
    fn default() -> Self {
        Copies { pool: Mutex::default(), generation: generation(), own: OnceLock::new() }
    }
}

impl Copies {
    /// A page of ours alone.
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
    /// As a thread that is just making the pool.
    pub fn keep_locked(&self, meanwhile: impl FnOnce()) {
        let _pool = self.pool.lock();
        meanwhile();
    }
}
