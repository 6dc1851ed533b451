//! Records in a ring. Each record is one or more frames in the stream of bytes, and each frame is a header
//! and bytes.
//!
//! ```text
//! 0        4        8                    8 + len     next multiple of 8
//! | len    | flags  | bytes ...          | (nothing) | next frame
//! ```
//!
//! A frame's flags ([`With`]) tell what comes with it besides bytes; that is in the channel. Such a frame
//! takes at least the room that a mark takes in a stream. So no more than [`MARKS`](crate::marks::MARKS) of
//! them are under way at once, and as many messages in the channel.
//!
//! The bytes of a record may be elsewhere, in pages of a pool of the sender. Its frame then has
//! [`With::parts`] and holds a list ([`Parts`]): first the part of the record that is bytes, and then
//! references as marks have them ([`Mark::Reference`]). A frame that is no record announces each pool
//! ([`With::POOL`]).
//!
//! ```text
//! | header | u32 bytes | u32 references | bytes ... (to a multiple of 8) | 3 words for each reference |
//! ```
//!
//! Frames begin at multiples of eight bytes, and so does the wrap. So a header never wraps, and is written
//! and read as one word. Frames are published whole, so the bytes that a receiver sees always end with a
//! frame. A frame that does not fit is misbehaviour, and so is an unknown flag.
//!
//! Frames add no synchronization of their own. A header is data like any other, published by the head that
//! moves over it.

use crate::{Consumer, Mark, PeerMisbehaved, Producer};
use onecopy_copy::Hint;
use std::io::IoSlice;

/// Bytes of a frame's header.
pub const HEADER: usize = 8;
/// Bytes of a cache line, and how far ahead a sender asks for the lines that it will write. These lines come
/// from the receiver's cache, which takes about as long as three small records.
const LINE: usize = 64;
const AHEAD: usize = 6 * LINE;

/// Set in the last frame of a record. Atomic records are one frame each.
const END: u64 = 1 << 32;
/// The lowest bit of [`With`] in a header, and the bits of [`With`].
const WITH: u32 = 40;
const WITH_MASK: u64 = 0xffff << WITH;
const SAID: u16 = 1 << 8;
const UNSAID: u16 = 2 << 8;
const PARTS: u16 = 4 << 8;
const POOL: u16 = 8 << 8;

/// Most references in one frame.
pub const MAX_PARTS: usize = 256;
/// Bytes of a list's first word, and bytes of a reference.
const LIST: usize = 8;
const REFERENCE: usize = 24;

/// What comes with a frame. Descriptors and credentials are one message in the channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct With(u16);

/// What a frame or a mark says about the sender's identity from there on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// The identity does not change.
    #[default]
    AsBefore,
    /// The sender states its identity: credentials are in the channel.
    Said,
    /// The sender does not state its identity any more.
    Unsaid,
}

impl With {
    /// The descriptor of a pool, in a frame that is no record but announces the pool.
    pub const POOL: With = With(POOL | 1);

    /// Adds that the frame holds a list of parts.
    pub fn parts(self) -> With {
        With(self.0 | PARTS)
    }

    /// Returns whether the frame holds a list of parts.
    #[inline]
    pub fn has_parts(self) -> bool {
        self.0 & PARTS != 0
    }

    /// Returns whether the frame is no record, but announces a pool.
    #[inline]
    pub fn is_pool(self) -> bool {
        self.0 & POOL != 0
    }

    /// Makes the flags for that many descriptors and an identity.
    pub fn new(fds: u8, who: Identity) -> With {
        let who = match who {
            Identity::AsBefore => 0,
            Identity::Said => SAID,
            Identity::Unsaid => UNSAID,
        };
        With(u16::from(fds) | who)
    }

    /// Returns whether nothing comes with the frame.
    #[inline]
    pub fn is_nothing(self) -> bool {
        self.0 == 0
    }

    /// Returns the number of descriptors.
    pub fn fds(self) -> u8 {
        self.0 as u8
    }

    /// Returns what is said about the sender's identity.
    pub fn who(self) -> Identity {
        match self.0 & (SAID | UNSAID) {
            0 => Identity::AsBefore,
            SAID => Identity::Said,
            _ => Identity::Unsaid,
        }
    }

