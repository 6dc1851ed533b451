//! Addresses as Python writes them, and what a socket is made with.

use onecopy::Transport;
use onecopy::unix::{Config, SocketAddr};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::net::{SocketAddr as Host, ToSocketAddrs};

use crate::call::failed;

/// Where to.
pub enum Address<'a> {
    /// `unix:/path`, or `unix:@name` of the abstract namespace.
    Unix(SocketAddr),
    /// `tcp://host:port`.
    Tcp(&'a str),
}

impl Address<'_> {
    pub fn parse(text: &str) -> PyResult<Address<'_>> {
        if let Some(host) = text.strip_prefix("tcp://") {
            return Ok(Address::Tcp(host));
        }
        let Some(name) = text.strip_prefix("unix:") else {
            return Err(PyValueError::new_err(format!(
                "{text:?} is no address: write unix:/path, unix:@name or tcp://host:port"
            )));
        };
        let name = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(name),
        };
        Ok(Address::Unix(name.map_err(failed)?))
    }
}

/// The addresses that `scheme://host:port` stands for, at least one. A name may take long to look up: nobody waits for the GIL meanwhile.
pub fn hosts(py: Python<'_>, scheme: &str, text: &str) -> PyResult<Vec<Host>> {
    let host = text.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://")).ok_or_else(|| {
        PyValueError::new_err(format!("{text:?} is no address here: write {scheme}://host:port"))
    })?;
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    let found: Vec<Host> = py.detach(|| host.to_socket_addrs().map(Iterator::collect)).map_err(failed)?;
    if found.is_empty() {
        return Err(PyValueError::new_err(format!("{host:?} has no address")));
    }
    Ok(found)
}

/// What a socket is made with.
pub struct Options<'a> {
    pub records: bool,
    pub transport: &'a str,
    pub receive_buffer: Option<usize>,
    pub send_buffer: Option<usize>,
}

impl Options<'_> {
    pub fn config(&self) -> PyResult<Config> {
        let transport = match self.transport {
            "auto" => Transport::Auto,
            "kernel" => Transport::Kernel,
            other => {
                return Err(PyValueError::new_err(format!(
                    "transport is {other:?}: write \"auto\" or \"kernel\""
                )));
            }
        };
        Ok(Config {
            transport,
            receive_buffer: self.receive_buffer,
            send_buffer: self.send_buffer,
            ..Config::default()
        })
    }

    /// Refuses what the kernel's TCP does not have.
    pub fn tcp(&self) -> PyResult<()> {
        if self.records {
            return Err(PyValueError::new_err(
                "TCP has no records: leave out records=True, or take unix:/path",
            ));
        }
        if self.receive_buffer.is_some() || self.send_buffer.is_some() {
            return Err(PyValueError::new_err(
                "buffers of kernel TCP are the kernel's to size: leave these out",
            ));
        }
        Ok(())
    }
}
