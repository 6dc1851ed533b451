//! Why a call on a socket failed, or a connection ended.

use super::settings::BadSetting;
use std::fmt;

/// Each has the errno that Linux gives in the same place ([`Error::errno`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Error {
    /// Nothing to receive, no room to send, nobody to accept: EAGAIN.
    WouldBlock,
    /// A call of connect has begun: EINPROGRESS.
    InProgress,
    /// One is under way already: EALREADY.
    Already,
    /// It is connected: EISCONN.
    Connected,
    /// It is not: ENOTCONN.
    NotConnected,
    /// There is no such socket (any more): EBADF.
    NoSuchSocket,
    /// Not in this state, or no such value: EINVAL.
    Invalid,
    /// An option does not take this value: EINVAL.
    BadSetting(BadSetting),
    /// A listener does not do this: EOPNOTSUPP.
    Listening,
    /// It is switched off: EOPNOTSUPP.
    NotSupported,
    /// Nothing may be sent any more: EPIPE.
    BrokenPipe,
    /// The peer refused the connection: ECONNREFUSED.
    Refused,
    /// The peer reset it: ECONNRESET.
    Reset,
    /// This side gave it up: ECONNABORTED.
    Aborted,
    /// The peer did not answer: ETIMEDOUT.
    TimedOut,
    /// A router says that there is no way to the host: EHOSTUNREACH.
    HostUnreachable,
    /// There is no way to the network: ENETUNREACH.
    NetUnreachable,
    /// The host has no such protocol: ENOPROTOOPT.
    NoProtocol,
    /// A router says that a packet was malformed, or too long to be cut: EPROTO, EMSGSIZE.
    TooLong,
    /// Another socket has the address: EADDRINUSE.
    AddressInUse,
    /// No address of this stack, or no port is left: EADDRNOTAVAIL.
    AddressNotAvailable,
    /// The address is of another family than the socket's own: EAFNOSUPPORT.
    AddressFamily,
    /// No address was given: EDESTADDRREQ.
    NoAddress,
    /// No memory is left for it: ENOBUFS.
    NoMemory,
    /// The bytes lie in a device's memory, and the link takes none of it, or finishes no checksums: EFAULT.
    DeviceMemory,
}

impl Error {
    /// The number (include/uapi/asm-generic/errno.h).
    pub fn errno(self) -> i32 {
        match self {
            Error::WouldBlock => 11,
            Error::InProgress => 115,
            Error::Already => 114,
            Error::Connected => 106,
            Error::NotConnected => 107,
            Error::NoSuchSocket => 9,
            Error::Invalid | Error::BadSetting(_) => 22,
            Error::Listening | Error::NotSupported => 95,
            Error::BrokenPipe => 32,
            Error::Refused => 111,
            Error::Reset => 104,
            Error::Aborted => 103,
            Error::TimedOut => 110,
            Error::HostUnreachable => 113,
            Error::NetUnreachable => 101,
            Error::NoProtocol => 92,
            Error::TooLong => 90,
            Error::AddressInUse => 98,
            Error::AddressNotAvailable => 99,
            Error::AddressFamily => 97,
            Error::NoAddress => 89,
            Error::NoMemory => 105,
            Error::DeviceMemory => 14,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::BadSetting(bad) => return bad.fmt(f),
            Error::WouldBlock => "nothing can be done now; wait for the next event of the socket",
            Error::InProgress => "the connection is being made; wait until the socket can be written",
            Error::Already => "a connection is being made already; wait until the socket can be written",
            Error::Connected => "the socket is connected",
            Error::NotConnected => "the socket is not connected; connect or accept first",
            Error::NoSuchSocket => "there is no such socket; it was closed",
            Error::Invalid => "the socket's state or the value does not allow it",
            Error::Listening => "a listening socket cannot do this; accept a connection",
            Error::NotSupported => "this is switched off for all of the stack; switch it on in its settings",
            Error::BrokenPipe => "nothing can be sent any more; the connection was shut down or has failed",
            Error::Refused => "the peer refused the connection; nobody listens on that port",
            Error::Reset => "the peer reset the connection",
            Error::Aborted => "the connection was given up on this side",
            Error::TimedOut => "the peer did not answer in time",
            Error::HostUnreachable => "there is no way to the host; look at the neighbour and the route",
            Error::NetUnreachable => "there is no route to the network; add one",
            Error::NoProtocol => "the host does not speak this protocol",
            Error::TooLong => "a packet was too long for a link on the way, and may not be cut",
            Error::AddressInUse => "another socket has this address; choose another port, or set reuse",
            Error::AddressNotAvailable => "no address of this stack, or no port is left; choose another",
            Error::AddressFamily => {
                "the address is of another family than the socket's own; bind it to one of the same, or to none"
            }
            Error::NoAddress => "no address was given",
            Error::NoMemory => "no memory is left for it; raise the limit, or send less",
            Error::DeviceMemory => "the link takes no bytes that lie in a device's memory; copy them to the host first",
        })
    }
}

impl std::error::Error for Error {}
