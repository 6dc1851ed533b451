//! What a stream carries besides bytes, each at its position: descriptors, a pool, a reference to a page of one.
//!
//! A mark lies in a queue in the header page, and takes room in the ring at its position: `capacity / MARKS` bytes,
//! its *stride*, which hold nothing. So a mark is there to be received exactly when bytes are: whatever counts,
//! wakes, waits for room or mirrors readiness needs no rule for marks. And the queue has room whenever the ring
//! has, without an index of its own: `MARKS` strides are the whole ring, so the mark that is laid into the place of
//! an older one needs room that begins where that one's stride was given back.
//!
//! The count of marks lies beside `head`: a receiver that looks for data sees for free that there are none. There, too, lies
//! the last mark itself: who waits for one gets it with the line that says that it has come, and asks for no other. It is
//! a copy that the next mark overwrites, so it is read as a sequence lock is (linux: seqlock.h): its number is stored before
//! its words and the count behind them, and whoever finds another number looks into the queue.
//!
//! ```text
//! ring   ..bytes..[stride].bytes..[stride][stride]        head
//! marks           FDS             POOL    REFERENCE       count
//! ```

use crate::index::FARTHEST;
use crate::{Header, Lie};
use onecopy_sync::atomic::{AtomicU64, Ordering, fence};

/// Marks that may be under way at once. (In loom's models fewer, for the sake of time.)
pub const MARKS: usize = if cfg!(loom) { 2 } else { 64 };

/// One place of the queue, as it lies in shared memory.
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
    // Relaxed, all: what publishes them, and in which order, is said where they are used.
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
    /// That many descriptors lie in the channel, for who receives the next byte. A receive with them ends after
    /// `len` bytes, which were sent with them.
    Fds {
        /// Descriptors.
        count: u32,
        /// Bytes.
        len: u64,
    },
    /// Who sends from here on: as credentials in the channel say, or it is not said any more.
    Who {
        /// Whether credentials lie in the channel.
        said: bool,
    },
    /// The memfd of a pool lies in the channel.
    Pool {
        /// What references call it.
        pool: u32,
        /// Bytes of a page.
        page_len: u64,
        /// Pages.
        pages: u64,
    },
    /// `len` bytes of the stream are here: in a page of a pool.
    Reference {
        /// What is given back to free the page.
        slot: u32,
        /// Which pool.
        pool: u32,
        /// Which page of it.
        page: u32,
        /// Where in the page they begin.
        offset: u32,
        /// How many they are; never 0.
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
    /// Bytes of the stream that it stands for.
    pub fn bytes(self) -> u64 {
        match self {
            Mark::Reference { len, .. } => len.into(),
            Mark::Fds { .. } | Mark::Who { .. } | Mark::Pool { .. } => 0,
        }
    }

    fn encode(self) -> [u64; 3] {
        match self {
            Mark::Fds { count, len } => [pack(FDS, count), len, 0],
            Mark::Who { said } => [pack(WHO, u32::from(said)), 0, 0],
            Mark::Pool { pool, page_len, pages } => [pack(POOL, pool), page_len, pages],
            Mark::Reference { slot, pool, page, offset, len } => {
                // A slot has 16 bits, as has the name of a pool.
                [pack(REFERENCE, slot << 16 | pool & 0xffff), pack(page, 0), pack(offset, len)]
            }
        }
    }

    fn decode([kind, a, b]: [u64; 3]) -> Option<Mark> {
        let (kind, arg) = unpack(kind);
        Some(match kind {
            FDS => Mark::Fds { count: arg, len: a },
            WHO if arg <= 1 => Mark::Who { said: arg == 1 },
            POOL => Mark::Pool { pool: arg, page_len: a, pages: b },
            REFERENCE => {
                let (offset, len) = unpack(b);
                Mark::Reference { slot: arg >> 16, pool: arg & 0xffff, page: unpack(a).0, offset, len }
            }
            _ => return None,
        })
    }
}

