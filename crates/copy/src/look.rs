//! Looking at bytes without a copy of them: by value, 64 at a time, in registers.

use crate::arch::look as load;
use onecopy_sys::map::{Span, Spans, slice, total};
use std::iter::FusedIterator;
use std::ops::Deref;

/// Up to 64 bytes, by value. They came with one load each, may be torn where their writer is not done, and do not
/// change any more.
///
/// As a slice it is as long as [`Block::len`] says: 64 bytes, and fewer only for the last block. The methods below look
/// at all 64 places. There the bytes behind the end are zero.
///
/// What only its methods see stays in registers. A slice of it wants memory, so the block goes to the stack in each turn of a
/// loop, even where only a rare branch takes the slice. Who wants that of the last bytes only loops over those apart.
#[derive(Clone, Copy, Debug)]
#[repr(align(16))]
pub struct Block {
    bytes: [u8; Block::SIZE],
    /// Invariant: 1 to 64.
    len: usize,
}

impl Block {
    /// The most bytes of a block.
    pub const SIZE: usize = 64;

    /// Returns how many bytes there are, 1 to 64.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "no block is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns all 64 places: the bytes, and zeroes behind them.
    #[inline(always)]
    pub fn to_bytes(self) -> [u8; Block::SIZE] {
        self.bytes
    }

    /// Returns all 64 places as words in the order of this CPU, to add up or to mix into a hash. What is done with them in
    /// a loop of eight, each with a sum of its own, is done by SIMD.
    #[inline(always)]
    pub fn words(self) -> [u64; Block::SIZE / 8] {
        std::array::from_fn(|i| u64::from_ne_bytes(std::array::from_fn(|j| self.bytes[8 * i + j])))
    }

    /// Returns where `byte` is: bit i is set if it is the byte at i. The number of ones is how often it occurs, the number of
    /// zeroes behind the last one is where it comes first.
    #[inline(always)]
    pub fn matches(self, byte: u8) -> u64 {
        load::matches(self.bytes, byte) & (u64::MAX >> (Block::SIZE - self.len))
    }
}

impl Deref for Block {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl AsRef<[u8]> for Block {
    #[inline(always)]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// The bytes of views in order, as [`Block`]s. All but the last one have 64 bytes, also where one view ends and the next
/// begins.
#[derive(Clone, Debug)]
pub struct Blocks<'a> {
    now: Span<'a>,
    then: Span<'a>,
}

impl<'a> Blocks<'a> {
    /// Makes the blocks of two views, of which either may be empty. A peer may be writing to them at this moment.
    #[inline]
    #[doc(hidden)]
    pub fn new([now, then]: Spans<'a>) -> Blocks<'a> {
        Blocks { now, then }
    }

    fn bytes(&self) -> usize {
        total(&[self.now, self.then])
    }

    /// Whether the next block is inside of the first view.
    #[inline(always)]
    fn is_whole(&self) -> bool {
        self.now.len() >= Block::SIZE
    }

    /// Loads the next block where it is inside of the first view.
    #[inline(always)]
    fn whole(&mut self) -> Option<Block> {
        if !self.is_whole() {
            return None;
        }
        // SAFETY: 64 bytes are in view, as just checked, and a view stays mapped readable for its lifetime.
        let bytes = unsafe { load::block(self.now.as_ptr()) };
        self.now = self.now.slice(Block::SIZE, usize::MAX);
        Some(Block { bytes, len: Block::SIZE })
    }

    /// Loads a block that is not inside of the first view. There is one at all.
    ///
    /// It takes and returns what is left, instead of a reference to it. So the loop around [`Blocks::next`] keeps that in
    /// registers.
    #[cold]
    #[inline(never)]
    fn seam(self) -> (Block, Blocks<'a>) {
        let front = self.now.len().min(Block::SIZE);
        let back = self.then.len().min(Block::SIZE - front);
        let [mut bytes, second] = [(self.now, front), (self.then, back)].map(|(span, len)| {
            // SAFETY: `len` bytes are in view, and a view stays mapped readable for 'a.
            unsafe { load::short(span.as_ptr(), len) }
        });
        bytes[front..front + back].copy_from_slice(&second[..back]);
        let [now, then] = [self.now.slice(front, usize::MAX), self.then.slice(back, usize::MAX)];
        let rest = if now.is_empty() { [then, Span::EMPTY] } else { [now, then] };
        (Block { bytes, len: front + back }, Blocks::new(rest))
    }
}

impl Iterator for Blocks<'_> {
    type Item = Block;

