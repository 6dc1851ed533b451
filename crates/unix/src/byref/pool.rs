//! The pool, and pages on loan to their writer.

use crate::byref::domain::{Domain, Keeper};
use crate::byref::lender::Lender;
use crate::generation::generation;
use onecopy_chain::notify::{Fate, Lane, NotifRef, Refused, Segment};
use onecopy_chain::{Chain, Fragment, Writer};
use onecopy_pool::provider::Heap;
use onecopy_pool::{Page, PagePool, PoolConfig};
use onecopy_socket::{Error, Op, Result};
use rustix::io::Errno;
use std::cell::{Cell, OnceCell};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest sleep for a page before the pool looks whether the peer lives.
const LONGEST_SLEEP: Duration = Duration::from_millis(40);
/// Bytes that pages may go through before the pool looks for one that came back and is still in the caches:
/// half of a small second-level cache.
const WARM: u64 = 512 << 10;
/// The sleep if nobody could wake the pool.
const NAP: Duration = Duration::from_millis(1);

/// Pages of shared memory, to be sent by reference over one stream. They are sent alone
/// ([`SharedPool::loan`], [`crate::Stream::send_loan`]), or as chains of parts of them
/// ([`SharedPool::writer`], [`crate::Stream::send_chain`]).
///
/// ```
/// use onecopy_unix::{SharedPool, Stream};
///
/// # fn main() -> onecopy_unix::Result<()> {
/// let (a, b) = Stream::pair()?;
/// let pool = SharedPool::new(1 << 20, 2)?;
/// let mut page = pool.loan(1 << 20)?;
/// page.fill(7); // written in place
/// a.send_loan(page)?; // at a cost that does not depend on its size
/// let view = b.recv_borrowed(1 << 20)?;
/// assert_eq!((view.len(), pool.lent()), (1 << 20, 1));
/// drop(view);
/// assert_eq!(pool.reclaim()?, 1);
/// # Ok(())
/// # }
/// ```
///
/// The pool is bound to the stream on which its first page is sent. From then on that peer may read all of
/// it, at any time. So use a pool of its own for each peer, and write nothing into it that the peer must not
/// see.
///
/// It can be sent to another thread, but not shared between threads; loans and chains can go anywhere. It
/// belongs to the process that made it: a forked child does not have its memory (MADV_DONTFORK). In the child
/// the pool lends nothing, and what was lent is not sent (EBUSY). Reading the bytes of an inherited loan or
/// chain there ends the child with SIGSEGV.
#[derive(Debug)]
pub struct SharedPool {
    pool: PagePool,
    /// What is lent, once something was. Pages refer to it weakly, since what is lent keeps them.
    keeper: Arc<Keeper>,
    domain: Arc<Domain>,
    /// Loans since the last look at what came back, and how many are worth a look: pages for `WARM` bytes.
    since: Cell<u64>,
    warm: u64,
    generation: u32,
    /// The pool of which writers in a forked child take pages.
    childs: OnceCell<PagePool>,
}

fn error(errno: Errno) -> Error {
    Error::new(Op::Loan, errno)
}

#[cold]
fn inherited() -> Error {
    error(Errno::BUSY).because("this pool was made before a fork, and is the parent's; make one in the child")
}

impl SharedPool {
    /// Makes a pool of `pages` pages of at least `page_len` bytes. The pages get the next power of two, and
    /// at least 4 KiB. Memory is taken page by page as it is written to.
    ///
    /// # Errors
    ///
    /// EINVAL for impossible sizes; what memfd_create(2), ftruncate(2) and mmap(2) return.
    pub fn new(page_len: usize, pages: usize) -> Result<SharedPool> {
        let wrong = || {
            error(Errno::INVAL)
                .about("page_len, pages")
                .because("a pool has 1 to 2^30 pages of 1 byte to 1 GiB; choose sizes in that range")
        };
        if page_len == 0 || page_len > 1 << 30 || pages == 0 {
            return Err(wrong());
        }
        let order = page_len.next_power_of_two().max(4096).trailing_zeros() - 12;
        let count = u32::try_from(pages).map_err(|_| wrong())?;
        let ring = count.next_power_of_two().min(PoolConfig::MAX_RING);
        let keeper = Arc::new(Keeper::default());
        let domain = Domain::new(&keeper);
        let config = PoolConfig::new().order(order as u8).limit(count).ring(ring);
        let pool = PagePool::new(config, domain.clone()).map_err(|refused| match refused {
            onecopy_pool::OpenError::Provider(why) => {
                error(why.errno()).because("no shared memory for the pool; a smaller one may do")
            }
            _ => wrong(),
        })?;
        let warm = (WARM / u64::from(pool.page_len())).max(1);
        let (since, generation) = (Cell::new(0), generation());
        Ok(SharedPool { pool, keeper, domain, since, warm, generation, childs: OnceCell::new() })
    }

