//! The receiver's side.

use crate::index::ReadIndex;
use crate::marks::{self, Mark, MarkReader};
use crate::{Header, PeerMisbehaved, Ring};
use std::collections::VecDeque;

/// Names one borrow of a [`Consumer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BorrowId(u32);

#[derive(Debug)]
struct Borrow {
    id: BorrowId,
    /// The member that borrowed: [`Consumer::me`] at that time.
    member: u32,
    start: u64,
    end: u64,
}

/// The receiver's side of a ring: its positions, the way out, and the bytes that are lent to views.
#[derive(Debug)]
pub struct Consumer {
    ring: Ring,
    index: ReadIndex,
    /// Where the next byte to take is. Invariant: < capacity.
    offset: usize,
    /// The borrows in stream order: the first one holds the tail back.
    borrows: VecDeque<Borrow>,
    next_borrow: u32,
    /// This process's number, if others share this end; else 0.
    me: u32,
    marks: MarkReader,
}

/// What another process needs to go on, besides the borrows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// Bytes taken.
    pub read: u64,
    /// Marks taken.
    pub marks: u64,
    /// Where the stride of the last mark ends.
    pub after: u64,
}

/// A part of the ring that is lent, as the other members know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// The member that has the view.
    pub member: u32,
    /// The name that this member gives to the borrow.
    pub id: u32,
    /// The first byte that was not given back.
    pub start: u64,
    /// The byte behind the last one.
    pub end: u64,
}

/// How members share this end. Only [`Consumer::flush`] gives back what was taken. So all members know that
/// bytes were taken before the sender may overwrite them.
impl Consumer {
    /// Begins to share this end with others. This process's number among them tells its borrows apart.
    pub fn share(&mut self, me: u32) {
        for borrow in self.borrows.iter_mut().filter(|borrow| borrow.member == self.me) {
            borrow.member = me;
        }
        self.me = me;
    }

    /// Ends the sharing: the other members' borrows are free. Returns whether room was made.
    pub fn unshare(&mut self) -> bool {
        let me = self.me;
        self.borrows.retain(|borrow| borrow.member == me);
        for borrow in &mut self.borrows {
            borrow.member = 0;
        }
        self.me = 0;
        self.give_back()
    }

    /// Returns whether others share this end.
    pub fn is_shared(&self) -> bool {
        self.me != 0
    }

    /// Returns what another process needs to go on.
    pub fn reached(&self) -> Reached {
        Reached { read: self.index.read(), marks: self.marks.taken(), after: self.marks.after() }
    }

    /// Lists what is lent, in stream order.
    pub fn lent(&self) -> impl Iterator<Item = Lent> {
        self.borrows.iter().map(|borrow| Lent {
            member: borrow.member,
            id: borrow.id.0,
            start: borrow.start,
            end: borrow.end,
        })
    }

    /// Goes on where another process left off, as member `me`.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Member`]; nothing was changed.
    pub fn resume(
        &mut self,
        me: u32,
        reached: Reached,
        lent: impl Iterator<Item = Lent>,
    ) -> Result<(), PeerMisbehaved> {
        let Reached { read, marks, after } = reached;
        let borrows: VecDeque<Borrow> = lent
            .map(|Lent { member, id, start, end }| Borrow { id: BorrowId(id), member, start, end })
            .collect();
        let mut at = borrows.front().map_or(read, |borrow| borrow.start);
        let tail = at;
        for borrow in &borrows {
            if borrow.start < at || borrow.end < borrow.start || borrow.end > read {
                return Err(PeerMisbehaved::Member);
            }
            at = borrow.end;
        }
        if after > read {
            return Err(PeerMisbehaved::Member);
        }
        let capacity = self.ring.capacity();
        self.index = ReadIndex::resume(capacity, tail, read, marks)?;
        self.offset = (read % capacity as u64) as usize;
        self.marks = MarkReader::resume(marks, after);
        self.borrows = borrows;
        self.me = me;
        Ok(())
    }

    /// Gives back what was taken and no borrow holds.
    pub fn flush(&mut self) {
        let to = self.free_to();
        self.index.give_back(self.ring.header(), to);
    }

    /// Repairs the ring after [`Consumer::resume`], where the process that died may have taken bytes without
    /// giving them back.
    pub fn recover(&mut self) {
        self.index.repeat(self.ring.header());
    }

