//! Packets in: the headers to the head, the payload to pages of its own, where the kernel's one copy puts it.
//!
//! How long the headers are is known only when the packet is there. So it is guessed: they are as long as those of the packet before. So
//! many bytes go to a buffer, the rest to pages, from a place on that leaves room before it. A guess that was wrong costs the copy of
//! the difference, and no more: headers that were longer are copied out of the page, payload that was taken for headers is copied in
//! front of the rest.
//!
//! The first page is a small one, so that a small packet is charged for little. What does not fit goes to larger ones, so that a
//! super-segment has few parts: each costs a view in readv(2), a fragment in the chain, and its way home.

use super::device::Device;
use super::header::{self, Header};
use super::stats::Stats;
use super::views;
use crate::capabilities::Medium;
use crate::packet::{Head, Packet};
use crate::parse::layers;
use onecopy_chain::{Chain, Checksum, Fragment};
use onecopy_pool::provider::Heap;
use onecopy_pool::{OpenError, Page, PagePool, PoolConfig};
use onecopy_sys::map::Span;
use onecopy_sys::spans::MAX_GATHER;
use rustix::io::Errno;

/// Bytes of the first page that are left free: as many as can be guessed too many.
pub(super) const HEADROOM: usize = Head::MAX;

/// Views beside those of pages: virtio's header, and the headers.
const BESIDE: usize = 2;

pub(super) struct Receiver {
    pub(super) medium: Medium,
    pools: Pools,
    /// Where the next packet's payload begins; ours alone.
    pub(super) first: Option<Page>,
    /// Where it goes on, each ours alone.
    pub(super) behind: Vec<Page>,
    /// Bytes of the longest packet.
    pub(super) longest: usize,
    /// How many of these it may need.
    need: usize,
    /// Headers of the packet before, in bytes. Invariant: at most [`Head::MAX`].
    pub(super) guess: usize,
}

/// Where pages come from.
pub(super) struct Pools {
    /// The first one of each packet.
    first: PagePool,
    /// The others, if they come from elsewhere.
    behind: Option<PagePool>,
}

/// Pages that wait for their next use, of each kind. A page that comes home waits behind all of them, so that fewer are warmer; what is too
/// many goes to the provider, who hands out the last one first.
const WAITING: u32 = 64;
const WAITING_LARGER: u32 = 32;

/// 4096 << this: bytes of a larger page. (16 KiB: of a jumbo frame's memory half is used, of a super-segment's nearly all.)
const LARGER: u8 = 2;

/// Bytes of either kind of page that a link holds.
const LIMIT: u32 = 64 << 20;

impl Pools {
    /// Memory of the process.
    pub fn new() -> Result<Pools, OpenError> {
        let pages = |order, ring| {
            let config = PoolConfig::new().order(order).ring(ring);
            let limit = LIMIT / config.page_len();
            PagePool::new(config.limit(limit), Heap::new())
        };
        Ok(Pools { first: pages(0, WAITING)?, behind: Some(pages(LARGER, WAITING_LARGER)?) })
    }

    /// All of one pool.
    pub fn of(pool: PagePool) -> Pools {
        Pools { first: pool, behind: None }
    }

    pub fn first(&self) -> &PagePool {
        &self.first
    }

    #[cfg(test)]
    pub fn all(&self) -> impl Iterator<Item = &PagePool> {
        std::iter::once(&self.first).chain(&self.behind)
    }

    fn behind(&self) -> &PagePool {
        self.behind.as_ref().unwrap_or(&self.first)
    }
}

impl Receiver {
    /// For packets of at most `longest` bytes.
    pub fn new(medium: Medium, longest: usize, pools: Pools) -> Receiver {
        // One byte more, which tells that a packet was longer.
        let behind = (HEADROOM + longest + 1).saturating_sub(pools.first.page_len() as usize);
        let need = behind.div_ceil(pools.behind().page_len() as usize).min(MAX_GATHER - BESIDE - 1);
        let guess = medium.header_len() + 20 + 32;
        Receiver { medium, pools, first: None, behind: Vec::with_capacity(need), longest, need, guess }
    }

    pub fn pools(&self) -> &Pools {
        &self.pools
    }

    /// The next packet. None where there is none now, or where a few in a row had to be dropped.
    pub fn receive(&mut self, device: &mut impl Device, stats: &mut Stats) -> Option<Packet> {
        self.take(stats, |this, stats| this.next(device, stats))
    }

    /// The next one that `next` gives.
    pub(super) fn take<T>(
        &mut self,
        stats: &mut Stats,
        mut next: impl FnMut(&mut Receiver, &mut Stats) -> Result<T, Dropped>,
    ) -> Option<T> {
        /// Of a flood of such, the program's turn comes all the same.
        const DROPS: usize = 64;
        for _ in 0..DROPS {
            match next(self, stats) {
                Ok(received) => return Some(received),
                Err(Dropped::Nothing) => return None,
                Err(Dropped::Gone) => {
                    stats.gone += 1;
                    return None;
                }
                Err(Dropped::Failed) => {
                    stats.failed += 1;
                    return None;
                }
                Err(Dropped::NoPage) => stats.no_page += 1,
                Err(Dropped::TooLong) => stats.too_long += 1,
                Err(Dropped::BadHeader) => stats.bad_header += 1,
            }
        }
        None
    }

