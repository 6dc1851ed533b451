//! Received bytes as a tensor, which numpy, torch and others take by DLPack.

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::Arc;

use crate::dlpack::{self, DataType, Export, Shape};
use crate::held::{Held, Pinned};
use crate::view::{View, released};

/// Received bytes with a shape and a type, for numpy.from_dlpack and torch.from_dlpack. Read-only.
#[pyclass(frozen, module = "onecopy")]
pub struct Tensor {
    held: Arc<Held>,
    shape: Shape,
    kind: DataType,
    dtype: &'static str,
}

/// Names of types, their class in DLPack and their bits.
const TYPES: [(&str, u8, u8); 15] = [
    ("int8", 0, 8),
    ("int16", 0, 16),
    ("int32", 0, 32),
    ("int64", 0, 64),
    ("uint8", 1, 8),
    ("uint16", 1, 16),
    ("uint32", 1, 32),
    ("uint64", 1, 64),
    ("float16", 2, 16),
    ("float32", 2, 32),
    ("float64", 2, 64),
    ("bfloat16", 4, 16),
    ("complex64", 5, 64),
    ("complex128", 5, 128),
    ("bool", 6, 8),
];

/// A type by its name: a str, numpy.dtype, numpy's scalar types, or torch.dtype.
fn data_type(dtype: &Bound<'_, PyAny>) -> PyResult<(&'static str, DataType)> {
    let name: String = match dtype.extract() {
        Ok(name) => name,
        Err(_) => match dtype.getattr("name").or_else(|_| dtype.getattr("__name__")) {
            Ok(name) => name.extract()?,
            Err(_) => dtype.str()?.extract()?,
        },
    };
    let short = name.rsplit('.').next().unwrap_or_default();
    let found = TYPES.iter().find(|(known, ..)| *known == short);
    let (name, code, bits) = found.ok_or_else(|| {
        let known: Vec<_> = TYPES.iter().map(|(name, ..)| *name).collect();
        PyTypeError::new_err(format!("{name:?} is no type of tensors here; these are: {}", known.join(", ")))
    })?;
    Ok((name, DataType::new(*code, *bits)))
}

/// Bytes of a tensor of this shape and type.
pub fn size(shape: &[i64], dtype: &Bound<'_, PyAny>) -> PyResult<usize> {
    let (_, kind) = data_type(dtype)?;
    let elements = shape.iter().try_fold(1usize, |n, len| n.checked_mul(usize::try_from(*len).ok()?));
    elements.and_then(|n| n.checked_mul(kind.bytes())).filter(|n| isize::try_from(*n).is_ok()).ok_or_else(
        || {
            PyValueError::new_err(format!(
                "{shape:?} is no shape: lengths are 0 or more, and fit into memory"
            ))
        },
    )
}

impl Tensor {
    /// A tensor of these bytes; of a copy, where they are not aligned for its type.
    pub fn of(held: &Arc<Held>, shape: Vec<i64>, dtype: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let bytes = size(&shape, dtype)?;
        let (dtype, kind) = data_type(dtype)?;
        if bytes != held.len {
            return Err(PyValueError::new_err(format!(
                "{} bytes were received; a tensor of shape {shape:?} and type {dtype} has {bytes}",
                held.len
            )));
        }
        // (Complex numbers are two elements.)
        let held = held.aligned(kind.bytes().min(8)).ok_or_else(released)?;
        Ok(Tensor { held, shape: Shape::new(shape), kind, dtype })
    }
}

#[pymethods]
impl Tensor {
    /// The length of each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.shape.lengths())
    }

    /// The type of the elements, by numpy's name.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype
    }

    /// Bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.held.len
    }

    /// Whether the elements lie in the memory that the peer wrote to.
    #[getter]
    fn in_place(&self) -> bool {
        self.held.in_place()
    }

    /// The same bytes as a view, with the buffer protocol.
    #[getter]
    fn view(&self) -> View {
        View::of(Arc::clone(&self.held))
    }

    fn __repr__(&self) -> String {
        let place = if self.held.in_place() { "in place" } else { "copied" };
        format!("<onecopy.Tensor {:?} {}, {place}>", self.shape.lengths(), self.dtype)
    }

    /// The device: (1, 0), the CPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CPU, 0)
    }

    /// A capsule with the tensor, which keeps the bytes until its taker's last tensor is gone. It is marked read-only, which takes DLPack 1.0:
    /// BufferError for who does not say max_version=(1, 0) or more, as numpy from 2.1 on and torch from 2.9 on do.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if stream.is_some() {
            return Err(PyBufferError::new_err("memory of the CPU has no stream: leave it out"));
        }
        if dl_device.is_some_and(|device| device != (dlpack::CPU, 0)) {
            return Err(PyBufferError::new_err(
                "the bytes are in memory of the CPU: move them when you have them",
            ));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err("no copy is made here: copy the tensor when you have it"));
        }
        if max_version.is_none_or(|(major, _)| major < 1) {
            return Err(PyBufferError::new_err(
                "the bytes are read-only, which only DLPack 1.0 can say: take a newer numpy or torch, or numpy.frombuffer(tensor.view)",
            ));
        }
        let pinned = Pinned::of(&self.held).ok_or_else(released)?;
        let export = Export {
            at: pinned.region.at.cast(),
            device: (dlpack::CPU, 0),
            shape: &self.shape,
            kind: self.kind,
            keep: Box::new(pinned),
        };
        dlpack::read_only(py, export)
    }
}
