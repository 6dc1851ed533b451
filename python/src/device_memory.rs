//! A device's memory, and what binds it to a stack's receive queues.

use onecopy::advanced::pool::provider::CopyError;
use onecopy::advanced::pool::{DeviceId, DeviceMemory as Memory, OpenError, PoolConfig};
use onecopy::cuda::{self, Cuda, Settings};
use onecopy::devmem::{self, Event};
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use rustix::io::Errno;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, Weak};

use crate::call::{self, Failure, failed};
use crate::closable::Closable;
use crate::loans::lock;
use crate::memory::Buffer;
use crate::on_stack::Here;

/// Bytes of a page.
const PAGE: usize = 4096;

/// CUDA memory of this process. Only locked while attached to the interpreter, which lets no other thread be there at a fork: none leaves it locked.
static CUDA: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

struct Entry {
    /// Its pool's number.
    memory: u64,
    base: u64,
    ordinal: u32,
    cuda: Weak<Cuda>,
}

/// Memory of a CUDA device.
pub struct Known {
    /// Where byte 0 lies on the device.
    pub base: u64,
    pub ordinal: u32,
    pub cuda: Arc<Cuda>,
}

/// The CUDA memory of this number; None for memory of another kind. It is there as long as somebody has a page of it.
pub fn cuda_of(memory: u64) -> Option<Known> {
    let known = lock(&CUDA);
    let entry = known.iter().find(|entry| entry.memory == memory)?;
    Some(Known { base: entry.base, ordinal: entry.ordinal, cuda: entry.cuda.upgrade()? })
}

/// The CUDA Array Interface, version 3, of bytes that are there.
pub fn cuda_array(py: Python<'_>, at: u64, len: u64) -> PyResult<Bound<'_, PyDict>> {
    let interface = PyDict::new(py);
    interface.set_item("shape", (len,))?;
    interface.set_item("typestr", "|u1")?;
    interface.set_item("data", (at, false))?;
    interface.set_item("strides", py.None())?;
    interface.set_item("version", 3)?;
    interface.set_item("stream", py.None())?;
    Ok(interface)
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        Failure { errno: error.errno().raw_os_error(), text: error.to_string() }
    }
}

impl From<cuda::Error> for Failure {
    fn from(error: cuda::Error) -> Failure {
        Failure { errno: error.errno().raw_os_error(), text: error.to_string() }
    }
}

impl From<CopyError> for Failure {
    fn from(error: CopyError) -> Failure {
        let errno = match error {
            CopyError::Io(errno) => errno,
            _ => Errno::FAULT,
        };
        Failure { errno: errno.raw_os_error(), text: format!("the device did not copy: {error}") }
    }
}

struct Kind {
    memory: Memory,
    /// And where its byte 0 lies.
    cuda: Option<(Arc<Cuda>, u64)>,
    device: u32,
}

/// Memory of a device, which TCP's payload is received into (Stack.bind_rx), or sent from (Stack.bind_tx). The CPU cannot read it.
///
/// DeviceMemory.cuda(size) is a CUDA device's; DeviceMemory.opaque(size) is the stand-in for a device on machines without one.
#[pyclass(frozen, module = "onecopy", weakref)]
pub struct DeviceMemory(Here<Kind>);

fn pages(size: usize) -> u32 {
    u32::try_from(size.div_ceil(PAGE)).unwrap_or(u32::MAX)
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // To free a device's memory waits for what the device does.
        call::let_go(self.0.take());
    }
}

impl DeviceMemory {
    pub fn memory(&self) -> PyResult<&Memory> {
        self.0.get().map(|kind| &kind.memory).map_err(failed)
    }
}

