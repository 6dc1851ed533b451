//! A connection: streams and records over unix sockets, and streams over TCP.

use onecopy::unix::{SeqPacket, Stream};
use onecopy::{Policy, RecvFlags, SendFlags, tcp};
use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use rustix::io::Errno;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::address::{Address, Options};
use crate::call::{self, DONTWAIT, Failure, PEEK, TRUNC, failed};
use crate::closable::{Closable, Using};
use crate::frags::{Frags, Returned};
use crate::inner::Inner;
use crate::memory::Buffer;
use crate::on_stack::{self, Sending};
use crate::reservation::Reservation;
use crate::sending::{self, Sent, TxBinding};
use crate::tensor::{self, Tensor};
use crate::transport::{self, Transport};
use crate::view::View;

/// One end of a connection, from onecopy.connect, onecopy.pair or Listener.accept. Iterating yields a View for each record, or for what of a stream arrives, until its end (or a record of no bytes).
#[pyclass(frozen, module = "onecopy", weakref)]
pub struct Connection {
    inner: Closable<Inner>,
}

fn closed() -> PyErr {
    failed(Failure {
        errno: Errno::BADF.raw_os_error(),
        text: "the connection was closed by this program".to_owned(),
    })
}

impl Connection {
    pub fn of(transport: Transport) -> Connection {
        Connection { inner: Closable::new(Inner::of(transport)) }
    }

    pub fn connect(
        py: Python<'_>,
        address: &str,
        options: &Options<'_>,
        timeout: Option<f64>,
    ) -> PyResult<Connection> {
        let limit = call::limit(timeout)?;
        let transport = match Address::parse(py, address)? {
            Address::Unix(name) => {
                let config = options.config()?;
                if options.records {
                    call::waiting(py, None, || {
                        Ok(Transport::Records(SeqPacket::connect_with(&name, &config)?))
                    })?
                } else {
                    call::waiting(py, None, || Ok(Transport::Stream(Stream::connect_with(&name, &config)?)))?
                }
            }
            Address::Tcp(hosts) => {
                options.tcp()?;
                call::waiting(py, limit, || Transport::tcp(reach(&hosts, limit)?))?
            }
        };
        Connection::with_timeout(transport, limit)
    }

    pub fn with_timeout(transport: Transport, limit: Option<Duration>) -> PyResult<Connection> {
        transport.set_timeout(limit).map_err(failed)?;
        let connection = Connection::of(transport);
        connection.inner()?.set_timeout(limit);
        Ok(connection)
    }

    pub fn pair(options: &Options<'_>) -> PyResult<(Connection, Connection)> {
        let config = options.config()?;
        Ok(if options.records {
            let (a, b) = SeqPacket::pair_with(&config).map_err(failed)?;
            (Connection::of(Transport::Records(a)), Connection::of(Transport::Records(b)))
        } else {
            let (a, b) = Stream::pair_with(&config).map_err(failed)?;
            (Connection::of(Transport::Stream(a)), Connection::of(Transport::Stream(b)))
        })
    }

    fn inner(&self) -> PyResult<Using<Inner>> {
        self.inner.get().ok_or_else(closed)
    }

    /// What sends may use.
    fn sender(&self) -> PyResult<Using<Inner>> {
        let inner = self.inner()?;
        inner.may_send()?;
        Ok(inner)
    }

    /// Asks the transport, detached: who has its locks may be waiting for the interpreter.
    fn ask<R: Send>(&self, py: Python<'_>, ask: impl FnOnce(&Transport) -> R + Send) -> PyResult<R> {
        let inner = self.inner()?;
        Ok(py.detach(|| ask(&inner.transport)))
    }
}

/// Connects to the first of these that answers.
fn reach(hosts: &[SocketAddr], limit: Option<Duration>) -> Result<TcpStream, Failure> {
    let Some(limit) = limit.filter(|limit| !limit.is_zero()) else { return Ok(TcpStream::connect(hosts)?) };
    let mut last = Failure::from(Errno::ADDRNOTAVAIL);
    for address in hosts {
        match TcpStream::connect_timeout(address, limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                let late = error.kind() == std::io::ErrorKind::TimedOut;
                last = if late { Errno::TIMEDOUT.into() } else { error.into() };
            }
        }
    }
    Err(last)
}

