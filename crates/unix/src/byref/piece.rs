//! Bytes that a peer has lent.

use onecopy_chain::Fragment;
use onecopy_copy::{Hint, Policy, Reader};
use onecopy_pool::Page;
use onecopy_sys::map::{Mapping, Span};
use std::sync::Arc;

/// Bytes that a peer has lent, or the part of them that is not received yet. The page goes back when
/// everything that shares it is dropped.
#[derive(Debug)]
pub struct Piece {
    page: Page,
    /// Where the bytes begin in the page. Invariant: `at + len` is inside.
    at: usize,
    len: usize,
    /// Bytes of the reference that were received before these.
    received: usize,
}

impl Piece {
    /// Makes the piece of a reference of which nothing was received. `at + len` is inside of the page.
    #[inline]
    pub fn new(page: Page, at: usize, len: usize) -> Piece {
        Piece { page, at, len, received: 0 }
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies to `buffer`, beginning `from` bytes behind the start. There must be enough bytes.
    #[inline]
    pub fn copy_out_from(&self, from: usize, buffer: &mut [u8]) {
        debug_assert!(from + buffer.len() <= self.len);
        // A caller that wants the bytes in its own buffer reads them next, on this core.
        let hint = Hint { policy: Policy::Cached, footprint: buffer.len(), reader: Reader::SameCore };
        onecopy_copy::copy_out(buffer, self.part(self.at + from, buffer.len()), hint);
    }

    /// Returns a view of the first `max` bytes.
    pub fn span(&self, max: usize) -> Span<'_> {
        self.part(self.at, self.len.min(max))
    }

    #[inline]
    fn part(&self, at: usize, len: usize) -> Span<'_> {
        self.page.span(at, len).expect("inside of a page that a peer shares")
    }

    /// Goes on behind the first `count` bytes, which must be there.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        self.at += count;
        self.len -= count;
        self.received += count;
    }

    /// Cuts off the first `count` bytes. There must be more.
    pub fn split(self, count: usize) -> (Piece, Piece) {
        let first = Piece { page: self.page.clone(), len: count, ..self };
        let mut rest = self;
        rest.advance(count);
        (first, rest)
    }

    /// Returns the bytes of the reference that were received before these.
    pub fn received(&self) -> usize {
        self.received
    }

    /// Returns the bytes of the whole page.
    pub fn page_len(&self) -> usize {
        self.page.len()
    }

    /// Returns the memory that the page lies in.
    pub fn mapping(&self) -> Option<&Arc<Mapping>> {
        self.page.mapping()
    }

    /// Makes a fragment of a chain. Returns None if no byte is left.
    pub fn into_fragment(self) -> Option<Fragment> {
        Fragment::new(self.page, self.at, self.len).ok()
    }
}
