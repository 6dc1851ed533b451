//! Socket options that rustix lacks.

use std::io;
use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets an option of level SOL_SOCKET whose value is one int.
fn set(fd: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the option's value is one c_int, which lives through the call.
    let r = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns an option of level SOL_SOCKET whose value is one int.
fn get(fd: BorrowedFd<'_>, option: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is one c_int, as long as `len` says, and both live through the call.
    let r = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut len)
    };
    if r == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// SO_PEEK_OFF: the next MSG_PEEK starts `at` bytes into the queue, and moves on by what it saw; each byte that is received
/// makes it one less, down to 0. -1 turns it off.
///
/// # Errors
///
/// setsockopt's.
pub fn set_peek_off(fd: BorrowedFd<'_>, at: i32) -> io::Result<()> {
    set(fd, libc::SO_PEEK_OFF, at)
}

/// Where the next MSG_PEEK starts ([`set_peek_off`]).
///
/// # Errors
///
/// getsockopt's.
pub fn peek_off(fd: BorrowedFd<'_>) -> io::Result<i32> {
    get(fd, libc::SO_PEEK_OFF)
}

/// SO_MARK: the mark of what is sent (socket(7)).
///
/// # Errors
///
/// setsockopt's: EPERM without CAP_NET_ADMIN and CAP_NET_RAW.
pub fn set_mark(fd: BorrowedFd<'_>, mark: u32) -> io::Result<()> {
    set(fd, libc::SO_MARK, mark.cast_signed())
}

/// Returns the mark of what is sent ([`set_mark`]).
///
/// # Errors
///
/// getsockopt's.
pub fn mark(fd: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(get(fd, libc::SO_MARK)?.cast_unsigned())
}

/// Returns how many bytes the other side's TCP has acknowledged so far (TCP_INFO, `tcpi_bytes_acked`, Linux 4.1): what moves
/// as long as that side takes anything at all, however little.
///
/// # Errors
///
/// getsockopt's; EOPNOTSUPP where the kernel does not tell.
pub fn tcp_acknowledged(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // The start of `struct tcp_info` (linux/tcp.h) as words: fields were only ever added behind.
    const BYTES_ACKED: usize = 15;
    let mut info = [0u64; BYTES_ACKED + 1];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `info`, and both live through the call.
    let r = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    match r {
        0 if len as usize >= size_of_val(&info) => Ok(info[BYTES_ACKED]),
        0 => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets an option of any level whose value is one int. (One that is longer, or an address, is EINVAL to the kernel.)
///
/// # Errors
///
/// setsockopt's.
pub fn set_int(fd: BorrowedFd<'_>, level: i32, option: i32, value: i32) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads at most `len` bytes, one c_int, which lives through the call.
    let r = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), len) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets an option whose value is `value`; returns what setsockopt(2) does, which is not 0 for all of them.
///
/// # Errors
///
/// setsockopt's.
pub(crate) fn set_bytes(
    fd: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: &[u8],
) -> rustix::io::Result<u32> {
    let len = value.len() as libc::socklen_t;
    // SAFETY: the kernel reads at most `len` bytes, which are those of `value`, and live through the call.
    let r = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value.as_ptr().cast(), len) };
    let errno = || rustix::io::Errno::from_io_error(&io::Error::last_os_error());
    u32::try_from(r).map_err(|_| errno().unwrap_or(rustix::io::Errno::IO))
}

/// SO_MAX_PACING_RATE: bytes of a second that are sent, at most (socket(7)); `u64::MAX` is no limit.
///
/// # Errors
///
/// setsockopt's.
pub fn set_max_pacing_rate(fd: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    // An unsigned long, which may be an int as well (sk_setsockopt()).
    let bytes = libc::c_ulong::try_from(bytes).unwrap_or(libc::c_ulong::MAX).to_ne_bytes();
    set_bytes(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &bytes)?;
    Ok(())
}

/// Returns an option of the levels SOL_SOCKET, IPPROTO_IP or IPPROTO_TCP whose value is one int.
///
/// # Errors
///
/// getsockopt's; EINVAL for other levels, and for an option whose length is not counted in bytes.
pub fn int(fd: BorrowedFd<'_>, level: i32, option: i32) -> io::Result<i32> {
    // SO_GET_FILTER counts instructions: it would write more than four bytes.
    let filter = level == libc::SOL_SOCKET && option == libc::SO_ATTACH_FILTER;
    if filter || ![libc::SOL_SOCKET, libc::IPPROTO_IP, libc::IPPROTO_TCP].contains(&level) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: options of these levels, but for the one above, write at most `len` bytes, the size of `value`; both live through the call.
    let r = unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut len) };
    if r == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Returns how many packets for the socket were dropped for want of room (SO_MEMINFO, SK_MEMINFO_DROPS: include/uapi/linux/sock_diag.h).
///
/// # Errors
///
/// getsockopt's.
pub fn drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    const DROPS: usize = 8;
    let mut info = [0u32; DROPS + 1];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `info`, and both live through the call.
    let r = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if r == 0 { Ok(info[DROPS]) } else { Err(io::Error::last_os_error()) }
}

