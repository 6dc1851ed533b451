//! What came behind a hole (docs/decisions/0044).
//!
//! It is kept as blocks without holes: what comes fills what is missing between them, and bytes that are there already stay, so of two
//! that claim one place the first counts. There is a state for it from the first hole to the last one.

use super::Moment;
use crate::wire::tcp::{Blocks, Seq};
use onecopy_chain::notify::{Fate, Segment, SegmentQueue};
use onecopy_chain::{Chain, Writer};
use onecopy_pool::Pages;
use std::collections::VecDeque;

/// Duplicates that a sender needs before it sends again: TCP_FASTRETRANS_THRESH. So many leave at once.
const DUPLICATES: u8 = 3;
/// ACKs that are left out at most: tcp_comp_sack_nr.
const LEFT_OUT: u8 = 44;
/// Nanoseconds that one waits at most: tcp_comp_sack_delay_ns.
const WAIT: u64 = 1_000_000;
/// Blocks that the next ACKs surely have room for: what is reported behind them may be forgotten (TCP_SACK_BLOCKS_EXPECTED).
const SURE: usize = 2;

/// Bytes without a hole.
#[derive(Debug)]
struct Block {
    from: Seq,
    /// Not empty.
    bytes: SegmentQueue,
}

impl Block {
    fn end(&self) -> Seq {
        // Bytes are inside a window, which has less than 1 GiB.
        self.from.plus(self.bytes.len() as u32)
    }
}

/// Blocks behind the first hole.
///
/// Invariant: they are in order, with a hole before each; none reaches behind `fin`.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    blocks: VecDeque<Block>,
    /// The sum of their true sizes.
    held: u64,
    /// Where the FIN stands, if it came.
    fin: Option<Seq>,
    /// Places in the blocks that grew last, the latest first: they are reported in this order (RFC 2018, section 4).
    recent: [Seq; Blocks::MAX],
    recents: u8,
    /// ACKs in a row that said nothing new but of blocks.
    duplicates: u8,
    /// ACKs that were left out since.
    left_out: u8,
    /// RCV.NXT of these.
    nxt: Seq,
    /// When the left out ones are made up for.
    timeout: u64,
}

