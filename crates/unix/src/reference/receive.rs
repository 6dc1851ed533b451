//! Receiving chains.

use crate::channel::Fds;
use crate::end::End;
use crate::front::{Descriptors, Next, Piece};
use crate::holders::generation;
use crate::receive::Call;
use crate::rx::{Ready, Rx, RxRing, Waiting};
use crate::{Error, Op, RecvFlags, Result};
use onecopy_chain::{Chain, Fragment, Mark};
use onecopy_pool::provider::Heap;
use onecopy_pool::{Page, PagePool, PoolConfig};
use onecopy_sync::Mutex;
use rustix::io::Errno;
use std::io::IoSliceMut;
use std::sync::{Arc, OnceLock};

/// Pages for what comes as copies: of 16 KiB, and so many of them at most.
const ORDER: u8 = 2;
const PAGES: u32 = 1024;
/// Most bytes that one receive copies.
const MAX_COPY: usize = 256 << 10;

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
    fn page(&self) -> Result<Page> {
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

fn writable(page: &mut Page) -> &mut [u8] {
    page.bytes_mut().expect("a fresh page of host memory has one reference")
}

/// Puts the first `n` bytes of a page at the end; a chain of one kind and of some MiB at most takes them.
fn append(chain: &mut Chain, page: Page, n: usize) -> Result<()> {
    let fragment = Fragment::new(page, 0, n).and_then(|fragment| chain.append(fragment));
    fragment.map_err(|_| Error::new(Op::Recv, Errno::OVERFLOW))
}

impl End {
    /// Receives what is there, at most `max` bytes, of one kind of memory.
    pub fn recv_chain(self: &Arc<End>, max: usize, flags: RecvFlags) -> Result<Chain> {
        // A peek would lend a page twice, and what is there is lent.
        let flags = flags & RecvFlags::DONTWAIT;
        let max = max.min(u32::MAX as usize);
        let mut waiting = Waiting::new(0);
        loop {
            let ready = self.ready(flags, &mut waiting)?;
            let (mut guard, n) = match ready {
                Ready::Ring(guard, n) => (guard, n),
                Ready::End => return Ok(Chain::new()),
                other => {
                    drop(other);
                    return self.chain_of_kernel(max, flags);
                }
            };
            let Rx::Ring(rx) = &mut *guard else { return Ok(Chain::new()) };
            if max == 0 {
                return Ok(Chain::new());
            }
            let lie = |lie| self.lie(Op::Recv, lie);
            let n = rx.consumer.before_mark(n).map_err(lie)?;
            let chain = if n > 0 {
                self.chain_of_bytes(rx, n.min(max))?
            } else if rx.meet_mark(self)? == Next::Reference {
                self.chain_of_references(rx, max)?
            } else {
                // A pool, or descriptors.
                continue;
            };
            self.mirror_empty(rx)?;
            let (room, capacity) = (rx.consumer.room(), rx.consumer.ring().capacity());
            guard.unlock_fenced();
            if self.rx_ring.get().is_some_and(|ring| ring.header().must_unpark(room, capacity)) {
                self.unpark()?;
            }
            return Ok(chain);
        }
    }

    /// The references that are there, one after the other, where they lie.
    fn chain_of_references(&self, rx: &mut RxRing, max: usize) -> Result<Chain> {
        let mut chain = Chain::new();
        let said = self.passes_who().then(|| rx.front.sender());
        self.attach(&mut chain, Fds { who: said, ..Fds::default() });
        loop {
            let Some(piece) = take_piece(rx, max - chain.len()) else { break };
            let referenced = piece.len();
            // There is room: `take_piece` and the look at the true size below see to it.
            let Some(Ok(())) = piece.into_fragment().map(|fragment| chain.append(fragment)) else {
                return Err(Error::new(Op::Recv, Errno::OVERFLOW));
            };
            self.counters.received.add_exclusive(referenced);
            self.counters.referenced.add_exclusive(referenced);
            if chain.len() == max || !self.reference_follows(rx) {
                break;
            }
            if said.is_some_and(|said| said != rx.front.sender()) {
                // What others sent never merges (unix(7)).
                break;
            }
            let next = rx.front.piece.as_ref().map_or(0, Piece::page_len);
            if chain.true_size().saturating_add(next) > u32::MAX as usize {
                break;
            }
        }
        Ok(chain)
    }

    /// Whether a reference comes next, at once. What is wrong there is told by the next call.
    fn reference_follows(&self, rx: &mut RxRing) -> bool {
        loop {
            let there = rx.consumer.available(1);
            if !matches!(there, Ok(1..)) || !matches!(there.and_then(|n| rx.consumer.before_mark(n)), Ok(0)) {
                return false;
            }
            match rx.meet_mark(self) {
                Ok(Next::Reference) => return rx.front.fds.is_none(),
                Ok(Next::Again) => {}
                Err(_) => return false,
            }
        }
    }

    /// Of `n` bytes that are in the ring: copied, since they have to make room.
    fn chain_of_bytes(&self, rx: &mut RxRing, n: usize) -> Result<Chain> {
        let mut chain = Chain::new();
        let mut n = n.min(MAX_COPY);
        let first = self.copies.page()?;
        rx.bring_fds(self)?;
        let mut came = Fds { who: self.passes_who().then(|| rx.front.sender()), ..Fds::default() };
        if let Some(arrived) = rx.front.fds.take() {
            if let Descriptors::Here(fds) = arrived.fds {
                came.list = fds.list;
            }
            match arrived.until.saturating_sub(rx.consumer.position()) {
                // It is behind already: the peer's own loss.
                0 => {}
                left => n = (n as u64).min(left) as usize,
            }
        }
        self.attach(&mut chain, came);
        let mut page = Ok(first);
        while let Ok(mut this) = page {
            let now = this.len().min(n - chain.len());
            rx.consumer.copy_out(0, &mut writable(&mut this)[..now]);
            append(&mut chain, this, now)?;
            rx.consumer.take(now);
            if chain.len() == n {
                break;
            }
            page = self.copies.page();
        }
        self.counters.received.add_exclusive(chain.len());
        self.counters.user_copied_out.add_exclusive(chain.len());
        Ok(chain)
    }

    /// What one receive over the kernel gives.
    fn chain_of_kernel(&self, max: usize, flags: RecvFlags) -> Result<Chain> {
        let mut chain = Chain::new();
        let mut page = self.copies.page()?;
        let max = max.min(page.len());
        let mut fds = Fds::default();
        let mut slices = [IoSliceMut::new(&mut writable(&mut page)[..max])];
        let n = self.recv_with(&mut slices, flags, &mut Call::with(&mut fds))?;
        self.attach(&mut chain, fds);
        if n > 0 {
            append(&mut chain, page, n)?;
        }
        Ok(chain)
    }

    /// What came with the bytes that are appended next: who sent them, and descriptors.
    pub fn attach(&self, chain: &mut Chain, came: Fds) {
        if let Some(who) = came.who.filter(|_| self.passes_credentials()) {
            chain.attach(Mark::Credentials(who.into()));
        }
        if !came.list.is_empty() {
            chain.attach(Mark::Rights(came.list));
        }
    }
}

/// The reference at the front, or as much of it as is asked for.
pub fn take_piece(rx: &mut RxRing, max: usize) -> Option<Piece> {
    match rx.front.piece.take() {
        Some(piece) if piece.len() > max => {
            let (first, rest) = piece.split(max);
            rx.front.piece = Some(rest);
            Some(first)
        }
        piece => {
            rx.consumer.take_mark();
            piece
        }
    }
}
