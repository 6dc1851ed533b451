//! Whom `--check` speaks with: a stack at the other end of a cable, or the kernel behind a TAP.

use anyhow::Context;
use onecopy::{Stack, tcp};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// After which silence a connection of a check counts as hung.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Who is at the other side.
pub enum Peer {
    /// Another stack of this process.
    Stack(Stack),
    /// The kernel, at this address.
    Kernel(IpAddr),
}

/// Its end of a connection.
pub enum Far {
    Stack(tcp::Stream),
    Kernel(TcpStream),
}

/// It listens.
pub enum Door {
    Stack(tcp::Listener),
    Kernel(TcpListener),
}

impl Peer {
    /// Who it is, in words.
    pub fn name(&self) -> String {
        match self {
            Peer::Stack(_) => "another stack of this process, over a cable".to_owned(),
            Peer::Kernel(at) => format!("the kernel at {at}, over a TAP"),
        }
    }

    /// Connects to us.
    pub fn connect(&self, to: SocketAddr) -> anyhow::Result<Far> {
        let far = match self {
            Peer::Stack(stack) => Far::Stack(tcp::Stream::connect_timeout(stack, to, PATIENCE)?),
            Peer::Kernel(_) => Far::Kernel(TcpStream::connect_timeout(&to, PATIENCE)?),
        };
        match &far {
            Far::Stack(stream) => stream.set_nodelay(true)?,
            Far::Kernel(stream) => stream.set_nodelay(true)?,
        }
        Ok(far)
    }

    /// Lets us connect to it.
    pub fn listen(&self) -> anyhow::Result<Door> {
        Ok(match self {
            Peer::Stack(stack) => Door::Stack(tcp::Listener::bind(stack, super::PAIR_TX.parse()?)?),
            Peer::Kernel(at) => Door::Kernel(
                TcpListener::bind((*at, 0)).with_context(|| format!("the kernel does not listen at {at}"))?,
            ),
        })
    }
}

impl Door {
    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(match self {
            Door::Stack(listener) => listener.local_addr()?,
            Door::Kernel(listener) => listener.local_addr()?,
        })
    }

    pub fn accept(&self) -> anyhow::Result<Far> {
        Ok(match self {
            Door::Stack(listener) => Far::Stack(listener.accept()?.0),
            Door::Kernel(listener) => Far::Kernel(listener.accept()?.0),
        })
    }
}

impl Far {
    /// Sends all of it.
    pub fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        match self {
            Far::Stack(stream) => stream.write_all(bytes)?,
            Far::Kernel(stream) => stream.write_all(bytes)?,
        }
        Ok(())
    }

    /// Receives until there are so many bytes.
    pub fn receive(&mut self, len: usize) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        match self {
            Far::Stack(stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.read_exact(&mut bytes)?;
            }
            Far::Kernel(stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.read_exact(&mut bytes)?;
            }
        }
        Ok(bytes)
    }

    /// Sends no more.
    pub fn finish(&self) -> anyhow::Result<()> {
        match self {
            Far::Stack(stream) => stream.shutdown(Shutdown::Write)?,
            Far::Kernel(stream) => stream.shutdown(Shutdown::Write)?,
        }
        Ok(())
    }
}
