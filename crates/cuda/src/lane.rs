//! A stream, and what is put into it: pieces of the host's memory on one of the ways to the device.

use crate::context::{Buffer, Current, ENTRY, Kernel, Pinned, Stream};
use crate::error::Error;
use crate::landing::Landing;
use crate::way::{Costs, Way};
use onecopy_pool::Part;

/// Pieces of a batch, at most: as many entries has the kernel's table.
pub(crate) const MOST: usize = 256;

/// Bytes on the device that a span goes to first. No span is longer.
pub(crate) const SCRATCH: usize = 1 << 20;

/// A part of the host's memory, and the device's address that it goes to.
pub(crate) struct Piece {
    pub part: Part,
    pub to: u64,
}

/// Bytes that lie in one piece on either side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub from: *const u8,
    pub len: usize,
    pub to: u64,
    pub pinned: Option<Place>,
}

/// Where pinned bytes are in their region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Where the device has the region.
    pub region: u64,
    pub offset: usize,
}

/// How often what was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub copies: u64,
    pub launches: u64,
}

pub(crate) struct Lane {
    pub stream: Stream,
    kernel: Option<(Kernel, Buffer)>,
    tables: Vec<Pinned>,
    pub landing: Landing,
    pub asked: Asked,
}

impl Lane {
    /// One with a kernel, or the reason why there is none.
    pub fn new(current: &Current<'_>) -> Result<(Lane, Option<Error>), Error> {
        let stream = current.stream()?;
        let kernel = current.kernel().and_then(|kernel| Ok((kernel, current.buffer(SCRATCH)?)));
        let (kernel, why) = match kernel {
            Ok(kernel) => (Some(kernel), None),
            Err(error) => (None, Some(error)),
        };
        let (tables, landing, asked) = (Vec::new(), Landing::default(), Asked::default());
        Ok((Lane { stream, kernel, tables, landing, asked }, why))
    }

    /// The pieces, of which those that lie one behind the other are one.
    pub fn runs(&mut self, current: &Current<'_>, pieces: &[Piece]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::with_capacity(pieces.len());
        for Piece { part, to } in pieces {
            self.landing.meet(current, part.page());
            let Some(bytes) = part.bytes() else { continue };
            let place = self.landing.find(part.page(), part.offset());
            let pinned = place.map(|(registered, offset)| Place { region: registered.device(), offset });
            let run = Run { from: bytes.as_ptr(), len: bytes.len(), to: *to, pinned };
            match runs.last_mut() {
                Some(last) if last.joins(&run) => last.len += run.len,
                _ => runs.push(run),
            }
        }
        runs
    }

    /// The way that is to be taken: `forced`, or what the costs say, where it can be.
    pub fn choose(&self, runs: &[Run], costs: &Costs, forced: Option<Way>) -> Way {
        // Pieces for one place have to be copied in the order in which they came, and a kernel's blocks are run in any, as is a batch.
        if self.kernel.is_none() || runs.iter().any(|run| run.pinned.is_none()) || meet(runs) {
            return Way::Copies;
        }
        let span = span(runs).map(|(_, len)| len).filter(|len| *len <= SCRATCH);
        let bytes = runs.iter().map(|run| run.len).sum();
        match forced.unwrap_or_else(|| costs.choose(runs.len(), bytes, span)) {
            Way::Span if span.is_none() => Way::Gather,
            Way::Batch if !self.stream.has_batches() => Way::Copies,
            way => way,
        }
    }

