//! The pool, and pages on loan to their writer.

use super::Lender;
use super::lender::Lot;
use crate::{Error, Op, Result};
use onecopy_chain::notify::{Fate, Lane, NotifRef, Refused, Segment};
use onecopy_pool::provider::Memfd;
use onecopy_pool::{MemoryProvider, Page, PagePool, PoolConfig};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Longest sleep for a page before it is looked whether the peer lives.
const LONGEST_SLEEP: Duration = Duration::from_millis(40);
/// Sleep where there is nobody who could wake.
const NAP: Duration = Duration::from_millis(1);

/// Pages of shared memory, to be sent by reference over one stream ([`crate::Stream::send_loan`]).
///
/// It is bound to the stream on which its first page is sent: from then on that peer may look at all of it, at any time.
/// So use a pool of its own for each peer, and write nothing into it that the peer must not see.
///
/// It can be sent to another thread, not shared between threads; loans can go anywhere.
#[derive(Debug)]
pub struct SharedPool {
    pool: PagePool,
    shared: Arc<Shared>,
}

/// What a loan knows of its pool.
pub struct Shared {
    provider: Arc<dyn MemoryProvider>,
    pub page_len: u64,
    pub pages: u64,
    pub bound: OnceLock<Bound>,
}

/// Whom a pool is for.
#[derive(Debug)]
pub struct Bound {
    pub lender: Arc<Lender>,
    /// What references call it.
    pub name: u32,
}

impl Shared {
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.provider.fd()
    }

    pub fn bytes(&self) -> u64 {
        self.page_len * self.pages
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("pages", &self.pages)
            .field("bound", &self.bound)
            .finish_non_exhaustive()
    }
}

fn error(errno: Errno) -> Error {
    Error::new(Op::Loan, errno)
}

impl SharedPool {
    /// A pool of `pages` pages of at least `page_len` bytes (a power of two, 4 KiB or more, is what they get). Memory is
    /// taken page by page as it is written to.
    ///
    /// # Errors
    ///
    /// EINVAL for sizes that cannot be; what memfd_create(2), ftruncate(2) and mmap(2) say.
    pub fn new(page_len: usize, pages: usize) -> Result<SharedPool> {
        let wrong = || {
            error(Errno::INVAL)
                .because("a pool has 1 to 2^30 pages of 1 byte to 1 GiB; choose sizes in that range")
        };
        if page_len == 0 || page_len > 1 << 30 || pages == 0 {
            return Err(wrong());
        }
        let order = page_len.next_power_of_two().max(4096).trailing_zeros() - 12;
        let count = u32::try_from(pages).map_err(|_| wrong())?;
        let ring = count.next_power_of_two().min(PoolConfig::MAX_RING);
        let provider: Arc<dyn MemoryProvider> = Memfd::new();
        let config = PoolConfig::new().order(order as u8).limit(count).ring(ring);
        let pool = PagePool::new(config, provider.clone()).map_err(|refused| match refused {
            onecopy_pool::OpenError::Provider(why) => {
                error(why.errno()).because("no shared memory for the pool; a smaller one may do")
            }
            _ => wrong(),
        })?;
        let shared = Shared {
            provider,
            page_len: u64::from(pool.page_len()),
            pages: u64::from(pool.limit()),
            bound: OnceLock::new(),
        };
        Ok(SharedPool { pool, shared: Arc::new(shared) })
    }

    /// Bytes in a page.
    pub fn page_len(&self) -> usize {
        self.shared.page_len as usize
    }

    /// Pages in all.
    pub fn pages(&self) -> usize {
        self.shared.pages as usize
    }

    /// Pages that are with the peer, as far as is known.
    pub fn lent(&self) -> usize {
        self.shared.bound.get().map_or(0, |bound| bound.lender.lent())
    }

    /// A page to write `len` bytes into and to send. What is in it is what was in it last.
    ///
    /// # Errors
    ///
    /// EMSGSIZE where `len` is more than a page; EAGAIN while all pages are with the peer, on loan, or on their way back:
    /// [`SharedPool::loan_within`] waits.
    #[inline]
    pub fn loan(&self, len: usize) -> Result<Loan> {
        if len > self.page_len() {
            return Err(error(Errno::MSGSIZE)
                .because("a loan has at most one page; send several, or make larger pages"));
        }
        match self.pool.alloc() {
            Ok(page) => Ok(self.hand_out(page, len)),
            Err(_) => self.loan_slow(len),
        }
    }

