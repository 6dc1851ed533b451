//! Making, opening and mapping a ring.

#[cfg(not(loom))]
use crate::header::InfoLine;
use crate::header::{HEADER_LEN, PAGE};
use crate::{Header, doorbell};
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

/// In [`joined`](crate::header::InfoLine::joined): the peer of the process that made both rings has not
/// looked at them.
pub const UNSEEN: u32 = 0;
/// In `joined`: the peer receives from its ring and will send into the other.
pub const JOINED: u32 = 1;
/// In `joined`: the rings are too small for the peer, and it waits for larger ones. Each ring's
/// [`wanted`](crate::header::InfoLine::wanted) says how large.
pub const TOO_SMALL: u32 = 2;

/// In [`shut`](crate::header::InfoLine::shut): the receiver receives no more.
pub const SHUT: u32 = 1;
/// In `shut`: the receiver is about to close.
pub const CLOSES: u32 = 2;

/// Identifies the connection that two rings were made for.
pub type Nonce = [u8; 16];

/// Returns the capacity for a wish of `bytes`, between [`MIN_CAPACITY`] and `max`. It is a number of whole
/// cache lines and never more than the wish: a program that compares with the kernel wants no larger buffer.
pub fn round_capacity(bytes: usize, max: usize) -> usize {
    (bytes.min(max).min(MAX_CAPACITY) & !63).max(MIN_CAPACITY)
}

/// A mapped ring, without positions. Both sides and every borrowed view hold on to it.
#[derive(Clone)]
pub struct Ring {
    memory: Arc<Memory>,
    /// Where its header begins: a multiple of [`PAGE`].
    at: usize,
    capacity: usize,
}

/// Returns where the second of two rings begins.
fn behind(first: usize) -> usize {
    (HEADER_LEN + first).next_multiple_of(PAGE)
}

/// Shows the shared page as it is at this moment, for a person who looks for the cause of a stall: positions,
/// doorbells, fillers.
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
    /// The memfd that is mapped, where it is kept to be passed on.
    memfd: OnceLock<OwnedFd>,
}

impl Memory {
    fn of(mapping: Mapping) -> Arc<Memory> {
        Arc::new(Memory { mapping, memfd: OnceLock::new() })
    }
}

impl Ring {
    /// Makes a ring of `capacity` bytes ([`round_capacity`]) to receive from, armed and empty. Returns it
    /// with the descriptor to pass on.
    ///
    /// # Errors
    ///
    /// The errors of memfd_create(2), ftruncate(2) and mmap(2).
    pub fn create(capacity: usize) -> rustix::io::Result<(Ring, OwnedFd)> {
        let len = HEADER_LEN + capacity;
        let fd = memfd::create("onecopy-ring", len)?;
        let ring = Ring { memory: Memory::of(Mapping::new(&fd, len)?), at: 0, capacity };
        ring.begin();
        Ok((ring, fd))
    }

    fn begin(&self) {
        let header = self.header();
        header.info.0.magic.store(MAGIC, Ordering::Relaxed);
        header.info.0.capacity.store(self.capacity as u64, Ordering::Relaxed);
        header.writer.0.armed.store(doorbell::ARMED, Ordering::Relaxed);
    }

    /// Makes the rings of both directions of a connection, armed and empty, in one memfd. The peer receives
    /// from the first, and the maker from the second. `nonce` identifies the connection.
    ///
    /// # Errors
    ///
    /// As [`Ring::create`].
    pub fn pair(capacities: [usize; 2], nonce: &Nonce) -> rustix::io::Result<([Ring; 2], OwnedFd)> {
        let second = behind(capacities[0]);
        let len = second + HEADER_LEN + capacities[1];
        let fd = memfd::create("onecopy-rings", len)?;
        let memory = Memory::of(Mapping::new(&fd, len)?);
        let rings = [(0, capacities[0]), (second, capacities[1])].map(|(at, capacity)| {
            let ring = Ring { memory: memory.clone(), at, capacity };
            ring.begin();
            let halves = nonce.chunks_exact(8).map(|half| half.try_into().map_or(0, u64::from_le_bytes));
            for (word, half) in ring.header().info.0.nonce.iter().zip(halves) {
                word.store(half, Ordering::Relaxed);
            }
            ring
        });
        Ok((rings, fd))
    }