#[pymethods]
impl Connection {
    /// Sends bytes of any contiguous buffer. Returns how many were sent: all of them, unless the timeout or a signal came. A record goes whole.
    ///
    /// flags: NTCOPY stores around the cache, for bytes that nobody here reads soon; DONTWAIT raises BlockingIOError where there is no room. No other thread may write
    /// the buffer meanwhile.
    #[pyo3(signature = (data, flags = 0))]
    fn send(&self, py: Python<'_>, data: &Bound<'_, PyAny>, flags: u32) -> PyResult<usize> {
        let inner = self.sender()?;
        let buffer = Buffer::of(data)?;
        let bytes = buffer.bytes();
        call::waiting(py, inner.timeout(), || inner.transport.send(bytes, flags))
    }

    /// Sends all bytes of a buffer. After an error nothing says how many were sent, as with socket.sendall.
    #[pyo3(signature = (data, flags = 0))]
    fn sendall(&self, py: Python<'_>, data: &Bound<'_, PyAny>, flags: u32) -> PyResult<()> {
        let inner = self.sender()?;
        let buffer = Buffer::of(data)?;
        let mut bytes = buffer.bytes();
        loop {
            let n = call::waiting(py, inner.timeout(), || inner.transport.send(bytes, flags))?;
            bytes = &bytes[n..];
            if bytes.is_empty() {
                return Ok(());
            }
            py.check_signals()?;
        }
    }

    /// Sends bytes of a device's memory from where they lie, on a connection of a Stack: `ranges` are pairs of an offset into the memory and a length. Waits until all of them are
    /// taken; the Sent that it returns tells when they have arrived: before that nobody should write there.
    ///
    /// len() of it is less than all with DONTWAIT where there is room for less, and where the timeout or the peer's end came in between. OSError: EFAULT for bytes beyond the memory's
    /// end, of which nothing is sent; ENODEV where the binding is another stack's; EMSGSIZE for 4 GiB and more.
    #[pyo3(signature = (binding, ranges, flags = 0))]
    fn send_device(
        &self,
        py: Python<'_>,
        binding: &TxBinding,
        ranges: &Bound<'_, PyAny>,
        flags: u32,
    ) -> PyResult<Sent> {
        let inner = self.sender()?;
        let stream = inner.transport.on_stack().map_err(failed)?;
        let (binding, ranges) = (binding.get()?, sending::ranges(ranges)?);
        let mut own = SendFlags::empty();
        own.set(SendFlags::DONTWAIT, flags & DONTWAIT != 0);
        let mut sending = Sending::default();
        let all = call::waiting(py, inner.timeout(), || {
            stream.send_device(binding.get()?, &ranges, own, &mut sending)
        });
        match all {
            // A timeout, behind a signal: what is under way is told first.
            Err(error) if sending.under_way.is_empty() || !error.is_instance_of::<PyOSError>(py) => {
                Err(error)
            }
            _ => Ok(Sent::of(sending.under_way)),
        }
    }

