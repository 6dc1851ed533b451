//! Pages for threads that do not own the pool.

use crate::error::AllocError;
use crate::page::Page;
use crate::pool::{Monitor, PagePool};
use crate::region::Region;
use onecopy_sync::Mutex;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

/// Where pages to be filled come from: a pool in its owner's hands, or a [`Reservoir`].
pub trait Pages {
    /// A page.
    ///
    /// # Errors
    ///
    /// As [`PagePool::alloc`].
    fn alloc(&self) -> Result<Page, AllocError>;

    /// A page for the first of `len` bytes that are to be written: a larger one for more of them, where there are several sizes.
    ///
    /// # Errors
    ///
    /// As [`PagePool::alloc`].
    #[inline]
    #[track_caller]
    fn alloc_for(&self, len: usize) -> Result<Page, AllocError> {
        let _ = len;
        self.alloc()
    }

    /// Bytes in a page.
    fn page_len(&self) -> u32;
}

impl Pages for PagePool {
    #[inline]
    #[track_caller]
    fn alloc(&self) -> Result<Page, AllocError> {
        PagePool::alloc(self)
    }

    fn page_len(&self) -> u32 {
        PagePool::page_len(self)
    }
}

/// A pool that belongs to no thread: any draws pages from it, many at a time, into a [`Reservoir`] of its own. So a page costs the lock
/// only once in a batch, and none that comes home: it does so through the ring, from wherever it is dropped.
///
/// (A [`PagePool`] is its owner's alone. The threads of an application, who fill pages for a stack that runs elsewhere, have one of these
/// beside the stack's: for chains that they fill at any time, and send by reference. A socket of `onecopy-net` draws without one: who sends
/// or reserves has the lock of its shard for that in any case, takes all pages of the call under it at once, and gets those that were
/// freed last, which are warm. A store of each thread's would save no lock there, and keep pages from the others.)
#[derive(Clone)]
pub struct CommonPool {
    pool: Arc<Mutex<PagePool>>,
    /// Asked without the lock.
    monitor: Monitor,
    page_len: u32,
}

impl CommonPool {
    /// Gives `pool` to all threads.
    pub fn new(pool: PagePool) -> CommonPool {
        CommonPool { monitor: pool.monitor(), page_len: pool.page_len(), pool: Arc::new(Mutex::new(pool)) }
    }

    /// A thread's own store of at most `bound` pages, at least 1: it draws so many at once. With `n` threads up to `n * bound` pages lie idle
    /// while another thread is told that there are none.
    pub fn reservoir(&self, bound: usize) -> Reservoir {
        Reservoir { of: self.clone(), bound: bound.max(1), pages: Cell::default() }
    }

    /// Statistics, and plain references to take back.
    pub fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// As [`PagePool::region`].
    pub fn region(&self) -> Option<Region> {
        Region::of(self.monitor.clone())
    }

