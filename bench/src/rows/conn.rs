//! A stream, or two sockets of records or of datagrams, between two workers, the kernel's or ours, so that the loops that are
//! timed are the same.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result, bail};
use onecopy::unix::{Datagram, SeqPacket, Stream};
use onecopy::{Carrier, Path, Stats};
use rustix::net::sockopt;
use serde_json::{Value, json};

use super::job::number;
use super::setup::{Kind, Setup};

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
    /// Over a socket of the kernel's, with the buffer that is asked for.
    pub fn kernel(socket: UnixStream, setup: &Setup) -> Result<Conn> {
        setup.size(&socket)?;
        Ok(Conn::Kernel(socket))
    }

    /// Sends all of `bytes`, blocking: one record or datagram, where there are such.
    pub fn send_all(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Conn::Kernel(stream) => stream.write_all(bytes).context("sending"),
            Conn::Ours(stream) => {
                let mut sent = 0;
                while sent < bytes.len() {
                    sent += stream.send(&bytes[sent..])?;
                }
                Ok(())
            }
            Conn::Records(socket) => whole_message(socket.send(bytes)?, bytes),
            Conn::Datagrams(socket) => whole_message(socket.send(bytes)?, bytes),
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
            Conn::Ours(stream) => Ok(stream.recv(buffer)?),
            Conn::Records(socket) => Ok(socket.recv(buffer)?),
            Conn::Datagrams(socket) => Ok(socket.recv(buffer)?),
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
            "bells": (stats.doorbells + stats.fillers) as f64 / moved * MIB
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

const MIB: f64 = 1048576.0;

/// What [`Conn::work`] of a writer and a reader said, as settings.
pub fn work_settings(writer: &Value, reader: &Value) -> Vec<(String, String)> {
    let Ok(nt) = number(writer, "nt") else { return Vec::new() };
    let waits = |end: &Value| {
        let of = |name| crate::words::number(end[name].as_f64().unwrap_or_default());
        format!("{} spins {} sleeps {} bells / MiB", of("spins"), of("sleeps"), of("bells"))
    };
    vec![
        ("NT stores".to_owned(), format!("{nt:.0} %")),
        ("writer".to_owned(), waits(writer)),
        ("reader".to_owned(), waits(reader)),
    ]
}
