//! What addresses mean: the device's memory, and the host's that the device knows.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;

use crate::ptx::Bus;

/// A range of addresses, and where its bytes lie for this.
#[derive(Debug)]
struct Range {
    len: usize,
    bytes: *mut u8,
}

/// The host's memory that was pinned.
#[derive(Debug)]
struct Pinned {
    len: usize,
    /// Where the device has it.
    alias: u64,
    /// Whether it was allocated, and not only registered.
    ours: bool,
}

/// All memory that the device can reach.
#[derive(Debug, Default)]
pub struct Memory {
    /// By device address.
    device: BTreeMap<u64, Range>,
    /// By host address.
    pinned: BTreeMap<usize, Pinned>,
    /// Of the device's allocations; aliases are not among them.
    allocations: usize,
}

// SAFETY: addresses that this alone maps and unmaps, or that whoever pinned them keeps until they are unpinned.
unsafe impl Send for Memory {}

/// Address space without memory: touching it is a SIGSEGV.
fn nowhere(len: usize) -> Option<u64> {
    // SAFETY: a fresh mapping at an address of the kernel's choosing.
    let at = unsafe {
        mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
    };
    at.ok().map(|at| at as u64)
}

fn unmap(at: *mut c_void, len: usize) {
    // SAFETY: only what was mapped here comes here, once.
    let _ = unsafe { munmap(at, len) };
}

impl Memory {
    /// Memory of the device's: its address.
    pub fn alloc(&mut self, len: usize) -> Option<u64> {
        let file = memfd_create("onecopy-cuda-stand-in", MemfdFlags::CLOEXEC).ok()?;
        ftruncate(&file, len as u64).ok()?;
        // SAFETY: fresh mappings at addresses of the kernel's choosing.
        let (at, bytes) = unsafe {
            let at = mmap(ptr::null_mut(), len, ProtFlags::empty(), MapFlags::SHARED, &file, 0).ok()?;
            let access = ProtFlags::READ | ProtFlags::WRITE;
            (at, mmap(ptr::null_mut(), len, access, MapFlags::SHARED, &file, 0).ok()?)
        };
        // As on a device: what was there before is there, and nobody may rely on zeroes.
        // SAFETY: just mapped, `len` bytes.
        unsafe { ptr::write_bytes(bytes.cast::<u8>(), 0xA5, len) };
        self.device.insert(at as u64, Range { len, bytes: bytes.cast() });
        self.allocations += 1;
        Some(at as u64)
    }

    /// Whether there was such an allocation.
    pub fn free(&mut self, at: u64) -> bool {
        let alias = self.pinned.values().any(|pinned| pinned.alias == at);
        let Some(range) = self.device.remove(&at).filter(|_| !alias) else { return false };
        unmap(at as *mut c_void, range.len);
        unmap(range.bytes.cast(), range.len);
        self.allocations -= 1;
        true
    }

    /// Pins `len` bytes from `at`. None where some are pinned already.
    pub fn pin(&mut self, at: usize, len: usize, ours: bool) -> Option<()> {
        let before = self.pinned.range(..at.checked_add(len)?).next_back();
        if before.is_some_and(|(start, pinned)| start + pinned.len > at) {
            return None;
        }
        let alias = nowhere(len)?;
        self.device.insert(alias, Range { len, bytes: at as *mut u8 });
        self.pinned.insert(at, Pinned { len, alias, ours });
        Some(())
    }

    /// Whether it was pinned so.
    pub fn unpin(&mut self, at: usize, ours: bool) -> bool {
        let Some(pinned) = self.pinned.get(&at).filter(|pinned| pinned.ours == ours) else { return false };
        self.device.remove(&pinned.alias);
        unmap(pinned.alias as *mut c_void, pinned.len);
        if ours {
            unmap(at as *mut c_void, pinned.len);
        }
        self.pinned.remove(&at);
        true
    }

    /// Pinned memory of this library's making.
    pub fn alloc_pinned(&mut self, len: usize) -> Option<usize> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choosing.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) }.ok()? as usize;
        self.pin(at, len, true).map(|()| at)
    }

    /// Whether all of it is pinned.
    pub fn is_pinned(&self, at: usize, len: usize) -> bool {
        let found = self.pinned.range(..=at).next_back();
        found.is_some_and(|(start, pinned)| at + len <= start + pinned.len)
    }

    /// Where the device has a pinned address.
    pub fn alias(&self, at: usize) -> Option<u64> {
        let (start, pinned) = self.pinned.range(..=at).next_back()?;
        (at < start + pinned.len).then(|| pinned.alias + (at - start) as u64)
    }

    /// Where the bytes of `len` device addresses lie.
    pub fn resolve(&self, at: u64, len: usize) -> Option<*mut u8> {
        let (start, range) = self.device.range(..=at).next_back()?;
        let offset = (at - start) as usize;
        (offset.checked_add(len)? <= range.len).then(|| range.bytes.wrapping_add(offset))
    }

    pub fn allocations(&self) -> usize {
        self.allocations
    }

    pub fn pinned(&self) -> usize {
        self.pinned.len()
    }
}

/// What the threads of a kernel see.
impl Bus for Memory {
    fn load(&self, at: u64, width: usize) -> Option<u64> {
        let from = self.resolve(at, width).filter(|_| at.is_multiple_of(width as u64))?;
        let mut bytes = [0; 8];
        // SAFETY: `width` bytes, at most 8, of a range that is mapped as long as it is in the table.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), width) };
        Some(u64::from_le_bytes(bytes))
    }

    fn store(&self, at: u64, width: usize, value: u64) -> Option<()> {
        let to = self.resolve(at, width).filter(|_| at.is_multiple_of(width as u64))?;
        // SAFETY: as above; that nobody else uses the bytes meanwhile is what the users of a device see to.
        unsafe { ptr::copy_nonoverlapping(value.to_le_bytes().as_ptr(), to, width) };
        Some(())
    }
}
