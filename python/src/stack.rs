//! Stacks: TCP and UDP in user space, or the kernel's by io_uring.

use onecopy::advanced::link::Tap;
use onecopy::{BuildError, Carrier};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustix::io::Errno;
use std::net::IpAddr;
use std::sync::Arc;

use crate::address::hosts;
use crate::call::{self, Failure, failed};
use crate::connection::Connection;
use crate::device_memory::{Binding, DeviceMemory};
use crate::listener::Listener;
use crate::on_stack::{self, Here};
use crate::pages::Pages;
use crate::sending::TxBinding;
use crate::transport::Transport;
use crate::udp::UdpSocket;

/// TCP and UDP that this process does itself, on a TAP device and with an address of its own; or, with transport="kernel", the kernel's by io_uring.
///
/// Stack(tap="onecopy0", address="10.0.0.2/24") makes the device where there is none, which takes CAP_NET_ADMIN: OSError says what is missing.
/// transport="auto" takes the kernel's TCP where there is no TAP device to be had; `carrier` says which it is. shards=N, up to 64, has N queues of the
/// device, each with a lock and a thread: as many connections can be at work at once, at one address. No device memory can be bound to several. With
/// transport="kernel" it has N rings of io_uring, with a thread each. The others are about the process's own stack: with transport="kernel" they are a ValueError.
#[pyclass(frozen, module = "onecopy", weakref)]
pub struct Stack {
    stack: Here<onecopy::Stack>,
    pages: Arc<Pages>,
}

/// Bytes of pages that views of a stack's connections may keep: of a link's 128 MiB, and of the kernel's 16 MiB.
const MAY_KEEP: [usize; 2] = [16 << 20, 4 << 20];

impl Stack {
    fn of(stack: onecopy::Stack) -> Stack {
        let is_kernel = stack.carrier() == Carrier::Kernel;
        Stack { stack: Here::new(stack), pages: Pages::new(MAY_KEEP[usize::from(is_kernel)]) }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        call::let_go(self.stack.take());
    }
}

fn built(error: BuildError) -> PyErr {
    let errno = match &error {
        BuildError::Tap(error) => error.errno(),
        BuildError::System(errno) => *errno,
        BuildError::Uring(refused) => refused.errno(),
        BuildError::Pages(_) => Errno::NOMEM,
        BuildError::NoLink => {
            return PyValueError::new_err("a stack needs a link: tap=\"onecopy0\", or transport=\"kernel\"");
        }
        BuildError::NoAddress => {
            return PyValueError::new_err("a stack needs an address of its own: address=\"10.0.0.2/24\"");
        }
        BuildError::NotOfKernel(name) => {
            return PyValueError::new_err(format!(
                "{name} is about a stack of this process's own, and transport=\"kernel\" has none: leave it out, or take \
                 transport=\"stack\" or \"auto\""
            ));
        }
        _ => return PyValueError::new_err(error.to_string()),
    };
    failed(Failure { errno: errno.raw_os_error(), text: error.to_string() })
}

#[pymethods]
impl Stack {
    #[new]
    #[pyo3(signature = (*, tap = None, address = None, gateway = None, mtu = None, transport = "stack", shards = None))]
    fn new(
        py: Python<'_>,
        tap: Option<String>,
        address: Option<String>,
        gateway: Option<&str>,
        mtu: Option<u32>,
        transport: &str,
        shards: Option<u32>,
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
        if let Some(shards) = shards {
            builder = builder.shards(shards);
        }
        let stack = py.detach(|| builder.build()).map_err(built)?;
        Ok(Stack::of(stack))
    }

    /// Two stacks of this process, at these addresses and joined by a cable: they speak as two hosts do. It takes no device and no privilege.
    #[staticmethod]
    #[pyo3(signature = (address = "10.0.0.1/24", other = "10.0.0.2/24", *, mtu = 1500))]
    fn pair(py: Python<'_>, address: &str, other: &str, mtu: u32) -> PyResult<(Stack, Stack)> {
        if !(68..=65521).contains(&mtu) {
            return Err(PyValueError::new_err("mtu is 68 to 65521 bytes"));
        }
        let ends = py.detach(|| {
            let (one, other_end) = Tap::cable(mtu).map_err(failed)?;
            let build = |tap, at| onecopy::Stack::builder().link(tap).address(at).build().map_err(built);
            Ok::<_, PyErr>((build(one, address)?, build(other_end, other)?))
        });
        let (one, other) = ends?;
        Ok((Stack::of(one), Stack::of(other)))
    }

