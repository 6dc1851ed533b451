//! Addresses as Python writes them, and what a socket is made with.

use onecopy::Transport;
use onecopy::unix::{Config, SocketAddr};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::net::{IpAddr, SocketAddr as Host, SocketAddrV6};

use crate::call::failed;

/// Where to.
pub enum Address {
    /// `unix:/path`, or `unix:@name` of the abstract namespace.
    Unix(SocketAddr),
    /// `tcp://host:port`: the addresses that it stands for.
    Tcp(Vec<Host>),
}

impl Address {
    pub fn parse(py: Python<'_>, text: &str) -> PyResult<Address> {
        if text.starts_with("tcp://") {
            return Ok(Address::Tcp(hosts(py, "tcp", text)?));
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

/// The addresses that `scheme://host:port` stands for, at least one. A name is looked up as Python does it: others go on meanwhile, and socket.gaierror says what failed.
pub fn hosts(py: Python<'_>, scheme: &str, text: &str) -> PyResult<Vec<Host>> {
    let wrong = || PyValueError::new_err(format!("{text:?} is no address here: write {scheme}://host:port"));
    let host = text.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://")).ok_or_else(wrong)?;
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    let (name, port) = host.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    if name.is_empty() || name.contains(['[', ']', ':']) {
        return Err(wrong());
    }
    let socket = py.import("socket")?;
    let stream = socket.getattr("SOCK_STREAM")?;
    let found = socket.call_method1("getaddrinfo", (name, port, 0, stream))?;
    let mut hosts = Vec::new();
    for one in found.try_iter()? {
        let place = one?.get_item(4)?;
        let ip: String = place.get_item(0)?.extract()?;
        // (One of IPv6 may name its interface behind a percent sign, which is a number of its own as well.)
        let ip = ip.split('%').next().unwrap_or_default();
        match ip.parse() {
            Ok(IpAddr::V4(ip)) => hosts.push(Host::from((ip, port))),
            Ok(IpAddr::V6(ip)) => {
                let scope = place.get_item(3)?.extract()?;
                hosts.push(SocketAddrV6::new(ip, port, 0, scope).into());
            }
            Err(_) => {}
        }
    }
    if hosts.is_empty() {
        return Err(PyValueError::new_err(format!("{name:?} has no IP address")));
    }
    Ok(hosts)
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
