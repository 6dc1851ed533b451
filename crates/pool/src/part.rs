//! Parts of pages: a reference, and which bytes of the page it is about.

use crate::page::Page;
use crate::shares::Piece;
use onecopy_sys::map::Span;
use std::fmt;

/// In [`Part::at`]: the bytes were a [`Piece`], so that nobody writes them, whoever writes the rest of the page.
const OWN: u32 = 1 << 31;

/// Some bytes of a page, and a reference to it; 16 bytes, as is `Option<Part>`.
///
/// Of a page that is cut into pieces nobody gets a slice, since each piece has a writer of its own. But a piece that became a part is
/// written by nobody any more: of that there is one.
///
/// Invariant: `len > 0`, and the range is inside of the page. With `OWN` it is inside of pieces that became parts.
#[derive(Clone)]
pub struct Part {
    page: Page,
    /// Where it begins, in bytes, and [`OWN`]. (The largest page has 1 GiB.)
    at: u32,
    len: u32,
}

const _: () = assert!(size_of::<Part>() == 16 && size_of::<Option<Part>>() == 16);
const _: () = assert!((crate::config::BASE_LEN as u64) << crate::config::MAX_ORDER < OWN as u64);

impl Part {
    /// `len` bytes of `page` from byte `offset`.
    ///
    /// # Errors
    ///
    /// The page, where the range is empty or not inside of it.
    #[inline]
    pub fn new(page: Page, offset: usize, len: usize) -> Result<Part, Page> {
        match offset.checked_add(len) {
            Some(end) if len > 0 && end <= page.len() => {
                Ok(Part { page, at: offset as u32, len: len as u32 })
            }
            _ => Err(page),
        }
    }

    /// The page.
    #[inline]
    pub fn page(&self) -> &Page {
        &self.page
    }

    /// Takes the page out.
    pub fn into_page(self) -> Page {
        self.page
    }

    /// Where it begins in its page, in bytes.
    #[inline]
    pub fn offset(&self) -> usize {
        (self.at & !OWN) as usize
    }

    /// Bytes; never 0.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "no part is empty")]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Where it ends in its page, in bytes.
    #[inline]
    pub fn end(&self) -> usize {
        self.offset() + self.len()
    }

    /// Whether its bytes were a [`Piece`].
    #[inline]
    pub fn was_piece(&self) -> bool {
        self.at & OWN != 0
    }

    /// Whether there is a slice: this process' own memory, of which nobody writes these bytes.
    #[inline]
    pub fn has_bytes(&self) -> bool {
        if self.was_piece() { !self.page.desc().base.is_null() } else { self.page.bytes().is_some() }
    }

    /// The bytes, where they are this process' own and nobody writes them: as [`Page::bytes`], and of what was a [`Piece`].
    #[inline]
    pub fn bytes(&self) -> Option<&[u8]> {
        if self.was_piece() {
            return self.piece();
        }
        self.page.bytes().map(|bytes| &bytes[self.offset()..self.end()])
    }

    fn piece(&self) -> Option<&[u8]> {
        let base = self.page.desc().base;
        // SAFETY:
        // - `base` is not null only for host memory, which is initialised and written by nobody but through pages
        //   (`HostMemory::from_raw`), and the range is inside of the page;
        // - it is inside of pieces that are gone: each was the only way to write its bytes (`PagePool::alloc_piece` gives no byte
        //   twice), and was consumed when the part was made of it;
        // - the page is cut as long as it has a reference, and there is this one: so nobody gets the whole to write it, and no
        //   byte of it is given out again.
        (!base.is_null()).then(|| unsafe {
            std::slice::from_raw_parts(base.add(self.offset()).cast_const(), self.len as usize)
        })
    }

    /// All bytes of its page, to be written: while this is the only reference, of memory of this process, and not cut.
    #[inline]
    pub fn page_bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.page.bytes_mut()
    }

    /// A view of its bytes, for the kernel to read and for copies; None for device memory.
    #[doc(hidden)]
    #[inline]
    pub fn span(&self) -> Option<Span<'_>> {
        self.page.span(self.offset(), self.len())
    }

    /// Whether `next` begins in the same page where this one ends, so that both are one.
    #[inline]
    pub fn joins(&self, next: &Part) -> bool {
        self.page.is_same(&next.page) && self.at + self.len == next.at
    }

    /// Grows by `next`, if it [`joins`](Part::joins) it; its reference is given back.
    ///
    /// # Errors
    ///
    /// `next`, if it does not.
    #[inline]
    pub fn join(&mut self, next: Part) -> Result<(), Part> {
        if !self.joins(&next) {
            return Err(next);
        }
        self.len += next.len;
        Ok(())
    }

    /// `len` bytes from byte `at` of it, with a reference of their own.
    ///
    /// # Panics
    ///
    /// If that is empty, or not inside.
    #[inline]
    #[must_use]
    pub fn part(&self, at: usize, len: usize) -> Part {
        self.part_with(self.page.clone(), at, len)
    }

    /// As [`Part::part`], with `page` for its reference: see [`Page::clones`].
    ///
    /// # Panics
    ///
    /// As [`Part::part`], and if `page` is another one.
    #[inline]
    #[must_use]
    pub fn part_with(&self, page: Page, at: usize, len: usize) -> Part {
        assert!(len > 0 && at < self.len() && len <= self.len() - at, "{len} bytes from {at} of {self:?}");
        assert!(page.is_same(&self.page), "a part of {self:?} with a reference to {page:?}");
        Part { page, at: self.at + at as u32, len: len as u32 }
    }

    /// Loses its first `n` bytes.
    ///
    /// # Panics
    ///
    /// If it has no more than those.
    #[inline]
    pub fn cut_front(&mut self, n: usize) {
        assert!(n < self.len(), "{n} bytes of {self:?}");
        self.at += n as u32;
        self.len -= n as u32;
    }

    /// Loses its last `n` bytes.
    ///
    /// # Panics
    ///
    /// If it has no more than those.
    #[inline]
    pub fn cut_back(&mut self, n: usize) {
        assert!(n < self.len(), "{n} bytes of {self:?}");
        self.len -= n as u32;
    }

    /// Keeps its first `n` bytes, at least one. Of a run that nobody else has, the pages that have none of them come home.
    pub(crate) fn keep_front(&mut self, n: usize) {
        self.cut_back(self.len() - n);
        if !self.page.is_unique() {
            return;
        }
        let each = self.page.len() / self.page.pages() as usize;
        self.page.shorten(self.end().div_ceil(each) as u32);
    }

    /// Takes in the `n` bytes before it in its page.
    ///
    /// # Panics
    ///
    /// If there are fewer, or it was a piece.
    #[inline]
    pub fn grow_front(&mut self, n: usize) {
        assert!(!self.was_piece() && n <= self.offset(), "{n} bytes before {self:?}");
        self.at -= n as u32;
        self.len += n as u32;
    }

    /// Takes in the `n` bytes behind it in its page.
    ///
    /// # Panics
    ///
    /// If there are fewer, or it was a piece.
    #[inline]
    pub fn grow_back(&mut self, n: usize) {
        assert!(!self.was_piece() && n <= self.page.len() - self.end(), "{n} bytes behind {self:?}");
        self.len += n as u32;
    }
}

