//! What was received by reference: fragments of a device's memory, and their tokens.
//!
//! A token goes back once: when the fragment and all that its address was given to are gone, or before that by number, or as the
//! connection is closed. In the latter two cases the page stays where it is until those are gone ([`Lent`]).

use onecopy::devmem::{self, Frag, Hold, Token};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use std::ffi::{c_int, c_void};
use std::mem;
use std::sync::{Arc, Mutex};

use crate::call::{self, Failure, failed};
use crate::device_memory::{Known, cuda_array, cuda_of};
use crate::dlpack::{self, DataType, Export, Shape};
use crate::loans::lock;
use crate::memory;
use crate::on_stack::Here;

/// A fragment, and its token until that is given back.
pub struct Piece {
    frag: Frag,
    token: Mutex<Option<Here<Token>>>,
}

impl Piece {
    /// Gives the token back. Returns whether it was still there.
    fn give_back(&self) -> bool {
        let token = lock(&self.token).take();
        token.and_then(|token| token.into_inner().ok()).is_some_and(Token::give_back)
    }

    /// Its page, which stays until the hold is dropped. Not after the token was given back: other bytes may lie there.
    fn hold(&self) -> PyResult<Hold> {
        let token = lock(&self.token);
        let held = match token.as_ref() {
            Some(token) => token.get().map_err(failed)?.hold(),
            None => None,
        };
        held.ok_or_else(|| {
            PyValueError::new_err(match self.frag.token {
                0 => "the fragment was only looked at (PEEK): receive it",
                _ => {
                    "the fragment's token was given back, or its connection closed: its memory is used again"
                }
            })
        })
    }
}

/// A stream of the taker's, by its handle; None where nothing is to be ordered.
type Stream = Option<usize>;

/// The default stream that waits for all others of its context which are not made apart (cudaStreamNonBlocking).
const LEGACY: Stream = Some(0);

/// A fragment whose address somebody has. Dropped, what lands in its page next waits, on the device, for what the taker's stream has
/// to do by then; then the page goes home, and with the last of these the token.
struct Lent {
    hold: Option<Hold>,
    of: Known,
    stream: Stream,
    piece: Arc<Piece>,
}

impl Lent {
    /// # Errors
    ///
    /// None of memory that has no addresses; ValueError where the token is gone.
    fn of(piece: &Arc<Piece>, stream: Stream) -> PyResult<Option<Lent>> {
        let hold = piece.hold()?;
        let known = cuda_of(hold.memory());
        Ok(known.map(|of| Lent { hold: Some(hold), of, stream, piece: Arc::clone(piece) }))
    }

    fn address(&self) -> u64 {
        self.of.base + self.piece.frag.offset
    }

    fn device(&self) -> (i32, i32) {
        (dlpack::CUDA, self.of.ordinal as i32)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(stream) = self.stream else { return };
        // SAFETY: null is the legacy default stream. Another one was given by the tensor's taker, who is told that it has to be there
        // as long as the tensor is (`Fragment.__dlpack__`).
        let ordered = unsafe { self.of.cuda.order_after(std::ptr::without_provenance_mut(stream)) };
        if ordered.is_err() {
            // Nobody can tell when the device is done with the page: it is nobody's again.
            mem::forget(self.hold.take());
        }
    }
}

/// A piece of a device's memory that bytes were received in.
///
/// Of a CUDA device's it has __cuda_array_interface__ and DLPack: torch.from_dlpack(fragment), cupy.asarray(fragment) are its bytes in place. The CPU cannot read them:
/// tobytes has the device copy them. Its token is given back when it, and all arrays and tensors of it, are gone.
#[pyclass(frozen, module = "onecopy", weakref)]
pub struct Fragment {
    piece: Arc<Piece>,
    /// Whose address was told by __cuda_array_interface__: those who use it keep this object, and nothing says when they are done.
    told: Mutex<Option<Here<Lent>>>,
}

impl Fragment {
    fn of(token: Token) -> Fragment {
        let piece = Piece { frag: token.frag(), token: Mutex::new(Some(Here::new(token))) };
        Fragment { piece: Arc::new(piece), told: Mutex::default() }
    }

    pub fn give_back(&self) -> bool {
        self.piece.give_back()
    }

    fn no_addresses() -> PyErr {
        PyBufferError::new_err(
            "opaque memory has no addresses, on no device: DeviceMemory.cuda has, and tobytes() copies",
        )
    }
}

impl Drop for Fragment {
    fn drop(&mut self) {
        // The device's queue may be waiting for a stream, and that for a function of Python's: whatever ends here, nobody is attached meanwhile. (What
        // was told has the piece, too. The token may be the last to have the memory.)
        let told = lock(&self.told).take();
        let last = Arc::strong_count(&self.piece) <= 1 + usize::from(told.is_some());
        let token = if last { lock(&self.piece.token).take() } else { None };
        if told.is_some() || token.is_some() {
            call::let_go((told, token));
        }
    }
}

