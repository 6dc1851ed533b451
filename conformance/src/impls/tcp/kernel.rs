//! The oracle: the kernel's TCP over loopback.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use super::super::kernel::Plain;
use super::super::traits::{
    Came, Column, Conn, End, Impl, Kind, Listening, Name, Rx, Socket, Sockets, Tcp, Tx, not_offered,
};
use super::{Places, Settled, pair};

/// The kernel's TCP.
pub struct Kernel;

/// A stream or a listener.
struct Inet(Plain);

static PLACES: Places = Places::new();

/// Waits until loopback has delivered all that was sent, on the one CPU that this process runs on: its queue is first in, first out, so what
/// is sent to oneself comes behind it. Three times: a segment, what it causes, and what that causes.
pub(super) fn settle() {
    static PING: OnceLock<UdpSocket> = OnceLock::new();
    let ping = PING.get_or_init(|| {
        let ping = UdpSocket::bind("127.0.0.1:0").expect("a UDP socket");
        ping.connect(ping.local_addr().expect("an address")).expect("connect() to oneself");
        ping.set_read_timeout(Some(onecopy_testing::LONG)).expect("a limit");
        ping
    });
    for _ in 0..3 {
        // (Another thread may take this one's: then that one's is there for this.)
        let _ = ping.send(b"x").and_then(|_| ping.recv(&mut [0]));
    }
}

/// Stays on this CPU, as all threads do that this one starts.
pub(super) fn on_one_cpu() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let mut one = CpuSet::new();
        let cpu = sched_getcpu();
        if sched_getaffinity(None).is_ok_and(|all| all.is_set(cpu)) {
            one.set(cpu);
            let _ = sched_setaffinity(None, &one);
        }
    });
}

fn open() -> io::Result<OwnedFd> {
    on_one_cpu();
    Ok(net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// A stream that sends at once what it is given.
fn stream(fd: OwnedFd) -> io::Result<Conn> {
    sockopt::set_tcp_nodelay(&fd, true)?;
    Ok(Box::new(Settled::new(Inet(Plain(fd)), settle)))
}

impl Tcp for Kernel {
    fn host(&self) -> IpAddr {
        Ipv4Addr::LOCALHOST.into()
    }

    fn listen_at(&self, at: SocketAddr, backlog: u32) -> io::Result<Box<dyn Listening>> {
        let fd = open()?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        net::bind(&fd, &at)?;
        net::listen(&fd, backlog as i32)?;
        Ok(Box::new(Settled::new(Inet(Plain(fd)), settle)))
    }

    fn connect_to(&self, to: SocketAddr) -> io::Result<Conn> {
        let fd = open()?;
        net::connect(&fd, &to)?;
        stream(fd)
    }

    fn connect_from(&self, from: SocketAddr, to: SocketAddr) -> io::Result<Conn> {
        let fd = open()?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        net::bind(&fd, &from)?;
        net::connect(&fd, &to)?;
        stream(fd)
    }

    fn begin(&self, to: SocketAddr) -> (io::Result<()>, Option<Conn>) {
        let fd = match open() {
            Ok(fd) => fd,
            Err(error) => return (Err(error), None),
        };
        let begun = rustix::io::ioctl_fionbio(&fd, true).and_then(|()| net::connect(&fd, &to));
        match begun {
            Ok(()) | Err(Errno::INPROGRESS) => (Ok(()), stream(fd).ok()),
            Err(errno) => (Err(errno.into()), None),
        }
    }
}

impl Impl for Kernel {
    fn name(&self) -> &'static str {
        "kernel-tcp"
    }

    fn column(&self) -> Column {
        Column::Kernel
    }

    fn about(&self) -> &'static str {
        "the kernel's TCP over loopback, the oracle of the rows `tcp`"
    }

    fn pair(&self, _kind: Kind, _dir: &Path) -> io::Result<(Conn, Conn)> {
        pair(self)
    }

    fn listen(&self, _kind: Kind, name: &Name, backlog: Option<i32>) -> io::Result<Box<dyn Listening>> {
        let listener = self.listen_at(SocketAddr::new(self.host(), 0), backlog.unwrap_or(128) as u32)?;
        PLACES.put(name, listener.address()?)?;
        Ok(listener)
    }

    fn connect(&self, _kind: Kind, name: &Name) -> io::Result<Conn> {
        self.connect_to(PLACES.get(name)?)
    }

    fn datagrams(&self, _a: &Name, _b: &Name) -> io::Result<Sockets> {
        Err(not_offered("TCP has no datagrams"))
    }

    fn tcp(&self) -> io::Result<&dyn Tcp> {
        Ok(self)
    }

    fn socket(&self, _kind: Kind) -> Option<Box<dyn Socket>> {
        None
    }
}