    /// Receives at most n bytes, or the next record: one copy, into bytes. b"" is the end of the stream.
    ///
    /// With shape= and dtype= it receives a whole Tensor, in place where its bytes lie there in one piece and aligned, else as a copy, which stats() count.
    /// EOFError where the stream ends before. What has come of a stream before that, a timeout, a signal's exception or an error is kept: the next receive gets it, whatever it asks for. OSError (EMSGSIZE) where a record is longer than n.
    #[pyo3(signature = (n = None, flags = 0, *, shape = None, dtype = None))]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        n: Option<usize>,
        flags: u32,
        shape: Option<Vec<i64>>,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let inner = self.inner()?;
        match (shape, dtype) {
            (Some(shape), Some(dtype)) if n.is_none() => {
                let held = inner.exactly(py, tensor::size(&shape, dtype)?, flags)?;
                let held = Arc::new(held);
                inner.loans.add(&held);
                Ok(Bound::new(py, Tensor::of(&held, shape, dtype)?)?.into_any())
            }
            (None, None) => {
                let max = n.unwrap_or_else(|| inner.transport.max_record());
                let held = inner.receive(py, max, flags, false)?;
                let bytes = PyBytes::new_with(py, held.len, |bytes| {
                    held.copy_to(bytes);
                    Ok(())
                })?;
                Ok(bytes.into_any())
            }
            _ => Err(PyTypeError::new_err("recv takes a number of bytes, or both shape= and dtype=")),
        }
    }

    /// Receives into a writable buffer: one copy. Returns how many bytes came; 0 is the end of the stream.
    ///
    /// With WAITALL (socket.MSG_WAITALL) it waits until the buffer is full: fewer bytes are the end, or what came before an error or the timeout. A record is received as ever.
    #[pyo3(signature = (buffer, flags = 0))]
    fn recv_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, flags: u32) -> PyResult<usize> {
        let mut buffer = Buffer::writable(buffer)?;
        self.inner()?.fill(py, buffer.bytes_mut(), flags)
    }

    /// Receives up to n bytes by reference, on a connection of a Stack: fragments of a device's memory, or bytes of the host's, whichever come first. In at most `most`
    /// pieces: OSError (525, ETOOSMALL) where that is 0 and there are bytes.
    ///
    /// flags: DONTWAIT; PEEK tells what is there without taking it; TRUNC throws it away, and says how many bytes.
    #[pyo3(signature = (n = 1048576, flags = 0, *, most = None))]
    fn recv_frags(&self, py: Python<'_>, n: usize, flags: u32, most: Option<usize>) -> PyResult<Frags> {
        call::has_only(PEEK | TRUNC, flags)?;
        let inner = self.inner()?;
        let stream = inner.transport.on_stack().map_err(failed)?;
        let most = most.unwrap_or(usize::MAX);
        if let Some(frags) = inner.kept_frags(py, n, most, flags)? {
            return Ok(frags);
        }
        inner.late()?;
        let mut own = RecvFlags::empty();
        own.set(RecvFlags::DONTWAIT, flags & DONTWAIT != 0);
        own.set(RecvFlags::PEEK, flags & PEEK != 0);
        own.set(RecvFlags::TRUNC, flags & TRUNC != 0);
        let frags = call::waiting(py, inner.timeout(), || stream.recv_frags(n, most, own))?;
        Frags::of(py, frags)
    }

    /// Gives tokens back: fragments, numbers of tokens, or pairs of a first number and a count. Returns how many fragments are free.
    ///
    /// Of numbers the kernel's rules hold: one that is unknown, or was given back before, is passed over; a call takes up to 128 of them or pairs (OSError, EINVAL),
    /// and looks at 1,024 fragments. A page that an array or a tensor still looks at stays until that is gone.
    fn dont_need(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>) -> PyResult<usize> {
        let inner = self.inner()?;
        let stream = inner.transport.on_stack().and_then(|stream| stream.get()).map_err(failed)?;
        let returned = Returned::of(tokens)?;
        let free = py.detach(|| stream.dont_need(&returned.ranges)).map_err(failed)?;
        Ok(free + py.detach(|| returned.give_back()))
    }

    /// Fragments of a device's memory whose tokens this program has, or forgot to give back.
    #[getter]
    fn tokens_held(&self, py: Python<'_>) -> PyResult<usize> {
        let held = self.ask(py, |transport| {
            transport.on_stack().and_then(|stream| stream.get()).map(tcp::Stream::tokens_held)
        })?;
        held.map_err(failed)
    }

    /// Receives at most n bytes, or the next record, without a copy. The sender gets the room back when the View, and all that look at it, are gone, in order.
    ///
    /// Hold it for as long as you like: a receive copies out what is held, if that is more than half of the ring, or if it has to wait longer than a
    /// moment. What a memoryview, an array or a tensor looks at keeps its address, and gets the copy there.
    #[pyo3(signature = (n = None, flags = 0))]
    fn recv_borrowed(&self, py: Python<'_>, n: Option<usize>, flags: u32) -> PyResult<View> {
        let inner = self.inner()?;
        let max = n.unwrap_or_else(|| inner.transport.max_record());
        let held = Arc::new(inner.receive(py, max, flags, true)?);
        inner.loans.add(&held);
        Ok(View::of(held))
    }

    /// Waits for n bytes of room where the peer will read them. A stream may give less: len() says. Until it is committed or cancelled, other sends raise BufferError.
    fn reserve(&self, py: Python<'_>, n: usize) -> PyResult<Reservation> {
        let inner = self.inner()?;
        inner.reserve()?;
        Reservation::of(py, inner, n)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<View>> {
        let view = self.recv_borrowed(py, None, 0)?;
        Ok((view.held.len > 0).then_some(view))
    }

    /// The time in seconds that each call may wait; None is for ever, 0 not at all.
    fn settimeout(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let limit = call::limit(timeout)?;
        self.ask(py, |transport| transport.set_timeout(limit))?.map_err(failed)?;
        self.inner()?.set_timeout(limit);
        Ok(())
    }

    /// The time in seconds that each call may wait; None is for ever.
    fn gettimeout(&self) -> PyResult<Option<f64>> {
        Ok(self.inner()?.timeout().map(|limit| limit.as_secs_f64()))
    }

    /// Ends sending ("write"), receiving ("read") or "both".
    #[pyo3(signature = (how = "both"))]
    fn shutdown(&self, py: Python<'_>, how: &str) -> PyResult<()> {
        let how = match how {
            "read" => Shutdown::Read,
            "write" => Shutdown::Write,
            "both" => Shutdown::Both,
            _ => return Err(PyValueError::new_err("how is \"read\", \"write\" or \"both\"")),
        };
        self.ask(py, |transport| transport.shutdown(how))?.map_err(failed)
    }

    /// The readiness descriptor, for select, poll and asyncio; -1 once closed. Nothing may be read from it.
    fn fileno(&self) -> i32 {
        self.inner.get().map_or(-1, |inner| on_stack::number(inner.transport.fd()))
    }

    /// Closes the connection. Views of it stay valid. A call of another thread's that waits goes on: shutdown() ends it.
    fn close(&self) {
        self.inner.close();
    }

    /// Whether close was called.
    #[getter]
    fn closed(&self) -> bool {
        self.inner.is_closed()
    }

    /// Whether each send is a record of its own.
    #[getter]
    fn records(&self) -> PyResult<bool> {
        Ok(self.inner()?.transport.has_records())
    }

    /// Which way the bytes go at this moment: "shared memory", "kernel", or both by direction.
    #[getter]
    fn path(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.ask(py, Transport::path)
    }

    /// CPU copies per byte that this end has sent or received, in user space and by the kernel for it; None before the first byte.
    #[getter]
    fn copies_per_byte(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        self.ask(py, |transport| transport::copies_per_byte(&transport.stats()))
    }

    /// Which stores a send copies with: "auto", "cached" or "nt"; "kernel" where the kernel copies.
    #[getter]
    fn policy(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(match self.ask(py, Transport::policy)? {
            Some(Policy::Cached) => "cached",
            Some(Policy::NonTemporal) => "nt",
            Some(_) => "auto",
            None => "kernel",
        })
    }

    #[setter]
    fn set_policy(&self, py: Python<'_>, policy: &str) -> PyResult<()> {
        let policy = match policy {
            "cached" => Policy::Cached,
            "nt" => Policy::NonTemporal,
            "auto" => Policy::Auto,
            _ => return Err(PyValueError::new_err("policy is \"auto\", \"cached\" or \"nt\"")),
        };
        self.ask(py, |transport| transport.set_policy(policy))?.map_err(failed)
    }

    /// All counters, by name. Bytes are bytes of payload.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let inner = self.inner()?;
        let counts = py.detach(|| inner.transport.stats());
        let stats = PyDict::new(py);
        for (name, count) in counts {
            stats.set_item(name, count)?;
        }
        stats.set_item("views_copied_out", inner.loans.moved_out())?;
        stats.set_item("tensors_unaligned", inner.loans.unaligned())?;
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
        match self.ask(py, |transport| (transport.has_records(), transport.path())) {
            Ok((has_records, path)) => {
                let kind = if has_records { "records" } else { "a stream" };
                format!("<onecopy.Connection of {kind}, fd {}, {path}>", self.fileno())
            }
            Err(_) => "<onecopy.Connection, closed>".to_owned(),
        }
    }
}
