//! A stream between two workers, the kernel's or ours, so that the loops that are timed are the same.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

/// An abstract name that nothing else on this machine has.
pub fn fresh_name() -> String {
    static NEXT: std::sync::Mutex<u32> = std::sync::Mutex::new(0);
    let mut next = NEXT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    *next += 1;
    format!("onecopy-bench-{}-{}", std::process::id(), *next)
}

/// One end of a stream.
pub enum Conn {
    /// The kernel's AF_UNIX.
    Kernel(UnixStream),
}

/// How a stream is made: the parameters that both workers get.
pub struct Setup {
    /// Which engine: `kernel`, or a policy of ours.
    pub engine: String,
    /// The abstract name to meet at.
    pub name: String,
    /// What is asked for as send and receive buffer; `None` leaves the defaults.
    pub buffer: Option<usize>,
}

impl Setup {
    /// Reads it from a worker's parameters.
    pub fn from_job(job: &Value) -> Result<Setup> {
        Ok(Setup {
            engine: text(job, "engine")?.to_owned(),
            name: text(job, "name")?.to_owned(),
            buffer: job["buffer"].as_u64().map(|n| n as usize),
        })
    }

    /// Its part of a worker's parameters.
    pub fn job(&self) -> Value {
        json!({"engine": self.engine, "name": self.name, "buffer": self.buffer})
    }

    /// Binds the name, says that the peer may come, and accepts it.
    pub fn accept(&self) -> Result<Conn> {
        match self.engine.as_str() {
            "kernel" => {
                let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&self.name)?)?;
                crate::proc::say_ready()?;
                self.sized(listener.accept()?.0)
            }
            other => bail!("there is no engine {other} for streams"),
        }
    }

    /// Connects to the name.
    pub fn connect(&self) -> Result<Conn> {
        match self.engine.as_str() {
            "kernel" => {
                let address = SocketAddr::from_abstract_name(&self.name)?;
                self.sized(UnixStream::connect_addr(&address).context("connecting")?)
            }
            other => bail!("there is no engine {other} for streams"),
        }
    }

    fn sized(&self, stream: UnixStream) -> Result<Conn> {
        if let Some(buffer) = self.buffer {
            // Only the sender's SO_SNDBUF counts for AF_UNIX on Linux. Beyond wmem_max it takes root.
            rustix::net::sockopt::set_socket_send_buffer_size(&stream, buffer)?;
            if rustix::net::sockopt::socket_send_buffer_size(&stream)? < buffer {
                let _ = rustix::net::sockopt::set_socket_send_buffer_size_force(&stream, buffer);
            }
        }
        Ok(Conn::Kernel(stream))
    }
}

impl Conn {
    /// Sends all of `bytes`, blocking.
    pub fn send_all(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Conn::Kernel(stream) => stream.write_all(bytes).context("sending"),
        }
    }

    /// Receives what is there, blocking; 0 is the end.
    pub fn recv(&mut self, buffer: &mut [u8]) -> Result<usize> {
        match self {
            Conn::Kernel(stream) => stream.read(buffer).context("receiving"),
        }
    }

    /// Receives one byte: the sign that the peer has got so far.
    pub fn wait_sign(&mut self) -> Result<()> {
        match self.recv(&mut [0])? {
            0 => bail!("the peer is gone"),
            _ => Ok(()),
        }
    }

    /// Sends one byte.
    pub fn sign(&mut self) -> Result<()> {
        self.send_all(&[1])
    }

    /// The sender's effective buffer: what getsockopt says, or the ring's capacity.
    pub fn effective(&self) -> Result<usize> {
        match self {
            Conn::Kernel(stream) => Ok(rustix::net::sockopt::socket_send_buffer_size(stream)?),
        }
    }
}

/// The number of that name in a worker's parameters or figures.
pub fn number(value: &Value, name: &str) -> Result<f64> {
    value[name].as_f64().with_context(|| format!("there is no number {name} in {value}"))
}

/// The whole number of that name in a worker's parameters.
pub fn whole(value: &Value, name: &str) -> Result<u64> {
    value[name].as_u64().with_context(|| format!("there is no whole number {name} in {value}"))
}

/// The text of that name in a worker's parameters.
pub fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str> {
    value[name].as_str().with_context(|| format!("there is no text {name} in {value}"))
}

/// `left` with the fields of `right` added.
pub fn with(mut left: Value, right: Value) -> Value {
    if let (Some(left), Value::Object(right)) = (left.as_object_mut(), right) {
        left.extend(right);
    }
    left
}
