//! Making, opening and mapping a ring.

use crate::header::HEADER_LEN;
use crate::{Header, bell};
use onecopy_copy::{Hint, Policy, Reader};
use onecopy_sync::atomic::{AtomicU64, Ordering};
use onecopy_sys::map::{Mapping, Spans};
use onecopy_sys::memfd::{self, Refused};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Smallest data room in bytes.
pub const MIN_CAPACITY: usize = 4096;
/// Largest data room in bytes.
pub const MAX_CAPACITY: usize = 1 << 38;

/// "ONECOPY1", for a person who looks at the page.
const MAGIC: u64 = u64::from_le_bytes(*b"ONECOPY1");

/// The capacity that a wish of `bytes` gets: whole cache lines, never more than the wish (a program that
/// compares with the kernel wants no larger buffer), between [`MIN_CAPACITY`] and `max`.
pub fn round_capacity(bytes: usize, max: usize) -> usize {
    (bytes.min(max).min(MAX_CAPACITY) & !63).max(MIN_CAPACITY)
}

/// A mapped ring, without positions: what both sides and every borrowed view hold on to.
#[derive(Clone)]
pub struct Ring {
    memory: Arc<Memory>,
    capacity: usize,
}

/// As the shared page says at this moment, for who looks for the cause of a stall: positions, bells, fillers.
impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = self.header();
        f.debug_struct("Ring")
            .field("capacity", &self.capacity)
            .field("writer", &header.writer.0)
            .field("reader", &header.reader.0)
            .field("info", &header.info.0)
            .finish_non_exhaustive()
    }
}

struct Memory {
    mapping: Mapping,
    /// What it maps, where somebody wants to pass it on.
    memfd: OnceLock<OwnedFd>,
}

impl Memory {
    fn of(mapping: Mapping) -> Arc<Memory> {
        Arc::new(Memory { mapping, memfd: OnceLock::new() })
    }
}

impl Ring {
    /// Makes a ring of `capacity` bytes ([`round_capacity`]) to receive into, armed and empty. Returns it
    /// with the descriptor to pass on.
    ///
    /// # Errors
    ///
    /// What memfd_create(2), ftruncate(2) and mmap(2) say.
    pub fn create(capacity: usize) -> rustix::io::Result<(Ring, OwnedFd)> {
        let len = HEADER_LEN + capacity;
        let fd = memfd::create("onecopy-ring", len)?;
        let ring = Ring { memory: Memory::of(Mapping::new(&fd, len)?), capacity };
        let header = ring.header();
        header.info.0.magic.store(MAGIC, Ordering::Relaxed);
        header.info.0.capacity.store(capacity as u64, Ordering::Relaxed);
        header.writer.0.armed.store(bell::ARMED, Ordering::Relaxed);
        Ok((ring, fd))
    }

    /// Maps a ring that a peer made, after checking that its memfd is what was announced.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the first check that fails.
    pub fn open(fd: impl AsFd, capacity: usize) -> Result<Ring, Refused> {
        Ring::verify(&fd, capacity)?;
        let len = HEADER_LEN + capacity;
        let mapping = Mapping::new(&fd, len).map_err(|errno| match errno {
            Errno::NOMEM | Errno::AGAIN => Refused::NoMapping(errno),
            // Opened for reading only, say, or sealed against writing.
            errno => Refused::NotAMemfd(errno),
        })?;
        Ok(Ring { memory: Memory::of(mapping), capacity })
    }

    /// The checks of [`Ring::open`], without mapping anything.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the first check that fails.
    pub fn verify(fd: impl AsFd, capacity: usize) -> Result<(), Refused> {
        if !(MIN_CAPACITY..=MAX_CAPACITY).contains(&capacity) || !capacity.is_multiple_of(64) {
            return Err(Refused::Size { expected: MIN_CAPACITY as u64, found: capacity as u64 });
        }
        memfd::verify(&fd, HEADER_LEN + capacity)
    }

    /// Keeps the memfd that it maps, for [`Ring::memfd`]: no privilege of an ordinary process makes a descriptor of a
    /// mapping.
    pub fn keep(&self, memfd: OwnedFd) {
        // (Of two the first one stays: both are of this ring.)
        let _ = self.memory.memfd.set(memfd);
    }