    /// Frees what dead members had borrowed. Returns whether there was anything.
    pub fn release_all_of(&mut self, dead: impl Fn(u32) -> bool) -> bool {
        let before = self.borrows.len();
        self.borrows.retain(|borrow| !dead(borrow.member));
        self.borrows.len() < before
    }
}

impl Consumer {
    /// Makes the receiver's side of a ring from which nothing was received yet.
    pub fn new(ring: Ring) -> Consumer {
        let index = ReadIndex::new(ring.capacity());
        Consumer {
            ring,
            index,
            offset: 0,
            borrows: VecDeque::new(),
            next_borrow: 0,
            me: 0,
            marks: MarkReader::default(),
        }
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

    /// Returns the bytes that can be taken, the strides of marks among them. The number is exact only up to
    /// `want`.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Head`].
    #[inline]
    pub fn available(&mut self, want: usize) -> Result<usize, PeerMisbehaved> {
        self.index.available(self.ring.header(), want)
    }

    /// Returns how many of `available` bytes come before the next mark: 0 if a mark comes next.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Marks`], [`PeerMisbehaved::Mark`].
    #[inline]
    pub fn before_mark(&mut self, available: usize) -> Result<usize, PeerMisbehaved> {
        let (seen, tail, capacity) = (self.index.seen_marks(), self.index.tail(), self.ring.capacity());
        let at = self.marks.next_at(self.ring.header(), seen, tail, capacity)?;
        match at.checked_sub(self.index.read()) {
            Some(left) => Ok((available as u64).min(left) as usize),
            // The mark's stride is behind what was taken: it was laid into the past.
            None => Err(PeerMisbehaved::Mark { position: at, kind: 0 }),
        }
    }

    /// Returns the bytes that can be received now: the bytes in the ring without the strides of marks, and
    /// the bytes that marks stand for. Takes nothing. A reference that comes next counts whole, even if part
    /// of it was received.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Head`], [`PeerMisbehaved::Marks`], [`PeerMisbehaved::Mark`].
    pub fn payload(&mut self) -> Result<u64, PeerMisbehaved> {
        let published = self.available(usize::MAX)?;
        let (seen, capacity) = (self.index.seen_marks(), self.ring.capacity());
        let places = (self.index.tail(), self.index.read());
        self.marks.payload(self.ring.header(), seen, places, published, capacity)
    }

    /// Returns where the bytes behind the next mark are, if that mark brings descriptors. The first number is
    /// the distance from the next byte. The second is how many of `available` bytes came with the
    /// descriptors. They end at the mark behind, since a send that was cut short states more than it sent.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Mark`].
    pub fn behind_fds(&self, available: usize) -> Result<Option<(usize, usize)>, PeerMisbehaved> {
        let Some(Mark::Fds { len, .. }) = self.marks.next() else { return Ok(None) };
        let (read, capacity) = (self.index.read(), self.ring.capacity());
        let end = read + available as u64;
        let behind = self.marks.at() + marks::stride(capacity) as u64;
        if behind > end || self.marks.at() < read {
            return Ok(None);
        }
        let (seen, tail) = (self.index.seen_marks(), self.index.tail());
        let until = self.marks.second_at(self.ring.header(), seen, tail, capacity)?.min(end);
        Ok(Some(((behind - read) as usize, len.min(until - behind) as usize)))
    }

    /// Returns the mark that comes next, where [`Consumer::before_mark`] gave 0 of something. Does not take
    /// it.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Mark`] if the mark's stride is not all published; [`PeerMisbehaved::Head`].
    #[inline]
    pub fn mark(&mut self) -> Result<Mark, PeerMisbehaved> {
        let stride = marks::stride(self.ring.capacity());
        let there = self.available(stride)?;
        self.marks
            .next()
            .filter(|_| there >= stride)
            .ok_or(PeerMisbehaved::Mark { position: self.index.read(), kind: 0 })
    }

    /// Takes the mark that comes next, with its stride. Returns whether room was made.
    ///
    /// # Panics
    ///
    /// If [`Consumer::mark`] has not returned it.
    #[inline]
    pub fn take_mark(&mut self) -> bool {
        self.marks.take(self.ring.capacity());
        self.take(marks::stride(self.ring.capacity()))
    }

    /// Returns whether a known mark comes next.
    #[inline]
    pub fn at_mark(&self) -> bool {
        self.mark_at(0)
    }

    /// Returns whether a known mark comes after `ahead` bytes.
    #[inline]
    pub fn mark_at(&self, ahead: usize) -> bool {
        self.marks.at() == self.index.read() + ahead as u64
    }

    /// Returns the position of the next byte in the ring's stream.
    #[inline]
    pub fn position(&self) -> u64 {
        self.index.read()
    }

    /// Asks for the line of the next byte, without waiting for it. The request overlaps with that for the
    /// head's line, which says whether there is something to read. After a mark nothing is asked for: the
    /// next thing is likely a mark again, which comes with the head's line.
    #[inline]
    pub fn prefetch(&self) {
        if self.marks.after() != self.index.read() {
            self.ring.prefetch(self.offset);
        }
    }

    /// Copies from `at` bytes past the next byte, without taking.
    ///
    /// # Panics
    ///
    /// If `at` or `buffer.len()` is more than the capacity.
    #[inline]
    pub fn copy_out(&self, at: usize, buffer: &mut [u8]) {
        self.ring.copy_out(self.wrap(at), buffer);
    }

    /// Returns the offset of the byte that is `at` bytes (at most the capacity) past the next one.
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
        let to = self.free_to();
        if self.me != 0 {
            return to != self.index.tail();
        }
        self.index.give_back(self.ring.header(), to)
    }

