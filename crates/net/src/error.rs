//! What the stack's errors are called in calls on sockets, and what to do about them.

use onecopy_chain::notify::Refused;
use onecopy_inet::{tcp, udp};
use onecopy_socket::{Error, Op};
use rustix::io::Errno;

/// Why a call on a socket of the stack failed.
pub(crate) trait Cause: Copy {
    /// The errno that Linux gives in the same place.
    fn errno(self) -> i32;
    /// Why, and what to do.
    fn why(self, op: Op) -> Option<&'static str>;
    /// Whether a call that waits waits because of it.
    fn waits(self) -> bool;
}

/// The error of call `op`: the errno that Linux gives in the same place, why, and what to do.
pub(crate) fn of(op: Op, cause: impl Cause) -> Error {
    let error = Error::new(op, Errno::from_raw_os_error(cause.errno()));
    match cause.why(op) {
        Some(why) => error.because(why),
        None => error,
    }
}

impl Cause for tcp::Error {
    fn errno(self) -> i32 {
        tcp::Error::errno(self)
    }

    fn why(self, op: Op) -> Option<&'static str> {
        why_of_tcp(op, self)
    }

    fn waits(self) -> bool {
        matches!(self, tcp::Error::WouldBlock | tcp::Error::InProgress | tcp::Error::Already)
    }
}

impl Cause for udp::Error {
    fn errno(self) -> i32 {
        udp::Error::errno(self)
    }

    fn why(self, op: Op) -> Option<&'static str> {
        why_of_udp(op, self)
    }

    fn waits(self) -> bool {
        self == udp::Error::WouldBlock
    }
}

/// That bytes which the CPU cannot read are next: what a receive into a buffer says.
pub(crate) fn unreadable() -> Error {
    of(Op::Recv, tcp::Error::DeviceMemory)
}

/// There are bytes, and no room for a fragment.
pub(crate) fn too_small() -> Error {
    Error::new(Op::Recv, Errno::from_raw_os_error(TOO_SMALL))
        .about("most")
        .because("there is no room for a fragment; take one at least")
}

/// The error of a send without a copy that was refused.
pub(crate) fn refused(op: Op, why: Refused) -> Error {
    let error = Error::new(op, Errno::from_raw_os_error(why.errno()));
    error.because(match why {
        Refused::Full { .. } => "as many sends as may be are not complete; wait for some, or read their notices",
        Refused::Pinned { .. } => {
            "sends that are not complete keep as much memory as they may, those of all stacks of this process together: RLIMIT_MEMLOCK, or what Builder::zerocopy said; wait for some, send a copy, or allow more \
             (there, or by `ulimit -l` or CAP_IPC_LOCK before the stack is built)"
        }
        Refused::Unread { .. } => "too many notices wait to be read; read them, or allow more (Builder::zerocopy)",
        Refused::Unreadable => udp::Error::DeviceMemory.why(Op::Send).unwrap_or_default(),
        Refused::TooLong { .. } => "one send has less than 4 GiB; make it several",
        _ => "the stack has as many sockets with such sends as it may have; close some first",
    })
}

const TAKEN: &str = "another socket of this stack has that port; choose another, or close that one";
const NOT_OURS: &str =
    "the stack does not have that address; give it to Builder::address, or bind to 0.0.0.0";
pub(crate) const NO_PORT: &str = "no port is left; close some sockets first";
const NO_WAY: &str =
    "no route leads there; give the stack a gateway or a route (Builder::gateway, Builder::route)";
const NO_HOST: &str = "no such host answers there; is its address right, and its interface up?";
const NO_PAGE: &str = "the stack has no page left; let other sockets send what they hold first";
const NO_SOCKET: &str = "the stack has as many sockets as it may have; close some first";
const NO_PEER: &str = "there is no peer; connect first";
/// ETOOSMALL, which has a number only inside of the kernel (include/linux/errno.h).
const TOO_SMALL: i32 = 525;

pub(crate) const SILENT: &str =
    "the peer does not answer; is it there, and does a firewall drop the packets?";

fn why_of_tcp(op: Op, cause: tcp::Error) -> Option<&'static str> {
    use tcp::Error as Cause;
    Some(match (op, cause) {
        (Op::Bind, Cause::AddressInUse) => TAKEN,
        (Op::Connect, Cause::AddressInUse | Cause::AddressNotAvailable) => {
            "no port is left for that peer; close some connections first"
        }
        (Op::Bind, Cause::AddressNotAvailable) => NOT_OURS,
        (_, Cause::NetUnreachable) => NO_WAY,
        (_, Cause::HostUnreachable) => NO_HOST,
        (_, Cause::Refused) => "nobody listens at that port; start the server",
        (_, Cause::TimedOut) => SILENT,
        (_, Cause::Reset) => "the peer ended the connection at once; connect again",
        (Op::Send, Cause::BrokenPipe) => {
            "the peer is gone, or this side was shut down for sending; connect again"
        }
        (Op::Recv, Cause::DeviceMemory) => {
            "the bytes lie in a device's memory, which this CPU cannot read; receive them with recv_frags"
        }
        (Op::Send, Cause::NoMemory) => NO_PAGE,
        (_, Cause::NoMemory) => NO_SOCKET,
        (_, Cause::NotConnected) => NO_PEER,
        (Op::Option, Cause::NotSupported) => {
            "the stack does not use Fast Open so; have Builder::tcp set Config::fast_open, to Use::CLIENT for who connects, and to Use::SERVER for who listens"
        }
        (Op::Accept, Cause::Invalid) => "the listener was shut down; make another one",
        _ => return None,
    })
}

fn why_of_udp(op: Op, cause: udp::Error) -> Option<&'static str> {
    use udp::Error as Cause;
    Some(match (op, cause) {
        (Op::Bind, Cause::AddressInUse) => TAKEN,
        (_, Cause::AddressInUse) => NO_PORT,
        (Op::Bind, Cause::Invalid) => "the socket has an address already; make another socket",
        (Op::Bind, Cause::AddressNotAvailable) => NOT_OURS,
        (_, Cause::AddressNotAvailable) => NO_PORT,
        (Op::Connect, Cause::Invalid) => "nobody can have the port 0; give the peer's",
        (Op::Send, Cause::Invalid) => {
            "the port is 0, the source is no address of the stack's, or the train has more than 128 datagrams"
        }
        (_, Cause::NetUnreachable) => NO_WAY,
        (_, Cause::HostUnreachable) => NO_HOST,
        (_, Cause::Refused) => "nobody has that port on the peer's host; start the server",
        (_, Cause::Access) => "that is everybody's address; allow it with Socket::set_broadcast",
        (_, Cause::NoAddress) => "nobody was said whom it is for; connect the socket, or use send_to",
        (_, Cause::TooLong) => {
            "it is longer than the way takes in one packet (Stack::mtu, less 28 bytes of headers, 48 in IPv6); send it in parts"
        }
        (_, Cause::AddressFamily) => {
            "the address is of another family than the socket's own; bind one socket for each family"
        }
        (_, Cause::DeviceMemory) => {
            "the bytes lie in a device's memory, which the link does not take; copy them to the host first"
        }
        (Op::Send, Cause::NoMemory) => NO_PAGE,
        (_, Cause::NoMemory) => NO_SOCKET,
        (_, Cause::NotConnected) => NO_PEER,
        _ => return None,
    })
}
