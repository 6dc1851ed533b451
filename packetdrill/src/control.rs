//! Calls that make, name and end sockets.

use crate::environment;
use crate::errno::{Errno, Outcome, Stop};
use crate::memory::User;
use crate::socket::Socket;
use crate::tcp::Id;
use crate::world::{self, File, World};
use std::net::{Ipv4Addr, SocketAddrV4};

/// A descriptor that stands for a socket of ours: packetdrill closes it, and looks for it among those of the process. It is a socket of the
/// kernel's, which does nothing, but that a listener's listens, too: a script looks for it in /proc/net/tcp.
fn placeholder() -> Outcome<i32> {
    // SAFETY: no memory is involved.
    match unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) } {
        -1 => Err(last_error()),
        fd => Ok(fd),
    }
}

/// The errno of the system call that just failed.
pub(crate) fn last_error() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// socket(2).
pub(crate) fn socket(domain: i32, kind: i32, protocol: i32) -> Outcome<isize> {
    world::call(|world| {
        let flags = kind & (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        if domain != libc::AF_INET {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        if kind & !flags != libc::SOCK_STREAM || ![0, libc::IPPROTO_TCP].contains(&protocol) {
            return Err(Errno(libc::EPROTONOSUPPORT));
        }
        let World { tcp, environment, .. } = world;
        let id = tcp.open(environment)?;
        let mut socket = Socket::new(id);
        socket.nonblocking = flags & libc::SOCK_NONBLOCK != 0;
        add(world, File::Socket(Box::new(socket)))
    })
}

/// Gives `file` a descriptor.
fn add(world: &mut World, file: File) -> Outcome<isize> {
    let fd = placeholder()?;
    world.files.insert(fd, file);
    Ok(fd as isize)
}

/// epoll_create(2).
pub(crate) fn epoll_create(size: i32) -> Outcome<isize> {
    if size <= 0 {
        return Err(Errno(libc::EINVAL));
    }
    world::call(|world| add(world, File::Epoll(crate::watched::Epoll::default())))
}

/// An address that a caller gave; none for AF_UNSPEC.
pub(crate) fn address(at: User, len: u32) -> Outcome<Option<SocketAddrV4>> {
    if len < 2 {
        return Err(Errno(libc::EINVAL));
    }
    let bytes = at.read(16.min(len as usize))?;
    match i32::from(u16::from_le_bytes([bytes[0], bytes[1]])) {
        libc::AF_UNSPEC => Ok(None),
        libc::AF_INET if bytes.len() == 16 => {
            let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
            Ok(Some(SocketAddrV4::new(ip, u16::from_be_bytes([bytes[2], bytes[3]]))))
        }
        libc::AF_INET => Err(Errno(libc::EINVAL)),
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Tells a caller an address, as far as it has room for it.
pub(crate) fn tell_address(address: SocketAddrV4, at: User, len_at: User) -> Outcome<()> {
    if at.is_null() || len_at.is_null() {
        return Ok(());
    }
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_le_bytes());
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    bytes[4..8].copy_from_slice(&address.ip().octets());
    let room = usize::try_from(len_at.int()?).map_err(|_| Errno(libc::EINVAL))?;
    at.write(&bytes[..room.min(16)])?;
    len_at.put_int(16)
}

/// bind(2).
pub(crate) fn bind(fd: i32, at: User, len: u32) -> Outcome<isize> {
    world::call(|world| {
        let socket = world.socket(fd)?;
        let (id, reuse) = (socket.id, socket.reuse);
        let address = address(at, len)?.ok_or(Errno(libc::EAFNOSUPPORT))?;
        world.tcp.bind(id, address, reuse)?;
        Ok(0)
    })
}

/// listen(2).
pub(crate) fn listen(fd: i32, backlog: i32) -> Outcome<isize> {
    world::call(|world| {
        let socket = world.socket(fd)?;
        socket.listening = true;
        let id = socket.id;
        world.tcp.listen(id, backlog as u32)?;
        if let Some(local) = world.tcp.local(id) {
            shadow(fd, local.port());
        }
        Ok(0)
    })
}

/// Has the placeholder `fd` listen on `port`: where that does not work, a script that looks for it will say so.
fn shadow(fd: i32, port: u16) {
    let (on, all) = (
        1i32,
        libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr { s_addr: 0 },
            sin_zero: [0; 8],
        },
    );
    // SAFETY: `on` and `all` live on, with their lengths, and are only read.
    unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, (&raw const on).cast(), 4);
        libc::bind(fd, (&raw const all).cast(), size_of_val(&all) as u32);
        libc::listen(fd, 1);
    }
}

/// accept(2).
pub(crate) fn accept(fd: i32, at: User, len_at: User) -> Outcome<isize> {
    world::blocking(
        |world| {
            let socket = world.socket(fd)?;
            let listening = socket.listening;
            let timeout = socket.receive_timeout;
            if !listening {
                return Err(Errno(libc::EINVAL));
            }
            Ok(timeout.map(|timeout| world.now + timeout))
        },
        |world, late| {
            let socket = world.socket(fd)?;
            let (id, nonblocking) = (socket.id, socket.nonblocking);
            let (id, peer) = match world.tcp.accept(id) {
                Err(Errno(libc::EAGAIN)) if !late && !nonblocking => return Err(Stop::Wait),
                other => other?,
            };
            let accepted = world.socket(fd)?.accepted(id);
            tell_address(peer, at, len_at)?;
            Ok(add(world, File::Socket(Box::new(accepted)))?)
        },
    )
}

