//! Memory of a driver's: a dma-buf that it gave.

use super::free::Free;
use super::{About, Batch, CopyError, MemoryProvider, Need, ProviderError};
use crate::device::{Copied, Device};
use crate::memory::Area;
use crate::netmem::DeviceId;
use onecopy_copy::{Hint, Reader, copy_out, copy_raw};
use onecopy_sync::atomic::AtomicU64;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::dmabuf;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;

/// A device whose memory is a dma-buf that a driver gave: a GPU's, a heap's, that of /dev/udmabuf. Bytes get in and out by the CPU, by way of a mapping, while
/// the driver knows of it (DMA_BUF_IOCTL_SYNC). A driver may map its memory for nobody: such memory is taken, too, for devices to use
/// ([`Device::dma_buf`]); each copy then says that there is no way ([`CopyError::Unmapped`]).
///
/// That the mapping stays good is the driver's to keep: take none from who is not trusted ([`onecopy_sys::dmabuf::DmaBuf`]).
pub struct DmaBuf {
    device: DeviceId,
    memory: dmabuf::DmaBuf,
    free: Free,
    /// Bytes that were copied in, and out.
    copied: [AtomicU64; 2],
}

impl DmaBuf {
    /// Takes `fd`, which has to be a dma-buf, for a pool, as device `device`.
    ///
    /// # Errors
    ///
    /// ENOTTY for what is no dma-buf, EINVAL for one of less than a page; what the kernel says when it is asked how long it is.
    pub fn take(fd: OwnedFd, device: DeviceId) -> Result<Arc<DmaBuf>, ProviderError> {
        let memory =
            dmabuf::DmaBuf::take(fd).map_err(|why| ProviderError::new(why.errno(), why.to_string()))?;
        if memory.len() < PAGE {
            let words =
                format!("the dma-buf has {} bytes, less than a page; take a larger one", memory.len());
            return Err(ProviderError::new(Errno::INVAL, words));
        }
        Ok(Arc::new(DmaBuf { device, memory, free: Free::default(), copied: Default::default() }))
    }

    /// Whole pages of 4 KiB in it.
    pub fn pages(&self) -> u32 {
        u32::try_from(self.memory.len() / PAGE).unwrap_or(u32::MAX)
    }

    /// Whether `len` bytes from `at` on are inside of it.
    fn inside(&self, at: u64, len: usize) -> Result<usize, CopyError> {
        let whole = self.memory.len();
        match usize::try_from(at) {
            Ok(at) if at <= whole && len <= whole - at => Ok(at),
            _ => Err(CopyError::Outside { offset: at as usize, len, page_len: whole }),
        }
    }
}

/// Bytes of a page.
const PAGE: usize = 4096;

/// What is written is a device's next, not this CPU's.
const INTO: Hint = Hint { reader: Reader::NoCpu, ..Hint::AUTO };

impl MemoryProvider for DmaBuf {
    fn init(&self, need: &Need) -> Result<Area, ProviderError> {
        let (len, has) = (need.bytes()?, self.memory.len());
        if len > has {
            let words = format!("the dma-buf has {has} bytes, not {len}; lower the limit");
            return Err(ProviderError::new(Errno::INVAL, words));
        }
        self.free.start(need)?;
        Ok(Area::device(self.device, len))
    }

    fn alloc_netmems(&self, batch: &mut Batch<'_>) -> Result<(), ProviderError> {
        self.free.give(batch)
    }

    fn release_netmem(&self, index: u32) {
        self.free.take_back(index);
    }

    fn destroy(&self) {
        self.free.stop();
    }

    fn about(&self) -> About {
        let how = match self.memory.is_mapped() {
            Ok(()) => "a dma-buf of a driver's, mapped for copies".to_owned(),
            Err(errno) => format!("a dma-buf of a driver's, which maps it for nobody ({errno})"),
        };
        About {
            name: "dma-buf",
            how,
            readable: false,
            pinned: false,
            shareable: false,
            device: Some(self.device),
        }
    }

