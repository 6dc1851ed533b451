//! Positions: how much room and how much data there is, and whether the other side can be believed.
//!
//! The sender alone moves `head`, the receiver alone moves `tail`; each keeps its own position privately and
//! looks at the other's only when what it saw last does not suffice: the two lines are then left alone by
//! whoever does not need them.

use crate::{Header, PeerMisbehaved};
use onecopy_sync::atomic::Ordering;

/// Positions beyond this are nobody's: at 100 GB/s they come after a year, and sums of them never wrap.
pub const FARTHEST: u64 = 1 << 62;

/// The sender's view.
#[derive(Debug)]
pub struct WriteIndex {
    capacity: u64,
    head: u64,
    /// Invariant: `seen_tail <= head` and `head - seen_tail <= capacity`.
    seen_tail: u64,
}

impl WriteIndex {
    /// Of an empty ring.
    pub fn new(capacity: usize) -> WriteIndex {
        WriteIndex { capacity: capacity as u64, head: 0, seen_tail: 0 }
    }

    /// Of a ring that another process has sent into: `head` bytes published, `tail` given back as far as it had seen.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Member`].
    pub fn resume(capacity: usize, head: u64, tail: u64) -> Result<WriteIndex, PeerMisbehaved> {
        let capacity = capacity as u64;
        // (Not by one subtraction: of a tail far beyond, less than a lap behind where numbers wrap, it makes a small one.)
        if tail > head || head - tail > capacity || head > FARTHEST {
            return Err(PeerMisbehaved::Member);
        }
        Ok(WriteIndex { capacity, head, seen_tail: tail })
    }

    /// Bytes given back, as far as was looked.
    pub fn seen_tail(&self) -> u64 {
        self.seen_tail
    }

    /// Bytes published.
    #[inline]
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Bytes of room; looks at the receiver's line only when less than `want` is known.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Tail`].
    #[inline]
    pub fn room(&mut self, header: &Header, want: usize) -> Result<usize, PeerMisbehaved> {
        let known = self.capacity - (self.head - self.seen_tail);
        if known >= want as u64 {
            return Ok(known as usize);
        }
        // Acquire pairs with the Release store in `ReadIndex::give_back`: the receiver has done with the bytes
        // before `tail`, so that overwriting them cannot be seen by its copy.
        let tail = header.reader.0.tail.load(Ordering::Acquire);
        if tail < self.seen_tail || tail > self.head {
            return Err(PeerMisbehaved::Tail { read: tail, seen: self.seen_tail });
        }
        self.seen_tail = tail;
        Ok((self.capacity - (self.head - tail)) as usize)
    }

    /// Makes the next `len` bytes visible to the receiver.
    ///
    /// # Panics
    ///
    /// When there was not that much room.
    #[inline]
    pub fn publish(&mut self, header: &Header, len: usize) {
        assert!(len as u64 <= self.capacity - (self.head - self.seen_tail), "published beyond the room");
        self.head += len as u64;
        // Release pairs with the Acquire load in `ReadIndex::available`: the bytes are there before the count.
        // (Non-temporal stores were fenced by the copy engine.)
        header.writer.0.head.store(self.head, Ordering::Release);
    }
}

/// The receiver's view.
#[derive(Debug)]
pub struct ReadIndex {
    capacity: u64,
    tail: u64,
    /// Next byte to take. Invariant: `tail <= read <= seen_head`.
    read: u64,
    /// Invariant: `seen_head - tail <= capacity`.
    seen_head: u64,
    /// Marks that the sender had laid when it published `seen_head`, or more; unchecked.
    seen_marks: u64,
}

impl ReadIndex {
    /// Of an empty ring.
    pub fn new(capacity: usize) -> ReadIndex {
        ReadIndex { capacity: capacity as u64, tail: 0, read: 0, seen_head: 0, seen_marks: 0 }
    }

    /// Of a ring that another process has received from: `read` bytes taken, `tail` of them given back, `marks` seen.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Member`].
    pub fn resume(capacity: usize, tail: u64, read: u64, marks: u64) -> Result<ReadIndex, PeerMisbehaved> {
        let capacity = capacity as u64;
        if tail > read || read - tail > capacity || read > FARTHEST {
            return Err(PeerMisbehaved::Member);
        }
        Ok(ReadIndex { capacity, tail, read, seen_head: read, seen_marks: marks })
    }

    /// Tells the sender once more what was given back: a member that died may not have come to it.
    pub fn repeat(&self, header: &Header) {
        // Release as in `give_back`.
        header.reader.0.tail.store(self.tail, Ordering::Release);
    }

