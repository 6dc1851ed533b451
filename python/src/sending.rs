//! Sending from a device's memory: what binds it to a stack, and how a send is told of.

use onecopy::advanced::chain::Chain;
use onecopy::devmem::{self, TxRange};
use onecopy::zerocopy::{self, How};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::io::Errno;
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::call::{self, Failure, failed};
use crate::closable::{Closable, Using};
use crate::device_memory::unbound;
use crate::loans::lock;
use crate::on_stack::{self, Here};

/// Memory that connections of a stack send from, from Stack.bind_tx: until it is closed, or this object is gone. What is under way is delivered all the same.
#[pyclass(frozen, module = "onecopy", weakref)]
pub struct TxBinding {
    bound: Closable<Here<devmem::TxBinding>>,
    id: u32,
}

impl TxBinding {
    pub fn of(binding: devmem::TxBinding) -> TxBinding {
        let id = binding.id();
        TxBinding { bound: Closable::new(Here::new(binding)), id }
    }

    pub fn get(&self) -> PyResult<Using<Here<devmem::TxBinding>>> {
        self.bound.get().ok_or_else(unbound)
    }
}

#[pymethods]
impl TxBinding {
    /// Its number in the stack, of the same row as those of Bindings.
    #[getter]
    fn id(&self) -> u32 {
        self.id
    }

    /// Unbinds the memory.
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
        format!("<onecopy.TxBinding {}{closed}>", self.id)
    }
}

/// Ranges of a memory, from pairs of an offset and a length.
pub fn ranges(pairs: &Bound<'_, PyAny>) -> PyResult<Vec<TxRange>> {
    let pairs: Vec<(u64, u64)> =
        pairs.extract().map_err(|error: PyErr| match error.is_instance_of::<PyTypeError>(pairs.py()) {
            true => PyTypeError::new_err("ranges are pairs of an offset and a length, such as [(0, 4096)]"),
            false => error,
        })?;
    Ok(pairs.into_iter().map(|(offset, len)| TxRange { offset, len }).collect())
}

/// Makes a descriptor readable: each who waits for a send polls it.
struct Bell(OwnedFd);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // It is never full: it counts, and is rung a few times for each piece.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Bell {
    fn new() -> Result<Arc<Bell>, Failure> {
        Ok(Arc::new(Bell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    fn quiet(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// What is known of a send's pieces.
#[derive(Default)]
struct State {
    /// Those that are under way, in order.
    under_way: Vec<zerocopy::Sent>,
    /// Of those that are complete.
    how: How,
    /// Made for the first who waits; then all are asked with it, as only the last waker is woken.
    bell: Option<Arc<Bell>>,
}

impl State {
    /// Looks whether they are complete. Returns what they kept, to be dropped without the lock.
    ///
    /// The bell is quiet before it is asked: what completes later rings again. Once all are, it stays readable, for whoever waits.
    fn look(&mut self) -> Vec<Chain> {
        let mut back = Vec::new();
        if self.under_way.is_empty() {
            return back;
        }
        let waker = self.bell.clone().map_or_else(|| Waker::noop().clone(), Waker::from);
        let mut context = Context::from_waker(&waker);
        if let Some(bell) = &self.bell {
            bell.quiet();
        }
        self.under_way.retain_mut(|sent| match Pin::new(sent).poll(&mut context) {
            Poll::Ready((chain, how)) => {
                self.how.copied |= how.copied;
                self.how.unknown |= how.unknown;
                self.how.dropped |= how.dropped;
                back.push(chain);
                false
            }
            Poll::Pending => true,
        });
        if self.under_way.is_empty() {
            waker.wake_by_ref();
        }
        back
    }
}

/// A send under way, from Connection.send_device: len() is how many bytes it has. It is complete once the peer has acknowledged all of them, or the connection has ended;
/// then their memory may be written again. If it is dropped, the bytes are delivered all the same.
#[pyclass(frozen, module = "onecopy", weakref)]
pub struct Sent {
    len: usize,
    state: Here<Mutex<State>>,
}

impl Sent {
    pub fn of(under_way: Vec<zerocopy::Sent>) -> Sent {
        let len = under_way.iter().map(zerocopy::Sent::len).sum();
        let state = State { under_way, ..State::default() };
        Sent { len, state: Here::new(Mutex::new(state)) }
    }

    /// How it left, if it is complete.
    fn look(&self) -> Result<Option<How>, Failure> {
        let mut state = lock(self.state.get()?);
        let back = state.look();
        let how = state.under_way.is_empty().then_some(state.how);
        drop(state);
        drop(back);
        Ok(how)
    }

    /// What is readable once it is complete.
    fn bell(&self) -> Result<Arc<Bell>, Failure> {
        let mut state = lock(self.state.get()?);
        if let Some(bell) = &state.bell {
            return Ok(Arc::clone(bell));
        }
        let bell = state.bell.insert(Bell::new()?).clone();
        if state.under_way.is_empty() {
            bell.wake_by_ref();
        }
        // From now on they ring.
        let back = state.look();
        drop(state);
        drop(back);
        Ok(bell)
    }

    /// Waits until it is complete, up to a limit.
    fn complete(&self, limit: Option<Duration>) -> Result<How, Failure> {
        let began = Instant::now();
        loop {
            if let Some(how) = self.look()? {
                return Ok(how);
            }
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Errno::AGAIN.into());
            }
            let bell = self.bell()?;
            match on_stack::wait(bell.0.as_fd(), PollFlags::IN, left) {
                // It may have come at the last moment.
                Err(failure) if failure.waits() && !failure.is_interrupted() => {}
                done => done?,
            }
        }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        // The last to have a memory frees it, which waits for what the device does.
        call::let_go(self.state.take());
    }
}

#[pymethods]
impl Sent {
    fn __len__(&self) -> usize {
        self.len
    }

    fn __bool__(&self) -> bool {
        self.len > 0
    }

    /// Whether it is complete.
    #[getter]
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(py.detach(|| self.look()).map_err(failed)?.is_some())
    }

    /// Whether bytes were copied on the way, as a TAP does; None as long as that is not known.
    #[getter]
    fn copied(&self, py: Python<'_>) -> PyResult<Option<bool>> {
        let how = py.detach(|| self.look()).map_err(failed)?;
        Ok(how.filter(|how| !how.unknown).map(|how| how.copied))
    }

    /// Waits until it is complete, at most for `timeout` seconds (TimeoutError; 0 is not at all: BlockingIOError). Returns True once the peer has all of it, and False where
    /// the connection has ended before. Either way its memory may be written again.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let limit = call::limit(timeout)?;
        let began = Instant::now();
        let how = call::waiting(py, limit, || {
            self.complete(limit.map(|limit| limit.saturating_sub(began.elapsed())))
        })?;
        Ok(!how.dropped)
    }

    /// A descriptor that is readable once it is complete, for select, poll and asyncio. Nothing may be read from it.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        Ok(py.detach(|| self.bell()).map_err(failed)?.0.as_raw_fd())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let how = match py.detach(|| self.look()) {
            Ok(None) => "under way",
            Ok(Some(How { dropped: true, .. })) => "dropped",
            Ok(Some(_)) => "done",
            Err(_) => "of another process",
        };
        format!("<onecopy.Sent of {} bytes, {how}>", self.len)
    }
}
