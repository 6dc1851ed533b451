//! What a stream carries besides bytes, each at its position: descriptors, an identity, a pool, a reference
//! to a page of a pool.
//!
//! A mark is in a queue in the header page, and takes room in the ring at its position. This room, its
//! *stride*, has `capacity / MARKS` bytes and holds nothing. So a mark can be received exactly when bytes
//! can. Code that counts, wakes, waits for room or mirrors readiness needs no rule for marks.
//!
//! The queue needs no index of its own: it has room whenever the ring has. `MARKS` strides are the whole
//! ring. So a mark that takes the place of an older one needs room that begins where the older one's stride
//! was given back.
//!
//! The count of marks is beside `head`, so a receiver that looks for data sees for free that there are no
//! marks. A copy of the last mark is there too. A receiver that waits for a mark gets it with the line that
//! says that it came, and asks for no other line. The next mark overwrites this copy, so it is read like a
//! sequence lock (linux: seqlock.h). Its number is stored before its words, and the count after them. A
//! receiver that finds another number looks into the queue.
//!
//! ```text
//! ring   ..bytes..[stride].bytes..[stride][stride]        head
//! marks           FDS             POOL    REFERENCE       count
//! ```

use crate::index::FARTHEST;
use crate::{Header, PeerMisbehaved};
use onecopy_sync::atomic::{AtomicU64, Ordering, fence};

/// Most marks that can be under way at once. Loom's models have fewer, to save time.
pub const MARKS: usize = if cfg!(loom) { 2 } else { 64 };

/// One place of the queue, as it is in shared memory.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub struct Entry {
    position: AtomicU64,
    /// Kind in the lower half, `arg` in the upper.
    kind: AtomicU64,
    a: AtomicU64,
    b: AtomicU64,
}

/// The queue of marks. Written by the sender.
#[derive(Debug)]
#[repr(C)]
pub struct MarkQueue(pub [Entry; MARKS]);

impl Default for MarkQueue {
    fn default() -> Self {
        MarkQueue(std::array::from_fn(|_| Entry::default()))
    }
}

impl Entry {
    // Relaxed, all of them: their users say what publishes them, and in which order.
    #[inline]
    fn store(&self, position: u64, [kind, a, b]: [u64; 3]) {
        self.position.store(position, Ordering::Relaxed);
        self.kind.store(kind, Ordering::Relaxed);
        self.a.store(a, Ordering::Relaxed);
        self.b.store(b, Ordering::Relaxed);
    }

    #[inline]
    fn load(&self) -> (u64, [u64; 3]) {
        let position = self.position.load(Ordering::Relaxed);
        (position, [&self.kind, &self.a, &self.b].map(|word| word.load(Ordering::Relaxed)))
    }
}

/// What a mark means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// That many descriptors are in the channel, for the receive that takes the next byte. A receive with
    /// them ends after `len` bytes, the bytes that were sent with them.
    Fds {
        /// Number of descriptors.
        count: u32,
        /// Bytes that were sent with them.
        len: u64,
    },
    /// The sender's identity from here on. Either credentials in the channel state it, or it is not stated
    /// any more.
    Identity {
        /// Whether credentials are in the channel.
        said: bool,
    },
    /// The memfd of a pool is in the channel.
    Pool {
        /// The name that references have for the pool.
        pool: u32,
        /// Bytes of a page.
        page_len: u64,
        /// Number of pages.
        pages: u64,
    },
    /// `len` bytes of the stream are in a page of a pool.
    Reference {
        /// The slot to give back, which frees the page.
        slot: u32,
        /// The pool.
        pool: u32,
        /// The page of the pool.
        page: u32,
        /// Where in the page the bytes begin.
        offset: u32,
        /// Number of bytes; never 0.
        len: u32,
    },
}

const FDS: u32 = 1;
const POOL: u32 = 2;
const REFERENCE: u32 = 3;
const WHO: u32 = 4;