/// connect(2).
pub(crate) fn connect(fd: i32, at: User, len: u32) -> Outcome<isize> {
    let to = address(at, len)?;
    world::blocking(
        |world| {
            let socket = world.socket(fd)?;
            let (id, timeout, nonblocking) = (socket.id, socket.send_timeout, socket.nonblocking);
            let Some(to) = to else {
                disconnect(world, fd, id)?;
                return Ok(None);
            };
            let now = world.now;
            match world.tcp.connect(now, id, to) {
                Ok(()) if world.tcp.is_deferred(id) => {}
                // A blocking call waits for the one under way.
                Err(Errno(libc::EALREADY)) if !nonblocking => {}
                Ok(()) | Err(Errno(libc::EINPROGRESS)) if nonblocking => {
                    return Err(Errno(libc::EINPROGRESS));
                }
                Ok(()) | Err(Errno(libc::EINPROGRESS)) => {}
                Err(errno) => return Err(errno),
            }
            Ok(timeout.map(|timeout| now + timeout))
        },
        |world, late| {
            let Some(to) = to else { return Ok(0) };
            finish_connect(world, fd, to, late)
        },
    )
}

/// Waits until the handshake is over.
pub(crate) fn finish_connect(
    world: &mut World,
    fd: i32,
    to: SocketAddrV4,
    late: bool,
) -> Result<isize, Stop> {
    let (id, now) = (world.socket(fd)?.id, world.now);
    if world.tcp.is_deferred(id) {
        return Ok(0);
    }
    if world.tcp.is_connecting(id) {
        return if late { Err(Errno(libc::EINPROGRESS).into()) } else { Err(Stop::Wait) };
    }
    // It says how it went.
    world.tcp.connect(now, id, to)?;
    Ok(0)
}

/// connect(2) with AF_UNSPEC (tcp_disconnect): the connection is reset, the socket may connect again.
fn disconnect(world: &mut World, fd: i32, id: Id) -> Outcome<()> {
    let now = world.now;
    world.tcp.disconnect(now, id)?;
    world.socket(fd)?.written = 0;
    Ok(())
}

/// close(2).
pub(crate) fn close(fd: i32) -> Outcome<isize> {
    let ours = world::call(|world| {
        let now = world.now;
        match world.files.remove(&fd) {
            Some(File::Socket(socket)) => {
                for file in world.files.values_mut() {
                    if let File::Epoll(epoll) = file {
                        epoll.forget(fd);
                    }
                }
                world.tcp.close(now, socket.id);
            }
            Some(File::Epoll(_)) | None => {}
        }
        Ok(())
    });
    ours?;
    // SAFETY: the descriptor is a placeholder of ours, or the script's own, and nobody else holds it.
    match unsafe { libc::close(fd) } {
        -1 => Err(last_error()),
        _ => Ok(0),
    }
}

/// shutdown(2).
pub(crate) fn shutdown(fd: i32, how: i32) -> Outcome<isize> {
    world::call(|world| {
        let (id, now) = (world.socket(fd)?.id, world.now);
        let (read, write) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(Errno(libc::EINVAL)),
        };
        world.tcp.shutdown(now, id, read, write)?;
        Ok(0)
    })
}

/// fcntl(2): flags are ours, the rest is the placeholder's.
pub(crate) fn fcntl(fd: i32, command: i32, value: libc::c_long) -> Outcome<isize> {
    let own = world::call(|world| {
        let Ok(socket) = world.socket(fd) else { return Ok(None) };
        Ok(match command {
            libc::F_GETFL => {
                let flags = if socket.nonblocking { libc::O_NONBLOCK } else { 0 };
                Some((libc::O_RDWR | flags) as isize)
            }
            libc::F_SETFL => {
                socket.nonblocking = value as i32 & libc::O_NONBLOCK != 0;
                Some(0)
            }
            _ => None,
        })
    })?;
    if let Some(result) = own {
        return Ok(result);
    }
    // SAFETY: as the caller asks the kernel for it, on a descriptor of its own.
    match unsafe { libc::fcntl(fd, command, value) } {
        -1 => Err(last_error()),
        result => Ok(result as isize),
    }
}

/// ioctl(2).
pub(crate) fn ioctl(fd: i32, request: libc::c_ulong, value: User) -> Outcome<isize> {
    /// include/uapi/linux/sockios.h.
    const SIOCOUTQNSD: libc::c_ulong = 0x894b;
    const SIOCATMARK: libc::c_ulong = 0x8905;
    world::call(|world| {
        let socket = world.socket(fd)?;
        let (id, listening) = (socket.id, socket.listening);
        if request == libc::FIONBIO {
            socket.nonblocking = value.int()? != 0;
            return Ok(0);
        }
        if listening {
            return Err(Errno(libc::EINVAL));
        }
        let number = match request {
            libc::FIONREAD => world.tcp.readable(id).0,
            libc::TIOCOUTQ => world.tcp.unsent(id).0,
            SIOCOUTQNSD => world.tcp.unsent(id).1,
            SIOCATMARK => 0,
            _ => return Err(Errno(libc::ENOTTY)),
        };
        value.put_int(number.min(i32::MAX as u64) as i32)?;
        Ok(0)
    })
}

/// Whether this side may ask for Fast Open (tcp_fastopen, bit 0).
pub(crate) fn fast_open_client() -> bool {
    environment::one("tcp_fastopen").unwrap_or(0) & 1 != 0
}
