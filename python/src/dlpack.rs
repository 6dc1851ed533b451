//! DLPack, as include/dlpack/dlpack.h of github.com/dmlc/dlpack lays it out: a tensor in a capsule, given away with a deleter. Version 1.0, and
//! what came before it, for who asks for no version.

use pyo3::ffi;
use pyo3::prelude::*;
use std::any::Any;
use std::ffi::{CStr, c_void};

/// kDLCPU.
pub const CPU: i32 = 1;

/// kDLCUDA.
pub const CUDA: i32 = 2;

/// DLPACK_FLAG_BITMASK_READ_ONLY.
const READ_ONLY: u64 = 1;

/// DLDataType.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

impl DataType {
    /// kDLUInt of 8 bits.
    pub const BYTE: DataType = DataType::new(1, 8);

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

/// DLTensor, with DLDevice in place.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    kind: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// DLManagedTensorVersioned, with DLPackVersion in place.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// DLManagedTensor: before version 1.0. It cannot say that its bytes are read-only.
#[repr(C)]
struct Unversioned {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Unversioned)>,
}

trait Managed: Sized {
    /// A capsule's name until it is taken. Who takes it gives it another one.
    const NAME: &CStr;

    fn tensor(&mut self) -> &mut Tensor;
}

impl Managed for Versioned {
    const NAME: &CStr = c"dltensor_versioned";

    fn tensor(&mut self) -> &mut Tensor {
        &mut self.tensor
    }
}

impl Managed for Unversioned {
    const NAME: &CStr = c"dltensor";

    fn tensor(&mut self) -> &mut Tensor {
        &mut self.tensor
    }
}

/// What a capsule stands on: the tensor first, so that its address is this one's too.
#[repr(C)]
struct Given<M> {
    managed: M,
    keep: Box<dyn Any + Send>,
    shape: Shape,
}

/// Frees what a capsule stood on. DLPack has the taker call it once, on any thread, with the GIL or without.
///
/// # Safety
///
/// `managed` is from [`capsule`], and nobody uses it afterwards.
unsafe extern "C" fn delete<M>(managed: *mut M) {
    if !managed.is_null() {
        // SAFETY: it is the first field of a boxed Given, which is `repr(C)` and was let go with `Box::into_raw`; this is called once.
        drop(unsafe { Box::from_raw(managed.cast::<Given<M>>()) });
    }
}

/// What Python calls when the capsule itself goes: nothing is to be freed, if somebody took the tensor.
///
/// # Safety
///
/// `capsule` is from [`capsule`], of this kind.
unsafe extern "C" fn dropped<M: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: `capsule` is a capsule, and alive during this call.
    if unsafe { ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) } == 1 {
        // SAFETY: of that name it is still ours, and it holds what [`capsule`] put there; nobody else will delete it.
        unsafe { delete::<M>(ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()).cast()) };
    }
}

/// What a capsule is to be of. The bytes stay at `at` as long as `keep` is not dropped, which happens once: by the taker's deleter, or as the capsule goes
/// that nobody took.
pub struct Export<'a> {
    /// Of the device's memory, or the host's.
    pub at: *mut c_void,
    /// Its type and number.
    pub device: (i32, i32),
    pub shape: &'a Shape,
    pub kind: DataType,
    pub keep: Box<dyn Any + Send>,
}

/// A capsule of DLPack 1.0 with a tensor that is only to be read.
pub fn read_only<'py>(py: Python<'py>, export: Export<'_>) -> PyResult<Bound<'py, PyAny>> {
    versioned(py, export, READ_ONLY)
}

/// A capsule with a tensor that may be written; `versioned`: of DLPack 1.0.
pub fn writable<'py>(py: Python<'py>, export: Export<'_>, is_versioned: bool) -> PyResult<Bound<'py, PyAny>> {
    if is_versioned {
        return versioned(py, export, 0);
    }
    capsule(py, export, |tensor| Unversioned {
        tensor,
        context: std::ptr::null_mut(),
        deleter: Some(delete::<Unversioned>),
    })
}

fn versioned<'py>(py: Python<'py>, export: Export<'_>, flags: u64) -> PyResult<Bound<'py, PyAny>> {
    capsule(py, export, |tensor| Versioned {
        major: 1,
        minor: 0,
        context: std::ptr::null_mut(),
        deleter: Some(delete::<Versioned>),
        flags,
        tensor,
    })
}

fn capsule<'py, M: Managed>(
    py: Python<'py>,
    export: Export<'_>,
    manage: impl FnOnce(Tensor) -> M,
) -> PyResult<Bound<'py, PyAny>> {
    let shape = export.shape.clone();
    let tensor = Tensor {
        data: export.at,
        device_type: export.device.0,
        device_id: export.device.1,
        dimensions: shape.lengths.len() as i32,
        kind: export.kind,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let mut given = Box::new(Given { managed: manage(tensor), keep: export.keep, shape });
    let Given { managed, shape, .. } = &mut *given;
    let tensor = managed.tensor();
    (tensor.shape, tensor.strides) = (shape.lengths.as_mut_ptr(), shape.strides.as_mut_ptr());
    let given = Box::into_raw(given);
    // SAFETY: the name is static, and `dropped` frees what is still ours when the capsule goes. `data` stays where it is until `delete` drops
    // `keep`; shape and strides are boxes of Given's own.
    let made = unsafe { ffi::PyCapsule_New(given.cast(), M::NAME.as_ptr(), Some(dropped::<M>)) };
    if made.is_null() {
        // SAFETY: no capsule has it.
        unsafe { delete::<M>(given.cast()) };
        return Err(PyErr::fetch(py));
    }
    // SAFETY: PyCapsule_New gave a new reference.
    Ok(unsafe { Bound::from_owned_ptr(py, made) })
}
