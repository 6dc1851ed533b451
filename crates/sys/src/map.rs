//! Shared mappings, and views into them.

use crate::fork::Origin;
use rustix::fd::AsFd;
use rustix::io;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

/// A mapping of a sealed memfd. Unmapped when dropped.
///
/// Invariant: `base..base + len` is mapped readable, and writable unless it was asked not to be, for as long as the
/// value lives, and the file behind it can neither shrink nor be of a kind that faults (see
/// [`crate::memfd::verify`]).
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    /// Of rings: the process that has them mapped. Its children have nothing there, or something else.
    origin: Option<Arc<Origin>>,
}

// SAFETY: a mapping is a range of addresses; it is the accessors that say what may race.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method hands out a reference to the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `fd`, readable and writable. The caller has made or verified the memfd
    /// ([`crate::memfd`]), `len` is its size.
    ///
    /// # Errors
    ///
    /// What mmap(2) says: ENOMEM at vm.max_map_count or out of address space.
    pub fn new(fd: impl AsFd, len: usize) -> io::Result<Mapping> {
        Mapping::with(fd, len, true, MapFlags::SHARED)
    }

    /// Maps the first `len` bytes of `fd` for reading: all that F_SEAL_FUTURE_WRITE leaves to others than the owner.
    /// Views of it are not writable ([`Span::is_writable`]).
    ///
    /// # Errors
    ///
    /// As [`Mapping::new`].
    pub fn read_only(fd: impl AsFd, len: usize) -> io::Result<Mapping> {
        Mapping::with(fd, len, false, MapFlags::SHARED)
    }

    /// Maps the first `len` bytes of a memfd that is sealed against writing, all pages at once. Private, since Linux
    /// before 6.7 refuses to share even a mapping that only reads.
    pub(crate) fn frozen(fd: impl AsFd, len: usize) -> io::Result<Mapping> {
        Mapping::with(fd, len, false, MapFlags::PRIVATE | MapFlags::POPULATE)
    }

    /// Maps `len` bytes of fresh memory, all zeroes, that children of this process share with it (fork(2)).
    ///
    /// # Errors
    ///
    /// As [`Mapping::new`].
    pub fn inherited(len: usize) -> io::Result<Mapping> {
        Mapping::fresh(len, MapFlags::SHARED)
    }

    /// Maps `len` bytes of fresh memory, all zeroes, of which children of this process have a copy (fork(2)). What the kernel has pinned stays this process's.
    ///
    /// # Errors
    ///
    /// As [`Mapping::new`].
    pub fn private(len: usize) -> io::Result<Mapping> {
        Mapping::fresh(len, MapFlags::PRIVATE)
    }

    fn fresh(len: usize, flags: MapFlags) -> io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address that the kernel chooses replaces nothing. No file behind it can shrink.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags)? };
        Ok(Mapping {
            base: NonNull::new(base.cast()).ok_or(io::Errno::NOMEM)?,
            len,
            writable: true,
            origin: None,
        })
    }

    /// Maps `front` bytes of fresh memory, a whole number of pages, and right behind them the first `len` bytes of `fd`: one range, for
    /// whoever takes but one (io_uring_register_buffers(3)).
    ///
    /// # Errors
    ///
    /// As [`Mapping::new`].
    pub fn fronted(fd: impl AsFd, front: usize, len: usize) -> io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let whole = front.checked_add(len).ok_or(io::Errno::NOMEM)?;
        let fresh = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address that the kernel chooses replaces nothing. No file behind it can shrink.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), whole, protection, fresh)? };
        let mapping = Mapping {
            base: NonNull::new(base.cast()).ok_or(io::Errno::NOMEM)?,
            len: whole,
            writable: true,
            origin: None,
        };
        // SAFETY: it replaces the end of the mapping that was just made, which nobody has a view of.
        unsafe {
            let behind = mapping.base.as_ptr().add(front).cast();
            rustix::mm::mmap(behind, len, protection, MapFlags::SHARED | MapFlags::FIXED, fd, 0)?;
        }
        Ok(mapping)
    }

    /// Unmaps all but the first `len` bytes, a whole number of pages and not none.
    ///
    /// # Errors
    ///
    /// What munmap(2) says; then nothing is left of it.
    pub fn cut(mut self, len: usize) -> io::Result<Mapping> {
        assert!(0 < len && len < self.len, "a part of it stays");
        // SAFETY: the end of what this mapping has. No view of it is left, since views borrow it.
        unsafe { rustix::mm::munmap(self.base.as_ptr().add(len).cast(), self.len - len)? };
        self.len = len;
        Ok(self)
    }

    /// Maps `len` bytes of the kernel's that it shares with who has `fd`, a socket, from `offset` on: rings. They are there as long as they are mapped, in the process that is
    /// `origin`: its children have not got them, and to look at them there ends the child (SIGSEGV).
    pub(crate) fn of_ring(
        fd: impl AsFd,
        offset: u64,
        len: usize,
        origin: &Arc<Origin>,
    ) -> io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a fresh mapping at an address that the kernel chooses replaces nothing. No file behind it can shrink.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset)? };
        let base = NonNull::new(base.cast()).ok_or(io::Errno::NOMEM)?;
        let mapping = Mapping { base, len, writable: true, origin: Some(Arc::clone(origin)) };
        // SAFETY: all of the mapping that was just made, which stays as it is in this process.
        unsafe { rustix::mm::madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork)? };
        Ok(mapping)
    }

    fn with(fd: impl AsFd, len: usize, writable: bool, flags: MapFlags) -> io::Result<Mapping> {
        let write = if writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        // SAFETY: a fresh mapping at an address that the kernel chooses replaces nothing.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | write, flags, fd, 0)? };
        Ok(Mapping { base: NonNull::new(base.cast()).ok_or(io::Errno::NOMEM)?, len, writable, origin: None })
    }

    /// The first byte. Valid for `len()` bytes while `self` lives.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes mapped.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is mapped (never: mmap refuses it).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A view of `len` bytes from `offset`.
    ///
    /// # Panics
    ///
    /// When the range is not inside the mapping.
    #[inline]
    pub fn span(&self, offset: usize, len: usize) -> Span<'_> {
        assert!(offset <= self.len && len <= self.len - offset, "span outside of the mapping");
        // SAFETY: just checked to be inside the mapping.
        let ptr = unsafe { self.base.as_ptr().add(offset) };
        Span { ptr, len, writable: self.writable, life: PhantomData }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.origin.as_ref().is_some_and(|origin| !origin.is_here()) {
            // What is there in a child is none of it.
            return;
        }
        // SAFETY: `base` and `len` are what mmap gave, and views borrow `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// A view of bytes that another process may be writing: an address and a length, never a `&[u8]`.
