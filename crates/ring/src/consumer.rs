//! The receiver's side.

use crate::index::ReadIndex;
use crate::marks::{self, Mark, MarkReader};
use crate::{Header, Lie, Ring, memory};
use std::collections::VecDeque;

/// Names one borrow of a [`Consumer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BorrowId(u64);

#[derive(Debug)]
struct Borrow {
    id: BorrowId,
    start: u64,
    end: u64,
}

/// The receiver's side of a ring: its positions, the way out, and what is lent to views.
#[derive(Debug)]
pub struct Consumer {
    ring: Ring,
    index: ReadIndex,
    /// Where the next byte to take lies. Invariant: < capacity.
    offset: usize,
    /// In stream order: the first one holds the tail back.
    borrows: VecDeque<Borrow>,
    next_borrow: u64,
    marks: MarkReader,
}

impl Consumer {
    /// Of a ring from which nothing was received yet.
    pub fn new(ring: Ring) -> Consumer {
        let index = ReadIndex::new(ring.capacity());
        Consumer {
            ring,
            index,
            offset: 0,
            borrows: VecDeque::new(),
            next_borrow: 0,
            marks: MarkReader::default(),
        }
    }

    /// The ring.
    #[inline]
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The shared page.
    #[inline]
    pub fn header(&self) -> &Header {
        self.ring.header()
    }

    /// Bytes that can be taken, the strides of marks among them; exact only up to `want`.
    ///
    /// # Errors
    ///
    /// [`Lie::Head`].
    #[inline]
    pub fn available(&mut self, want: usize) -> Result<usize, Lie> {
        self.index.available(self.ring.header(), want)
    }

    /// Of `available` bytes those before the next mark: 0 where a mark comes next.
    ///
    /// # Errors
    ///
    /// [`Lie::Marks`], [`Lie::Mark`].
    #[inline]
    pub fn before_mark(&mut self, available: usize) -> Result<usize, Lie> {
        let (seen, tail, capacity) = (self.index.seen_marks(), self.index.tail(), self.ring.capacity());
        let at = self.marks.next_at(self.ring.header(), seen, tail, capacity)?;
        match at.checked_sub(self.index.read()) {
            Some(left) => Ok((available as u64).min(left) as usize),
            // Its stride is behind what was taken: it was laid into the past.
            None => Err(Lie::Mark { position: at, kind: 0 }),
        }
    }

    /// Bytes that can be received now: those in the ring without the strides of marks, and those that marks stand for. Takes
    /// nothing. What was received of the reference that comes next is still counted.
    ///
    /// # Errors
    ///
    /// [`Lie::Head`], [`Lie::Marks`], [`Lie::Mark`].
    pub fn payload(&mut self) -> Result<u64, Lie> {
        let published = self.available(usize::MAX)?;
        let (seen, capacity) = (self.index.seen_marks(), self.ring.capacity());
        let places = (self.index.tail(), self.index.read());
        self.marks.payload(self.ring.header(), seen, places, published, capacity)
    }

    /// Where bytes go on behind the next mark, if descriptors are what it brings: how far from the next byte, and how many
    /// of `available` bytes came with them.
    pub fn behind_fds(&self, available: usize) -> Option<(usize, usize)> {
        let Some(Mark::Fds { len, .. }) = self.marks.next() else { return None };
        let at = usize::try_from(self.marks.at().checked_sub(self.index.read())?).ok()?;
        let behind = at + marks::stride(self.ring.capacity());
        let there = available.checked_sub(behind)?;
        Some((behind, usize::try_from(len).unwrap_or(usize::MAX).min(there)))
    }

    /// The mark that comes next, where [`Consumer::before_mark`] gave 0 of something: not taken yet. None where all
    /// of its stride is not published yet, which is a lie.
    #[inline]
    pub fn mark(&mut self) -> Result<Mark, Lie> {
        let stride = marks::stride(self.ring.capacity());
        let there = self.available(stride)?;
        self.marks
            .next()
            .filter(|_| there >= stride)
            .ok_or(Lie::Mark { position: self.index.read(), kind: 0 })
    }

    /// Takes the mark that comes next, with its stride. Returns whether room was made.
    ///
    /// # Panics
    ///
    /// When [`Consumer::mark`] has not given it.
    #[inline]
    pub fn take_mark(&mut self) -> bool {
        self.marks.take(self.ring.capacity());
        self.take(marks::stride(self.ring.capacity()))
    }

    /// Whether a mark, one that is known, comes next.
    #[inline]
    pub fn at_mark(&self) -> bool {
        self.mark_at(0)
    }

    /// Whether a mark, one that is known, comes after `ahead` bytes.
    #[inline]
    pub fn mark_at(&self, ahead: usize) -> bool {
        self.marks.at() == self.index.read() + ahead as u64
    }

    /// Position of the next byte in the stream of the ring.
    #[inline]
    pub fn position(&self) -> u64 {
        self.index.read()
    }

    /// Asks for the line where the next byte lies, or the next mark where a mark was the last thing to be received,
    /// without waiting for it: its way here overlaps with that of the head's line, which says that it is worth
    /// reading.
    #[inline]
    pub fn prefetch(&self) {
        if self.marks.after() == self.index.read() {
            memory::prefetch(std::ptr::from_ref(self.marks.upcoming(self.ring.header())).cast());
        } else {
            self.ring.prefetch(self.offset);
        }
    }

    /// Copies from `at` bytes past the next byte, without taking.
    ///
    /// # Panics
    ///
    /// When `at` or `buffer.len()` is more than the capacity.
    #[inline]
    pub fn copy_out(&self, at: usize, buffer: &mut [u8]) {
        self.ring.copy_out(self.wrap(at), buffer);
    }