#[pymethods]
impl DeviceMemory {
    /// At least `size` bytes that no process maps, as if they were device `device`'s: bytes get in and out by copies alone.
    #[staticmethod]
    #[pyo3(signature = (size, device = 0))]
    fn opaque(py: Python<'_>, size: usize, device: u32) -> PyResult<DeviceMemory> {
        let made = py.detach(|| Memory::opaque(pages(size), DeviceId(device)));
        let memory = made.map_err(failed)?;
        Ok(DeviceMemory(Here::new(Kind { memory, cuda: None, device })))
    }

    /// At least `size` bytes of CUDA device `device`. OSError says what is missing: ENODEV where there is no driver or device.
    #[staticmethod]
    #[pyo3(signature = (size, device = 0))]
    fn cuda(py: Python<'_>, size: usize, device: u32) -> PyResult<DeviceMemory> {
        let made = py.detach(|| {
            let cuda = Cuda::open(Settings::new(device)).map_err(Failure::from)?;
            let memory = Memory::new(PoolConfig::new().limit(pages(size)), Arc::clone(&cuda))?;
            let base = cuda.address().ok_or(Failure::from(Errno::NXIO))?;
            Ok::<_, Failure>((memory, cuda, base))
        });
        let (memory, cuda, base) = made.map_err(failed)?;
        let mut known = lock(&CUDA);
        known.retain(|entry| entry.cuda.strong_count() > 0);
        known.push(Entry { memory: memory.id(), base, ordinal: device, cuda: Arc::downgrade(&cuda) });
        drop(known);
        Ok(DeviceMemory(Here::new(Kind { memory, cuda: Some((cuda, base)), device })))
    }

    /// What it is: "cuda", or "opaque".
    #[getter]
    fn kind(&self) -> PyResult<&'static str> {
        let kind = self.0.get().map_err(failed)?;
        Ok(if kind.cuda.is_some() { "cuda" } else { "opaque" })
    }

    /// Which device it is of.
    #[getter]
    fn device(&self) -> PyResult<u32> {
        self.0.get().map(|kind| kind.device).map_err(failed)
    }

    /// Bytes.
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        Ok(self.memory()?.len())
    }

    /// Bytes of pages that nobody has. The page that small pieces are being cut from is somebody's.
    #[getter]
    fn free(&self) -> PyResult<u64> {
        Ok(self.memory()?.free())
    }

    /// Where byte 0 lies on the device; None of opaque memory, which has no addresses.
    #[getter]
    fn address(&self) -> PyResult<Option<u64>> {
        let kind = self.0.get().map_err(failed)?;
        Ok(kind.cuda.as_ref().map(|(_, base)| *base))
    }

    /// What the device has copied, in bytes: from the host's memory ("copied_in") and to it ("copied_out").
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let copied = self.memory()?.copied();
        let stats = PyDict::new(py);
        stats.set_item("copied_in", copied.into)?;
        stats.set_item("copied_out", copied.out)?;
        Ok(stats)
    }

    /// The CUDA Array Interface, version 3, of all of its bytes: torch.as_tensor(memory, device="cuda") and cupy.asarray(memory) are where a program's own kernels write what is to be sent. A send
    /// takes what is there: wait for the stream that writes, first. AttributeError of opaque memory.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let kind = self.0.get().map_err(failed)?;
        let (_, base) = kind.cuda.as_ref().ok_or_else(|| {
            PyAttributeError::new_err("opaque memory has no __cuda_array_interface__: DeviceMemory.cuda has")
        })?;
        cuda_array(py, *base, kind.memory.len())
    }

    /// Copies the bytes of any contiguous buffer to `offset`: for memory that is sent from (Stack.bind_tx). What a send under way has there may be sent as old or as new.
    ///
    /// OSError (EFAULT) where they would not lie inside of the memory.
    fn write_at(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let (memory, buffer) = (self.memory()?, Buffer::of(data)?);
        let bytes = buffer.bytes();
        let copied = py.detach(|| memory.write_at(offset, &[IoSlice::new(bytes)]).map_err(Failure::from));
        copied.map_err(failed)
    }

    /// A copy of n bytes at `offset`. OSError (EFAULT) where they do not lie inside of the memory.
    fn read_at<'py>(&self, py: Python<'py>, offset: u64, n: usize) -> PyResult<Bound<'py, PyBytes>> {
        let memory = self.memory()?;
        if offset.checked_add(n as u64).is_none_or(|end| end > memory.len()) {
            return Err(failed(Failure {
                errno: Errno::FAULT.raw_os_error(),
                text: format!(
                    "{n} bytes at {offset} are not inside of the memory, which has {}",
                    memory.len()
                ),
            }));
        }
        PyBytes::new_with(py, n, |bytes| {
            let copied = py.detach(|| memory.read_at(offset, bytes).map_err(Failure::from));
            copied.map_err(failed)
        })
    }

    /// By which ways bytes went to a CUDA device, as text; None of opaque memory.
    fn report(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let kind = self.0.get().map_err(failed)?;
        Ok(kind.cuda.as_ref().map(|(cuda, _)| py.detach(|| cuda.report().to_string())))
    }

    fn __repr__(&self) -> String {
        match self.0.get() {
            Ok(kind) => {
                let name = if kind.cuda.is_some() { "cuda" } else { "opaque" };
                format!("<onecopy.DeviceMemory of {} bytes, {name} {}>", kind.memory.len(), kind.device)
            }
            Err(_) => "<onecopy.DeviceMemory of another process>".to_owned(),
        }
    }
}

