//! The socket: its addresses, and what is set of it.

use super::Settings;
use crate::carrier::udp::Endpoint;
use crate::error::of;
use crate::options::socket_options;
use crate::stack::Stack;
use onecopy_inet::udp::Error as Cause;
use onecopy_socket::{Error, Op, Path, Result, Stats};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A socket of UDP on a stack of the program's own, or the kernel's ([`kernel`](crate::kernel)). It works as std's `UdpSocket` does, and all methods take `&self`: it may be used from
/// several threads. Whoever sends and is not bound yet gets a port.
///
/// Its errors are those of the kernel's sockets. A router's or the peer's complaint about an earlier datagram is told by the next call, once,
/// and of a connected socket alone.
#[derive(Debug)]
pub struct Socket {
    pub(super) socket: Arc<dyn Endpoint>,
    /// Behind the socket, which is closed before its stack ends.
    stack: Stack,
}

impl Socket {
    /// A socket at `address` of `stack`: one of its addresses, 0.0.0.0 for any, or everybody's. Port 0 is one that nobody has
    /// ([`Socket::local_addr`] tells).
    ///
    /// # Errors
    ///
    /// EADDRINUSE, EADDRNOTAVAIL, ENOBUFS.
    pub fn bind(stack: &Stack, address: SocketAddr) -> Result<Socket> {
        Socket::bind_as(stack, address, false)
    }

    /// As [`Socket::bind`], at an address that others who say so may have, too: the last one gets what comes (SO_REUSEADDR).
    ///
    /// # Errors
    ///
    /// As [`Socket::bind`].
    pub fn bind_reusing(stack: &Stack, address: SocketAddr) -> Result<Socket> {
        Socket::bind_as(stack, address, true)
    }

    fn bind_as(stack: &Stack, address: SocketAddr, reuse: bool) -> Result<Socket> {
        Ok(Socket { socket: stack.udp_bind(address, reuse)?, stack: stack.clone() })
    }

    /// A socket without an address: it gets one with its first [`Socket::connect`] or send.
    ///
    /// # Errors
    ///
    /// ENOBUFS.
    pub fn unbound(stack: &Stack) -> Result<Socket> {
        Ok(Socket { socket: stack.udp_open()?, stack: stack.clone() })
    }

    /// Has it send to `to` where nothing else is said, and get what comes from there alone. It may be called again.
    ///
    /// # Errors
    ///
    /// ENETUNREACH, EADDRNOTAVAIL where no port is left, EACCES for everybody's address, EINVAL for the port 0.
    pub fn connect(&self, to: SocketAddr) -> Result<()> {
        self.socket.connect(to).map_err(|error| error.about("address"))
    }

    /// Has it be connected no more (connect(2) to AF_UNSPEC).
    ///
    /// # Errors
    ///
    /// EBADF.
    pub fn disconnect(&self) -> Result<()> {
        self.socket.disconnect()
    }

    /// Another handle of the same socket, as std's `try_clone` gives. The last one that is dropped closes it.
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as std's is.
    pub fn try_clone(&self) -> Result<Socket> {
        Ok(Socket { socket: Arc::clone(&self.socket), stack: self.stack.clone() })
    }

    /// The stack that it is a socket of.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Its own address: 0.0.0.0 and port 0 while it has none.
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as std's is.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let bound = self.socket.addresses();
        let any: IpAddr = match bound.remote.is_some_and(|remote| remote.is_ipv6()) {
            true => Ipv6Addr::UNSPECIFIED.into(),
            false => Ipv4Addr::UNSPECIFIED.into(),
        };
        Ok(bound.local.unwrap_or(SocketAddr::new(any, 0)))
    }

    /// Whom it is connected to.
    ///
    /// # Errors
    ///
    /// ENOTCONN where it is not.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        self.socket.addresses().remote.ok_or_else(|| of(Op::Name, Cause::NotConnected))
    }

    /// What a router or the peer's host has said of an earlier datagram, once (SO_ERROR).
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as std's is.
    pub fn take_error(&self) -> Result<Option<Error>> {
        Ok(self.socket.take_error())
    }

    /// Which way its datagrams take: the stack or the kernel, both ways.
    pub fn path(&self) -> Path {
        let carrier = self.socket.carrier();
        Path { send: carrier, receive: carrier }
    }

    /// What it has done so far, each copy counted.
    pub fn stats(&self) -> Stats {
        self.socket.counters().read()
    }

    /// Datagrams for it that were dropped since its receive buffer was full, or all memory for UDP was taken (SO_RXQ_OVFL).
    pub fn drops(&self) -> u64 {
        self.socket.drops()
    }

    /// Changes options that have no method of their own here, by the names of setsockopt(2).
    ///
    /// # Errors
    ///
    /// EBADF.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) -> Result<()> {
        self.socket.set(change)
    }

    /// Sets whether datagrams may be sent to everybody (SO_BROADCAST).
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as std's is.
    pub fn set_broadcast(&self, broadcast: bool) -> Result<()> {
        self.socket.set(|settings| settings.broadcast = broadcast)
    }

    /// See [`Socket::set_broadcast`].
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as std's is.
    pub fn broadcast(&self) -> Result<bool> {
        Ok(self.socket.get(|settings| settings.broadcast))
    }

    /// Sets whether trains that arrive whole are received whole (UDP_GRO): see [`Socket::recv_segments`].
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as std's options are.
    pub fn set_gro(&self, gro: bool) -> Result<()> {
        self.socket.set(|settings| settings.gro = gro)
    }

    /// See [`Socket::set_gro`].
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as std's options are.
    pub fn gro(&self) -> Result<bool> {
        Ok(self.socket.get(|settings| settings.gro))
    }

    /// Sets the type of service of what is sent, where its [`Envelope`](super::Envelope) says no other (IP_TOS).
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as socket2's is.
    pub fn set_tos(&self, service: u8) -> Result<()> {
        self.socket.set(|settings| settings.service = service)
    }

    /// The type of service of what is sent.
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as socket2's is.
    pub fn tos(&self) -> Result<u8> {
        Ok(self.socket.get(|settings| settings.service))
    }

    /// Sets the bytes that may wait to be received, as setsockopt(2) of SO_RCVBUF does: twice as many, since each datagram counts its page,
    /// or more of them, and 768 bytes.
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as socket2's is.
    pub fn set_recv_buffer_size(&self, bytes: usize) -> Result<()> {
        let bytes = u32::try_from(bytes.saturating_mul(2)).unwrap_or(u32::MAX);
        self.socket.set(|settings| settings.receive_buffer = Some(bytes.max(LEAST_BUFFER)))
    }

    /// Bytes that may wait to be received (SO_RCVBUF).
    ///
    /// # Errors
    ///
    /// None: it is a `Result` as socket2's is.
    pub fn recv_buffer_size(&self) -> Result<usize> {
        Ok(self.socket.receive_buffer())
    }

    /// The descriptor to wait at, with poll(2), epoll or a runtime. It is made with the first call. It is readable and writable while there is
    /// an error ([`Socket::take_error`]).
    ///
    /// # Errors
    ///
    /// EMFILE.
    pub fn poll_fd(&self) -> Result<BorrowedFd<'_>> {
        self.socket.fd()
    }
}

/// The least receive buffer: SOCK_MIN_RCVBUF.
const LEAST_BUFFER: u32 = 2304;

socket_options!(Socket);

/// As [`Socket::poll_fd`].
///
/// # Panics
///
/// Where no descriptor is left the first time (EMFILE).
impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.fd().unwrap_or_else(|error| panic!("{error}"))
    }
}
