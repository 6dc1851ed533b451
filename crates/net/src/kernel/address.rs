//! Addresses of the kernel's sockets.

use onecopy_inet::stack::Bound;
use rustix::net::AddressFamily;
use std::net::SocketAddr;
use std::os::fd::AsFd;

/// The family of `address`.
pub(super) fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// What getsockname(2) and getpeername(2) say.
pub(super) fn addresses(fd: impl AsFd) -> Bound {
    let local = rustix::net::getsockname(&fd).ok().and_then(|address| SocketAddr::try_from(address).ok());
    let remote =
        rustix::net::getpeername(&fd).ok().flatten().and_then(|address| SocketAddr::try_from(address).ok());
    Bound { local, remote }
}