/// The stream that DLPack's taker uses the tensor on.
fn stream_of(stream: Option<i64>) -> PyResult<Stream> {
    match stream {
        // The default stream of each thread (2) waits for the legacy one, and the legacy one for it: whichever thread drops the tensor.
        None | Some(1 | 2) => Ok(LEGACY),
        Some(-1) => Ok(None),
        Some(handle) if handle > 2 => Ok(usize::try_from(handle).ok()),
        Some(other) => Err(PyBufferError::new_err(format!(
            "{other} is no stream of CUDA's: give its handle, 1 for the legacy default one, or -1 for none"
        ))),
    }
}

#[pymethods]
impl Fragment {
    /// Where it begins, in bytes from the beginning of its memory.
    #[getter]
    fn offset(&self) -> u64 {
        self.piece.frag.offset
    }

    /// Bytes.
    #[getter]
    fn size(&self) -> u32 {
        self.piece.frag.len
    }

    /// What it is given back by, from 1 on; 0 of a fragment that was only looked at.
    #[getter]
    fn token(&self) -> u64 {
        self.piece.frag.token
    }

    /// Which binding's memory it is: Binding.id.
    #[getter]
    fn binding(&self) -> u32 {
        self.piece.frag.binding
    }

    /// Its bytes, which the device copies to the host's memory.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let hold = self.piece.hold()?;
        PyBytes::new_with(py, self.piece.frag.len as usize, |bytes| {
            let copied = py.detach(|| hold.copy_out(bytes).map_err(Failure::from));
            copied.map_err(failed)
        })
    }

    /// The CUDA Array Interface, version 3, of its bytes. They are there: no stream has to wait. AttributeError of opaque memory.
    ///
    /// Who uses the address keeps this object. Its page is used again behind what the context's default stream, and all that it waits for, have to do when this
    /// object goes: wait for another stream (cudaStreamNonBlocking) before that, or use DLPack.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let lent = Lent::of(&self.piece, LEGACY)?.ok_or_else(|| {
            PyAttributeError::new_err("opaque memory has no __cuda_array_interface__: DeviceMemory.cuda has")
        })?;
        let (at, mut lent) = (lent.address(), Some(Here::new(lent)));
        // One is enough. Another one is dropped when the lock is free.
        let mut told = lock(&self.told);
        if told.is_none() {
            *told = lent.take();
        }
        drop(told);
        cuda_array(py, at, u64::from(self.piece.frag.len))
    }

    /// The device: (2, n), a CUDA device. BufferError of opaque memory.
    fn __dlpack_device__(&self) -> PyResult<(i32, i32)> {
        Ok(Lent::of(&self.piece, None)?.ok_or_else(Fragment::no_addresses)?.device())
    }

    /// A capsule with the bytes as a tensor of uint8. They are there: the stream need not wait for anything. The page is used again when the taker's last tensor is
    /// gone, behind what is in the stream by then; so a stream has to live as long as the tensors that were made with it (torch's do).
    ///
    /// stream: a handle, None or 1 for the legacy default stream; with -1 nothing is ordered, and whoever drops the tensor has waited for the device.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let stream = stream_of(stream)?;
        if copy == Some(true) {
            return Err(PyBufferError::new_err("no copy is made here: copy the tensor when you have it"));
        }
        let lent = Lent::of(&self.piece, stream)?.ok_or_else(Fragment::no_addresses)?;
        let (at, device) = (lent.address(), lent.device());
        if dl_device.is_some_and(|wanted| wanted != device) {
            return Err(PyBufferError::new_err(
                "the bytes are in a CUDA device's memory: move them when you have them, or use tobytes()",
            ));
        }
        let shape = Shape::new(vec![i64::from(self.piece.frag.len)]);
        let export = Export {
            at: std::ptr::without_provenance_mut::<c_void>(at as usize),
            device,
            shape: &shape,
            kind: DataType::BYTE,
            keep: Box::new(Here::new(lent)),
        };
        dlpack::writable(py, export, max_version.is_some_and(|(major, _)| major >= 1))
    }

    fn __repr__(&self) -> String {
        let Frag { offset, len, token, binding } = self.piece.frag;
        format!("<onecopy.Fragment of {len} bytes at {offset} of binding {binding}, token {token}>")
    }

    /// # Safety
    ///
    /// As Python calls it.
    unsafe fn __getbuffer__(_slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, _flags: c_int) -> PyResult<()> {
        // SAFETY: `view` is Python's.
        unsafe { memory::refuse(view) };
        Err(PyBufferError::new_err(
            "the bytes lie in a device's memory, which the CPU cannot read: tobytes() has the device copy them",
        ))
    }
}

