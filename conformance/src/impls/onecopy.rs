//! Ours, in every way that a pair of it can come about.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use onecopy::unix::{self, Carrier, Config, RecvFlags, SendFlags, Transport, Wait};

use super::kernel::Kernel;
use super::{Column, Conn, End, Impl, Kind, Listening, Name, Rx, Socket, Tx, not_offered};

/// Which ends are ours, and over what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onecopy {
    /// Both, by listener and connect, upgraded to shared memory in both directions.
    Connected,
    /// Both, by `Stream::pair`, told to block and never to spin.
    Pair,
    /// Both, by `Stream::pair`, told to spin and never to block.
    Spin,
    /// Both, told to stay with the kernel.
    Kernel,
    /// The client; the server is a plain socket.
    ToPlain,
    /// The server; the client is a plain socket.
    FromPlain,
}

impl Onecopy {
    fn config(self) -> Config {
        let transport = if self == Onecopy::Kernel { Transport::Kernel } else { Transport::Auto };
        let wait = match self {
            Onecopy::Pair => Wait::Block,
            Onecopy::Spin => Wait::Spin,
            _ => Wait::Adaptive,
        };
        Config { transport, wait, ..Config::default() }
    }
}

impl Impl for Onecopy {
    fn name(&self) -> &'static str {
        match self {
            Onecopy::Connected => "onecopy",
            Onecopy::Pair => "onecopy-pair",
            Onecopy::Spin => "onecopy-spin",
            Onecopy::Kernel => "onecopy-kernel",
            Onecopy::ToPlain => "onecopy-to-plain",
            Onecopy::FromPlain => "plain-to-onecopy",
        }
    }

    fn column(&self) -> Column {
        match self {
            Onecopy::Connected | Onecopy::Pair | Onecopy::Spin => Column::Shared,
            Onecopy::Kernel | Onecopy::ToPlain | Onecopy::FromPlain => Column::OnKernel,
        }
    }

    fn about(&self) -> &'static str {
        match self {
            Onecopy::Connected => "ours, connected by name and moved to shared memory in both directions",
            Onecopy::Pair => "ours, from `Stream::pair`, told to block and never to spin",
            Onecopy::Spin => "ours, from `Stream::pair`, told to spin and never to block",
            Onecopy::Kernel => "ours, told to stay with the kernel",
            Onecopy::ToPlain => "our client, a plain server: the first end of a pair is ours",
            Onecopy::FromPlain => "our server, a plain client: the second end of a pair is ours",
        }
    }

    fn pair(&self, dir: &Path) -> io::Result<(Conn, Conn)> {
        if matches!(self, Onecopy::Pair | Onecopy::Spin) {
            let (a, b) = unix::Stream::pair_with(&self.config())?;
            if !(a.path().is_shared_memory() && b.path().is_shared_memory()) {
                return Err(io::Error::other("Stream::pair is not over shared memory"));
            }
            return Ok((Box::new(Ours(a)), Box::new(Ours(b))));
        }
        // The name is free again as soon as the listener is gone, so every pair can use it.
        let name = Name::Abstract(format!("pair-{}", dir.display()).into_bytes());
        let server = self.listen(&name, None)?;
        let client = self.connect(&name)?;
        let conn = server.accept()?;
        if *self == Onecopy::Connected {
            upgrade(&*client, &*conn)?;
        }
        Ok((client, conn))
    }

    fn listen(&self, at: &Name, backlog: Option<i32>) -> io::Result<Box<dyn Listening>> {
        if *self == Onecopy::ToPlain {
            return Kernel.listen(at, backlog);
        }
        let mut config = self.config();
        if let Some(n) = backlog {
            config.backlog = n as u32;
        }
        Ok(Box::new(unix::Listener::bind_with(to_ours(at)?, &config)?))
    }

    fn connect(&self, to: &Name) -> io::Result<Conn> {
        if *self == Onecopy::FromPlain {
            return Kernel.connect(to);
        }
        Ok(Box::new(Ours(unix::Stream::connect_with(to_ours(to)?, &self.config())?)))
    }

    fn sleeps(&self) -> bool {
        *self != Onecopy::Spin
    }

    fn socket(&self, _kind: Kind) -> Option<Box<dyn Socket>> {
        None
    }
}

