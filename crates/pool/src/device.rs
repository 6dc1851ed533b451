//! A device's memory as a whole: pages to be handed out, and a way for bytes in and out.

use crate::claim::Claims;
use crate::config::PoolConfig;
use crate::error::{AllocError, OpenError};
use crate::page::Page;
use crate::part::Part;
use crate::pool::{Monitor, PagePool};
use crate::provider::{CopyError, DmaBuf, MemoryProvider, Opaque, ProviderError};
use crate::{DeviceId, Stats};
use onecopy_sync::Mutex;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;

/// Memory that the CPU cannot address: bytes get in and out by copies of the device's own, or of the kernel's. Places are bytes
/// from the beginning of its pool's area.
pub trait Device: MemoryProvider {
    /// Copies `from`, one slice after the other, to place `at`. It is done when this returns.
    ///
    /// # Errors
    ///
    /// [`CopyError`]: they would not lie inside, or the copy failed.
    fn write_at(&self, at: u64, from: &[IoSlice<'_>]) -> Result<(), CopyError>;

    /// Copies what lies at place `at` to `into`.
    ///
    /// # Errors
    ///
    /// As [`Device::write_at`].
    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), CopyError>;

    /// Takes `from`, parts of the host's memory one after the other, to be copied to place `at`, and may copy them after it returns: it keeps
    /// the parts until it has, so that no page of theirs is used again before. All that is asked of a device is done in the order in which it was
    /// asked: what is read later is there. Where nothing but this is said, it is [`Device::write_at`].
    ///
    /// # Errors
    ///
    /// As [`Device::write_at`], and [`CopyError::Foreign`] for parts that have no bytes here; then none is taken. What fails later is told by
    /// [`Device::settle`].
    fn submit(&self, at: u64, from: Vec<Part>) -> Result<(), CopyError> {
        let bytes = |part: &'_ Part| part.bytes().is_some();
        if let Some(part) = from.iter().find(|part| !bytes(part)) {
            return Err(CopyError::Foreign { pool_id: part.page().pool_id() });
        }
        let slices: Vec<_> = from.iter().filter_map(|part| part.bytes().map(IoSlice::new)).collect();
        self.write_at(at, &slices)
    }

    /// Waits until all that was submitted before is where it belongs, for whoever looks at the device's memory by other ways than this.
    ///
    /// # Errors
    ///
    /// [`CopyError`]: something that was taken is lost, and it is lost for good. From then on each call says so.
    fn settle(&self) -> Result<(), CopyError> {
        Ok(())
    }

    /// A file that its memory is, place by place, so that the kernel can put bytes there without a copy by the device. Who asks maps it for no
    /// longer than it takes to register the pages with the kernel: no address of it is left then. None where there is no such file.
    fn file(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Whether bytes get in and out by its copies at all: of memory that its driver maps for nobody they do not.
    ///
    /// # Errors
    ///
    /// [`CopyError::Unmapped`].
    fn copies(&self) -> Result<(), CopyError> {
        Ok(())
    }

    /// Its memory as a dma-buf, place by place, for a driver to read and write: that of a NIC whose queues receive into it, for example. The descriptor
    /// keeps the memory's pages, as long as it is open, and is closed on exec.
    ///
    /// # Errors
    ///
    /// Why there is none, and what to do: EOPNOTSUPP where this kind of memory has none.
    fn dma_buf(&self) -> Result<OwnedFd, ProviderError> {
        Err(ProviderError::new(
            Errno::OPNOTSUPP,
            "this kind of memory has no dma-buf; use memory of DeviceMemory::opaque, or a driver's by DeviceMemory::of_dma_buf",
        ))
    }

    /// What it has copied so.
    fn copied(&self) -> Copied;
}

/// Bytes that a device has copied, for whoever asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// From the host's memory to its own.
    pub into: u64,
    /// From its own memory to the host's.
    pub out: u64,
}

/// A piece of a device's memory that packets' payload lands in and is sent from: what a dma-buf is to the kernel's device memory TCP.
/// Clones are handles of the same.
///
/// ```
/// use onecopy_pool::{DeviceId, DeviceMemory};
///
/// let memory = DeviceMemory::opaque(64, DeviceId(0))?;
/// memory.write_at(100, &[std::io::IoSlice::new(b"hello")])?;
/// let mut bytes = [0; 5];
/// memory.read_at(100, &mut bytes)?;
/// assert_eq!(&bytes, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct DeviceMemory {
    of: Arc<Owned>,
}

