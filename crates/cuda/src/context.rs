//! A device's context, and what is made in it. Each thing frees itself; each call is made while the context is the thread's current one.

use crate::api::{CopyAttributes, Handle};
use crate::driver::{Driver, done};
use crate::error::Error;
use onecopy_pool::Region;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// CUDA_ERROR_NOT_READY.
const NOT_READY: c_int = 600;

/// CU_STREAM_NON_BLOCKING: not in step with the program's legacy default stream.
const NON_BLOCKING: u32 = 1;

/// CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP; CU_MEMHOSTREGISTER_ has the same.
const MAPPED: u32 = 1 | 2;

/// Bytes of an entry in the kernel's table.
pub(crate) const ENTRY: usize = 24;

/// The primary context of a device: the one that CUDA's runtime, and so PyTorch, uses, too.
pub(crate) struct Context {
    driver: Arc<Driver>,
    device: c_int,
    raw: Handle,
    name: String,
}

// SAFETY: a context may be used from any thread, by several at once; the driver API is thread-safe.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub fn open(driver: Arc<Driver>, ordinal: u32) -> Result<Arc<Context>, Error> {
        let devices = driver.devices();
        if ordinal >= devices {
            return Err(Error::NoDevice { ordinal, devices });
        }
        let (mut device, mut raw, mut name) = (0, ptr::null_mut(), [0_u8; 128]);
        let api = &driver.api;
        // SAFETY: each writes one value through its pointer, or as many bytes as it is told; the ordinal is one that there is.
        unsafe {
            done("cuDeviceGet", (api.device)(&mut device, ordinal as c_int))?;
            done(
                "cuDeviceGetName",
                (api.device_name)(name.as_mut_ptr().cast(), name.len() as c_int, device),
            )?;
            done("cuDevicePrimaryCtxRetain", (api.retain)(&mut raw, device))?;
        }
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        Ok(Arc::new(Context { driver, device, raw, name }))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Makes it the thread's current one, until the value is dropped; then what was current before is so again.
    pub fn enter(self: &Arc<Context>) -> Result<Current<'_>, Error> {
        // SAFETY: the context is retained as long as this value lives.
        done("cuCtxPushCurrent", unsafe { (self.driver.api.push)(self.raw) })?;
        Ok(Current { of: self, thread: PhantomData })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, and all that was made in it is gone: each thing has a reference to this.
        unsafe { (self.driver.api.release)(self.device) };
    }
}

/// That the context is this thread's current one.
pub(crate) struct Current<'a> {
    of: &'a Arc<Context>,
    /// It cannot leave the thread.
    thread: PhantomData<*const ()>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: it was pushed on this thread, and what was pushed behind it is popped.
        unsafe { (self.of.driver.api.pop)(&mut popped) };
        debug_assert_eq!(popped, self.of.raw);
    }
}

/// What was made in a context, by its handle, and what frees it.
struct Made {
    of: Arc<Context>,
    raw: Handle,
    free: fn(&Context) -> unsafe extern "C" fn(Handle) -> c_int,
}

// SAFETY: streams, events and modules may be used from any thread; the driver API is thread-safe.
unsafe impl Send for Made {}
// SAFETY: as above.
unsafe impl Sync for Made {}

impl Drop for Made {
    fn drop(&mut self) {
        let Ok(_current) = self.of.enter() else { return };
        // SAFETY: made in this context, and freed once. A stream or an event that is still to complete is freed by the driver then.
        unsafe { (self.free)(&self.of)(self.raw) };
    }
}

/// A stream: what is put in is done in that order.
pub(crate) struct Stream(Made);

/// A mark in a stream, that tells when all before it is done.
pub(crate) struct Event(Made);

/// The kernel of [`crate::GATHER`].
pub(crate) struct Kernel {
    function: Handle,
    _module: Made,
}

// SAFETY: as `Made`, in which the function lies.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// Memory of the device.
pub(crate) struct Buffer {
    of: Arc<Context>,
    at: u64,
    len: usize,
}

/// Pinned memory of the host's, which the device can read.
pub(crate) struct Pinned {
    of: Arc<Context>,
    at: NonNull<u8>,
    len: usize,
    /// Where the device has it.
    device: u64,
}