    /// Returns the nonce of the connection that the rings in a descriptor were made for, or None if the
    /// descriptor holds no such rings. Maps nothing, and reads only from a sealed memfd.
    #[cfg(not(loom))]
    pub fn label(fd: impl AsFd) -> Option<Nonce> {
        let seals = rustix::fs::fcntl_get_seals(&fd).ok()?;
        if !seals.contains(memfd::REQUIRED_SEALS) {
            return None;
        }
        let mut info = [0u8; size_of::<InfoLine>()];
        let at = std::mem::offset_of!(Header, info) as u64;
        if rustix::io::pread(&fd, &mut info, at).ok()? != info.len() {
            return None;
        }
        let magic = info[..8].try_into().map(u64::from_le_bytes).ok()?;
        let nonce = std::mem::offset_of!(InfoLine, nonce);
        (magic == MAGIC).then(|| info[nonce..][..size_of::<Nonce>()].try_into().ok()).flatten()
    }

    /// Maps the two rings that a peer made ([`Ring::pair`]), after checking that their memfd is what they
    /// say. The first ring is the one to receive from.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the first check that fails; `NoMapping` if a ring is larger than `most`.
    pub fn open_pair(fd: impl AsFd, most: usize) -> Result<[Ring; 2], Refused> {
        let most = most.min(MAX_CAPACITY);
        let size = rustix::fs::fstat(&fd).map_err(Refused::NotAMemfd)?.st_size;
        let len = usize::try_from(size).unwrap_or(0);
        let wrong = |found: u64| Refused::Size { expected: len as u64, found };
        memfd::verify(&fd, len)?;
        if len > 2 * behind(most) {
            return Err(Refused::NoMapping(Errno::NOBUFS));
        }
        if len < 2 * (HEADER_LEN + MIN_CAPACITY) {
            return Err(wrong(0));
        }
        let memory = Memory::of(map(&fd, len)?);
        let says = |at: usize| {
            // This ring may be used only because its header is known to be inside the mapping.
            let ring = Ring { memory: memory.clone(), at, capacity: 0 };
            ring.header().info.0.capacity.load(Ordering::Relaxed)
        };
        let first = says(0);
        let capacity = usize::try_from(first).unwrap_or(usize::MAX);
        let possible = |capacity: usize| {
            (MIN_CAPACITY..=MAX_CAPACITY).contains(&capacity) && capacity.is_multiple_of(64)
        };
        if !possible(capacity) || behind(capacity) + HEADER_LEN + MIN_CAPACITY > len {
            return Err(wrong(first));
        }
        let second = behind(capacity);
        let rest = len - second - HEADER_LEN;
        if !possible(rest) || says(second) != rest as u64 {
            return Err(wrong(rest as u64));
        }
        if capacity.max(rest) > most {
            return Err(Refused::NoMapping(Errno::NOBUFS));
        }
        Ok([Ring { memory: memory.clone(), at: 0, capacity }, Ring { memory, at: second, capacity: rest }])
    }

    /// Maps a ring that is somewhere in a memfd ([`Ring::place`]), whoever made it.
    ///
    /// # Errors
    ///
    /// As [`Ring::open`].
    pub fn open_at(fd: impl AsFd, at: usize, capacity: usize) -> Result<Ring, Refused> {
        let size = rustix::fs::fstat(&fd).map_err(Refused::NotAMemfd)?.st_size;
        let len = usize::try_from(size).unwrap_or(0);
        let possible = (MIN_CAPACITY..=MAX_CAPACITY).contains(&capacity) && capacity.is_multiple_of(64);
        let end = at.checked_add(HEADER_LEN + if possible { capacity } else { 0 });
        if !possible || !at.is_multiple_of(PAGE) || end.is_none_or(|end| end > len) {
            return Err(Refused::Size { expected: capacity as u64, found: len as u64 });
        }
        memfd::verify(&fd, len)?;
        Ok(Ring { memory: Memory::of(map(&fd, len)?), at, capacity })
    }