/// Whom a socket was connected to, also where the connection is over: getpeername(2) says ENOTCONN then, accept(2) and this do not (inet_getname()).
///
/// # Errors
///
/// getsockopt's (SO_PEERNAME); EINVAL and EAFNOSUPPORT for another family than IPv4 and IPv6.
pub fn peer_name(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    // struct sockaddr_in6 and sockaddr_in: family, port, then an address, which is behind a flow label in the former, and before its scope. The kernel
    // says EINVAL where it has less than it is asked for.
    let mut name = [0u8; 28];
    let mut asked = [28, 16].into_iter().map(|mut len: libc::socklen_t| {
        // SAFETY: the kernel writes at most `len` bytes, which `name` has, and both live through the call.
        let r = unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERNAME,
                name.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    });
    let fits = |answer: &io::Result<()>| !matches!(answer, Err(error) if error.kind() == io::ErrorKind::InvalidInput);
    asked.find(fits).unwrap_or(Err(io::ErrorKind::InvalidInput.into()))?;
    let word = |at: usize| [name[at], name[at + 1], name[at + 2], name[at + 3]];
    let port = u16::from_be_bytes([name[2], name[3]]);
    match i32::from(u16::from_ne_bytes([name[0], name[1]])) {
        libc::AF_INET => Ok(SocketAddr::from((word(4), port))),
        libc::AF_INET6 => {
            let mut address = [0; 16];
            address.copy_from_slice(&name[8..24]);
            let (flow, scope) = (u32::from_be_bytes(word(4)), u32::from_ne_bytes(word(24)));
            Ok(SocketAddrV6::new(address.into(), port, flow, scope).into())
        }
        _ => Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
    }
}

/// Writes what the kernel tells of a TCP connection, a `struct tcp_info` (linux/tcp.h), as far as it goes into `info`; returns how many
/// bytes that are.
///
/// # Errors
///
/// getsockopt's.
pub fn tcp_info(fd: BorrowedFd<'_>, info: &mut [u8]) -> io::Result<usize> {
    let mut len = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `info`, and both live through the call.
    let r = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if r == 0 { Ok(len as usize) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

    /// What `mending.rs` of the unix room counts with.
    #[test]
    fn the_kernel_counts_what_is_received_down() {
        for kind in [SocketType::STREAM, SocketType::SEQPACKET] {
            let (a, b) =
                rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
            for bytes in [&b"abc"[..], b"defg", b"hi"] {
                rustix::net::send(&a, bytes, SendFlags::empty()).unwrap();
            }
            set_peek_off(b.as_fd(), 7).unwrap();
            // A look with no room moves nothing, and waits for something to look at.
            assert_eq!(rustix::net::recv(&b, &mut [0; 0][..], RecvFlags::PEEK), Ok((0, 0)));
            assert_eq!(peek_off(b.as_fd()).unwrap(), 7);
            let (_, n) = rustix::net::recv(&b, &mut [0; 5][..], RecvFlags::empty()).unwrap();
            assert_eq!(peek_off(b.as_fd()).unwrap(), 7 - n as i32);
            set_peek_off(b.as_fd(), -1).unwrap();
            while rustix::net::recv(&b, &mut [0; 5][..], RecvFlags::DONTWAIT).is_ok() {}
            assert_eq!(peek_off(b.as_fd()).unwrap(), -1);
            let nothing = rustix::net::recv(&b, &mut [0; 0][..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
            assert_eq!(nothing, Err(rustix::io::Errno::AGAIN));
        }
    }
    #[test]
    fn options_go_by_their_numbers_but_for_those_that_are_no_int() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = listener.as_fd();
        set_int(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1).unwrap();
        set_int(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG, 700).unwrap();
        assert_eq!(int(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE).unwrap(), 1);
        assert_eq!(int(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG).unwrap(), 700);
        for (level, option) in [(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER), (libc::IPPROTO_IPV6, 1)] {
            assert_eq!(int(fd, level, option).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        }
        // TCP_LISTEN; and no more than there is room for.
        let mut info = [0xff; 300];
        let len = tcp_info(fd, &mut info).unwrap();
        assert!(info[0] == 10 && len > 100 && info[len..].iter().all(|byte| *byte == 0xff));
        assert_eq!(tcp_info(fd, &mut info[..8]).unwrap(), 8);
    }

    #[test]
    fn a_peer_has_a_name_behind_its_reset() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(host) else { continue };
            let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let name = client.local_addr().unwrap();
            let (server, from) = listener.accept().unwrap();
            assert_eq!((from, peer_name(server.as_fd()).unwrap()), (name, name));
            rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO)).unwrap();
            drop(client);
            // Until the reset is there.
            while server.peer_addr().is_ok() {
                std::thread::yield_now();
            }
            assert_eq!(peer_name(server.as_fd()).unwrap(), name);
        }
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(peer_name(one.as_fd()).is_err());
    }

    #[test]
    fn what_a_peer_took_is_counted() {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let before = tcp_acknowledged(server.as_fd()).unwrap();
        server.write_all(&[1; 1000]).unwrap();
        client.read_exact(&mut [0; 1000]).unwrap();
        // (Its acknowledgement may be on its way; it goes with the client's own bytes at the latest.)
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
        assert_eq!(tcp_acknowledged(server.as_fd()).unwrap(), before + 1000);
        let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(tcp_acknowledged(unix.as_fd()).is_err());
    }
}
