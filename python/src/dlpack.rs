//! DLPack 1.0, as include/dlpack/dlpack.h of github.com/dmlc/dlpack lays it out: a tensor in a capsule, given away with a deleter.

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

use crate::held::Held;

/// kDLCPU.
pub const CPU: i32 = 1;

/// DLPACK_FLAG_BITMASK_READ_ONLY.
const READ_ONLY: u64 = 1;

/// The capsule's name until it is taken. Who takes it gives it another one.
const NAME: &CStr = c"dltensor_versioned";

/// DLDataType.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

impl DataType {
    pub const fn new(code: u8, bits: u8) -> DataType {
        DataType { code, bits, lanes: 1 }
    }

    pub fn bytes(self) -> usize {
        usize::from(self.bits) / 8
    }
}

/// Lengths of dimensions, and the distances between elements, in elements: row after row.
#[derive(Clone)]
pub struct Shape {
    lengths: Box<[i64]>,
    strides: Box<[i64]>,
}

impl Shape {
    pub fn new(lengths: Vec<i64>) -> Shape {
        let mut strides = vec![1i64; lengths.len()];
        for at in (1..lengths.len()).rev() {
            strides[at - 1] = strides[at].saturating_mul(lengths[at].max(1));
        }
        Shape { lengths: lengths.into(), strides: strides.into() }
    }

    pub fn lengths(&self) -> &[i64] {
        &self.lengths
    }
}

/// DLManagedTensorVersioned, with DLPackVersion, DLTensor and DLDevice in place.
#[repr(C)]
struct Managed {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    flags: u64,
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    kind: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// What a capsule stands on: the tensor first, so that its address is this one's too.
#[repr(C)]
struct Given {
    managed: Managed,
    held: Arc<Held>,
    shape: Shape,
}

/// Frees what a capsule stood on. DLPack has the taker call it once, on any thread, with the GIL or without.
///
/// # Safety
///
/// `managed` is from [`capsule`], and nobody uses it afterwards.
unsafe extern "C" fn delete(managed: *mut Managed) {
    if !managed.is_null() {
        // SAFETY: it is the first field of a boxed Given, which is `repr(C)` and was let go with `Box::into_raw`; this is called once.
        let given = unsafe { Box::from_raw(managed.cast::<Given>()) };
        given.held.unpin();
    }
}

/// What Python calls when the capsule itself goes: nothing is to be freed, if somebody took the tensor.
///
/// # Safety
///
/// `capsule` is from [`capsule`].
unsafe extern "C" fn dropped(capsule: *mut ffi::PyObject) {
    // SAFETY: `capsule` is a capsule, and alive during this call.
    if unsafe { ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) } == 1 {
        // SAFETY: of that name it is still ours, and it holds what `capsule` put there; nobody else will delete it.
        unsafe { delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast()) };
    }
}

/// A capsule with a read-only tensor of the CPU's.
///
/// # Errors
///
/// ValueError where the bytes were released; BufferError where they are not aligned.
pub fn capsule<'py>(
    py: Python<'py>,
    held: &Arc<Held>,
    shape: &Shape,
    kind: DataType,
) -> PyResult<Bound<'py, PyAny>> {
    let region = held
        .pin()
        .ok_or_else(|| PyValueError::new_err("the bytes were released: they went back to the sender"))?;
    let mut given = Box::new(Given {
        managed: Managed {
            major: 1,
            minor: 0,
            context: std::ptr::null_mut(),
            deleter: Some(delete),
            flags: READ_ONLY,
            data: region.at.cast(),
            device_type: CPU,
            device_id: 0,
            dimensions: shape.lengths.len() as i32,
            kind,
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        },
        held: Arc::clone(held),
        shape: shape.clone(),
    });
    given.managed.shape = given.shape.lengths.as_mut_ptr();
    given.managed.strides = given.shape.strides.as_mut_ptr();
    let given = Box::into_raw(given);
    // SAFETY: the name is static, and `dropped` frees what is still ours when the capsule goes. `data` stays mapped, and the bytes are not given
    // back, as `held` is pinned until `delete`; shape and strides are boxes of Given's own.
    let made = unsafe { ffi::PyCapsule_New(given.cast(), NAME.as_ptr(), Some(dropped)) };
    if made.is_null() {
        // SAFETY: no capsule has it.
        unsafe { delete(given.cast()) };
        return Err(PyErr::fetch(py));
    }
    // SAFETY: PyCapsule_New gave a new reference.
    Ok(unsafe { Bound::from_owned_ptr(py, made) })
}