    /// Connects to "tcp://host:port"; timeout is in seconds, of the connection's every call, as of onecopy.connect. source_address is where from: an
    /// address of the stack's, or 0.0.0.0 for any, and a port, or 0 for any.
    #[pyo3(signature = (address, *, timeout = None, source_address = None))]
    fn connect(
        &self,
        py: Python<'_>,
        address: &str,
        timeout: Option<f64>,
        source_address: Option<&str>,
    ) -> PyResult<Connection> {
        let (limit, mut last) = (call::limit(timeout)?, None);
        let stack = self.stack.get().map_err(failed)?;
        let source = source_address.map(|source| hosts(py, "tcp", source)).transpose()?.map(|all| all[0]);
        for address in hosts(py, "tcp", address)? {
            let mut begun = None;
            let done = call::waiting(py, limit, || {
                on_stack::Stream::connect(stack, &self.pages, source, address, limit, &mut begun)
            });
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
        let stack = self.stack.get().map_err(failed)?;
        let address = hosts(py, "tcp", address)?[0];
        let bound = py.detach(|| on_stack::Listener::bind(stack, &self.pages, address, backlog));
        bound.map(Listener::on_stack).map_err(failed)
    }

    /// A socket of datagrams at "udp://host:port": an address of the stack's, or 0.0.0.0 for any; port 0 is a free one, see UdpSocket.address.
    #[pyo3(signature = (address = "udp://0.0.0.0:0", *, timeout = None))]
    fn udp(&self, py: Python<'_>, address: &str, timeout: Option<f64>) -> PyResult<UdpSocket> {
        let stack = self.stack.get().map_err(failed)?;
        let (at, limit) = (hosts(py, "udp", address)?[0], call::limit(timeout)?);
        py.detach(|| UdpSocket::bind(stack, at, limit))
    }

    /// Has so many receive queues; there is one, if this is not called. OSError (EINVAL) for more than 65,535, and where one that would go is bound or has flows steered to it.
    fn set_queues(&self, py: Python<'_>, count: u32) -> PyResult<()> {
        let stack = self.stack.get().map_err(failed)?;
        py.detach(|| stack.set_queues(count)).map_err(failed)
    }

    /// How many receive queues there are.
    #[getter]
    fn queues(&self, py: Python<'_>) -> PyResult<u32> {
        let stack = self.stack.get().map_err(failed)?;
        Ok(py.detach(|| stack.queues()))
    }

    /// Has TCP's flows to "tcp://host:port", an address of the stack's or 0.0.0.0 for any, come to a queue; all others go to those that are not bound. OSError (ERANGE)
    /// where there is no such queue.
    fn steer(&self, py: Python<'_>, address: &str, queue: u32) -> PyResult<()> {
        let stack = self.stack.get().map_err(failed)?;
        let address = hosts(py, "tcp", address)?[0];
        py.detach(|| stack.steer(address, queue)).map_err(failed)
    }

    /// Takes that back. Returns whether there was such a rule.
    fn unsteer(&self, py: Python<'_>, address: &str) -> PyResult<bool> {
        let stack = self.stack.get().map_err(failed)?;
        let address = hosts(py, "tcp", address)?[0];
        Ok(py.detach(|| stack.unsteer(address)))
    }

    /// What came to a queue, by name; None where there is no such queue.
    fn queue_stats<'py>(&self, py: Python<'py>, queue: u32) -> PyResult<Option<Bound<'py, PyDict>>> {
        let stack = self.stack.get().map_err(failed)?;
        let Some(counts) = py.detach(|| stack.queue_stats(queue)) else { return Ok(None) };
        let stats = PyDict::new(py);
        for (name, count) in counts.each() {
            stats.set_item(name, count)?;
        }
        Ok(Some(stats))
    }

    /// What of device memory it has refused since it was made, of all its sockets, by why: binds ("rx_", "tx_"), sends ("send_"), and tokens that Connection.dont_need was
    /// given by number and that were nobody's ("tokens_stale": given back before; "tokens_unknown": never given out by that connection, such as another one's). What is refused
    /// changes nothing else.
    fn device_refusals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stack = self.stack.get().map_err(failed)?;
        let all = PyDict::new(py);
        for (name, count) in stack.device_refusals().each() {
            all.set_item(name, count)?;
        }
        Ok(all)
    }

    /// Binds memory of a device to receive queues: TCP's payload that comes to them lies there, and Connection.recv_frags receives it. It is unbound when the Binding is
    /// closed, or gone.
    ///
    /// OSError as of the kernel's bind-rx: EINVAL without queues, for less than 64 KiB, and where no queue would be left for other flows; ERANGE; EEXIST.
    fn bind_rx(&self, py: Python<'_>, memory: &DeviceMemory, queues: Vec<u32>) -> PyResult<Binding> {
        let (stack, memory) = (self.stack.get().map_err(failed)?, memory.memory()?);
        py.detach(|| stack.bind_rx(memory, &queues)).map(Binding::of).map_err(failed)
    }

    /// Binds memory of a device to be sent from, by Connection.send_device: all of it, until the TxBinding is closed, or gone. It is other memory than that which is received
    /// into.
    ///
    /// OSError as of the kernel's bind-tx: ENODEV where the link is gone; EOPNOTSUPP where it takes no memory that the CPU cannot read, or the kernel carries the bytes and does not register the memory; and EBUSY where the memory is bound, or
    /// somebody has pages of it.
    fn bind_tx(&self, py: Python<'_>, memory: &DeviceMemory) -> PyResult<TxBinding> {
        let (stack, memory) = (self.stack.get().map_err(failed)?, memory.memory()?);
        py.detach(|| stack.bind_tx(memory)).map(TxBinding::of).map_err(failed)
    }

    /// Who carries its bytes: "stack", or "kernel".
    #[getter]
    fn carrier(&self) -> PyResult<&'static str> {
        Ok(match self.stack.get().map_err(failed)?.carrier() {
            Carrier::Kernel => "kernel",
            _ => "stack",
        })
    }

    /// What the link of one shard has counted, or where the kernel carries its bytes the ring, by name; None where there is no such shard.
    fn shard_counters<'py>(&self, py: Python<'py>, shard: u32) -> PyResult<Option<Bound<'py, PyDict>>> {
        let stack = self.stack.get().map_err(failed)?;
        let Some(counters) = py.detach(|| stack.shard_counters(shard)) else { return Ok(None) };
        let all = PyDict::new(py);
        for (name, count) in counters {
            all.set_item(name, count)?;
        }
        Ok(Some(all))
    }

    /// How many shards it has.
    #[getter]
    fn shards(&self) -> PyResult<u32> {
        Ok(self.stack.get().map_err(failed)?.shards())
    }

    /// Its addresses, as "10.0.0.2/24"; none where the kernel carries its bytes.
    #[getter]
    fn addresses(&self) -> PyResult<Vec<String>> {
        let stack = self.stack.get().map_err(failed)?;
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