impl From<Piece> for Part {
    /// Of a piece that is filled, and from now on only read.
    fn from(piece: Piece) -> Part {
        let (page, offset, len) = piece.into_parts();
        Part { page, at: offset | OWN, len }
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Part([{}..{}] of {:?})", self.offset(), self.end(), self.page)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::provider::{Heap, Opaque};
    use crate::{DeviceId, PagePool, PoolConfig};

    fn filled(pool: &PagePool, len: u32, byte: u8) -> Piece {
        let mut piece = pool.alloc_piece(len).unwrap();
        fill(&mut piece, byte);
        piece
    }

    fn fill(piece: &mut Piece, byte: u8) {
        let file = rustix::fs::memfd_create("onecopy-pool-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let bytes = vec![byte; piece.len() as usize];
        assert_eq!(rustix::io::write(&file, &bytes).unwrap(), bytes.len());
        let spans = [piece.span_mut().unwrap(), Span::EMPTY];
        assert_eq!(onecopy_sys::spans::pread(&file, &spans, 0).unwrap(), bytes.len());
    }

    #[test]
    fn a_piece_has_a_slice_of_its_own_bytes_while_its_neighbours_are_written() {
        let pool = PagePool::new(PoolConfig::new().limit(1), Heap::new()).unwrap();
        let first = Part::from(filled(&pool, 100, 1));
        let mut second = pool.alloc_piece(100).unwrap();
        let bytes = first.bytes().unwrap();
        fill(&mut second, 2);
        assert!(bytes == [1; 100], "as it was");
        assert!(first.page().bytes().is_none(), "of the whole there is none");
        let whole = Part::new(first.page().clone(), 0, 4096).unwrap();
        assert!(whole.bytes().is_none() && !whole.has_bytes() && whole.span().is_some());
        let second = Part::from(second);
        assert!(second.has_bytes() && second.bytes().unwrap() == [2; 100]);
        // A cache line apart: they are not one.
        assert!(!first.joins(&second));
        let (mut a, b) = (Part::from(filled(&pool, 128, 3)), Part::from(filled(&pool, 64, 4)));
        assert!(a.joins(&b) && !a.joins(&Part::new(b.page().clone(), b.offset(), 64).unwrap()));
        a.join(b).unwrap();
        assert_eq!((a.len(), a.bytes().unwrap()[127], a.bytes().unwrap()[128]), (192, 3, 4));
        a.cut_front(127);
        a.cut_back(63);
        assert_eq!(a.bytes().unwrap(), [3, 4]);
        assert_eq!(a.part(1, 1).bytes().unwrap(), [4]);
        assert!(a.page_bytes_mut().is_none());
        drop((first, second, a, whole));
        assert_eq!(pool.alloc_piece(4096).unwrap().offset(), 0, "all is back");
    }

    #[test]
    #[should_panic(expected = "64 bytes behind")]
    fn a_piece_does_not_grow_over_its_neighbour() {
        let pool = PagePool::new(PoolConfig::new().limit(1), Heap::new()).unwrap();
        let mut part = Part::from(pool.alloc_piece(64).unwrap());
        let _other = pool.alloc_piece(64).unwrap();
        part.grow_back(64);
    }

    #[test]
    fn a_part_is_inside_of_its_page() {
        let pool = PagePool::new(PoolConfig::new().limit(2), Heap::new()).unwrap();
        for (offset, len) in [(0, 0), (0, 4097), (4096, 1), (1, 4096), (usize::MAX, 2), (2, usize::MAX)] {
            assert!(Part::new(pool.alloc().unwrap(), offset, len).is_err());
        }
        let mut part = Part::new(pool.alloc().unwrap(), 10, 20).unwrap();
        part.page_bytes_mut().unwrap()[..40].fill(5);
        part.grow_front(10);
        part.grow_back(10);
        assert_eq!(part.bytes().unwrap(), [5; 40]);
        assert_eq!(part.into_page().len(), 4096);
        let gpu = PagePool::new(PoolConfig::new().limit(1), Opaque::new(DeviceId(1))).unwrap();
        let part = Part::from(gpu.alloc_piece(100).unwrap());
        assert!(!part.has_bytes() && part.bytes().is_none() && part.span().is_none());
    }
}
