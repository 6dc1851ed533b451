//! The oracle: the kernel's AF_UNIX, through rustix.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use onecopy_sys::scm::{self, Message, Space, Ucred};
use onecopy_sys::socket;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use super::traits::{
    ATOMIC, Came, Column, Conn, End, Impl, Kind, Listening, Name, Returned, Rx, Socket, Sockets, Tx, Who,
    not_offered,
};

/// The kernel's AF_UNIX sockets.
pub struct Kernel;

/// A kernel socket in whatever state.
pub struct Plain(pub OwnedFd);

impl Kernel {
    /// A stream, datagram or seqpacket socket in no state yet.
    pub fn open(kind: Kind) -> io::Result<Plain> {
        Ok(Plain(net::socket_with(AddressFamily::UNIX, socket_type(kind)?, SocketFlags::CLOEXEC, None)?))
    }
}

fn socket_type(kind: Kind) -> io::Result<SocketType> {
    Ok(match kind {
        Kind::Stream => SocketType::STREAM,
        Kind::Dgram => SocketType::DGRAM,
        Kind::SeqPacket => SocketType::SEQPACKET,
        Kind::Pieces => return Err(not_offered(ATOMIC)),
        Kind::Tcp => return Err(not_offered("a unix socket")),
    })
}

impl Impl for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn column(&self) -> Column {
        Column::Kernel
    }

    fn about(&self) -> &'static str {
        "the kernel's AF_UNIX, the oracle"
    }

    fn pair(&self, kind: Kind, _dir: &Path) -> io::Result<(Conn, Conn)> {
        let (a, b) = net::socketpair(AddressFamily::UNIX, socket_type(kind)?, SocketFlags::CLOEXEC, None)?;
        Ok((Box::new(Plain(a)), Box::new(Plain(b))))
    }

    fn listen(&self, kind: Kind, name: &Name, backlog: Option<i32>) -> io::Result<Box<dyn Listening>> {
        let s = Kernel::open(kind)?;
        Socket::bind(&s, name)?;
        Socket::listen(&s, backlog.unwrap_or(128))?;
        Ok(Box::new(s))
    }

    fn connect(&self, kind: Kind, name: &Name) -> io::Result<Conn> {
        let s = Kernel::open(kind)?;
        Socket::connect(&s, name)?;
        Ok(Box::new(s))
    }

    fn datagrams(&self, a: &Name, b: &Name) -> io::Result<Sockets> {
        let pair = (Kernel::open(Kind::Dgram)?, Kernel::open(Kind::Dgram)?);
        meet(&pair.0, &pair.1, a, b)?;
        Ok((Box::new(pair.0), Box::new(pair.1)))
    }

    fn socket(&self, kind: Kind) -> Option<Box<dyn Socket>> {
        Kernel::open(kind).ok().map(|s| Box::new(s) as Box<dyn Socket>)
    }
}

/// Names two sockets and connects them to each other. Unnamed: by names that nobody has.
pub fn meet(a: &dyn Socket, b: &dyn Socket, name_a: &Name, name_b: &Name) -> io::Result<()> {
    a.bind(name_a)?;
    b.bind(name_b)?;
    a.connect(&b.local_name()?)?;
    b.connect(&a.local_name()?)
}

/// The kernel's form of a name.
pub fn address(name: &Name) -> io::Result<SocketAddrUnix> {
    Ok(match name {
        Name::Unnamed => SocketAddrUnix::new_unnamed(),
        Name::Path(p) => SocketAddrUnix::new(p.as_os_str().as_bytes())?,
        Name::Abstract(n) => SocketAddrUnix::new_abstract_name(n)?,
    })
}

/// The bytes of a name that has no such form: it is the kernel that says what is wrong with it.
fn sun_path(name: &Name) -> Vec<u8> {
    match name {
        Name::Unnamed => Vec::new(),
        Name::Path(p) => p.as_os_str().as_bytes().to_vec(),
        Name::Abstract(n) => [b"\0", &n[..]].concat(),
    }
}

