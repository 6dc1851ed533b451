//! A part of a page.

use crate::error::ChainError;
use crate::kind::Kind;
use onecopy_copy::Hint;
use onecopy_pool::{DeviceId, Page, Piece};
use onecopy_sys::map::Span;
use std::fmt;
use std::io;

/// A part of a page, holding a reference to the page: what skb_frag_t is to Linux and an mbuf with external storage to
/// FreeBSD.
///
/// There is no slice of a fragment: whether its bytes may be looked at is asked once for a whole chain
/// ([`crate::Chain::host`]).
///
/// Invariant: `len > 0` and `offset + len <= page.len()`.
#[derive(Clone)]
pub struct Fragment {
    page: Page,
    offset: u32,
    len: u32,
}

const _: () = assert!(size_of::<Fragment>() == 16 && size_of::<Option<Fragment>>() == 16);

impl Fragment {
    /// `len` bytes of `page` from byte `offset`.
    ///
    /// # Errors
    ///
    /// [`ChainError::ZeroSize`], and [`ChainError::OutOfPage`] when the range is not inside the page, or the page has 4 GiB or
    /// more. The reference to the page is given back.
    #[inline]
    pub fn new(page: Page, offset: usize, len: usize) -> Result<Fragment, ChainError> {
        if len == 0 {
            return Err(ChainError::ZeroSize);
        }
        let outside = ChainError::OutOfPage { offset, len, page: page.len() };
        match offset.checked_add(len) {
            Some(end) if end <= page.len() && page.len() <= u32::MAX as usize => {
                Ok(Fragment { page, offset: offset as u32, len: len as u32 })
            }
            _ => Err(outside),
        }
    }

    /// All of `page`.
    ///
    /// # Errors
    ///
    /// [`ChainError::OutOfPage`] for a page of 4 GiB or more.
    pub fn whole(page: Page) -> Result<Fragment, ChainError> {
        let len = page.len();
        Fragment::new(page, 0, len)
    }

    /// The page.
    #[inline]
    pub fn page(&self) -> &Page {
        &self.page
    }

    /// Where it begins in its page, in bytes.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset as usize
    }

    /// Bytes; never 0.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Where it ends in its page, in bytes.
    #[inline]
    pub fn end(&self) -> usize {
        self.offset as usize + self.len as usize
    }

    /// Whose memory it is.
    #[inline]
    pub fn kind(&self) -> Kind {
        Kind::of(&self.page)
    }

    /// The device that the memory belongs to, if it is one's.
    pub fn device(&self) -> Option<DeviceId> {
        self.page.device()
    }

    /// Takes the page out.
    pub fn into_page(self) -> Page {
        self.page
    }

    #[inline]
    pub(crate) fn same_page(&self, other: &Fragment) -> bool {
        self.page.netmem() == other.page.netmem()
    }

    /// Whether `next` begins where this one ends, so that both are one.
    #[inline]
    pub(crate) fn joins(&self, next: &Fragment) -> bool {
        self.same_page(next) && self.end() == next.offset()
    }

    /// Grows by `next`, which [`Fragment::joins`] it; its reference is given back.
    pub(crate) fn join(&mut self, next: Fragment) {
        debug_assert!(self.joins(&next));
        self.len += next.len;
    }

    /// `len` bytes from byte `at` of it, with a reference of their own. Inside it and not empty.
    #[inline]
    pub(crate) fn part(&self, at: usize, len: usize) -> Fragment {
        debug_assert!(len > 0 && at + len <= self.len());
        Fragment { page: self.page.clone(), offset: self.offset + at as u32, len: len as u32 }
    }

    /// Loses its first `n` bytes, fewer than it has.
    pub(crate) fn cut_front(&mut self, n: usize) {
        debug_assert!(n < self.len());
        self.offset += n as u32;
        self.len -= n as u32;
    }

    /// Loses its last `n` bytes, fewer than it has.
    pub(crate) fn cut_back(&mut self, n: usize) {
        debug_assert!(n < self.len());
        self.len -= n as u32;
    }

    /// The bytes of a fragment of a chain that was found to be [`Kind::Host`].
    #[inline]
    pub(crate) fn host_bytes(&self) -> &[u8] {
        let page = self.page.bytes().expect("a page of our own host memory has bytes");
        &page[self.offset()..self.end()]
    }

    /// A view of a fragment of a chain that was found to be of a peer's memory (or ours).
    pub(crate) fn span(&self) -> Span<'_> {
        self.page.span(self.offset(), self.len()).expect("inside, and not a device's")
    }

    /// Bytes before it in its page that nobody else holds: 0 unless the page is ours alone.
    pub(crate) fn headroom(&self) -> usize {
        if self.page.is_unique() && self.kind() == Kind::Host { self.offset() } else { 0 }
    }

    /// Bytes behind it in its page that nobody else holds: 0 unless the page is ours alone.
    pub(crate) fn tailroom(&self) -> usize {
        let room = self.page.len() - self.end();
        if self.page.is_unique() && self.kind() == Kind::Host { room } else { 0 }
    }

    /// Writes over bytes from `at` on, if the page is ours alone. Returns whether it did.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8], hint: Hint) -> bool {
        let (from, to) = (self.offset() + at, self.end());
        let Some(page) = self.page.bytes_mut() else { return false };
        onecopy_copy::copy(&mut page[from..to][..bytes.len()], bytes, hint);
        true
    }

    /// Grows at its front by `bytes`, no more than its [`Fragment::headroom`].
    pub(crate) fn grow_front(&mut self, bytes: &[u8], hint: Hint) {
        let at = self.offset();
        let page = self.page.bytes_mut().expect("only a page that is ours alone has headroom");
        onecopy_copy::copy(&mut page[at - bytes.len()..at], bytes, hint);
        self.offset -= bytes.len() as u32;
        self.len += bytes.len() as u32;
    }

    /// Grows at its end by `bytes`, no more than its [`Fragment::tailroom`].
    pub(crate) fn grow_back(&mut self, bytes: &[u8], hint: Hint) {
        let at = self.end();
        let page = self.page.bytes_mut().expect("only a page that is ours alone has tailroom");
        onecopy_copy::copy(&mut page[at..][..bytes.len()], bytes, hint);
        self.len += bytes.len() as u32;
    }

    /// Grows at its end by what `fill` puts there and returns, no more than it is given: `max` bytes, no more than
    /// the [`Fragment::tailroom`].
    pub(crate) fn fill_back(
        &mut self,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let at = self.end();
        let page = self.page.bytes_mut().expect("only a page that is ours alone has tailroom");
        let n = fill(&mut page[at..][..max])?;
        self.len += n as u32;
        Ok(n)
    }
}

impl From<Piece> for Fragment {
    /// Of a piece that is filled and from now on only read. Its page has other pieces, which their owners write: its
    /// [`Kind`] is [`Kind::Peer`].
    fn from(piece: Piece) -> Fragment {
        let (page, offset, len) = piece.into_parts();
        Fragment { page, offset, len }
    }
}

impl fmt::Debug for Fragment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} page {} [{}..{}]", self.kind(), self.page.index(), self.offset(), self.end())
    }
}
