//! The sockets behind a connection, under one set of calls.

use onecopy::unix::{SeqPacket, Slot, Stream, View};
use onecopy::{Carrier, Reader, ReceivedFlags, RecvFlags, SendFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::time::Duration;

use crate::call::{DONTWAIT, Failure};
use crate::on_stack::{self, Here};
use crate::pages::Lodger;

/// A socket.
pub enum Transport {
    Stream(Stream),
    Records(SeqPacket),
    /// The kernel's TCP, and what it has moved.
    Tcp(TcpStream, Mutex<Moved>),
    /// TCP of a stack of ours, or the kernel's by io_uring.
    OnStack(on_stack::Stream),
}

/// Bytes that kernel TCP has moved. It copies each once.
#[derive(Clone, Copy, Default)]
pub struct Moved {
    pub sent: u64,
    pub received: u64,
}

/// What was received, where it lies.
pub enum Data {
    Place(View),
    /// In pages of a stack.
    Pages(Here<Lodger>),
    Own(Vec<u8>),
}

/// The most that one borrow of TCP takes, in bytes: of the kernel's a borrow is a buffer of its own.
const PIECE: usize = 256 << 10;

type Result<T> = std::result::Result<T, Failure>;

/// Calls the same method of both unix sockets.
macro_rules! both {
    ($self:expr, $socket:ident => $call:expr, tcp $tcp:ident => $other:expr, stack $stack:ident => $third:expr) => {
        match $self {
            Transport::Stream($socket) => $call,
            Transport::Records($socket) => $call,
            Transport::Tcp($tcp, _) => $other,
            Transport::OnStack($stack) => $third,
        }
    };
}

impl Transport {
    pub fn tcp(stream: TcpStream) -> Result<Transport> {
        stream.set_nodelay(true)?;
        Ok(Transport::Tcp(stream, Mutex::default()))
    }

    pub fn has_records(&self) -> bool {
        matches!(self, Transport::Records(_))
    }

    /// The stream of a stack's.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP of all others.
    pub fn on_stack(&self) -> Result<&on_stack::Stream> {
        match self {
            Transport::OnStack(stream) => Ok(stream),
            _ => Err(Failure {
                errno: Errno::OPNOTSUPP.raw_os_error(),
                text: "only a connection of a Stack has to do with a device's memory: connect by one"
                    .to_owned(),
            }),
        }
    }

    fn moved(&self, count: impl FnOnce(&mut Moved)) {
        if let Transport::Tcp(_, moved) = self {
            count(&mut moved.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        }
    }

    pub fn send(&self, bytes: &[u8], flags: u32) -> Result<usize> {
        let mut own = SendFlags::from_bits_truncate(flags & !DONTWAIT);
        own.set(SendFlags::DONTWAIT, flags & DONTWAIT != 0);
        let sent = both!(self, socket => socket.send_with_flags(bytes, own)?, tcp stream => {
            let mut kernel = rustix::net::SendFlags::NOSIGNAL;
            kernel.set(rustix::net::SendFlags::DONTWAIT, flags & DONTWAIT != 0);
            rustix::net::send(stream, bytes, kernel)?
        }, stack stream => stream.send(bytes, own)?);
        self.moved(|moved| moved.sent += sent as u64);
        Ok(sent)
    }

    /// Receives into `buffer`. Of a record that is longer, the rest is lost, which is an error.
    pub fn recv(&self, buffer: &mut [u8], dont_wait: bool, all: bool) -> Result<usize> {
        let mut flags = RecvFlags::empty();
        flags.set(RecvFlags::DONTWAIT, dont_wait);
        let received = match self {
            Transport::Stream(socket) => {
                flags.set(RecvFlags::WAITALL, all);
                socket.recv_with_flags(buffer, flags)?
            }
            Transport::Records(socket) => {
                let record = socket.recv_record_with_flags(buffer, flags)?;
                whole(record.flags)?;
                record.len
            }
            Transport::Tcp(stream, _) => {
                let mut kernel = rustix::net::RecvFlags::empty();
                kernel.set(rustix::net::RecvFlags::DONTWAIT, dont_wait);
                kernel.set(rustix::net::RecvFlags::WAITALL, all);
                rustix::net::recv(stream, buffer, kernel)?.0
            }
            Transport::OnStack(stream) => {
                flags.set(RecvFlags::WAITALL, all);
                stream.recv(buffer, flags)?
            }
        };
        self.moved(|moved| moved.received += received as u64);
        Ok(received)
    }

    /// Receives where the bytes lie; to `look` at them, in one piece if that is worth it.
    pub fn borrow(&self, max: usize, dont_wait: bool, look: bool) -> Result<Data> {
        let mut flags = RecvFlags::empty();
        flags.set(RecvFlags::DONTWAIT, dont_wait);
        match self {
            Transport::Stream(socket) => Ok(Data::Place(socket.recv_borrowed_with_flags(max, flags)?)),
            Transport::Records(socket) => {
                let (view, flags) = socket.recv_borrowed_with_flags(max, flags)?;
                whole(flags)?;
                Ok(Data::Place(view))
            }
            Transport::OnStack(stream) => stream.borrow(max.min(PIECE), dont_wait, look),
            Transport::Tcp(..) => {
                let mut bytes = vec![0; max.min(PIECE)];
                let received = self.recv(&mut bytes, dont_wait, false)?;
                bytes.truncate(received);
                bytes.shrink_to_fit();
                Ok(Data::Own(bytes))
            }
        }
    }

    /// Room in the peer's buffer; None of TCP, which has none.
    pub fn reserve(&self, len: usize) -> Result<Option<Slot<'_>>> {
        Ok(match self {
            Transport::Stream(socket) => Some(socket.reserve(len)?),
            Transport::Records(socket) => Some(socket.reserve(len)?),
            Transport::Tcp(..) | Transport::OnStack(_) => None,
        })
    }

    /// Bytes of what is to be received at most in one record.
    pub fn max_record(&self) -> usize {
        match self {
            Transport::Records(socket) => socket.max_record().max(socket.capacity().1),
            _ => PIECE,
        }
    }

    /// Bytes that the ring holds which the peer sends through; 0 without one.
    pub fn receive_capacity(&self) -> usize {
        both!(self, socket => socket.capacity().1, tcp _stream => 0, stack _stream => 0)
    }

    /// Whether there is something to receive before so much time has passed, or a signal came.
    pub fn readable_within(&self, limit: Duration) -> bool {
        let Ok(fd) = self.fd() else { return true };
        let limit = Timespec::try_from(limit).ok();
        !matches!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], limit.as_ref()), Ok(0))
    }

    pub fn set_timeout(&self, limit: Option<Duration>) -> Result<()> {
        let nonblocking = limit == Some(Duration::ZERO);
        let limit = limit.filter(|limit| !limit.is_zero());
        both!(self, socket => {
            socket.set_nonblocking(nonblocking)?;
            socket.set_read_timeout(limit)?;
            socket.set_write_timeout(limit)?;
        }, tcp stream => {
            stream.set_nonblocking(nonblocking)?;
            stream.set_read_timeout(limit)?;
            stream.set_write_timeout(limit)?;
        }, stack stream => stream.set_timeout(if nonblocking { Some(Duration::ZERO) } else { limit }));
        Ok(())
    }

    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        both!(self, socket => socket.shutdown(how)?, tcp stream => stream.shutdown(how)?, stack stream => stream.shutdown(how)?);
        Ok(())
    }

    /// # Errors
    ///
    /// EBUSY of a stack that another process has made.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        Ok(both!(self, socket => socket.as_fd(), tcp stream => stream.as_fd(), stack stream => stream.fd()?))
    }

    pub fn path(&self) -> &'static str {
        both!(self, socket => {
            let path = socket.path();
            match (path.is_shared_memory(), path.send == path.receive) {
                (true, _) => "shared memory",
                (false, true) => "kernel",
                (false, false) => "kernel and shared memory",
            }
        }, tcp _stream => "kernel", stack stream => match stream.get().map(|stream| stream.path().send) {
            Ok(Carrier::Stack) => "stack",
            _ => "kernel",
        })
    }

    pub fn policy(&self) -> Option<onecopy::Policy> {
        both!(self, socket => Some(socket.policy()), tcp _stream => None, stack stream => stream.get().ok().map(|stream| stream.policy()))
    }

    pub fn set_policy(&self, policy: onecopy::Policy) -> Result<()> {
        both!(self, socket => {
            socket.set_policy(policy);
            socket.set_reader(Reader::default());
            Ok(())
        }, tcp _stream => Err(Failure {
            errno: Errno::OPNOTSUPP.raw_os_error(),
            text: "the kernel copies what goes over its TCP: no policy of ours applies".to_owned(),
        }), stack stream => {
            stream.get()?.set_policy(policy);
            Ok(())
        })
    }

    pub fn stats(&self) -> Vec<(&'static str, u64)> {
        match self {
            Transport::Stream(socket) => socket.stats().named().collect(),
            Transport::Records(socket) => socket.stats().named().collect(),
            Transport::OnStack(stream) => {
                stream.get().map_or_else(|_| Vec::new(), |stream| stream.stats().named().collect())
            }
            Transport::Tcp(_, moved) => {
                let moved = *moved.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                let copied = moved.sent + moved.received;
                vec![("sent", moved.sent), ("received", moved.received), ("kernel_copied", copied)]
            }
        }
    }
}

fn whole(flags: ReceivedFlags) -> Result<()> {
    if flags.contains(ReceivedFlags::TRUNC) { Err(too_long("record")) } else { Ok(()) }
}

pub fn too_long(what: &str) -> Failure {
    Failure {
        errno: Errno::MSGSIZE.raw_os_error(),
        text: format!("the {what} was longer than what was asked for, and is lost: ask for more bytes"),
    }
}

/// CPU copies per byte that was sent or received, by a socket's counters.
pub fn copies_per_byte(stats: &[(&'static str, u64)]) -> Option<f64> {
    let of = |name| stats.iter().find(|(known, _)| *known == name).map_or(0, |(_, n)| *n);
    let moved = of("sent").saturating_add(of("received"));
    let copied =
        of("user_copied_in").saturating_add(of("user_copied_out")).saturating_add(of("kernel_copied"));
    (moved > 0).then(|| copied as f64 / moved as f64)
}