    /// Where the byte lies that is `at` bytes (at most the capacity) past the next one.
    #[inline]
    pub(crate) fn wrap(&self, at: usize) -> usize {
        let offset = self.offset + at;
        if offset >= self.ring.capacity() { offset - self.ring.capacity() } else { offset }
    }

    /// Takes `len` bytes that were copied, and gives back what no borrow holds. Returns whether room was
    /// made.
    #[inline]
    pub fn take(&mut self, len: usize) -> bool {
        self.move_on(len);
        self.give_back()
    }

    #[inline]
    fn move_on(&mut self, len: usize) {
        self.index.take(len);
        self.offset = self.wrap(len);
    }

    #[inline]
    fn give_back(&mut self) -> bool {
        let to = self.borrows.front().map_or(self.index.read(), |borrow| borrow.start);
        self.index.give_back(self.ring.header(), to)
    }

    /// Lends the next `len` bytes: they stay where they are until released. Returns the name of the borrow
    /// and the offset of its first byte in the ring.
    pub fn borrow(&mut self, len: usize) -> (BorrowId, usize) {
        let id = BorrowId(self.next_borrow);
        self.next_borrow += 1;
        let start = self.index.read();
        self.borrows.push_back(Borrow { id, start, end: start + len as u64 });
        let offset = self.offset;
        self.move_on(len);
        (id, offset)
    }

    /// Lends `len` bytes more to the newest borrow, if it is `id` and nothing was taken since.
    ///
    /// # Panics
    ///
    /// When it is not the newest, or bytes were taken behind it.
    pub fn extend(&mut self, id: BorrowId, len: usize) {
        let read = self.index.read();
        let newest = self.borrows.back_mut().filter(|borrow| borrow.id == id && borrow.end == read);
        newest.expect("only the newest borrow grows").end += len as u64;
        self.move_on(len);
    }

    /// Gives the first `len` bytes of a borrow back (more than it has: all). Space is freed in stream order, so
    /// a borrow behind an older one frees nothing yet. Returns whether room was made.
    pub fn release(&mut self, id: BorrowId, len: usize) -> bool {
        if let Some(borrow) = self.borrows.iter_mut().find(|borrow| borrow.id == id) {
            borrow.start = borrow.start.saturating_add(len as u64).min(borrow.end);
        }
        while self.borrows.front().is_some_and(|borrow| borrow.start == borrow.end) {
            self.borrows.pop_front();
        }
        self.give_back()
    }

    /// Borrows that are out.
    pub fn borrows(&self) -> usize {
        self.borrows.len()
    }

    /// Bytes of room that the sender has, an upper bound.
    #[inline]
    pub fn room(&self) -> usize {
        self.index.room()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Producer;
    use onecopy_copy::Hint;

    fn pair(capacity: usize) -> (Producer, Consumer) {
        let (ring, _fd) = Ring::create(capacity).unwrap();
        (Producer::new(ring.clone()), Consumer::new(ring))
    }

    fn send(producer: &mut Producer, bytes: &[u8]) {
        assert!(producer.room(bytes.len()).unwrap() >= bytes.len());
        producer.copy_in(0, bytes, Hint::default());
        producer.publish(bytes.len());
    }

    #[test]
    fn bytes_come_out_as_they_went_in_at_every_offset() {
        let (mut p, mut c) = pair(4096);
        let mut sent = 0u8;
        let mut expected = 0u8;
        for round in 0..5000usize {
            let n = round * 7 % 4097;
            let bytes: Vec<u8> = (0..n).map(|i| sent.wrapping_add(i as u8)).collect();
            send(&mut p, &bytes);
            sent = sent.wrapping_add(n as u8);
            let mut out = vec![0; n];
            assert_eq!(c.available(n).unwrap(), n);
            c.copy_out(0, &mut out);
            c.take(n);
            assert!(out.iter().enumerate().all(|(i, b)| *b == expected.wrapping_add(i as u8)));
            expected = expected.wrapping_add(n as u8);
        }
    }

    #[test]
    fn what_came_with_descriptors_lies_behind_their_mark() {
        let (mut p, mut c) = pair(4096);
        send(&mut p, &[1; 100]);
        p.mark(0, Mark::Fds { count: 1, len: 7 });
        p.publish_marks(p.stride());
        send(&mut p, &[1; 7]);
        let there = c.available(usize::MAX).unwrap();
        assert_eq!(c.behind_fds(there), None, "the mark is not known yet");
        assert_eq!(c.before_mark(there).unwrap(), 100);
        assert!(c.mark_at(100) && !c.at_mark());
        assert_eq!(c.behind_fds(there), Some((164, 7)));
        assert_eq!(c.behind_fds(166), Some((164, 2)));
        assert_eq!(c.behind_fds(163), None);
    }

    #[test]
    fn borrowed_space_is_freed_in_order() {
        let (mut p, mut c) = pair(4096);
        send(&mut p, &[1; 3000]);
        c.available(1).unwrap();
        let (first, at) = c.borrow(1000);
        let (second, _) = c.borrow(1000);
        assert_eq!(at, 0);
        assert!(!c.take(1000), "the first borrow holds everything back");
        assert_eq!(p.room(4096).unwrap(), 1096);
        assert!(!c.release(second, 1000));
        assert!(c.release(first, 400));
        assert_eq!(p.room(4096).unwrap(), 1496);
        assert!(c.release(first, 600));
        assert_eq!(p.room(4096).unwrap(), 4096);
        assert_eq!(c.borrows(), 0);
        assert!(!c.release(first, 1), "a second release does nothing");
    }
}
