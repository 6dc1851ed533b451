//! Payload out of a device's memory: the kernel gathers a packet from the host's, so the device copies it there first.

use super::stats::Stats;
use crate::packet::Packet;
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Fragment, Kind};
use onecopy_pool::provider::Heap;
use onecopy_pool::{Page, PagePool, PoolConfig};
use std::time::Instant;

/// 4096 << this: bytes of a page, of which a packet has one. A super-segment fits.
const ORDER: u8 = 4;

/// Packets that wait at once are the parts of one super-segment, and the kernel takes nothing else meanwhile.
const LIMIT: u32 = 64;

/// Where such payload goes, page by page; made with the first one.
#[derive(Debug, Default)]
pub(super) struct Stage(Option<PagePool>);

/// A packet was not brought to the host's memory: it is counted, and to be dropped.
#[derive(Debug)]
pub(super) struct NotStaged;

impl Stage {
    /// Brings the payload of `packet` to the host's memory, where it is a device's. Sends that it has bytes of go on waiting for it.
    #[inline]
    pub fn bring(&mut self, packet: &mut Packet, stats: &mut Stats) -> Result<(), NotStaged> {
        match packet.payload().payload().kind() {
            Some(Kind::Device) => self.copy(packet, stats),
            _ => Ok(()),
        }
    }

    #[cold]
    fn copy(&mut self, packet: &mut Packet, stats: &mut Stats) -> Result<(), NotStaged> {
        let began = Instant::now();
        let Some(host) = self.staged(packet.payload().payload()) else {
            stats.unstaged += 1;
            return Err(NotStaged);
        };
        stats.staged_bytes += host.len() as u64;
        let (device, notif) = std::mem::take(packet.payload_mut()).into_parts();
        *packet.payload_mut() = Segment::from_parts(host, notif);
        drop(device);
        stats.staging_ns += began.elapsed().as_nanos() as u64;
        Ok(())
    }

    fn staged(&mut self, chain: &Chain) -> Option<Chain> {
        if self.0.is_none() {
            self.0 = PagePool::new(PoolConfig::new().order(ORDER).limit(LIMIT), Heap::new()).ok();
        }
        let pool = self.0.as_ref()?;
        let mut host = Chain::new();
        let mut runs = Runs::of(chain);
        let mut left = chain.len();
        while left > 0 {
            let mut page = pool.alloc().ok()?;
            let len = left.min(page.len());
            fill(page.bytes_mut()?.get_mut(..len)?, &mut runs)?;
            host.append(Fragment::new(page, 0, len).ok()?).ok()?;
            left -= len;
        }
        Some(host)
    }
}

/// Fills `into` from the next bytes of `runs`: a copy for each that lies in one piece.
fn fill(into: &mut [u8], runs: &mut Runs<'_>) -> Option<()> {
    let mut rest = into;
    while !rest.is_empty() {
        let (page, offset, len) = runs.next(rest.len())?;
        let (now, later) = rest.split_at_mut(len);
        page.copy_out(offset, now).ok()?;
        rest = later;
    }
    Some(())
}

/// A chain's bytes as runs that lie in one piece on the device, over the borders of pages.
struct Runs<'a> {
    fragments: std::iter::Peekable<onecopy_chain::Iter<'a>>,
    /// What is left of the run before: where it goes on, and how many bytes.
    rest: Option<(&'a Page, usize, usize)>,
}

impl<'a> Runs<'a> {
    fn of(chain: &'a Chain) -> Runs<'a> {
        Runs { fragments: chain.fragments().peekable(), rest: None }
    }

    /// The next one, of at most `most` bytes.
    fn next(&mut self, most: usize) -> Option<(&'a Page, usize, usize)> {
        let (page, offset, mut len) = match self.rest.take() {
            Some(rest) => rest,
            None => {
                let first = self.fragments.next()?;
                (first.page(), first.offset(), first.len())
            }
        };
        let place = |page: &Page, offset: usize| page.place() + offset as u64;
        while len < most
            && let Some(next) = self.fragments.next_if(|next| {
                next.page().pool_id() == page.pool_id()
                    && place(next.page(), next.offset()) == place(page, offset) + len as u64
            })
        {
            len += next.len();
        }
        if len > most {
            self.rest = Some((page, offset + most, len - most));
            len = most;
        }
        Some((page, offset, len))
    }
}
