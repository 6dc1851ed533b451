//! The provider: a piece of a device's memory, behind a queue of copies.

use crate::calibrate;
use crate::context::Context;
use crate::driver::Driver;
use crate::error::Error;
use crate::queue::Queue;
use crate::report::Report;
use crate::way::{Costs, Way};
use onecopy_pool::provider::{CopyError, Free};
use onecopy_pool::{About, Area, Batch, Copied, Device, DeviceId, MemoryProvider, Need, Part, ProviderError};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::AtomicU64;
use onecopy_sync::atomic::Ordering::Relaxed;
use rustix::io::Errno;
use std::ffi::c_void;
use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;

/// Which device, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    ordinal: u32,
    way: Option<Way>,
    driver: Option<Arc<Driver>>,
}

impl Settings {
    /// Device `ordinal`, as the driver numbers them (CUDA_VISIBLE_DEVICES), with the ways that are the fastest there.
    pub fn new(ordinal: u32) -> Settings {
        Settings { ordinal, way: None, driver: None }
    }

    /// Takes this way wherever it can be taken, and measures nothing.
    #[must_use]
    pub fn way(self, way: Way) -> Settings {
        Settings { way: Some(way), ..self }
    }

    /// With this driver, and not one that is loaded now.
    #[must_use]
    pub fn driver(self, driver: Arc<Driver>) -> Settings {
        Settings { driver: Some(driver), ..self }
    }
}

/// A piece of a CUDA device's memory, for one pool: [`DeviceMemory::new`](onecopy_pool::DeviceMemory::new) takes it. See [the crate](crate).
pub struct Cuda {
    device: DeviceId,
    context: Arc<Context>,
    costs: Costs,
    way: Option<Way>,
    free: Free,
    queue: Mutex<Option<Queue>>,
    /// Of the queue that was.
    last: Mutex<Report>,
    /// Bytes that were copied in, and out.
    copied: [AtomicU64; 2],
}

fn io(error: &Error) -> CopyError {
    CopyError::Io(error.errno())
}

impl Cuda {
    /// Opens the device: its primary context, which CUDA's runtime in the same process (PyTorch) uses, too. Measures its ways, if nobody in the
    /// process has yet.
    ///
    /// # Errors
    ///
    /// [`Error`].
    #[allow(clippy::new_ret_no_self, reason = "pools take it shared")]
    pub fn open(settings: Settings) -> Result<Arc<Cuda>, Error> {
        let Settings { ordinal, way, driver } = settings;
        let driver = driver.map_or_else(Driver::open, Ok)?;
        let context = Context::open(driver, ordinal)?;
        let costs = match way {
            Some(_) => Costs::default(),
            None => calibrate::costs(&context, ordinal)?,
        };
        Ok(Arc::new(Cuda {
            device: DeviceId(ordinal),
            context,
            costs,
            way,
            free: Free::default(),
            queue: Mutex::new(None),
            last: Mutex::new(Report::default()),
            copied: Default::default(),
        }))
    }

    /// Where the memory is on the device: byte `offset` of a fragment is at this plus `offset`. None before a pool has it, and after.
    pub fn address(&self) -> Option<u64> {
        self.queue.lock().as_ref().map(Queue::address)
    }

    /// What was really done.
    pub fn report(&self) -> Report {
        self.queue.lock().as_ref().map_or_else(|| self.last.lock().clone(), Queue::report)
    }

    /// Copies pieces of the memory, (offset, length) each, to a device address, one behind the other: fragments into a tensor of the program's. It is done when this
    /// returns.
    ///
    /// # Errors
    ///
    /// As [`Device::read_at`].
    ///
    /// # Safety
    ///
    /// `to` is an address on this device of memory that has as many bytes, and nobody uses them meanwhile.
    pub unsafe fn collect(&self, to: u64, pieces: &[(u64, usize)]) -> Result<(), CopyError> {
        self.settle()?;
        self.with(|queue| {
            for (at, len) in pieces {
                inside(queue, *at, *len)?;
            }
            // SAFETY: as the caller promises.
            unsafe { queue.collect(to, pieces) }.map_err(|error| io(&error))
        })
    }

    /// Has work that is put into the program's stream from now on wait, on the device, for all that was submitted.
    ///
    /// # Errors
    ///
    /// As [`Device::settle`].
    ///
    /// # Safety
    ///
    /// `stream` is a CUstream of the device's primary context, or null for its default stream.
    pub unsafe fn order_before(&self, stream: *mut c_void) -> Result<(), CopyError> {
        // SAFETY: as the caller promises.
        self.with(|queue| unsafe { queue.order(stream, true) }.map_err(|error| io(&error)))
    }