    fn as_device(&self) -> Option<&dyn Device> {
        Some(self)
    }
}

/// By the thread that calls.
impl Device for DmaBuf {
    fn write_at(&self, at: u64, from: &[IoSlice<'_>]) -> Result<(), CopyError> {
        self.copies()?;
        let len = from.iter().map(|slice| slice.len()).sum();
        let at = self.inside(at, len)?;
        let copied = self.memory.write(at, len, |into| {
            let mut done = 0;
            for slice in from {
                let into = into.slice(done, slice.len());
                // SAFETY: the view is mapped for as long as it lives, writable (`DmaBuf::write`), and has as many bytes as the slice, since it has as many
                // as all of them. No slice of this process lies there. A device, or who else has the dma-buf, may write the bytes meanwhile: they
                // are plain ones, of which any value is valid.
                unsafe { copy_raw(into.as_ptr(), slice.as_ptr(), slice.len(), INTO) };
                done += slice.len();
            }
        });
        copied.map_err(CopyError::Io)?;
        // Relaxed: it counts, and nothing hangs on it.
        self.copied[0].fetch_add(len as u64, Relaxed);
        Ok(())
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), CopyError> {
        self.copies()?;
        let (at, len) = (self.inside(at, into.len())?, into.len());
        self.memory.read(at, len, |from| copy_out(into, from, Hint::AUTO)).map_err(CopyError::Io)?;
        self.copied[1].fetch_add(len as u64, Relaxed);
        Ok(())
    }

    fn copies(&self) -> Result<(), CopyError> {
        self.memory.is_mapped().map_err(CopyError::Unmapped)
    }

    fn dma_buf(&self) -> Result<OwnedFd, ProviderError> {
        self.memory.as_fd().try_clone_to_owned().map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::MFILE);
            ProviderError::new(
                errno,
                "there is no descriptor for the dma-buf; close some, or raise the limit",
            )
        })
    }

    fn copied(&self) -> Copied {
        let [into, out] = &self.copied;
        Copied { into: into.load(Relaxed), out: out.load(Relaxed) }
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaBuf({}, {} bytes)", self.device, self.memory.len())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{DeviceMemory, OpenError, PagePool, PoolConfig};

    /// Of a machine's own: what /dev/udmabuf makes of a memfd. None where it has none, which it says.
    fn made(pages: u32) -> Option<(DeviceMemory, OwnedFd)> {
        let memory = DeviceMemory::opaque(pages, DeviceId(1)).unwrap();
        match memory.dma_buf() {
            Ok(fd) => Some((memory, fd)),
            Err(why) => {
                // It is refused for this one reason, or it is a fault.
                let has = std::path::Path::new(dmabuf::UDMABUF).exists();
                let wanted = if has { Errno::ACCESS } else { Errno::NOENT };
                assert!(why.errno() == wanted && why.to_string().contains(dmabuf::UDMABUF), "{why}");
                println!("lacking: /dev/udmabuf ({why})");
                None
            }
        }
    }

    #[test]
    fn what_is_no_dma_buf_is_refused() {
        let memfd = onecopy_sys::memfd::create("onecopy-test", 8192).unwrap();
        let refused = DeviceMemory::of_dma_buf(memfd, DeviceId(1)).unwrap_err();
        assert_eq!(refused.errno(), Errno::NOTTY);
        assert!(refused.to_string().contains("is no dma-buf"), "{refused}");
    }

    #[test]
    fn memory_that_is_no_file_has_no_dma_buf() {
        struct Other;
        impl MemoryProvider for Other {
            fn init(&self, need: &Need) -> Result<Area, ProviderError> {
                Ok(Area::device(DeviceId(3), need.bytes()?))
            }
            fn alloc_netmems(&self, _: &mut Batch<'_>) -> Result<(), ProviderError> {
                Ok(())
            }
            fn release_netmem(&self, _: u32) {}
            fn about(&self) -> About {
                let (name, how, device) = ("other", String::new(), Some(DeviceId(3)));
                About { name, how, readable: false, pinned: false, shareable: false, device }
            }
        }
        impl Device for Other {
            fn write_at(&self, _: u64, _: &[IoSlice<'_>]) -> Result<(), CopyError> {
                Err(CopyError::Io(Errno::IO))
            }
            fn read_at(&self, _: u64, _: &mut [u8]) -> Result<(), CopyError> {
                Err(CopyError::Io(Errno::IO))
            }
            fn copied(&self) -> Copied {
                Copied::default()
            }
        }
        let memory = DeviceMemory::new(PoolConfig::new().limit(1), Arc::new(Other)).unwrap();
        let why = memory.dma_buf().unwrap_err();
        assert!(why.errno() == Errno::OPNOTSUPP && why.to_string().contains("of_dma_buf"), "{why}");
        assert_eq!(memory.copies(), Ok(()));
    }

    #[test]
    fn a_dma_buf_that_is_taken_is_the_memory_that_gave_it() {
        let Some((memory, fd)) = made(16) else { return };
        let taken = DeviceMemory::of_dma_buf(fd, DeviceId(2)).unwrap();
        assert_eq!((taken.len(), taken.page_len(), taken.copies()), (memory.len(), 4096, Ok(())));
        let bytes: Vec<u8> = (0..10_000_u32).map(|n| (n * 7) as u8).collect();
        let mut slices: Vec<_> = bytes.chunks(3).map(IoSlice::new).collect();
        slices.insert(1, IoSlice::new(&[]));
        taken.write_at(4000, &slices).unwrap();
        let mut back = vec![0; bytes.len()];
        memory.read_at(4000, &mut back).unwrap();
        assert!(back == bytes);
        memory.write_at(60_000, &[IoSlice::new(b"hello dma-buf")]).unwrap();
        let mut back = [0; 13];
        taken.read_at(60_000, &mut back).unwrap();
        assert_eq!(&back, b"hello dma-buf");
        assert_eq!(taken.copied(), Copied { into: 10_000, out: 13 });
        for (place, len) in [(65536, 1), (65000, 600), (u64::MAX, 2)] {
            let written = taken.write_at(place, &[IoSlice::new(&vec![1; len])]);
            assert!(matches!(written, Err(CopyError::Outside { .. })));
            assert!(matches!(taken.read_at(place, &mut vec![1; len]), Err(CopyError::Outside { .. })));
        }
        assert_eq!(taken.copied(), Copied { into: 10_000, out: 13 });
        // Pages, and the memory's own dma-buf again.
        let parts = taken.alloc(4096 + 100).unwrap();
        assert_eq!(parts.iter().map(crate::Part::len).collect::<Vec<_>>(), [4096, 100]);
        drop(parts);
        let again = DeviceMemory::of_dma_buf(taken.dma_buf().unwrap(), DeviceId(2)).unwrap();
        drop((memory, taken));
        again.read_at(60_000, &mut back).unwrap();
        assert_eq!(&back, b"hello dma-buf");
    }

    #[test]
    fn a_pool_has_no_more_pages_than_the_dma_buf() {
        let Some((_memory, fd)) = made(4) else { return };
        let device = DmaBuf::take(fd, DeviceId(2)).unwrap();
        assert_eq!(device.pages(), 4);
        let refused = PagePool::new(PoolConfig::new().limit(5), device.clone()).unwrap_err();
        assert!(matches!(refused, OpenError::Provider(why) if why.errno() == Errno::INVAL));
        let pool = PagePool::new(PoolConfig::new().limit(4), device.clone()).unwrap();
        assert!(
            matches!(PagePool::new(PoolConfig::new().limit(4), device), Err(OpenError::Provider(why)) if why.errno() == Errno::BUSY)
        );
        assert_eq!(pool.alloc().unwrap().device(), Some(DeviceId(2)));
    }
}