    /// Fails in a forked child, since the parent hands out the same pages.
    #[inline]
    fn check(&self) -> Result<()> {
        if self.generation == generation() { Ok(()) } else { Err(inherited()) }
    }

    fn lender(&self) -> Option<&Arc<Lender>> {
        self.keeper.get()
    }

    /// Returns the bytes in a page.
    pub fn page_len(&self) -> usize {
        self.pool.page_len() as usize
    }

    /// Returns the number of all pages.
    pub fn pages(&self) -> usize {
        self.pool.limit() as usize
    }

    /// Returns how many pages the peer has, as far as is known.
    pub fn lent(&self) -> usize {
        self.lender().filter(|lender| lender.is_own()).map_or(0, |lender| lender.lent())
    }

    /// Returns a page to write `len` bytes into and to send. It holds whatever was in it last.
    ///
    /// # Errors
    ///
    /// EBUSY in a child of the process that made the pool; EMSGSIZE if `len` is more than a page; EAGAIN
    /// while all pages are with the peer, on loan, or on their way back: [`SharedPool::loan_within`] waits.
    #[inline]
    pub fn loan(&self, len: usize) -> Result<Loan> {
        self.check()?;
        if len > self.page_len() {
            return Err(error(Errno::MSGSIZE)
                .about("len")
                .because("a loan has at most one page; send several, or make larger pages"));
        }
        if self.since.get() >= self.warm {
            self.keep_warm()?;
        }
        self.since.set(self.since.get() + 1);
        match self.pool.alloc() {
            Ok(page) => Ok(self.hand_out(page, len)),
            Err(_) => self.loan_slow(len),
        }
    }

    /// Takes home what is back, if somebody reads or writes the bytes. Such a page is handed out next, and is
    /// still in the caches of its last user. If nobody does, the look costs more than it gains: the line with
    /// the bits comes from the peer's cache.
    #[cold]
    fn keep_warm(&self) -> Result<()> {
        self.since.set(0);
        if self.domain.is_written() || self.lender().is_some_and(|lender| lender.is_looked_at()) {
            self.reclaim()?;
        }
        Ok(())
    }

    /// As [`SharedPool::loan`], and waits for a page at most `limit`.
    ///
    /// # Errors
    ///
    /// As [`SharedPool::loan`]; EAGAIN after `limit`.
    #[inline]
    pub fn loan_within(&self, len: usize, limit: Duration) -> Result<Loan> {
        match self.loan(len) {
            Err(error) if error.would_block() => self.wait_for_loan(len, limit, error),
            other => other,
        }
    }

    /// Only a call that has to wait reads the clock, since that takes as long as half of a loan.
    #[cold]
    fn wait_for_loan(&self, len: usize, limit: Duration, mut error: Error) -> Result<Loan> {
        let began = Instant::now();
        loop {
            self.sleep(onecopy_sync::clock::remaining(began, limit).ok_or(error)?);
            match self.loan(len) {
                Err(again) if again.would_block() => error = again,
                other => return other,
            }
        }
    }

    #[inline]
    fn hand_out(&self, page: Page, len: usize) -> Loan {
        Loan { page, start: 0, len, notif: None }
    }

    #[cold]
    fn loan_slow(&self, len: usize) -> Result<Loan> {
        if self.reclaim()? == 0 {
            self.reclaim_if_gone();
        }
        match self.pool.alloc() {
            Ok(page) => Ok(self.hand_out(page, len)),
            Err(onecopy_pool::AllocError::Exhausted { .. }) => Err(error(Errno::AGAIN)
                .because("all pages are in use; wait for the peer to be done with one, or make more pages")),
            Err(_) => Err(error(Errno::NOMEM)),
        }
    }

    /// Sleeps until a page comes back, or a moment.
    fn sleep(&self, left: Duration) {
        match self.lender() {
            Some(lender) => lender.sleep(left.min(LONGEST_SLEEP)),
            None => std::thread::sleep(left.min(NAP)),
        }
    }