fn pack(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl Mark {
    /// Returns the bytes of the stream that the mark stands for.
    pub fn bytes(self) -> u64 {
        match self {
            Mark::Reference { len, .. } => len.into(),
            Mark::Fds { .. } | Mark::Identity { .. } | Mark::Pool { .. } => 0,
        }
    }

    pub(crate) fn encode(self) -> [u64; 3] {
        match self {
            Mark::Fds { count, len } => [pack(FDS, count), len, 0],
            Mark::Identity { said } => [pack(WHO, u32::from(said)), 0, 0],
            Mark::Pool { pool, page_len, pages } => [pack(POOL, pool), page_len, pages],
            Mark::Reference { slot, pool, page, offset, len } => {
                // A slot has 16 bits, and so has the name of a pool.
                [pack(REFERENCE, slot << 16 | pool & 0xffff), pack(page, 0), pack(offset, len)]
            }
        }
    }

    pub(crate) fn decode([kind, a, b]: [u64; 3]) -> Option<Mark> {
        let (kind, arg) = unpack(kind);
        Some(match kind {
            FDS => Mark::Fds { count: arg, len: a },
            WHO if arg <= 1 => Mark::Identity { said: arg == 1 },
            POOL => Mark::Pool { pool: arg, page_len: a, pages: b },
            REFERENCE => {
                let (offset, len) = unpack(b);
                Mark::Reference { slot: arg >> 16, pool: arg & 0xffff, page: unpack(a).0, offset, len }
            }
            _ => return None,
        })
    }
}

/// Returns the place of mark number `count` in the queue. The next mark is never in the same cache line,
/// which the receiver has just pulled away.
#[inline]
fn place(count: u64) -> usize {
    let (at, half) = (count as usize % MARKS, MARKS / 2);
    at % half * 2 + at / half
}

/// Returns the bytes of the ring that a mark takes.
pub fn stride(capacity: usize) -> usize {
    capacity / MARKS
}

/// Reads mark number `count` and its position. The mark must be at `after` or behind it. Bytes from `tail` on
/// were not given back.
fn look(
    header: &Header,
    count: u64,
    after: u64,
    tail: u64,
    capacity: usize,
) -> Result<(u64, Mark), PeerMisbehaved> {
    // The count was loaded with Acquire, which pairs with the Release store in `MarkWriter::lay`.
    check(header.marks.0[place(count)].load(), after, tail, capacity)
}

/// Reads the last mark that is known to have been laid, as `look` does. Uses the copy beside `head` while
/// that is still this mark.
#[inline]
fn look_latest(
    header: &Header,
    count: u64,
    after: u64,
    tail: u64,
    capacity: usize,
) -> Result<(u64, Mark), PeerMisbehaved> {
    let line = &header.writer.0;
    let latest = line.latest.load();
    // Pairs with the Release fence in `MarkWriter::lay`: if one of these words were the next mark's, the
    // number would be too. The Acquire load of the count ensures that they are not older than this mark's, as
    // in `look`.
    fence(Ordering::Acquire);
    if line.latest_is.load(Ordering::Relaxed) == (count + 1) as u32 {
        check(latest, after, tail, capacity)
    } else {
        look(header, count, after, tail, capacity)
    }
}

/// Checks that a mark that was read is possible.
#[inline]
fn check(
    (position, words): (u64, [u64; 3]),
    after: u64,
    tail: u64,
    capacity: usize,
) -> Result<(u64, Mark), PeerMisbehaved> {
    let mark = Mark::decode(words).ok_or(PeerMisbehaved::Mark { position, kind: words[0] as u32 })?;
    // The whole stride must be in the part that may be published, and behind the mark before.
    let ahead = position.wrapping_sub(tail);
    if position < after || ahead > (capacity - stride(capacity)) as u64 {
        return Err(PeerMisbehaved::Mark { position, kind: words[0] as u32 });
    }
    Ok((position, mark))
}

impl Header {
    /// Returns what the bytes from `tail` to `head`, with the strides of marks among them, were for the
    /// sender. This is only a count for a person: the receiver could have changed the values it is made from.
    pub fn unread_payload(&self, tail: u64, head: u64, capacity: usize) -> u64 {
        let stride = stride(capacity) as u64;
        let mut bytes = head.saturating_sub(tail).min(capacity as u64);
        let unread = tail..tail.saturating_add(bytes);
        // Acquire pairs with the Release store in `MarkWriter::lay`: the marks that are counted are whole.
        let laid = self.writer.0.marks.load(Ordering::Acquire);
        for count in laid.saturating_sub(MARKS as u64)..laid {
            let (position, words) = self.marks.0[place(count)].load();
            if unread.contains(&position) {
                let of_mark = Mark::decode(words).map_or(0, Mark::bytes);
                bytes = bytes.saturating_sub(stride).saturating_add(of_mark);
            }
        }
        bytes
    }
}

/// The sender's side of the queue.
#[derive(Debug, Default)]
pub struct MarkWriter {
    count: u64,
}

impl MarkWriter {
    /// Writes a mark at `position`, where there is room for its stride. The receiver sees it once `head` is
    /// past it.
    #[inline]
    pub fn lay(&mut self, header: &Header, position: u64, mark: Mark) {
        let words = mark.encode();
        // The count publishes these words. The room shows that the receiver has read the mark that was here
        // before.
        header.marks.0[place(self.count)].store(position, words);
        self.count += 1;
        let line = &header.writer.0;
        line.latest_is.store(self.count as u32, Ordering::Relaxed);
        // Pairs with the Acquire fence in `look_latest`: the number goes before the words.
        fence(Ordering::Release);
        line.latest.store(position, words);
        // Release pairs with the Acquire load in `ReadIndex::available`.
        line.marks.store(self.count, Ordering::Release);
    }

    /// Returns the number of marks laid.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Goes on behind `count` marks that another process laid.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Member`]: no process can have laid so many.
    pub fn resume(count: u64) -> Result<MarkWriter, PeerMisbehaved> {
        if count > FARTHEST { Err(PeerMisbehaved::Member) } else { Ok(MarkWriter { count }) }
    }

    /// Goes on behind all marks that a dead process counted, of which `self.count` were known. Returns the
    /// position of the last one, if any was new.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Marks`].
    pub fn recover(&mut self, header: &Header) -> Result<Option<u64>, PeerMisbehaved> {
        let read = header.writer.0.marks.load(Ordering::Acquire);
        if read.wrapping_sub(self.count) > MARKS as u64 {
            return Err(PeerMisbehaved::Marks { read, seen: self.count });
        }
        let new = read != self.count;
        self.count = read;
        Ok(new.then(|| header.marks.0[place(read.wrapping_sub(1))].position.load(Ordering::Relaxed)))
    }

    /// Returns the last mark that was laid, if its stride ends at `head`, the last byte published.
    pub fn ends_with(&self, header: &Header, head: u64, capacity: usize) -> Option<Mark> {
        let (position, words) = header.marks.0[place(self.count.checked_sub(1)?)].load();
        Mark::decode(words).filter(|_| position.wrapping_add(stride(capacity) as u64) == head)
    }

    /// Returns the place of the next mark, for a prefetch.
    #[inline]
    pub fn next<'a>(&self, header: &'a Header) -> &'a Entry {
        &header.marks.0[place(self.count)]
    }
}

