//! What goes wrong: which call, which errno, why, and what to do next.

use rustix::io::Errno;
use std::fmt;
use std::io;

/// The call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Reading a socket name.
    Name,
    /// Making a socket or a pair.
    Socket,
    /// Binding or listening.
    Bind,
    /// Connecting.
    Connect,
    /// Accepting.
    Accept,
    /// Sending, reserving, committing.
    Send,
    /// Receiving, borrowing.
    Recv,
    /// Making a pool, loaning a page of it.
    Loan,
    /// Shutting down.
    Shutdown,
    /// Reading or setting an option.
    Option,
    /// Passing a socket on to another process, or taking it up there.
    Pass,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Op::Name => "socket name",
            Op::Socket => "socket",
            Op::Bind => "bind",
            Op::Connect => "connect",
            Op::Accept => "accept",
            Op::Send => "send",
            Op::Recv => "recv",
            Op::Loan => "loan",
            Op::Shutdown => "shutdown",
            Op::Option => "option",
            Op::Pass => "pass",
        }
    }
}

/// An error of a unix socket. `raw_os_error()` is the errno that the kernel's own AF_UNIX gives in the same
/// place, or EPROTO where a peer broke the shared-memory protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Error {
    op: Op,
    errno: Errno,
    why: Option<&'static str>,
}

/// What the calls of this crate return.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(op: Op, errno: Errno) -> Error {
        Error { op, errno, why: None }
    }

    pub(crate) fn because(self, why: &'static str) -> Error {
        Error { why: Some(why), ..self }
    }

    /// The call that failed.
    pub fn op(&self) -> Op {
        self.op
    }

    /// The errno (errno(3)).
    pub fn raw_os_error(&self) -> i32 {
        self.errno.raw_os_error()
    }

    /// The kind that std gives to this errno.
    pub fn kind(&self) -> io::ErrorKind {
        self.errno.kind()
    }

    /// Whether trying again later may work: EAGAIN.
    pub fn would_block(&self) -> bool {
        self.errno == Errno::AGAIN
    }

    fn advice(&self) -> Option<&'static str> {
        Some(match (self.op, self.errno) {
            (Op::Bind, Errno::ADDRINUSE) => {
                "the name is taken; stop who listens there, or remove a socket file that nobody listens on"
            }
            (Op::Bind, Errno::NOENT) => "the folder of that path does not exist; make it first",
            (Op::Bind | Op::Connect, Errno::ACCESS) => {
                "no permission; check the socket file's mode and its folder's"
            }
            (Op::Connect, Errno::NOENT) => "there is no such socket; is the server running?",
            (Op::Connect, Errno::CONNREFUSED) => {
                "nobody listens there; start the server (a plain file at that path is refused likewise)"
            }
            (Op::Connect, Errno::PROTOTYPE) => {
                "the socket there is of another type (stream, seqpacket, datagram)"
            }
            (Op::Send, Errno::CONNREFUSED) => "nobody receives there any more; connect again",
            (Op::Send, Errno::NOTCONN) => "there is no peer; connect, or name one with `send_to`",
            (Op::Send | Op::Connect, Errno::PERM) => "the socket there is connected to another one",
            (Op::Send, Errno::NOENT) => "there is no such socket; is the receiver running?",
            (Op::Send, Errno::PROTOTYPE) => "the socket there is no datagram socket",
            (Op::Connect, Errno::AGAIN) => "the listener's backlog is full; try again, or raise it",
            (Op::Send, Errno::PIPE) => "the peer is gone or does not read any more; connect again",
            (Op::Recv, Errno::CONNRESET) => "the peer closed without reading all that was sent to it",
            (Op::Send | Op::Recv, Errno::AGAIN) => "it would have to wait; poll the socket and try again",
            (_, Errno::PROTO) => "the peer broke the shared-memory protocol; this connection is lost",
            (_, Errno::MFILE) => "too many open descriptors; raise RLIMIT_NOFILE",
            _ => return None,
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.op.name(), self.errno)?;
        match self.why.or_else(|| self.advice()) {
            Some(why) => write!(f, ": {why}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    /// Keeps `raw_os_error()`; what only [`Error`] knows is lost.
    fn from(error: Error) -> io::Error {
        io::Error::from_raw_os_error(error.raw_os_error())
    }
}