    /// Has what is submitted from now on wait, on the device, for the work that is in the program's stream: fragments that it reads may be given back
    /// at once then.
    ///
    /// # Errors
    ///
    /// As [`Device::settle`].
    ///
    /// # Safety
    ///
    /// As [`Cuda::order_before`].
    pub unsafe fn order_after(&self, stream: *mut c_void) -> Result<(), CopyError> {
        // SAFETY: as the caller promises.
        self.with(|queue| unsafe { queue.order(stream, false) }.map_err(|error| io(&error)))
    }

    /// With the lock of the queue, for what does not wait for others' copies: whoever has to wait for those settles first, without it, so that the stack
    /// goes on submitting. (A copy to memory of the host's that is not pinned waits within the driver's call, but then for itself alone.)
    fn with<R>(&self, act: impl FnOnce(&mut Queue) -> Result<R, CopyError>) -> Result<R, CopyError> {
        act(self.queue.lock().as_mut().ok_or(CopyError::Io(Errno::NXIO))?)
    }
}

/// Whether `len` bytes from `at` are in the memory.
fn inside(queue: &Queue, at: u64, len: usize) -> Result<(), CopyError> {
    match at.checked_add(len as u64) {
        Some(end) if end <= queue.len() as u64 => Ok(()),
        _ => Err(CopyError::Outside { offset: at as usize, len, page_len: queue.len() }),
    }
}

impl MemoryProvider for Cuda {
    fn init(&self, need: &Need) -> Result<Area, ProviderError> {
        let len = need.bytes()?;
        self.free.start(need)?;
        let queue = Queue::new(Arc::clone(&self.context), len, self.costs.clone(), self.way);
        let queue = queue.map_err(|error| {
            self.free.stop();
            ProviderError::new(error.errno(), format!("{len} bytes on {}: {error}", self.device))
        })?;
        *self.queue.lock() = Some(queue);
        Ok(Area::device(self.device, len))
    }

    fn alloc_netmems(&self, batch: &mut Batch<'_>) -> Result<(), ProviderError> {
        self.free.give(batch)
    }

    fn release_netmem(&self, index: u32) {
        self.free.take_back(index);
    }

    fn destroy(&self) {
        let queue = self.queue.lock().take();
        if let Some(queue) = queue {
            *self.last.lock() = queue.report();
        }
        self.free.stop();
    }

    fn about(&self) -> About {
        let (major, minor) = self.context.driver().version();
        About {
            name: "cuda",
            how: format!("memory of {}, driver for CUDA {major}.{minor}", self.context.name()),
            readable: false,
            pinned: true,
            shareable: false,
            device: Some(self.device),
        }
    }

    fn as_device(&self) -> Option<&dyn Device> {
        Some(self)
    }
}

impl Device for Cuda {
    fn write_at(&self, at: u64, from: &[IoSlice<'_>]) -> Result<(), CopyError> {
        let len = from.iter().map(|slice| slice.len()).sum();
        self.settle()?;
        self.with(|queue| {
            inside(queue, at, len)?;
            queue.write(at, from).map_err(|error| io(&error))
        })?;
        // Relaxed: it counts, and nothing hangs on it.
        self.copied[0].fetch_add(len as u64, Relaxed);
        Ok(())
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), CopyError> {
        self.settle()?;
        self.with(|queue| {
            inside(queue, at, into.len())?;
            queue.read(at, into).map_err(|error| io(&error))
        })?;
        self.copied[1].fetch_add(into.len() as u64, Relaxed);
        Ok(())
    }

    fn submit(&self, at: u64, from: Vec<Part>) -> Result<(), CopyError> {
        if let Some(part) = from.iter().find(|part| !part.has_bytes()) {
            return Err(CopyError::Foreign { pool_id: part.page().pool_id() });
        }
        let len = from.iter().map(Part::len).sum();
        self.with(|queue| {
            inside(queue, at, len)?;
            queue.submit(at, from).map_err(|error| io(&error))
        })?;
        self.copied[0].fetch_add(len as u64, Relaxed);
        Ok(())
    }

    fn settle(&self) -> Result<(), CopyError> {
        let wait = self.with(|queue| queue.settle().map_err(|error| io(&error)))?;
        let Some((context, event)) = wait else { return Ok(()) };
        // Without the lock: others go on submitting. How it ended is asked again.
        let _ = context.enter().and_then(|current| event.synchronize(&current));
        self.with(|queue| queue.settled(&event).map_err(|error| io(&error)))
    }

    fn copied(&self) -> Copied {
        let [into, out] = &self.copied;
        Copied { into: into.load(Relaxed), out: out.load(Relaxed) }
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cuda({}, {})", self.device, self.context.name())
    }
}
