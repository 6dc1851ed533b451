//! Positions: how much room and how much data there is, and whether the other side's position is possible.
//!
//! The sender alone moves `head`, and the receiver alone moves `tail`. Each side keeps its own position
//! privately. It looks at the other's position only when the last value it saw does not suffice. So a side
//! leaves a line alone while it does not need it.

use crate::{Header, PeerMisbehaved};
use onecopy_sync::atomic::Ordering;

/// No valid position is beyond this: at 100 GB/s a stream gets there after a year. Sums of valid positions
/// never wrap.
pub const FARTHEST: u64 = 1 << 62;

/// The sender's view of the positions.
#[derive(Debug)]
pub struct WriteIndex {
    capacity: u64,
    head: u64,
    /// Invariant: `seen_tail <= head` and `head - seen_tail <= capacity`.
    seen_tail: u64,
}

impl WriteIndex {
    /// Makes the positions of an empty ring.
    pub fn new(capacity: usize) -> WriteIndex {
        WriteIndex { capacity: capacity as u64, head: 0, seen_tail: 0 }
    }

    /// Makes the positions of a ring that another process has sent into. That process had published `head`
    /// bytes, and `tail` is the last value it had seen of the bytes given back.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Member`].
    pub fn resume(capacity: usize, head: u64, tail: u64) -> Result<WriteIndex, PeerMisbehaved> {
        let capacity = capacity as u64;
        // One subtraction would not do: a tail far beyond the head can wrap to a small difference.
        if tail > head || head - tail > capacity || head > FARTHEST {
            return Err(PeerMisbehaved::Member);
        }
        Ok(WriteIndex { capacity, head, seen_tail: tail })
    }

    /// Returns the bytes given back, as of the last look.
    pub fn seen_tail(&self) -> u64 {
        self.seen_tail
    }

    /// Returns the bytes published.
    #[inline]
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Returns the bytes of room. Looks at the receiver's line only when fewer than `want` are known.
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
        // Acquire pairs with the Release store in `ReadIndex::give_back`: the receiver has finished with the
        // bytes before `tail`, so its copy cannot see them overwritten.
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
    /// If there was less room than that.
    #[inline]
    pub fn publish(&mut self, header: &Header, len: usize) {
        assert!(len as u64 <= self.capacity - (self.head - self.seen_tail), "published beyond the room");
        self.head += len as u64;
        // Release pairs with the Acquire load in `ReadIndex::available`: the bytes are there before the
        // count. The copy engine has already fenced its non-temporal stores.
        header.writer.0.head.store(self.head, Ordering::Release);
    }
}

/// The receiver's view of the positions.
#[derive(Debug)]
pub struct ReadIndex {
    capacity: u64,
    tail: u64,
    /// Next byte to take. Invariant: `tail <= read <= seen_head`.
    read: u64,
    /// Invariant: `seen_head - tail <= capacity`.
    seen_head: u64,
    /// Marks that the sender had laid when it published `seen_head`, or more. Unchecked.
    seen_marks: u64,
}

impl ReadIndex {
    /// Makes the positions of an empty ring.
    pub fn new(capacity: usize) -> ReadIndex {
        ReadIndex { capacity: capacity as u64, tail: 0, read: 0, seen_head: 0, seen_marks: 0 }
    }

    /// Makes the positions of a ring that another process has received from. That process had taken `read`
    /// bytes, given `tail` of them back, and seen `marks` marks.
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

    /// Tells the sender again how much was given back: a member that died may not have done so.
    pub fn repeat(&self, header: &Header) {
        // Release, as in `give_back`.
        header.reader.0.tail.store(self.tail, Ordering::Release);
    }

    /// Returns the bytes that can be taken. Looks at the sender's line only when fewer than `want` are known.
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
        // One subtraction finds both impossible heads: a head behind the tail wraps to a huge number.
        if head < self.seen_head || head.wrapping_sub(self.tail) > self.capacity {
            return Err(PeerMisbehaved::Head { read: head, seen: self.seen_head });
        }
        self.seen_head = head;
        // This load follows that of the head, so a mark before the head is counted. It is in the same line
        // and costs nothing. Acquire pairs with the Release store in `MarkWriter::lay`: marks that are
        // counted are there.
        self.seen_marks = header.writer.0.marks.load(Ordering::Acquire);
        Ok((head - self.read) as usize)
    }

    /// Returns the marks that the sender is known to have laid: all before the end that
    /// [`ReadIndex::available`] found, and maybe more. Unchecked.
    #[inline]
    pub fn seen_marks(&self) -> u64 {
        self.seen_marks
    }

    /// Returns the position of the next byte to take.
    #[inline]
    pub fn read(&self) -> u64 {
        self.read
    }

    /// Returns the position of the first byte that was not given back.
    #[inline]
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Takes `len` bytes. They stay in the ring until they are given back.
    ///
    /// # Panics
    ///
    /// If fewer are known to be there.
    #[inline]
    pub fn take(&mut self, len: usize) {
        assert!(len as u64 <= self.seen_head - self.read, "took more than there is");
        self.read += len as u64;
    }

    /// Gives back everything before position `to`. Returns whether that moved anything.
    ///
    /// # Panics
    ///
    /// If `to` was not taken yet, or is behind what was given back.
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

    /// Returns an upper bound of the room that the sender has. Data that this side has not looked at counts
    /// as room.
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
