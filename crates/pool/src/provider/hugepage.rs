//! Huge pages, or what the machine has instead.

use super::free::Free;
use super::{About, Batch, MemoryProvider, Need, ProviderError};
use crate::memory::{Anonymous, Area, HostMemory};
use onecopy_sync::Mutex;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags};
use std::fmt;
use std::io;
use std::sync::Arc;

/// Bytes in a huge page, on x86-64 and on AArch64 with 4 KiB pages.
const HUGE: usize = 2 << 20;

/// Bytes beside the memory that are mapped and never used: a page of any kind.
const EDGE: usize = 64 << 10;

/// What a [`Hugepage`] provider got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    /// No pool asked yet.
    Nothing,
    /// Reserved huge pages (MAP_HUGETLB): pinned by their nature, and none is ever missing.
    Explicit,
    /// Transparent huge pages (madvise(2)): seen in use by the first of them; the kernel may lack more of them later.
    Transparent {
        /// Why they are not reserved ones.
        instead: String,
    },
    /// 4 KiB pages.
    Plain {
        /// Why they are no reserved huge pages, and why no transparent ones.
        instead: String,
    },
}

impl fmt::Display for Got {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Got::Nothing => f.write_str("nothing yet"),
            Got::Explicit => f.write_str("reserved huge pages of 2 MiB"),
            Got::Transparent { instead } => write!(f, "transparent huge pages ({instead})"),
            Got::Plain { instead } => write!(f, "4 KiB pages ({instead})"),
        }
    }
}

/// Anonymous memory in huge pages: reserved ones if there are enough (/proc/sys/vm/nr_hugepages), else transparent
/// ones, else ordinary pages. Which of them it got is said, by [`Hugepage::got`], by `about` and wherever the pool is
/// printed.
#[derive(Debug)]
pub struct Hugepage {
    free: Free,
    got: Mutex<Got>,
}

impl Hugepage {
    /// One for a pool.
    #[allow(clippy::new_ret_no_self, reason = "pools take it shared")]
    pub fn new() -> Arc<Hugepage> {
        Arc::new(Hugepage { free: Free::default(), got: Mutex::new(Got::Nothing) })
    }

    /// What the pool's memory is.
    pub fn got(&self) -> Got {
        self.got.lock().clone()
    }
}

impl fmt::Display for Hugepage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.got().fmt(f)
    }
}

/// Memory of `len` bytes, whole huge pages of it, and what it is.
fn get(len: usize) -> Result<(Anonymous, usize, Got), Errno> {
    // Not MAP_NORESERVE: without a reservation the kernel would answer a touch with SIGBUS.
    let why = match Anonymous::new(len, MapFlags::HUGETLB | MapFlags::HUGE_2MB) {
        Ok(memory) => return Ok((memory, 0, Got::Explicit)),
        Err(Errno::NOMEM) => format!("{} reserved ones are not free: see vm.nr_hugepages", len / HUGE),
        Err(errno) => format!("no reserved ones: {errno}"),
    };
    // One more, to begin at a border, and a little on each side that is not advised: so the kernel never merges what is
    // advised here with what another pool has beside it, and /proc/self/smaps speaks of this memory alone.
    let memory = Anonymous::new(len + HUGE + EDGE, MapFlags::NORESERVE)?;
    let skip = match memory.base.as_ptr().align_offset(HUGE) {
        0 => HUGE,
        skip => skip,
    };
    // SAFETY: inside of the mapping, which has more than `skip` bytes to spare, is private and known to nobody else.
    let advised = unsafe {
        let first = memory.base.as_ptr().add(skip);
        rustix::mm::madvise(first.cast(), len, Advice::LinuxHugepage).map(|()| first.write_volatile(0))
    };
    let got = match advised {
        Err(errno) => Got::Plain { instead: format!("{why}; no transparent ones: {errno}") },
        Ok(()) => match huge_bytes(memory.base.as_ptr().addr() + skip, len) {
            Ok(1..) => Got::Transparent { instead: why },
            Ok(0) => Got::Plain {
                instead: format!(
                    "{why}; no transparent ones: the kernel gave none, see /sys/kernel/mm/transparent_hugepage"
                ),
            },
            Err(error) => Got::Plain {
                instead: format!("{why}; whether transparent ones: /proc/self/smaps does not tell: {error}"),
            },
        },
    };
    Ok((memory, skip, got))
}

