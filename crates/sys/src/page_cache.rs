//! What of a file lies in memory already: cachestat(2), Linux 6.5.

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::{self, Errno};
use rustix::param::page_size;

/// The same number on every architecture (include/uapi/asm-generic/unistd.h).
const SYS_CACHESTAT: libc::c_long = 451;

#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// `struct cachestat` of linux/mman.h: numbers of pages.
#[repr(C)]
#[derive(Default)]
struct Stat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Whether every page of `length` bytes from `offset` is in the page cache now: then reading them waits for no disk, unless
/// memory runs short meanwhile.
///
/// # Errors
///
/// ENOSYS before Linux 6.5, EOPNOTSUPP for file systems without a page cache.
pub fn holds(file: impl AsFd, offset: u64, length: u64) -> io::Result<bool> {
    if length == 0 {
        return Ok(true); // what cachestat takes for "to the end"
    }
    let range = Range { offset, length };
    let mut stat = Stat::default();
    // SAFETY: `range` and `stat` have the layout of linux/mman.h and live across the call; no flags are defined.
    let result = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_fd().as_raw_fd(), &raw const range, &raw mut stat, 0_u32)
    };
    if result < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    let page = page_size() as u64;
    let pages = offset.saturating_add(length).div_ceil(page) - offset / page;
    Ok(stat.cached >= pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_pages_are_held_and_holes_are_not() {
        let fd = crate::memfd::unsealed("onecopy-test", 1 << 20).unwrap();
        let page = page_size() as u64;
        assert_eq!(rustix::io::pwrite(&fd, &[1; 100], 5 * page), Ok(100));
        match holds(&fd, 5 * page, 100) {
            Err(Errno::NOSYS) => return println!("lacking: cachestat(2), which came with Linux 6.5"),
            held => assert_eq!(held, Ok(true)),
        }
        assert_eq!(holds(&fd, 5 * page + 4000, 96), Ok(true));
        assert_eq!(holds(&fd, 5 * page + 4000, page), Ok(false));
        assert_eq!(holds(&fd, 0, 1), Ok(false));
        assert_eq!(holds(&fd, 0, 0), Ok(true));
        let (pipe, _writer) = rustix::pipe::pipe().unwrap();
        assert_ne!(holds(&pipe, 0, 1), Ok(true));
    }
}
