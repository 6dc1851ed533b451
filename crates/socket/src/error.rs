//! Errors: which call failed, with which errno, because of which argument, why, and what to do next.

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
    /// Waiting for shared memory.
    Wait,
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
            Op::Wait => "wait",
        }
    }
}

/// An error of a socket. `raw_os_error()` is the errno that the kernel's own socket of that family gives in
/// the same place. If a peer broke the shared-memory protocol, it is EPROTO.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Error {
    op: Op,
    errno: Errno,
    /// Bytes of an argument that is too long; 0 for other errors.
    len: u32,
    argument: Option<&'static str>,
    why: Option<&'static str>,
}

/// The result of a call on a socket.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Makes the error of a call. Its reason is the known one for this errno, if any.
    pub fn new(op: Op, errno: Errno) -> Error {
        Error { op, errno, len: 0, argument: None, why: None }
    }

    /// Names the argument that the error is about: see [`Error::argument`].
    pub fn about(self, argument: &'static str) -> Error {
        Error { argument: Some(argument), ..self }
    }

    /// Gives the reason, instead of the known one for the errno: why, and what to do next.
    pub fn because(self, why: &'static str) -> Error {
        Error { why: Some(why), ..self }
    }

    /// Adds the length in bytes of an argument that is too long.
    pub fn of_bytes(self, len: usize) -> Error {
        Error { len: u32::try_from(len).unwrap_or(u32::MAX), ..self }
    }

    /// Returns the call that failed.
    pub fn op(&self) -> Op {
        self.op
    }

    /// Returns the errno (errno(3)).
    pub fn raw_os_error(&self) -> i32 {
        self.errno.raw_os_error()
    }

    /// Returns the kind that std gives to this errno.
    pub fn kind(&self) -> io::ErrorKind {
        self.errno.kind()
    }

    /// Returns whether trying again later may work: EAGAIN.
    pub fn would_block(&self) -> bool {
        self.errno == Errno::AGAIN
    }

    /// Returns whether there is no peer any more: ECONNREFUSED.
    pub fn is_refused(&self) -> bool {
        self.errno == Errno::CONNREFUSED
    }

    /// Returns the argument that is impossible or that the kernel refuses. It has the name from the call's
    /// documentation, or is "Config::" and the field. Returns None if the error is about the state of the
    /// connection and not about an argument.
    pub fn argument(&self) -> Option<&'static str> {
        // A caller that gives its own reason knows which argument the error is about, if any.
        if self.why.is_some() { self.argument } else { self.argument.or_else(|| self.advice().0) }
    }

    /// Returns why the call failed, and what to do next. Every error that onecopy itself makes has a reason.
    /// An error of the kernel has one if its meaning is known.
    pub fn reason(&self) -> Option<&'static str> {
        self.why.or_else(|| self.advice().1)
    }

    /// Returns the argument and the reason for an errno that the kernel gives to a call, or that means the
    /// same in every call.
    fn advice(&self) -> (Option<&'static str>, Option<&'static str>) {
        let name = |why| (Some("name"), Some(why));
        let of = |argument, why| (Some(argument), Some(why));
        let why = |why| (None, Some(why));
        match (self.op, self.errno) {
            (Op::Bind, Errno::ADDRINUSE) => {
                name("it is taken; stop who listens there, or remove a socket file that nobody listens on")
            }
            (Op::Bind, Errno::INVAL) => name("the socket has one already; make another socket"),
            (Op::Bind, Errno::NOENT) => name("the folder of that path does not exist; make it first"),
            (Op::Bind | Op::Connect | Op::Send, Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => {
                name("no path leads there; look at its folders and links")
            }
            (Op::Bind, Errno::ROFS) => name("that file system is read-only; choose another folder"),
            (Op::Bind | Op::Connect | Op::Send, Errno::ACCESS) => {
                name("no permission; check the socket file's mode and its folder's")
            }
            (Op::Connect, Errno::NOENT) => name("there is no such socket; is the server running?"),
            (Op::Connect, Errno::CONNREFUSED) => {
                name("nobody listens there; start the server (a plain file at that path is refused likewise)")
            }
            (Op::Connect, Errno::PROTOTYPE) => {
                name("the socket there is of another type (stream, seqpacket, datagram)")
            }
            (Op::Connect, Errno::AGAIN) => name("the listener's backlog is full; try again, or raise it"),
            (Op::Send | Op::Connect, Errno::PERM) => name("the socket there is connected to another one"),
            (Op::Send, Errno::CONNREFUSED) => why("nobody receives there any more; connect again"),
            (Op::Send, Errno::NOTCONN) => why("there is no peer; connect, or name one with `send_to`"),
            (Op::Send, Errno::NOENT) => name("there is no such socket; is the receiver running?"),
            (Op::Send, Errno::PROTOTYPE) => name("the socket there is no datagram socket"),
            (Op::Send, Errno::MSGSIZE) => {
                of("bytes", "longer than what is sent whole; raise Config::send_buffer, or send less at once")
            }
            (Op::Send, Errno::PIPE) => {
                why("the peer is gone or does not read any more, or this side was shut down; connect again")
            }
            (Op::Send, Errno::CONNRESET) => {
                why("the peer closed without reading all that was sent; connect again")
            }
            (Op::Send, Errno::ALREADY) => {
                why("what the last sends left is still to be sent; wait for POLLOUT")
            }
            (Op::Send, Errno::FAULT) => {
                of("chain", "this CPU cannot read its memory; copy it to pages of the host first")
            }
            (Op::Send, Errno::BADF) => of("fds", "one of them is not open"),
            (Op::Send, Errno::TOOMANYREFS) => of(
                "fds",
                "too many descriptors are on their way (RLIMIT_NOFILE); let the peer receive some first",
            ),
            (Op::Recv, Errno::NOTCONN) => why("there is no peer; connect first"),
            (Op::Recv, Errno::CONNRESET) => why("the peer closed without reading all that was sent to it"),
            (Op::Recv, Errno::OVERFLOW) => {
                why("its pages are more than a chain counts; receive it into a buffer")
            }
            (Op::Accept, Errno::AGAIN) => why("no connection waits; poll the listener and accept again"),
            (Op::Accept, Errno::INVAL) => why("the listener was shut down; bind a new one"),
            (Op::Send | Op::Recv, Errno::AGAIN) => {
                why("it would have to wait; poll the socket and try again")
            }
            (Op::Shutdown, Errno::NOTCONN) => why("there is no peer to tell; it is as good as done"),
            (Op::Option, Errno::INVAL | Errno::DOM) => {
                why("the kernel does not take that value; see the call's range")
            }
            (_, Errno::PROTO) => why("the peer broke the shared-memory protocol; this connection is lost"),
            (_, Errno::MFILE) => why("too many open descriptors; close some, or raise RLIMIT_NOFILE"),
            (_, Errno::NFILE) => why("the system has no descriptor left (fs.file-max); close some"),
            (_, Errno::NOMEM | Errno::NOBUFS) => why("no memory is left for it; free some, or ask for less"),
            (_, Errno::INTR) => why("a signal came first; call again"),
            _ => (None, None),
        }
    }
}

impl fmt::Display for Error {
    /// Writes for example `connect: name: No such file or directory (os error 2): there is no such socket; is
    /// the server running?`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.op.name())?;
        if let Some(argument) = self.argument() {
            write!(f, "{argument}: ")?;
        }
        write!(f, "{}", self.errno)?;
        match (self.reason(), self.len) {
            (Some(why), 0) => write!(f, ": {why}"),
            (Some(why), len) => write!(f, ": it has {len} bytes; {why}"),
            (None, _) => Ok(()),
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
    /// Keeps `raw_os_error()`, which programs written for std's sockets ask for. An [`io::Error`] has an
    /// errno or a text, not both, so the argument and the reason are lost. Calls that return [`Error`] itself
    /// keep them.
    fn from(error: Error) -> io::Error {
        io::Error::from_raw_os_error(error.raw_os_error())
    }
}
