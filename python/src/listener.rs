//! Listeners.

use onecopy::unix::{self, SeqListener};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::time::Duration;

use crate::address::{Address, Options};
use crate::call::{self, DONTWAIT, Failure, failed};
use crate::closable::{Closable, Using};
use crate::connection::Connection;
use crate::loans::lock;
use crate::on_stack;
use crate::transport::Transport;

enum Socket {
    Stream(unix::Listener),
    Records(SeqListener),
    Tcp(TcpListener),
    OnStack(on_stack::Listener),
}

impl Socket {
    /// # Errors
    ///
    /// EBUSY of a stack that another process has made.
    fn fd(&self) -> Result<BorrowedFd<'_>, Failure> {
        Ok(match self {
            Socket::Stream(listener) => listener.as_fd(),
            Socket::Records(listener) => listener.as_fd(),
            Socket::Tcp(listener) => listener.as_fd(),
            Socket::OnStack(listener) => listener.fd()?,
        })
    }

    /// Waits for somebody to come, then accepts. The listener itself never waits: another thread, or process, may be faster.
    fn accept(&self, limit: Option<&Timespec>) -> Result<Transport, Failure> {
        loop {
            let accepted = match self {
                Socket::Stream(listener) => {
                    listener.accept().map(|(socket, _)| Transport::Stream(socket)).map_err(Failure::from)
                }
                Socket::Records(listener) => {
                    listener.accept().map(|(socket, _)| Transport::Records(socket)).map_err(Failure::from)
                }
                Socket::Tcp(listener) => match listener.accept() {
                    Ok((stream, _)) => {
                        stream.set_nonblocking(false)?;
                        Transport::tcp(stream)
                    }
                    Err(error) => Err(error.into()),
                },
                Socket::OnStack(listener) => listener.accept().map(Transport::OnStack),
            };
            match accepted {
                Err(failure) if failure.errno == Errno::AGAIN.raw_os_error() => {
                    let fd = self.fd()?;
                    if poll(&mut [PollFd::new(&fd, PollFlags::IN)], limit)? == 0 {
                        return Err(failure);
                    }
                }
                done => return done,
            }
        }
    }
}

/// A socket that others connect to, from onecopy.listen. Iterating accepts one connection after the other.
#[pyclass(frozen, module = "onecopy", weakref)]
pub struct Listener {
    socket: Closable<Socket>,
    timeout: Mutex<Option<Duration>>,
}

impl Listener {
    pub fn bind(
        py: Python<'_>,
        address: &str,
        options: &Options<'_>,
        backlog: Option<u32>,
    ) -> PyResult<Listener> {
        let socket = match Address::parse(py, address)? {
            Address::Unix(name) => {
                let mut config = options.config()?;
                config.backlog = backlog.unwrap_or(config.backlog);
                if options.records {
                    let listener = SeqListener::bind_with(&name, &config).map_err(failed)?;
                    listener.set_nonblocking(true).map_err(failed)?;
                    Socket::Records(listener)
                } else {
                    let listener = unix::Listener::bind_with(&name, &config).map_err(failed)?;
                    listener.set_nonblocking(true).map_err(failed)?;
                    Socket::Stream(listener)
                }
            }
            Address::Tcp(hosts) => {
                options.tcp()?;
                let listener = TcpListener::bind(&*hosts).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                if let Some(backlog) = backlog {
                    // listen(2) again changes the backlog.
                    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
                    rustix::net::listen(&listener, backlog).map_err(failed)?;
                }
                Socket::Tcp(listener)
            }
        };
        Ok(Listener::of(socket))
    }

    pub fn on_stack(listener: on_stack::Listener) -> Listener {
        Listener::of(Socket::OnStack(listener))
    }

    fn of(socket: Socket) -> Listener {
        Listener { socket: Closable::new(socket), timeout: Mutex::new(None) }
    }

    fn socket(&self) -> PyResult<Using<Socket>> {
        self.socket.get().ok_or_else(|| {
            failed(Failure {
                errno: Errno::BADF.raw_os_error(),
                text: "the listener was closed by this program".to_owned(),
            })
        })
    }
}

#[pymethods]
impl Listener {
    /// Waits for a client and accepts it.
    #[pyo3(signature = (flags = 0))]
    fn accept(&self, py: Python<'_>, flags: u32) -> PyResult<Connection> {
        let socket = self.socket()?;
        let limit = match flags & DONTWAIT {
            0 => *lock(&self.timeout),
            _ => Some(Duration::ZERO),
        };
        let within = limit.and_then(|limit| Timespec::try_from(limit).ok());
        call::waiting(py, limit, || socket.accept(within.as_ref())).map(Connection::of)
    }

    /// The time in seconds that accept may wait; None is for ever, 0 not at all.
    fn settimeout(&self, timeout: Option<f64>) -> PyResult<()> {
        *lock(&self.timeout) = call::limit(timeout)?;
        Ok(())
    }

    /// Where it listens, as `onecopy.connect` takes it.
    #[getter]
    fn address(&self) -> PyResult<String> {
        let name = match &*self.socket()? {
            Socket::Tcp(listener) => {
                return Ok(format!("tcp://{}", listener.local_addr().map_err(failed)?));
            }
            Socket::OnStack(listener) => {
                return Ok(format!("tcp://{}", listener.local_addr().map_err(failed)?));
            }
            Socket::Stream(listener) => listener.local_addr(),
            Socket::Records(listener) => listener.local_addr(),
        }
        .map_err(failed)?;
        Ok(match (name.as_pathname(), name.as_abstract_name()) {
            (Some(path), _) => format!("unix:{}", path.display()),
            (None, Some(name)) => format!("unix:@{}", String::from_utf8_lossy(name)),
            (None, None) => "unix:".to_owned(),
        })
    }

    /// The descriptor, for select, poll and asyncio; -1 once closed.
    fn fileno(&self) -> i32 {
        self.socket.get().map_or(-1, |socket| on_stack::number(socket.fd()))
    }

    /// Closes the listener. A path's file stays.
    fn close(&self) {
        self.socket.close();
    }

    /// Whether close was called.
    #[getter]
    fn closed(&self) -> bool {
        self.socket.is_closed()
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Connection> {
        self.accept(py, 0)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        self.address()
            .map_or_else(|_| "<onecopy.Listener, closed>".into(), |at| format!("<onecopy.Listener {at}>"))
    }
}
