//! A part of a page.

use crate::error::ChainError;
use crate::kind::Kind;
use onecopy_copy::Hint;
use onecopy_pool::{DeviceId, Page, Part, Piece};
use onecopy_sys::map::Span;
use std::fmt;
use std::io;

/// A part of a page, holding a reference to the page: what skb_frag_t is to Linux and an mbuf with external storage to
/// FreeBSD.
///
/// There is no slice of a fragment: whether its bytes may be looked at is asked once for a whole chain
/// ([`crate::Chain::host`]).
///
/// It is a [`Part`] of a page, which says whose its bytes are.
#[derive(Clone)]
pub struct Fragment(Part);

const _: () = assert!(size_of::<Fragment>() == 16 && size_of::<Option<Fragment>>() == 16);

impl Fragment {
    /// `len` bytes of `page` from byte `offset`.
    ///
    /// # Errors
    ///
    /// [`ChainError::ZeroSize`], and [`ChainError::OutOfPage`] when the range is not inside the page. The reference to the page is
    /// given back.
    #[inline]
    pub fn new(page: Page, offset: usize, len: usize) -> Result<Fragment, ChainError> {
        match Part::new(page, offset, len) {
            Ok(part) => Ok(Fragment(part)),
            Err(_) if len == 0 => Err(ChainError::ZeroSize),
            Err(page) => Err(ChainError::OutOfPage { offset, len, page: page.len() }),
        }
    }

    /// All of `page`.
    ///
    /// # Errors
    ///
    /// There is none to be expected: no page is empty.
    pub fn whole(page: Page) -> Result<Fragment, ChainError> {
        let len = page.len();
        Fragment::new(page, 0, len)
    }

    /// The page.
    #[inline]
    pub fn page(&self) -> &Page {
        self.0.page()
    }

    /// Where it begins in its page, in bytes.
    #[inline]
    pub fn offset(&self) -> usize {
        self.0.offset()
    }

    /// Bytes; never 0.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Where it ends in its page, in bytes.
    #[inline]
    pub fn end(&self) -> usize {
        self.0.end()
    }

    /// Whose memory it is.
    #[inline]
    pub fn kind(&self) -> Kind {
        if self.0.was_piece() && self.0.has_bytes() { Kind::Host } else { Kind::of(self.page()) }
    }

    /// The device that the memory belongs to, if it is one's.
    pub fn device(&self) -> Option<DeviceId> {
        self.page().device()
    }

    /// Takes the page out.
    pub fn into_page(self) -> Page {
        self.0.into_page()
    }

    #[inline]
    pub(crate) fn same_page(&self, other: &Fragment) -> bool {
        self.page().is_same(other.page())
    }

    /// Whether `next` begins where this one ends, so that both are one.
    #[inline]
    pub(crate) fn joins(&self, next: &Fragment) -> bool {
        self.0.joins(&next.0)
    }

    /// Grows by `next`, which [`Fragment::joins`] it; its reference is given back.
    #[inline]
    pub(crate) fn join(&mut self, next: Fragment) {
        let joined = self.0.join(next.0);
        debug_assert!(joined.is_ok(), "it was asked before");
    }

    /// `len` bytes from byte `at` of it, with a reference of their own. Inside it and not empty.
    #[inline]
    pub(crate) fn part(&self, at: usize, len: usize) -> Fragment {
        Fragment(self.0.part(at, len))
    }

    /// As [`Fragment::part`], with `page`, which is its page, for the reference.
    #[inline]
    pub(crate) fn part_with(&self, page: Page, at: usize, len: usize) -> Fragment {
        Fragment(self.0.part_with(page, at, len))
    }

    pub(crate) fn into_part(self) -> Part {
        self.0
    }

    /// Loses its first `n` bytes, fewer than it has.
    pub(crate) fn cut_front(&mut self, n: usize) {
        self.0.cut_front(n);
    }

    /// Loses its last `n` bytes, fewer than it has.
    pub(crate) fn cut_back(&mut self, n: usize) {
        self.0.cut_back(n);
    }

    /// The bytes of a fragment of a chain that was found to be [`Kind::Host`].
    #[inline]
    pub(crate) fn host_bytes(&self) -> &[u8] {
        self.0.bytes().expect("a fragment of our own host memory has bytes")
    }

    /// A view of a fragment of a chain that was found to be of a peer's memory (or ours).
    pub(crate) fn span(&self) -> Span<'_> {
        self.0.span().expect("not a device's")
    }

    /// Bytes before it in its page that nobody else holds: 0 unless the page is ours alone.
    pub(crate) fn headroom(&self) -> usize {
        if self.page().is_unique() && self.kind() == Kind::Host { self.offset() } else { 0 }
    }

    /// Bytes behind it in its page that nobody else holds: 0 unless the page is ours alone.
    pub(crate) fn tailroom(&self) -> usize {
        let room = self.page().len() - self.end();
        if self.page().is_unique() && self.kind() == Kind::Host { room } else { 0 }
    }

    /// Writes over bytes from `at` on, if the page is ours alone. Returns whether it did.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8], hint: Hint) -> bool {
        let (from, to) = (self.offset() + at, self.end());
        let Some(page) = self.0.page_bytes_mut() else { return false };
        onecopy_copy::copy(&mut page[from..to][..bytes.len()], bytes, hint);
        true
    }

    /// Grows at its front by `bytes`, no more than its [`Fragment::headroom`].
    pub(crate) fn grow_front(&mut self, bytes: &[u8], hint: Hint) {
        let at = self.offset();
        let page = self.0.page_bytes_mut().expect("only a page that is ours alone has headroom");
        onecopy_copy::copy(&mut page[at - bytes.len()..at], bytes, hint);
        self.0.grow_front(bytes.len());
    }

    /// Grows at its end by `bytes`, no more than its [`Fragment::tailroom`].
    pub(crate) fn grow_back(&mut self, bytes: &[u8], hint: Hint) {
        let at = self.end();
        let page = self.0.page_bytes_mut().expect("only a page that is ours alone has tailroom");
        onecopy_copy::copy(&mut page[at..][..bytes.len()], bytes, hint);
        self.0.grow_back(bytes.len());
    }

    /// Grows at its end by what `fill` puts there and returns, no more than it is given: `max` bytes, no more than
    /// the [`Fragment::tailroom`].
    pub(crate) fn fill_back(
        &mut self,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let at = self.end();
        let page = self.0.page_bytes_mut().expect("only a page that is ours alone has tailroom");
        let n = fill(&mut page[at..][..max])?;
        self.0.grow_back(n);
        Ok(n)
    }
}

impl From<Part> for Fragment {
    fn from(part: Part) -> Fragment {
        Fragment(part)
    }
}

impl From<Fragment> for Part {
    /// The part that it is.
    fn from(fragment: Fragment) -> Part {
        fragment.0
    }
}

impl From<Piece> for Fragment {
    /// Of a piece that is filled and from now on only read: its bytes are ours alone, whoever writes the page's other pieces.
    fn from(piece: Piece) -> Fragment {
        Fragment(piece.into())
    }
}

impl fmt::Debug for Fragment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} page {} [{}..{}]", self.kind(), self.page().index(), self.offset(), self.end())
    }
}
