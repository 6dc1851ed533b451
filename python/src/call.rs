//! How a call waits: detached from the interpreter (without the GIL, or so that the world can be stopped), and so that Ctrl-C ends it. What fails becomes an exception.
//!
//! No lock of ours is held while something of Python's is done, and whoever may have to wait for one, longer than for a look, is detached: a free-threaded Python stops the world to collect
//! garbage, and waits for all who are attached.

use pyo3::exceptions::{PyOSError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// The flag of one call that is not to wait, for sends and receives alike.
pub const DONTWAIT: u32 = 1 << 16;

/// Flags of one receive, with the numbers that `socket` has for them.
pub const PEEK: u32 = 0x2;
pub const TRUNC: u32 = 0x20;
pub const WAITALL: u32 = 0x100;

/// Refuses those flags that a receive has not: who asked to look at bytes would lose them.
///
/// # Errors
///
/// OSError: EOPNOTSUPP.
pub fn has_only(known: u32, flags: u32) -> PyResult<()> {
    if flags & (PEEK | TRUNC | WAITALL) & !known == 0 {
        return Ok(());
    }
    Err(failed(Failure {
        errno: Errno::OPNOTSUPP.raw_os_error(),
        text: "this receive has no such flag: recv_frags has PEEK and TRUNC, and recv_into has WAITALL"
            .to_owned(),
    }))
}

/// Why a call failed: an errno, and what there is to say of it.
#[derive(Clone)]
pub struct Failure {
    pub errno: i32,
    pub text: String,
}

impl Failure {
    /// Whether the call may work later, or was interrupted: EAGAIN, EINTR.
    pub fn waits(&self) -> bool {
        [Errno::AGAIN, Errno::INTR].iter().any(|errno| errno.raw_os_error() == self.errno)
    }

    /// EINTR.
    pub fn is_interrupted(&self) -> bool {
        self.errno == Errno::INTR.raw_os_error()
    }

    /// Whether each call says so until something else is done about it: EFAULT, of bytes in a device's memory.
    fn stays(&self) -> bool {
        self.errno == Errno::FAULT.raw_os_error()
    }

    /// Whether the call that fails says it, and none after it: a reset. That a call would have to wait is no such news.
    pub fn is_said_once(&self) -> bool {
        !self.waits() && !self.stays()
    }
}

impl From<onecopy::Error> for Failure {
    fn from(error: onecopy::Error) -> Failure {
        Failure { errno: error.raw_os_error(), text: error.to_string() }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure { errno: error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()), text: error.to_string() }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        std::io::Error::from(errno).into()
    }
}

impl From<Failure> for PyErr {
    /// OSError, which Python makes the subclass that belongs to the errno.
    fn from(failure: Failure) -> PyErr {
        PyOSError::new_err((failure.errno, failure.text))
    }
}

/// The exception for an error.
pub fn failed(error: impl Into<Failure>) -> PyErr {
    error.into().into()
}

/// Seconds, as Python gives a limit.
pub fn limit(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else { return Ok(None) };
    Duration::try_from_secs_f64(seconds)
        .map(Some)
        .map_err(|_| PyValueError::new_err("a timeout is a number of seconds, 0 or more, or None"))
}

/// Drops what may wait, such as the last handle of a stack, which waits for what was sent to be acknowledged: without the GIL. For who has it.
pub fn let_go<T: Send>(value: T) {
    let mut value = Some(value);
    // (At the end of the interpreter nobody can, and it is dropped here.)
    Python::try_attach(|py| py.detach(|| drop(value.take())));
}

/// How a call ended that did not do what it was to do.
pub enum Ended {
    /// At the socket's own timeout.
    Late,
    Failed(Failure),
    /// By an exception of a signal's handler.
    Raised(PyErr),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Ended {
        Ended::Failed(failure)
    }
}

impl From<Ended> for PyErr {
    fn from(ended: Ended) -> PyErr {
        match ended {
            Ended::Late => late("timed out: the peer did nothing in the time of the socket's timeout"),
            Ended::Failed(failure) => failure.into(),
            Ended::Raised(error) => error,
        }
    }
}

/// TimeoutError.
pub fn late(text: &str) -> PyErr {
    PyTimeoutError::new_err((Errno::TIMEDOUT.raw_os_error(), text.to_owned()))
}

/// Calls `attempt` without the GIL. A signal runs Python's handlers, which may raise, and else it is called again (PEP 475): `limit` is what
/// the socket's own timeout is, so that a call ends within twice that time, however many signals come.
pub fn waiting<R: Send>(
    py: Python<'_>,
    limit: Option<Duration>,
    attempt: impl FnMut() -> Result<R, Failure> + Send,
) -> PyResult<R> {
    Ok(trying(py, limit, attempt)?)
}

/// As [`waiting`], for who has to know how it ended.
pub fn trying<R: Send>(
    py: Python<'_>,
    limit: Option<Duration>,
    mut attempt: impl FnMut() -> Result<R, Failure> + Send,
) -> Result<R, Ended> {
    let (interrupted, again) = (Errno::INTR.raw_os_error(), Errno::AGAIN.raw_os_error());
    let patient = limit != Some(Duration::ZERO);
    let started = Instant::now();
    loop {
        let failure = match py.detach(&mut attempt) {
            Ok(done) => return Ok(done),
            Err(failure) => failure,
        };
        let late = limit.filter(|limit| patient && started.elapsed() >= *limit);
        if failure.errno == interrupted {
            py.check_signals().map_err(Ended::Raised)?;
            if late.is_none() {
                continue;
            }
        }
        if late.is_some() && (failure.errno == again || failure.errno == interrupted) {
            return Err(Ended::Late);
        }
        return Err(failure.into());
    }
}
