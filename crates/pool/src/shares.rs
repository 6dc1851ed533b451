//! Many references for the price of one: bias counting, as the kernel's page_pool_fragment_netmem() and
//! page_pool_drain_frag().

use crate::desc::{CUT, Desc, REF};
use crate::home;
use crate::page::{Page, Tagged};
use onecopy_sys::map::Span;
use std::fmt;

/// References that are taken in advance. The kernel's BIAS_MAX is LONG_MAX; here holds and marks share the word, and a
/// page may have many stocks at once.
const BIAS: u64 = 1 << 20;

/// A stock of references to one page: handing one out writes nothing that another thread reads. What is left over
/// is given up at once when the stock is dropped.
pub struct Shares {
    page: Tagged,
    /// References that are still ours. Invariant: at least 1.
    left: u64,
}

// SAFETY: as for `Page`: it is a number of references.
unsafe impl Send for Shares {}
// SAFETY: as above; taking one needs `&mut`.
unsafe impl Sync for Shares {}

impl Shares {
    /// A stock of references to `page`.
    pub fn of(page: Page) -> Shares {
        Shares::with(page, 0)
    }

    /// A stock of references to a page that is being cut into pieces.
    ///
    /// # Panics
    ///
    /// When somebody else has a reference, and maybe a slice.
    pub(crate) fn cut(page: Page) -> Shares {
        assert!(page.is_unique(), "a page in use is not cut");
        Shares::with(page, CUT)
    }

    fn with(page: Page, mark: u64) -> Shares {
        page.desc().take_many((BIAS - REF) | mark);
        Shares { page: page.into_tagged(), left: BIAS }
    }

    /// One of the references.
    #[inline]
    pub fn take(&mut self) -> Page {
        if self.left == 1 {
            self.more();
        }
        self.left -= 1;
        // SAFETY: it is one of ours, and we count one less.
        unsafe { Page::from_tagged(self.page) }
    }

    #[cold]
    fn more(&mut self) {
        // SAFETY: the reference that is left keeps the descriptor valid.
        unsafe { self.page.desc().as_ref() }.take_many(BIAS);
        self.left += BIAS;
    }

    /// Gives the rest up. The page, if nobody has a reference any more: to be sent home, or cut again.
    pub(crate) fn drain(self) -> Option<Tagged> {
        let (page, left) = (self.page, self.left);
        std::mem::forget(self);
        // SAFETY: `left` references are ours.
        unsafe { Desc::give_up(page.desc(), left).then_some(page) }
    }
}

impl Drop for Shares {
    fn drop(&mut self) {
        // SAFETY: `left` references are ours.
        unsafe {
            if Desc::give_up(self.page.desc(), self.left) {
                home::put_last(self.page);
            }
        }
    }
}

impl fmt::Debug for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shares({:?}, {} left)", self.page.netmem(), self.left)
    }
}

/// A part of a page, for who fills it. The page's other parts have owners of their own, who write at any time; so of
/// a page that is cut nobody gets a slice, and all goes through views and copies. Filled, it becomes a [`Part`](crate::Part), whose bytes
/// nobody writes any more: of those there is a slice.
pub struct Piece {
    page: Page,
    offset: u32,
    len: u32,
}

impl Piece {
    /// The reference `page` is to a page that is cut, and no other piece has a byte of that range.
    pub(crate) fn new(page: Page, offset: u32, len: u32) -> Piece {
        Piece { page, offset, len }
    }

    /// Where it begins in its page, in bytes.
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// Bytes in it.
    #[allow(clippy::len_without_is_empty, reason = "no piece is empty")]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// A view to write to, for the kernel and for copies; None where it is device memory.
    #[doc(hidden)]
    pub fn span_mut(&mut self) -> Option<Span<'_>> {
        let base = self.page.desc().base;
        // SAFETY: the range is inside of the page (`PagePool::alloc_piece`), which our reference keeps. No slice of the
        // page exists: it was unique when it was cut, and gives none since.
        (!base.is_null())
            .then(|| unsafe { Span::from_raw(base.add(self.offset as usize), self.len as usize, true) })
    }

    /// The page, where the piece begins and its length in bytes: to be read from now on, through [`Page::span`].
    pub fn into_parts(self) -> (Page, u32, u32) {
        (self.page, self.offset, self.len)
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({} bytes from {} of {:?})", self.len, self.offset, self.page)
    }
}
