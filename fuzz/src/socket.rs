//! A victim's socket of either kind, so that the same steps are done with both.

use std::io::{IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use onecopy::unix::{Error, Path, RecvFlags, SendFlags, SeqPacket, Slot, Stats, Stream, View, Wait};
use onecopy::{Policy, Reader};

/// A stream or a seqpacket socket.
pub enum Socket {
    /// Bytes.
    Bytes(Stream),
    /// Records, of either way to keep them.
    Records(SeqPacket),
}

type Result<T> = std::result::Result<T, Error>;

macro_rules! either {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) -> $returns:ty;)*) => {
        impl Socket {
            $($(#[$doc])* pub fn $name(&self, $($arg: $type),*) -> $returns {
                match self {
                    Socket::Bytes(socket) => socket.$name($($arg),*),
                    Socket::Records(socket) => socket.$name($($arg),*),
                }
            })*
        }
    };
}

either! {
    /// As of both.
    send(bytes: &[u8], flags: SendFlags) -> Result<usize>;
    /// As of both.
    send_vectored(slices: &[IoSlice<'_>], flags: SendFlags) -> Result<usize>;
    /// As of both.
    recv(buffer: &mut [u8], flags: RecvFlags) -> Result<usize>;
    /// As of both.
    reserve_with(len: usize, flags: SendFlags) -> Result<Slot<'_>>;
    /// As of both.
    set_read_timeout(limit: Option<Duration>) -> Result<()>;
    /// As of both.
    set_write_timeout(limit: Option<Duration>) -> Result<()>;
    /// As of both.
    set_nonblocking(on: bool) -> Result<()>;
    /// As of both.
    set_policy(policy: Policy) -> ();
    /// As of both.
    set_reader(reader: Reader) -> ();
    /// As of both.
    set_wait(wait: Wait) -> ();
    /// As of both.
    shutdown(how: Shutdown) -> Result<()>;
    /// As of both.
    readable_bytes() -> Result<usize>;
    /// As of both.
    unread_bytes() -> Result<usize>;
    /// As of both.
    capacity() -> (usize, usize);
    /// As of both.
    stats() -> Stats;
    /// As of both.
    path() -> Path;
    /// As of both.
    take_error() -> Result<Option<Error>>;
}

impl Socket {
    /// Receives into slices.
    ///
    /// # Errors
    ///
    /// As of both.
    pub fn recv_vectored(&self, slices: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize> {
        match self {
            Socket::Bytes(socket) => socket.recv_vectored(slices, flags),
            Socket::Records(socket) => Ok(socket.recv_vectored(slices, flags)?.len),
        }
    }

    /// Borrows.
    ///
    /// # Errors
    ///
    /// As of both.
    pub fn recv_borrowed_with(&self, max: usize, flags: RecvFlags) -> Result<View> {
        match self {
            Socket::Bytes(socket) => socket.recv_borrowed_with(max, flags),
            Socket::Records(socket) => Ok(socket.recv_borrowed_with(max, flags)?.0),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Bytes(socket) => socket.as_fd(),
            Socket::Records(socket) => socket.as_fd(),
        }
    }
}
