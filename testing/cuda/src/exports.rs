//! The functions of the driver API, by the names and the types of cuda.h.
//!
//! # Safety
//!
//! Of each function: pointers that it writes through or reads from are valid for that, as cuda.h says. Handles and device addresses are looked up,
//! and refused where there are none.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::rc::Rc;
use std::{ptr, slice};

use crate::machine::{
    ALREADY_REGISTERED, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_PTX, INVALID_VALUE, Locked,
    NO_DEVICE, NOT_FOUND, NOT_INITIALIZED, NOT_REGISTERED, OUT_OF_MEMORY, Op, machine,
};
use crate::ptx::Kernel;

type Done = Result<(), c_int>;

thread_local! {
    /// The contexts that this thread has pushed.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

thread_local! {
    /// This thread's own default stream, once something was put into it.
    static OWN: Cell<u64> = const { Cell::new(0) };
}

/// CU_STREAM_LEGACY and CU_STREAM_PER_THREAD, the names of default streams that are no handles. (0, the other name of the first, is the machine's own.)
fn named(machine: &mut Locked, stream: u64) -> u64 {
    match stream {
        1 => 0,
        2 if OWN.get() == 0 => {
            // In step with the legacy one, as any stream that was not made apart.
            OWN.set(machine.new_stream(false));
            OWN.get()
        }
        2 => OWN.get(),
        handle => handle,
    }
}

/// How many contexts this thread has pushed and not popped.
pub fn current() -> usize {
    CURRENT.with_borrow(Vec::len)
}

/// A call that needs nothing before it.
fn early(name: &str, act: impl FnOnce(&mut Locked) -> Done) -> c_int {
    let mut machine = machine();
    let done = machine.alive().and_then(|()| machine.faults.met(name)).and_then(|()| act(&mut machine));
    done.err().unwrap_or(0)
}

/// A call behind cuInit.
fn call(name: &str, act: impl FnOnce(&mut Locked) -> Done) -> c_int {
    early(name, |machine| if machine.initialised { act(machine) } else { Err(NOT_INITIALIZED) })
}

/// A call that needs a context.
fn inside(name: &str, act: impl FnOnce(&mut Locked) -> Done) -> c_int {
    call(name, |machine| if current() > 0 { act(machine) } else { Err(INVALID_CONTEXT) })
}

/// Writes through what the caller gave.
///
/// # Safety
///
/// `to` is null or valid for a write.
unsafe fn give<T>(to: *mut T, value: T) -> Done {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: as the caller promises.
    unsafe { to.write(value) };
    Ok(())
}

macro_rules! export {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) = $how:ident(|$machine:ident| $body:expr);)*) => {$(
        /// As cuda.h has it.
        ///
        /// # Safety
        ///
        /// See the module.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "it is C's name")]
        unsafe extern "C" fn $name($($arg: $kind),*) -> c_int {
            $how(stringify!($name), |$machine| {
                // SAFETY: pointers are as the module says.
                #[allow(unused_unsafe, reason = "some write nothing")]
                unsafe { $body }
            })
        }
    )*};
}