// SAFETY: a range of addresses that the value owns.
unsafe impl Send for Pinned {}
// SAFETY: as above; the bytes are written through `&mut` only.
unsafe impl Sync for Pinned {}

/// A pool's pages, which the device can read where they lie.
pub(crate) struct Registered {
    of: Arc<Context>,
    region: Region,
    device: u64,
}

impl Current<'_> {
    fn made(&self, raw: Handle, free: fn(&Context) -> unsafe extern "C" fn(Handle) -> c_int) -> Made {
        Made { of: Arc::clone(self.of), raw, free }
    }

    pub fn stream(&self) -> Result<Stream, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: it writes one handle.
        done("cuStreamCreate", unsafe { (self.of.driver.api.stream_create)(&mut raw, NON_BLOCKING) })?;
        Ok(Stream(self.made(raw, |of| of.driver.api.stream_destroy)))
    }

    pub fn event(&self) -> Result<Event, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: it writes one handle. With timing (0): calibration asks for it.
        done("cuEventCreate", unsafe { (self.of.driver.api.event_create)(&mut raw, 0) })?;
        Ok(Event(self.made(raw, |of| of.driver.api.event_destroy)))
    }

    pub fn kernel(&self) -> Result<Kernel, Error> {
        let (api, mut raw, mut function) = (&self.of.driver.api, ptr::null_mut(), ptr::null_mut());
        let text = concat!(include_str!("gather.ptx"), "\0");
        // SAFETY: the image is NUL-terminated text, and it writes one handle.
        done("cuModuleLoadData", unsafe { (api.module_load)(&mut raw, text.as_ptr().cast()) })?;
        let module = self.made(raw, |of| of.driver.api.module_unload);
        let name = c"onecopy_gather";
        // SAFETY: the name is NUL-terminated, and it writes one handle.
        done("cuModuleGetFunction", unsafe { (api.module_function)(&mut function, raw, name.as_ptr()) })?;
        Ok(Kernel { function, _module: module })
    }

    pub fn buffer(&self, len: usize) -> Result<Buffer, Error> {
        let mut at = 0;
        // SAFETY: it writes one address.
        done("cuMemAlloc", unsafe { (self.of.driver.api.alloc)(&mut at, len) })?;
        Ok(Buffer { of: Arc::clone(self.of), at, len })
    }

    /// Zeroed.
    pub fn pinned(&self, len: usize) -> Result<Pinned, Error> {
        let (api, mut at) = (&self.of.driver.api, ptr::null_mut());
        // SAFETY: it writes one address.
        done("cuMemHostAlloc", unsafe { (api.host_alloc)(&mut at, len, MAPPED) })?;
        let base = NonNull::new(at.cast::<u8>()).ok_or(Error::failed("cuMemHostAlloc", 2))?;
        // SAFETY: that many bytes are there, and nobody else knows of them.
        unsafe { ptr::write_bytes(base.as_ptr(), 0, len) };
        let mut pinned = Pinned { of: Arc::clone(self.of), at: base, len, device: 0 };
        // SAFETY: it writes one address; the flags have to be 0.
        done("cuMemHostGetDevicePointer", unsafe { (api.host_pointer)(&mut pinned.device, at, 0) })?;
        Ok(pinned)
    }

    /// Pins a pool's memory, and lets the device read it.
    pub fn register(&self, region: Region) -> Result<Registered, Error> {
        let (api, at) = (&self.of.driver.api, region.base().as_ptr().cast::<c_void>());
        // SAFETY: that many bytes are mapped, and stay so as long as the region lives, which the value keeps until it is unregistered.
        done("cuMemHostRegister", unsafe { (api.host_register)(at, region.len(), MAPPED) })?;
        let mut registered = Registered { of: Arc::clone(self.of), region, device: 0 };
        // SAFETY: it writes one address; the flags have to be 0.
        done("cuMemHostGetDevicePointer", unsafe { (api.host_pointer)(&mut registered.device, at, 0) })?;
        Ok(registered)
    }
}