    #[inline(always)]
    fn next(&mut self) -> Option<Block> {
        if let Some(block) = self.whole() {
            return Some(block);
        }
        if self.now.is_empty() && self.then.is_empty() {
            return None;
        }
        let (block, rest) = self.clone().seam();
        *self = rest;
        Some(block)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let blocks = self.bytes().div_ceil(Block::SIZE);
        (blocks, Some(blocks))
    }
}

impl ExactSizeIterator for Blocks<'_> {}
impl FusedIterator for Blocks<'_> {}

/// Returns whether views hold just these bytes at this moment.
pub fn equal(spans: &Spans<'_>, bytes: &[u8]) -> bool {
    total(spans) == bytes.len()
        && Blocks::new(*spans).zip(bytes.chunks(Block::SIZE)).all(|(block, bytes)| {
            let bytes = bytes.first_chunk().copied().unwrap_or_else(|| padded(bytes));
            let ours = Block { bytes, len: block.len };
            block.words().iter().zip(ours.words()).fold(0, |other, (a, b)| other | (a ^ b)) == 0
        })
}

/// The bytes, which are fewer than 64, with zeroes behind them.
#[cold]
fn padded(bytes: &[u8]) -> [u8; Block::SIZE] {
    let mut all = [0; Block::SIZE];
    all[..bytes.len()].copy_from_slice(bytes);
    all
}

/// Returns where `needle` comes first in views at this moment; an empty one is at 0. In the worst case, which a peer can
/// bring about, it compares all of `needle` at each byte.
pub fn find(spans: &Spans<'_>, needle: &[u8]) -> Option<usize> {
    let (Some(&first), Some(&last)) = (needle.first(), needle.last()) else { return Some(0) };
    if needle.len() == 1 {
        return find_byte(spans, first);
    }
    // Only where its first byte is, and its last one at the right distance, the rest is compared.
    let mut starts = Blocks::new(*spans);
    let mut ends = Blocks::new(slice(spans, needle.len() - 1, usize::MAX));
    let mut at = 0;
    loop {
        let (passed, mut both);
        (passed, both, starts, ends) = skip_whole(starts, ends, first, last);
        at += passed;
        if both == 0 {
            both = starts.next()?.matches(first) & ends.next()?.matches(last);
            at += Block::SIZE;
        }
        while both != 0 {
            let at = at - Block::SIZE + both.trailing_zeros() as usize;
            if equal(&slice(spans, at, needle.len()), needle) {
                return Some(at);
            }
            both &= both - 1;
        }
    }
}

/// Passes the blocks inside of both views up to the first one that has `first` where `ends` has `last`. Returns how many
/// bytes were passed, that one's among them; where it has both, or 0 if no block has; and what is left.
///
/// As in [`find_byte`], the blocks inside of a view have a loop of their own. What is at a seam comes through memory, and a
/// loop that had both would keep all of its state there, whenever the compiler likes.
#[inline(never)]
fn skip_whole<'a>(
    mut starts: Blocks<'a>,
    mut ends: Blocks<'a>,
    first: u8,
    last: u8,
) -> (usize, u64, Blocks<'a>, Blocks<'a>) {
    let (mut passed, mut both) = (0, 0);
    while both == 0 && starts.is_whole() && ends.is_whole() {
        // One after the other: SSE2 has no registers for both and for what is looked for.
        both = starts.whole().map_or(0, |block| block.matches(first));
        both &= ends.whole().map_or(0, |block| block.matches(last));
        passed += Block::SIZE;
    }
    (passed, both, starts, ends)
}

#[inline(never)]
fn find_byte(spans: &Spans<'_>, byte: u8) -> Option<usize> {
    let mut blocks = Blocks::new(*spans);
    let mut at = 0;
    loop {
        while let Some(block) = blocks.whole() {
            if load::any(block.bytes, byte) {
                return Some(at + block.matches(byte).trailing_zeros() as usize);
            }
            at += Block::SIZE;
        }
        // At a seam, or the last one: behind a short one are zeroes, which may be `byte`.
        let found = blocks.next()?.matches(byte);
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize);
        }
        at += Block::SIZE;
    }
}