/// Where mark number `count` lies in the queue: the next one never in the same cache line, which its receiver has just
/// pulled away.
#[inline]
fn place(count: u64) -> usize {
    let (at, half) = (count as usize % MARKS, MARKS / 2);
    at % half * 2 + at / half
}

/// Bytes of the ring that a mark takes.
pub fn stride(capacity: usize) -> usize {
    capacity / MARKS
}

/// Mark number `count`, and its position, of marks from `after` on in a ring of which bytes from `tail` on were not given
/// back.
fn look(header: &Header, count: u64, after: u64, tail: u64, capacity: usize) -> Result<(u64, Mark), Lie> {
    // The count was loaded with Acquire, which pairs with the Release store in `MarkWriter::lay`.
    check(header.marks.0[place(count)].load(), after, tail, capacity)
}

/// As `look`, of the last mark that is known to have been laid: where it still is the last one, from beside `head`.
#[inline]
fn look_latest(
    header: &Header,
    count: u64,
    after: u64,
    tail: u64,
    capacity: usize,
) -> Result<(u64, Mark), Lie> {
    let line = &header.writer.0;
    let latest = line.latest.load();
    // Pairs with the Release fence in `MarkWriter::lay`: had one of these words been the next mark's, so would the number be.
    // That they are not older than this mark's is the count's doing, as in `look`.
    fence(Ordering::Acquire);
    if line.latest_is.load(Ordering::Relaxed) == (count + 1) as u32 {
        check(latest, after, tail, capacity)
    } else {
        look(header, count, after, tail, capacity)
    }
}

/// What can be, of what was read.
#[inline]
fn check(
    (position, words): (u64, [u64; 3]),
    after: u64,
    tail: u64,
    capacity: usize,
) -> Result<(u64, Mark), Lie> {
    let mark = Mark::decode(words).ok_or(Lie::Mark { position, kind: words[0] as u32 })?;
    // All of the stride is in what may be published, and behind the mark before.
    let ahead = position.wrapping_sub(tail);
    if position < after || ahead > (capacity - stride(capacity)) as u64 {
        return Err(Lie::Mark { position, kind: words[0] as u32 });
    }
    Ok((position, mark))
}

impl Header {
    /// What the bytes from `tail` to `head`, with the strides of marks among them, came to for who sent them. No more than a
    /// count for a person: the receiver could have changed what it is made from.
    pub fn unread_payload(&self, tail: u64, head: u64, capacity: usize) -> u64 {
        let stride = stride(capacity) as u64;
        let mut bytes = head.saturating_sub(tail).min(capacity as u64);
        let unread = tail..tail.saturating_add(bytes);
        // Acquire pairs with the Release store in `MarkWriter::lay`: the marks before it are whole.
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

/// The sender's side.
#[derive(Debug, Default)]
pub struct MarkWriter {
    count: u64,
}

impl MarkWriter {
    /// Writes a mark at `position`, where there is room for its stride. It is seen once `head` is past it.
    #[inline]
    pub fn lay(&mut self, header: &Header, position: u64, mark: Mark) {
        let words = mark.encode();
        // Published by the count. That the receiver has read what was here before follows from the room.
        header.marks.0[place(self.count)].store(position, words);
        self.count += 1;
        let line = &header.writer.0;
        line.latest_is.store(self.count as u32, Ordering::Relaxed);
        // Pairs with the Acquire fence in `look_latest`: the number before the words.
        fence(Ordering::Release);
        line.latest.store(position, words);
        // Release pairs with the Acquire load in `ReadIndex::available`.
        line.marks.store(self.count, Ordering::Release);
    }

    /// Marks laid.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Goes on behind `count` marks that another process laid.
    ///
    /// # Errors
    ///
    /// [`Lie::Holder`]: nobody has ever laid so many.
    pub fn resume(count: u64) -> Result<MarkWriter, Lie> {
        if count > FARTHEST { Err(Lie::Holder) } else { Ok(MarkWriter { count }) }
    }

    /// After the death of who laid marks, of which `self.count` are known: goes on behind all that were counted. Where the
    /// last one lies.
    ///
    /// # Errors
    ///
    /// [`Lie::Marks`].
    pub fn recover(&mut self, header: &Header) -> Result<Option<u64>, Lie> {
        let read = header.writer.0.marks.load(Ordering::Acquire);
        if read.wrapping_sub(self.count) > MARKS as u64 {
            return Err(Lie::Marks { read, seen: self.count });
        }
        let new = read != self.count;
        self.count = read;
        Ok(new.then(|| header.marks.0[place(read.wrapping_sub(1))].position.load(Ordering::Relaxed)))
    }

    /// Where the next mark goes, for a prefetch.
    #[inline]
    pub fn next<'a>(&self, header: &'a Header) -> &'a Entry {
        &header.marks.0[place(self.count)]
    }
}

