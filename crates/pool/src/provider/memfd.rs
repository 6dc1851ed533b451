//! Memory that another process can map, to read.

use super::free::Free;
use super::{About, Batch, MemoryProvider, Need, ProviderError};
use crate::memory::{Area, HostMemory};
use onecopy_sys::memfd;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

/// A memfd that this process maps and writes, and whoever gets its descriptor can only read. It is mapped first and
/// then sealed: F_SEAL_FUTURE_WRITE (this mapping stays the only writable one, whatever the peer opens again through
/// /proc), SHRINK and GROW (no reader meets a SIGBUS), SEAL. Those seals forbid punching holes, too: memory that was
/// touched stays taken until the pool is gone.
///
/// All of it can be read by whoever gets the descriptor, so a pool of this kind belongs to *one* peer's trust domain.
/// A provider serves one pool in its life, and never another peer's.
#[derive(Debug, Default)]
pub struct Memfd {
    free: Free,
    fd: OnceLock<OwnedFd>,
}

impl Memfd {
    /// One for a pool.
    #[allow(clippy::new_ret_no_self, reason = "pools take it shared")]
    pub fn new() -> Arc<Memfd> {
        Arc::new(Memfd::default())
    }
}

impl MemoryProvider for Memfd {
    fn init(&self, need: &Need) -> Result<Area, ProviderError> {
        let len = need.bytes()?;
        let (fd, mapping) = memfd::create_owned("onecopy-pool", len).map_err(|errno| {
            ProviderError::new(
                errno,
                format!("a memfd of {len} bytes was refused; lower the limit, or see RLIMIT_FSIZE"),
            )
        })?;
        // A child that forks would write to the same pages with its own copies of the counts.
        // SAFETY: the range is the mapping's, and the advice changes nothing in this process.
        let advice = unsafe {
            rustix::mm::madvise(mapping.base().as_ptr().cast(), len, rustix::mm::Advice::LinuxDontFork)
        };
        advice
            .map_err(|errno| ProviderError::new(errno, "the kernel would let children inherit the pool"))?;
        if self.fd.set(fd).is_err() {
            return Err(ProviderError::busy());
        }
        self.free.start(need)?;
        let base = mapping.base();
        // SAFETY: the mapping is shared, but no other writable one can be made since it was sealed, write(2) is
        // refused as well, and `mapping` itself is given away into the keeper. It is unmapped with that.
        Ok(Area::host(unsafe { HostMemory::from_raw(base, len, Box::new(mapping)) }))
    }

    fn alloc_netmems(&self, batch: &mut Batch<'_>) -> Result<(), ProviderError> {
        self.free.give(batch)
    }

    fn release_netmem(&self, index: u32) {
        self.free.take_back(index);
    }

    fn about(&self) -> About {
        About {
            name: "memfd",
            how: "a sealed memfd, written by its owner alone".to_owned(),
            readable: true,
            pinned: false,
            shareable: true,
            device: None,
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.get().map(AsFd::as_fd)
    }
}