    /// Returns where the ring begins in its memfd.
    pub fn place(&self) -> usize {
        self.at
    }

    /// Returns whether both rings are in the same memory.
    pub fn is_beside(&self, other: &Ring) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
    }

    /// Maps a ring that a peer made, after checking that its memfd is what was announced.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the first check that fails.
    pub fn open(fd: impl AsFd, capacity: usize) -> Result<Ring, Refused> {
        Ring::verify(&fd, capacity)?;
        Ok(Ring { memory: Memory::of(map(&fd, HEADER_LEN + capacity)?), at: 0, capacity })
    }

    /// Does the checks of [`Ring::open`] without mapping anything.
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

    /// Keeps the memfd of the ring for [`Ring::memfd`]: an ordinary process cannot get a descriptor from a
    /// mapping.
    pub fn keep(&self, memfd: OwnedFd) {
        // If one is kept already, it stays: both are of this ring.
        let _ = self.memory.memfd.set(memfd);
    }

    /// Returns the memfd of the ring, if it was kept.
    pub fn memfd(&self) -> Option<BorrowedFd<'_>> {
        self.memory.memfd.get().map(AsFd::as_fd)
    }

    /// Returns the bytes of data room.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the memory that the ring lies in, with its header and with the other direction's ring where both are in one.
    pub fn mapping(&self) -> &Mapping {
        &self.memory.mapping
    }

    /// Returns the shared page.
    #[inline]
    pub fn header(&self) -> &Header {
        // SAFETY:
        // - the mapping has at least HEADER_LEN bytes from `at` on (all that make a Ring ensure it), is
        //   page-aligned, as `at` is to PAGE, and lives as long as `self`;
        // - `Header` is repr(C), all atomics of integers: every bit pattern is valid, and writes of the other
        //   process are races between atomics only.
        unsafe { &*self.memory.mapping.base().as_ptr().add(self.at).cast::<Header>() }
    }

    /// Returns views of `len` bytes from `offset` (less than the capacity) on. The second view begins at the
    /// wrap.
    ///
    /// # Panics
    ///
    /// If `len` is more than the capacity, or `offset` is not inside.
    #[inline]
    pub fn spans(&self, offset: usize, len: usize) -> Spans<'_> {
        assert!(offset < self.capacity && len <= self.capacity, "outside of the ring");
        let first = len.min(self.capacity - offset);
        let data = self.at + HEADER_LEN;
        [self.memory.mapping.span(data + offset, first), self.memory.mapping.span(data, len - first)]
    }

    /// Reads the word of data at `offset`, which is a multiple of eight. The peer wrote it: check it.
    ///
    /// # Panics
    ///
    /// If `offset` is no multiple of eight, or not inside.
    #[inline]
    pub fn word(&self, offset: usize) -> u64 {
        // Relaxed: the position that was read with Acquire before says that the word is there.
        self.word_at(offset).load(Ordering::Relaxed)
    }

    /// Sets the word of data at `offset`, which is a multiple of eight.
    ///
    /// # Panics
    ///
    /// If `offset` is no multiple of eight, or not inside.
    #[inline]
    pub fn set_word(&self, offset: usize, word: u64) {
        // Relaxed: the position that moves over the word publishes it with Release.
        self.word_at(offset).store(word, Ordering::Relaxed);
    }

    #[inline]
    fn word_at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.capacity, "no word of the ring");
        let at = self.at + HEADER_LEN + offset;
        // SAFETY:
        // - the mapping has `capacity` bytes behind the header, a multiple of 64 (all that make a Ring ensure
        //   it), so eight bytes from a multiple of eight below it are inside; it is page-aligned and lives as
        //   long as `self`;
        // - every bit pattern is a valid AtomicU64, and all writes of such words are atomic; a peer that
        //   writes otherwise only makes them garbage.
        unsafe { &*self.memory.mapping.base().as_ptr().add(at).cast::<AtomicU64>() }
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
    /// If the buffer is longer than the capacity, or `offset` is not inside.
    #[inline]
    pub fn copy_out(&self, offset: usize, buffer: &mut [u8]) {
        // A caller that asks for the bytes in its own buffer reads them next, on this core.
        let hint = Hint { policy: Policy::Cached, footprint: buffer.len(), reader: Reader::SameCore };
        let [first, second] = self.spans(offset, buffer.len());
        let (a, b) = buffer.split_at_mut(first.len());
        onecopy_copy::copy_out(a, first, hint);
        if !b.is_empty() {
            onecopy_copy::copy_out(b, second, hint);
        }
    }
}