    /// Draws up to `count` pages.
    #[track_caller]
    fn draw(&self, count: usize, into: &mut Vec<Page>) -> Result<(), AllocError> {
        let pool = self.pool.lock();
        for n in 0..count {
            match pool.alloc() {
                Ok(page) => into.push(page),
                Err(_) if n > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl fmt::Debug for CommonPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CommonPool").field(&self.monitor).finish()
    }
}

/// A thread's own store of pages of a [`CommonPool`]: it can be sent to another thread, not shared. What is in it goes back when it is
/// dropped.
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<onecopy_pool::Reservoir>();
/// ```
pub struct Reservoir {
    of: CommonPool,
    bound: usize,
    /// Invariant: at most `bound`, each the only reference.
    pages: Cell<Vec<Page>>,
}

impl Reservoir {
    /// Pages that lie here.
    pub fn len(&self) -> usize {
        self.with(|pages| pages.len())
    }

    /// Whether none lies here: the next one is drawn.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keeps a page that was not needed after all, if it has no other holder and there is room; else it goes home.
    pub fn recycle(&self, page: Page) {
        if page.pool_id() == self.of.monitor.pool_id() && page.is_unique() {
            self.with(|pages| {
                if pages.len() < self.bound {
                    pages.push(page);
                }
            });
        }
    }

    /// Gives all that lies here back.
    pub fn clear(&self) {
        let pages = self.pages.take();
        if !pages.is_empty() {
            let pool = self.of.pool.lock();
            pages.into_iter().for_each(|page| pool.recycle(page));
        }
    }

    fn with<R>(&self, act: impl FnOnce(&mut Vec<Page>) -> R) -> R {
        let mut pages = self.pages.take();
        let result = act(&mut pages);
        self.pages.set(pages);
        result
    }
}

impl Pages for Reservoir {
    #[inline]
    #[track_caller]
    fn alloc(&self) -> Result<Page, AllocError> {
        self.with(|pages| {
            if pages.is_empty() {
                self.of.draw(self.bound, pages)?;
            }
            Ok(pages.pop().expect("at least one was drawn"))
        })
    }

    fn page_len(&self) -> u32 {
        self.of.page_len
    }
}

impl Drop for Reservoir {
    fn drop(&mut self) {
        self.clear();
    }
}

impl fmt::Debug for Reservoir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservoir({} of {} pages, of {:?})", self.len(), self.bound, self.of)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::PoolConfig;
    use crate::provider::Heap;

    fn common(pages: u32) -> CommonPool {
        CommonPool::new(PagePool::new(PoolConfig::new().limit(pages), Heap::new()).unwrap())
    }

    /// Pages that somebody holds.
    fn out(pool: &CommonPool) -> u64 {
        let stats = pool.monitor().stats();
        stats.in_flight - stats.in_cache - stats.in_ring
    }

    #[test]
    fn pages_are_drawn_in_batches_and_go_back() {
        let pool = common(20);
        let reservoir = pool.reservoir(8);
        assert_eq!((reservoir.len(), reservoir.page_len()), (0, 4096));
        let page = reservoir.alloc().unwrap();
        assert_eq!((reservoir.len(), out(&pool)), (7, 8));
        let shared = page.clone();
        reservoir.recycle(shared);
        assert_eq!(reservoir.len(), 7, "somebody else has it");
        reservoir.recycle(page);
        reservoir.recycle(common(1).reservoir(1).alloc().unwrap());
        assert_eq!((reservoir.len(), out(&pool)), (8, 8), "not another pool's");
        let more: Vec<_> = (0..9).map(|_| reservoir.alloc().unwrap()).collect();
        assert_eq!((reservoir.len(), out(&pool)), (7, 16));
        more.into_iter().for_each(|page| reservoir.recycle(page));
        assert_eq!((reservoir.len(), out(&pool)), (8, 8), "no more than its bound");
        drop(reservoir);
        assert_eq!(out(&pool), 0);
    }

    #[test]
    fn what_lies_idle_elsewhere_is_bounded() {
        let pool = common(10);
        let (one, two) = (pool.reservoir(4), pool.reservoir(0));
        let held: Vec<_> = (0..4).map(|_| one.alloc().unwrap()).collect();
        let _fifth = one.alloc().unwrap();
        assert_eq!((one.len(), out(&pool)), (3, 8));
        let _last = [two.alloc().unwrap(), two.alloc().unwrap()];
        assert_eq!(two.alloc().unwrap_err(), AllocError::Exhausted { limit: 10 });
        one.clear();
        assert!(two.alloc().is_ok(), "what was idle");
        // A batch that cannot be had whole is what there is of it.
        drop(held);
        let three = pool.reservoir(100);
        assert!(three.alloc().is_ok());
        assert_eq!(three.len() as u64 + 3, out(&pool));
    }

    #[test]
    fn threads_fill_pages_that_another_one_frees() {
        let pool = common(64);
        let (send, receive) = std::sync::mpsc::sync_channel::<Page>(16);
        std::thread::scope(|scope| {
            for thread in 0..3u8 {
                let (send, reservoir) = (send.clone(), pool.reservoir(8));
                scope.spawn(move || {
                    for _ in 0..2000 {
                        let mut page = loop {
                            match reservoir.alloc() {
                                Ok(page) => break page,
                                Err(error) => assert_eq!(error, AllocError::Exhausted { limit: 64 }),
                            }
                            std::thread::yield_now();
                        };
                        page.bytes_mut().unwrap()[..64].fill(thread);
                        send.send(page).unwrap();
                    }
                });
            }
            drop(send);
            let mut seen = [0; 3];
            for page in receive {
                let bytes = &page.bytes().unwrap()[..64];
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "two had it at once");
                seen[bytes[0] as usize] += 1;
            }
            assert_eq!(seen, [2000; 3]);
        });
        assert_eq!(out(&pool), 0);
        let monitor = pool.monitor().clone();
        drop(pool);
        assert_eq!(monitor.in_flight(), 0);
    }
}