impl Stream {
    /// Has `len` bytes copied from the host's memory to the device's.
    ///
    /// # Safety
    ///
    /// `from` is valid for reads of `len` bytes, and nobody writes them, until the stream has come past it or has failed for good. `to..to + len` is
    /// inside of memory of the device.
    pub unsafe fn copy_in(
        &self,
        current: &Current<'_>,
        to: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), Error> {
        // SAFETY: as the caller promises.
        done("cuMemcpyHtoDAsync", unsafe {
            (current.of.driver.api.copy_in)(to, from.cast(), len, self.0.raw)
        })
    }

    /// Whether there is [`Stream::copy_in_batch`].
    pub fn has_batches(&self) -> bool {
        self.0.of.driver.api.copy_batch.is_some()
    }

    /// Has pieces of the host's memory copied to the device's, all asked for at once and done in any order: (to, from, length) each.
    ///
    /// # Safety
    ///
    /// As [`Stream::copy_in`], of each; no two have a byte of the device's in common.
    pub unsafe fn copy_in_batch(
        &self,
        current: &Current<'_>,
        pieces: impl Iterator<Item = (u64, *const u8, usize)>,
    ) -> Result<(), Error> {
        const CALL: &str = "cuMemcpyBatchAsync";
        let batch = current.of.driver.api.copy_batch.ok_or(Error::failed(CALL, 801))?;
        let (mut to, mut from, mut lens) = (Vec::new(), Vec::new(), Vec::new());
        for (at, bytes, len) in pieces {
            to.push(at);
            // A registered page has its address for the device's copies, too (unified addressing).
            from.push(bytes.expose_provenance() as u64);
            lens.push(len);
        }
        let mut attributes =
            CopyAttributes { source_order: 1, source: [0; 2], destination: [0; 2], flags: 0 };
        let (mut first, mut wrong) = (0, usize::MAX);
        // SAFETY: three arrays of as many entries, one set of attributes, which is for the first copy and all behind it; the rest is as the caller promises.
        done(CALL, unsafe {
            batch(
                to.as_mut_ptr(),
                from.as_mut_ptr(),
                lens.as_mut_ptr(),
                to.len(),
                &mut attributes,
                &mut first,
                1,
                &mut wrong,
                self.0.raw,
            )
        })
    }

    /// Has `len` bytes copied from the device's memory to the host's.
    ///
    /// # Safety
    ///
    /// As [`Stream::copy_in`], the other way round: `to` is valid for writes, and nobody reads or writes there meanwhile.
    pub unsafe fn copy_out(
        &self,
        current: &Current<'_>,
        to: *mut u8,
        from: u64,
        len: usize,
    ) -> Result<(), Error> {
        // SAFETY: as the caller promises.
        done("cuMemcpyDtoHAsync", unsafe {
            (current.of.driver.api.copy_out)(to.cast(), from, len, self.0.raw)
        })
    }

    /// Has `len` bytes copied within the device.
    ///
    /// # Safety
    ///
    /// Both ranges are inside of memory of the device.
    pub unsafe fn copy_within(
        &self,
        current: &Current<'_>,
        to: u64,
        from: u64,
        len: usize,
    ) -> Result<(), Error> {
        // SAFETY: as the caller promises.
        done("cuMemcpyDtoDAsync", unsafe { (current.of.driver.api.copy_within)(to, from, len, self.0.raw) })
    }

    /// Has the kernel copy `count` pieces, as the table says.
    ///
    /// # Safety
    ///
    /// `table` is a device address of as many entries, which stay as they are, and each of which is valid as for [`Stream::copy_in`], until the stream has
    /// come past it or has failed for good.
    pub unsafe fn gather(
        &self,
        current: &Current<'_>,
        kernel: &Kernel,
        mut table: u64,
        mut count: u32,
        blocks: u32,
    ) -> Result<(), Error> {
        const THREADS: u32 = 128;
        let mut parameters: [*mut c_void; 2] =
            [ptr::from_mut(&mut table).cast(), ptr::from_mut(&mut count).cast()];
        let launch = current.of.driver.api.launch;
        // SAFETY: the parameters are as the kernel declares them, and read before the call returns; the rest is as the caller promises.
        done("cuLaunchKernel", unsafe {
            let parameters = parameters.as_mut_ptr();
            launch(
                kernel.function,
                blocks,
                count,
                1,
                THREADS,
                1,
                1,
                0,
                self.0.raw,
                parameters,
                ptr::null_mut(),
            )
        })
    }

