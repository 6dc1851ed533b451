//! What two workers have between them, and how it is made: parameters that both of them get.

use std::os::fd::AsFd;
use std::sync::Mutex;

use anyhow::{Result, bail};
use onecopy::unix::Config;
use onecopy::{Policy, Reader, Wait};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::job::text;

/// An abstract name that nothing else on this machine has.
fn fresh_name() -> String {
    static NEXT: Mutex<u32> = Mutex::new(0);
    let mut next = NEXT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    *next += 1;
    format!("onecopy-bench-{}-{}", std::process::id(), *next)
}

/// What the two workers have between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A stream (SOCK_STREAM).
    #[default]
    Stream,
    /// Each send is a record (SOCK_SEQPACKET).
    Records,
    /// Each send is a datagram, between two sockets that are connected to each other (SOCK_DGRAM).
    Datagrams,
}

impl Kind {
    /// What the names of its cases begin with.
    pub fn prefix(self) -> &'static str {
        match self {
            Kind::Stream => "",
            Kind::Records => "record-",
            Kind::Datagrams => "dgram-",
        }
    }

    /// The kernel's. From then on read(2) and write(2) are all it takes, which std's stream has.
    pub fn kernel_socket(self) -> Result<OwnedFd> {
        let kind = match self {
            Kind::Stream => SocketType::STREAM,
            Kind::Records => SocketType::SEQPACKET,
            Kind::Datagrams => SocketType::DGRAM,
        };
        Ok(rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
    }
}

/// How a stream is made: the parameters that both workers get.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Which engine: `kernel...`, or a policy of ours: `cached`, `nt`, `auto`.
    pub engine: String,
    /// The abstract name to meet at; a path of the kernel's sockets where it begins with a slash.
    pub name: String,
    /// What is asked for as send and receive buffer, doubled by both; `None` leaves the defaults.
    pub buffer: Option<usize>,
    /// How ours waits: `spin`, `block`, else adaptive.
    pub wait: String,
    /// Whether the reader passes the bytes on without a CPU reading them.
    pub untouched: bool,
    /// What is made.
    pub kind: Kind,
}

impl Setup {
    /// Both sides' defaults, at a fresh name.
    pub fn new(engine: &str) -> Setup {
        Setup { engine: engine.to_owned(), name: fresh_name(), ..Setup::default() }
    }

    /// Reads it from a worker's parameters.
    pub fn from_job(job: &Value) -> Result<Setup> {
        Ok(Setup {
            engine: text(job, "engine")?.to_owned(),
            name: text(job, "name")?.to_owned(),
            buffer: job["buffer"].as_u64().map(|n| n as usize),
            wait: text(job, "wait")?.to_owned(),
            untouched: job["untouched"].as_bool().unwrap_or_default(),
            kind: Kind::deserialize(&job["kind"])?,
        })
    }

    /// Its part of a worker's parameters.
    pub fn job(&self) -> Value {
        json!({
            "engine": self.engine, "name": self.name, "buffer": self.buffer,
            "wait": self.wait, "untouched": self.untouched, "kind": self.kind
        })
    }

    /// Whether it is the kernel's.
    pub fn is_kernel(&self) -> bool {
        self.engine.starts_with("kernel")
    }

    /// The name, as the kernel has it.
    pub fn address(&self) -> Result<SocketAddrUnix> {
        Ok(match self.name.starts_with('/') {
            true => SocketAddrUnix::new(&*self.name)?,
            false => SocketAddrUnix::new_abstract_name(self.name.as_bytes())?,
        })
    }

    /// A stream of the kernel's beside this one, for signs where nothing may be sent back on what is measured.
    pub fn aside(&self) -> Setup {
        let (engine, name) = ("kernel".to_owned(), format!("{}-aside", self.name));
        Setup { engine, name, ..Setup::default() }
    }

    /// Asks the kernel for the buffer. Only the sender's SO_SNDBUF counts for AF_UNIX on Linux, and beyond
    /// wmem_max it takes root.
    pub fn size(&self, socket: impl AsFd) -> Result<()> {
        if let Some(buffer) = self.buffer {
            sockopt::set_socket_send_buffer_size(&socket, buffer)?;
            if sockopt::socket_send_buffer_size(&socket)? < buffer * 2 {
                let _ = sockopt::set_socket_send_buffer_size_force(&socket, buffer);
            }
        }
        Ok(())
    }

    /// What ours is made with.
    pub fn config(&self) -> Result<Config> {
        Ok(Config {
            send_buffer: self.buffer,
            receive_buffer: self.buffer,
            policy: match self.engine.split('-').next() {
                Some("cached") => Policy::Cached,
                Some("nt") => Policy::NonTemporal,
                Some("auto") => Policy::Auto,
                _ => bail!("there is no engine {} for streams", self.engine),
            },
            // Large enough for every case; what is in force is shown.
            max_ring: 1 << 30,
            reader: if self.untouched { Reader::NoCpu } else { Reader::OtherCore },
            wait: match self.wait.as_str() {
                "spin" => Wait::Spin,
                "block" => Wait::Block,
                _ => Wait::Adaptive,
            },
            ..Config::default()
        })
    }
}
