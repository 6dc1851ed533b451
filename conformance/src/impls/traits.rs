//! What a case uses of an implementation.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use onecopy::unix::SharedPool;

/// A socket's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// None.
    Unnamed,
    /// A path.
    Path(PathBuf),
    /// An abstract name, without its leading NUL.
    Abstract(Vec<u8>),
}

/// The three types of unix sockets, one of them in two ways, and TCP's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SOCK_STREAM
    Stream,
    /// SOCK_DGRAM
    Dgram,
    /// SOCK_SEQPACKET
    SeqPacket,
    /// SOCK_SEQPACKET, its records kept as a stream with marks (which the kernel does not)
    Pieces,
    /// SOCK_STREAM of TCP
    Tcp,
}

/// Flags of a send.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tx {
    /// MSG_DONTWAIT
    pub dontwait: bool,
    /// MSG_NOSIGNAL
    pub nosignal: bool,
    /// MSG_OOB
    pub oob: bool,
    /// MSG_EOR
    pub eor: bool,
}

/// Flags of a receive.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rx {
    /// MSG_DONTWAIT
    pub dontwait: bool,
    /// MSG_PEEK
    pub peek: bool,
    /// MSG_WAITALL
    pub waitall: bool,
    /// MSG_TRUNC
    pub trunc: bool,
    /// MSG_OOB
    pub oob: bool,
}

/// Flags that a receive returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Returned {
    /// MSG_TRUNC
    pub trunc: bool,
    /// MSG_EOR
    pub eor: bool,
}

/// Process, user, group.
pub type Who = (i32, u32, u32);

/// What recvmsg() brings.
#[derive(Debug, Default)]
pub struct Came {
    /// Bytes; with MSG_TRUNC the length of the record.
    pub len: usize,
    /// Flags.
    pub returned: Returned,
    /// MSG_CTRUNC
    pub ctrunc: bool,
    /// SCM_RIGHTS
    pub fds: Vec<OwnedFd>,
    /// SCM_CREDENTIALS: process, user, group
    pub who: Option<Who>,
}

