//! What the stream has brought besides bytes, for who receives next: part of a reference, descriptors, pools.

use crate::channel::Fds;
use crate::end::End;
use crate::rx::RxRing;
use crate::{Error, Op, Result};
use onecopy_ring::record::With;
use onecopy_ring::{Lie, Mark, Ring, Shared};
use onecopy_sys::map::Span;
use onecopy_sys::memfd::Refused;
use rustix::fd::OwnedFd;
use std::sync::Arc;

/// Most pools of one peer on one stream.
pub const MAX_POOLS: usize = 16;

/// What was met at marks and is not received yet.
#[derive(Debug, Default)]
pub struct Front {
    /// The reference at the next mark, as far as it was not received. Its mark is taken with its last byte.
    pub piece: Option<Piece>,
    /// Descriptors for who receives the next byte.
    pub fds: Option<Arrived>,
    /// Behind the beginning of the frame whose descriptors these are; 0 for none.
    met: u64,
    /// By the names that references use.
    pools: Vec<Arc<PeerPool>>,
}

/// Descriptors, and how far a receive with them may go.
#[derive(Debug)]
pub struct Arrived {
    pub fds: Fds,
    /// Position in the ring.
    pub until: u64,
}

/// A pool of the peer: what its references point into.
#[derive(Debug)]
pub struct PeerPool {
    memory: Shared,
    /// Where its pages are given back.
    ring: Ring,
    /// As long as somebody may look at a page, the peer finds its end of the channel open.
    _channel: Arc<OwnedFd>,
}

/// Bytes that a peer has lent, or the part of them that is not received yet.
#[derive(Debug)]
pub struct Piece {
    loan: Held,
    /// Where they begin in the pool.
    at: usize,
    len: usize,
}

#[derive(Debug)]
enum Held {
    Alone(Loan),
    /// Cut in two.
    Together(Arc<Loan>),
}

/// A page that is given back when dropped.
#[derive(Debug)]
struct Loan {
    pool: Arc<PeerPool>,
    slot: u32,
}

impl Drop for Loan {
    fn drop(&mut self) {
        let header = self.pool.ring.header();
        if header.give_back_slot(self.slot) {
            header.wake_lender();
        }
    }
}

impl Piece {
    fn pool(&self) -> &PeerPool {
        match &self.loan {
            Held::Alone(loan) => &loan.pool,
            Held::Together(loan) => &loan.pool,
        }
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies from `from` bytes behind the front on. There are enough.
    #[inline]
    pub fn copy_out_from(&self, from: usize, buffer: &mut [u8]) {
        debug_assert!(from + buffer.len() <= self.len);
        self.pool().memory.copy_out(self.at + from, buffer);
    }

    /// A view of the first `max` bytes.
    pub fn span(&self, max: usize) -> Span<'_> {
        self.pool().memory.span(self.at, self.len.min(max))
    }

    /// Goes on behind the first `count` bytes (which it has).
    #[inline]
    pub fn advance(&mut self, count: usize) {
        self.at += count;
        self.len -= count;
    }

    /// Cuts off the first `count` bytes (of more). The page goes back when both parts are dropped.
    pub fn split(self, count: usize) -> (Piece, Piece) {
        let loan = match self.loan {
            Held::Alone(loan) => Arc::new(loan),
            Held::Together(loan) => loan,
        };
        let first = Piece { loan: Held::Together(loan.clone()), at: self.at, len: count };
        let rest = Piece { loan: Held::Together(loan), at: self.at + count, len: self.len - count };
        (first, rest)
    }
}

/// What comes next in the stream, where a mark was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Part of a page, in [`Front::piece`].
    Reference,
    /// Something else than at the last look, or nothing any more.
    Again,
}

