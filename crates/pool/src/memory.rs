//! What pages are cut from.

use crate::error::AreaError;
use crate::netmem::DeviceId;
use crate::provider::MemoryProvider;
use onecopy_sys::map::Mapping;
use rustix::io;
use rustix::mm::{MapFlags, ProtFlags};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// Where an area has to begin: at a cache line, so that no two pages share one.
const ALIGN: usize = 64;

/// Memory of this process that nothing but the pool reads or writes: pages cut from it have slices.
pub struct HostMemory {
    base: NonNull<u8>,
    len: usize,
    /// Whatever has to live as long as the memory.
    _keep: Box<dyn Any + Send + Sync>,
}

// SAFETY: a range of addresses and its keeper, which is Send; who reads or writes the bytes is decided by pages.
unsafe impl Send for HostMemory {}
// SAFETY: as above; no method hands out the bytes.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Memory that something else keeps alive: a library's pinned buffer, for example.
    ///
    /// # Safety
    ///
    /// Until `keep` is dropped, `base..base + len` has to be initialised, readable and writable from every thread,
    /// and nothing but pages of the pool it is given to may write it, nor read it while a page's
    /// [`bytes_mut`](crate::Page::bytes_mut) is alive. (Another process that only reads does no harm.)
    pub unsafe fn from_raw(base: NonNull<u8>, len: usize, keep: Box<dyn Any + Send + Sync>) -> HostMemory {
        HostMemory { base, len, _keep: keep }
    }

    /// Fresh zeroed memory of the process, which takes up room page by page as it is touched.
    ///
    /// # Errors
    ///
    /// What mmap(2) says: ENOMEM.
    pub fn anonymous(len: usize) -> io::Result<HostMemory> {
        let pages = Anonymous::new(len, MapFlags::NORESERVE)?;
        // SAFETY: a private mapping that nobody else knows of, zeroed by the kernel; unmapped when `pages` is dropped.
        Ok(unsafe { HostMemory::from_raw(pages.base, len, Box::new(pages)) })
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({} bytes)", self.len)
    }
}

/// A private anonymous mapping.
pub(crate) struct Anonymous {
    pub(crate) base: NonNull<u8>,
    pub(crate) len: usize,
}

// SAFETY: a range of addresses that the value owns.
unsafe impl Send for Anonymous {}
// SAFETY: as above; no method hands out the bytes.
unsafe impl Sync for Anonymous {}

impl Anonymous {
    pub(crate) fn new(len: usize, flags: MapFlags) -> io::Result<Anonymous> {
        // SAFETY: a fresh mapping at an address that the kernel chooses replaces nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | flags,
            )?
        };
        Ok(Anonymous { base: NonNull::new(base.cast()).ok_or(io::Errno::NOMEM)?, len })
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are what mmap gave; whoever uses the memory holds on to the value.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// The memory that a provider gives a pool to cut pages from. Page `i` is `i * page_len` bytes from its beginning, so
/// that pages cannot overlap, whatever numbers a provider gives.
#[derive(Debug)]
pub struct Area(pub(crate) Memory);

#[derive(Debug)]
pub(crate) enum Memory {
    Host(HostMemory),
    Peer {
        mapping: Arc<Mapping>,
        offset: usize,
        len: usize,
    },
    /// Pages of a peer's pool, `pages` of them, that he lends in slots: it is slots that the descriptors are of.
    Lent {
        mapping: Arc<Mapping>,
        pages: u32,
    },
    Device {
        id: DeviceId,
        len: usize,
    },
    /// Pages of a device's memory that somebody else hands out in slots, as in `Lent`.
    DeviceSlots {
        id: DeviceId,
        len: usize,
    },
}

impl Area {
    /// Memory of our own.
    pub fn host(memory: HostMemory) -> Area {
        Area(Memory::Host(memory))
    }

    /// `len` bytes from `offset` of memory that another process may be writing.
    #[doc(hidden)]
    pub fn peer(mapping: Arc<Mapping>, offset: usize, len: usize) -> Area {
        Area(Memory::Peer { mapping, offset, len })
    }

    /// The first `pages` pages of memory that another process may be writing, of which any may lie in any slot.
    pub(crate) fn lent(mapping: Arc<Mapping>, pages: u32) -> Area {
        Area(Memory::Lent { mapping, pages })
    }

    /// `len` bytes of a device, which the CPU cannot read.
    pub fn device(id: DeviceId, len: usize) -> Area {
        Area(Memory::Device { id, len })
    }

    /// `len` bytes of a device, of which any may lie in any slot.
    pub(crate) fn device_slots(id: DeviceId, len: usize) -> Area {
        Area(Memory::DeviceSlots { id, len })
    }

    /// How many pages it holds, at most `limit`.
    pub(crate) fn pages(&self, page_len: u32, limit: u32) -> Result<u32, AreaError> {
        let (at, len) = match &self.0 {
            Memory::Host(memory) => (memory.base.addr().get(), memory.len),
            Memory::Peer { mapping, offset, len } => {
                let end = offset.saturating_add(*len);
                if end > mapping.len() {
                    return Err(AreaError::Outside { end, mapped: mapping.len() });
                }
                (*offset, *len)
            }
            Memory::Lent { mapping, pages } => {
                let end = (page_len as usize).saturating_mul(*pages as usize);
                return match end {
                    0 => Err(AreaError::Short { len: end, page_len }),
                    _ if end > mapping.len() => Err(AreaError::Outside { end, mapped: mapping.len() }),
                    _ => Ok(limit),
                };
            }
            Memory::DeviceSlots { len, .. } if *len >= page_len as usize => return Ok(limit),
            Memory::Device { len, .. } | Memory::DeviceSlots { len, .. } => (0, *len),
        };
        if !at.is_multiple_of(ALIGN) {
            return Err(AreaError::Misaligned { at });
        }
        match len / page_len as usize {
            0 => Err(AreaError::Short { len, page_len }),
            pages => Ok(u32::try_from(pages).unwrap_or(u32::MAX).min(limit)),
        }
    }

    /// Whether its first `pages` pages are what the provider says: users rely on that, and what is said of who may read or map
    /// memory should be said by it alone. (Whether it is pinned shows nowhere.)
    pub(crate) fn agrees(
        &self,
        provider: &dyn MemoryProvider,
        page_len: u32,
        pages: u32,
    ) -> Result<(), AreaError> {
        let (about, device) = (provider.about(), self.device_id());
        let untrue = |what| Err(AreaError::Untrue { what });
        if about.readable != device.is_none() {
            return untrue("whether it can be read");
        }
        if about.device != device {
            return untrue("which device it lies on");
        }
        let fd = provider.fd();
        if about.shareable != fd.is_some() {
            return untrue("whether it can be shared, which takes a descriptor");
        }
        // A reader of the file's last page would meet a SIGBUS.
        let bytes = u64::from(page_len) * u64::from(pages);
        match fd.map(rustix::fs::fstat) {
            Some(Ok(file)) if (file.st_size as u64) < bytes => untrue("its file is shorter than its pages"),
            Some(Err(_)) => untrue("its descriptor is none"),
            _ => Ok(()),
        }
    }

    /// The address of host memory, else null.
    pub(crate) fn host_base(&self) -> *mut u8 {
        match &self.0 {
            Memory::Host(memory) => memory.base.as_ptr(),
            _ => std::ptr::null_mut(),
        }
    }

    pub(crate) fn device_id(&self) -> Option<DeviceId> {
        match &self.0 {
            Memory::Device { id, .. } | Memory::DeviceSlots { id, .. } => Some(*id),
            _ => None,
        }
    }
}