/// The receiver's side.
#[derive(Debug)]
pub struct MarkReader {
    /// Marks that were read out of the queue.
    read: u64,
    /// The last one of these, while it is not taken.
    next: Option<Mark>,
    /// Its position; as far away as can be while there is none.
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
    /// Position of the next mark, of `seen` that the sender is known to have laid; `u64::MAX` where there is none.
    /// Bytes from `tail` on were not given back.
    ///
    /// # Errors
    ///
    /// [`Lie::Marks`], [`Lie::Mark`].
    #[inline]
    pub fn next_at(&mut self, header: &Header, seen: u64, tail: u64, capacity: usize) -> Result<u64, Lie> {
        if self.next.is_none() && seen != self.read {
            self.fetch(header, seen, tail, capacity)?;
        }
        Ok(self.at)
    }

    /// Position of the mark behind the known one, which stays the next; `u64::MAX` where there is none.
    ///
    /// # Errors
    ///
    /// As [`MarkReader::next_at`].
    pub fn second_at(&self, header: &Header, seen: u64, tail: u64, capacity: usize) -> Result<u64, Lie> {
        self.possible(seen)?;
        if self.next.is_none() || seen == self.read {
            return Ok(u64::MAX);
        }
        look(header, self.read, self.at + stride(capacity) as u64, tail, capacity).map(|(at, _)| at)
    }

    fn fetch(&mut self, header: &Header, seen: u64, tail: u64, capacity: usize) -> Result<(), Lie> {
        self.possible(seen)?;
        let look = if seen == self.read + 1 { look_latest } else { look };
        let (position, mark) = look(header, self.read, self.after, tail, capacity)?;
        self.read += 1;
        self.next = Some(mark);
        self.at = position;
        Ok(())
    }

    fn possible(&self, seen: u64) -> Result<(), Lie> {
        if seen < self.read || seen - self.read > MARKS as u64 {
            return Err(Lie::Marks { read: seen, seen: self.read });
        }
        Ok(())
    }

