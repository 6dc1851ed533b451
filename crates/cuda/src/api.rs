//! The driver API's functions that are used here, found by name in the shared object.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

/// CUcontext, CUstream, CUevent, CUmodule, CUfunction.
pub(crate) type Handle = *mut c_void;

/// cuMemcpyBatchAsync: destinations, sources, lengths, and how many there are; attributes, the first copy that each is for, and how many there are; where
/// the number of a copy that is wrong goes; the stream.
pub(crate) type CopyBatch = unsafe extern "C" fn(
    *mut u64,
    *mut u64,
    *mut usize,
    usize,
    *mut CopyAttributes,
    *mut usize,
    usize,
    *mut usize,
    Handle,
) -> c_int;

/// CUmemcpyAttributes_v1.
#[repr(C)]
pub(crate) struct CopyAttributes {
    /// CU_MEMCPY_SRC_ACCESS_ORDER_STREAM is 1: sources are read in the stream's order.
    pub source_order: c_int,
    /// CUmemLocation: a type and a number. They say where managed memory is, and such as CUDA does not know; ours is neither (0: nothing is said).
    pub source: [c_int; 2],
    pub destination: [c_int; 2],
    pub flags: c_uint,
}

macro_rules! api {
    ($($field:ident = $symbol:literal($($arg:ty),*);)*) => {
        /// Pointers to them. They stay valid: the library is never unloaded ([`crate::Driver`]).
        pub(crate) struct Api {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> c_int,)*
            /// Of CUDA 12.8; older drivers have none.
            pub copy_batch: Option<CopyBatch>,
        }

        impl Api {
            /// Finds all of them.
            ///
            /// # Errors
            ///
            /// The first that is missing.
            pub fn find(library: &Library) -> Result<Api, &'static str> {
                Ok(Api {
                    // SAFETY: cuda.h declares the functions of these names so, on 64-bit Linux: handles are pointers, CUdeviceptr and
                    // size_t have 64 bits, CUdevice and CUresult are int.
                    $($field: *unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> c_int>($symbol) }
                        .map_err(|_| $symbol)?,)*
                    // SAFETY: as above. The name without a version stands for the function as CUDA 12.8 had it: that of 13 is called _v2.
                    copy_batch: unsafe { library.get::<CopyBatch>("cuMemcpyBatchAsync") }.ok().map(|found| *found),
                })
            }
        }
    };
}

api! {
    init = "cuInit"(c_uint);
    driver_version = "cuDriverGetVersion"(*mut c_int);
    device_count = "cuDeviceGetCount"(*mut c_int);
    device = "cuDeviceGet"(*mut c_int, c_int);
    device_name = "cuDeviceGetName"(*mut c_char, c_int, c_int);
    retain = "cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
    release = "cuDevicePrimaryCtxRelease_v2"(c_int);
    push = "cuCtxPushCurrent_v2"(Handle);
    pop = "cuCtxPopCurrent_v2"(*mut Handle);
    alloc = "cuMemAlloc_v2"(*mut u64, usize);
    free = "cuMemFree_v2"(u64);
    host_alloc = "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost"(*mut c_void);
    host_register = "cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
    host_unregister = "cuMemHostUnregister"(*mut c_void);
    host_pointer = "cuMemHostGetDevicePointer_v2"(*mut u64, *mut c_void, c_uint);
    copy_in = "cuMemcpyHtoDAsync_v2"(u64, *const c_void, usize, Handle);
    copy_out = "cuMemcpyDtoHAsync_v2"(*mut c_void, u64, usize, Handle);
    copy_within = "cuMemcpyDtoDAsync_v2"(u64, u64, usize, Handle);
    stream_create = "cuStreamCreate"(*mut Handle, c_uint);
    stream_destroy = "cuStreamDestroy_v2"(Handle);
    stream_synchronize = "cuStreamSynchronize"(Handle);
    stream_wait = "cuStreamWaitEvent"(Handle, Handle, c_uint);
    event_create = "cuEventCreate"(*mut Handle, c_uint);
    event_destroy = "cuEventDestroy_v2"(Handle);
    event_record = "cuEventRecord"(Handle, Handle);
    event_query = "cuEventQuery"(Handle);
    event_synchronize = "cuEventSynchronize"(Handle);
    event_elapsed = "cuEventElapsedTime"(*mut f32, Handle, Handle);
    module_load = "cuModuleLoadData"(*mut Handle, *const c_void);
    module_unload = "cuModuleUnload"(Handle);
    module_function = "cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
    launch = "cuLaunchKernel"(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
}
