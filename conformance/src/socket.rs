//! A socket of ours, of any kind, so that the same is done with all.

use std::io::{IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use clap::ValueEnum;
use onecopy::unix::{
    Config, Datagram, Listener, Records, SeqListener, SeqPacket, Slot, Stream, ToSocketAddr, View,
};
use onecopy::{Error, Path, RecvFlags, SendFlags, Stats, Wait};
use onecopy::{Policy, Reader};

/// A stream, seqpacket or datagram socket.
#[derive(Debug)]
pub enum Socket {
    /// Bytes.
    Bytes(Stream),
    /// Records, of either way to keep them.
    Records(SeqPacket),
    /// Datagrams.
    Grams(Datagram),
}

type Result<T> = std::result::Result<T, Error>;

macro_rules! any {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) -> $returns:ty;)*) => {
        impl Socket {
            $($(#[$doc])* pub fn $name(&self, $($arg: $type),*) -> $returns {
                match self {
                    Socket::Bytes(socket) => socket.$name($($arg),*),
                    Socket::Records(socket) => socket.$name($($arg),*),
                    Socket::Grams(socket) => socket.$name($($arg),*),
                }
            })*
        }
    };
}

any! {
    /// As of all.
    send_with_flags(bytes: &[u8], flags: SendFlags) -> Result<usize>;
    /// As of all.
    send_vectored_with_flags(slices: &[IoSlice<'_>], flags: SendFlags) -> Result<usize>;
    /// As of all.
    recv_with_flags(buffer: &mut [u8], flags: RecvFlags) -> Result<usize>;
    /// As of all.
    set_read_timeout(limit: Option<Duration>) -> Result<()>;
    /// As of all.
    set_write_timeout(limit: Option<Duration>) -> Result<()>;
    /// As of all.
    set_nonblocking(on: bool) -> Result<()>;
    /// As of all.
    set_policy(policy: Policy) -> ();
    /// As of all.
    set_reader(reader: Reader) -> ();
    /// As of all.
    set_wait_mode(wait: Wait) -> ();
    /// As of all.
    shutdown(how: Shutdown) -> Result<()>;
    /// As of all.
    readable_bytes() -> Result<usize>;
    /// As of all.
    unread_bytes() -> Result<usize>;
    /// As of all.
    capacity() -> (usize, usize);
    /// As of all.
    stats() -> Stats;
    /// As of all.
    path() -> Path;
    /// As of all.
    take_error() -> Result<Option<Error>>;
}

impl Socket {
    /// Receives into slices.
    ///
    /// # Errors
    ///
    /// As of all.
    pub fn recv_vectored_with_flags(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize> {
        match self {
            Socket::Bytes(socket) => socket.recv_vectored_with_flags(slices, flags),
            Socket::Records(socket) => socket.recv_vectored_with_flags(slices, flags),
            Socket::Grams(socket) => socket.recv_vectored_with_flags(slices, flags),
        }
    }

    /// Borrows; none of datagrams.
    ///
    /// # Errors
    ///
    /// As of both others.
    pub fn recv_borrowed_with_flags(&self, max: usize, flags: RecvFlags) -> Option<Result<View>> {
        match self {
            Socket::Bytes(socket) => Some(socket.recv_borrowed_with_flags(max, flags)),
            Socket::Records(socket) => {
                Some(socket.recv_borrowed_with_flags(max, flags).map(|(view, _)| view))
            }
            Socket::Grams(_) => None,
        }
    }

    /// Reserves; none of datagrams.
    ///
    /// # Errors
    ///
    /// As of both others.
    pub fn reserve_with_flags(&self, len: usize, flags: SendFlags) -> Option<Result<Slot<'_>>> {
        match self {
            Socket::Bytes(socket) => Some(socket.reserve_with_flags(len, flags)),
            Socket::Records(socket) => Some(socket.reserve_with_flags(len, flags)),
            Socket::Grams(_) => None,
        }
    }

    /// Whether who sends is to be told.
    pub fn set_pass_credentials(&self, on: bool) {
        let _ = match self {
            Socket::Bytes(socket) => socket.set_pass_credentials(on),
            Socket::Records(socket) => socket.set_pass_credentials(on),
            Socket::Grams(socket) => socket.set_pass_credentials(on),
        };
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Bytes(socket) => socket.as_fd(),
            Socket::Records(socket) => socket.as_fd(),
            Socket::Grams(socket) => socket.as_fd(),
        }
    }
}

/// The sorts of sockets that are listened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Bytes.
    Stream,
    /// Records, each whole or cut, as on Linux.
    Records,
    /// Records whose rest stays, as on FreeBSD.
    Pieces,
}

impl Sort {
    /// All of them.
    pub const ALL: [Sort; 3] = [Sort::Stream, Sort::Records, Sort::Pieces];

    /// Its name on a command line.
    pub fn word(self) -> &'static str {
        match self {
            Sort::Stream => "stream",
            Sort::Records => "records",
            Sort::Pieces => "pieces",
        }
    }

    fn config(self) -> Config {
        let records = if self == Sort::Pieces { Records::Stream } else { Records::Atomic };
        Config { records, ..Config::default() }
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// As of both.
    pub fn connect(self, name: impl ToSocketAddr) -> Result<Socket> {
        match self {
            Sort::Stream => Stream::connect_with(name, &self.config()).map(Socket::Bytes),
            _ => SeqPacket::connect_with(name, &self.config()).map(Socket::Records),
        }
    }

    /// Listens.
    ///
    /// # Errors
    ///
    /// As of both.
    pub fn listen(self, name: impl ToSocketAddr) -> Result<Listening> {
        match self {
            Sort::Stream => Listener::bind_with(name, &self.config()).map(Listening::Bytes),
            _ => SeqListener::bind_with(name, &self.config()).map(Listening::Records),
        }
    }
}

/// Who listens for either kind.
pub enum Listening {
    /// For streams.
    Bytes(Listener),
    /// For seqpacket sockets.
    Records(SeqListener),
}

impl Listening {
    /// The next connection.
    ///
    /// # Errors
    ///
    /// As of both.
    pub fn accept(&self) -> Result<Socket> {
        match self {
            Listening::Bytes(listener) => listener.accept().map(|(socket, _)| Socket::Bytes(socket)),
            Listening::Records(listener) => listener.accept().map(|(socket, _)| Socket::Records(socket)),
        }
    }

    /// As of both.
    ///
    /// # Errors
    ///
    /// As of both.
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        match self {
            Listening::Bytes(listener) => listener.set_nonblocking(on),
            Listening::Records(listener) => listener.set_nonblocking(on),
        }
    }
}

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listening::Bytes(listener) => listener.as_fd(),
            Listening::Records(listener) => listener.as_fd(),
        }
    }
}
