//! Received bytes, as Python looks at them: read-only, in place where they lie in one piece.

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::c_int;
use std::sync::Arc;

use crate::held::Held;
use crate::memory;
use crate::tensor::Tensor;

/// Received bytes where they lie, with the buffer protocol: memoryview(view), numpy.frombuffer(view, ...).
#[pyclass(frozen, module = "onecopy")]
pub struct View {
    pub held: Arc<Held>,
}

pub fn released() -> PyErr {
    PyValueError::new_err("the view was released: its bytes went back to the sender")
}

impl View {
    pub fn of(held: Arc<Held>) -> View {
        View { held }
    }
}

#[pymethods]
impl View {
    fn __len__(&self) -> usize {
        self.held.len
    }

    fn __bool__(&self) -> bool {
        self.held.len > 0
    }

    fn __repr__(&self) -> String {
        let place = if self.held.in_place() { "in place" } else { "copied" };
        format!("<onecopy.View of {} bytes, {place}>", self.held.len)
    }

    /// Whether the bytes lie in the memory that the peer wrote to, or in pages of a stack: False once they were copied out.
    #[getter]
    fn in_place(&self) -> bool {
        self.held.in_place()
    }

    /// A copy of the bytes.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(
            py,
            self.held.len,
            |bytes| {
                if self.held.copy_to(bytes) { Ok(()) } else { Err(released()) }
            },
        )
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.tobytes(py)
    }

    /// The bytes as a tensor of this shape and type: without a copy, where they are aligned for the type (stats() count those that were not).
    #[pyo3(signature = (shape, dtype))]
    fn as_tensor(&self, shape: Vec<i64>, dtype: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        Tensor::of(&self.held, shape, dtype)
    }

    /// Gives the bytes back to the sender. BufferError while a memoryview, an array or a tensor still looks at them.
    fn release(&self) -> PyResult<()> {
        if self.held.release() {
            return Ok(());
        }
        Err(PyBufferError::new_err(
            "an array, tensor or memoryview still looks at these bytes: drop it first",
        ))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.release()
    }

    /// # Safety
    ///
    /// As Python calls it.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let held = Arc::clone(&slf.get().held);
        let Some(region) = held.pin() else {
            // SAFETY: `view` is Python's.
            unsafe { memory::refuse(view) };
            return Err(released());
        };
        // SAFETY: `view` is Python's. While it is pinned, `held` neither gives the bytes back nor moves them, and
        // their mapping, or their Vec, is its own. It is unpinned in `__releasebuffer__`, or here where nothing was
        // exported. Nobody is to write.
        let exported = unsafe { region.export(slf.into_any(), view, flags, false) };
        exported.inspect_err(|_| held.unpin())
    }

    /// # Safety
    ///
    /// As Python calls it.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.held.unpin();
    }
}