export! {
    fn cuInit(flags: c_uint) = early(|machine| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if machine.devices == 0 {
            return Err(NO_DEVICE);
        }
        machine.initialised = true;
        Ok(())
    });
    fn cuDriverGetVersion(version: *mut c_int) = early(|machine| give(version, machine.version));
    fn cuDeviceGetCount(count: *mut c_int) = call(|machine| give(count, machine.devices));
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) = call(|machine| {
        if (0..machine.devices).contains(&ordinal) { give(device, ordinal) } else { Err(INVALID_DEVICE) }
    });
    fn cuDeviceGetName(name: *mut c_char, len: c_int, _device: c_int) = call(|_machine| {
        let text = b"onecopy's stand-in\0";
        if len < text.len() as c_int {
            return Err(INVALID_VALUE);
        }
        ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), text.len());
        Ok(())
    });
    fn cuDevicePrimaryCtxRetain(context: *mut usize, _device: c_int) = call(|machine| {
        machine.contexts += 1;
        give(context, 0xC0)
    });
    fn cuDevicePrimaryCtxRelease_v2(_device: c_int) = call(|machine| {
        machine.contexts = machine.contexts.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        Ok(())
    });
    fn cuCtxPushCurrent_v2(context: usize) = call(|machine| {
        if context != 0xC0 || machine.contexts == 0 {
            return Err(INVALID_CONTEXT);
        }
        CURRENT.with_borrow_mut(|contexts| contexts.push(context));
        Ok(())
    });
    fn cuMemAlloc_v2(at: *mut u64, len: usize) = inside(|machine| {
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        give(at, machine.memory.alloc(len).ok_or(OUT_OF_MEMORY)?)
    });
    fn cuMemFree_v2(at: u64) = inside(|machine| {
        if machine.memory.free(at) { Ok(()) } else { Err(INVALID_VALUE) }
    });
    fn cuMemHostAlloc(at: *mut usize, len: usize, _flags: c_uint) = inside(|machine| {
        give(at, machine.memory.alloc_pinned(len).ok_or(OUT_OF_MEMORY)?)
    });
    fn cuMemFreeHost(at: usize) = inside(|machine| {
        if machine.memory.unpin(at, true) { Ok(()) } else { Err(INVALID_VALUE) }
    });
    fn cuMemHostRegister_v2(at: usize, len: usize, _flags: c_uint) = inside(|machine| {
        machine.memory.pin(at, len, false).ok_or(ALREADY_REGISTERED)
    });
    fn cuMemHostUnregister(at: usize) = inside(|machine| {
        if machine.memory.unpin(at, false) { Ok(()) } else { Err(NOT_REGISTERED) }
    });
    fn cuMemHostGetDevicePointer_v2(to: *mut u64, at: usize, flags: c_uint) = inside(|machine| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        give(to, machine.memory.alias(at).ok_or(INVALID_VALUE)?)
    });
    fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, len: usize, stream: u64) = inside(|machine| {
        let stream = named(machine, stream);
        machine.memory.resolve(to, len).ok_or(INVALID_VALUE)?;
        let op = if machine.memory.is_pinned(from, len) {
            Op::In { to, from, len }
        } else {
            Op::Staged { to, bytes: slice::from_raw_parts(from as *const u8, len).to_vec() }
        };
        machine.accept(stream, op)
    });
    fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, len: usize, stream: u64) = inside(|machine| {
        let stream = named(machine, stream);
        machine.memory.resolve(from, len).ok_or(INVALID_VALUE)?;
        machine.accept(stream, Op::Out { to, from, len })?;
        // To pageable memory it returns only when it is done.
        if machine.memory.is_pinned(to, len) { Ok(()) } else { machine.finish_stream(stream) }
    });
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: u64) = inside(|machine| {
        let stream = named(machine, stream);
        machine.memory.resolve(from, len).ok_or(INVALID_VALUE)?;
        machine.memory.resolve(to, len).ok_or(INVALID_VALUE)?;
        machine.accept(stream, Op::Within { to, from, len })
    });
    fn cuStreamCreate(stream: *mut u64, flags: c_uint) = inside(|machine| give(stream, machine.new_stream(flags & 1 != 0)));
    fn cuStreamDestroy_v2(stream: u64) = inside(|machine| machine.end_stream(stream));
    fn cuStreamSynchronize(stream: u64) = inside(|machine| {
        let stream = named(machine, stream);
        machine.finish_stream(stream)
    });
    fn cuStreamWaitEvent(stream: u64, event: u64, _flags: c_uint) = inside(|machine| {
        let stream = named(machine, stream);
        machine.wait(stream, event)
    });
    fn cuEventCreate(event: *mut u64, _flags: c_uint) = inside(|machine| give(event, machine.new_event()));
    fn cuEventDestroy_v2(event: u64) = inside(|machine| machine.end_event(event));
    fn cuEventRecord(event: u64, stream: u64) = inside(|machine| {
        let stream = named(machine, stream);
        machine.record(event, stream)
    });
    fn cuEventQuery(event: u64) = inside(|machine| machine.query(event));
    fn cuEventSynchronize(event: u64) = inside(|machine| machine.finish_event(event));
    fn cuEventElapsedTime(ms: *mut f32, from: u64, to: u64) = inside(|machine| {
        give(ms, machine.elapsed_ns(from, to)? as f32 / 1e6)
    });
    fn cuModuleLoadData(module: *mut u64, image: *const c_char) = inside(|machine| {
        let text = CStr::from_ptr(image).to_str().map_err(|_| INVALID_PTX)?;
        let kernel = Kernel::parse(text).map_err(|why| {
            eprintln!("stand-in: {why}");
            INVALID_PTX
        })?;
        let handle = machine.handle();
        machine.modules.insert(handle, Rc::new(kernel));
        give(module, handle)
    });
    fn cuModuleUnload(module: u64) = inside(|machine| {
        machine.modules.remove(&module).map(drop).ok_or(INVALID_HANDLE)
    });
    fn cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char) = inside(|machine| {
        let kernel = machine.modules.get(&module).ok_or(INVALID_HANDLE)?;
        let wanted = CStr::from_ptr(name).to_str().unwrap_or_default();
        // A module has one function, and so one handle is enough.
        if kernel.name() == wanted { give(function, module) } else { Err(NOT_FOUND) }
    });
}