    /// Returns the position up to which nothing is lent or still to be taken.
    #[inline]
    fn free_to(&self) -> u64 {
        self.borrows.front().map_or(self.index.read(), |borrow| borrow.start)
    }

    /// Lends the next `len` bytes: they stay in the ring until they are released. Returns the name of the
    /// borrow and the offset of its first byte in the ring.
    pub fn borrow(&mut self, len: usize) -> (BorrowId, usize) {
        let id = BorrowId(self.next_borrow);
        self.next_borrow = self.next_borrow.wrapping_add(1);
        let (start, member) = (self.index.read(), self.me);
        self.borrows.push_back(Borrow { id, member, start, end: start + len as u64 });
        let offset = self.offset;
        self.move_on(len);
        (id, offset)
    }

    /// Lends `len` bytes more to the newest borrow, if it is `id` and nothing was taken since.
    ///
    /// # Panics
    ///
    /// If it is not the newest, or bytes were taken behind it.
    pub fn extend(&mut self, id: BorrowId, len: usize) {
        let read = self.index.read();
        let me = self.me;
        let mine = |borrow: &&mut Borrow| borrow.id == id && borrow.member == me && borrow.end == read;
        let newest = self.borrows.back_mut().filter(mine);
        newest.expect("only the newest borrow grows").end += len as u64;
        self.move_on(len);
    }

    /// Gives the first `len` bytes of a borrow back, or all of them if it has fewer. Space is freed in stream
    /// order, so a borrow behind an older one frees nothing yet. Returns whether room was made.
    pub fn release(&mut self, id: BorrowId, len: usize) -> bool {
        let me = self.me;
        if let Some(borrow) = self.borrows.iter_mut().find(|borrow| borrow.id == id && borrow.member == me) {
            borrow.start = borrow.start.saturating_add(len as u64).min(borrow.end);
        }
        while self.borrows.front().is_some_and(|borrow| borrow.start == borrow.end) {
            self.borrows.pop_front();
        }
        self.give_back()
    }

    /// Returns the number of borrows that are out.
    pub fn borrows(&self) -> usize {
        self.borrows.len()
    }

    /// Returns an upper bound of the room that the sender has.
    #[inline]
    pub fn room(&self) -> usize {
        // Where others share this end, what is taken is given back before any member waits for it.
        self.index.room() + if self.me != 0 { (self.free_to() - self.index.tail()) as usize } else { 0 }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Producer;
    use onecopy_copy::Hint;
    use onecopy_sync::atomic::Ordering;

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
        assert_eq!(c.behind_fds(there), Ok(None), "the mark is not known yet");
        assert_eq!(c.before_mark(there).unwrap(), 100);
        assert!(c.mark_at(100) && !c.at_mark());
        assert_eq!(c.behind_fds(there), Ok(Some((164, 7))));
        assert_eq!(c.behind_fds(166), Ok(Some((164, 2))));
        assert_eq!(c.behind_fds(163), Ok(None));
    }

