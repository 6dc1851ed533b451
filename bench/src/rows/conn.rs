//! A stream, or two sockets of records or of datagrams, between two workers, the kernel's or ours, so that the loops that are
//! timed are the same.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Mutex;

use anyhow::{Context as _, Result, bail};
use onecopy::unix::{
    Carrier, Config, Datagram, Listener, Name, Path, Policy, Reader, RecvFlags, SendFlags, SeqListener,
    SeqPacket, Stats, Stream, Wait,
};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::dgram;

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

    /// Binds the name and says that the peer may come.
    pub fn listen(&self) -> Result<Server> {
        let server = self.bind()?;
        crate::proc::say_ready()?;
        Ok(server)
    }

    /// Binds the name. The peer is not told yet.
    pub fn bind(&self) -> Result<Server> {
        let name = || Name::abstract_(&self.name);
        Ok(match self.kind {
            kind if self.is_kernel() => {
                let fd = kind.kernel_socket()?;
                rustix::net::bind(&fd, &self.address()?)?;
                // As many as may be, which is what std's listener asks for.
                rustix::net::listen(&fd, -1)?;
                Server::Kernel(fd.into())
            }
            Kind::Stream => Server::Ours(Listener::bind_with(name(), &self.config()?)?),
            Kind::Records => Server::Records(SeqListener::bind_with(name(), &self.config()?)?),
            Kind::Datagrams => bail!("datagram sockets do not listen"),
        })
    }

    /// Accepts the one peer of this name.
    pub fn accept(&self) -> Result<Conn> {
        match self.kind {
            Kind::Datagrams => dgram::accept(self),
            _ => self.listen()?.accept(self),
        }
    }

    /// Connects to the name.
    pub fn connect(&self) -> Result<Conn> {
        let name = || Name::abstract_(&self.name);
        match self.kind {
            Kind::Datagrams => dgram::connect(self),
            kind if self.is_kernel() => {
                let fd = kind.kernel_socket()?;
                rustix::net::connect(&fd, &self.address()?).context("connecting")?;
                self.sized(fd.into())
            }
            Kind::Stream => Ok(Conn::Ours(Stream::connect_with(name(), &self.config()?)?)),
            Kind::Records => Ok(Conn::Records(SeqPacket::connect_with(name(), &self.config()?)?)),
        }
    }

    /// Asks the kernel for the buffer. Only the sender's SO_SNDBUF counts for AF_UNIX on Linux, and beyond
    /// wmem_max it takes root.
    pub fn sized(&self, stream: UnixStream) -> Result<Conn> {
        if let Some(buffer) = self.buffer {
            sockopt::set_socket_send_buffer_size(&stream, buffer)?;
            if sockopt::socket_send_buffer_size(&stream)? < buffer * 2 {
                let _ = sockopt::set_socket_send_buffer_size_force(&stream, buffer);
            }
        }
        Ok(Conn::Kernel(stream))
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

/// A listener.
pub enum Server {
    /// The kernel's.
    Kernel(UnixListener),
    /// Ours.
    Ours(Listener),
    /// Ours, of records.
    Records(SeqListener),
}

impl Server {
    /// The next connection.
    pub fn accept(&self, setup: &Setup) -> Result<Conn> {
        match self {
            Server::Kernel(listener) => setup.sized(listener.accept()?.0),
            Server::Ours(listener) => Ok(Conn::Ours(listener.accept()?)),
            Server::Records(listener) => Ok(Conn::Records(listener.accept()?)),
        }
    }
}

/// One end of a connection.
pub enum Conn {
    /// The kernel's AF_UNIX, of any kind.
    Kernel(UnixStream),
    /// Ours, whichever way its bytes take.
    Ours(Stream),
    /// Ours, of records.
    Records(SeqPacket),
    /// Ours, of datagrams.
    Datagrams(Datagram),
}

impl Conn {
    /// Sends all of `bytes`, blocking: one record or datagram, where there are such.
    pub fn send_all(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Conn::Kernel(stream) => stream.write_all(bytes).context("sending"),
            Conn::Ours(stream) => {
                let mut sent = 0;
                while sent < bytes.len() {
                    sent += stream.send(&bytes[sent..], SendFlags::empty())?;
                }
                Ok(())
            }
            Conn::Records(socket) => whole_message(socket.send(bytes, SendFlags::empty())?, bytes),
            Conn::Datagrams(socket) => whole_message(socket.send(bytes, SendFlags::empty())?, bytes),
        }
    }

    /// Says that nothing more comes. A datagram socket does not hang up, so there it takes a datagram, of no bytes.
    pub fn finish(&mut self, kind: Kind) -> Result<()> {
        match (kind, self) {
            (Kind::Datagrams, Conn::Kernel(stream)) => {
                rustix::net::send(stream, &[], rustix::net::SendFlags::empty())?;
            }
            (Kind::Datagrams, conn) => conn.send_all(&[])?,
            _ => {}
        }
        Ok(())
    }

    /// Receives what is there, or a record, blocking; 0 is the end.
    pub fn recv(&mut self, buffer: &mut [u8]) -> Result<usize> {
        match self {
            Conn::Kernel(stream) => stream.read(buffer).context("receiving"),
            Conn::Ours(stream) => Ok(stream.recv(buffer, RecvFlags::empty())?),
            Conn::Records(socket) => Ok(socket.recv(buffer, RecvFlags::empty())?),
            Conn::Datagrams(socket) => Ok(socket.recv(buffer, RecvFlags::empty())?),
        }
    }

    /// Receives until `buffer` is full; false if the stream ended before its first byte.
    pub fn recv_all(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.recv(&mut buffer[filled..])? {
                0 if filled == 0 => return Ok(false),
                0 => bail!("the stream ended after {filled} of {} bytes", buffer.len()),
                n => filled += n,
            }
        }
        Ok(true)
    }

    /// Receives one byte: the sign that the peer has got so far.
    pub fn wait_sign(&mut self) -> Result<()> {
        if self.recv_all(&mut [0])? { Ok(()) } else { bail!("the peer is gone") }
    }

    /// Sends one byte.
    pub fn sign(&mut self) -> Result<()> {
        self.send_all(&[1])
    }

    /// The sender's effective buffer: what getsockopt says, or the ring's capacity.
    pub fn effective(&self) -> Result<usize> {
        match self {
            Conn::Kernel(stream) => Ok(sockopt::socket_send_buffer_size(stream)?),
            Conn::Ours(stream) => Ok(stream.capacity().0),
            Conn::Records(socket) => Ok(socket.capacity().0),
            Conn::Datagrams(socket) => Ok(socket.capacity().0),
        }
    }

    /// What ours has done so far.
    pub fn stats(&self) -> Option<Stats> {
        match self {
            Conn::Kernel(_) => None,
            Conn::Ours(stream) => Some(stream.stats()),
            Conn::Records(socket) => Some(socket.stats()),
            Conn::Datagrams(socket) => Some(socket.stats()),
        }
    }

    fn ways(&self) -> Option<Path> {
        match self {
            Conn::Kernel(_) => None,
            Conn::Ours(stream) => Some(stream.path()),
            Conn::Records(socket) => Some(socket.path()),
            Conn::Datagrams(socket) => Some(socket.path()),
        }
    }

    /// Which way what is sent takes.
    pub fn path(&self) -> &'static str {
        if self.shares()[0] { "shared memory" } else { "kernel" }
    }

    /// Whether both directions run over shared memory.
    pub fn upgraded(&self) -> bool {
        self.shares() == [true; 2]
    }

    /// Whether what this end sends, and what it receives, runs over shared memory.
    pub fn shares(&self) -> [bool; 2] {
        let ways = self.ways();
        ways.map_or([false; 2], |path| [path.send, path.receive].map(|way| way == Carrier::SharedMemory))
    }

    /// How this end has worked so far; null for the kernel's.
    pub fn work(&self) -> Value {
        let Some(stats) = self.stats() else { return Value::Null };
        let moved = (stats.sent + stats.received).max(1) as f64;
        json!({
            "nt": stats.user_copied_nt as f64 / moved * 100.0,
            "spins": (stats.spins + stats.room_spins) as f64 / moved * MIB, "sleeps": stats.sleeps as f64 / moved * MIB,
            "bells": (stats.bells + stats.fillers) as f64 / moved * MIB
        })
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Conn::Kernel(stream) => stream.as_fd(),
            Conn::Ours(stream) => stream.as_fd(),
            Conn::Records(socket) => socket.as_fd(),
            Conn::Datagrams(socket) => socket.as_fd(),
        }
    }
}

fn whole_message(sent: usize, bytes: &[u8]) -> Result<()> {
    if sent == bytes.len() { Ok(()) } else { bail!("{sent} bytes of {} were sent", bytes.len()) }
}

/// Page-aligned bytes, as a program that moves much data would have them.
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// `len` bytes of `value`.
    pub fn new(len: usize, value: u8) -> Aligned {
        let bytes = vec![value; len + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Aligned { bytes, start, len }
    }
}

impl std::ops::Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

const MIB: f64 = 1048576.0;

/// What [`Conn::work`] of a writer and a reader said, as settings.
pub fn work_settings(writer: &Value, reader: &Value) -> Vec<(String, String)> {
    let Ok(nt) = number(writer, "nt") else { return Vec::new() };
    let waits = |end: &Value| {
        let of = |name| crate::show::number(end[name].as_f64().unwrap_or_default());
        format!("{} spins {} sleeps {} bells / MiB", of("spins"), of("sleeps"), of("bells"))
    };
    vec![
        ("NT stores".to_owned(), format!("{nt:.0} %")),
        ("writer".to_owned(), waits(writer)),
        ("reader".to_owned(), waits(reader)),
    ]
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