impl Reassembly {
    /// Whether there is nothing behind a hole.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.fin.is_none()
    }

    /// Bytes of memory that it keeps.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Where the last byte that came ends.
    pub fn highest(&self) -> Option<Seq> {
        let bytes = self.blocks.back().map(Block::end);
        self.fin.map(|fin| fin.plus(1)).or(bytes)
    }

    /// Where the FIN stands.
    pub fn fin(&self) -> Option<Seq> {
        self.fin
    }

    /// The FIN stands at `fin`: what is behind it is dropped. The first one counts, but none behind another.
    pub fn set_fin(&mut self, fin: Seq) {
        if self.fin.is_none_or(|known| fin.before(known)) {
            self.fin = Some(fin);
            while let Some(last) = self.blocks.back_mut()
                && last.end().after(fin)
            {
                let keep = fin.since(last.from).max(0) as u64;
                let before = last.bytes.true_size();
                cut(&mut last.bytes, keep);
                self.held -= before - last.bytes.true_size();
                if keep == 0 {
                    self.blocks.pop_back();
                }
            }
        }
    }

    /// The first block with bytes at `at`, or that ends there, or behind it.
    fn from(&self, at: Seq) -> usize {
        self.blocks.partition_point(|block| block.end().before(at))
    }

    /// Puts `payload`, which begins at `from` behind the first hole, where bytes are missing. `twice` is told what was there already.
    /// Returns bytes that are new.
    pub fn insert(&mut self, from: Seq, payload: Segment<Chain>, mut twice: impl FnMut(Seq, Seq)) -> u32 {
        let end = from.plus(payload.payload().len() as u32);
        let (mut at, mut rest, mut new) = (from, payload, 0);
        let index = self.from(from);
        while at.before(end) {
            let next = self.blocks.get(index);
            if let Some(block) = next.filter(|block| !block.from.after(at) && at.before(block.end())) {
                let until = if block.end().before(end) { block.end() } else { end };
                twice(at, until);
                skip(&mut rest, until.since(at) as u32);
                at = until;
                continue;
            }
            // At the end of a block, or in a hole, up to the next block.
            let joins = next.is_some_and(|block| block.end() == at);
            let behind = self.blocks.get(index + usize::from(joins)).map(|block| block.from);
            let until = behind.filter(|behind| behind.before(end)).unwrap_or(end);
            let len = until.since(at) as u32;
            let piece = split(&mut rest, len);
            if !joins {
                self.blocks.insert(index, Block { from: at, bytes: SegmentQueue::new() });
            }
            self.push(index, piece);
            (at, new) = (until, new + len);
            if behind == Some(at) {
                self.join(index);
            }
        }
        new
    }

    fn push(&mut self, index: usize, piece: Segment<Chain>) {
        let bytes = &mut self.blocks[index].bytes;
        let before = bytes.true_size();
        bytes.push(piece);
        self.held = self.held - before + bytes.true_size();
    }

    /// Block `index` reaches the next one.
    fn join(&mut self, index: usize) {
        let Some(mut next) = self.blocks.remove(index + 1) else { return };
        let bytes = &mut self.blocks[index].bytes;
        let before = bytes.true_size() + next.bytes.true_size();
        bytes.append(&mut next.bytes);
        self.held = self.held - before + bytes.true_size();
    }

    /// Where the first block begins.
    pub fn first(&self) -> Option<(Seq, Seq)> {
        self.blocks.front().map(|block| (block.from, block.end()))
    }

    /// Moves the first block behind `queue`.
    pub fn take_first(&mut self, queue: &mut SegmentQueue) {
        if let Some(mut block) = self.blocks.pop_front() {
            self.held -= block.bytes.true_size();
            queue.append(&mut block.bytes);
        }
    }

    /// Bytes of data in its blocks, and how many these are.
    pub fn extents(&self) -> (u64, u64) {
        (self.blocks.iter().map(|block| block.bytes.len()).sum(), self.blocks.len() as u64)
    }

    /// Copies together what can be read, where `worth` says so of a block, until `enough` bytes of memory are won. Returns how many are.
    pub fn collapse<P: Pages + ?Sized>(
        &mut self,
        writer: &Writer<'_, P>,
        worth: impl Fn(&SegmentQueue) -> bool,
        enough: u64,
    ) -> u64 {
        let held = self.held;
        for block in self.blocks.iter_mut().filter(|block| worth(&block.bytes)) {
            let won = held - self.held;
            if won >= enough {
                break;
            }
            let before = block.bytes.true_size();
            // Without pages it stays as it is.
            let _ = block.bytes.collapse(writer, enough - won);
            self.held = self.held - before + block.bytes.true_size();
        }
        held - self.held
    }

    /// Lets go of the highest bytes, those in front of `incoming` excepted, as long as `enough` does not say so of the memory that
    /// is still held; each time at least `step` bytes of memory (tcp_prune_ofo_queue). Returns bytes that are gone.
    pub fn renege(&mut self, incoming: Seq, step: u64, enough: impl Fn(u64) -> bool) -> u32 {
        let (mut gone, mut freed) = (0, 0);
        while let Some(last) = self.blocks.back_mut() {
            let Some(piece) = last.bytes.segments().next_back() else { break };
            let len = piece.payload().len() as u64;
            let keep = last.bytes.len() - len;
            if incoming.after(last.from.plus(keep as u32)) {
                break;
            }
            let before = last.bytes.true_size();
            cut(&mut last.bytes, keep);
            freed += before - last.bytes.true_size();
            self.held -= before - last.bytes.true_size();
            gone += len as u32;
            if keep == 0 {
                self.blocks.pop_back();
            }
            if freed >= step {
                if enough(self.held) {
                    break;
                }
                freed = 0;
            }
        }
        gone
    }

    /// The block that byte `place` is in, as it is reported: a FIN is part of it.
    fn extent(&self, place: Seq) -> Option<(Seq, Seq)> {
        let block = self.blocks.partition_point(|block| !block.from.after(place)).checked_sub(1);
        let block = block.map(|index| &self.blocks[index]);
        let fin = |end: Seq| if self.fin == Some(end) { end.plus(1) } else { end };
        match block {
            Some(block) if place.before(fin(block.end())) => Some((block.from, fin(block.end()))),
            _ if self.fin == Some(place) => Some((place, place.plus(1))),
            _ => None,
        }
    }

    /// Bytes came at `place`: its block is reported first. True if it stood so far behind that it may not have been reported at all.
    pub fn note(&mut self, place: Seq) -> bool {
        let Some(extent) = self.extent(place) else { return false };
        let old = self.recent;
        let mut stood = None;
        let mut count = 1;
        self.recent[0] = place;
        for (index, &other) in old.iter().take(self.recents.into()).enumerate() {
            match self.extent(other) {
                Some(theirs) if theirs == extent => {
                    stood.get_or_insert(index);
                }
                Some(_) if count < Blocks::MAX => {
                    self.recent[count] = other;
                    count += 1;
                }
                _ => {}
            }
        }
        let stood = stood.unwrap_or(self.recents.into());
        self.recents = count as u8;
        stood >= SURE
    }

    /// The blocks that grew last, the latest first.
    pub fn report(&self, blocks: &mut Blocks, room: usize) {
        for &place in self.recent.iter().take(self.recents.into()) {
            if blocks.len() >= room {
                break;
            }
            if let Some((from, end)) = self.extent(place)
                && !blocks.iter().any(|block| block == (from, end))
            {
                blocks.push(from, end);
            }
        }
    }

    /// The end of the last block that is reported: where a reset may stand (RFC 5961, section 3.2, as Linux extends it).
    pub fn rightmost(&self) -> Option<Seq> {
        let ends = self.recent.iter().take(self.recents.into());
        ends.filter_map(|&place| self.extent(place))
            .map(|(_, end)| end)
            .reduce(|a, b| if b.after(a) { b } else { a })
    }

    /// An ACK that says nothing but blocks: whether it leaves now, or is left out for a while.
    pub fn duplicate(&mut self, moment: &Moment, nxt: Seq, trips: u32) -> bool {
        if self.left_out >= LEFT_OUT {
            return true;
        }
        if self.nxt != nxt {
            (self.nxt, self.duplicates) = (nxt, 0);
        }
        if self.duplicates < DUPLICATES {
            self.duplicates += 1;
            return true;
        }
        self.left_out += 1;
        if self.left_out == 1 {
            // A twentieth of a round trip, of the shorter one that is known.
            let trip = match (u64::from(trips) * 125, moment.srtt) {
                (trip, 0) => trip,
                (trip, srtt) => trip.min(srtt),
            };
            self.timeout = moment.now + (trip / 20).min(WAIT);
        }
        false
    }

    /// When ACKs that were left out are made up for.
    pub fn deadline(&self) -> Option<u64> {
        (self.left_out > 0).then_some(self.timeout)
    }

    /// One has left.
    pub fn acknowledged(&mut self) {
        self.left_out = 0;
    }
}

/// Whether copying together into pages of `page` bytes would free a quarter of the memory, if all can be read. (What was copied so is not
/// copied again, nor is one byte in a page of its own: who sends such ones with holes between them costs no more than others.)
pub(super) fn bloated(bytes: &SegmentQueue, page: u64) -> bool {
    let least = bytes.len().div_ceil(page.max(1)) * page;
    bytes.true_size() > least && bytes.true_size() / 4 * 3 >= least
}

/// Takes the first `len` bytes out.
pub(super) fn split(rest: &mut Segment<Chain>, len: u32) -> Segment<Chain> {
    let behind = rest.divide(len as usize).expect("it is inside, and no checksum is left to be finished");
    std::mem::replace(rest, behind)
}

/// Frees its first `len` bytes.
pub(super) fn skip(rest: &mut Segment<Chain>, len: u32) {
    if len > 0 {
        split(rest, len).free(Fate::Sent);
    }
}

/// Keeps the first `len` bytes.
fn cut(bytes: &mut SegmentQueue, len: u64) {
    bytes.truncate(len, Fate::Sent).expect("no checksum is left to be finished");
}
