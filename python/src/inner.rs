//! What a connection receives, and how it waits for that.

use pyo3::exceptions::{PyBufferError, PyEOFError, PyValueError};
use pyo3::prelude::*;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::call::{self, DONTWAIT, Ended, Failure, PEEK, TRUNC, WAITALL};
use crate::frags::Frags;
use crate::held::Held;
use crate::kept::{Kept, Partial};
use crate::loans::Loans;
use crate::transport::Transport;

/// How long nothing may come before held views are copied out: longer than a peer needs that sends one record after the other.
const MOMENT: Duration = Duration::from_millis(1);

/// include/linux/errno.h.
const ETOOSMALL: i32 = 525;

/// What a connection and its reservations share.
pub struct Inner {
    pub transport: Transport,
    pub loans: Arc<Loans>,
    settings: Mutex<Settings>,
}

struct Settings {
    timeout: Option<Duration>,
    /// What failed behind bytes that were received: the next receive says so.
    late: Option<Failure>,
    /// What a receive had got before it raised. It comes before `late`.
    kept: Kept,
    /// A reservation holds the sending side: a send of this connection would wait for ever.
    reserved: bool,
}

/// Why a receive into a buffer is over.
enum Stop {
    /// There is as much as was asked for.
    Enough,
    /// Of the stream.
    End,
    /// The timeout.
    Late,
}

