//! Room in the peer's buffer, which Python writes in place.

use onecopy::unix::Slot;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard};

use crate::call;
use crate::closable::Using;
use crate::inner::Inner;
use crate::memory::{self, Region};

/// Room where the peer will read, with the buffer protocol: fill memoryview(reservation), then commit.
#[pyclass(frozen, module = "onecopy")]
pub struct Reservation {
    state: Mutex<State>,
    len: usize,
}

struct State {
    room: Option<Room>,
    exports: usize,
}

/// The room, and where it is written.
struct Room {
    /// Before what it borrows from, as fields are dropped in order.
    slot: Option<Slot<'static>>,
    /// A buffer of our own, where there is no such room, or where it wraps.
    own: Option<Vec<u8>>,
    region: Region,
    inner: Using<Inner>,
}

impl Drop for Room {
    fn drop(&mut self) {
        drop(self.slot.take());
        self.inner.unreserve();
    }
}

fn over() -> PyErr {
    PyValueError::new_err("the reservation was committed or dropped: reserve again")
}

impl Reservation {
    /// The caller has set `inner`'s mark that it is reserved.
    pub fn of(py: Python<'_>, inner: Using<Inner>, len: usize) -> PyResult<Reservation> {
        let mut room = Room { slot: None, own: None, region: Region::EMPTY, inner };
        let mut len = len;
        let (transport, limit) = (&room.inner.transport, room.inner.timeout());
        // SAFETY: only the lifetime changes. The slot borrows from the Transport in `room.inner`, which has an Arc of it, so it does not move, and Room drops
        // the slot first.
        let slot = call::waiting(py, limit, || transport.reserve(len))?
            .map(|slot| unsafe { std::mem::transmute::<Slot<'_>, Slot<'static>>(slot) });
        room.slot = slot;
        if let Some(slot) = &mut room.slot {
            len = slot.len();
            match slot.raw_parts() {
                [(at, first), (_, 0)] if first > 0 => room.region = Region { at, len: first },
                _ => room.own = Some(vec![0; len]),
            }
        } else {
            room.own = Some(vec![0; len]);
        }
        if let Some(own) = &mut room.own {
            room.region = Region { at: own.as_mut_ptr(), len };
        }
        Ok(Reservation { state: Mutex::new(State { room: Some(room), exports: 0 }), len })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn take(&self) -> PyResult<Room> {
        let mut state = self.state();
        if state.exports > 0 {
            return Err(PyBufferError::new_err(
                "an array or memoryview can still write this room: release it before commit",
            ));
        }
        state.room.take().ok_or_else(over)
    }
}

#[pymethods]
impl Reservation {
    fn __len__(&self) -> usize {
        self.len
    }

    fn __repr__(&self) -> String {
        format!("<onecopy.Reservation of {} bytes>", self.len)
    }

    /// Whether what is written lies where the peer reads; else commit copies it.
    #[getter]
    fn in_place(&self) -> bool {
        self.state().room.as_ref().is_some_and(|room| room.own.is_none())
    }

    /// Sends the first `length` bytes, all by default. Returns how many bytes were sent.
    #[pyo3(signature = (length = None))]
    fn commit(&self, py: Python<'_>, length: Option<usize>) -> PyResult<usize> {
        let length = length.unwrap_or(self.len);
        if length > self.len {
            return Err(PyValueError::new_err(format!(
                "there is room for {} bytes, not for {length}",
                self.len
            )));
        }
        let mut room = self.take()?;
        let limit = room.inner.timeout();
        match (room.slot.take(), room.own.take()) {
            (Some(mut slot), own) => py
                .detach(|| {
                    match own {
                        Some(own) => slot.copy_from(&own[..length]),
                        None => slot.fill(length),
                    };
                    slot.commit()
                })
                .map_err(call::failed),
            (None, Some(own)) => {
                let transport = &room.inner.transport;
                call::waiting(py, limit, || transport.send(&own[..length], 0))
            }
            (None, None) => Err(over()),
        }
    }

    /// Gives the room back; nothing is sent.
    fn cancel(&self) -> PyResult<()> {
        self.take().map(drop)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Commits all of it, unless that was done, or an exception came.
    fn __exit__(
        &self,
        py: Python<'_>,
        exception: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if self.state().room.is_none() {
            return Ok(());
        }
        if exception.is_none() { self.commit(py, None).map(drop) } else { self.cancel() }
    }

    /// # Safety
    ///
    /// As Python calls it.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let mut state = slf.get().state();
        let Some(region) = state.room.as_ref().map(|room| room.region) else {
            // SAFETY: `view` is Python's.
            unsafe { memory::refuse(view) };
            return Err(over());
        };
        state.exports += 1;
        drop(state);
        let own = slf.clone();
        // SAFETY: `view` is Python's. The room is neither committed nor dropped while something is exported (`take`), and this object, which
        // the view refers to, has it. It is room to write, or a Vec of this object's.
        let exported = unsafe { region.export(slf.into_any(), view, flags, true) };
        exported.inspect_err(|_| own.get().state().exports -= 1)
    }

    /// # Safety
    ///
    /// As Python calls it.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.state().exports -= 1;
    }
}
