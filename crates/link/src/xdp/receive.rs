//! Packets in: their headers to the head, their payload by reference, in the frames that the kernel received it into.
//!
//! A frame whose packet has no payload goes back to the kernel at once. The others are pages of what is received, and come back when nobody has them any more: from the
//! pool, when the next frames are given. Where none come, since sockets that nobody reads have them, payload is copied to other pages, so that those who do read receive.
//! Where there are none of these either, the last frames are kept for packets without payload: acknowledgements, by which what was sent becomes free.

use super::ring::{Emptied, Filled};
use super::stats::Stats;
use super::sums::{is_udp, unfinished};
use super::umem::{Foreign, Umem};
use crate::capabilities::Medium;
use crate::packet::{Head, Packet};
use crate::parse::layers;
use onecopy_chain::{Chain, Fragment};
use onecopy_copy::Hint;
use onecopy_pool::{Page, PagePool};
use onecopy_sys::xdp::CONTINUES;

/// Frames are given in so many at a time, at least.
const BATCH: u32 = 32;

/// As many as these are the last ones.
pub(super) const LAST: u32 = 64;

#[derive(Debug)]
pub(super) struct Receiver {
    fill: Filled,
    rx: Emptied,
    /// How many frames the kernel is to have.
    wanted: u32,
    /// No frame was left when some were to be given.
    short: bool,
    /// Where payload is copied to then.
    pages: PagePool,
    /// Frames were given back since the last time that some were given.
    given_back: bool,
    /// Senders on this host leave checksums unfinished.
    unfinished: bool,
    /// The longest packet, without Ethernet's header.
    mtu: usize,
}

/// Why there is no packet.
#[derive(Debug)]
enum Dropped {
    /// There is none.
    Nothing,
    Foreign,
    NoFrame,
    /// Datagrams that were to be cut apart.
    Train,
}

impl From<Foreign> for Dropped {
    fn from(_: Foreign) -> Dropped {
        Dropped::Foreign
    }
}

impl Receiver {
    pub fn new(
        fill: Filled,
        rx: Emptied,
        wanted: u32,
        pages: PagePool,
        unfinished: bool,
        mtu: u32,
    ) -> Receiver {
        let mtu = mtu as usize;
        Receiver { fill, rx, wanted, short: false, pages, given_back: false, unfinished, mtu }
    }