/// Sends a byte to and fro until both directions of both ends run over shared memory: an end learns of the
/// other's memory when it receives.
fn upgrade(a: &dyn End, b: &dyn End) -> io::Result<()> {
    for _ in 0..8 {
        if [a, b].iter().all(|e| e.path() == ("shared memory", "shared memory")) {
            return Ok(());
        }
        for (from, to) in [(a, b), (b, a)] {
            from.send(b"u", Tx::default())?;
            to.recv(&mut [0], Rx::default())?;
        }
    }
    Err(io::Error::other(format!(
        "not upgraded to shared memory: client {:?}, server {:?}",
        a.path(),
        b.path()
    )))
}

fn to_ours(name: &Name) -> io::Result<unix::Name> {
    match name {
        Name::Path(p) => Ok(unix::Name::path(p)),
        Name::Abstract(n) => Ok(unix::Name::abstract_(n)),
        Name::Unnamed => Err(not_offered("no autobind")),
    }
}

fn from_ours(name: &unix::Name) -> Name {
    match (name.as_path(), name.as_abstract()) {
        (Some(p), _) => Name::Path(p.to_owned()),
        (_, Some(n)) => Name::Abstract(n.to_vec()),
        _ => Name::Unnamed,
    }
}

/// A stream of ours.
pub struct Ours(pub unix::Stream);

impl End for Ours {
    fn send(&self, data: &[u8], f: Tx) -> io::Result<usize> {
        if f.oob {
            return Err(not_offered("no out-of-band data"));
        }
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::DONTWAIT, f.dontwait);
        flags.set(SendFlags::NOSIGNAL, f.nosignal);
        Ok(self.0.send(data, flags)?)
    }

    fn recv(&self, buf: &mut [u8], f: Rx) -> io::Result<usize> {
        if f.oob || f.trunc {
            return Err(not_offered("no such flag"));
        }
        let mut flags = RecvFlags::empty();
        flags.set(RecvFlags::DONTWAIT, f.dontwait);
        flags.set(RecvFlags::PEEK, f.peek);
        flags.set(RecvFlags::WAITALL, f.waitall);
        Ok(self.0.recv(buf, flags)?)
    }

    fn send_vectored(&self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(self.0.send_vectored(data, SendFlags::empty())?)
    }

    fn recv_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(self.0.recv_vectored(bufs, RecvFlags::empty())?)
    }

    fn send_to(&self, _data: &[u8], _to: &Name) -> io::Result<usize> {
        Err(not_offered("no sendto"))
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        Ok(self.0.shutdown(how)?)
    }

    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        Ok(self.0.set_nonblocking(on)?)
    }

    fn set_read_timeout(&self, after: Option<Duration>) -> io::Result<()> {
        Ok(self.0.set_read_timeout(after)?)
    }

    fn set_write_timeout(&self, after: Option<Duration>) -> io::Result<()> {
        Ok(self.0.set_write_timeout(after)?)
    }

    fn readable_bytes(&self) -> io::Result<usize> {
        Ok(self.0.readable_bytes()?)
    }

    fn take_error(&self) -> io::Result<Option<i32>> {
        Ok(self.0.take_error()?.map(|e| e.raw_os_error()))
    }

    fn set_peek_off(&self, _at: i32) -> io::Result<()> {
        Err(not_offered("no SO_PEEK_OFF"))
    }

    fn peer_cred(&self) -> io::Result<(i32, u32)> {
        let c = self.0.peer_cred()?;
        Ok((c.pid, c.uid))
    }

    fn local_name(&self) -> io::Result<Name> {
        Ok(from_ours(&self.0.local_name()?))
    }

    fn peer_name(&self) -> io::Result<Name> {
        Ok(from_ours(&self.0.peer_name()?))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn path(&self) -> (&'static str, &'static str) {
        let word = |c| match c {
            Carrier::Kernel => "kernel",
            Carrier::SharedMemory => "shared memory",
        };
        (word(self.0.path().send), word(self.0.path().receive))
    }
}

impl Listening for unix::Listener {
    fn accept(&self) -> io::Result<Conn> {
        Ok(Box::new(Ours(unix::Listener::accept(self)?)))
    }

    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        Ok(unix::Listener::set_nonblocking(self, on)?)
    }

    fn readable_bytes(&self) -> io::Result<usize> {
        Ok(rustix::io::ioctl_fionread(self)? as usize)
    }

    fn local_name(&self) -> io::Result<Name> {
        Ok(from_ours(&unix::Listener::local_name(self)?))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}