    /// As [`SharedPool::loan`], waiting for a page at most `limit`.
    ///
    /// # Errors
    ///
    /// As [`SharedPool::loan`]; EAGAIN after `limit`.
    pub fn loan_within(&self, len: usize, limit: Duration) -> Result<Loan> {
        let began = Instant::now();
        loop {
            match self.loan(len) {
                Err(error) if error.would_block() => {
                    let left = onecopy_sync::clock::remaining(began, limit).ok_or(error)?;
                    match self.shared.bound.get() {
                        Some(bound) => bound.lender.sleep(left.min(LONGEST_SLEEP)),
                        None => std::thread::sleep(left.min(NAP)),
                    }
                }
                other => return other,
            }
        }
    }

    #[inline]
    fn hand_out(&self, page: Page, len: usize) -> Loan {
        Loan { page, start: 0, len, pool: self.shared.clone(), notif: None }
    }

    #[cold]
    fn loan_slow(&self, len: usize) -> Result<Loan> {
        if self.reclaim()? == 0
            && let Some(bound) = self.shared.bound.get()
        {
            bound.lender.collect_if_gone();
        }
        match self.pool.alloc() {
            Ok(page) => Ok(self.hand_out(page, len)),
            Err(onecopy_pool::AllocError::Exhausted { .. }) => Err(error(Errno::AGAIN)
                .because("all pages are in use; wait for the peer to be done with one, or make more pages")),
            Err(_) => Err(error(Errno::NOMEM)),
        }
    }

    /// Takes home what the peer is done with; loans do so when they run out of pages. Returns how many pages came.
    ///
    /// # Errors
    ///
    /// EPROTO where the peer gave back what it was not lent.
    pub fn reclaim(&self) -> Result<usize> {
        let Some(bound) = self.shared.bound.get() else { return Ok(0) };
        bound.lender.collect(|page| self.pool.recycle(page)).map_err(|_| {
            error(Errno::PROTO)
                .because("the peer gave back a page that it does not have; its connection is lost")
        })
    }
}

impl SharedPool {
    /// If the peer is gone: takes all pages home that it had. Loans do so when they run out of pages. Returns how many
    /// pages came.
    pub fn reclaim_if_gone(&self) -> usize {
        self.shared.bound.get().map_or(0, |bound| bound.lender.collect_if_gone())
    }
}

/// A page to be written and sent: [`SharedPool::loan`]. Dropped unsent it goes back to the pool.
pub struct Loan {
    page: Page,
    start: usize,
    len: usize,
    pool: Arc<Shared>,
    notif: Option<NotifRef>,
}

impl Loan {
    /// Makes a send of it one of `lane`, which is told once when the page is the pool's again, and how: exactly one
    /// completion, that says `copied` where the bytes had to be copied, and `dropped` where the loan was dropped unsent or
    /// the peer went away with it. It comes when the pool takes the page home ([`SharedPool::reclaim`], or a loan that
    /// wants a page). Returns the send's number.
    ///
    /// # Errors
    ///
    /// [`Refused`]: nothing was done.
    pub fn notify(&mut self, lane: &mut Lane, user_data: u64) -> std::result::Result<u64, Refused> {
        let mut segment = Segment::from_parts((), self.notif.take());
        let told = lane.send(&mut segment, user_data, self.len as u32, 0);
        self.notif = segment.into_parts().1;
        told
    }

    /// Sends no more than the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Sends all but the first `count` bytes.
    pub fn advance(&mut self, count: usize) {
        let count = count.min(self.len);
        self.start += count;
        self.len -= count;
    }

    pub(crate) fn pool(&self) -> &Arc<Shared> {
        &self.pool
    }

    pub(crate) fn page(&self) -> u32 {
        self.page.index()
    }

    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// All of it was sent, as a copy.
    pub(crate) fn was_copied(mut self) {
        if let Some(notif) = &mut self.notif {
            notif.set_fate(Fate::Copied);
        }
    }

    pub(crate) fn into_lot(self) -> Lot {
        Lot { page: self.page, notif: self.notif }
    }
}

impl Deref for Loan {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        let bytes = self.page.bytes().expect("a memfd that this process owns is host memory");
        &bytes[self.start..self.start + self.len]
    }
}

impl DerefMut for Loan {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.page.bytes_mut().expect("a page on loan has one reference, in host memory");
        &mut bytes[self.start..self.start + self.len]
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").field("page", &self.page).field("len", &self.len).finish_non_exhaustive()
    }
}