    /// What `published` bytes behind `from`, with the strides of marks among them, come to for who receives them: of `seen`
    /// marks that the sender is known to have laid. Takes nothing. Bytes from `tail` on were not given back.
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
    ) -> Result<u64, Lie> {
        self.possible(seen)?;
        let (stride, end) = (stride(capacity) as u64, from + published as u64);
        let mut bytes = published as u64;
        let mut add = |at: u64, mark: Mark| {
            // One that is not all published is found out by who receives it.
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

    /// Marks taken.
    pub fn taken(&self) -> u64 {
        self.read - u64::from(self.next.is_some())
    }

    /// Goes on behind `taken` marks, the stride of the last of which ends at `after`.
    pub fn resume(taken: u64, after: u64) -> MarkReader {
        MarkReader { read: taken, next: None, at: u64::MAX, after }
    }

    /// Position of the next mark that is known; `u64::MAX` where there is none.
    #[inline]
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Where the stride of the last mark that was taken ends.
    #[inline]
    pub fn after(&self) -> u64 {
        self.after
    }

    /// The next mark, if one is known.
    #[inline]
    pub fn next(&self) -> Option<Mark> {
        self.next
    }

    /// The next mark is done with: what is behind its stride comes next.
    #[inline]
    pub fn take(&mut self, capacity: usize) {
        self.after = self.at + stride(capacity) as u64;
        self.at = u64::MAX;
        self.next = None;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use onecopy_sync::atomic::Ordering::Relaxed;

    const CAPACITY: usize = 4096;

    #[test]
    fn marks_come_out_as_they_went_in() {
        let header = Header::default();
        let (mut writer, mut reader) = (MarkWriter::default(), MarkReader::default());
        let all = [
            Mark::Fds { count: 253, len: u64::MAX },
            Mark::Who { said: true },
            Mark::Who { said: false },
            Mark::Pool { pool: 7, page_len: 1 << 21, pages: 1 << 20 },
            Mark::Reference { slot: 1023, pool: 65535, page: u32::MAX, offset: 5, len: u32::MAX },
        ];
        for round in 0..200u64 {
            let mark = all[round as usize % all.len()];
            writer.lay(&header, round * 64, mark);
            let seen = header.writer.0.marks.load(Relaxed);
            assert_eq!(reader.next_at(&header, seen, round * 64, CAPACITY), Ok(round * 64));
            assert_eq!(reader.next(), Some(mark));
            reader.take(CAPACITY);
            assert_eq!(reader.next_at(&header, seen, round * 64, CAPACITY), Ok(u64::MAX));
        }
    }

    #[test]
    fn the_latest_mark_is_believed_only_while_it_is_the_last() {
        let header = Header::default();
        let (mut writer, mut reader) = (MarkWriter::default(), MarkReader::default());
        let mark = |count| Mark::Fds { count, len: 1 };
        writer.lay(&header, 0, mark(1));
        // Of a count that was read before the second mark was laid.
        writer.lay(&header, 64, mark(2));
        assert_eq!(reader.next_at(&header, 1, 0, CAPACITY), Ok(0));
        assert_eq!(reader.next(), Some(mark(1)));
        reader.take(CAPACITY);
        // The queue is not looked at for the last one; and one that is being overwritten is not it.
        header.marks.0[place(1)].kind.store(9, Relaxed);
        let mut other = MarkReader::resume(1, 64);
        assert_eq!(other.next_at(&header, 2, 0, CAPACITY), Ok(64));
        assert_eq!(other.next(), Some(mark(2)));
        header.writer.0.latest_is.store(3, Relaxed);
        let lie = Err(Lie::Mark { position: 64, kind: 9 });
        assert_eq!(MarkReader::resume(1, 64).next_at(&header, 2, 0, CAPACITY), lie);
        // What it says is checked as the queue's words are.
        let latest = &header.writer.0.latest;
        for (number, position, kind) in [(2, 63, 1), (2, u64::MAX, 1), (2, 1 << 40, 1), (2, 64, 77)] {
            header.writer.0.latest_is.store(number, Relaxed);
            latest.position.store(position, Relaxed);
            latest.kind.store(kind, Relaxed);
            let lie = Err(Lie::Mark { position, kind: kind as u32 });
            assert_eq!(MarkReader::resume(1, 64).next_at(&header, 2, 0, CAPACITY), lie, "{position}");
        }
    }

    #[test]
    fn as_many_as_the_ring_has_room_for_are_all_kept() {
        let header = Header::default();
        let (mut writer, mut reader) = (MarkWriter::default(), MarkReader::default());
        for i in 0..MARKS as u32 {
            let position = u64::from(i) * stride(CAPACITY) as u64;
            writer.lay(&header, position, Mark::Fds { count: i, len: 1 });
        }
        for i in 0..MARKS as u32 {
            let at = reader.next_at(&header, MARKS as u64, 0, CAPACITY).unwrap();
            assert_eq!(at, u64::from(i) * stride(CAPACITY) as u64);
            assert_eq!(reader.next(), Some(Mark::Fds { count: i, len: 1 }));
            reader.take(CAPACITY);
        }
    }

    #[test]
    fn what_can_be_received_counts_what_marks_stand_for() {
        let header = Header::default();
        let (mut writer, mut reader) = (MarkWriter::default(), MarkReader::default());
        let stride = stride(CAPACITY) as u64;
        // 100 bytes, a page of 3000, descriptors, 50 bytes, a page of 7 whose stride is not published.
        writer.lay(&header, 100, Mark::Reference { slot: 0, pool: 0, page: 0, offset: 0, len: 3000 });
        writer.lay(&header, 100 + stride, Mark::Fds { count: 1, len: 50 });
        writer.lay(
            &header,
            150 + 2 * stride,
            Mark::Reference { slot: 1, pool: 0, page: 0, offset: 0, len: 7 },
        );
        let published = 150 + 2 * stride as usize;
        let count = |reader: &MarkReader, from: u64| {
            reader.payload(&header, 3, (0, from), published - from as usize, CAPACITY)
        };
        assert_eq!((count(&reader, 0), count(&reader, 40)), (Ok(3150), Ok(3110)));
        // Whether the next one was fetched already makes no difference.
        assert_eq!(reader.next_at(&header, 3, 0, CAPACITY), Ok(100));
        assert_eq!(count(&reader, 100), Ok(3050));
        reader.take(CAPACITY);
        assert_eq!(count(&reader, 100 + stride), Ok(50));
        assert_eq!(header.unread_payload(0, published as u64, CAPACITY), 3150);
        assert_eq!(header.unread_payload(100 + stride, published as u64, CAPACITY), 50);
        // What the receiver made of it is no more than the ring holds.
        assert!(header.unread_payload(0, u64::MAX, CAPACITY) < CAPACITY as u64 + 3000 + 7);
        assert!(header.unread_payload(u64::MAX, 0, CAPACITY) <= CAPACITY as u64 + 3007);
        assert_eq!(
            reader.payload(&header, 66, (0, 0), published, CAPACITY),
            Err(Lie::Marks { read: 66, seen: 1 })
        );
        header.marks.0[place(1)].kind.store(9, Relaxed);
        assert_eq!(count(&reader, 100 + stride), Err(Lie::Mark { position: 100 + stride, kind: 9 }));
    }

    #[test]
    fn every_impossible_mark_is_a_lie() {
        let told = |count: u64, position: u64, kind: u64, tail: u64| {
            let header = Header::default();
            let mut reader = MarkReader::default();
            header.marks.0[0].position.store(position, Relaxed);
            header.marks.0[0].kind.store(kind, Relaxed);
            reader.next_at(&header, count, tail, CAPACITY)
        };
        assert_eq!(told(1, 4032, 1, 0), Ok(4032));
        for count in [65, u64::MAX, 1 << 63] {
            assert_eq!(told(count, 0, 1, 0), Err(Lie::Marks { read: count, seen: 0 }));
        }
        for (position, tail) in [(4033, 0), (u64::MAX, 0), (99, 100), (0, 100)] {
            assert_eq!(told(1, position, 1, tail), Err(Lie::Mark { position, kind: 1 }), "{position}");
        }
        for kind in [0, 5, 4 | 2 << 32, u64::from(u32::MAX)] {
            assert_eq!(told(1, 0, kind, 0), Err(Lie::Mark { position: 0, kind: kind as u32 }));
        }
    }

    #[test]
    fn marks_neither_overlap_nor_go_back() {
        let header = Header::default();
        let mut reader = MarkReader::default();
        let mut writer = MarkWriter::default();
        writer.lay(&header, 1000, Mark::Fds { count: 1, len: 1 });
        assert_eq!(reader.next_at(&header, 1, 0, CAPACITY), Ok(1000));
        reader.take(CAPACITY);
        writer.lay(&header, 1063, Mark::Fds { count: 1, len: 1 });
        assert!(matches!(reader.next_at(&header, 2, 0, CAPACITY), Err(Lie::Mark { position: 1063, .. })));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::index::{ReadIndex, WriteIndex};
    use loom::sync::Arc;

    /// A byte, a mark with a stride of two, a byte; in a ring whose two marks' strides are all of it, so that a third
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
        // Of three preemptions at most: that is one more than it takes to read a mark between two halves of the next.
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