    /// Puts the runs into the stream. What the device reads beside them goes to `keep`, whether this succeeds or not.
    ///
    /// # Safety
    ///
    /// The bytes of each run stay readable and as they are, and `keep` is kept, until the stream has come past them or has failed for good. Each run goes to memory
    /// of the device. There are at most [`MOST`]. Where the way is not [`Way::Copies`], no two go to the same byte.
    pub unsafe fn put(
        &mut self,
        current: &Current<'_>,
        way: Way,
        runs: &[Run],
        keep: &mut Vec<Pinned>,
    ) -> Result<(), Error> {
        let unfit = Error::failed("cuLaunchKernel", 1);
        match (way, &self.kernel) {
            (Way::Copies, _) => {
                for run in runs {
                    self.asked.copies += 1;
                    // SAFETY: as the caller promises.
                    unsafe { self.stream.copy_in(current, run.to, run.from, run.len)? };
                }
                Ok(())
            }
            (Way::Batch, _) => {
                self.asked.copies += runs.len() as u64;
                // SAFETY: as the caller promises.
                unsafe {
                    self.stream.copy_in_batch(current, runs.iter().map(|run| (run.to, run.from, run.len)))
                }
            }
            (_, None) => Err(unfit),
            (way, Some((kernel, scratch))) => {
                // Where the kernel finds byte 0 of the region.
                let mut base = None;
                if way == Way::Span {
                    let (first, len) = span(runs).filter(|(_, len)| *len <= SCRATCH).ok_or(unfit.clone())?;
                    let start = runs.iter().find(|run| run.pinned.is_some_and(|place| place.offset == first));
                    let start = start.ok_or(unfit.clone())?.from;
                    self.asked.copies += 1;
                    // SAFETY: from the first run's beginning to the last one's end is inside of one pinned region. What lies between may be written
                    // meanwhile: it is copied to the scratch memory, and nobody reads it there. That memory has room for it, and the stream's
                    // order keeps it from the next span.
                    unsafe { self.stream.copy_in(current, scratch.at(), start, len)? };
                    base = Some(scratch.at().wrapping_sub(first as u64));
                }
                let mut table = match self.tables.pop() {
                    Some(table) => table,
                    None => current.pinned(MOST * ENTRY)?,
                };
                let mut count = 0;
                for (entry, run) in table.bytes_mut().chunks_exact_mut(ENTRY).zip(runs) {
                    let place = run.pinned.ok_or(unfit.clone())?;
                    let from = base.unwrap_or(place.region).wrapping_add(place.offset as u64);
                    entry[..8].copy_from_slice(&from.to_le_bytes());
                    entry[8..16].copy_from_slice(&run.to.to_le_bytes());
                    entry[16..20].copy_from_slice(&(run.len as u32).to_le_bytes());
                    count += 1;
                }
                // 8 KiB for each block, and a few blocks for each piece.
                let longest = runs.iter().map(|run| run.len).max().unwrap_or(0);
                let blocks = longest.div_ceil(8 << 10).clamp(1, 8) as u32;
                self.asked.launches += 1;
                let address = table.device();
                keep.push(table);
                // SAFETY: the table has just been written, is kept, and has `count` entries, each as the caller promises.
                unsafe { self.stream.gather(current, kernel, address, count, blocks) }
            }
        }
    }

    /// Tables that the device has read.
    pub fn take_back(&mut self, tables: Vec<Pinned>) {
        self.tables.extend(tables);
    }
}

impl Run {
    fn joins(&self, next: &Run) -> bool {
        let place = match (self.pinned, next.pinned) {
            (Some(this), Some(next)) => this.region == next.region && this.offset + self.len == next.offset,
            (None, None) => true,
            _ => false,
        };
        // The table's lengths have 32 bits, and a longer piece would be one for few threads.
        let short = self.len + next.len <= 64 << 10;
        place
            && short
            && self.from.wrapping_add(self.len) == next.from
            && self.to + self.len as u64 == next.to
    }
}

/// Whether some bytes are the place of two runs: a page that TCP has thrown the bytes of away is given out again at once, and may lie in one batch twice.
fn meet(runs: &[Run]) -> bool {
    let place = |run: &Run| (run.to, run.to + run.len as u64);
    // Mostly they come in the order of their places.
    if runs.windows(2).all(|two| place(&two[0]).1 <= two[1].to) {
        return false;
    }
    let mut places: Vec<_> = runs.iter().map(place).collect();
    places.sort_unstable();
    places.windows(2).any(|two| two[1].0 < two[0].1)
}

/// Where the runs begin in their region, and how many bytes lie from there to the last one's end; None if they are not of one.
pub(crate) fn span(runs: &[Run]) -> Option<(usize, usize)> {
    let region = runs.first()?.pinned?.region;
    let (mut first, mut end) = (usize::MAX, 0);
    for run in runs {
        let place = run.pinned.filter(|place| place.region == region)?;
        (first, end) = (first.min(place.offset), end.max(place.offset + run.len));
    }
    Some((first, end - first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_share_a_byte_meet_in_whatever_order_they_come() {
        let runs = |places: &[(u64, usize)]| -> Vec<Run> {
            let run =
                |(to, len): &(u64, usize)| Run { from: std::ptr::null(), len: *len, to: *to, pinned: None };
            places.iter().map(run).collect()
        };
        assert!(!meet(&runs(&[])) && !meet(&runs(&[(5, 5)])));
        assert!(!meet(&runs(&[(0, 10), (10, 10), (30, 1)])));
        assert!(!meet(&runs(&[(30, 1), (10, 10), (0, 10)])));
        assert!(meet(&runs(&[(0, 10), (9, 1)])) && meet(&runs(&[(9, 1), (0, 10)])));
        assert!(meet(&runs(&[(40, 8), (0, 10), (20, 4), (40, 8)])));
    }
}