    /// The memfd that it maps, where it was kept.
    pub fn memfd(&self) -> Option<BorrowedFd<'_>> {
        self.memory.memfd.get().map(AsFd::as_fd)
    }

    /// Bytes of data room.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The shared page.
    #[inline]
    pub fn header(&self) -> &Header {
        // SAFETY:
        // - the mapping is at least HEADER_LEN bytes (create and open see to it), page-aligned, and lives as
        //   long as `self`;
        // - `Header` is repr(C), all atomics of integers: every bit pattern is valid, and writes of the other
        //   process are races between atomics only.
        unsafe { &*self.memory.mapping.base().as_ptr().cast::<Header>() }
    }

    /// Views of `len` bytes from `offset` (less than the capacity) on, the second one from the wrap.
    ///
    /// # Panics
    ///
    /// When `len` is more than the capacity, or `offset` is not inside.
    #[inline]
    pub fn spans(&self, offset: usize, len: usize) -> Spans<'_> {
        assert!(offset < self.capacity && len <= self.capacity, "outside of the ring");
        let first = len.min(self.capacity - offset);
        [
            self.memory.mapping.span(HEADER_LEN + offset, first),
            self.memory.mapping.span(HEADER_LEN, len - first),
        ]
    }

    /// The word of data at `offset`, which is a multiple of eight. What it means is the peer's say: check it.
    ///
    /// # Panics
    ///
    /// When `offset` is none, or not inside.
    #[inline]
    pub fn word(&self, offset: usize) -> u64 {
        // Relaxed: the position that was read with Acquire before says that it is there.
        self.word_at(offset).load(Ordering::Relaxed)
    }

    /// Sets the word of data at `offset`, which is a multiple of eight.
    ///
    /// # Panics
    ///
    /// When `offset` is none, or not inside.
    #[inline]
    pub fn set_word(&self, offset: usize, word: u64) {
        // Relaxed: it is published with Release by the position that moves over it.
        self.word_at(offset).store(word, Ordering::Relaxed);
    }

    #[inline]
    fn word_at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.capacity, "no word of the ring");
        // SAFETY:
        // - the mapping has `capacity` bytes behind the header, a multiple of 64 (create and open see to it), so
        //   eight bytes from a multiple of eight below it lie inside; it is page-aligned and lives as long as `self`;
        // - every bit pattern is a valid AtomicU64, and all writes of such words are atomic; a peer that writes
        //   otherwise makes them garbage, which is its right.
        unsafe { &*self.memory.mapping.base().as_ptr().add(HEADER_LEN + offset).cast::<AtomicU64>() }
    }

    /// Asks for the cache line at `offset`, without waiting for it.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        prefetch(self.spans(offset, 1)[0].as_ptr());
    }

    /// Asks for the cache line at `offset` to write to it, without waiting for it.
    #[inline]
    pub fn prefetch_to_write(&self, offset: usize) {
        prefetch_to_write(self.spans(offset, 1)[0].as_ptr());
    }

    /// Copies from `offset` (less than the capacity) on, around the wrap.
    ///
    /// # Panics
    ///
    /// When the buffer is longer than the capacity, or `offset` is not inside.
    #[inline]
    pub fn copy_out(&self, offset: usize, buffer: &mut [u8]) {
        // Whoever asks for the bytes in a buffer of his own reads them next, on this core.
        let hint = Hint { policy: Policy::Cached, footprint: buffer.len(), reader: Reader::SameCore };
        let [first, second] = self.spans(offset, buffer.len());
        let (a, b) = buffer.split_at_mut(first.len());
        onecopy_copy::copy_out(a, first, hint);
        if !b.is_empty() {
            onecopy_copy::copy_out(b, second, hint);
        }
    }
}

/// Asks for the cache line at an address, without waiting for it.
#[inline]
pub(crate) fn prefetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address faults nothing.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Asks for the cache line at an address to write to it, without waiting for it.
#[inline]
pub(crate) fn prefetch_to_write(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address faults nothing, and a CPU without PREFETCHW runs it as a no-op.
    unsafe {
        std::arch::asm!("prefetchw byte ptr [{}]", in(reg) line, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_ring_opens_only_as_what_it_is() {
        let (ring, fd) = Ring::create(8192).unwrap();
        assert_eq!(ring.capacity(), 8192);
        assert_eq!(Ring::open(&fd, 8192).unwrap().capacity(), 8192);
        for capacity in [0, 64, 4096, 8191, 8256, usize::MAX & !63] {
            assert!(matches!(Ring::open(&fd, capacity), Err(Refused::Size { .. })), "{capacity}");
        }
    }

    #[test]
    fn capacities_are_whole_lines_and_never_more_than_the_wish() {
        assert_eq!(round_capacity(16_000, 1 << 20), 16_000);
        assert_eq!(round_capacity(16_001, 1 << 20), 16_000);
        assert_eq!(round_capacity(1, 1 << 20), MIN_CAPACITY);
        assert_eq!(round_capacity(1 << 30, 1 << 20), 1 << 20);
    }
}
