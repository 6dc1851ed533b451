//! A page's descriptor: one cache line, what a reference points at. (The kernel's `struct net_iov`, or the page_pool
//! words of its `struct page`.)

use crate::shared::Shared;
use onecopy_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::ptr::NonNull;

/// One pool reference in [`Desc::refs`].
pub(crate) const REF: u64 = 1;
/// One hold in [`Desc::refs`]: somebody outside of the pool may still be using the memory.
pub(crate) const HOLD: u64 = 1 << 40;
/// The pool references' part of [`Desc::refs`].
const REFS: u64 = HOLD - 1;
/// More references than this are a leak in a loop; beyond it the count could run into the holds.
const MOST_REFS: u64 = 1 << 38;

#[repr(C)]
#[cfg_attr(not(loom), repr(align(64)))]
pub(crate) struct Desc {
    /// Pool references, and holds above bit 40. While a page lies with the provider: 0. While it lies in cache or
    /// ring: 1, so that handing it out again writes nothing (as the kernel leaves pp_ref_count at 1).
    pub refs: AtomicU64,
    /// Invariant: valid as long as the page is not with the provider.
    pub shared: NonNull<Shared>,
    /// Host memory's first byte; null for a peer's or a device's.
    pub base: *mut u8,
    pub len: u32,
    pub index: u32,
    /// References that were given out as plain words ([`crate::Page::into_netmem`]), to be returned at most once each.
    pub tokens: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Desc>() == 64 && align_of::<Desc>() == 64);

impl Desc {
    /// Takes one more reference.
    #[inline]
    pub fn take(&self) {
        // Relaxed: whoever clones a reference has one, so nothing has to be seen that he has not seen.
        if self.refs.fetch_add(REF, Ordering::Relaxed) & REFS > MOST_REFS {
            too_many();
        }
    }

    /// Gives up one of several references. Whether it was the last one after all, so that the page is the caller's
    /// alone; its count is then 1 again.
    ///
    /// # Safety
    ///
    /// `desc` is valid and the caller owns a reference, which is gone unless this returns true.
    #[inline(never)]
    pub unsafe fn give_up(desc: NonNull<Desc>) -> bool {
        // SAFETY: the caller's reference keeps descriptor and pool alive up to the subtraction; behind it only who
        // took the last one touches them.
        unsafe {
            let refs = &raw const (*desc.as_ptr()).refs;
            let shared = (*desc.as_ptr()).shared;
            // With the last reference a page that is held leaves the pool: whoever drops the last hold gives it to
            // the provider. That is counted while we may still touch the counter.
            let before = (*refs).load(Ordering::Relaxed);
            let leaves = before & REFS == REF && before >= HOLD;
            if leaves {
                (*shared.as_ptr()).trouble.released_refcnt.fetch_add(1, Ordering::Relaxed);
            }
            // Release pairs with the Acquire loads of whoever finds itself the last one: here, in `put` and in
            // `is_unique`. Our use of the bytes comes before his.
            let before = (*refs).fetch_sub(REF, Ordering::AcqRel);
            if before == REF {
                if leaves {
                    (*shared.as_ptr()).trouble.released_refcnt.fetch_sub(1, Ordering::Relaxed);
                }
                (*refs).store(REF, Ordering::Relaxed);
                return true;
            }
            false
        }
    }
}

/// As Arc does: a count that overflows would free what is in use.
#[cold]
pub(crate) fn too_many() -> ! {
    eprintln!("onecopy-pool: more than 2^38 references to a page: they are being leaked in a loop");
    std::process::abort()
}
