//! A pool of a peer, whose pages come by reference: memory that only the peer can write.

use onecopy_copy::{Hint, Policy, Reader};
use onecopy_sys::map::{Mapping, Span};
use onecopy_sys::memfd::{self, Refused};
use rustix::fd::AsFd;
use rustix::io::Errno;

/// A peer's pool, mapped for reading.
#[derive(Debug)]
pub struct Shared {
    mapping: Mapping,
    page_len: usize,
}

impl Shared {
    /// Bytes of a pool of `pages` pages of `page_len` bytes; None where that cannot be.
    pub fn size(page_len: u64, pages: u64) -> Option<usize> {
        let len = page_len.checked_mul(pages)?;
        let possible = page_len > 0 && page_len <= u64::from(u32::MAX) && pages <= u64::from(u32::MAX);
        usize::try_from(len).ok().filter(|len| possible && *len > 0 && *len <= isize::MAX as usize)
    }

    /// Maps the pool, after checking that its memfd is what was announced and that only its owner can write to it.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the first check that fails.
    pub fn open(fd: impl AsFd, page_len: u64, pages: u64) -> Result<Shared, Refused> {
        let Some(len) = Shared::size(page_len, pages) else {
            return Err(Refused::Size { expected: page_len.saturating_mul(pages), found: 0 });
        };
        memfd::verify_owned(&fd, len)?;
        let mapping = Mapping::read_only(&fd, len).map_err(|errno| match errno {
            Errno::NOMEM | Errno::AGAIN => Refused::NoMapping(errno),
            errno => Refused::NotAMemfd(errno),
        })?;
        Ok(Shared { mapping, page_len: page_len as usize })
    }

    /// Bytes of it that are mapped.
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Whether nothing is (never).
    pub fn is_empty(&self) -> bool {
        self.mapping.is_empty()
    }

    /// Where a part of a page begins; None unless it is one, of at least a byte.
    #[inline]
    pub fn place(&self, page: u32, offset: u32, len: u32) -> Option<usize> {
        let (offset, len) = (offset as usize, len as usize);
        if len == 0 || offset > self.page_len || len > self.page_len - offset {
            return None;
        }
        let begin = (page as usize).checked_mul(self.page_len)?;
        (begin <= self.mapping.len() - self.page_len).then_some(begin + offset)
    }

    /// A view of `len` bytes from `at`, to be read only.
    ///
    /// # Panics
    ///
    /// When that is not inside.
    #[inline]
    pub fn span(&self, at: usize, len: usize) -> Span<'_> {
        self.mapping.span(at, len)
    }

    /// Copies from `at` on.
    ///
    /// # Panics
    ///
    /// When that is not inside.
    #[inline]
    pub fn copy_out(&self, at: usize, buffer: &mut [u8]) {
        let hint = Hint { policy: Policy::Cached, footprint: buffer.len(), reader: Reader::SameCore };
        let span = self.mapping.span(at, buffer.len());
        // SAFETY: the view has the buffer's length and is mapped readable, the buffer is exclusively ours. The owner
        // of the pool may write meanwhile, which makes the copied bytes garbage, and that is its right.
        unsafe {
            onecopy_copy::copy_raw(buffer.as_mut_ptr(), span.as_ptr(), buffer.len(), hint);
        }
    }
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
        let pool = Shared::open(&fd, 8192, 4).unwrap();
        let mut bytes = [1; 10];
        pool.copy_out(pool.place(3, 8182, 10).unwrap(), &mut bytes);
        assert_eq!(bytes, [0; 10]);
        for (page_len, pages) in
            [(8192, 3), (8192, 5), (4096, 4), (0, 4), (8192, 0), (u64::MAX, 2), (1 << 40, 4)]
        {
            assert!(
                matches!(Shared::open(&fd, page_len, pages), Err(Refused::Size { .. })),
                "{page_len} {pages}"
            );
        }
        let writable = memory(4 * 8192, memfd::REQUIRED_SEALS);
        assert!(matches!(Shared::open(&writable, 8192, 4), Err(Refused::Unsealed(_))));
        let shrinking = memory(4 * 8192, SealFlags::FUTURE_WRITE | SealFlags::SEAL);
        assert!(matches!(Shared::open(&shrinking, 8192, 4), Err(Refused::Unsealed(_))));
    }

    #[test]
    fn only_parts_of_pages_have_a_place() {
        let pool = Shared::open(memory(4 * 8192, OWNED), 8192, 4).unwrap();
        assert_eq!(pool.place(0, 0, 8192), Some(0));
        assert_eq!(pool.place(3, 8191, 1), Some(3 * 8192 + 8191));
        for (page, offset, len) in
            [(4, 0, 1), (0, 0, 8193), (0, 1, 8192), (0, 8192, 1), (0, 0, 0), (u32::MAX, 0, 1)]
        {
            assert_eq!(pool.place(page, offset, len), None, "{page} {offset} {len}");
        }
        assert_eq!(pool.place(0, u32::MAX, u32::MAX), None);
    }
}
