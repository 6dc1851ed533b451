//! The Python package `onecopy`: what Python holds of the sockets. `package/onecopy` beside it is what programs import.

use pyo3::prelude::*;

mod address;
mod call;
mod closable;
mod connection;
mod device_memory;
mod dlpack;
mod frags;
mod held;
mod inner;
mod kept;
mod listener;
mod loans;
mod memory;
mod on_stack;
mod pages;
mod reservation;
mod sending;
mod stack;
mod tensor;
mod transport;
mod udp;
mod view;

/// What `onecopy` is made of.
#[pymodule(gil_used = false)]
mod _onecopy {
    use super::*;

    #[pymodule_export]
    use crate::connection::Connection;
    #[pymodule_export]
    use crate::device_memory::{Binding, DeviceMemory};
    #[pymodule_export]
    use crate::frags::{Fragment, Frags};
    #[pymodule_export]
    use crate::listener::Listener;
    #[pymodule_export]
    use crate::reservation::Reservation;
    #[pymodule_export]
    use crate::sending::{Sent, TxBinding};
    #[pymodule_export]
    use crate::stack::Stack;
    #[pymodule_export]
    use crate::tensor::Tensor;
    #[pymodule_export]
    use crate::udp::UdpSocket;
    #[pymodule_export]
    use crate::view::View;

    #[pymodule_export]
    const NTCOPY: u32 = onecopy::SendFlags::NTCOPY.bits();
    #[pymodule_export]
    const DONTWAIT: u32 = crate::call::DONTWAIT;
    #[pymodule_export]
    const PEEK: u32 = crate::call::PEEK;
    #[pymodule_export]
    const TRUNC: u32 = crate::call::TRUNC;
    #[pymodule_export]
    const WAITALL: u32 = crate::call::WAITALL;

    /// Connects to "unix:/path", "unix:@abstract" or "tcp://host:port".
    ///
    /// records=True makes a seqpacket socket, whose sends arrive one by one; transport="kernel" keeps to the kernel's socket; timeout is in
    /// seconds, of the connection's every call. OSError's subclasses say what failed: FileNotFoundError, ConnectionRefusedError and so on.
    #[pyfunction]
    #[pyo3(signature = (address, *, records = false, timeout = None, transport = "auto", receive_buffer = None, send_buffer = None))]
    fn connect(
        py: Python<'_>,
        address: &str,
        records: bool,
        timeout: Option<f64>,
        transport: &str,
        receive_buffer: Option<usize>,
        send_buffer: Option<usize>,
    ) -> PyResult<Connection> {
        let options = address::Options { records, transport, receive_buffer, send_buffer };
        Connection::connect(py, address, &options, timeout)
    }

    /// Listens at "unix:/path", "unix:@abstract" or "tcp://host:port" (port 0: a free one, see Listener.address).
    ///
    /// A path's file stays when the listener is closed, as with socket.socket: the program that made it removes it.
    #[pyfunction]
    #[pyo3(signature = (address, *, records = false, backlog = None, transport = "auto", receive_buffer = None, send_buffer = None))]
    fn listen(
        py: Python<'_>,
        address: &str,
        records: bool,
        backlog: Option<u32>,
        transport: &str,
        receive_buffer: Option<usize>,
        send_buffer: Option<usize>,
    ) -> PyResult<Listener> {
        let options = address::Options { records, transport, receive_buffer, send_buffer };
        Listener::bind(py, address, &options, backlog)
    }

    /// Two connections that are each other's peers, as socket.socketpair makes.
    #[pyfunction]
    #[pyo3(signature = (*, records = false, transport = "auto", receive_buffer = None, send_buffer = None))]
    fn pair(
        records: bool,
        transport: &str,
        receive_buffer: Option<usize>,
        send_buffer: Option<usize>,
    ) -> PyResult<(Connection, Connection)> {
        Connection::pair(&address::Options { records, transport, receive_buffer, send_buffer })
    }
}