/// What one call received: bytes of the host's memory, or fragments of a device's; never both. No bytes at all are the end. As a context manager it gives its
/// tokens back at the end.
#[pyclass(frozen, module = "onecopy")]
pub struct Frags {
    len: usize,
    linear: Option<Py<PyBytes>>,
    device: Py<PyTuple>,
}

impl Frags {
    /// Whatever fails here, the tokens are given back.
    pub fn of(py: Python<'_>, frags: devmem::Frags) -> PyResult<Frags> {
        let len = frags.len();
        let linear = match frags.linear() {
            Some(view) => {
                let bytes = PyBytes::new_with(py, view.len(), |bytes| {
                    py.detach(|| view.copy_to(bytes));
                    Ok(())
                });
                Some(bytes?.unbind())
            }
            None => None,
        };
        let tokens = frags.into_tokens().into_iter();
        let fragments: PyResult<Vec<_>> = tokens.map(|token| Bound::new(py, Fragment::of(token))).collect();
        Ok(Frags { len, linear, device: PyTuple::new(py, fragments?)?.unbind() })
    }

    /// Bytes of the host's memory.
    pub fn linear(py: Python<'_>, bytes: &[u8]) -> Frags {
        let linear = PyBytes::new(py, bytes).unbind();
        Frags { linear: Some(linear), ..Frags::thrown(py, bytes.len()) }
    }

    /// So many bytes that nobody has.
    pub fn thrown(py: Python<'_>, len: usize) -> Frags {
        Frags { len, linear: None, device: PyTuple::empty(py).unbind() }
    }
}

#[pymethods]
impl Frags {
    /// Bytes that were received, or thrown away (TRUNC).
    fn __len__(&self) -> usize {
        self.len
    }

    fn __bool__(&self) -> bool {
        self.len > 0
    }

    /// The bytes of the host's memory, as a copy; None where it is not those.
    #[getter(linear)]
    fn bytes(&self, py: Python<'_>) -> Option<Py<PyBytes>> {
        self.linear.as_ref().map(|bytes| bytes.clone_ref(py))
    }

    /// The fragments of a device's memory, in order.
    #[getter]
    fn device(&self, py: Python<'_>) -> Py<PyTuple> {
        self.device.clone_ref(py)
    }

    /// All bytes, those of a device's memory copied by it.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        if let Some(linear) = &self.linear {
            return Ok(linear.bind(py).clone());
        }
        let mut pieces = Vec::new();
        let mut len = 0;
        for fragment in self.device.bind(py).iter() {
            let piece = Arc::clone(&fragment.cast::<Fragment>()?.get().piece);
            len += piece.frag.len as usize;
            pieces.push((piece.hold()?, piece.frag.len as usize));
        }
        PyBytes::new_with(py, len, |mut rest| {
            let copied = py.detach(|| {
                for (hold, len) in &pieces {
                    let (bytes, behind) = mem::take(&mut rest).split_at_mut(*len);
                    hold.copy_out(bytes)?;
                    rest = behind;
                }
                Ok::<(), Failure>(())
            });
            copied.map_err(failed)
        })
    }

    /// Gives the tokens of all fragments back. The page of one that an array or tensor still looks at stays until that is gone.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        for fragment in self.device.bind(py).iter() {
            fragment.cast::<Fragment>()?.get().give_back();
        }
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.release(py)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let many = self.device.bind(py).len();
        format!("<onecopy.Frags of {} bytes, {many} of a device's memory>", self.len)
    }
}

/// What Connection.dont_need takes: fragments, tokens, and ranges of them.
#[derive(Default)]
pub struct Returned {
    fragments: Vec<Py<Fragment>>,
    pub ranges: Vec<devmem::TokenRange>,
}

impl Returned {
    pub fn of(tokens: &Bound<'_, PyAny>) -> PyResult<Returned> {
        let mut returned = Returned::default();
        for one in tokens.try_iter()? {
            let one = one?;
            if let Ok(fragment) = one.cast::<Fragment>() {
                returned.fragments.push(fragment.clone().unbind());
            } else if let Ok(start) = one.extract() {
                returned.ranges.push(devmem::TokenRange { start, count: 1 });
            } else {
                let (start, count) = one.extract().map_err(|_| {
                    PyTypeError::new_err(
                        "dont_need takes fragments, tokens, and pairs of a first token and a count",
                    )
                })?;
                returned.ranges.push(devmem::TokenRange { start, count });
            }
        }
        Ok(returned)
    }

    /// Gives the fragments back; returns how many had their token.
    pub fn give_back(&self) -> usize {
        self.fragments.iter().filter(|fragment| fragment.get().give_back()).count()
    }
}
