//! What a program does with CUDA's driver beside onecopy: memory, streams and copies of its own. The rivals are made of it, and it is the other side of what is
//! ordered with a program's stream.
//!
//! All of it waits before it returns what somebody else may touch, so nothing of this is unsafe to call.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{self, NonNull};
use std::rc::Rc;

use libloading::Library;
use onecopy::cuda::{Cuda, Driver};

use crate::Checked;

type Handle = *mut c_void;

/// CU_STREAM_NON_BLOCKING: nothing orders it with other streams but what is asked for.
const APART: c_uint = 1;

macro_rules! calls {
    ($($name:ident = $symbol:literal($($arg:ty),*);)*) => {
        struct Calls {
            $($name: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Calls {
            fn find(library: &Library) -> Checked<Calls> {
                Ok(Calls {
                    // SAFETY: cuda.h declares the functions of these names so, on 64-bit Linux.
                    $($name: *unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> c_int>($symbol) }?,)*
                })
            }
        }
    };
}

calls! {
    device = "cuDeviceGet"(*mut c_int, c_int);
    retain = "cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
    release = "cuDevicePrimaryCtxRelease_v2"(c_int);
    push = "cuCtxPushCurrent_v2"(Handle);
    pop = "cuCtxPopCurrent_v2"(*mut Handle);
    alloc = "cuMemAlloc_v2"(*mut u64, usize);
    free = "cuMemFree_v2"(u64);
    host_alloc = "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost"(*mut c_void);
    copy_in = "cuMemcpyHtoDAsync_v2"(u64, *const c_void, usize, Handle);
    copy_out = "cuMemcpyDtoHAsync_v2"(*mut c_void, u64, usize, Handle);
    copy_within = "cuMemcpyDtoDAsync_v2"(u64, u64, usize, Handle);
    stream_create = "cuStreamCreate"(*mut Handle, c_uint);
    stream_destroy = "cuStreamDestroy_v2"(Handle);
    stream_wait = "cuStreamSynchronize"(Handle);
    event_create = "cuEventCreate"(*mut Handle, c_uint);
    event_destroy = "cuEventDestroy_v2"(Handle);
    event_record = "cuEventRecord"(Handle, Handle);
    event_wait = "cuEventSynchronize"(Handle);
}

fn done(call: &str, result: c_int) -> Checked<()> {
    if result == 0 { Ok(()) } else { Err(format!("{call}: CUresult {result}").into()) }
}

/// A program on a device: its primary context, which onecopy uses, too, and a stream.
pub struct Program {
    calls: Calls,
    device: c_int,
    context: Handle,
    stream: Handle,
    stand_in: bool,
}

/// Memory of the device's, of the program's own.
pub struct Memory {
    of: Rc<Program>,
    at: u64,
    len: usize,
}

/// Pinned memory of the host's.
pub struct Pinned {
    of: Rc<Program>,
    at: NonNull<u8>,
    len: usize,
    /// Behind the copy that is under way, if one is.
    event: Handle,
}

impl Program {
    /// A program that uses the driver that onecopy has loaded.
    pub fn new(driver: &Driver, ordinal: u32) -> Checked<Rc<Program>> {
        // SAFETY: the driver is loaded already, so no initialisers run.
        let library = unsafe { Library::new(driver.library()) }?;
        let calls = Calls::find(&library)?;
        // SAFETY: it is looked up, and not called.
        let stand_in = unsafe { library.get::<unsafe extern "C" fn()>("onecopy_stand_in_get") }.is_ok();
        // As onecopy has it, it stays loaded.
        std::mem::forget(library);
        let (mut device, mut context) = (0, ptr::null_mut());
        // SAFETY: each writes one value through its pointer; the ordinal is one that there is, or is refused.
        unsafe {
            done("cuDeviceGet", (calls.device)(&mut device, ordinal as c_int))?;
            done("cuDevicePrimaryCtxRetain", (calls.retain)(&mut context, device))?;
        }
        let mut program = Program { calls, device, context, stream: ptr::null_mut(), stand_in };
        let mut stream = ptr::null_mut();
        // SAFETY: it writes one handle.
        program.call("cuStreamCreate", |calls| unsafe { (calls.stream_create)(&mut stream, APART) })?;
        program.stream = stream;
        Ok(Rc::new(program))
    }

    /// Whether the driver is testing/cuda's: then no figure means anything.
    pub fn on_stand_in(&self) -> bool {
        self.stand_in
    }

    /// Calls the driver in the context.
    fn call(&self, name: &str, act: impl FnOnce(&Calls) -> c_int) -> Checked<()> {
        // SAFETY: the context is retained as long as this lives, and what is pushed is popped on the same thread.
        done("cuCtxPushCurrent", unsafe { (self.calls.push)(self.context) })?;
        let result = act(&self.calls);
        let mut popped = ptr::null_mut();
        // SAFETY: as above; it writes one handle.
        unsafe { (self.calls.pop)(&mut popped) };
        done(name, result)
    }

    /// Memory of the device's.
    pub fn memory(self: &Rc<Program>, len: usize) -> Checked<Memory> {
        let mut at = 0;
        // SAFETY: it writes one address.
        self.call("cuMemAlloc", |calls| unsafe { (calls.alloc)(&mut at, len) })?;
        Ok(Memory { of: Rc::clone(self), at, len })
    }

    /// Pinned memory of the host's, zeroed.
    pub fn pinned(self: &Rc<Program>, len: usize) -> Checked<Pinned> {
        let (mut at, mut event) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: it writes one handle.
        self.call("cuEventCreate", |calls| unsafe { (calls.event_create)(&mut event, 0) })?;
        // SAFETY: it writes one address.
        self.call("cuMemHostAlloc", |calls| unsafe { (calls.host_alloc)(&mut at, len, 0) })?;
        let at = NonNull::new(at.cast::<u8>()).ok_or("cuMemHostAlloc gave no memory")?;
        // SAFETY: that many bytes are there, and nobody else knows of them.
        unsafe { ptr::write_bytes(at.as_ptr(), 0, len) };
        Ok(Pinned { of: Rc::clone(self), at, len, event })
    }

    /// The program's stream, as onecopy is told of it.
    ///
    /// # Safety of those who use it
    ///
    /// It is a stream of the device's primary context, and lives as long as this.
    fn stream(&self) -> Handle {
        self.stream
    }

    /// Waits until the stream has done all.
    pub fn wait(&self) -> Checked<()> {
        // SAFETY: the stream is ours.
        self.call("cuStreamSynchronize", |calls| unsafe { (calls.stream_wait)(self.stream) })
    }

    /// [`Cuda::order_before`] with the program's stream.
    pub fn order_before(&self, cuda: &Cuda) -> Checked<()> {
        // SAFETY: see `stream`; the memory is of the same device.
        Ok(unsafe { cuda.order_before(self.stream()) }?)
    }

    /// [`Cuda::order_after`] with the program's stream.
    pub fn order_after(&self, cuda: &Cuda) -> Checked<()> {
        // SAFETY: see `stream`; the memory is of the same device.
        Ok(unsafe { cuda.order_after(self.stream()) }?)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.stream.is_null() {
            // SAFETY: made once, and freed once.
            let _ = self.call("cuStreamDestroy", |calls| unsafe { (calls.stream_destroy)(self.stream) });
        }
        // SAFETY: retained once.
        unsafe { (self.calls.release)(self.device) };
    }
}

impl Memory {
    pub fn len(&self) -> usize {
        self.len
    }

    fn inside(&self, at: usize, len: usize) -> Checked<u64> {
        match at.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.at + at as u64),
            _ => Err(format!("{len} bytes at {at} are not inside of {}", self.len).into()),
        }
    }

    /// Copies from memory that is not pinned, and waits: what `tensor.cuda()` does.
    pub fn write(&self, at: usize, from: &[u8]) -> Checked<()> {
        let (to, of) = (self.inside(at, from.len())?, &self.of);
        // SAFETY: both ends are there; the slice is borrowed until the stream was waited for.
        let put = of.call("cuMemcpyHtoDAsync", |calls| unsafe {
            (calls.copy_in)(to, from.as_ptr().cast(), from.len(), of.stream)
        });
        of.wait().and(put)
    }

    /// Copies to the host, behind all that is in the stream, and waits.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Checked<()> {
        let (from, of) = (self.inside(at, into.len())?, &self.of);
        // SAFETY: both ends are there; the slice is borrowed until the stream was waited for.
        let put = of.call("cuMemcpyDtoHAsync", |calls| unsafe {
            (calls.copy_out)(into.as_mut_ptr().cast(), from, into.len(), of.stream)
        });
        of.wait().and(put)
    }

    /// Puts a copy of what onecopy's memory has from `from` on into the stream, and does not wait.
    pub fn take_later(&self, at: usize, cuda: &Cuda, from: u64, len: usize) -> Checked<()> {
        let (to, base) = (self.inside(at, len)?, cuda.address().ok_or("no pool has the memory")?);
        // SAFETY: the device looks at no byte of the host's; an address outside of its memory is the driver's to refuse.
        self.of.call("cuMemcpyDtoDAsync", |calls| unsafe {
            (calls.copy_within)(to, base + from, len, self.of.stream)
        })
    }

    /// Puts work into the stream that takes a while: copies of one half to the other.
    pub fn keep_busy(&self, times: usize) -> Checked<()> {
        let half = self.len / 2;
        for _ in 0..times {
            // SAFETY: as above; both halves are inside.
            self.of.call("cuMemcpyDtoDAsync", |calls| unsafe {
                (calls.copy_within)(self.at, self.at + half as u64, half, self.of.stream)
            })?;
        }
        Ok(())
    }

    /// [`Cuda::collect`] to this memory, from `at` on.
    pub fn collect(&self, at: usize, cuda: &Cuda, pieces: &[(u64, usize)]) -> Checked<()> {
        let to = self.inside(at, pieces.iter().map(|(_, len)| len).sum())?;
        // SAFETY: that many bytes are there, and nothing else is in the stream.
        Ok(unsafe { cuda.collect(to, pieces) }?)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Copies to it may be in the stream.
        let _ = self.of.wait();
        // SAFETY: allocated once, and freed once.
        let _ = self.of.call("cuMemFree", |calls| unsafe { (calls.free)(self.at) });
    }
}