    /// Has pages for a packet, or as many as there are.
    pub(super) fn fill(&mut self) {
        if self.first.is_none() {
            self.first = self.pools.first.alloc().ok();
        }
        while self.behind.len() < self.need
            && let Ok(page) = self.pools.behind().alloc()
        {
            self.behind.push(page);
        }
    }

    pub(super) fn next(&mut self, device: &mut impl Device, stats: &mut Stats) -> Result<Packet, Dropped> {
        self.fill();
        let mut virtio = [0; header::LEN];
        let mut front = [0; Head::MAX];
        // With no page at all the headers alone still come: of acknowledgements, which are what makes pages free again.
        let guess = if self.first.is_none() { Head::MAX } else { self.guess };
        // (Behind no first page there are none: a packet would begin in one.)
        let behind = if self.first.is_some() { &mut self.behind[..] } else { &mut [] };
        let (read, room) = views::with(BESIDE + 1 + behind.len(), |spans| {
            (spans[0], spans[1]) = (Span::of(&mut virtio), Span::of(&mut front[..guess]));
            let (mut count, mut skip) = (BESIDE, HEADROOM);
            for (span, page) in spans[BESIDE..].iter_mut().zip(self.first.iter_mut().chain(behind)) {
                // (Pages in here have no other holder.)
                let Some(bytes) = page.bytes_mut() else { break };
                *span = Span::of(&mut bytes[std::mem::take(&mut skip)..]);
                count += 1;
            }
            (device.read(&spans[..count]), spans[..count].iter().map(Span::len).sum::<usize>())
        });
        let read = read.map_err(|errno| match errno {
            Errno::AGAIN => Dropped::Nothing,
            Errno::BADFD => Dropped::Gone,
            _ => Dropped::Failed,
        })?;
        if read >= room {
            return Err(if self.first.is_none() || self.behind.len() < self.need {
                Dropped::NoPage
            } else {
                Dropped::TooLong
            });
        }
        if read == 0 {
            // The other end of a cable is closed. (A packet has virtio's header at least.)
            return Err(Dropped::Gone);
        }
        let len = read.checked_sub(header::LEN).ok_or(Dropped::BadHeader)?;
        self.build(Header::of_bytes(&virtio), front, guess, len, stats)
    }

    /// Makes a packet of what was read: `len` bytes, of which the first `guess` are in `front`, and the others in pages.
    pub(super) fn build(
        &mut self,
        header: Header,
        mut front: [u8; Head::MAX],
        guess: usize,
        len: usize,
        stats: &mut Stats,
    ) -> Result<Packet, Dropped> {
        let seen = len.min(Head::MAX);
        if let Some(bytes) = self.first.as_ref().and_then(Page::bytes)
            && seen > guess
        {
            front[guess..seen].copy_from_slice(&bytes[HEADROOM..HEADROOM + seen - guess]);
        }
        let layers = layers(&front[..seen], self.medium);
        let mut end = layers.end;
        let checksum = header.checksum();
        if let Checksum::Partial { start, offset } = checksum {
            // It is written there, so there is a header, known here or not.
            end = end.max(usize::from(start) + usize::from(offset) + 2);
            if end > seen {
                return Err(Dropped::BadHeader);
            }
        }
        let gso = header.gso(layers.network as u8).map_err(|_| Dropped::BadHeader)?;
        let payload = self.payload(&front, guess, end, len, stats)?;
        let mut packet = Packet::new(&front[..end], payload).map_err(|_| Dropped::BadHeader)?;
        packet.set_checksum(checksum).map_err(|_| Dropped::BadHeader)?;
        packet.set_gso(gso);
        if len > end {
            self.guess = end;
        }
        Ok(counted(packet, stats))
    }

    /// What is behind the first `end` of `len` bytes.
    fn payload(
        &mut self,
        front: &[u8; Head::MAX],
        guess: usize,
        end: usize,
        len: usize,
        stats: &mut Stats,
    ) -> Result<Chain, Dropped> {
        let mut chain = Chain::new();
        if len == end {
            return Ok(chain);
        }
        // Where the payload begins in the first page, once what lies in front has been put there.
        let surplus = guess.min(len).saturating_sub(end);
        if surplus > 0 {
            let bytes = self.first.as_mut().and_then(Page::bytes_mut).ok_or(Dropped::NoPage)?;
            bytes[HEADROOM - surplus..HEADROOM].copy_from_slice(&front[end..end + surplus]);
            stats.moved += 1;
            stats.moved_bytes += surplus as u64;
        }
        let mut from = HEADROOM - surplus + end.saturating_sub(guess);
        let mut left = len - end;
        let first = self.first.take().ok_or(Dropped::NoPage)?;
        let behind =
            (from + left).saturating_sub(first.len()).div_ceil(self.pools.behind().page_len() as usize);
        for page in std::iter::once(first).chain(self.behind.drain(..behind)) {
            let part = left.min(page.len() - from);
            let fragment = Fragment::new(page, from, part).map_err(|_| Dropped::BadHeader)?;
            chain.append(fragment).map_err(|_| Dropped::BadHeader)?;
            (left, from) = (left - part, 0);
        }
        Ok(chain)
    }
}

/// It has been received.
pub(super) fn counted(packet: Packet, stats: &mut Stats) -> Packet {
    stats.received += 1;
    stats.received_bytes += packet.len() as u64;
    stats.received_trains += u64::from(packet.gso().is_some());
    packet
}

/// Why there is no packet.
pub(super) enum Dropped {
    /// There is none.
    Nothing,
    NoPage,
    TooLong,
    BadHeader,
    Gone,
    Failed,
}
