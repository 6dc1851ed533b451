//! Two hosts on one cable, and the kernel's loopback in their place.

use onecopy_link::Tap;
use onecopy_net::udp::Socket;
use onecopy_net::{BuildError, Driver, RecvFlags, Stack, Transport, Wait};
use rustix::fd::AsFd;
use rustix::net::sockopt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

pub const MTU: u32 = 1500;

pub fn stacks() -> (Stack, Stack) {
    stacks_with(Driver::Thread, Wait::Block)
}

pub fn stacks_with(driver: Driver, wait: Wait) -> (Stack, Stack) {
    let (a, b) = Tap::cable(MTU).unwrap();
    let build =
        |tap, address| Stack::builder().link(tap).address(address).driver(driver).wait(wait).build().unwrap();
    (build(a, "10.0.0.1/24"), build(b, "10.0.0.2/24"))
}

pub fn a(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

pub fn b(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], port))
}

/// A socket on each, which have addresses, and whose hosts know each other: no more than a few datagrams wait for a neighbour's address.
pub fn pair(left: &Stack, right: &Stack) -> (Socket, Socket) {
    let (one, other) = (Socket::bind(left, a(0)).unwrap(), Socket::bind(right, b(0)).unwrap());
    one.send_to(b"hello", other.local_addr().unwrap()).unwrap();
    while other.recv_with_flags(&mut [0; 10], RecvFlags::DONTWAIT).is_err() {
        left.drive(Duration::from_millis(1)).unwrap();
        right.drive(Duration::from_millis(1)).unwrap();
    }
    (one, other)
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// What cases are written for: the calls of std's `UdpSocket`.
pub trait Udp: AsFd {
    fn bind(side: &Side, port: u16) -> io::Result<Self>
    where
        Self: Sized;
    fn bind_elsewhere(side: &Side) -> io::Result<Self>
    where
        Self: Sized;
    fn local_addr(&self) -> SocketAddr;
    fn peer_addr(&self) -> io::Result<SocketAddr>;
    fn connect(&self, to: SocketAddr) -> io::Result<()>;
    fn send(&self, bytes: &[u8]) -> io::Result<usize>;
    fn send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize>;
    fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)>;
    fn recv_trunc(&self, buffer: &mut [u8], peek: bool) -> io::Result<usize>;
    fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)>;
    fn take_error(&self) -> io::Result<Option<io::Error>>;
    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()>;
    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()>;
    fn set_ttl(&self, ttl: u32) -> io::Result<()>;
    fn ttl(&self) -> io::Result<u32>;
    fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()>;
    fn recv_buffer_size(&self) -> io::Result<usize>;

    fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(buffer)?.0)
    }
}

/// Where sockets are made.
pub enum Side {
    Kernel,
    Ours(Stack, Ipv4Addr),
}

/// Both hosts, of the kernel.
pub fn sides() -> (Side, Side) {
    (Side::Kernel, Side::Kernel)
}

/// Stacks whose datagrams the kernel carries; none where io_uring is forbidden: said, and nothing is tried.
pub fn carried_sides() -> Option<(Side, Side)> {
    let build = || match Stack::builder().transport(Transport::Kernel).build() {
        Ok(stack) => Some(Side::Ours(stack, Ipv4Addr::LOCALHOST)),
        Err(BuildError::Uring(refused)) => {
            println!("lacking: io_uring ({refused})");
            None
        }
        Err(error) => panic!("{error}"),
    };
    build().zip(build())
}

/// Stacks of our own.
pub fn our_sides() -> (Side, Side) {
    let (left, right) = stacks();
    (Side::Ours(left, [10, 0, 0, 1].into()), Side::Ours(right, [10, 0, 0, 2].into()))
}

impl Udp for UdpSocket {
    fn bind(_: &Side, port: u16) -> io::Result<UdpSocket> {
        UdpSocket::bind((Ipv4Addr::LOCALHOST, port))
    }
    fn bind_elsewhere(_: &Side) -> io::Result<UdpSocket> {
        UdpSocket::bind("192.0.2.77:0")
    }
    fn local_addr(&self) -> SocketAddr {
        UdpSocket::local_addr(self).unwrap()
    }
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        UdpSocket::peer_addr(self)
    }
    fn connect(&self, to: SocketAddr) -> io::Result<()> {
        UdpSocket::connect(self, to)
    }
    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        UdpSocket::send(self, bytes)
    }
    fn send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        UdpSocket::send_to(self, bytes, to)
    }
    fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        UdpSocket::recv_from(self, buffer)
    }
    fn recv_trunc(&self, buffer: &mut [u8], peek: bool) -> io::Result<usize> {
        use rustix::net::RecvFlags;
        let mut flags = RecvFlags::TRUNC;
        flags.set(RecvFlags::PEEK, peek);
        // (rustix gives the bytes that are there, and the whole length.)
        Ok(rustix::net::recv(self, buffer, flags)?.1)
    }
    fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        UdpSocket::peek_from(self, buffer)
    }
    fn take_error(&self) -> io::Result<Option<io::Error>> {
        UdpSocket::take_error(self)
    }
    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        UdpSocket::set_nonblocking(self, nonblocking)
    }
    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        UdpSocket::set_read_timeout(self, limit)
    }
    fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        UdpSocket::set_ttl(self, ttl)
    }
    fn ttl(&self) -> io::Result<u32> {
        UdpSocket::ttl(self)
    }
    fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        Ok(sockopt::set_socket_recv_buffer_size(self, bytes)?)
    }
    fn recv_buffer_size(&self) -> io::Result<usize> {
        Ok(sockopt::socket_recv_buffer_size(self)?)
    }
}

impl Udp for Socket {
    fn bind(side: &Side, port: u16) -> io::Result<Socket> {
        let Side::Ours(stack, ip) = side else { panic!("of the kernel") };
        Ok(Socket::bind(stack, (*ip, port).into())?)
    }
    fn bind_elsewhere(side: &Side) -> io::Result<Socket> {
        let Side::Ours(stack, _) = side else { panic!("of the kernel") };
        Ok(Socket::bind(stack, ([192, 0, 2, 77], 0).into())?)
    }
    fn local_addr(&self) -> SocketAddr {
        Socket::local_addr(self).unwrap()
    }
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(Socket::peer_addr(self)?)
    }
    fn connect(&self, to: SocketAddr) -> io::Result<()> {
        Ok(Socket::connect(self, to)?)
    }
    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(Socket::send(self, bytes)?)
    }
    fn send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        Ok(Socket::send_to(self, bytes, to)?)
    }
    fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        Ok(Socket::recv_from(self, buffer)?)
    }
    fn recv_trunc(&self, buffer: &mut [u8], peek: bool) -> io::Result<usize> {
        let mut flags = RecvFlags::TRUNC;
        flags.set(RecvFlags::PEEK, peek);
        Ok(self.recv_with_flags(buffer, flags)?)
    }
    fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        Ok(Socket::peek_from(self, buffer)?)
    }
    fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(Socket::take_error(self)?.map(io::Error::from))
    }
    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        Ok(Socket::set_nonblocking(self, nonblocking)?)
    }
    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        Ok(Socket::set_read_timeout(self, limit)?)
    }
    fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        Ok(Socket::set_ttl(self, ttl)?)
    }
    fn ttl(&self) -> io::Result<u32> {
        Ok(Socket::ttl(self)?)
    }
    fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        Ok(Socket::set_recv_buffer_size(self, bytes)?)
    }
    fn recv_buffer_size(&self) -> io::Result<usize> {
        Ok(Socket::recv_buffer_size(self)?)
    }
}