fn inet(address: Option<net::SocketAddrAny>) -> io::Result<SocketAddr> {
    let address = address.ok_or(io::ErrorKind::NotConnected)?;
    Ok(SocketAddr::try_from(address)?)
}

impl End for Inet {
    fn send(&self, data: &[u8], flags: Tx) -> io::Result<usize> {
        self.0.send(data, flags)
    }

    fn recv(&self, buf: &mut [u8], flags: Rx) -> io::Result<usize> {
        self.0.recv(buf, flags)
    }

    fn send_msg(&self, data: &[IoSlice<'_>], fds: &[BorrowedFd<'_>], flags: Tx) -> io::Result<usize> {
        self.0.send_msg(data, fds, flags)
    }

    fn recv_msg(&self, bufs: &mut [IoSliceMut<'_>], control: bool, flags: Rx) -> io::Result<Came> {
        self.0.recv_msg(bufs, control, flags)
    }

    fn send_to(&self, _data: &[u8], _to: &Name) -> io::Result<usize> {
        Err(not_offered("TCP has no such names"))
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        End::shutdown(&self.0, how)
    }

    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        End::set_nonblocking(&self.0, on)
    }

    fn set_read_timeout(&self, after: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(after)
    }

    fn set_write_timeout(&self, after: Option<Duration>) -> io::Result<()> {
        self.0.set_write_timeout(after)
    }

    fn readable_bytes(&self) -> io::Result<usize> {
        End::readable_bytes(&self.0)
    }

    fn take_error(&self) -> io::Result<Option<i32>> {
        self.0.take_error()
    }

    fn set_peek_off(&self, at: i32) -> io::Result<()> {
        self.0.set_peek_off(at)
    }

    fn peer_cred(&self) -> io::Result<(i32, u32)> {
        Err(not_offered("TCP has no credentials"))
    }

    fn local_name(&self) -> io::Result<Name> {
        Err(not_offered("TCP has no such names"))
    }

    fn peer_name(&self) -> io::Result<Name> {
        Err(not_offered("TCP has no such names"))
    }

    fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_linger(&self.0.0, linger)?)
    }

    fn unacknowledged_bytes(&self) -> io::Result<usize> {
        Ok(onecopy_sys::socket::unread_memory(&self.0.0)? as usize)
    }

    fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        Ok((inet(Some(net::getsockname(&self.0.0)?))?, inet(net::getpeername(&self.0.0)?)?))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

impl Listening for Inet {
    fn accept(&self) -> io::Result<Conn> {
        stream(net::accept_with(&self.0.0, SocketFlags::CLOEXEC)?)
    }

    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        End::set_nonblocking(&self.0, on)
    }

    fn readable_bytes(&self) -> io::Result<usize> {
        End::readable_bytes(&self.0)
    }

    fn local_name(&self) -> io::Result<Name> {
        Err(not_offered("TCP has no such names"))
    }

    fn address(&self) -> io::Result<SocketAddr> {
        inet(Some(net::getsockname(&self.0.0)?))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}