    #[test]
    fn who_shares_the_end_goes_on_where_the_other_left_off() {
        let (mut p, mut c) = pair(4096);
        let mut other = Consumer::new(c.ring().clone());
        send(&mut p, &[1; 3000]);
        c.available(1).unwrap();
        let (view, _) = c.borrow(1000);
        c.share(7);
        c.take(500);
        assert_eq!(c.room(), 4096 - 3000);
        other.resume(8, c.reached(), c.lent()).unwrap();
        assert_eq!(other.available(1), Ok(1500));
        other.take(500);
        other.flush();
        assert_eq!(p.room(4096).unwrap(), 1096, "the other's view holds it back");
        assert!(!other.release(view, 1000), "it is not this one's to give back");
        c.resume(7, other.reached(), other.lent()).unwrap();
        assert!(c.release(view, 1000));
        assert_eq!(p.room(4096).unwrap(), 1096, "not given back before others know");
        c.flush();
        assert_eq!(p.room(4096).unwrap(), 3096);
        other.resume(8, Reached { read: 2000, marks: 0, after: 0 }, c.lent()).unwrap();
        let _ = other.available(1);
        other.borrow(100);
        other.release_all_of(|member| member == 8);
        other.flush();
        assert_eq!(p.room(4096).unwrap(), 3196);
    }

    #[test]
    fn a_state_that_cannot_be_is_a_lie() {
        let (_p, mut c) = pair(4096);
        let none = || std::iter::empty();
        let reached = |read, after| Reached { read, marks: 0, after };
        assert_eq!(c.resume(1, reached(u64::MAX, 0), none()), Err(PeerMisbehaved::Member));
        assert_eq!(c.resume(1, reached(10, 11), none()), Err(PeerMisbehaved::Member));
        for (start, end) in [(0, 9000), (8000, 7000), (5000, 9001), (4903, 9000), (u64::MAX, 9000)] {
            let lent = Lent { member: 1, id: 0, start, end };
            assert_eq!(
                c.resume(1, reached(9000, 0), [lent].into_iter()),
                Err(PeerMisbehaved::Member),
                "{start} {end}"
            );
        }
        let lent = |start, end| Lent { member: 1, id: 0, start, end };
        let crossed = [lent(8000, 8500), lent(8499, 9000)];
        assert_eq!(c.resume(1, reached(9000, 0), crossed.into_iter()), Err(PeerMisbehaved::Member));
        assert_eq!(c.resume(1, reached(9000, 0), [lent(8000, 8500), lent(8500, 9000)].into_iter()), Ok(()));
        let (mut p, _c) = pair(4096);
        for state in [[0, 1, 0], [4097, 0, 0], [u64::MAX, u64::MAX, 0]] {
            assert_eq!(p.resume(state), Err(PeerMisbehaved::Member), "{state:?}");
        }
    }

    #[test]
    fn what_a_dead_sender_published_is_sent_and_nothing_else() {
        let (mut p, mut c) = pair(4096);
        let mut other = Producer::new(p.ring().clone());
        send(&mut p, &[1; 100]);
        other.resume(p.state()).unwrap();
        // The sender publishes, writes more, lays a mark, and dies.
        send(&mut p, &[2; 50]);
        p.copy_in(0, &[3; 50], Hint::default());
        p.mark(0, crate::Mark::Fds { count: 1, len: 1 });
        other.recover().unwrap();
        assert_eq!(other.head(), 150 + other.stride() as u64);
        send(&mut other, &[4; 10]);
        assert_eq!(c.available(1), Ok(160 + 64));
        assert_eq!(c.before_mark(224), Ok(150));
        c.take(150);
        assert!(c.mark().is_ok());
        c.take_mark();
        let mut out = [0; 10];
        c.copy_out(0, &mut out);
        assert_eq!(out, [4; 10]);
        // A peer that changes the head leaves an impossible state.
        other.header().writer.0.head.store(5000, Ordering::Relaxed);
        assert_eq!(other.recover(), Err(PeerMisbehaved::Member));
        other.header().writer.0.head.store(10, Ordering::Relaxed);
        assert_eq!(other.recover(), Err(PeerMisbehaved::Member));
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