impl RxRing {
    /// Learns what the mark means that comes next in the stream.
    ///
    /// # Errors
    ///
    /// EPROTO; EMFILE, ENOMEM where this process lacks what it takes, and the mark stays.
    pub fn meet_mark(&mut self, end: &End) -> Result<Next> {
        let lie = |lie| end.lie(Op::Recv, lie);
        if self.front.piece.is_some() {
            return Ok(Next::Reference);
        }
        match self.consumer.mark().map_err(lie)? {
            Mark::Reference { slot, pool, page, offset, len } => {
                let known = self.front.pools.get(pool as usize).ok_or(Lie::Reference).map_err(lie)?;
                let at = known.memory.place(page, offset, len).ok_or(Lie::Reference).map_err(lie)?;
                if slot as usize >= onecopy_ring::lend::SLOTS {
                    return Err(lie(Lie::Reference));
                }
                let loan = Held::Alone(Loan { pool: known.clone(), slot });
                self.front.piece = Some(Piece { loan, at, len: len as usize });
                Ok(Next::Reference)
            }
            Mark::Pool { pool, page_len, pages } => {
                self.expect_channel(end)?;
                let opened = self.open_pool(end, pool, page_len, pages)?;
                self.front.pools.push(Arc::new(opened.map_err(lie)?));
                self.inlet.skip();
                self.consumer.take_mark();
                Ok(Next::Again)
            }
            Mark::Fds { count: 0, .. } | Mark::Fds { len: 0, .. } => {
                Err(lie(Lie::Mark { position: self.consumer.position(), kind: 0 }))
            }
            Mark::Fds { count, len } => {
                self.expect_channel(end)?;
                let fds = self.inlet.receive(count as usize)?.map_err(lie)?;
                self.consumer.take_mark();
                let until = self.consumer.position().saturating_add(len);
                self.front.fds = Some(Arrived { fds, until });
                Ok(Next::Again)
            }
        }
    }

    /// The descriptor of a pool is in the channel, where it stays until all went well.
    fn open_pool(
        &self,
        end: &End,
        pool: u32,
        page_len: u64,
        pages: u64,
    ) -> Result<std::result::Result<PeerPool, Lie>> {
        let mapped: usize = self.front.pools.iter().map(|pool| pool.memory.len()).sum();
        let left = end.config.max_shared.saturating_sub(mapped);
        let fits = Shared::size(page_len, pages).is_some_and(|size| size <= left);
        if !fits || pool as usize != self.front.pools.len() || self.front.pools.len() == MAX_POOLS {
            return Ok(Err(Lie::Pool));
        }
        let memfd = match self.inlet.look()? {
            Ok(memfd) => memfd,
            Err(lie) => return Ok(Err(lie)),
        };
        let (Some(ring), Some(channel)) = (end.rx_ring.get(), self.inlet.keep()) else {
            return Ok(Err(Lie::Channel));
        };
        match Shared::open(memfd, page_len, pages) {
            Ok(memory) => Ok(Ok(PeerPool { memory, ring: ring.clone(), _channel: channel })),
            Err(Refused::NoMapping(errno)) => Err(Error::new(Op::Recv, errno).because(
                "the peer's pool could not be mapped; free memory or address space and receive again",
            )),
            Err(_) => Ok(Err(Lie::Pool)),
        }
    }

    /// A mark or a frame says that something lies in the channel, so the channel must be there.
    fn expect_channel(&mut self, end: &End) -> Result<()> {
        self.meet_channel(end).map_err(|errno| Error::new(Op::Recv, errno))
    }

    /// What comes with the frame at the front is received from the channel, once.
    ///
    /// # Errors
    ///
    /// EPROTO; EMFILE where this process lacks what it takes, and the frame stays.
    #[cold]
    pub fn meet_frame(&mut self, end: &End, with: With) -> Result<()> {
        let at = self.consumer.position() + 1;
        if self.front.met == at || !with.is_in_channel() {
            return Ok(());
        }
        self.expect_channel(end)?;
        let lie = |lie| end.lie(Op::Recv, lie);
        let fds = self.inlet.receive(usize::from(with.fds()))?.map_err(lie)?;
        self.front.fds = Some(Arrived { fds, until: u64::MAX });
        self.front.met = at;
        Ok(())
    }

    /// The reference at the front was received.
    pub fn take_reference(&mut self) -> Option<Piece> {
        let piece = self.front.piece.take()?;
        self.consumer.take_mark();
        Some(piece)
    }
}