/// Bytes in transparent huge pages of the mapping that is `len` bytes from `address`, as /proc/self/smaps has it.
///
/// # Errors
///
/// What reading it says; [`io::ErrorKind::NotFound`] where it lists no such mapping: of a larger one it would not be known
/// whose the huge pages are.
fn huge_bytes(address: usize, len: usize) -> io::Result<u64> {
    let maps = std::fs::read_to_string("/proc/self/smaps")?;
    let mut here = false;
    for line in maps.lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        if let Some((from, to)) = range
            && let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
        {
            here = (from, to) == (address, address + len);
        } else if here && let Some(value) = line.strip_prefix("AnonHugePages:") {
            let kib: u64 = value.trim().trim_end_matches(" kB").parse().map_err(io::Error::other)?;
            return Ok(kib << 10);
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "it lists no such mapping"))
}

impl MemoryProvider for Hugepage {
    fn init(&self, need: &Need) -> Result<Area, ProviderError> {
        let len = need.bytes()?;
        let whole = len.checked_next_multiple_of(HUGE).ok_or_else(|| {
            ProviderError::new(Errno::NOMEM, "no address space is that large; lower the limit")
        })?;
        self.free.start(need)?;
        let (memory, skip, got) = get(whole).map_err(|errno| {
            self.free.stop();
            ProviderError::new(errno, format!("{whole} bytes of address space were refused; lower the limit"))
        })?;
        *self.got.lock() = got;
        // SAFETY: inside of a private mapping that nobody else knows of, zeroed by the kernel; unmapped with `memory`.
        Ok(Area::host(unsafe { HostMemory::from_raw(memory.base.add(skip), len, Box::new(memory)) }))
    }

    fn alloc_netmems(&self, batch: &mut Batch<'_>) -> Result<(), ProviderError> {
        self.free.give(batch)
    }

    fn release_netmem(&self, index: u32) {
        self.free.take_back(index);
    }

    fn destroy(&self) {
        self.free.stop();
        *self.got.lock() = Got::Nothing;
    }

    fn about(&self) -> About {
        let got = self.got();
        About {
            name: "hugepage",
            how: got.to_string(),
            readable: true,
            pinned: got == Got::Explicit,
            shareable: false,
            device: None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Whose memory the kernel has right below: advised and touched, as another allocator's would be, so that it would be
    /// merged with what is advised from `above` on. None where something else lies there.
    fn neighbour(above: *mut u8) -> Option<Anonymous> {
        let at = above.wrapping_sub(HUGE);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        let access = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        // SAFETY: with FIXED_NOREPLACE it replaces nothing; it is private and known to nobody else.
        unsafe {
            let base = rustix::mm::mmap_anonymous(at.cast(), HUGE, access, flags).ok()?;
            let advised = rustix::mm::madvise(base, HUGE, Advice::LinuxHugepage);
            base.cast::<u8>().write_volatile(1);
            advised.ok()?;
            Some(Anonymous { base: std::ptr::NonNull::new(base.cast())?, len: HUGE })
        }
    }

    #[test]
    fn each_pools_huge_pages_are_counted_for_itself() {
        let mut neighbours = 0;
        for len in [1, 2, 1, 3, 1, 1, 4, 1].map(|pages| pages * HUGE) {
            let (memory, skip, got) = get(len).unwrap();
            let first = memory.base.as_ptr().addr() + skip;
            assert!(first.is_multiple_of(HUGE));
            match &got {
                // Reserved ones are no question.
                Got::Explicit => continue,
                // A kernel without transparent ones refuses the advice, so nothing is told apart.
                Got::Plain { instead } if instead.contains("Invalid argument") => continue,
                _ => {}
            }
            let beside = neighbour(memory.base.as_ptr());
            neighbours += usize::from(beside.is_some());
            let bytes = huge_bytes(first, len).expect("a mapping of its own");
            assert_eq!(bytes > 0, matches!(got, Got::Transparent { .. }), "{got}");
            assert!(bytes <= HUGE as u64, "only the first page was touched: {bytes}");
            drop(beside);
        }
        println!("{neighbours} had a neighbour");
    }
}