    /// Returns whether the frame has a message in the channel.
    pub fn is_in_channel(self) -> bool {
        self.fds() > 0 || self.who() == Identity::Said
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Bytes behind the header.
    pub len: usize,
    /// Whether a record ends with it.
    pub end: bool,
    /// What comes with it.
    pub with: With,
}

/// Bytes that a frame of `len` bytes takes in the ring.
#[inline]
pub const fn framed(len: usize) -> usize {
    HEADER + len.next_multiple_of(8)
}

/// Least bytes that a frame takes if something comes with it, in a ring of that capacity.
#[inline]
pub const fn least_with(capacity: usize) -> usize {
    (capacity / crate::marks::MARKS).next_multiple_of(8)
}

/// Bytes of the largest frame that fits into a ring.
pub const fn largest(capacity: usize) -> usize {
    let most = capacity - HEADER;
    if most > u32::MAX as usize { u32::MAX as usize } else { most }
}

impl Frame {
    #[inline]
    fn word(self) -> u64 {
        self.len as u64 | if self.end { END } else { 0 } | u64::from(self.with.0) << WITH
    }

    /// Reads a header's word, where `available` bytes follow from the header on in a ring of that capacity.
    #[inline]
    fn of(word: u64, available: usize, capacity: usize) -> Result<Frame, PeerMisbehaved> {
        let len = word as u32 as usize;
        let frame = Frame { len, end: word & END != 0, with: With((word >> WITH) as u16) };
        if word & !(END | 0xffff_ffff) != 0 && !frame.may_have(word) || frame.size(capacity) > available {
            return Err(PeerMisbehaved::Frame { word, available: available as u64 });
        }
        Ok(frame)
    }

    /// Returns whether the flags of a word that has some are possible.
    #[cold]
    fn may_have(self, word: u64) -> bool {
        // 253 is SCM_MAX_FD, the limit that the channel has too.
        let who = self.with.0 & !0xff;
        word & !(END | 0xffff_ffff | WITH_MASK) == 0
            && ([0, SAID, UNSAID].contains(&(who & !PARTS)) || self.with == With::POOL)
            && self.with.fds() <= 253
    }

    /// Returns the bytes that the frame takes in a ring of that capacity.
    #[inline]
    pub fn size(self, capacity: usize) -> usize {
        let size = framed(self.len);
        if self.with.is_nothing() { size } else { size.max(least_with(capacity)) }
    }
}

/// The frame that announces a pool.
pub const POOL_FRAME: Frame = Frame { len: REFERENCE, end: true, with: With::POOL };

/// The contents of a frame with a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Bytes of the record that are in the frame. They begin [`Parts::BYTES_AT`] behind the frame's
    /// beginning.
    pub bytes: usize,
    /// References that follow the bytes.
    pub references: usize,
}

impl Parts {
    /// Where the bytes begin in the frame.
    pub const BYTES_AT: usize = HEADER + LIST;

    /// Returns the bytes behind the frame's header.
    pub const fn len(self) -> usize {
        LIST + self.bytes.next_multiple_of(8) + self.references * REFERENCE
    }

    /// Returns whether the list has no reference. No valid list is empty.
    pub const fn is_empty(self) -> bool {
        self.references == 0
    }

    /// Reads a list's first word, in a frame of `len` bytes.
    fn of(word: u64, len: usize) -> Option<Parts> {
        let parts = Parts { bytes: word as u32 as usize, references: (word >> 32) as usize };
        (!parts.is_empty() && parts.references <= MAX_PARTS && parts.len() == len).then_some(parts)
    }
}

impl Producer {
    /// Writes a list's first word and the `bytes` behind it, at the place of the next frame's bytes.
    ///
    /// # Panics
    ///
    /// If there was no room for it.
    pub fn list(&mut self, bytes: &[IoSlice<'_>], references: usize, hint: Hint) {
        let mut at = 0;
        for piece in bytes {
            self.copy_in(Parts::BYTES_AT + at, piece, hint);
            at += piece.len();
        }
        self.ring().set_word(self.offset_at(HEADER), at as u64 | (references as u64) << 32);
    }

    /// Writes reference number `i` of a list.
    ///
    /// # Panics
    ///
    /// If there was no room for it.
    pub fn list_reference(&mut self, parts: Parts, i: usize, reference: Mark) {
        let at = Parts::BYTES_AT + parts.bytes.next_multiple_of(8) + i * REFERENCE;
        self.words_at(at, reference);
    }

    /// Writes a pool's mark as the bytes of the next frame, and publishes that frame.
    ///
    /// # Panics
    ///
    /// If there was no room for it.
    pub fn publish_pool(&mut self, pool: Mark) {
        self.words_at(HEADER, pool);
        self.publish_frame(POOL_FRAME);
    }

    fn words_at(&mut self, at: usize, mark: Mark) {
        for (i, word) in mark.encode().into_iter().enumerate() {
            self.ring().set_word(self.offset_at(at + i * 8), word);
        }
    }

    /// Publishes a frame whose bytes were copied to [`HEADER`] bytes past the next byte.
    ///
    /// # Panics
    ///
    /// If there was no room for it.
    #[inline]
    pub fn publish_frame(&mut self, frame: Frame) {
        self.ring().set_word(self.offset_at(0), frame.word());
        self.publish(frame.size(self.ring().capacity()));
        if self.ring().capacity() > 2 * AHEAD {
            self.ring().prefetch_to_write(self.offset_at(AHEAD));
        }
    }
}

impl Consumer {
    /// Reads the list in the frame at `at` bytes past the next byte.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Frame`].
    pub fn parts(&self, at: usize, frame: Frame) -> Result<Parts, PeerMisbehaved> {
        let word = if frame.len < LIST { 0 } else { self.ring().word(self.wrap(at + HEADER)) };
        Parts::of(word, frame.len).ok_or(PeerMisbehaved::Frame { word, available: frame.len as u64 })
    }

