//! A list of segments: what a socket has to send, or has received.

use super::outcome::Fate;
use super::segment::{Payload, Segment};
use crate::chain::Chain;
use crate::checksum::Checksum;
use crate::error::ChainError;
use crate::kind::Kind;
use crate::writer::Writer;
use onecopy_pool::Pages;
use std::collections::VecDeque;
use std::fmt;

/// Bytes up to which a segment is joined to the one before it. What is larger stands by itself: its place is found at once.
const JOINED: usize = 64 << 10;

/// Segments one after another, as one run of bytes: a list of chains, since a chain is of one kind of memory.
///
/// Places are counted from the first byte that is left. One is looked for from the nearer end, so what is sent next and what was sent
/// first, which are asked for most, are found soon.
///
/// Bytes are refused nowhere; how many there are, and which memory they keep ([`SegmentQueue::true_size`]), is its owner's to bound.
///
/// Invariant: no segment is empty; `len` and `true_size` are the sums of theirs.
#[derive(Default)]
pub struct SegmentQueue {
    list: VecDeque<Segment<Chain>>,
    len: u64,
    true_size: u64,
}

impl SegmentQueue {
    /// Without bytes. Allocates nothing.
    pub const fn new() -> SegmentQueue {
        SegmentQueue { list: VecDeque::new(), len: 0, true_size: 0 }
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the pages that it keeps from being used again: [`Chain::true_size`] of all. What a limit on memory has to count, since one
    /// byte keeps a page.
    #[inline]
    pub fn true_size(&self) -> u64 {
        self.true_size
    }

    /// The segments in order, none of them empty.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = &Segment<Chain>> {
        self.list.iter()
    }

    /// Bytes at its front that lie in one piece of memory; 0 where there are none.
    pub fn first_piece(&self) -> usize {
        let first = self.list.front().and_then(|segment| segment.payload().fragments().next());
        first.map_or(0, |fragment| fragment.len())
    }

    /// Puts `segment` at the end. A small one becomes part of the last one, if its memory is of the same kind. One without bytes is
    /// freed, as [`Fate::Sent`]: there is nothing of it to be transmitted.
    pub fn push(&mut self, mut segment: Segment<Chain>) {
        self.take_in(&mut segment);
    }

    /// As [`SegmentQueue::push`], out of where it lies: `segment` is empty then.
    pub fn take_in(&mut self, segment: &mut Segment<Chain>) {
        let (len, true_size) = (segment.payload().len(), segment.payload().true_size());
        if len == 0 {
            std::mem::take(segment).free(Fate::Sent);
            return;
        }
        self.len += len as u64;
        self.true_size += true_size as u64;
        if let Some(last) = self.list.back_mut().filter(|last| joins(last.payload(), segment.payload())) {
            let sizes = last.payload().true_size() + true_size;
            if last.take_over(segment).is_ok() {
                // A page that both have counts once.
                self.true_size -= (sizes - last.payload().true_size()) as u64;
                return;
            }
        }
        self.list.push_back(std::mem::take(segment));
    }