///
/// Invariant: `ptr..ptr + len` stays mapped readable for `'a`, and where `writable`, may be written all that time.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    ptr: *mut u8,
    len: usize,
    writable: bool,
    life: PhantomData<&'a u8>,
}

// SAFETY: as for `Mapping`: an address and a length, and races on the bytes are the business of who reads.
unsafe impl Send for Span<'_> {}
// SAFETY: as above.
unsafe impl Sync for Span<'_> {}

impl<'a> Span<'a> {
    /// A view of nothing.
    pub const EMPTY: Span<'static> =
        Span { ptr: NonNull::dangling().as_ptr(), len: 0, writable: true, life: PhantomData };

    /// A view of ordinary memory, so that buffers of either kind take one path.
    pub fn of(bytes: &'a mut [u8]) -> Span<'a> {
        Span { ptr: bytes.as_mut_ptr(), len: bytes.len(), writable: true, life: PhantomData }
    }

    /// A view of ordinary memory that others may be reading: it can be sent and copied from, never written.
    #[inline]
    pub fn of_shared(bytes: &'a [u8]) -> Span<'a> {
        Span { ptr: bytes.as_ptr().cast_mut(), len: bytes.len(), writable: false, life: PhantomData }
    }

    /// A view of `len` bytes from `ptr`.
    ///
    /// # Safety
    ///
    /// For `'a` the bytes are mapped readable, and if `writable` also writable; then no slice of them exists either, and
    /// if not, none that is mutable.
    #[inline]
    pub unsafe fn from_raw(ptr: *mut u8, len: usize, writable: bool) -> Span<'a> {
        Span { ptr, len, writable, life: PhantomData }
    }

    /// Whether the bytes may be written through this view. Whoever writes asks: safe functions that take a view to
    /// write to refuse one that is not ([`crate::spans::pread`]: EFAULT).
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The address. To be written to only where [`Span::is_writable`].
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Bytes in view.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in view.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part from `from`, at most `max` bytes of it; shorter or empty where the view ends before.
    #[inline]
    pub fn slice(&self, from: usize, max: usize) -> Span<'a> {
        let from = from.min(self.len);
        // SAFETY: `from` is inside the view or one past it.
        let ptr = unsafe { self.ptr.add(from) };
        Span { ptr, len: max.min(self.len - from), writable: self.writable, life: PhantomData }
    }
}

/// What a ring gives out: at most two views, the second one from the wrap on.
pub type Spans<'a> = [Span<'a>; 2];

/// Bytes in both views.
#[inline]
pub fn total(spans: &Spans<'_>) -> usize {
    spans[0].len() + spans[1].len()
}

/// The part from byte `from`, at most `max` bytes of it.
#[inline]
pub fn slice<'a>(spans: &Spans<'a>, from: usize, max: usize) -> Spans<'a> {
    let first = spans[0].slice(from, max);
    let second = spans[1].slice(from.saturating_sub(spans[0].len()), max - first.len());
    [first, second]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_two_spans_cover_what_one_would() {
        let mut bytes: Vec<u8> = (0..20).collect();
        let whole = Span::of(&mut bytes);
        for cut in 0..=20 {
            let spans = [whole.slice(0, cut), whole.slice(cut, 20)];
            assert_eq!(total(&spans), 20);
            for from in 0..=20 {
                for max in 0..=20 {
                    let part = slice(&spans, from, max);
                    assert_eq!(total(&part), max.min(20 - from), "cut {cut} from {from} max {max}");
                    let first = if part[0].is_empty() { part[1] } else { part[0] };
                    if !first.is_empty() {
                        assert_eq!(first.as_ptr() as usize - whole.as_ptr() as usize, from);
                    }
                }
            }
        }
    }
}
