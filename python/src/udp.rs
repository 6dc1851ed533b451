//! UDP: datagrams of a stack, or of the kernel's.

use onecopy::{Carrier, RecvFlags, SendFlags, udp};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::time::Duration;

use crate::address::hosts;
use crate::call::{self, DONTWAIT, Failure, failed};
use crate::closable::{Closable, Using};
use crate::loans::lock;
use crate::memory::Buffer;
use crate::on_stack::{self, Here, patiently};
use crate::transport;

type Result<T> = std::result::Result<T, Failure>;

/// No datagram is longer (of IPv6 and the kernel, 65,527 bytes).
const LONGEST: usize = u16::MAX as usize;

/// What a socket's calls share.
struct Inner {
    socket: Here<udp::Socket>,
    limit: Mutex<Option<Duration>>,
    /// Where datagrams come that become bytes of Python's: their length is known afterwards.
    spare: Mutex<Vec<u8>>,
}

impl Inner {
    fn limit(&self) -> Option<Duration> {
        *lock(&self.limit)
    }

    /// Calls `attempt` whenever the socket is ready, until it need not wait.
    fn patiently<R: Send>(
        &self,
        py: Python<'_>,
        way: PollFlags,
        dont_wait: bool,
        mut attempt: impl FnMut(&udp::Socket) -> onecopy::Result<R> + Send,
    ) -> PyResult<R> {
        let limit = if dont_wait { Some(Duration::ZERO) } else { self.limit() };
        call::waiting(py, limit, || {
            let socket = self.socket.get()?;
            patiently(|| socket.poll_fd(), way, limit, || attempt(socket))
        })
    }

    fn send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        to: Option<SocketAddr>,
        flags: u32,
    ) -> PyResult<usize> {
        let buffer = Buffer::of(data)?;
        let bytes = buffer.bytes();
        let own = SendFlags::from_bits_truncate(flags & !DONTWAIT);
        self.patiently(py, PollFlags::OUT, flags & DONTWAIT != 0, |socket| match to {
            Some(to) => socket.send_to_with_flags(bytes, to, own),
            None => socket.send_with_flags(bytes, own),
        })
    }

    fn receive(&self, py: Python<'_>, buffer: &mut [u8], flags: u32) -> PyResult<(usize, SocketAddr)> {
        call::has_only(0, flags)?;
        let meta = self.patiently(py, PollFlags::IN, flags & DONTWAIT != 0, |socket| {
            socket.recv_msg(&mut [IoSliceMut::new(buffer)], RecvFlags::empty())
        })?;
        if meta.is_truncated() {
            return Err(failed(transport::too_long("datagram")));
        }
        Ok((meta.len, meta.from))
    }

    fn fd(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.socket.get()?.poll_fd()?)
    }
}

fn counts(socket: &udp::Socket) -> Vec<(&'static str, u64)> {
    socket.stats().named().chain([("drops", socket.drops())]).collect()
}

/// A socket of datagrams, from Stack.udp. Each send is a datagram, which arrives whole, or not at all; each receive takes one.
#[pyclass(frozen, module = "onecopy", weakref)]
pub struct UdpSocket {
    inner: Closable<Inner>,
}

fn name(address: SocketAddr) -> String {
    format!("udp://{address}")
}

impl UdpSocket {
    pub fn bind(stack: &onecopy::Stack, at: SocketAddr, limit: Option<Duration>) -> PyResult<UdpSocket> {
        let socket = udp::Socket::bind(stack, at).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        // Made with the first call; later ones find it.
        socket.poll_fd().map_err(failed)?;
        let inner = Inner { socket: Here::new(socket), limit: Mutex::new(limit), spare: Mutex::default() };
        Ok(UdpSocket { inner: Closable::new(inner) })
    }

    fn inner(&self) -> PyResult<Using<Inner>> {
        self.inner.get().ok_or_else(|| {
            failed(Failure {
                errno: Errno::BADF.raw_os_error(),
                text: "the socket was closed by this program".to_owned(),
            })
        })
    }

    /// Asks the socket, detached: who has the stack's lock may be waiting for the interpreter.
    fn ask<R: Send>(&self, py: Python<'_>, ask: impl FnOnce(&udp::Socket) -> R + Send) -> PyResult<R> {
        let inner = self.inner()?;
        let asked = py.detach(|| inner.socket.get().map(ask));
        asked.map_err(failed)
    }
}

#[pymethods]
impl UdpSocket {
    /// Sends a datagram to whom the socket is connected to: all bytes of any contiguous buffer. Returns how many these are.
    ///
    /// OSError (EMSGSIZE) where one packet does not hold them. ConnectionRefusedError tells of an earlier datagram, once.
    #[pyo3(signature = (data, flags = 0))]
    fn send(&self, py: Python<'_>, data: &Bound<'_, PyAny>, flags: u32) -> PyResult<usize> {
        self.inner()?.send(py, data, None, flags)
    }