    /// Whether a driver sleeps until it is told of frames.
    pub fn needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }

    /// Whether the kernel has frames that it has not looked at.
    pub fn has_untaken(&self) -> bool {
        self.fill.left().is_ok_and(|left| left > 0)
    }

    /// Gives the kernel frames to receive into, if enough are missing. Returns whether it has new ones.
    pub fn fill(&mut self, umem: &mut Umem, stats: &mut Stats) -> bool {
        let given_back = std::mem::take(&mut self.given_back);
        let missing = self.wanted.saturating_sub(umem.filled());
        // (While they are short, as many as there are.)
        if missing < if self.short { 1 } else { BATCH.min(self.wanted) } {
            self.short = false;
            return given_back;
        }
        let Ok(room) = self.fill.room() else {
            stats.astray += 1;
            return given_back;
        };
        let before = std::mem::take(&mut self.short);
        for _ in 0..missing.min(room) {
            match umem.fill() {
                Some(place) => self.fill.put_place(place),
                None => {
                    self.short = true;
                    break;
                }
            }
        }
        // (As long as it lasts, that is one time.)
        stats.starved += u64::from(self.short && !before);
        self.fill.tell() || given_back
    }

    /// The next packet. None where there is none now, or where a few in a row had to be dropped.
    pub fn receive(&mut self, umem: &mut Umem, stats: &mut Stats) -> Option<Packet> {
        /// Of a flood of such, the program's turn comes all the same.
        const DROPS: usize = 64;
        for _ in 0..DROPS {
            match self.next(umem, stats) {
                Ok(packet) => return Some(packet),
                Err(Dropped::Nothing) => return None,
                Err(Dropped::Foreign) => stats.foreign += 1,
                Err(Dropped::NoFrame) => stats.no_frame += 1,
                Err(Dropped::Train) => stats.trains += 1,
            }
        }
        None
    }

    fn next(&mut self, umem: &mut Umem, stats: &mut Stats) -> Result<Packet, Dropped> {
        let there = match self.rx.there() {
            Ok(0) => return Err(Dropped::Nothing),
            Ok(there) => there,
            Err(_) => {
                stats.astray += 1;
                return Err(Dropped::Nothing);
            }
        };
        // One that is not whole is not there.
        let ends = |ahead: &u32| self.rx.entry(*ahead).options & CONTINUES == 0;
        let count = (0..there).find(ends).ok_or(Dropped::Nothing)? + 1;
        let first = self.rx.entry(0);
        let begins = umem.received(first.place, first.len);
        let mut others = Vec::new();
        let mut whole = begins.is_ok();
        for ahead in 1..count {
            let entry = self.rx.entry(ahead);
            match umem.received(entry.place, entry.len) {
                Ok((page, offset)) => others.push((page, offset, entry.len as usize)),
                Err(Foreign) => whole = false,
            }
        }
        self.rx.take(count);
        let (page, offset) = begins?;
        if !whole {
            return Err(Dropped::Foreign);
        }
        self.build(page, offset, first.len as usize, others, umem, stats)
    }

    /// Makes a packet of what is in these frames.
    fn build(
        &mut self,
        page: Page,
        offset: usize,
        len: usize,
        others: Vec<(Page, usize, usize)>,
        umem: &mut Umem,
        stats: &mut Stats,
    ) -> Result<Packet, Dropped> {
        let bytes = page.bytes().and_then(|bytes| bytes.get(offset..offset + len)).ok_or(Dropped::Foreign)?;
        let front = &bytes[..len.min(Head::MAX)];
        let layers = layers(front, Medium::Ethernet);
        // A veth hands over what its other end left to be cut apart (UDP_SEGMENT). Of TCP that is a longer segment; of UDP it would be one datagram of many.
        let whole = len + others.iter().map(|(.., len)| len).sum::<usize>();
        if whole.saturating_sub(layers.network) > self.mtu && is_udp(front, layers) {
            self.give_back([page].into_iter().chain(others.into_iter().map(|(page, ..)| page)), umem);
            return Err(Dropped::Train);
        }
        let mut packet = Packet::new(&front[..layers.end], Chain::new()).map_err(|_| Dropped::Foreign)?;
        let several = !others.is_empty();
        if len > layers.end || several {
            let first = (page, offset + layers.end, len - layers.end);
            let parts = [first].into_iter().chain(others).filter(|(_, _, len)| *len > 0);
            let payload = match self.short {
                false => by_reference(parts)?,
                true => self.copied_out(parts.collect(), umem, stats)?,
            };
            *packet.payload_mut() = payload.into();
        } else {
            self.give_back([page], umem);
        }
        if self.unfinished
            && let Some(checksum) = unfinished(&packet, layers)
        {
            stats.unfinished += 1;
            let said = packet.set_checksum(checksum);
            debug_assert!(said.is_ok(), "the field is in the head");
        }
        stats.received += 1;
        stats.received_bytes += packet.len() as u64;
        stats.received_several += u64::from(several);
        Ok(packet)
    }

    /// Payload in frames of which there are too few: on other pages, and the frames given back.
    fn copied_out(
        &mut self,
        parts: Vec<(Page, usize, usize)>,
        umem: &mut Umem,
        stats: &mut Stats,
    ) -> Result<Chain, Dropped> {
        let mut payload = Chain::new();
        for (page, offset, len) in &parts {
            let copied = self.pages.alloc().ok().and_then(|mut copy| {
                let from = page.bytes()?.get(*offset..offset + len)?;
                onecopy_copy::copy(copy.bytes_mut()?.get_mut(..*len)?, from, Hint::AUTO);
                Fragment::new(copy, 0, *len).ok()
            });
            let appended = copied.is_some_and(|fragment| payload.append(fragment).is_ok());
            if !appended {
                return match umem.filled() < LAST {
                    false => by_reference(parts),
                    true => {
                        self.give_back(parts.into_iter().map(|(page, ..)| page), umem);
                        Err(Dropped::NoFrame)
                    }
                };
            }
        }
        self.give_back(parts.into_iter().map(|(page, ..)| page), umem);
        stats.copied_out += 1;
        stats.copied_out_bytes += payload.len() as u64;
        Ok(payload)
    }

    /// Gives frames to the kernel that nobody else has.
    fn give_back(&mut self, pages: impl IntoIterator<Item = Page>, umem: &mut Umem) {
        for page in pages {
            // Where there is no room, which cannot be but by a word that went astray, it goes back to the pool.
            if self.fill.room().is_ok_and(|room| room > 0) {
                self.fill.put_place(umem.refill(page));
            }
        }
        self.given_back |= self.fill.tell();
    }
}

/// Payload in the frames that it was received into.
fn by_reference(parts: impl IntoIterator<Item = (Page, usize, usize)>) -> Result<Chain, Dropped> {
    let mut payload = Chain::new();
    for (page, offset, len) in parts {
        let fragment = Fragment::new(page, offset, len).map_err(|_| Dropped::Foreign)?;
        payload.append(fragment).map_err(|_| Dropped::Foreign)?;
    }
    Ok(payload)
}