/// The receiver's side of the queue.
#[derive(Debug)]
pub struct MarkReader {
    /// Marks that were read from the queue.
    read: u64,
    /// The last mark read, while it is not taken.
    next: Option<Mark>,
    /// The position of that mark, or `u64::MAX` while there is none.
    at: u64,
    /// Where the stride of the mark before it ends.
    after: u64,
}

impl Default for MarkReader {
    fn default() -> Self {
        MarkReader { read: 0, next: None, at: u64::MAX, after: 0 }
    }
}

impl MarkReader {
    /// Returns the position of the next of `seen` marks that the sender is known to have laid, or `u64::MAX`
    /// if there is none. Bytes from `tail` on were not given back.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Marks`], [`PeerMisbehaved::Mark`].
    #[inline]
    pub fn next_at(
        &mut self,
        header: &Header,
        seen: u64,
        tail: u64,
        capacity: usize,
    ) -> Result<u64, PeerMisbehaved> {
        if self.next.is_none() && seen != self.read {
            self.fetch(header, seen, tail, capacity)?;
        }
        Ok(self.at)
    }

    /// Returns the position of the mark behind the known one, which stays the next. Returns `u64::MAX` if
    /// there is none.
    ///
    /// # Errors
    ///
    /// As [`MarkReader::next_at`].
    pub fn second_at(
        &self,
        header: &Header,
        seen: u64,
        tail: u64,
        capacity: usize,
    ) -> Result<u64, PeerMisbehaved> {
        self.possible(seen)?;
        if self.next.is_none() || seen == self.read {
            return Ok(u64::MAX);
        }
        look(header, self.read, self.at + stride(capacity) as u64, tail, capacity).map(|(at, _)| at)
    }

    fn fetch(
        &mut self,
        header: &Header,
        seen: u64,
        tail: u64,
        capacity: usize,
    ) -> Result<(), PeerMisbehaved> {
        self.possible(seen)?;
        let look = if seen == self.read + 1 { look_latest } else { look };
        let (position, mark) = look(header, self.read, self.after, tail, capacity)?;
        self.read += 1;
        self.next = Some(mark);
        self.at = position;
        Ok(())
    }

    fn possible(&self, seen: u64) -> Result<(), PeerMisbehaved> {
        if seen < self.read || seen - self.read > MARKS as u64 {
            return Err(PeerMisbehaved::Marks { read: seen, seen: self.read });
        }
        Ok(())
    }

