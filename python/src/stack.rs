//! Stacks: TCP and UDP in user space, or the kernel's by io_uring.

use onecopy::{BuildError, Carrier};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustix::io::Errno;
use std::net::IpAddr;

use crate::address::hosts;
use crate::call::{self, Failure, failed};
use crate::connection::Connection;
use crate::listener::Listener;
use crate::on_stack::{self, Here};
use crate::transport::Transport;
use crate::udp::UdpSocket;

/// TCP and UDP that this process does itself, on a TAP device and with an address of its own; or, with transport="kernel", the kernel's by io_uring.
///
/// Stack(tap="onecopy0", address="10.0.0.2/24") makes the device where there is none, which takes CAP_NET_ADMIN: OSError says what is missing.
/// transport="auto" takes the kernel's TCP where there is no TAP device to be had; `carrier` says which it is.
#[pyclass(frozen, module = "onecopy", weakref)]
pub struct Stack(Here<onecopy::Stack>);

fn built(error: BuildError) -> PyErr {
    let errno = match &error {
        BuildError::Tap(error) => error.errno(),
        BuildError::System(errno) => *errno,
        BuildError::Uring(refused) => refused.errno(),
        BuildError::Pages(_) => Errno::NOMEM,
        _ => return PyValueError::new_err(error.to_string()),
    };
    failed(Failure { errno: errno.raw_os_error(), text: error.to_string() })
}

#[pymethods]
impl Stack {
    #[new]
    #[pyo3(signature = (*, tap = None, address = None, gateway = None, mtu = None, transport = "stack"))]
    fn new(
        py: Python<'_>,
        tap: Option<String>,
        address: Option<String>,
        gateway: Option<&str>,
        mtu: Option<u32>,
        transport: &str,
    ) -> PyResult<Stack> {
        let mut builder = onecopy::Stack::builder();
        builder = match transport {
            "stack" => builder,
            "auto" => builder.transport(onecopy::Transport::Auto),
            "kernel" => builder.transport(onecopy::Transport::Kernel),
            other => {
                return Err(PyValueError::new_err(format!(
                    "transport is {other:?}: write \"stack\", \"kernel\" or \"auto\""
                )));
            }
        };
        if let Some(name) = tap {
            builder = builder.tap(name);
        }
        if let Some(address) = address {
            builder = builder.address(&address);
        }
        if let Some(gateway) = gateway {
            let gateway: IpAddr = gateway
                .parse()
                .map_err(|_| PyValueError::new_err(format!("{gateway:?} is no IP address of a gateway")))?;
            builder = builder.gateway(gateway);
        }
        if let Some(mtu) = mtu {
            builder = builder.mtu(mtu);
        }
        let stack = py.detach(|| builder.build()).map_err(built)?;
        Ok(Stack(Here::new(stack)))
    }

    /// Connects to "tcp://host:port"; timeout is in seconds, of the connection's every call, as of onecopy.connect.
    #[pyo3(signature = (address, *, timeout = None))]
    fn connect(&self, py: Python<'_>, address: &str, timeout: Option<f64>) -> PyResult<Connection> {
        let (limit, mut last) = (call::limit(timeout)?, None);
        let stack = self.0.get().map_err(failed)?;
        for address in hosts(py, "tcp", address)? {
            let mut begun = None;
            let done =
                call::waiting(py, limit, || on_stack::Stream::connect(stack, address, limit, &mut begun));
            match done {
                Ok(stream) => return Connection::with_timeout(Transport::OnStack(stream), limit),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| failed(Errno::ADDRNOTAVAIL)))
    }

    /// Listens at "tcp://host:port": an address of the stack's, or 0.0.0.0 for any; port 0 is a free one, see Listener.address.
    #[pyo3(signature = (address, *, backlog = None))]
    fn listen(&self, py: Python<'_>, address: &str, backlog: Option<u32>) -> PyResult<Listener> {
        let stack = self.0.get().map_err(failed)?;
        let address = hosts(py, "tcp", address)?[0];
        Ok(Listener::on_stack(on_stack::Listener::bind(stack, address, backlog).map_err(failed)?))
    }

    /// A socket of datagrams at "udp://host:port": an address of the stack's, or 0.0.0.0 for any; port 0 is a free one, see UdpSocket.address.
    #[pyo3(signature = (address = "udp://0.0.0.0:0", *, timeout = None))]
    fn udp(&self, py: Python<'_>, address: &str, timeout: Option<f64>) -> PyResult<UdpSocket> {
        UdpSocket::bind(self.0.get().map_err(failed)?, hosts(py, "udp", address)?[0], call::limit(timeout)?)
    }

    /// Who carries its bytes: "stack", or "kernel".
    #[getter]
    fn carrier(&self) -> PyResult<&'static str> {
        Ok(match self.0.get().map_err(failed)?.carrier() {
            Carrier::Kernel => "kernel",
            _ => "stack",
        })
    }

    /// Its addresses, as "10.0.0.2/24"; none where the kernel carries its bytes.
    #[getter]
    fn addresses(&self) -> PyResult<Vec<String>> {
        let stack = self.0.get().map_err(failed)?;
        Ok(stack.addresses().iter().map(ToString::to_string).collect())
    }

    fn __repr__(&self) -> String {
        match (self.carrier(), self.addresses()) {
            (Ok("stack"), Ok(addresses)) => format!("<onecopy.Stack {}>", addresses.join(" ")),
            (Ok(carrier), _) => format!("<onecopy.Stack, {carrier}>"),
            (Err(_), _) => "<onecopy.Stack of another process>".to_owned(),
        }
    }
}
