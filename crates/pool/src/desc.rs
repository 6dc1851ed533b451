//! A page's descriptor: one cache line, what a reference points at. (The kernel's `struct net_iov`, or the page_pool
//! words of its `struct page`.)

use crate::shared::Shared;
use onecopy_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::ptr::NonNull;

/// One pool reference in [`Desc::refs`].
pub(crate) const REF: u64 = 1;
/// One hold in [`Desc::refs`]: somebody outside of the pool may still be using the memory.
pub(crate) const HOLD: u64 = 1 << 40;
/// In [`Desc::refs`]: the page is cut into pieces, each of which has a writer of its own: no slice of the whole.
pub(crate) const CUT: u64 = 1 << 63;
/// In [`Desc::refs`]: the pool's debug mode wants to know what happens to the page. With it nothing that happens takes
/// the short ways, so that these have no test to make for it.
pub(crate) const WATCHED: u64 = 1 << 62;
/// [`Desc::refs`] while the page lies with the provider. Not 0, which the count may pass through: a provider that gives
/// a page which is in use has to be found out at any moment.
pub(crate) const AWAY: u64 = 1 << 61;
/// What is no count in [`Desc::refs`].
pub(crate) const MARKS: u64 = CUT | WATCHED | AWAY;
/// The pool references' part of [`Desc::refs`].
pub(crate) const REFS: u64 = HOLD - 1;

/// References beyond which a loop is leaking them: the count must not run into the holds.
const TOO_MANY_REFS: u64 = 0b11 << 38;
/// The same for holds.
const TOO_MANY_HOLDS: u64 = 1 << 60;

#[repr(C)]
#[cfg_attr(not(loom), repr(align(64)))]
pub(crate) struct Desc {
    /// Pool references, holds from bit 40 on, and the marks. While a page lies in cache or ring: 1, so that handing it
    /// out again writes nothing (as the kernel leaves pp_ref_count at 1); in debug mode: [`WATCHED`]. While it lies with
    /// the provider: [`AWAY`], in debug mode with [`WATCHED`].
    pub refs: AtomicU64,
    /// Invariant: valid as long as the page is not with the provider.
    pub shared: NonNull<Shared>,
    /// Host memory's first byte; null for a peer's or a device's.
    pub base: *mut u8,
    /// Bytes: of a run ([`crate::runs`]) all of its pages'. Written while the page has one reference, by whoever has that.
    pub len: AtomicU32,
    /// Which descriptor of the pool this is.
    pub index: u32,
    /// Which page of the area its memory is. The same as `index`, but for slots that a peer lends pages in: it is then
    /// set while the page is adopted.
    pub place: AtomicU32,
    /// References that were given out as plain words ([`crate::Page::into_netmem`]), to be returned at most once each.
    pub tokens: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Desc>() == 64 && align_of::<Desc>() == 64);

impl Desc {
    /// Takes one more reference. Whether debug mode wants to know.
    #[inline]
    pub fn take(&self) -> bool {
        self.take_many(REF)
    }

    /// Takes so many more references, with marks that are not set yet. Whether debug mode wants to know.
    #[inline]
    pub fn take_many(&self, more: u64) -> bool {
        // Relaxed: whoever clones a reference has one, so nothing has to be seen that he has not seen.
        let before = self.refs.fetch_add(more, Ordering::Relaxed);
        if before & (TOO_MANY_REFS | WATCHED) == 0 {
            return false;
        }
        watched_or_abort(before, TOO_MANY_REFS)
    }

    /// Takes a hold. Whether debug mode wants to know.
    pub fn hold(&self) -> bool {
        // Relaxed: as in `take`; the caller has a reference.
        watched_or_abort(self.refs.fetch_add(HOLD, Ordering::Relaxed), TOO_MANY_HOLDS)
    }

    /// Gives up `count` of the references. Whether those were the last ones, so that the page is the caller's alone, to be
    /// sent home; its count and marks are then as in cache and ring.
    ///
    /// # Safety
    ///
    /// `desc` is valid and the caller owns `count` references, which are gone.
    #[inline(never)]
    pub unsafe fn give_up(desc: NonNull<Desc>, count: u64) -> bool {
        // SAFETY: the caller's references keep descriptor and pool alive up to the subtraction; behind it only who took
        // the last one touches them.
        unsafe {
            let refs = &raw const (*desc.as_ptr()).refs;
            let shared = (*desc.as_ptr()).shared;
            // Acquire pairs with the subtraction below, of whoever gave up before us: he is done with the page.
            let mut before = (*refs).load(Ordering::Acquire);
            if before & WATCHED != 0 {
                Shared::watch_drop(shared, desc, before, count);
            }
            if before & !MARKS != count {
                // With the last reference a page that is held leaves the pool: whoever drops the last hold gives it to
                // the provider. That is counted while we may still touch the counter.
                let leaves = before & REFS == count;
                if leaves {
                    (*shared.as_ptr()).trouble.released_refcnt.fetch_add(1, Ordering::Relaxed);
                }
                // Release: our use of the bytes comes before the next owner's; it pairs with the Acquire loads of who
                // finds himself the last one (above, in `put`, in `is_unique`). Acquire: we may be that one.
                before = (*refs).fetch_sub(count, Ordering::AcqRel);
                if before & !MARKS != count {
                    return false;
                }
                if leaves {
                    // The hold went in between.
                    (*shared.as_ptr()).trouble.released_refcnt.fetch_sub(1, Ordering::Relaxed);
                }
            }
            let mut at_rest = REF;
            if before & WATCHED != 0 {
                Shared::watch_free(shared, desc);
                // No reference at all: giving one up again goes the long way, and is found out there.
                at_rest = WATCHED;
            }
            // Relaxed: ours alone; whoever gets it next gets it through ring, cache or provider.
            (*refs).store(at_rest, Ordering::Relaxed);
            true
        }
    }

    /// Gives up a hold. Whether nothing holds the page any more, so that it is the caller's to release.
    ///
    /// # Safety
    ///
    /// `desc` is valid and the caller owns a hold, which is gone.
    pub unsafe fn let_go(desc: NonNull<Desc>) -> bool {
        // SAFETY: the hold keeps the descriptor alive up to the subtraction.
        let before = unsafe {
            let refs = &raw const (*desc.as_ptr()).refs;
            // AcqRel: as in `give_up`.
            (*refs).fetch_sub(HOLD, Ordering::AcqRel)
        };
        before & !MARKS == HOLD
    }
}

/// As Arc does: a count that overflows would free what is in use.
#[cold]
fn watched_or_abort(before: u64, too_many: u64) -> bool {
    if before & too_many != 0 {
        eprintln!("onecopy-pool: far too many references to a page: they are being leaked in a loop");
        std::process::abort()
    }
    before & WATCHED != 0
}