    /// Returns how many bytes the `published` bytes behind `from` are for the receiver, where strides of
    /// marks are among them. `seen` marks are known to have been laid. Takes nothing. Bytes from `tail` on
    /// were not given back.
    ///
    /// # Errors
    ///
    /// As [`MarkReader::next_at`].
    pub fn payload(
        &self,
        header: &Header,
        seen: u64,
        (tail, from): (u64, u64),
        published: usize,
        capacity: usize,
    ) -> Result<u64, PeerMisbehaved> {
        self.possible(seen)?;
        let (stride, end) = (stride(capacity) as u64, from + published as u64);
        let mut bytes = published as u64;
        let mut add = |at: u64, mark: Mark| {
            // A mark that is not all published is found when it is received.
            if at >= from && at + stride <= end {
                bytes = bytes.saturating_sub(stride) + mark.bytes();
            }
        };
        let mut after = self.after;
        if let Some(mark) = self.next {
            add(self.at, mark);
            after = self.at + stride;
        }
        for count in self.read..seen {
            let (at, mark) = look(header, count, after, tail, capacity)?;
            add(at, mark);
            after = at + stride;
        }
        Ok(bytes)
    }

    /// Returns the number of marks taken.
    pub fn taken(&self) -> u64 {
        self.read - u64::from(self.next.is_some())
    }

    /// Goes on behind `taken` marks. The stride of the last one ends at `after`.
    pub fn resume(taken: u64, after: u64) -> MarkReader {
        MarkReader { read: taken, next: None, at: u64::MAX, after }
    }

    /// Returns the position of the next known mark, or `u64::MAX` if there is none.
    #[inline]
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Returns where the stride of the last mark taken ends.
    #[inline]
    pub fn after(&self) -> u64 {
        self.after
    }

    /// Returns the next mark, if one is known.
    #[inline]
    pub fn next(&self) -> Option<Mark> {
        self.next
    }

    /// Takes the next mark. The bytes behind its stride come next.
    #[inline]
    pub fn take(&mut self, capacity: usize) {
        self.after = self.at + stride(capacity) as u64;
        self.at = u64::MAX;
        self.next = None;
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::index::{ReadIndex, WriteIndex};
    use loom::sync::Arc;

    /// A byte, a mark with a stride of two, and a byte. The strides of two marks fill this ring, so a third
    /// mark takes the first one's place.
    #[test]
    fn no_byte_behind_a_mark_is_seen_without_it() {
        const CAPACITY: usize = 4;
        loom::model(|| {
            let header = Arc::new(Header::default());
            let h = header.clone();
            let receiver = loom::thread::spawn(move || {
                let mut index = ReadIndex::new(CAPACITY);
                let mut marks = MarkReader::default();
                for _ in 0..3 {
                    let there = index.available(&h, 1).unwrap() as u64;
                    let at = marks.next_at(&h, index.seen_marks(), index.tail(), CAPACITY).unwrap();
                    let bytes = there.min(at - index.read());
                    assert!(index.read() >= 3 || index.read() + bytes <= 1, "went past the mark");
                    index.take(bytes as usize);
                    if index.read() == at && there - bytes >= 2 {
                        assert_eq!(marks.next(), Some(Mark::Fds { count: 7, len: 1 }));
                        marks.take(CAPACITY);
                        index.take(2);
                    }
                    index.give_back(&h, index.read());
                }
            });
            let mut index = WriteIndex::new(CAPACITY);
            let mut marks = MarkWriter::default();
            index.publish(&header, 1);
            marks.lay(&header, 1, Mark::Fds { count: 7, len: 1 });
            index.publish(&header, 2 + 1);
            receiver.join().unwrap();
        });
    }

    #[test]
    fn a_mark_is_not_overwritten_before_it_was_read() {
        const CAPACITY: usize = 4;
        // Three preemptions at most. That is one more than it takes to read a mark between two halves of the
        // next one.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let header = Arc::new(Header::default());
            let h = header.clone();
            let receiver = loom::thread::spawn(move || {
                let mut index = ReadIndex::new(CAPACITY);
                let mut marks = MarkReader::default();
                let mut taken = 0;
                for _ in 0..2 {
                    let there = index.available(&h, CAPACITY).unwrap();
                    let at = marks.next_at(&h, index.seen_marks(), index.tail(), CAPACITY).unwrap();
                    if there >= 2 {
                        assert_eq!(at, taken * 2);
                        assert_eq!(marks.next(), Some(Mark::Fds { count: taken as u32, len: 1 }));
                        marks.take(CAPACITY);
                        index.take(2);
                        index.give_back(&h, index.read());
                        taken += 1;
                    }
                }
            });
            let mut index = WriteIndex::new(CAPACITY);
            let mut marks = MarkWriter::default();
            for count in 0..3 {
                if index.room(&header, 2).unwrap() >= 2 {
                    marks.lay(&header, index.head(), Mark::Fds { count, len: 1 });
                    index.publish(&header, 2);
                }
            }
            receiver.join().unwrap();
        });
    }
}