fn map(fd: impl AsFd, len: usize) -> Result<Mapping, Refused> {
    Mapping::new(fd, len).map_err(|errno| match errno {
        Errno::NOMEM | Errno::AGAIN => Refused::NoMapping(errno),
        // For example, the descriptor was opened for reading only, or is sealed against writing.
        errno => Refused::NotAMemfd(errno),
    })
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
    fn two_rings_lie_in_one_memfd_and_open_only_as_what_they_say() {
        let nonce = *b"0123456789abcdef";
        let ([theirs, mine], fd) = Ring::pair([16_000, 8192], &nonce).unwrap();
        assert_eq!(Ring::label(&fd), Some(nonce));
        let [first, second] = Ring::open_pair(&fd, 16_000).unwrap();
        assert_eq!((first.capacity(), second.capacity()), (16_000, 8192));
        assert_eq!((first.place(), second.place()), (theirs.place(), mine.place()));
        theirs.set_word(15_992, 7);
        mine.set_word(0, 8);
        assert_eq!((first.word(15_992), second.word(0)), (7, 8));
        assert!(matches!(Ring::open_pair(&fd, 15_000), Err(Refused::NoMapping(_))), "more than it accepts");
        let again = Ring::open_at(&fd, mine.place(), 8192).unwrap();
        assert_eq!(again.word(0), 8);
        for (at, capacity) in
            [(mine.place(), 8256), (mine.place() + 64, 4096), (1 << 40, 4096), (0, 0), (0, 63)]
        {
            assert!(Ring::open_at(&fd, at, capacity).is_err(), "{at} {capacity}");
        }
        for misbehaved in [0, 64, 4096, 16_001, 24_576, u64::MAX, 1 << 40] {
            theirs.header().info.0.capacity.store(misbehaved, Ordering::Relaxed);
            assert!(matches!(Ring::open_pair(&fd, 1 << 20), Err(Refused::Size { .. })), "{misbehaved}");
        }
        theirs.header().info.0.capacity.store(16_000, Ordering::Relaxed);
        mine.header().info.0.capacity.store(4096, Ordering::Relaxed);
        assert!(matches!(Ring::open_pair(&fd, 1 << 20), Err(Refused::Size { .. })));
        let (pipe, _writer) = rustix::pipe::pipe().unwrap();
        assert_eq!(Ring::label(&pipe), None);
        let short = memfd::create("short", 100).unwrap();
        assert_eq!(Ring::label(&short), None);
        assert!(Ring::open_pair(&short, 1 << 20).is_err());
    }

    #[test]
    fn capacities_are_whole_lines_and_never_more_than_the_wish() {
        assert_eq!(round_capacity(16_000, 1 << 20), 16_000);
        assert_eq!(round_capacity(16_001, 1 << 20), 16_000);
        assert_eq!(round_capacity(1, 1 << 20), MIN_CAPACITY);
        assert_eq!(round_capacity(1 << 30, 1 << 20), 1 << 20);
    }
}