/// Why a closed binding cannot be used.
pub fn unbound() -> PyErr {
    failed(Failure {
        errno: Errno::BADF.raw_os_error(),
        text: "the binding was closed by this program: bind the memory again".to_owned(),
    })
}

/// Memory that is bound to receive queues, from Stack.bind_rx: until it is closed, or this object is gone. What was received stays valid.
#[pyclass(frozen, module = "onecopy", weakref)]
pub struct Binding {
    bound: Closable<Here<devmem::Binding>>,
    id: u32,
}

impl Binding {
    pub fn of(binding: devmem::Binding) -> Binding {
        let id = binding.id();
        Binding { bound: Closable::new(Here::new(binding)), id }
    }

    /// Asks the binding, detached.
    fn ask<R: Send>(&self, py: Python<'_>, ask: impl FnOnce(&devmem::Binding) -> R + Send) -> PyResult<R> {
        let bound = self.bound.get().ok_or_else(unbound)?;
        let asked = py.detach(|| bound.get().map(ask));
        asked.map_err(failed)
    }
}

#[pymethods]
impl Binding {
    /// Its number in the stack, which each fragment has.
    #[getter]
    fn id(&self) -> u32 {
        self.id
    }

    /// Bytes that peers were told they may send, and that have not come.
    #[getter]
    fn promised(&self, py: Python<'_>) -> PyResult<u64> {
        self.ask(py, devmem::Binding::promised)
    }

    /// Times that a window had to be smaller for want of memory.
    #[getter]
    fn narrowed(&self, py: Python<'_>) -> PyResult<u64> {
        self.ask(py, devmem::Binding::narrowed)
    }

    /// The next thing that has happened to it: "starved" (too little is free: give tokens back), "dropped" (a packet, for want of a page) or
    /// "fed" (peers may send again). None where there is nothing.
    fn event(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        let event = self.ask(py, devmem::Binding::event)?;
        Ok(event.map(|event| match event {
            Event::Starved => "starved",
            Event::Dropped => "dropped",
            Event::Fed => "fed",
        }))
    }

    /// Unbinds the memory. Its queues go on with ordinary pages.
    fn close(&self) {
        self.bound.close();
    }

    /// Whether close was called.
    #[getter]
    fn closed(&self) -> bool {
        self.bound.is_closed()
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { ", closed" } else { "" };
        format!("<onecopy.Binding {}{closed}>", self.id)
    }
}
