//! The memory that process and kernel share: pages of one pool, each a frame, and who has which.
//!
//! A frame is in one of three places. In the hands of the process it is a page as any other: free in the pool, or with whoever has received a packet. While the
//! kernel may write it, from the fill ring on, its page is in here, and nobody else has a reference to it: it was ours alone when it was put there. While the kernel may
//! read it, from the TX ring on, it is in here too, or the packet is whose payload it has: it cannot come back to the pool before. So a place that the kernel
//! names is that of a frame which it was given, or is refused.

use super::stats::Stats;
use crate::packet::Packet;
use onecopy_chain::notify::Fate;
use onecopy_pool::provider::Heap;
use onecopy_pool::{OpenError, Page, PagePool, PoolConfig, Region};
use onecopy_sys::xdp::FRAME;

/// Pages that wait for their next use.
const WAITING: u32 = 1024;

/// Who has a frame.
#[derive(Debug)]
enum Slot {
    /// The process.
    Ours,
    /// The kernel, which may write it.
    Filled(Page),
    /// The kernel, which reads it: a copy of ours, of the packet with that number, if it has one.
    Copied(Page, Option<u32>),
    /// The kernel, which reads it: payload of the packet with that number.
    Lent(u32),
}

/// A packet whose payload the kernel reads from where it lies, and how many of its frames it has not given back.
#[derive(Debug)]
struct Flight {
    packet: Packet,
    frames: u32,
}

/// The kernel named a frame that it was not given, or bytes outside of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Foreign;

#[derive(Debug)]
pub(super) struct Umem {
    slots: Vec<Slot>,
    /// Frames to copy what is sent into. Invariant: each ours alone.
    spare: Vec<Page>,
    /// By number; a number is free where there is none.
    flights: Vec<Option<Flight>>,
    /// Frames that the kernel may write.
    filled: u32,
    region: Region,
    pool: PagePool,
}

impl Umem {
    /// Of `frames` frames, of which `sending` are for copies of what is sent.
    pub fn new(frames: u32, sending: u32) -> Result<Umem, OpenError> {
        let config = PoolConfig::new().limit(frames).ring(WAITING);
        let pool = PagePool::new(config, Heap::new())?;
        let region = pool.region().unwrap_or_else(|| unreachable!("memory of the process has an address"));
        let spare = (0..sending).filter_map(|_| pool.alloc().ok()).collect();
        let slots = (0..frames).map(|_| Slot::Ours).collect();
        Ok(Umem { slots, spare, flights: Vec::new(), filled: 0, region, pool })
    }

    /// All of it, as one piece.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Frames that the kernel has to receive into, or has received into, and that were not taken yet.
    pub fn filled(&self) -> u32 {
        self.filled
    }

    /// Frames to copy what is sent into.
    pub fn spare(&self) -> usize {
        self.spare.len()
    }

    /// Pages that are in use somewhere, of those that were ever handed out.
    #[cfg(test)]
    pub fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// Whether the kernel may write a page.
    #[cfg(test)]
    pub fn is_filled(&self, page: &Page) -> bool {
        matches!(self.slots[page.index() as usize], Slot::Filled(_))
    }

