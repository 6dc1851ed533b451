//! A pool of a peer, whose pages come by reference: memory that only the peer can write.

use onecopy_sys::map::Mapping;
use onecopy_sys::memfd::{self, Refused};
use rustix::fd::AsFd;
use rustix::io::Errno;

/// Returns the bytes of a pool of `pages` pages of `page_len` bytes, or None where that cannot be.
pub fn size(page_len: u64, pages: u64) -> Option<usize> {
    let len = page_len.checked_mul(pages)?;
    let possible = page_len > 0 && page_len <= u64::from(u32::MAX) && pages <= u64::from(u32::MAX);
    usize::try_from(len).ok().filter(|len| possible && *len > 0 && *len <= isize::MAX as usize)
}

/// Maps the pool for reading. Checks first that its memfd is what was announced, and that only its owner can
/// write to it.
///
/// # Errors
///
/// [`Refused`], with the first check that fails.
pub fn open(fd: impl AsFd, page_len: u64, pages: u64) -> Result<Mapping, Refused> {
    let Some(len) = size(page_len, pages) else {
        return Err(Refused::Size { expected: page_len.saturating_mul(pages), found: 0 });
    };
    memfd::verify_owned(&fd, len)?;
    Mapping::read_only(&fd, len).map_err(|errno| match errno {
        Errno::NOMEM | Errno::AGAIN => Refused::NoMapping(errno),
        errno => Refused::NotAMemfd(errno),
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, SealFlags};

    fn memory(len: u64, seals: SealFlags) -> rustix::fd::OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("onecopy-test", flags).unwrap();
        rustix::fs::ftruncate(&fd, len).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    const OWNED: SealFlags = memfd::REQUIRED_SEALS.union(SealFlags::FUTURE_WRITE);

    #[test]
    fn a_pool_opens_only_as_what_it_is() {
        let fd = memory(4 * 8192, OWNED);
        let pool = open(&fd, 8192, 4).unwrap();
        let mut bytes = [1; 10];
        onecopy_copy::copy_out(&mut bytes, pool.span(4 * 8192 - 10, 10), onecopy_copy::Hint::AUTO);
        assert_eq!(bytes, [0; 10]);
        for (page_len, pages) in
            [(8192, 3), (8192, 5), (4096, 4), (0, 4), (8192, 0), (u64::MAX, 2), (1 << 40, 4)]
        {
            assert!(matches!(open(&fd, page_len, pages), Err(Refused::Size { .. })), "{page_len} {pages}");
        }
        let writable = memory(4 * 8192, memfd::REQUIRED_SEALS);
        assert!(matches!(open(&writable, 8192, 4), Err(Refused::Unsealed(_))));
        let shrinking = memory(4 * 8192, SealFlags::FUTURE_WRITE | SealFlags::SEAL);
        assert!(matches!(open(&shrinking, 8192, 4), Err(Refused::Unsealed(_))));
    }
}