/// As cuda.h has it.
///
/// # Safety
///
/// See the module.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "it is C's name")]
unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut usize) -> c_int {
    // As the real one, it pops whatever else is wrong.
    let Some(popped) = CURRENT.with_borrow_mut(Vec::pop) else { return INVALID_CONTEXT };
    if !context.is_null() {
        // SAFETY: see the module.
        unsafe { context.write(popped) };
    }
    0
}

/// CUmemcpyAttributes_v1: the sources' order, two locations, flags.
type Attributes = [c_int; 6];

/// As cuda.h of CUDA 12.8 has it.
///
/// # Safety
///
/// See the module.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "it is C's name")]
#[allow(clippy::too_many_arguments, reason = "it is C's function")]
unsafe extern "C" fn cuMemcpyBatchAsync(
    to: *const u64,
    from: *const u64,
    lens: *const usize,
    count: usize,
    attributes: *const Attributes,
    firsts: *const usize,
    kinds: usize,
    wrong: *mut usize,
    stream: u64,
) -> c_int {
    inside("cuMemcpyBatchAsync", |machine| {
        // SAFETY: there are as many of each.
        let (attributes, first) = unsafe { (*attributes, *firsts) };
        // Sources in the stream's order, and nothing else: what onecopy asks for. The legacy default stream is refused.
        if count == 0 || kinds != 1 || first != 0 || attributes != [1, 0, 0, 0, 0, 0] || stream < 2 {
            return Err(INVALID_VALUE);
        }
        let stream = named(machine, stream);
        let mut pieces = Vec::new();
        for at in 0..count {
            // SAFETY: there are as many of each.
            let (to, from, len) = unsafe { (*to.add(at), *from.add(at) as usize, *lens.add(at)) };
            if machine.memory.resolve(to, len).is_none() || !machine.memory.is_pinned(from, len) {
                // SAFETY: see the module.
                unsafe { give(wrong, at)? };
                return Err(INVALID_VALUE);
            }
            pieces.push((to, from, len));
        }
        machine.shuffle(&mut pieces);
        machine.accept(stream, Op::Batch { pieces })
    })
}

/// As cuda.h has it.
///
/// # Safety
///
/// See the module; `parameters` has an address for each of the kernel's.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "it is C's name")]
#[allow(clippy::too_many_arguments, reason = "it is C's function")]
unsafe extern "C" fn cuLaunchKernel(
    function: u64,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: u64,
    parameters: *const *const c_void,
    extra: *const *const c_void,
) -> c_int {
    inside("cuLaunchKernel", |machine| {
        let kernel = Rc::clone(machine.modules.get(&function).ok_or(INVALID_HANDLE)?);
        let sizes = [grid_x, grid_y, grid_z, block_x, block_y, block_z];
        let fits = sizes.iter().all(|size| *size > 0) && grid_y < 65536 && block_x <= 1024;
        // Ours have one dimension of threads, two of blocks, and no shared memory.
        if !fits || grid_z != 1 || block_y != 1 || block_z != 1 || shared != 0 || !extra.is_null() {
            return Err(INVALID_VALUE);
        }
        let read = |(index, width): (usize, usize)| {
            let mut bytes = [0; 8];
            // SAFETY: there is an address for each, of that many bytes.
            unsafe { ptr::copy_nonoverlapping((*parameters.add(index)).cast(), bytes.as_mut_ptr(), width) };
            u64::from_le_bytes(bytes)
        };
        let arguments = kernel.parameters().enumerate().map(read).collect();
        let stream = named(machine, stream);
        machine.accept(stream, Op::Launch { kernel, grid: (grid_x, grid_y), threads: block_x, arguments })
    })
}