    /// Frames that it may write, counted.
    #[cfg(test)]
    pub fn count_filled(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot, Slot::Filled(_))).count()
    }

    /// Pages that are in here: spare ones, and the kernel's.
    #[cfg(test)]
    pub fn kept(&self) -> u64 {
        let kept = self.slots.iter().filter(|slot| !matches!(slot, Slot::Ours)).count();
        (self.spare.len() + kept) as u64
    }

    /// Gives the kernel a frame that nobody has, to receive into: its place. None where there is none.
    pub fn fill(&mut self) -> Option<u64> {
        let page = self.pool.alloc().ok()?;
        Some(self.refill(page))
    }

    /// Gives it this one, which is ours alone.
    pub fn refill(&mut self, page: Page) -> u64 {
        debug_assert!(page.is_unique(), "{page:?} is somebody else's, too");
        let (index, place) = (page.index() as usize, page.place());
        debug_assert!(matches!(self.slots[index], Slot::Ours));
        self.slots[index] = Slot::Filled(page);
        self.filled += 1;
        place
    }

    /// The kernel has received `len` bytes at `place`, and gives the frame back: its page, and where in it they begin.
    pub fn received(&mut self, place: u64, len: u32) -> Result<(Page, usize), Foreign> {
        let (slot, offset) = self.slot(place)?;
        if offset + len as usize > FRAME {
            return Err(Foreign);
        }
        match std::mem::replace(slot, Slot::Ours) {
            Slot::Filled(page) => {
                self.filled -= 1;
                Ok((page, offset))
            }
            other => {
                *slot = other;
                Err(Foreign)
            }
        }
    }

    /// Gives the kernel a frame to send, of which `write` says how many bytes it has written: their place. None where there is none, or nothing could be written.
    pub fn copy(&mut self, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> Option<(u64, usize)> {
        let mut page = self.spare.pop()?;
        let len = page.bytes_mut().and_then(write);
        let Some(len) = len else {
            self.spare.push(page);
            return None;
        };
        let (index, place) = (page.index() as usize, page.place());
        self.slots[index] = Slot::Copied(page, None);
        Some((place, len))
    }

    /// Whether what lies at `place` is a copy that the kernel has.
    pub fn is_copied(&self, place: u64) -> bool {
        let index = usize::try_from(place / FRAME as u64).ok();
        index.and_then(|index| self.slots.get(index)).is_some_and(|slot| matches!(slot, Slot::Copied(..)))
    }

    /// Whether all payload of a packet lies in frames here, of which the kernel has none.
    pub fn has_all(&self, packet: &Packet) -> bool {
        let ours = self.region.pool_id();
        let mut parts = packet.payload().payload().fragments().enumerate();
        parts.all(|(at, part)| {
            let page = part.page();
            let again = || {
                let before = packet.payload().payload().fragments().take(at);
                before.into_iter().any(|before| before.page().is_same(page))
            };
            page.pool_id() == ours && matches!(self.slots[page.index() as usize], Slot::Ours) && !again()
        })
    }

    /// Keeps a packet of which [`Umem::has_all`] is true until the kernel has given back the frames of its payload, and that of its headers, which were copied to `head`: the
    /// places of the former, each with its length.
    pub fn lend(&mut self, packet: Packet, head: u64) -> Vec<(u64, usize)> {
        let free = self.flights.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        let parts = packet.payload().payload().fragments();
        let mut places = Vec::with_capacity(parts.size_hint().0);
        for part in parts {
            self.slots[part.page().index() as usize] = Slot::Lent(number as u32);
            places.push((part.page().place() + part.offset() as u64, part.len()));
        }
        let mut frames = places.len() as u32;
        if let Ok((Slot::Copied(_, flight), _)) = self.slot(head) {
            *flight = Some(number as u32);
            frames += 1;
        }
        self.flights[number] = Some(Flight { frames, packet });
        places
    }

    /// The kernel has sent what lies at `place`, and gives the frame back. `fate` is that of what was lent.
    pub fn sent(&mut self, place: u64, fate: Fate, stats: &mut Stats) -> Result<(), Foreign> {
        let (slot, _) = self.slot(place)?;
        let number = match std::mem::replace(slot, Slot::Ours) {
            Slot::Copied(page, number) => {
                self.spare.push(page);
                number
            }
            Slot::Lent(number) => Some(number),
            other => {
                *slot = other;
                return Err(Foreign);
            }
        };
        let Some(flight) = number.and_then(|number| self.flights.get_mut(number as usize)) else {
            return Ok(());
        };
        if let Some(of) = flight {
            of.frames -= 1;
            if of.frames == 0
                && let Some(Flight { packet, .. }) = flight.take()
            {
                stats.by_reference += 1;
                packet.free(fate);
            }
        }
        Ok(())
    }

    /// The frame of a place, and how many bytes behind its beginning that is.
    fn slot(&mut self, place: u64) -> Result<(&mut Slot, usize), Foreign> {
        let index = usize::try_from(place / FRAME as u64).map_err(|_| Foreign)?;
        let slot = self.slots.get_mut(index).ok_or(Foreign)?;
        Ok((slot, (place % FRAME as u64) as usize))
    }
}