impl Pinned {
    /// The bytes, once no copy of them is under way.
    pub fn bytes(&mut self) -> Checked<&mut [u8]> {
        self.settle()?;
        // SAFETY: allocated with that length and zeroed; what was under way is done; borrowed mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) })
    }

    /// Puts a copy of the first `len` bytes into the stream. Whoever wants the bytes next waits for it.
    pub fn copy_later(&mut self, len: usize, to: &Memory, at: usize) -> Checked<()> {
        self.settle()?;
        let (to, of) = (to.inside(at, len.min(self.len))?, &self.of);
        // SAFETY: both ends are there, and the bytes are handed out again only behind the event, or, without one, behind all that is in the stream.
        let put = of.call("cuMemcpyHtoDAsync", |calls| unsafe {
            (calls.copy_in)(to, self.at.as_ptr().cast(), len.min(self.len), of.stream)
        });
        // SAFETY: both are ours.
        let marked = of.call("cuEventRecord", |calls| unsafe { (calls.event_record)(self.event, of.stream) });
        if marked.is_err() {
            of.wait()?;
        }
        put.and(marked)
    }

    fn settle(&self) -> Checked<()> {
        // SAFETY: the event is ours. One that was never recorded counts as completed.
        self.of.call("cuEventSynchronize", |calls| unsafe { (calls.event_wait)(self.event) })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.settle();
        // SAFETY: each was made once, and is freed once; no copy is under way.
        let _ = self.of.call("cuEventDestroy", |calls| unsafe { (calls.event_destroy)(self.event) });
        // SAFETY: as above.
        let _ = self.of.call("cuMemFreeHost", |calls| unsafe { (calls.host_free)(self.at.as_ptr().cast()) });
    }
}