    /// Copies `bytes` to the end: behind copied ones, as long as nobody else holds their page (a page for each small write is dear), and in
    /// pages of the writer's.
    ///
    /// # Errors
    ///
    /// As [`Writer::append`]; nothing is done then.
    pub fn write<A: Pages + ?Sized>(
        &mut self,
        writer: &Writer<'_, A>,
        bytes: &[u8],
    ) -> Result<(), ChainError> {
        let room = |last: &&mut Segment<Chain>| {
            let lent = last.notif().map_or(0, |notif| notif.pins().end());
            let last = last.payload();
            let copied = last.kind() == Some(Kind::Host) && lent < last.len() as u64;
            let closed = matches!(last.checksum(), Checksum::Partial { .. });
            copied && last.tailroom() > 0 && !closed && last.len() + bytes.len() <= JOINED
        };
        let Some(last) = self.list.back_mut().filter(room) else {
            let mut chain = Chain::new();
            writer.append(&mut chain, bytes)?;
            self.push(chain.into());
            return Ok(());
        };
        let before = last.payload().true_size();
        writer.append(last.payload_mut(), bytes)?;
        self.true_size += (last.payload().true_size() - before) as u64;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Moves all of `other` behind what is here; it is empty then.
    pub fn append(&mut self, other: &mut SegmentQueue) {
        for segment in std::mem::take(other).list {
            self.push(segment);
        }
    }

    /// Copies what is shorter than the writer's copy-break together with its neighbours, where that frees memory ([`Writer::collapse`]): in
    /// segments of our own memory. A peer's and a device's stay as they are, and keep their pages: of such ones a queue is bounded by what it
    /// refuses, not by what it copies. Begins with the first bytes, and ends once `enough` bytes of memory are won ([`u64::MAX`] for all that
    /// can be). A segment that lies in as few of the writer's pages as it can is not looked at again. Returns by how much the true size
    /// fell, in bytes.
    ///
    /// # Errors
    ///
    /// [`ChainError::NoPage`], with the segments before done.
    pub fn collapse<A: Pages + ?Sized>(
        &mut self,
        writer: &Writer<'_, A>,
        enough: u64,
    ) -> Result<u64, ChainError> {
        let page = writer.pages().page_len() as usize;
        let packs = |payload: &Chain| {
            let least = payload.len().div_ceil(page.max(1)) * page;
            payload.kind() == Some(Kind::Host) && payload.true_size() > least
        };
        let mut freed = 0;
        for segment in self.list.iter_mut().filter(|segment| packs(segment.payload())) {
            if freed >= enough {
                break;
            }
            let now = writer.collapse(segment.payload_mut())? as u64;
            self.true_size -= now;
            freed += now;
        }
        Ok(freed)
    }

    /// The first segment, and what is known of it.
    pub fn first(&self) -> Option<&Segment<Chain>> {
        self.list.front()
    }

    /// Up to `len` bytes from byte `offset` by reference, as [`Segment::range`]: fewer where bytes behind these cannot be in one chain with
    /// them ([`Kind::join`](crate::Kind::join)), never none of those that there are.
    ///
    /// # Errors
    ///
    /// [`ChainError::BeyondEnd`], and as [`Chain::range`].
    pub fn range(&self, offset: u64, len: usize) -> Result<Segment<Chain>, ChainError> {
        let mut range = Segment::default();
        self.range_to(offset, len, &mut range)?;
        Ok(range)
    }

    /// As [`SegmentQueue::range`], put where it is to be: `range`, which is empty, and stays so on an error.
    ///
    /// # Errors
    ///
    /// As [`SegmentQueue::range`].
    pub fn range_to(&self, offset: u64, len: usize, range: &mut Segment<Chain>) -> Result<(), ChainError> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len) {
            let at = usize::try_from(offset).unwrap_or(usize::MAX).saturating_add(len);
            return Err(ChainError::BeyondEnd { at, len: usize::try_from(self.len).unwrap_or(usize::MAX) });
        }
        if len == 0 {
            return Ok(());
        }
        let (index, within) = self.find(offset);
        let first = &self.list[index];
        first.range_to(within, len.min(first.payload().len() - within), range)?;
        if range.payload().len() == len {
            return Ok(());
        }
        for next in self.list.range(index + 1..) {
            let left = len - range.payload().len();
            if left == 0 {
                break;
            }
            let part = next.range(0, left.min(next.payload().len())).inspect_err(|_| {
                range.payload_mut().clear();
                *range.notif_mut() = None;
            })?;
            if range.concat(part).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Takes the first bytes out, at most `max`, of one kind of memory; `None` when there are none, or `max` is 0.
    ///
    /// # Errors
    ///
    /// [`ChainError::Unfinished`], as [`Chain::split_to`].
    pub fn take(&mut self, max: usize) -> Result<Option<Segment<Chain>>, ChainError> {
        let Some(first) = self.list.front_mut().filter(|_| max > 0) else { return Ok(None) };
        let before = first.payload().true_size();
        let taken = if first.payload().len() > max {
            let rest = first.divide(max)?;
            self.true_size += rest.payload().true_size() as u64;
            std::mem::replace(first, rest)
        } else {
            self.list.pop_front().expect("there is one")
        };
        self.true_size -= before as u64;
        self.len -= taken.payload().len() as u64;
        Ok(Some(taken))
    }

    /// Frees the first `n` bytes, and says what became of them: what an ACK covers.
    ///
    /// # Errors
    ///
    /// [`ChainError::BeyondEnd`], with nothing done; [`ChainError::Unfinished`] where a checksum is in the way in the segment that `n` lies in,
    /// with all before that freed.
    pub fn advance(&mut self, n: u64, fate: Fate) -> Result<(), ChainError> {
        self.inside(n)?;
        let mut left = n;
        while left > 0
            && let Some(first) = self.list.front_mut()
        {
            let (len, before) = (first.payload().len() as u64, first.payload().true_size() as u64);
            let part = left.min(len);
            let after = if part < len {
                // A segment has less than 4 GiB.
                first.advance(part as usize, fate)?;
                first.payload().true_size() as u64
            } else {
                0
            };
            self.true_size -= before - after;
            self.len -= part;
            left -= part;
            if part == len
                && let Some(gone) = self.list.pop_front()
            {
                gone.free(fate);
            }
        }
        Ok(())
    }

    /// Keeps the first `n` bytes, frees the rest, and says what became of it. A shorter one stays as it is.
    ///
    /// # Errors
    ///
    /// [`ChainError::Unfinished`], as [`SegmentQueue::advance`].
    pub fn truncate(&mut self, n: u64, fate: Fate) -> Result<(), ChainError> {
        while self.len > n
            && let Some(mut last) = self.list.pop_back()
        {
            let (len, size) = (last.payload().len() as u64, last.payload().true_size() as u64);
            let keep = len.saturating_sub(self.len - n);
            let kept = if keep == 0 {
                last.free(fate);
                Ok(0)
            } else {
                let cut = last.truncate(keep as usize, fate);
                let size = last.payload().true_size() as u64;
                self.list.push_back(last);
                cut.map(|()| size)
            };
            let kept = kept?;
            self.true_size -= size - kept;
            self.len -= len - keep;
        }
        Ok(())
    }

    /// Frees all, and says what became of it.
    pub fn clear(&mut self, fate: Fate) {
        self.list.drain(..).for_each(|segment| segment.free(fate));
        *self = SegmentQueue::new();
    }

    /// Whether it is empty, and has memory for itself all the same.
    pub fn is_restless(&self) -> bool {
        self.list.is_empty() && self.list.capacity() > 0
    }

    /// Gives back what memory it has for itself and does not need: for an owner that is idle. Drained and filled again it keeps its list.
    pub fn rest(&mut self) {
        self.list.shrink_to_fit();
    }

    /// Which segment byte `offset`, which there is, lies in, and where.
    fn find(&self, offset: u64) -> (usize, usize) {
        if offset <= self.len / 2 {
            let mut left = offset;
            for (index, segment) in self.list.iter().enumerate() {
                let len = segment.payload().len() as u64;
                if left < len {
                    return (index, left as usize);
                }
                left -= len;
            }
        } else {
            let mut behind = self.len - offset;
            for (index, segment) in self.list.iter().enumerate().rev() {
                let len = segment.payload().len() as u64;
                if behind <= len {
                    return (index, (len - behind) as usize);
                }
                behind -= len;
            }
        }
        unreachable!("it was looked at before")
    }

    fn inside(&self, n: u64) -> Result<(), ChainError> {
        let small = |n| usize::try_from(n).unwrap_or(usize::MAX);
        if n <= self.len { Ok(()) } else { Err(ChainError::BeyondEnd { at: small(n), len: small(self.len) }) }
    }
}

/// Whether two neighbours are better one.
fn joins(last: &Chain, next: &Chain) -> bool {
    let open = |chain: &Chain| matches!(chain.checksum(), Checksum::Partial { .. });
    last.kind() == next.kind()
        && last.size() as usize + next.size() as usize <= JOINED
        && !open(last)
        && !open(next)
}

impl fmt::Debug for SegmentQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SegmentQueue({} bytes in {} segments)", self.len, self.list.len())
    }
}