    /// Reads reference number `i` of that list.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Reference`].
    pub fn part(&self, at: usize, parts: Parts, i: usize) -> Result<Mark, PeerMisbehaved> {
        let at = at + Parts::BYTES_AT + parts.bytes.next_multiple_of(8) + i * REFERENCE;
        match self.mark_words(at) {
            Some(mark @ Mark::Reference { .. }) => Ok(mark),
            _ => Err(PeerMisbehaved::Reference),
        }
    }

    /// Reads the pool that the next frame announces.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Pool`].
    pub fn pool(&self, frame: Frame) -> Result<Mark, PeerMisbehaved> {
        match self.mark_words(HEADER) {
            Some(mark @ Mark::Pool { .. }) if frame.len == REFERENCE && frame.end => Ok(mark),
            _ => Err(PeerMisbehaved::Pool),
        }
    }

    /// Reads the mark whose words are `at` bytes past the next byte. Reads each word once.
    fn mark_words(&self, at: usize) -> Option<Mark> {
        Mark::decode([0, 8, 16].map(|word| self.ring().word(self.wrap(at + word))))
    }

    /// Reads the header of the frame at `at` bytes past the next byte. A frame must begin there. `available`
    /// bytes can be taken in all.
    ///
    /// # Errors
    ///
    /// [`PeerMisbehaved::Frame`].
    ///
    /// # Panics
    ///
    /// If no frame can begin there.
    #[inline]
    pub fn frame(&self, at: usize, available: usize) -> Result<Frame, PeerMisbehaved> {
        let left = available.saturating_sub(at);
        if left < HEADER {
            return Err(PeerMisbehaved::Frame { word: 0, available: left as u64 });
        }
        Frame::of(self.ring().word(self.wrap(at)), left, self.ring().capacity())
    }

