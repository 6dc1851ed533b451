//! Pages: references that own.

use crate::debug::What;
use crate::desc::{CUT, Desc, REF, WATCHED};
use crate::hold::Hold;
use crate::home;
use crate::many::Clones;
use crate::memory::Memory;
use crate::netmem::{DEVICE, DeviceId, Netmem};
use crate::provider::MemoryProvider;
use crate::region::Region;
use crate::shared::Shared;
use crate::shares::Shares;
use onecopy_sync::atomic::Ordering;
use onecopy_sys::map::{Mapping, Span};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// The address of a descriptor, with bit 0 set for device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tagged(NonNull<Desc>);

impl Tagged {
    /// No page: never followed.
    pub const NOWHERE: Tagged = Tagged(NonNull::dangling());

    #[inline]
    pub fn new(desc: NonNull<Desc>, device: bool) -> Tagged {
        Tagged(desc.map_addr(|address| address | (usize::from(device) * DEVICE)))
    }

    /// The descriptor. Descriptors lie on even addresses, so an untagged address is never null.
    #[inline]
    pub fn desc(self) -> NonNull<Desc> {
        let desc = self.0.as_ptr().map_addr(|address| address & !DEVICE);
        // SAFETY: `new` set at most bit 0 of an aligned, non-null address.
        unsafe { NonNull::new_unchecked(desc) }
    }

    #[inline]
    pub fn netmem(self) -> Netmem {
        Netmem::new(self.0.addr())
    }

    /// Lets `from_exposed` make the pointer of its address again.
    fn expose(self) {
        self.0.as_ptr().expose_provenance();
    }

    /// What `expose` was called on.
    fn from_exposed(netmem: Netmem) -> Tagged {
        Tagged(NonNull::with_exposed_provenance(netmem.to_word()))
    }
}

/// One owned reference to a page, 8 bytes; so is `Option<Page>`. A clone is another reference to the same memory. The
/// last one that is dropped, on whatever thread, gives the page back to its pool.
pub struct Page(Tagged);