    /// Returns a writer, which fills chains with pages of this pool by copying or reading
    /// ([`Writer::append`], [`Writer::read_from`]). The chains are sent by reference with
    /// [`crate::Stream::send_chain`]. This first takes home what the peer is done with. If the writer finds
    /// no page ([`NoPage`](onecopy_chain::ChainError::NoPage)), [`SharedPool::reclaim_within`] waits for
    /// some.
    ///
    /// In a child of the process that made the pool, the writer takes pages of the child's own, which are
    /// sent as copies.
    pub fn writer(&self) -> Writer<'_> {
        if self.check().is_err() {
            return Writer::new(self.childs.get_or_init(|| {
                let config = PoolConfig::new()
                    .order(self.pool.page_len().trailing_zeros() as u8 - 12)
                    .limit(self.pool.limit());
                PagePool::new(config, Arc::new(Heap::default())).expect("as large as one that there is")
            }));
        }
        // The next call on the socket tells of misbehaviour that is found here.
        let _ = self.reclaim();
        Writer::new(&self.pool)
    }

    /// Takes home what the peer is done with. Loans do so when they run out of pages. Returns how many pages
    /// came.
    ///
    /// # Errors
    ///
    /// EPROTO if the peer gave back what it was not lent; EBUSY in a child of the process that made the pool.
    pub fn reclaim(&self) -> Result<usize> {
        self.check()?;
        let Some(lender) = self.lender() else { return Ok(0) };
        lender.collect(|page| self.pool.recycle(page)).map_err(|_| {
            error(Errno::PROTO)
                .because("the peer gave back a page that it does not have; its connection is lost")
        })
    }

    /// As [`SharedPool::reclaim`], and waits at most `limit` for a first page. A thread calls this to wait
    /// for its sends to be completed ([`Loan::notify`]). A peer that goes away gives everything back. Returns
    /// how many pages came: 0 after `limit`, or if nothing is lent.
    ///
    /// # Errors
    ///
    /// As [`SharedPool::reclaim`].
    pub fn reclaim_within(&self, limit: Duration) -> Result<usize> {
        let began = Instant::now();
        loop {
            let came = match self.reclaim()? {
                0 => self.reclaim_if_gone(),
                came => came,
            };
            let left = onecopy_sync::clock::remaining(began, limit);
            match left {
                Some(left) if came == 0 && self.lent() > 0 => self.sleep(left),
                _ => return Ok(came),
            }
        }
    }

    /// Takes home all pages that the peer had, if it is gone. Loans do so when they run out of pages. Returns
    /// how many pages came.
    pub fn reclaim_if_gone(&self) -> usize {
        self.lender().filter(|lender| lender.is_own()).map_or(0, |lender| lender.collect_if_gone())
    }
}

/// A page to be written and sent ([`SharedPool::loan`]). If it is dropped unsent it goes back to the pool. It
/// is a chain of one fragment that still has a writer; [`Segment::from`] makes that of it, to be sent
/// together with others.
pub struct Loan {
    page: Page,
    start: usize,
    len: usize,
    notif: Option<NotifRef>,
}

impl Loan {
    /// Makes the send of this page one of `lane`. The lane is told once when the page is the pool's again,
    /// and how, by exactly one completion. It says `copied` if the bytes had to be copied, and `dropped` if
    /// the loan was dropped unsent or the peer went away with it. It comes when the pool takes the page home
    /// ([`SharedPool::reclaim`], or a loan that wants a page). Returns the send's number.
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

    pub(crate) fn page(&self) -> &Page {
        &self.page
    }

    /// Notes that everything was sent, as a copy.
    pub(crate) fn was_copied(mut self) {
        if let Some(notif) = &mut self.notif {
            notif.set_fate(Fate::Copied);
        }
    }

    /// Returns the page, where its bytes begin and how many there are, and the notification that waits for
    /// it.
    pub(crate) fn into_parts(self) -> (Page, u32, u32, Option<NotifRef>) {
        (self.page, self.start as u32, self.len as u32, self.notif)
    }
}

impl From<Loan> for Segment<Chain> {
    fn from(loan: Loan) -> Segment<Chain> {
        // A loan of no bytes is an empty chain, and its page goes home.
        let chain = Fragment::new(loan.page, loan.start, loan.len).map(Chain::from).unwrap_or_default();
        Segment::from_parts(chain, loan.notif)
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
        if let Some(domain) = Domain::of(&self.page) {
            domain.write();
        }
        let bytes = self.page.bytes_mut().expect("a page on loan has one reference, in host memory");
        &mut bytes[self.start..self.start + self.len]
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").field("page", &self.page).field("len", &self.len).finish_non_exhaustive()
    }
}