    /// Bytes that can be taken; looks at the sender's line only when less than `want` is known.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Head`].
    #[inline]
    pub fn available(&mut self, header: &Header, want: usize) -> Result<usize, PeerMisbehaved> {
        let known = self.seen_head - self.read;
        if known >= want as u64 && known > 0 {
            return Ok(known as usize);
        }
        // Acquire pairs with the Release store in `WriteIndex::publish`: the bytes before `head` are there.
        let head = header.writer.0.head.load(Ordering::Acquire);
        // One subtraction covers both lies: a head behind the tail wraps to something huge.
        if head < self.seen_head || head.wrapping_sub(self.tail) > self.capacity {
            return Err(PeerMisbehaved::Head { read: head, seen: self.seen_head });
        }
        self.seen_head = head;
        // After the head: a mark before it is counted. From the same line, so that it costs nothing. Acquire pairs
        // with the Release store in `MarkWriter::lay`: marks that are counted are there.
        self.seen_marks = header.writer.0.marks.load(Ordering::Acquire);
        Ok((head - self.read) as usize)
    }

    /// Marks that the sender is known to have laid: all that lie before what [`ReadIndex::available`] said, and
    /// maybe more. Unchecked.
    #[inline]
    pub fn seen_marks(&self) -> u64 {
        self.seen_marks
    }

    /// Next byte to take.
    #[inline]
    pub fn read(&self) -> u64 {
        self.read
    }

    /// First byte not given back.
    #[inline]
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Takes `len` bytes: they stay where they are until given back.
    ///
    /// # Panics
    ///
    /// When fewer are known to be there.
    #[inline]
    pub fn take(&mut self, len: usize) {
        assert!(len as u64 <= self.seen_head - self.read, "took more than there is");
        self.read += len as u64;
    }

    /// Gives back everything before position `to`. Returns whether that moved anything.
    ///
    /// # Panics
    ///
    /// When `to` was not taken yet, or is behind what was given back.
    #[inline]
    pub fn give_back(&mut self, header: &Header, to: u64) -> bool {
        assert!(to >= self.tail && to <= self.read, "gave back what was not taken");
        if to == self.tail {
            return false;
        }
        self.tail = to;
        // Release pairs with the Acquire load in `WriteIndex::room`: our reads of the bytes are over.
        header.reader.0.tail.store(to, Ordering::Release);
        true
    }

    /// Bytes of room that the sender has, as far as this side knows: data that it has not looked at counts
    /// as room, so this is an upper bound.
    #[inline]
    pub fn room(&self) -> usize {
        (self.capacity - (self.seen_head - self.tail)) as usize
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use onecopy_sync::atomic::Ordering::Relaxed;

    #[test]
    fn positions_follow_each_other_over_many_rounds() {
        let header = Header::default();
        let (mut w, mut r) = (WriteIndex::new(192), ReadIndex::new(192));
        for round in 0..1000usize {
            let n = round % 193;
            assert_eq!(w.room(&header, n).unwrap().max(n), w.room(&header, n).unwrap());
            w.publish(&header, n);
            assert_eq!(r.available(&header, n).unwrap(), n);
            r.take(n);
            r.give_back(&header, r.read());
        }
        assert_eq!(w.head(), r.tail());
    }

    #[test]
    fn who_goes_on_believes_no_impossible_position() {
        for (read, tail) in [(5, 6), (5, u64::MAX - 3), (129, 0), (FARTHEST + 1, FARTHEST), (0, u64::MAX)] {
            assert!(
                matches!(WriteIndex::resume(128, read, tail), Err(PeerMisbehaved::Member)),
                "{read} {tail}"
            );
            assert!(
                matches!(ReadIndex::resume(128, tail, read, 0), Err(PeerMisbehaved::Member)),
                "{read} {tail}"
            );
        }
        assert!(WriteIndex::resume(128, FARTHEST, FARTHEST - 128).is_ok());
        assert!(ReadIndex::resume(128, FARTHEST - 128, FARTHEST, 0).is_ok());
    }

    #[test]
    fn every_impossible_head_is_a_lie() {
        let header = Header::default();
        let mut r = ReadIndex::new(128);
        header.writer.0.head.store(100, Relaxed);
        assert_eq!(r.available(&header, 1), Ok(100));
        r.take(50);
        for head in [0, 99, 129, u64::MAX, 1 << 63] {
            header.writer.0.head.store(head, Relaxed);
            assert_eq!(r.available(&header, 128), Err(PeerMisbehaved::Head { read: head, seen: 100 }));
        }
        header.writer.0.head.store(128, Relaxed);
        assert_eq!(r.available(&header, 128), Ok(78));
    }

    #[test]
    fn every_impossible_tail_is_a_lie() {
        let header = Header::default();
        let mut w = WriteIndex::new(128);
        w.publish(&header, 128);
        header.reader.0.tail.store(64, Relaxed);
        assert_eq!(w.room(&header, 1), Ok(64));
        for tail in [0, 63, 129, u64::MAX] {
            header.reader.0.tail.store(tail, Relaxed);
            assert_eq!(w.room(&header, 65), Err(PeerMisbehaved::Tail { read: tail, seen: 64 }));
        }
    }
}
