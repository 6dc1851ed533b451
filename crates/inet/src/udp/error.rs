//! Why a call on a socket failed.

use crate::ip::Trouble;
use crate::wire::icmp::Unreachable;
use std::fmt;

macro_rules! errors {
    ($($(#[doc = $doc:literal])+ $name:ident $errno:literal $text:literal,)+) => {
        /// Each has the errno that Linux gives in the same place ([`Error::errno`]).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Error {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Error {
            /// The number (include/uapi/asm-generic/errno.h).
            pub fn errno(self) -> i32 {
                match self { $(Error::$name => $errno,)+ }
            }
        }

        impl fmt::Display for Error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Error::$name => $text,)+ })
            }
        }
    };
}

errors! {
    /// Nothing to receive, or no room to send: EAGAIN.
    WouldBlock 11 "nothing can be done now; wait for the next event of the socket",
    /// There is no such socket (any more): EBADF.
    NoSuchSocket 9 "there is no such socket; it was closed",
    /// To everybody, which the socket is not set to: EACCES.
    Access 13 "the address is that of everybody; set the socket to broadcast",
    /// The bytes lie in a device's memory, which the link does not take: EFAULT.
    DeviceMemory 14 "the bytes lie in a device's memory, which the link does not take; copy them to the host first",
    /// Not in this state, or no such value: EINVAL.
    Invalid 22 "the socket's state or the value does not allow it",
    /// No packet goes no hop: EINVAL.
    BadTtl 22 "a packet makes 1 to 255 hops",
    /// Nobody was said whom it is for: EDESTADDRREQ.
    NoAddress 89 "nobody knows whom it is for; connect the socket, or say an address",
    /// Longer than goes in one packet: EMSGSIZE.
    TooLong 90 "it is longer than the way takes in one packet, and may not be cut; send it in parts, or allow fragments",
    /// The host has no such protocol: ENOPROTOOPT.
    NoProtocol 92 "the host does not speak UDP",
    /// A router found a header that it did not understand: EPROTO.
    Protocol 71 "a router did not understand a packet's header",
    /// The host is cut off, says a router: ENONET.
    Isolated 64 "a router says that the host is cut off from the network",
    /// The host is unknown, says a router: EHOSTDOWN.
    HostDown 112 "a router knows no such host",
    /// There is no way to the network: ENETUNREACH.
    NetUnreachable 101 "there is no way to that address; add a route, or choose another host's address",
    /// There is no way to the host: EHOSTUNREACH.
    HostUnreachable 113 "there is no way to the host; look at the neighbour and the route",
    /// Nobody has the port there: ECONNREFUSED.
    Refused 111 "nobody has that port on the peer's host",
    /// It is not connected: ENOTCONN.
    NotConnected 107 "the socket is not connected; connect it first",
    /// Another socket has the address: EADDRINUSE.
    AddressInUse 98 "another socket has this address; choose another port, or set reuse on both",
    /// No address of this stack, or no port is left: EADDRNOTAVAIL.
    AddressNotAvailable 99 "no address of this stack, or no port is left; choose another",
    /// The address is of another family than the socket's own: EAFNOSUPPORT.
    AddressFamily 97 "the address is of another family than the socket's own; bind it to one of the same, or to none",
    /// No memory is left for it: ENOBUFS.
    NoMemory 105 "no memory is left for it; raise the limit, or close sockets",
}

impl std::error::Error for Error {}

/// What a complaint says to a socket, and whether one is told that did not ask for all (the kernel's icmp_err_convert, __udp4_lib_err()).
pub(crate) fn meaning(trouble: Trouble) -> (Error, bool) {
    match trouble {
        Trouble::Unreachable(Unreachable(code)) => match code {
            0 | 11 => (Error::NetUnreachable, false),
            1 | 5 | 12 => (Error::HostUnreachable, false),
            2 => (Error::NoProtocol, true),
            3 => (Error::Refused, true),
            4 => (Error::TooLong, true),
            6 | 9 => (Error::NetUnreachable, true),
            7 => (Error::HostDown, true),
            8 => (Error::Isolated, true),
            10 | 13..=15 => (Error::HostUnreachable, true),
            _ => (Error::HostUnreachable, false),
        },
        Trouble::TooLong { .. } => (Error::TooLong, true),
        Trouble::TimeExceeded(_) => (Error::HostUnreachable, false),
        Trouble::Parameter(_) => (Error::Protocol, true),
    }
}