    /// Sends a datagram to "udp://host:port".
    #[pyo3(signature = (data, address, flags = 0))]
    fn send_to(&self, py: Python<'_>, data: &Bound<'_, PyAny>, address: &str, flags: u32) -> PyResult<usize> {
        self.inner()?.send(py, data, Some(hosts(py, "udp", address)?[0]), flags)
    }

    /// Receives a datagram of at most n bytes. OSError (EMSGSIZE) where it is longer: it is lost.
    #[pyo3(signature = (n = None, flags = 0))]
    fn recv<'py>(&self, py: Python<'py>, n: Option<usize>, flags: u32) -> PyResult<Bound<'py, PyBytes>> {
        Ok(self.recv_from(py, n, flags)?.0)
    }

    /// Receives a datagram of at most n bytes, and says who sent it: "udp://10.0.0.1:7000".
    #[pyo3(signature = (n = None, flags = 0))]
    fn recv_from<'py>(
        &self,
        py: Python<'py>,
        n: Option<usize>,
        flags: u32,
    ) -> PyResult<(Bound<'py, PyBytes>, String)> {
        let inner = self.inner()?;
        let mut buffer = std::mem::take(&mut *lock(&inner.spare));
        buffer.resize(n.unwrap_or(LONGEST).min(LONGEST), 0);
        let received = inner
            .receive(py, &mut buffer, flags)
            .map(|(len, from)| (PyBytes::new(py, &buffer[..len]), name(from)));
        *lock(&inner.spare) = buffer;
        received
    }

    /// Receives a datagram into a writable buffer: one copy less. Returns its length and who sent it.
    #[pyo3(signature = (buffer, flags = 0))]
    fn recv_from_into(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        flags: u32,
    ) -> PyResult<(usize, String)> {
        let inner = self.inner()?;
        let mut buffer = Buffer::writable(buffer)?;
        let (len, from) = inner.receive(py, buffer.bytes_mut(), flags)?;
        Ok((len, name(from)))
    }

    /// Has send go to "udp://host:port", and gets what comes from there alone.
    fn connect(&self, py: Python<'_>, address: &str) -> PyResult<()> {
        let to = hosts(py, "udp", address)?[0];
        self.ask(py, |socket| socket.connect(to))?.map_err(failed)
    }

    /// Its own address, as "udp://10.0.0.2:7000".
    #[getter]
    fn address(&self, py: Python<'_>) -> PyResult<String> {
        self.ask(py, udp::Socket::local_addr)?.map(name).map_err(failed)
    }

    /// Whom it is connected to; None where it is not.
    #[getter]
    fn peer(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.ask(py, udp::Socket::peer_addr)?.ok().map(name))
    }

    /// The time in seconds that each call may wait; None is for ever, 0 not at all.
    fn settimeout(&self, timeout: Option<f64>) -> PyResult<()> {
        *lock(&self.inner()?.limit) = call::limit(timeout)?;
        Ok(())
    }

    /// The time in seconds that each call may wait; None is for ever.
    fn gettimeout(&self) -> PyResult<Option<f64>> {
        Ok(self.inner()?.limit().map(|limit| limit.as_secs_f64()))
    }

    /// The readiness descriptor, for select, poll and asyncio; -1 once closed. Nothing may be read from it.
    fn fileno(&self) -> i32 {
        self.inner.get().map_or(-1, |inner| on_stack::number(inner.fd()))
    }

    /// Closes the socket.
    fn close(&self) {
        self.inner.close();
    }

    /// Whether close was called.
    #[getter]
    fn closed(&self) -> bool {
        self.inner.is_closed()
    }

    /// Who carries its datagrams: "stack", or "kernel".
    #[getter]
    fn path(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(match self.ask(py, |socket| socket.path().send)? {
            Carrier::Kernel => "kernel",
            _ => "stack",
        })
    }

    /// CPU copies per byte that this socket has sent or received, in user space and by the kernel for it; None before the first byte.
    #[getter]
    fn copies_per_byte(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        Ok(transport::copies_per_byte(&self.ask(py, counts)?))
    }

    /// All counters, by name; drops are datagrams that came and found no room.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = PyDict::new(py);
        for (name, count) in self.ask(py, counts)? {
            stats.set_item(name, count)?;
        }
        Ok(stats)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.close();
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        self.address(py)
            .map_or_else(|_| "<onecopy.UdpSocket, closed>".into(), |at| format!("<onecopy.UdpSocket {at}>"))
    }
}