struct Owned {
    device: Arc<dyn Device>,
    pages: Mutex<PagePool>,
    monitor: Monitor,
    limit: u32,
    page_len: u32,
    claims: Claims,
}

impl DeviceMemory {
    /// `pages` pages of 4 KiB behind [`Opaque`], the stand-in for a device on machines without one.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn opaque(pages: u32, device: DeviceId) -> Result<DeviceMemory, OpenError> {
        DeviceMemory::new(PoolConfig::new().limit(pages), Opaque::new(device))
    }

    /// All whole pages of the dma-buf `fd`, which a driver gave, as memory of device `device` ([`DmaBuf`]).
    ///
    /// # Errors
    ///
    /// [`OpenError`]: ENOTTY for what is no dma-buf, EINVAL for one of less than a page.
    pub fn of_dma_buf(fd: OwnedFd, device: DeviceId) -> Result<DeviceMemory, OpenError> {
        let device = DmaBuf::take(fd, device).map_err(OpenError::Provider)?;
        DeviceMemory::new(PoolConfig::new().limit(device.pages()), device)
    }

    /// The memory of `device`, which is no other pool's yet.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn new<D: Device>(config: PoolConfig, device: Arc<D>) -> Result<DeviceMemory, OpenError> {
        let pages = PagePool::new(config.runs(), device.clone())?;
        let (monitor, limit, page_len) = (pages.monitor(), pages.limit(), pages.page_len());
        let (pages, claims) = (Mutex::new(pages), Claims::default());
        Ok(DeviceMemory { of: Arc::new(Owned { device, pages, monitor, limit, page_len, claims }) })
    }

    pub(crate) fn device(&self) -> &dyn Device {
        &*self.of.device
    }

    pub(crate) fn claims(&self) -> &Claims {
        &self.of.claims
    }

    /// Parts of pages for `len` bytes, one after the other: whole pages, and a piece of one for the rest. Pages that lie together are one part, of one
    /// page: a run of up to 48, with one reference for all of them. They come home together, in any order, and the lowest ones go out first.
    ///
    /// # Errors
    ///
    /// [`AllocError`]; then none is taken.
    pub fn alloc(&self, len: usize) -> Result<Vec<Part>, AllocError> {
        let (each, pool) = (self.of.page_len as usize, self.of.pages.lock());
        let mut parts = Vec::with_capacity(2);
        let mut left = len / each;
        while left > 0 {
            let page = pool.alloc_run(left.try_into().unwrap_or(u32::MAX))?;
            left -= page.pages() as usize;
            let bytes = page.len();
            let part = Part::new(page, 0, bytes);
            parts.push(part.unwrap_or_else(|page| unreachable!("all of {page:?}")));
        }
        if !len.is_multiple_of(each) {
            parts.push(pool.alloc_piece((len % each) as u32)?.into());
        }
        Ok(parts)
    }

    /// Keeps the first `len` bytes of `parts`, which are as they were drawn ([`DeviceMemory::alloc`]), in whole pages. Pages behind them are free at once.
    pub fn trim(&self, parts: &mut Vec<Part>, len: usize) {
        let mut left = len;
        parts.retain_mut(|part| {
            let keep = part.len().min(left);
            left -= keep;
            if keep > 0 && keep < part.len() {
                part.keep_front(keep);
            }
            keep > 0
        });
    }

    /// All of its pages, in order, in runs: each begins where the one before ends.
    ///
    /// # Errors
    ///
    /// [`AllocError`], where somebody has some of them; then none is taken.
    pub fn alloc_all(&self) -> Result<Vec<Page>, AllocError> {
        let pool = self.of.pages.lock();
        let (mut pages, mut left) = (Vec::new(), self.of.limit);
        while left > 0 {
            let page = pool.alloc_run(left)?;
            left -= page.pages();
            pages.push(page);
        }
        pages.sort_unstable_by_key(Page::index);
        Ok(pages)
    }

    /// Where `part` lies, in bytes from the beginning; None for another memory's.
    pub fn place(&self, part: &Part) -> Option<u64> {
        self.place_of(part.page(), part.offset())
    }

    /// Where byte `offset` of `page` lies; None for another memory's.
    pub fn place_of(&self, page: &Page, offset: usize) -> Option<u64> {
        let here = page.pool_id() == self.id();
        here.then(|| page.place() + offset as u64)
    }

    /// Copies `from`, one slice after the other, to place `at`.
    ///
    /// # Errors
    ///
    /// As [`Device::write_at`].
    pub fn write_at(&self, at: u64, from: &[IoSlice<'_>]) -> Result<(), CopyError> {
        self.of.device.write_at(at, from)
    }

    /// As [`Device::submit`].
    ///
    /// # Errors
    ///
    /// As [`Device::submit`].
    pub fn submit(&self, at: u64, from: Vec<Part>) -> Result<(), CopyError> {
        self.of.device.submit(at, from)
    }

    /// As [`Device::settle`].
    ///
    /// # Errors
    ///
    /// As [`Device::settle`].
    pub fn settle(&self) -> Result<(), CopyError> {
        self.of.device.settle()
    }

    /// As [`Device::file`].
    pub fn file(&self) -> Option<Arc<OwnedFd>> {
        self.of.device.file()
    }

    /// As [`Device::copies`].
    ///
    /// # Errors
    ///
    /// As [`Device::copies`].
    pub fn copies(&self) -> Result<(), CopyError> {
        self.of.device.copies()
    }

    /// As [`Device::dma_buf`].
    ///
    /// ```
    /// use onecopy_pool::{DeviceId, DeviceMemory};
    ///
    /// let memory = DeviceMemory::opaque(64, DeviceId(0))?;
    /// match memory.dma_buf() {
    ///     // The same bytes, for whoever gets the descriptor.
    ///     Ok(fd) => assert_eq!(DeviceMemory::of_dma_buf(fd, DeviceId(1))?.len(), memory.len()),
    ///     Err(why) => println!("{why}"), // such as: there is no /dev/udmabuf; load the module udmabuf, ...
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Device::dma_buf`]. Of [`DeviceMemory::opaque`]: ENOENT without /dev/udmabuf, EACCES without the right to open it, EINVAL for more than
    /// its module's limit (64 MiB, if it is not raised).
    pub fn dma_buf(&self) -> Result<OwnedFd, ProviderError> {
        self.of.device.dma_buf()
    }

    /// Copies what lies at place `at` to `into`.
    ///
    /// # Errors
    ///
    /// As [`Device::read_at`].
    pub fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), CopyError> {
        self.of.device.read_at(at, into)
    }

    /// The pool of its pages, by number ([`Page::pool_id`]).
    pub fn id(&self) -> u64 {
        self.of.monitor.pool_id()
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "no pool is without pages")]
    pub fn len(&self) -> u64 {
        u64::from(self.of.limit) * u64::from(self.of.page_len)
    }

    /// Bytes of a page.
    pub fn page_len(&self) -> u32 {
        self.of.page_len
    }

    /// Bytes of pages that nobody has. The page that small pieces are being cut from is somebody's.
    pub fn free(&self) -> u64 {
        let Stats { in_flight, in_cache, in_ring, .. } = self.of.monitor.stats();
        let used = in_flight.saturating_sub(in_cache + in_ring);
        u64::from(self.of.limit).saturating_sub(used) * u64::from(self.of.page_len)
    }

    /// What the device has copied, by [`DeviceMemory::write_at`], [`DeviceMemory::submit`], [`DeviceMemory::read_at`] and [`Page::copy_out`].
    pub fn copied(&self) -> Copied {
        self.of.device.copied()
    }

    /// What its pool has done.
    pub fn stats(&self) -> Stats {
        self.of.monitor.stats()
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMemory({} of {} bytes free)", self.free(), self.len())
    }
}

impl Page {
    /// Copies what lies from byte `offset` on to `into`, by the page's device: for who has a page of a device's memory, and has to bring
    /// its bytes where only the host's memory goes. It may go on to the pages behind.
    ///
    /// # Errors
    ///
    /// [`CopyError::Foreign`] for a page that is no device's; as [`Device::read_at`].
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) -> Result<(), CopyError> {
        let foreign = CopyError::Foreign { pool_id: self.pool_id() };
        let device = self.provider().as_device().ok_or(foreign)?;
        device.read_at(self.place() + offset as u64, into)
    }

    /// Waits until what was submitted to its device before is there: for who hands the page's place to others that look at the device's memory
    /// themselves. Nothing for a page of the host's.
    ///
    /// # Errors
    ///
    /// As [`Device::settle`].
    pub fn settle(&self) -> Result<(), CopyError> {
        self.provider().as_device().map_or(Ok(()), Device::settle)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn all_pages_are_taken_in_order_or_none_and_bytes_come_out_by_the_page() {
        let memory = DeviceMemory::opaque(3, DeviceId(1)).unwrap();
        memory.write_at(4090, &[IoSlice::new(b"hello device")]).unwrap();
        let one = memory.alloc(10).unwrap();
        assert!(memory.alloc_all().is_err());
        drop(one);
        let memory = DeviceMemory::opaque(3, DeviceId(1)).unwrap();
        memory.write_at(4090, &[IoSlice::new(b"hello device")]).unwrap();
        let pages = memory.alloc_all().unwrap();
        assert_eq!(pages.iter().map(|page| (page.place(), page.len())).collect::<Vec<_>>(), [(0, 12288)]);
        assert_eq!(memory.free(), 0);
        let mut bytes = [0; 12];
        pages[0].copy_out(4090, &mut bytes).unwrap();
        assert_eq!(&bytes, b"hello device");
        assert!(matches!(pages[0].copy_out(12_282, &mut bytes), Err(CopyError::Outside { .. })));
        assert_eq!(memory.copied(), Copied { into: 12, out: 12 });
        let host = PagePool::new(PoolConfig::new().limit(1), crate::provider::Heap::new()).unwrap();
        assert!(matches!(host.alloc().unwrap().copy_out(0, &mut bytes), Err(CopyError::Foreign { .. })));
        drop(pages);
        assert_eq!(memory.free(), memory.len());
    }

    #[test]
    fn parts_that_are_submitted_are_copied_and_those_without_bytes_refused() {
        let memory = DeviceMemory::opaque(2, DeviceId(1)).unwrap();
        let host = PagePool::new(PoolConfig::new().limit(1), crate::provider::Heap::new()).unwrap();
        let mut page = host.alloc().unwrap();
        page.bytes_mut().unwrap()[..5].copy_from_slice(b"hello");
        let part = Part::new(page, 0, 5).unwrap();
        memory.submit(10, vec![part.part(3, 2), part.clone()]).unwrap();
        memory.settle().unwrap();
        let mut bytes = [0; 7];
        memory.read_at(10, &mut bytes).unwrap();
        assert_eq!(&bytes, b"lohello");
        let device = memory.alloc(8).unwrap();
        let foreign = memory.submit(0, vec![part.clone(), device[0].clone()]);
        assert_eq!(foreign, Err(CopyError::Foreign { pool_id: memory.id() }));
        assert!(matches!(memory.submit(8190, vec![part.clone()]), Err(CopyError::Outside { .. })));
        assert_eq!(memory.copied().into, 7, "nothing of those");
        device[0].page().settle().unwrap();
        part.page().settle().unwrap();
    }

    #[test]
    fn neighbours_come_out_as_one_however_they_came_home() {
        let memory = DeviceMemory::opaque(64, DeviceId(1)).unwrap();
        let places = |parts: &[Part]| {
            parts.iter().map(|part| (memory.place(part).unwrap(), part.len())).collect::<Vec<_>>()
        };
        for turn in 0..3 {
            let mut ones: Vec<Part> = (0..64).flat_map(|_| memory.alloc(4096).unwrap()).collect();
            let in_order: Vec<_> = (0..64).map(|page| (page * 4096, 4096)).collect();
            assert_eq!(places(&ones), in_order, "turn {turn}");
            if turn == 1 {
                ones.reverse();
            }
            ones.into_iter().for_each(drop);
            // The longest run, and the rest.
            assert_eq!(places(&memory.alloc(64 * 4096).unwrap()), [(0, 48 * 4096), (48 * 4096, 16 * 4096)]);
            assert_eq!(memory.free(), memory.len());
        }
        // A run of 16 as long as there is one; then what there is.
        let mut runs: Vec<_> = (0..4).map(|_| memory.alloc(16 * 4096).unwrap()).collect();
        assert_eq!(places(&runs.concat()), [0, 16, 32, 48].map(|page| (page * 4096, 16 * 4096)));
        assert!(memory.alloc(4096).is_err());
        runs.remove(1);
        let one = memory.alloc(4096).unwrap();
        assert_eq!(places(&one), [(16 * 4096, 4096)]);
        assert_eq!(
            places(&memory.alloc(15 * 4096).unwrap()),
            [(17 * 4096, 15 * 4096)],
            "{:?}",
            memory.stats()
        );
        assert!(memory.alloc(16 * 4096).is_err());
        assert_eq!(memory.free(), 15 * 4096, "nothing is taken then");
    }

    #[test]
    fn what_is_trimmed_is_free_and_what_is_kept_stays() {
        let memory = DeviceMemory::opaque(96, DeviceId(1)).unwrap();
        for (len, keep) in [(65536, 1), (65536, 4096), (65536, 4097), (65536, 65536), (300_000, 270_001)] {
            let mut parts = memory.alloc(len).unwrap();
            memory.trim(&mut parts, keep);
            assert_eq!(parts.iter().map(Part::len).sum::<usize>(), keep);
            let pages = parts.iter().map(|part| part.page().len()).sum::<usize>();
            assert!(pages >= keep && pages < keep + 4096 + 4096, "{pages} for {keep}");
            assert!(memory.free() >= memory.len() - pages as u64 - 4096);
            memory.trim(&mut parts, 0);
            assert!(parts.is_empty());
        }
        // Of what somebody else has nothing comes home.
        let mut parts = memory.alloc(65536).unwrap();
        let (other, free) = (parts[0].clone(), memory.free());
        memory.trim(&mut parts, 1);
        assert_eq!((parts[0].len(), other.len(), memory.free()), (1, 65536, free));
        drop((parts, other));
        assert!(memory.free() + 4096 >= memory.len(), "all but what small pieces are cut from");
    }

    #[test]
    fn runs_come_home_from_any_thread_and_after_the_memory_is_gone() {
        let memory = DeviceMemory::opaque(192, DeviceId(1)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_usize {
                let memory = &memory;
                scope.spawn(move || {
                    let mut held = std::collections::VecDeque::new();
                    for turn in 0..2000_usize {
                        let len = 4096 * (1 + (turn * 7 + thread) % 16);
                        if let Ok(parts) = memory.alloc(len) {
                            assert_eq!(parts.iter().map(Part::len).sum::<usize>(), len);
                            held.push_back(parts);
                        }
                        if held.len() > 2 {
                            held.pop_front();
                        }
                    }
                });
            }
        });
        assert_eq!(memory.free(), memory.len());
        let held = memory.alloc_all().unwrap();
        drop(memory);
        // The last one frees the pool.
        std::thread::scope(|scope| held.into_iter().for_each(|page| drop(scope.spawn(move || drop(page)))));
    }

    #[test]
    fn bytes_lie_where_the_place_says_and_pages_come_home() {
        let memory = DeviceMemory::opaque(4, DeviceId(1)).unwrap();
        assert_eq!((memory.len(), memory.free(), memory.page_len()), (16384, 16384, 4096));
        let parts = memory.alloc(4096 + 100).unwrap();
        assert_eq!(parts.iter().map(Part::len).collect::<Vec<_>>(), [4096, 100]);
        assert_eq!(memory.free(), 8192);
        let at = memory.place(&parts[1]).unwrap();
        // More slices than one call takes, of odd lengths, and an empty one.
        let bytes: Vec<u8> = (0..4000_u32).map(|n| (n * 7) as u8).collect();
        let mut slices: Vec<_> = bytes.chunks(3).map(IoSlice::new).collect();
        slices.insert(1, IoSlice::new(&[]));
        let first = memory.place(&parts[0]).unwrap();
        memory.write_at(first, &slices).unwrap();
        memory.write_at(at, &[IoSlice::new(&[9; 100])]).unwrap();
        let mut back = vec![0; 4000];
        memory.read_at(first, &mut back).unwrap();
        assert!(back == bytes);
        // Behind the end, and nowhere at all.
        for (place, len) in [(16384, 1), (16000, 400), (u64::MAX, 2)] {
            assert!(matches!(
                memory.write_at(place, &[IoSlice::new(&vec![1; len])]),
                Err(CopyError::Outside { .. })
            ));
            assert!(matches!(memory.read_at(place, &mut vec![1; len]), Err(CopyError::Outside { .. })));
        }
        // What there is not enough of is not taken in part.
        assert!(memory.alloc(3 * 4096).is_err());
        assert_eq!(memory.free(), 8192);
        let other = DeviceMemory::opaque(1, DeviceId(1)).unwrap();
        assert_eq!(other.place(&parts[0]), None);
        drop(parts);
        assert_eq!(memory.free() + 4096, memory.len(), "all but the page that is being cut");
        // The memory outlives its handle as long as a page of it does.
        let parts = memory.alloc(4096).unwrap();
        drop(memory);
        assert_eq!(parts[0].len(), 4096);
    }
}
