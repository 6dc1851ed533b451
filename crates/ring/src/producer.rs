//! The sender's side.

use crate::index::WriteIndex;
use crate::marks::{self, Mark, MarkWriter};
use crate::{Header, PeerMisbehaved, Ring, memory};
use onecopy_copy::{Hint, Store};
use onecopy_sync::atomic::Ordering;
use onecopy_sys::map::Spans;

/// The sender's side of a ring: its position, and the way in.
#[derive(Debug)]
pub struct Producer {
    ring: Ring,
    index: WriteIndex,
    /// Where the next byte goes: `head` modulo the capacity, without a division. Invariant: < capacity.
    offset: usize,
    marks: MarkWriter,
}

impl Producer {
    /// Makes the sender's side of a ring to which nothing was sent yet.
    pub fn new(ring: Ring) -> Producer {
        let index = WriteIndex::new(ring.capacity());
        Producer { ring, index, offset: 0, marks: MarkWriter::default() }
    }

    /// Returns what another process needs to go on: bytes published, bytes given back as of the last look,
    /// marks laid.
    pub fn state(&self) -> [u64; 3] {
        [self.index.head(), self.index.seen_tail(), self.marks.count()]
    }

    /// Goes on where another process that shares this end left off.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Member`]; nothing was changed.
    pub fn resume(&mut self, [head, tail, marks]: [u64; 3]) -> Result<(), PeerMisbehaved> {
        let capacity = self.ring.capacity();
        let index = WriteIndex::resume(capacity, head, tail)?;
        self.marks = MarkWriter::resume(marks)?;
        self.index = index;
        self.offset = (head % capacity as u64) as usize;
        Ok(())
    }

    /// Repairs the ring after [`Producer::resume`], where that process died in the middle of a send. What it
    /// had published is sent; what it had only written is not.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved`].
    pub fn recover(&mut self) -> Result<(), PeerMisbehaved> {
        let [before, tail, _] = self.state();
        // The head is in the ring's header, where the peer could have changed it. So it must be no more than
        // the room that there was.
        let head = self.header().writer.0.head.load(Ordering::Acquire);
        let given_back = self.header().reader.0.tail.load(Ordering::Acquire);
        if head < before || given_back < tail || given_back > head {
            return Err(PeerMisbehaved::Member);
        }
        let last = self.marks.recover(self.ring.header())?;
        self.resume([head, given_back, self.marks.count()])?;
        // The receiver may have seen a mark that was counted, so the mark's stride is published too.
        if last == Some(head) {
            let stride = self.stride();
            if self.room(stride)? < stride {
                return Err(PeerMisbehaved::Member);
            }
            self.publish_marks(stride);
        }
        Ok(())
    }

    /// Returns the ring.
    #[inline]
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Returns the shared page.
    #[inline]
    pub fn header(&self) -> &Header {
        self.ring.header()
    }

    /// Returns the bytes published since the ring began.
    pub fn head(&self) -> u64 {
        self.index.head()
    }

    /// Returns the bytes of room. The number is exact only up to `want`.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Tail`].
    #[inline]
    pub fn room(&mut self, want: usize) -> Result<usize, PeerMisbehaved> {
        self.index.room(self.ring.header(), want)
    }

    /// Returns the next `len` bytes of room, at the place where the peer will read them.
    #[inline]
    pub fn spans(&self, len: usize) -> Spans<'_> {
        self.ring.spans(self.offset, len)
    }

    /// Returns the offset of the byte that is `at` bytes (at most the capacity) past the next one.
    #[inline]
    pub(crate) fn offset_at(&self, at: usize) -> usize {
        let offset = self.offset + at;
        if offset >= self.ring.capacity() { offset - self.ring.capacity() } else { offset }
    }

    /// Copies `bytes` to `at` bytes past the next byte, unpublished. Returns which stores were used. If the
    /// wrap cuts the bytes in two, this is for the second piece.
    ///
    /// # Panics
    ///
    /// If `at` or `bytes.len()` is more than the capacity.
    #[inline]
    pub fn copy_in(&mut self, at: usize, bytes: &[u8], hint: Hint) -> Store {
        let [first, second] = self.ring.spans(self.offset_at(at), bytes.len());
        let (a, b) = bytes.split_at(first.len());
        // SAFETY: both views have the length of their part and are mapped. They overlap no `&[u8]`, since no
        // reference to the ring's memory exists. The receiver does not read unpublished bytes. If it does all
        // the same, it reads torn bytes in its own process.
        unsafe {
            let mut store = onecopy_copy::copy_raw(first.as_ptr(), a.as_ptr(), a.len(), hint);
            if !b.is_empty() {
                store = onecopy_copy::copy_raw(second.as_ptr(), b.as_ptr(), b.len(), hint);
            }
            store
        }
    }

    /// Returns the bytes of the ring that a mark takes.
    #[inline]
    pub fn stride(&self) -> usize {
        marks::stride(self.ring.capacity())
    }

    /// Lays a mark `at` bytes past the next byte, unpublished. It takes [`Producer::stride`] bytes of the
    /// room from there. All the bytes there must be published next.
    #[inline]
    pub fn mark(&mut self, at: usize, mark: Mark) {
        self.marks.lay(self.ring.header(), self.index.head() + at as u64, mark);
    }

    /// Returns the mark that was laid last, if nothing was published behind it. The receiver could have
    /// changed it.
    pub fn ends_with_mark(&self) -> Option<Mark> {
        self.marks.ends_with(self.header(), self.head(), self.ring.capacity())
    }

    /// Publishes marks alone, as [`Producer::publish`] does. Asks for the next mark's line instead of the
    /// next byte's.
    #[inline]
    pub fn publish_marks(&mut self, len: usize) {
        self.move_on(len);
        memory::prefetch_to_write(std::ptr::from_ref(self.marks.next(self.ring.header())).cast());
    }

    /// Makes the next `len` bytes visible. The caller then does a full fence and asks [`Header::must_ring`].
    #[inline]
    pub fn publish(&mut self, len: usize) {
        self.move_on(len);
        // The receiver's cache has the line of the next bytes from the lap before.
        self.ring.prefetch_to_write(self.offset);
    }

    #[inline]
    fn move_on(&mut self, len: usize) {
        self.index.publish(self.ring.header(), len);
        self.offset += len;
        if self.offset >= self.ring.capacity() {
            self.offset -= self.ring.capacity();
        }
    }
}