fn name(addr: Option<SocketAddrAny>) -> io::Result<Name> {
    let Some(addr) = addr else { return Ok(Name::Unnamed) };
    let addr = SocketAddrUnix::try_from(addr)?;
    Ok(if let Some(path) = addr.path_bytes() {
        Name::Path(Path::new(std::ffi::OsStr::from_bytes(path)).to_path_buf())
    } else {
        match addr.abstract_name() {
            // A name that is the family alone, as an unbound socket's, counts as an abstract one of length 0.
            None | Some([]) => Name::Unnamed,
            Some(n) => Name::Abstract(n.to_vec()),
        }
    })
}

fn came(got: Message) -> (Came, Option<SocketAddrAny>) {
    let returned = Returned { trunc: got.cut, eor: false };
    let who = got.credentials.map(|who| (who.pid, who.uid, who.gid));
    let name = got.name.map(|name| *name);
    (Came { len: got.bytes, returned, ctrunc: got.control_cut, fds: got.fds, who }, name)
}

fn tx(f: Tx) -> SendFlags {
    let mut flags = SendFlags::empty();
    flags.set(SendFlags::DONTWAIT, f.dontwait);
    flags.set(SendFlags::NOSIGNAL, f.nosignal);
    flags.set(SendFlags::OOB, f.oob);
    flags.set(SendFlags::EOR, f.eor);
    flags
}

fn rx(f: Rx) -> RecvFlags {
    let mut flags = RecvFlags::empty();
    flags.set(RecvFlags::DONTWAIT, f.dontwait);
    flags.set(RecvFlags::PEEK, f.peek);
    flags.set(RecvFlags::WAITALL, f.waitall);
    flags.set(RecvFlags::TRUNC, f.trunc);
    flags.set(RecvFlags::OOB, f.oob);
    flags
}

impl End for Plain {
    fn send(&self, data: &[u8], flags: Tx) -> io::Result<usize> {
        Ok(net::send(&self.0, data, tx(flags))?)
    }

    fn recv(&self, buf: &mut [u8], flags: Rx) -> io::Result<usize> {
        Ok(net::recv(&self.0, buf, rx(flags))?.1)
    }

    fn send_msg(&self, data: &[IoSlice<'_>], fds: &[BorrowedFd<'_>], flags: Tx) -> io::Result<usize> {
        // (Whatever is too much is the kernel's to refuse.)
        let mut space =
            vec![std::mem::MaybeUninit::uninit(); SendAncillaryMessage::ScmRights(fds).size() + 64];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        Ok(net::sendmsg(&self.0, data, &mut control, tx(flags))?)
    }

    fn send_control(&self, data: &[u8], control: &[u8], flags: Tx) -> io::Result<usize> {
        Ok(scm::send_control(&self.0, data, control, tx(flags))?)
    }

    fn send_as(&self, data: &[u8], (pid, uid, gid): Who, flags: Tx) -> io::Result<usize> {
        let who = Some(Ucred { pid, uid, gid });
        Ok(scm::send(&self.0, &[IoSlice::new(data)], &[], who, tx(flags))?)
    }

    fn set_pass_credentials(&self, on: bool) -> io::Result<()> {
        Ok(sockopt::set_socket_passcred(&self.0, on)?)
    }