// SAFETY: a reference is counted by atomics, and the last one returns the page through the ring, which is made for any
// thread, or into the cache on the thread that owns it alone (`home::put`). The bytes are read through `&Page`, and
// written only through `&mut Page` while that is the only reference.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Takes over one reference.
    ///
    /// # Safety
    ///
    /// The caller owns a reference, which is now the value's.
    #[inline]
    pub(crate) unsafe fn from_tagged(page: Tagged) -> Page {
        Page(page)
    }

    /// Gives the reference away: it is then the caller's to count.
    #[inline]
    pub(crate) fn into_tagged(self) -> Tagged {
        std::mem::ManuallyDrop::new(self).0
    }

    #[inline]
    pub(crate) fn desc(&self) -> &Desc {
        // SAFETY: our reference keeps the page out of the provider's hands, and so the descriptor valid.
        unsafe { self.0.desc().as_ref() }
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: our reference keeps the pool's memory alive.
        unsafe { self.desc().shared.as_ref() }
    }

    /// The same reference as a plain word, which owns nothing.
    #[inline]
    pub fn netmem(&self) -> Netmem {
        self.0.netmem()
    }

    /// Bytes in the page.
    #[allow(clippy::len_without_is_empty, reason = "no page is empty")]
    #[inline]
    pub fn len(&self) -> usize {
        // Relaxed: it was set before there was a reference but one, and ours comes from that.
        self.desc().len.load(Ordering::Relaxed) as usize
    }

    /// The page's number in its pool's area, of a run its first page's: it lies at [`Page::place`].
    #[inline]
    pub fn index(&self) -> u32 {
        // Relaxed: it was set before there was a reference, and ours comes from that one.
        self.desc().place.load(Ordering::Relaxed)
    }

    /// Where it begins in its pool's area, in bytes.
    #[inline]
    pub fn place(&self) -> u64 {
        u64::from(self.index()) * self.shared().page_len()
    }

    /// Keeps its first `pages` pages of those that it is a run of. The others come home. It is the only reference.
    pub(crate) fn shorten(&mut self, pages: u32) {
        let (desc, shared) = (self.desc(), self.shared());
        let has = self.pages();
        debug_assert!(self.is_unique() && (1..=has).contains(&pages), "{pages} of {self:?}");
        if pages < has {
            desc.len.store(pages * shared.page_len() as u32, Ordering::Relaxed);
            // SAFETY: they were this run's, and no one's from now on. The pool lives, as the page does.
            unsafe { home::put_run(desc.shared, desc.index + pages, has - pages) }
        }
    }

    /// How many pages of the pool's it is: more than one of a run.
    pub(crate) fn pages(&self) -> u32 {
        (self.len() as u64 / self.shared().page_len()) as u32
    }

    /// Who gave the pool its memory.
    #[inline]
    pub fn provider(&self) -> &dyn MemoryProvider {
        &*self.shared().provider
    }

    /// Its pool. No two pools of a process have the same number, but that pages which others hand out of a device's memory
    /// ([`LentPages::of_device`](crate::provider::LentPages::of_device)) are that memory's.
    pub fn pool_id(&self) -> u64 {
        self.shared().id
    }

    /// Where all pages of its pool lie, for who registers the memory as a whole; None where it is not this process' own.
    pub fn region(&self) -> Option<Region> {
        Region::of(self.shared().monitor())
    }

    /// Whether the CPU can read it: all memory but a device's.
    #[inline]
    pub fn is_readable(&self) -> bool {
        !self.netmem().is_device()
    }

    /// The device that it lies on.
    pub fn device(&self) -> Option<DeviceId> {
        self.shared().area.device_id()
    }

    /// Whether this is the only reference, and nobody outside of the pool holds the page either.
    #[inline]
    pub fn is_unique(&self) -> bool {
        // Acquire pairs with the AcqRel subtraction in `Desc::give_up`: what other references were used for is over.
        self.desc().refs.load(Ordering::Acquire) & !WATCHED == REF
    }

    /// Whether the page is cut into pieces ([`PagePool::alloc_piece`](crate::PagePool::alloc_piece)): it then has no
    /// slice.
    #[inline]
    pub fn is_cut(&self) -> bool {
        // Relaxed: it is cut while it has one reference, from which ours comes.
        self.desc().refs.load(Ordering::Relaxed) & CUT != 0
    }

    /// Whether the two are references to one page.
    #[inline]
    pub fn is_same(&self, other: &Page) -> bool {
        self.0 == other.0
    }

    /// The bytes, where they are this process' own: never a peer's, who may be writing them, never a device's, never
    /// those of a page that is cut. Whatever was in a page when it came home is still there when it is handed out.
    #[inline]
    pub fn bytes(&self) -> Option<&[u8]> {
        let desc = self.desc();
        // SAFETY:
        // - `base` is not null only for host memory, whose contract (`HostMemory::from_raw`) is that `len` bytes from
        //   there are initialised and written by nobody but through pages;
        // - pages of one pool do not overlap (`Area`);
        // - another reference can be written through only while it is the only one, and there is this one; pieces can
        //   be written only of a page that is cut, which this one is not, and will not be while it has a reference.
        (!desc.base.is_null() && !self.is_cut())
            .then(|| unsafe { std::slice::from_raw_parts(desc.base.cast_const(), self.len()) })
    }

    /// The bytes to be written: host memory, and only while this is the only reference.
    #[inline]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        // A page that is cut has a mark in its count, and so is not unique.
        let unique = self.is_unique();
        let desc = self.desc();
        // SAFETY: as in `bytes`; and as this is the only reference, borrowed mutably for as long as the slice is, no
        // other slice of the bytes is there and none comes.
        (unique && !desc.base.is_null())
            .then(|| unsafe { std::slice::from_raw_parts_mut(desc.base, self.len()) })
    }

    /// A view of `len` bytes from `offset`, for the kernel to read and for copies: host memory and a peer's. One of
    /// host memory is not writable; [`Page::bytes_mut`] and [`Span::of`] make one that is. None where the range is
    /// not inside of the page, and for device memory.
    #[inline]
    #[doc(hidden)]
    pub fn span(&self, offset: usize, len: usize) -> Option<Span<'_>> {
        let desc = self.desc();
        if offset > self.len() || len > self.len() - offset {
            return None;
        }
        if !desc.base.is_null() {
            // SAFETY: inside of the page, as just checked, which our reference keeps. Nobody has a mutable slice of it:
            // that takes the only reference, borrowed mutably.
            return Some(unsafe { Span::from_raw(desc.base.add(offset), len, false) });
        }
        match &self.shared().area.0 {
            Memory::Peer { mapping, offset: start, .. } => {
                Some(mapping.span(start + desc.index as usize * self.len() + offset, len))
            }
            Memory::Lent { mapping, .. } => {
                Some(mapping.span(self.index() as usize * self.len() + offset, len))
            }
            Memory::Host(_) | Memory::Device { .. } | Memory::DeviceSlots { .. } => None,
        }
    }

    /// Returns the memory that the page lies in, where that is another process's.
    #[doc(hidden)]
    pub fn mapping(&self) -> Option<&Arc<Mapping>> {
        match &self.shared().area.0 {
            Memory::Peer { mapping, .. } | Memory::Lent { mapping, .. } => Some(mapping),
            Memory::Host(_) | Memory::Device { .. } | Memory::DeviceSlots { .. } => None,
        }
    }

    /// Notes that somebody outside of the pool may go on using the page's memory, whatever becomes of its references.
    #[track_caller]
    pub fn hold(&self) -> Hold {
        if self.desc().hold() {
            self.shared().watch(self.index(), What::Held);
        }
        // SAFETY: that hold is the value's.
        unsafe { Hold::from_tagged(self.0) }
    }

    /// A stock of references to the page, this one among them.
    pub fn into_shares(self) -> Shares {
        Shares::of(self)
    }

    /// Gives the reference away as a plain word, unchecked: [`Page::from_raw`] makes it a page again. For where a page
    /// has to pass as an integer through hands that are trusted; a stranger gets [`Page::into_netmem`].
    pub fn into_raw(self) -> Netmem {
        let page = self.into_tagged();
        page.expose();
        page.netmem()
    }

    /// Takes the reference over that [`Page::into_raw`] gave away.
    ///
    /// # Safety
    ///
    /// `netmem` is from [`Page::into_raw`], and each such reference is taken over at most once. (Debug mode,
    /// [`PoolConfig::debug`](crate::PoolConfig::debug), finds out who does it twice.)
    pub unsafe fn from_raw(netmem: Netmem) -> Page {
        Page(Tagged::from_exposed(netmem))
    }

    /// Gives the reference out as a plain word, to be taken back once by [`PagePool::take_back`] or
    /// [`Monitor::take_back`]: a token for somebody who cannot keep a `Page`. If it never is, the page stays away.
    ///
    /// [`PagePool::take_back`]: crate::PagePool::take_back
    /// [`Monitor::take_back`]: crate::Monitor::take_back
    #[track_caller]
    pub fn into_netmem(self) -> Netmem {
        if self.desc().refs.load(Ordering::Relaxed) & WATCHED != 0 {
            self.shared().watch(self.index(), What::GivenOut);
        }
        let page = self.into_tagged();
        // Release pairs with the Acquire exchange in `Shared::take_back`, which gives the reference to another thread. It is no
        // longer ours from here on: whoever knows the word may have taken it back, and the pool may be gone.
        // SAFETY: the reference keeps the descriptor valid up to the addition.
        unsafe { page.desc().as_ref() }.tokens.fetch_add(1, Ordering::Release);
        page.netmem()
    }
}

impl Page {
    /// `count` more references, as so many calls of [`Page::clone`] would take, by one locked instruction.
    #[inline]
    #[track_caller]
    pub fn clones(&self, count: u32) -> Clones {
        let count = u64::from(count);
        if self.desc().take_many(count) {
            (0..count).for_each(|_| self.shared().watch(self.index(), What::Cloned));
        }
        // SAFETY: just taken.
        unsafe { Clones::of(self.0, count) }
    }
}

impl Clone for Page {
    #[inline]
    #[track_caller]
    fn clone(&self) -> Page {
        if self.desc().take() {
            self.shared().watch(self.index(), What::Cloned);
        }
        Page(self.0)
    }
}

impl Drop for Page {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the value owned one reference.
        unsafe { home::put(self.0) }
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match (self.device(), self.bytes()) {
            (Some(device), _) => device.to_string(),
            (None, Some(_)) => "host".to_owned(),
            (None, None) => "peer".to_owned(),
        };
        write!(f, "Page({} of pool {}, {} bytes, {kind})", self.index(), self.pool_id(), self.len())
    }
}