    /// Asks for the lines of the frames behind the next one, as far as they are known to be written. To ask
    /// for a line that the sender is about to write would take it away from the sender.
    #[inline]
    pub fn prefetch_frames(&self, size: usize, available: usize) {
        let ahead = size + AHEAD;
        if ahead < available {
            self.ring().prefetch(self.wrap(ahead));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Ring;
    use onecopy_copy::Hint;

    fn pair(capacity: usize) -> (Producer, Consumer) {
        let (ring, _fd) = Ring::create(capacity).unwrap();
        (Producer::new(ring.clone()), Consumer::new(ring))
    }

    #[test]
    fn frames_come_out_as_they_went_in_at_every_offset() {
        let (mut p, mut c) = pair(4096);
        let sizes = [0, 1, 7, 8, 9, 64, 1000, largest(4096)];
        for round in 0..4000usize {
            let len = sizes[round * 7 % sizes.len()];
            let bytes: Vec<u8> = (0..len).map(|i| (i + round) as u8).collect();
            let who = [Identity::AsBefore, Identity::Said, Identity::Unsaid][round % 3];
            let with = if round % 2 == 0 { With::new((round % 254) as u8, who) } else { With::default() };
            let whole = Frame { len, end: round % 3 > 0, with };
            assert!(p.room(whole.size(4096)).unwrap() >= whole.size(4096));
            p.copy_in(HEADER, &bytes, Hint::default());
            p.publish_frame(whole);
            let n = c.available(1).unwrap();
            let frame = c.frame(0, n).unwrap();
            assert_eq!(frame, whole);
            let mut out = vec![0; len];
            c.copy_out(HEADER, &mut out);
            assert_eq!(out, bytes);
            c.take(frame.size(4096));
            assert_eq!(c.available(1), Ok(0));
        }
    }

    #[test]
    fn every_impossible_header_is_a_lie() {
        let with = |bits: u64| END | 8 | bits << 40;
        for word in [1u64 << 33, u64::MAX, 1 << 63, 57, 100, u64::from(u32::MAX), END | 57]
            .into_iter()
            .chain([254, 255, 3 << 8, 7 << 8, 8 << 8, 2 | 8 << 8, 1 | 12 << 8, 1 << 15].map(with))
        {
            assert!(matches!(Frame::of(word, 64, 4096), Err(PeerMisbehaved::Frame { .. })), "{word:#x}");
        }
        assert_eq!(Frame::of(END | 56, 64, 4096), Ok(Frame { len: 56, end: true, with: With::default() }));
        // A frame with something besides bytes takes its least room.
        assert!(matches!(Frame::of(with(1), 63, 4096), Err(PeerMisbehaved::Frame { .. })));
        assert_eq!(
            Frame::of(with(253 | 1 << 8), 64, 4096).map(|f| (f.with.fds(), f.with.who())),
            Ok((253, Identity::Said))
        );
        assert_eq!(Frame::of(with(1 | 8 << 8), 64, 4096).map(|f| f.with), Ok(With::POOL));
        assert!(
            Frame::of(with(253 | 5 << 8), 64, 4096).is_ok_and(|f| f.with.has_parts() && f.with.fds() == 253)
        );
        let (_p, c) = pair(4096);
        for available in 0..HEADER {
            assert!(matches!(c.frame(0, available), Err(PeerMisbehaved::Frame { .. })), "{available}");
        }
    }

    #[test]
    fn lists_come_out_as_they_went_in_at_every_offset() {
        let (mut p, mut c) = pair(4096);
        for round in 0..2000usize {
            let bytes: Vec<u8> = (0..round % 60).map(|i| (i + round) as u8).collect();
            let parts = Parts { bytes: bytes.len(), references: 1 + round % 5 };
            let reference = |i: usize| Mark::Reference {
                slot: (round % 512) as u32,
                pool: i as u32,
                page: round as u32,
                offset: 7,
                len: u32::MAX,
            };
            let with = With::new((round % 3) as u8, Identity::AsBefore).parts();
            let frame = Frame { len: parts.len(), end: true, with };
            assert!(p.room(frame.size(4096)).unwrap() >= frame.size(4096));
            p.list(&[IoSlice::new(&bytes)], parts.references, Hint::default());
            (0..parts.references).for_each(|i| p.list_reference(parts, i, reference(i)));
            p.publish_frame(frame);
            let n = c.available(1).unwrap();
            let got = c.frame(0, n).unwrap();
            assert_eq!((got, c.parts(0, got)), (frame, Ok(parts)));
            let mut out = vec![0; bytes.len()];
            c.copy_out(Parts::BYTES_AT, &mut out);
            assert_eq!(out, bytes);
            for i in 0..parts.references {
                assert_eq!(c.part(0, parts, i), Ok(reference(i)));
            }
            c.take(got.size(4096));
        }
        let pool = Mark::Pool { pool: 3, page_len: 8192, pages: 5 };
        assert!(p.room(1000).unwrap() >= 1000);
        p.publish_pool(pool);
        let n = c.available(1).unwrap();
        let got = c.frame(0, n).unwrap();
        assert!(got == POOL_FRAME && c.pool(got) == Ok(pool));
    }

    #[test]
    fn every_impossible_list_is_a_lie() {
        let list = |bytes: u64, references: u64| bytes | references << 32;
        assert_eq!(Parts::of(list(0, 1), 32), Some(Parts { bytes: 0, references: 1 }));
        assert_eq!(Parts::of(list(9, 2), 8 + 16 + 48), Some(Parts { bytes: 9, references: 2 }));
        for (word, len) in [
            (list(0, 0), 8),
            (list(8, 0), 16),
            (list(0, 1), 31),
            (list(0, 1), 40),
            (list(1, 1), 32),
            (list(0, 257), 8 + 257 * 24),
            (u64::MAX, 32),
            (list(u64::from(u32::MAX), 1), 32),
            (list(0, 1), 0),
        ] {
            assert_eq!(Parts::of(word, len), None, "{word:#x} {len}");
        }
        // There is no reference, or no pool, where one should be.
        let (mut p, mut c) = pair(4096);
        let parts = Parts { bytes: 0, references: 1 };
        assert_eq!(p.room(1000).map(|room| room >= 1000), Ok(true));
        p.list(&[], 1, Hint::default());
        p.list_reference(parts, 0, Mark::Pool { pool: 0, page_len: 4096, pages: 1 });
        p.publish_frame(Frame { len: parts.len(), end: true, with: With::default().parts() });
        let n = c.available(1).unwrap();
        let frame = c.frame(0, n).unwrap();
        assert_eq!(
            (c.part(0, parts, 0), c.pool(frame)),
            (Err(PeerMisbehaved::Reference), Err(PeerMisbehaved::Pool))
        );
    }
}