    fn recv_msg(&self, bufs: &mut [IoSliceMut<'_>], control: bool, flags: Rx) -> io::Result<Came> {
        let space = if control { Space::All } else { Space::None };
        Ok(came(scm::recv(&self.0, bufs, space, rx(flags))?).0)
    }

    fn send_fds_to(&self, data: &[u8], fds: &[BorrowedFd<'_>], to: &Name) -> io::Result<usize> {
        let (data, to) = ([IoSlice::new(data)], address(to)?);
        Ok(scm::send_to(&self.0, Some(&to), &data, fds, None, SendFlags::NOSIGNAL)?)
    }

    fn recv_with_from(&self, buf: &mut [u8], flags: Rx) -> io::Result<(Came, Name)> {
        let got = scm::recv(&self.0, &mut [IoSliceMut::new(buf)], Space::All, rx(flags))?;
        let (came, from) = came(got);
        Ok((came, name(from)?))
    }

    fn recv_flags(&self, buf: &mut [u8], flags: Rx) -> io::Result<(usize, Returned)> {
        let none = &mut RecvAncillaryBuffer::default();
        let got = net::recvmsg(&self.0, &mut [IoSliceMut::new(buf)], none, rx(flags))?;
        // (rustix has no name for MSG_EOR among the flags that come back.)
        let eor = got.flags.bits() & SendFlags::EOR.bits() != 0;
        Ok((got.bytes, Returned { trunc: got.flags.contains(ReturnFlags::TRUNC), eor }))
    }

    fn send_to(&self, data: &[u8], to: &Name) -> io::Result<usize> {
        Ok(net::sendto(&self.0, data, SendFlags::NOSIGNAL, &address(to)?)?)
    }

    fn recv_from(&self, buf: &mut [u8], flags: Rx) -> io::Result<(usize, Name)> {
        let none = &mut RecvAncillaryBuffer::default();
        let got = net::recvmsg(&self.0, &mut [IoSliceMut::new(buf)], none, rx(flags))?;
        Ok((got.bytes, name(got.address)?))
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => net::Shutdown::Read,
            Shutdown::Write => net::Shutdown::Write,
            Shutdown::Both => net::Shutdown::Both,
        };
        Ok(net::shutdown(&self.0, how)?)
    }

    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.0, on)?)
    }

    fn set_read_timeout(&self, after: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, after)?)
    }

    fn set_write_timeout(&self, after: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Send, after)?)
    }

    fn readable_bytes(&self) -> io::Result<usize> {
        Ok(rustix::io::ioctl_fionread(&self.0)? as usize)
    }

    fn take_error(&self) -> io::Result<Option<i32>> {
        Ok(sockopt::socket_error(&self.0)?.err().map(|e| e.raw_os_error()))
    }

    fn set_peek_off(&self, at: i32) -> io::Result<()> {
        onecopy_sys::sockopt::set_peek_off(self.0.as_fd(), at)
    }

    fn peer_cred(&self) -> io::Result<(i32, u32)> {
        let c = sockopt::socket_peercred(&self.0)?;
        Ok((c.pid.as_raw_nonzero().get(), c.uid.as_raw()))
    }

    fn local_name(&self) -> io::Result<Name> {
        name(Some(net::getsockname(&self.0)?))
    }

    fn peer_name(&self) -> io::Result<Name> {
        name(net::getpeername(&self.0)?)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Listening for Plain {
    fn accept(&self) -> io::Result<Conn> {
        Ok(Box::new(Plain(net::accept_with(&self.0, SocketFlags::CLOEXEC)?)))
    }

    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        End::set_nonblocking(self, on)
    }

    fn readable_bytes(&self) -> io::Result<usize> {
        End::readable_bytes(self)
    }

    fn local_name(&self) -> io::Result<Name> {
        End::local_name(self)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Socket for Plain {
    fn bind(&self, name: &Name) -> io::Result<()> {
        match address(name) {
            Ok(address) => Ok(net::bind(&self.0, &address)?),
            Err(_) => Ok(socket::bind_as_is(&self.0, &sun_path(name))?),
        }
    }

    fn connect(&self, name: &Name) -> io::Result<()> {
        match address(name) {
            Ok(address) => Ok(net::connect(&self.0, &address)?),
            Err(_) => Ok(socket::connect_as_is(&self.0, &sun_path(name))?),
        }
    }

    fn disconnect(&self) -> io::Result<()> {
        Ok(net::connect_unspec(&self.0)?)
    }

    fn listen(&self, backlog: i32) -> io::Result<()> {
        Ok(net::listen(&self.0, backlog)?)
    }

    fn accept(&self) -> io::Result<Conn> {
        Listening::accept(self)
    }
}
