//! What a connection receives, and how it waits for that.

use pyo3::exceptions::{
    PyBlockingIOError, PyBufferError, PyEOFError, PyOSError, PyTimeoutError, PyValueError,
};
use pyo3::prelude::*;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::call::{self, DONTWAIT, Failure, WAITALL};
use crate::held::Held;
use crate::loans::Loans;
use crate::transport::Transport;

/// How long nothing may come before held views are copied out: longer than a peer needs that sends one record after the other.
const MOMENT: Duration = Duration::from_millis(1);

/// What was asked for is received in pieces of so many bytes, where a length may be a mistake.
const ALL: usize = 1 << 20;

/// What a connection and its reservations share.
pub struct Inner {
    pub transport: Transport,
    pub loans: Arc<Loans>,
    settings: Mutex<Settings>,
}

struct Settings {
    timeout: Option<Duration>,
    /// What failed behind bytes that were received: the next receive says so.
    late: Option<PyErr>,
    /// A reservation holds the sending side: a send of this connection would wait for ever.
    reserved: bool,
}

impl Inner {
    pub fn of(transport: Transport) -> Inner {
        let settings = Mutex::new(Settings { timeout: None, late: None, reserved: false });
        Inner { transport, loans: Arc::default(), settings }
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn timeout(&self) -> Option<Duration> {
        self.settings().timeout
    }

    pub fn set_timeout(&self, limit: Option<Duration>) {
        self.settings().timeout = limit;
    }

    /// What failed behind bytes that were received before is said now.
    pub fn late(&self) -> PyResult<()> {
        let late = self.settings().late.take();
        late.map_or(Ok(()), Err)
    }

    /// Marks the sending side as a reservation's. BufferError where it is that of another one.
    pub fn reserve(&self) -> PyResult<()> {
        if mem::replace(&mut self.settings().reserved, true) { Err(reserved()) } else { Ok(()) }
    }

    /// # Errors
    ///
    /// BufferError while a reservation is open.
    pub fn may_send(&self) -> PyResult<()> {
        if self.settings().reserved { Err(reserved()) } else { Ok(()) }
    }

    pub fn unreserve(&self) {
        self.settings().reserved = false;
    }

    /// Receives into a buffer: what is there; with WAITALL as much as there is room for, unless the end, an error or the timeout comes before.
    pub fn fill(&self, py: Python<'_>, bytes: &mut [u8], flags: u32) -> PyResult<usize> {
        call::has_only(WAITALL, flags)?;
        let all = flags & WAITALL != 0 && flags & DONTWAIT == 0 && !self.transport.has_records();
        let (len, began) = (bytes.len(), Instant::now());
        let mut have = 0;
        loop {
            let rest = &mut bytes[have..];
            let got =
                self.receiving(py, flags & !WAITALL, |dont_wait| self.transport.recv(rest, dont_wait, all));
            let late = self.timeout().is_some_and(|limit| began.elapsed() >= limit);
            match got {
                Ok(n) => {
                    self.loans.took(n);
                    have += n;
                    if !all || n == 0 || have == len || late {
                        return Ok(have);
                    }
                }
                Err(error) if have > 0 && error.is_instance_of::<PyOSError>(py) => {
                    // To wait once more is no news; and what stays is said again. (A connection may time out, too: before our limit.)
                    let is_ours = late && error.is_instance_of::<PyTimeoutError>(py);
                    if !is_ours && !error.is_instance_of::<PyBlockingIOError>(py) && !call::stays(py, &error)
                    {
                        // What was there before goes behind the lock: it is Python's.
                        let _before = self.settings().late.replace(error);
                    }
                    return Ok(have);
                }
                Err(error) => return Err(error),
            }
            // A signal ends one receive, and the next one would wait before its handler has run.
            py.check_signals()?;
        }
    }

    /// Receives up to `max` bytes: to `look` at them where they lie, or for somebody who wants them all.
    pub fn receive(&self, py: Python<'_>, max: usize, flags: u32, look: bool) -> PyResult<Held> {
        self.receiving(py, flags, |dont_wait| self.transport.borrow(max, dont_wait, look))
            .map(|data| Held::new(data, &self.loans))
    }

    /// Calls `attempt`, which is told whether it may wait. Who would wait while views are held may wait for ever: the peer's next bytes may need
    /// the room. (A `for` loop holds the view before while it asks for the next one.) So the views are copied out where
    /// nothing comes for a moment.
    fn receiving<R: Send>(
        &self,
        py: Python<'_>,
        flags: u32,
        mut attempt: impl FnMut(bool) -> Result<R, Failure> + Send,
    ) -> PyResult<R> {
        call::has_only(0, flags)?;
        let dont_wait = flags & DONTWAIT != 0;
        let limit = self.timeout();
        self.late()?;
        if self.loans.any() {
            let patient = !dont_wait && limit != Some(Duration::ZERO);
            let first = py.detach(|| {
                self.loans.relieve(self.transport.receive_capacity() / 2);
                match attempt(true) {
                    // The descriptor may be ready for what is no data.
                    Err(failure) if failure.waits() && patient && self.transport.readable_within(MOMENT) => {
                        attempt(true)
                    }
                    done => done,
                }
            });
            match first {
                Err(failure) if failure.waits() => {}
                done => return Ok(done?),
            }
        }
        let _waits = py.detach(|| self.loans.wait());
        call::waiting(py, limit, || attempt(dont_wait))
    }

    /// Receives exactly so many bytes: where they lie, if they come as one piece, else into a buffer.
    pub fn exactly(&self, py: Python<'_>, len: usize, flags: u32) -> PyResult<Held> {
        let first = self.receive(py, len, flags, false)?;
        if first.len == len {
            return Ok(first);
        }
        if self.transport.has_records() {
            return Err(PyValueError::new_err(format!(
                "the record has {} bytes, and the tensor {len}: it is lost",
                first.len
            )));
        }
        let mut bytes = vec![0; len];
        let mut have = first.len;
        first.copy_to(&mut bytes[..have]);
        drop(first);
        while have < len {
            let rest = &mut bytes[have..];
            let piece = rest.len().min(ALL);
            let n =
                self.receiving(py, 0, |dont_wait| self.transport.recv(&mut rest[..piece], dont_wait, true))?;
            self.loans.took(n);
            if n == 0 {
                return Err(PyEOFError::new_err(format!(
                    "the peer ended the stream after {have} of {len} bytes"
                )));
            }
            have += n;
        }
        Ok(Held::copied(bytes, &self.loans))
    }
}

fn reserved() -> PyErr {
    PyBufferError::new_err("a reservation is open: commit or cancel it before the next send")
}