    /// Has what comes next wait for the event.
    pub fn wait_for(&self, current: &Current<'_>, event: &Event) -> Result<(), Error> {
        // SAFETY: both are of this driver; the flags have to be 0.
        done("cuStreamWaitEvent", unsafe { (current.of.driver.api.stream_wait)(self.0.raw, event.0.raw, 0) })
    }

    /// Waits until all is done.
    pub fn synchronize(&self, current: &Current<'_>) -> Result<(), Error> {
        // SAFETY: the handle is the stream's.
        done("cuStreamSynchronize", unsafe { (current.of.driver.api.stream_synchronize)(self.0.raw) })
    }
}

impl Event {
    /// Marks where the stream is now.
    pub fn record(&self, current: &Current<'_>, stream: &Stream) -> Result<(), Error> {
        // SAFETY: both are of this context.
        done("cuEventRecord", unsafe { (current.of.driver.api.event_record)(self.0.raw, stream.0.raw) })
    }

    /// As [`Event::record`], of a stream of somebody else's.
    ///
    /// # Safety
    ///
    /// `stream` is a CUstream of this context, or null for its default stream.
    pub unsafe fn record_other(&self, current: &Current<'_>, stream: Handle) -> Result<(), Error> {
        // SAFETY: as the caller promises.
        done("cuEventRecord", unsafe { (current.of.driver.api.event_record)(self.0.raw, stream) })
    }

    /// Has somebody else's stream wait for it.
    ///
    /// # Safety
    ///
    /// As [`Event::record_other`].
    pub unsafe fn hold_up(&self, current: &Current<'_>, stream: Handle) -> Result<(), Error> {
        // SAFETY: as the caller promises.
        done("cuStreamWaitEvent", unsafe { (current.of.driver.api.stream_wait)(stream, self.0.raw, 0) })
    }

    /// Whether the stream has come past the mark.
    pub fn query(&self, current: &Current<'_>) -> Result<bool, Error> {
        // SAFETY: the handle is the event's.
        match unsafe { (current.of.driver.api.event_query)(self.0.raw) } {
            NOT_READY => Ok(false),
            result => done("cuEventQuery", result).map(|()| true),
        }
    }

    /// Waits until it has.
    pub fn synchronize(&self, current: &Current<'_>) -> Result<(), Error> {
        // SAFETY: the handle is the event's.
        done("cuEventSynchronize", unsafe { (current.of.driver.api.event_synchronize)(self.0.raw) })
    }

    /// Nanoseconds on the device from `earlier` to this; both have completed.
    pub fn since(&self, current: &Current<'_>, earlier: &Event) -> Result<f64, Error> {
        let mut ms = 0.0;
        // SAFETY: it writes one float.
        done("cuEventElapsedTime", unsafe {
            (current.of.driver.api.event_elapsed)(&mut ms, earlier.0.raw, self.0.raw)
        })?;
        Ok(f64::from(ms) * 1e6)
    }
}

impl Buffer {
    pub fn at(&self) -> u64 {
        self.at
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Ok(_current) = self.of.enter() else { return };
        // SAFETY: allocated in this context, and freed once. The driver waits for what the device still does with it.
        unsafe { (self.of.driver.api.free)(self.at) };
    }
}

impl Pinned {
    pub fn device(&self) -> u64 {
        self.device
    }

    pub fn as_ptr(&self) -> *const u8 {
        self.at.as_ptr()
    }

    /// The bytes, to be written while the device reads none of them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated with that length, zeroed, and ours alone, borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let Ok(_current) = self.of.enter() else { return };
        // SAFETY: allocated by cuMemHostAlloc, and freed once, by whoever knows that the device reads none of it any more.
        unsafe { (self.of.driver.api.host_free)(self.at.as_ptr().cast()) };
    }
}

impl Registered {
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Where the device has the region's beginning.
    pub fn device(&self) -> u64 {
        self.device
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Ok(_current) = self.of.enter() else { return };
        let at = self.region.base().as_ptr().cast();
        // SAFETY: registered once, and still mapped: the region goes behind this.
        unsafe { (self.of.driver.api.host_unregister)(at) };
    }
}