/// The error of a call that an implementation does not have. It carries no errno, so no answer of a kernel
/// can be mistaken for it.
pub fn not_offered(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// Why the kernel has no [`Kind::Pieces`].
pub const ATOMIC: &str = "the kernel's records are atomic";

/// Why a socket has none of what a name of a host and a port brings.
pub const OF_TCP: &str = "of TCP only";

/// An end of a connection.
pub trait End: Send + Sync {
    /// send()
    fn send(&self, data: &[u8], flags: Tx) -> io::Result<usize>;
    /// recv()
    fn recv(&self, buf: &mut [u8], flags: Rx) -> io::Result<usize>;
    /// sendmsg(): several pieces, and SCM_RIGHTS
    fn send_msg(&self, data: &[IoSlice<'_>], fds: &[BorrowedFd<'_>], flags: Tx) -> io::Result<usize>;
    /// recvmsg() into several pieces, with room for control messages or without
    fn recv_msg(&self, bufs: &mut [IoSliceMut<'_>], control: bool, flags: Rx) -> io::Result<Came>;
    /// recvmsg(): how many bytes, and the flags that it returns (of MSG_TRUNC and MSG_EOR)
    fn recv_flags(&self, buf: &mut [u8], flags: Rx) -> io::Result<(usize, Returned)> {
        let got = self.recv_msg(&mut [IoSliceMut::new(buf)], false, flags)?;
        Ok((got.len, got.returned))
    }
    /// sendmsg() with SCM_RIGHTS
    fn send_fds(&self, data: &[u8], fds: &[BorrowedFd<'_>], flags: Tx) -> io::Result<usize> {
        self.send_msg(&[IoSlice::new(data)], fds, flags)
    }
    /// sendmsg() with control messages as they stand, however wrong
    fn send_control(&self, _data: &[u8], _control: &[u8], _flags: Tx) -> io::Result<usize> {
        Err(not_offered("no control messages but right ones"))
    }
    /// sendmsg() with SCM_CREDENTIALS
    fn send_as(&self, _data: &[u8], _who: Who, _flags: Tx) -> io::Result<usize> {
        Err(not_offered("no control messages"))
    }
    /// SO_PASSCRED
    fn set_pass_credentials(&self, _on: bool) -> io::Result<()> {
        Err(not_offered("no control messages"))
    }
    /// recvmsg() with room for control messages
    fn recv_with(&self, buf: &mut [u8], flags: Rx) -> io::Result<Came> {
        self.recv_msg(&mut [IoSliceMut::new(buf)], true, flags)
    }
    /// sendmsg() with several pieces
    fn send_vectored(&self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send_msg(data, &[], Tx::default())
    }
    /// recvmsg() with several pieces
    fn recv_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(self.recv_msg(bufs, false, Rx::default())?.len)
    }
    /// Sends in the implementation's own way to write where the peer will read; where it has none, as send()
    fn send_in_place(&self, data: &[u8], flags: Tx) -> io::Result<usize> {
        self.send(data, flags)
    }
    /// Sends pages of that pool by reference; where there is no such way, as send()
    fn send_loan(&self, _pool: &SharedPool, data: &[u8]) -> io::Result<usize> {
        self.send(data, Tx { nosignal: true, ..Tx::default() })
    }
    /// Receives in the implementation's own way to look at bytes where they lie (which may be fewer than are there);
    /// where it has none, as recvmsg()
    fn recv_in_place(&self, max: usize, flags: Rx) -> io::Result<(Vec<u8>, Returned)> {
        let mut buf = vec![0; max];
        let (n, returned) = self.recv_flags(&mut buf, flags)?;
        buf.truncate(n);
        Ok((buf, returned))
    }
    /// sendto(): the name is that of the target
    fn send_to(&self, data: &[u8], to: &Name) -> io::Result<usize>;
    /// sendmsg() with a target's name and SCM_RIGHTS
    fn send_fds_to(&self, _data: &[u8], _fds: &[BorrowedFd<'_>], _to: &Name) -> io::Result<usize> {
        Err(not_offered("no sendto"))
    }
    /// recvmsg() with room for control messages, and the sender's name
    fn recv_with_from(&self, _buf: &mut [u8], _flags: Rx) -> io::Result<(Came, Name)> {
        Err(not_offered("no recvfrom"))
    }
    /// recvfrom(): how many bytes, and the sender's name
    fn recv_from(&self, _buf: &mut [u8], _flags: Rx) -> io::Result<(usize, Name)> {
        Err(not_offered("no recvfrom"))
    }
    /// shutdown()
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;
    /// O_NONBLOCK
    fn set_nonblocking(&self, on: bool) -> io::Result<()>;
    /// SO_RCVTIMEO
    fn set_read_timeout(&self, after: Option<Duration>) -> io::Result<()>;
    /// SO_SNDTIMEO
    fn set_write_timeout(&self, after: Option<Duration>) -> io::Result<()>;
    /// FIONREAD
    fn readable_bytes(&self) -> io::Result<usize>;
    /// SO_ERROR: the pending error, taken
    fn take_error(&self) -> io::Result<Option<i32>>;
    /// SO_PEEK_OFF
    fn set_peek_off(&self, at: i32) -> io::Result<()>;
    /// SO_PEERCRED: process and user
    fn peer_cred(&self) -> io::Result<(i32, u32)>;
    /// getsockname()
    fn local_name(&self) -> io::Result<Name>;
    /// getpeername()
    fn peer_name(&self) -> io::Result<Name>;
    /// What poll and epoll watch.
    fn fd(&self) -> BorrowedFd<'_>;
    /// SO_LINGER
    fn set_linger(&self, _linger: Option<Duration>) -> io::Result<()> {
        Err(not_offered(OF_TCP))
    }
    /// SIOCOUTQ: bytes that are not acknowledged
    fn unacknowledged_bytes(&self) -> io::Result<usize> {
        Err(not_offered(OF_TCP))
    }
    /// getsockname() and getpeername(), where they are addresses and ports
    fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        Err(not_offered(OF_TCP))
    }
    /// The way of sent and of received bytes: "kernel" or "shared memory".
    fn path(&self) -> (&'static str, &'static str) {
        ("kernel", "kernel")
    }
}

/// An end, owned: dropped means closed.
pub type Conn = Box<dyn End>;

/// A listening socket.
pub trait Listening: Send + Sync {
    /// accept()
    fn accept(&self) -> io::Result<Conn>;
    /// O_NONBLOCK
    fn set_nonblocking(&self, on: bool) -> io::Result<()>;
    /// FIONREAD on a listener
    fn readable_bytes(&self) -> io::Result<usize>;
    /// getsockname()
    fn local_name(&self) -> io::Result<Name>;
    /// getsockname(), where it is an address and a port
    fn address(&self) -> io::Result<SocketAddr> {
        Err(not_offered(OF_TCP))
    }
    /// What poll and epoll watch.
    fn fd(&self) -> BorrowedFd<'_>;
}

/// Two hosts, as TCP's own cases use them: servers listen on one, clients come from the other.
pub trait Tcp: Sync {
    /// The servers' host.
    fn host(&self) -> IpAddr;
    /// bind() and listen(); port 0 is any.
    fn listen_at(&self, at: SocketAddr, backlog: u32) -> io::Result<Box<dyn Listening>>;
    /// A blocking connect().
    fn connect_to(&self, to: SocketAddr) -> io::Result<Conn>;
    /// bind(), and then a blocking connect().
    fn connect_from(&self, from: SocketAddr, to: SocketAddr) -> io::Result<Conn>;
    /// A connect() that does not wait: what it says, and the socket.
    fn begin(&self, to: SocketAddr) -> (io::Result<()>, Option<Conn>);
}

/// A socket that is neither connected nor listening yet.
pub trait Socket: End {
    /// bind()
    fn bind(&self, name: &Name) -> io::Result<()>;
    /// connect()
    fn connect(&self, name: &Name) -> io::Result<()>;
    /// connect() to AF_UNSPEC: no peer any more
    fn disconnect(&self) -> io::Result<()>;
    /// listen()
    fn listen(&self, backlog: i32) -> io::Result<()>;
    /// accept()
    fn accept(&self) -> io::Result<Conn>;
}

/// Two sockets, owned.
pub type Sockets = (Box<dyn Socket>, Box<dyn Socket>);

/// The columns of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// The kernel's AF_UNIX.
    Kernel,
    /// Ours over shared memory.
    Shared,
    /// Ours over the kernel.
    OnKernel,
}

/// An implementation: how its sockets are made.
pub trait Impl: Send + Sync {
    /// Its name in `skips.toml` and on the command line.
    fn name(&self) -> &'static str;
    /// The column that it belongs to.
    fn column(&self) -> Column;
    /// What it is, in a sentence for the table's legend.
    fn about(&self) -> &'static str;
    /// A connected pair; `dir` is a folder for names.
    fn pair(&self, kind: Kind, dir: &Path) -> io::Result<(Conn, Conn)>;
    /// A listener. `backlog` is listen()'s; none is the default.
    fn listen(&self, kind: Kind, name: &Name, backlog: Option<i32>) -> io::Result<Box<dyn Listening>>;
    /// A blocking connect.
    fn connect(&self, kind: Kind, name: &Name) -> io::Result<Conn>;
    /// A connected pair that keeps records as streams with marks, with buffers of that many bytes.
    fn stream_records(&self, _dir: &Path, _buffer: usize) -> io::Result<(Conn, Conn)> {
        Err(not_offered(ATOMIC))
    }
    /// Two datagram sockets with these names that are connected to each other.
    fn datagrams(&self, a: &Name, b: &Name) -> io::Result<Sockets>;
    /// Whether who waits sleeps in the kernel, so that it can be seen there.
    fn sleeps(&self) -> bool {
        true
    }
    /// TCP, where it is that.
    fn tcp(&self) -> io::Result<&dyn Tcp> {
        Err(not_offered(OF_TCP))
    }
    /// A socket before bind and connect, where the implementation lets one be held.
    fn socket(&self, kind: Kind) -> Option<Box<dyn Socket>>;
}