impl Inner {
    pub fn of(transport: Transport) -> Inner {
        let settings =
            Mutex::new(Settings { timeout: None, late: None, kept: Kept::default(), reserved: false });
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
    ///
    /// # Errors
    ///
    /// That failure.
    pub fn late(&self) -> Result<(), Failure> {
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
        let mut have = self.take_kept(py, bytes);
        if have > 0 && (!all || have == bytes.len()) {
            return Ok(have);
        }
        match self.gather(py, bytes, &mut have, flags & !WAITALL, all) {
            Ok(_) => Ok(have),
            Err(ended) if have == 0 => Err(ended.into()),
            // To wait once more is no news.
            Err(Ended::Late) => Ok(have),
            Err(Ended::Failed(failure)) => {
                self.say_again(failure);
                Ok(have)
            }
            Err(Ended::Raised(error)) => {
                // The caller does not learn how many bytes are in its buffer.
                self.keep(py, Partial { bytes: bytes[..have].to_vec(), have });
                Err(error)
            }
        }
    }

    /// Receives into the buffer from `have` on, which goes up: once, or with `all` until it is full.
    fn gather(
        &self,
        py: Python<'_>,
        bytes: &mut [u8],
        have: &mut usize,
        flags: u32,
        all: bool,
    ) -> Result<Stop, Ended> {
        let (len, began) = (bytes.len(), Instant::now());
        loop {
            let rest = &mut bytes[*have..];
            let n = self.receiving(py, flags, |dont_wait| self.transport.recv(rest, dont_wait, all))?;
            self.loans.took(n);
            *have += n;
            if !all || *have == len {
                return Ok(Stop::Enough);
            }
            if n == 0 {
                return Ok(Stop::End);
            }
            if self.is_late(began) {
                return Ok(Stop::Late);
            }
            // A signal ends one receive, and the next one would wait before its handler has run.
            py.check_signals().map_err(Ended::Raised)?;
        }
    }

    /// Whether the timeout of a call that began then is over. (Who does not wait at all is never late: BlockingIOError ends that.)
    fn is_late(&self, began: Instant) -> bool {
        self.timeout().is_some_and(|limit| !limit.is_zero() && began.elapsed() >= limit)
    }

    /// Has the receive say it that comes behind the bytes which are there, if no further call says it of itself. (A connection may time out, too.)
    fn say_again(&self, failure: Failure) {
        if failure.is_said_once() {
            self.settings().late = Some(failure);
        }
    }

    /// Receives up to `max` bytes: to `look` at them where they lie, or for somebody who wants them all.
    pub fn receive(&self, py: Python<'_>, max: usize, flags: u32, look: bool) -> PyResult<Held> {
        call::has_only(0, flags)?;
        let kept = self.settings().kept.len().min(max);
        if kept > 0 {
            let mut bytes = vec![0; kept];
            let have = self.take_kept(py, &mut bytes);
            bytes.truncate(have);
            if have > 0 {
                return Ok(Held::copied(bytes, &self.loans));
            }
        }
        self.borrow(py, max, flags, look)
    }

    fn borrow(&self, py: Python<'_>, max: usize, flags: u32, look: bool) -> PyResult<Held> {
        let data = self.receiving(py, flags, |dont_wait| self.transport.borrow(max, dont_wait, look))?;
        Ok(Held::new(data, &self.loans))
    }

    /// Receives exactly so many bytes: where they lie, if they come as one piece, else into a buffer. What has come of a stream before an exception is
    /// kept for the next receive, also where that asks for something else.
    pub fn exactly(&self, py: Python<'_>, len: usize, flags: u32) -> PyResult<Held> {
        call::has_only(0, flags)?;
        let mut partial = match self.resume(py, len)? {
            Some(partial) => partial,
            None => {
                let first = self.borrow(py, len, flags, false)?;
                if first.len == len {
                    return Ok(first);
                }
                if self.transport.has_records() {
                    return Err(PyValueError::new_err(format!(
                        "the record has {} bytes, and the tensor {len}: it is lost",
                        first.len
                    )));
                }
                self.begin(py, len, &first)?
            }
        };
        let stop = if partial.is_full() {
            Ok(Stop::Enough)
        } else {
            self.gather(py, &mut partial.bytes, &mut partial.have, flags, true)
        };
        let have = partial.have;
        let error = match stop {
            Ok(Stop::Enough) => return Ok(Held::copied(partial.bytes, &self.loans)),
            Ok(Stop::End) => PyEOFError::new_err(format!(
                "the peer ended the stream after {have} of {len} bytes, which the next receive gets"
            )),
            Ok(Stop::Late) | Err(Ended::Late) => call::late(&format!(
                "timed out: {have} of {len} bytes came in the time of the socket's timeout, and the next receive gets them"
            )),
            Err(Ended::Failed(failure)) => {
                if have > 0 {
                    // Who asks for these bytes later would take their end for the peer's.
                    self.say_again(failure.clone());
                }
                failure.into()
            }
            Err(Ended::Raised(error)) => error,
        };
        self.keep(py, partial);
        Err(error)
    }

    /// A buffer for so many bytes, with what was kept in it. None where nothing is kept.
    fn resume(&self, py: Python<'_>, len: usize) -> PyResult<Option<Partial>> {
        {
            let mut settings = self.settings();
            if settings.kept.len() == 0 {
                return Ok(None);
            }
            if let Some(partial) = settings.kept.resume(len) {
                return Ok(Some(partial));
            }
        }
        let mut partial = Partial::of(len)?;
        partial.have = self.take_kept(py, &mut partial.bytes);
        Ok(Some(partial))
    }

    /// A buffer for so many bytes, with the first of them.
    fn begin(&self, py: Python<'_>, len: usize, first: &Held) -> PyResult<Partial> {
        let copy = |mut partial: Partial| {
            first.copy_to(&mut partial.bytes[..first.len]);
            Partial { have: first.len, ..partial }
        };
        match Partial::of(len) {
            Ok(partial) => Ok(copy(partial)),
            Err(error) => {
                self.keep(py, copy(Partial::of(first.len)?));
                Err(error)
            }
        }
    }

    /// Kept bytes as what recv_frags returns, with its flags. None where nothing is kept.
    pub fn kept_frags(&self, py: Python<'_>, n: usize, most: usize, flags: u32) -> PyResult<Option<Frags>> {
        let there = self.kept().min(n);
        if there == 0 {
            return Ok(None);
        }
        let looks = flags & PEEK != 0;
        if flags & TRUNC != 0 {
            let thrown = if looks { there } else { self.settings().kept.skip(there) };
            return Ok(Some(Frags::thrown(py, thrown)));
        }
        if most == 0 {
            let text = "there are bytes, and no piece was asked for: raise `most`".to_owned();
            return Err(Failure { errno: ETOOSMALL, text }.into());
        }
        let mut bytes = vec![0; there];
        let have = match looks {
            true => py.detach(|| self.settings().kept.peek(&mut bytes)),
            false => self.take_kept(py, &mut bytes),
        };
        Ok(Some(Frags::linear(py, &bytes[..have])))
    }

    /// How many bytes are kept, which a receive gets before all others.
    fn kept(&self) -> usize {
        self.settings().kept.len()
    }

    /// Takes kept bytes: without the GIL, as there may be many.
    fn take_kept(&self, py: Python<'_>, buffer: &mut [u8]) -> usize {
        if self.kept() == 0 { 0 } else { py.detach(|| self.settings().kept.take(buffer)) }
    }

    fn keep(&self, py: Python<'_>, partial: Partial) {
        py.detach(|| self.settings().kept.put(partial));
    }

    /// Calls `attempt`, which is told whether it may wait. Who would wait while views are held may wait for ever: the peer's next bytes may need
    /// the room. (A `for` loop holds the view before while it asks for the next one.) So the views are copied out where
    /// nothing comes for a moment.
    fn receiving<R: Send>(
        &self,
        py: Python<'_>,
        flags: u32,
        mut attempt: impl FnMut(bool) -> Result<R, Failure> + Send,
    ) -> Result<R, Ended> {
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
        call::trying(py, limit, || attempt(dont_wait))
    }
}

fn reserved() -> PyErr {
    PyBufferError::new_err("a reservation is open: commit or cancel it before the next send")
}
