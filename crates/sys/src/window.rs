//! Shared memory mapped a second time, so that its pages can be replaced under a reader's feet by copies of their own.

use crate::map::{Mapping, Span};
use rustix::io;
use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use std::ptr::NonNull;
use std::sync::LazyLock;

/// A second mapping of shared memory, for reading. What it shows changes with the memory, but for the pages that were
/// replaced by private copies ([`Window::replace`]). Unmapped when dropped.
///
/// Invariant: `base..base + len` is mapped readable for as long as the value lives, by pages of the memory of a
/// [`Mapping`] (whose file neither shrinks nor faults) or by private ones. `len` is a multiple of a page.
#[derive(Debug)]
pub struct Window {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: as a mapping: a range of addresses. No method hands out a reference to bytes that may change.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

/// Mappings that a process may have (vm.max_map_count), as read once; what Linux allows by itself where it does not say.
pub fn max_mappings() -> usize {
    static ALLOWED: LazyLock<usize> = LazyLock::new(|| {
        let said = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
        said.and_then(|said| said.trim().parse().ok()).unwrap_or(65_530)
    });
    *ALLOWED
}

/// Returns `len` rounded up to whole pages.
fn whole_pages(len: usize) -> usize {
    len.next_multiple_of(rustix::param::page_size())
}

/// A mapping that nobody else knows of yet. Unmapped when dropped, unless it was let go.
struct Fresh {
    base: NonNull<u8>,
    len: usize,
}

impl Fresh {
    fn let_go(self) -> NonNull<u8> {
        let base = self.base;
        std::mem::forget(self);
        base
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are what the kernel gave, and nobody else knows them.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// Looks what a failed move has left at `at`. The kernel checks the limits first, and then unmaps what is there before it allocates what it moves with
/// (mm/mremap.c: mremap_to), so that a failure may come behind it: then the pages go there in two steps. (What another thread has mapped there in between looks like what was there before.)
#[cold]
fn fill_hole(at: *mut u8, fresh: &Fresh, errno: io::Errno) -> io::Result<()> {
    let (protection, flags) =
        (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE);
    // SAFETY: it replaces nothing (mmap(2): MAP_FIXED_NOREPLACE). Where nothing is mapped, the range is the window's own.
    match unsafe { rustix::mm::mmap_anonymous(at.cast(), fresh.len, protection, flags) } {
        Err(io::Errno::EXIST) => Err(errno),
        Err(_) => {
            // An address that was given away shows nothing, and what is mapped next may come there.
            eprintln!("onecopy: no memory to put back what was at {at:?}: {errno}");
            std::process::abort()
        }
        Ok(_) => {
            // SAFETY: both are `len` bytes of mappings that nobody writes: one is fresh, and the other was just made.
            unsafe { std::ptr::copy_nonoverlapping(fresh.base.as_ptr(), at, fresh.len) };
            // SAFETY: the mapping that was just made.
            unsafe { rustix::mm::mprotect(at.cast(), fresh.len, MprotectFlags::READ) }
        }
    }
}

impl Window {
    /// Maps all of `memory` once more, for reading. It stays when `memory` is unmapped.
    ///
    /// # Errors
    ///
    /// What mremap(2) says: ENOMEM at vm.max_map_count or out of address space, EINVAL for memory that is not shared.
    pub fn over(memory: &Mapping) -> io::Result<Window> {
        let len = whole_pages(memory.len());
        // SAFETY: an old size of 0 leaves the old mapping where it is, and maps its pages once more at an address that the
        // kernel chooses (mremap(2)): nothing is replaced.
        let base =
            unsafe { rustix::mm::mremap(memory.base().as_ptr().cast(), 0, len, MremapFlags::MAYMOVE)? };
        let fresh = Fresh { base: NonNull::new(base.cast()).ok_or(io::Errno::NOMEM)?, len };
        // SAFETY: a mapping of our own, which nobody has written to.
        unsafe { rustix::mm::mprotect(fresh.base.as_ptr().cast(), len, MprotectFlags::READ)? };
        Ok(Window { base: fresh.let_go(), len })
    }

    /// Returns the first byte's address. Valid to read for [`Window::len`] bytes while `self` lives; others may write there.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is mapped (never: mremap refuses it).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Replaces the pages that `len` bytes from `offset` on lie in by private ones, in one step: who reads there meanwhile
    /// reads the old page or the new one. `copy` fills the new ones with what the old ones show.
    ///
    /// # Errors
    ///
    /// What mmap(2) and mremap(2) say, mostly ENOMEM. Nothing was replaced. (Where the kernel has no memory to put back what it has unmapped, the process is
    /// aborted.)
    ///
    /// # Panics
    ///
    /// When the range is not inside.
    pub fn replace(
        &self,
        offset: usize,
        len: usize,
        copy: impl FnOnce(&mut [u8], Span<'_>),
    ) -> io::Result<()> {
        assert!(offset <= self.len && len <= self.len - offset, "a range outside of the window");
        let page = rustix::param::page_size();
        let start = offset - offset % page;
        let len = whole_pages(offset + len) - start;
        if len == 0 {
            return Ok(());
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh mapping at an address that the kernel chooses replaces nothing.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags)? };
        let fresh = Fresh { base: NonNull::new(base.cast()).ok_or(io::Errno::NOMEM)?, len };
        // SAFETY: `start` is inside of the window.
        let at = unsafe { self.base.as_ptr().add(start) };
        // SAFETY: the window stays mapped readable while `self` is borrowed, and the span says that it is not to be written.
        let shown = unsafe { Span::from_raw(at, len, false) };
        // SAFETY: `len` bytes of zeroes that nobody else knows of, until this call of `copy` is over.
        copy(unsafe { std::slice::from_raw_parts_mut(fresh.base.as_ptr(), len) }, shown);
        // SAFETY: as above.
        unsafe { rustix::mm::mprotect(fresh.base.as_ptr().cast(), len, MprotectFlags::READ)? };
        // SAFETY: `at..at + len` is whole pages of the window, which stay readable, now by the fresh ones. They were nobody else's,
        // and nobody uses their old address. What the window showed there is mapped elsewhere, or nowhere.
        let moved = unsafe {
            rustix::mm::mremap_fixed(fresh.base.as_ptr().cast(), len, len, MremapFlags::MAYMOVE, at.cast())
        };
        match moved {
            Ok(_) => {
                // The kernel has moved it.
                let _moved = fresh.let_go();
                Ok(())
            }
            Err(errno) => fill_hole(at, &fresh, errno),
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are the window's own, and spans of it borrow `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{memfd, spans};
    use rustix::fd::OwnedFd;

    fn pages(count: usize) -> (OwnedFd, Mapping, usize) {
        let page = rustix::param::page_size();
        let fd = memfd::create("onecopy-test", count * page).unwrap();
        let mapping = Mapping::new(&fd, count * page).unwrap();
        (fd, mapping, page)
    }

    fn write(fd: &OwnedFd, at: usize, bytes: &[u8]) {
        assert_eq!(rustix::io::pwrite(fd, bytes, at as u64), Ok(bytes.len()));
    }

    /// Reads through the kernel, so that no reference to shared bytes is made.
    fn read(window: &Window, at: usize, len: usize) -> Vec<u8> {
        let (from, to) = rustix::pipe::pipe().unwrap();
        // SAFETY: inside of the window, which is borrowed.
        let span = unsafe { Span::from_raw(window.base().as_ptr().add(at), len, false) };
        spans::write(&to, &[span, Span::EMPTY]).unwrap();
        let mut bytes = vec![0; len];
        assert_eq!(rustix::io::read(&from, &mut bytes[..]), Ok(len));
        bytes
    }

    fn copied(fresh: &mut [u8], shown: Span<'_>) {
        let (from, to) = rustix::pipe::pipe().unwrap();
        let mut at = 0;
        while at < fresh.len() {
            let n = spans::write(&to, &[shown.slice(at, 4096), Span::EMPTY]).unwrap();
            assert_eq!(rustix::io::read(&from, &mut fresh[at..at + n]), Ok(n));
            at += n;
        }
    }

    #[test]
    fn a_window_shows_the_memory_and_outlives_its_first_mapping() {
        let (fd, mapping, page) = pages(2);
        let window = Window::over(&mapping).unwrap();
        assert_ne!(window.base(), mapping.base());
        write(&fd, page - 2, b"over");
        assert_eq!(read(&window, page - 2, 4), b"over");
        drop(mapping);
        write(&fd, page - 2, b"late");
        assert_eq!(read(&window, page - 2, 4), b"late");
    }

    #[test]
    fn replaced_pages_keep_what_they_showed_and_the_others_go_on() {
        let (fd, mapping, page) = pages(4);
        let window = Window::over(&mapping).unwrap();
        write(&fd, 0, &vec![1; 4 * page]);
        window.replace(page + 7, page, copied).unwrap(); // a part of two pages
        write(&fd, 0, &vec![2; 4 * page]);
        for (at, shown) in [(0, 2), (1, 1), (2, 1), (3, 2)] {
            assert_eq!(read(&window, at * page, page), vec![shown; page], "page {at}");
        }
        // Again, and over pages of both kinds: each keeps what it shows.
        window.replace(0, 3 * page, copied).unwrap();
        write(&fd, 0, &vec![3; 4 * page]);
        for (at, shown) in [(0, 2), (1, 1), (2, 1), (3, 3)] {
            assert_eq!(read(&window, at * page, page), vec![shown; page], "page {at}");
        }
        assert_eq!(window.replace(0, 0, |_, _| panic!("no page")), Ok(()));
    }

    #[test]
    fn a_hole_that_a_failed_move_has_left_is_filled() {
        let (fd, mapping, page) = pages(3);
        let window = Window::over(&mapping).unwrap();
        write(&fd, 0, &vec![1; 3 * page]);
        let fresh = |byte: u8| {
            let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: a fresh mapping at an address that the kernel chooses replaces nothing.
            let base =
                unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), page, protection, flags) }.unwrap();
            // SAFETY: a page of our own.
            unsafe { base.cast::<u8>().write_bytes(byte, page) };
            Fresh { base: NonNull::new(base.cast()).unwrap(), len: page }
        };
        // SAFETY: inside of the window.
        let at = unsafe { window.base().as_ptr().add(page) };
        // (The kernel would give the hole to what is mapped next.)
        let behind = fresh(3);
        // It failed before anything was unmapped.
        assert_eq!(fill_hole(at, &fresh(2), io::Errno::NOMEM), Err(io::Errno::NOMEM));
        assert_eq!(read(&window, page, page), vec![1; page]);
        // SAFETY: the window's own page, as the kernel would have unmapped it.
        unsafe { rustix::mm::munmap(at.cast(), page) }.unwrap();
        assert_eq!(fill_hole(at, &behind, io::Errno::NOMEM), Ok(()));
        for (at, shown) in [(0, 1), (1, 3), (2, 1)] {
            assert_eq!(read(&window, at * page, page), vec![shown; page], "page {at}");
        }
    }

    #[test]
    fn memory_that_is_not_shared_has_no_window() {
        let (fd, _, page) = pages(1);
        let frozen = Mapping::frozen(&fd, page).unwrap();
        assert_eq!(Window::over(&frozen).unwrap_err(), io::Errno::INVAL);
    }
}
