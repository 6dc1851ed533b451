//! Records in a ring: each is a frame, a header and its bytes, one after the other in the stream of bytes.
//!
//! ```text
//! 0        4        8                    8 + len     next multiple of 8
//! | len    | flags  | bytes ...          | (nothing) | next frame
//! ```
//!
//! Frames begin at multiples of eight bytes, and so does the wrap: a header never wraps, and is written and read as
//! one word. Frames are published whole, so what a receiver sees of the ring always ends with one. A frame that
//! does not is a lie, and so is a flag that nobody has defined. Nothing here is lock-free that was not before: a
//! header is data like any other, published by the head that moves over it.

use crate::{Consumer, Lie, Producer};

/// Bytes of a frame's header.
pub const HEADER: usize = 8;
/// Bytes of a cache line, and how far ahead of itself a sender asks for the lines that it will write: they come from
/// the receiver's cache, which takes about as long as three small records.
const LINE: usize = 64;
const AHEAD: usize = 6 * LINE;

/// Set in the last frame of a record. Atomic records are one frame each.
const END: u64 = 1 << 32;

/// What a frame's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Bytes behind the header.
    pub len: usize,
    /// Whether a record ends with it.
    pub end: bool,
}

/// Bytes that a frame of `len` bytes takes in the ring.
#[inline]
pub const fn framed(len: usize) -> usize {
    HEADER + len.next_multiple_of(8)
}

/// Bytes of the largest frame that a ring takes.
pub const fn largest(capacity: usize) -> usize {
    let most = capacity - HEADER;
    if most > u32::MAX as usize { u32::MAX as usize } else { most }
}

impl Frame {
    #[inline]
    fn word(self) -> u64 {
        self.len as u64 | if self.end { END } else { 0 }
    }

    /// Of a header's word, where `available` bytes lie from the header on.
    #[inline]
    fn of(word: u64, available: usize) -> Result<Frame, Lie> {
        let len = word as u32 as usize;
        if word & !(END | 0xffff_ffff) != 0 || framed(len) > available {
            return Err(Lie::Frame { word, available: available as u64 });
        }
        Ok(Frame { len, end: word & END != 0 })
    }

    /// Bytes that it takes in the ring.
    #[inline]
    pub fn size(self) -> usize {
        framed(self.len)
    }
}

impl Producer {
    /// Publishes a frame whose bytes were copied to [`HEADER`] bytes past the next byte.
    ///
    /// # Panics
    ///
    /// When there was not room for it.
    #[inline]
    pub fn publish_frame(&mut self, frame: Frame) {
        self.ring().set_word(self.offset_at(0), frame.word());
        self.publish(frame.size());
        if self.ring().capacity() > 2 * AHEAD {
            self.ring().prefetch_to_write(self.offset_at(AHEAD));
        }
    }
}

impl Consumer {
    /// The frame at `at` bytes past the next byte, which is a frame's beginning, where `available` bytes can be
    /// taken in all.
    ///
    /// # Errors
    ///
    /// [`Lie::Frame`].
    ///
    /// # Panics
    ///
    /// When no frame can begin there.
    #[inline]
    pub fn frame(&self, at: usize, available: usize) -> Result<Frame, Lie> {
        let left = available.saturating_sub(at);
        if left < HEADER {
            return Err(Lie::Frame { word: 0, available: left as u64 });
        }
        Frame::of(self.ring().word(self.wrap(at)), left)
    }

    /// Asks for the lines of the frames behind the next one, as far as they are known to be written: to ask for what
    /// the sender is about to write would take the line away from it.
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
            assert!(p.room(framed(len)).unwrap() >= framed(len));
            p.copy_in(HEADER, &bytes, Hint::default());
            p.publish_frame(Frame { len, end: round % 3 > 0 });
            let n = c.available(1).unwrap();
            let frame = c.frame(0, n).unwrap();
            assert_eq!(frame, Frame { len, end: round % 3 > 0 });
            let mut out = vec![0; len];
            c.copy_out(HEADER, &mut out);
            assert_eq!(out, bytes);
            c.take(frame.size());
            assert_eq!(c.available(1), Ok(0));
        }
    }

    #[test]
    fn every_impossible_header_is_a_lie() {
        for word in [1u64 << 33, u64::MAX, 1 << 63, 57, 100, u64::from(u32::MAX), END | 57] {
            assert!(matches!(Frame::of(word, 64), Err(Lie::Frame { .. })), "{word:#x}");
        }
        assert_eq!(Frame::of(END | 56, 64), Ok(Frame { len: 56, end: true }));
        let (_p, c) = pair(4096);
        for available in 0..HEADER {
            assert!(matches!(c.frame(0, available), Err(Lie::Frame { .. })), "{available}");
        }
    }
}
