//! What an AF_UNIX socket tells about its queues and names.

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix};

/// The address of a unix socket; None for one of another family. The NUL behind the longest path, of 108 bytes, has no place in
/// sockaddr_un, and is told all the same (net/unix/af_unix.c: unix_mkname_bsd): rustix's own conversion panics at it, and anybody may
/// have such a name.
pub fn unix_address(address: SocketAddrAny) -> Option<SocketAddrUnix> {
    let fits = address.addr_len() as usize <= size_of::<libc::sockaddr_un>();
    if fits || address.address_family() != AddressFamily::UNIX {
        return SocketAddrUnix::try_from(address).ok();
    }
    // SAFETY: more bytes than a sockaddr_un has are initialised (the invariant of SocketAddrAny), in a storage for any address, which is
    // aligned for all; any bytes are a sockaddr_un.
    let longest = unsafe { &*address.as_ptr().cast::<libc::sockaddr_un>() };
    SocketAddrUnix::new(&longest.sun_path.map(|c| c as u8)[..]).ok()
}

/// The path of a unix socket, without a NUL.
pub fn path(address: &SocketAddrUnix) -> Option<&[u8]> {
    // (rustix counts the NUL of a path of 107 bytes to it, which fills sockaddr_un together with it. No path has one inside.)
    address.path_bytes().map(|path| path.strip_suffix(&[0]).unwrap_or(path))
}

/// SIOCOUTQ: bytes of kernel memory that what was sent and not yet received is charged with (a multiple of
/// what was sent: 768 for one byte).
///
/// # Errors
///
/// What ioctl(2) says.
pub fn unread_memory(fd: impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int to the address given.
    let done = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if done < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// select(2) without waiting: whether it calls a descriptor readable, and whether writable.
///
/// # Errors
///
/// What select(2) says; EINVAL for a descriptor that no set of its has a place for.
pub fn select(fd: impl AsFd) -> io::Result<(bool, bool)> {
    let fd = fd.as_fd().as_raw_fd();
    if usize::try_from(fd).map_or(true, |fd| fd >= libc::FD_SETSIZE) {
        return Err(Errno::INVAL);
    }
    let mut at_once = libc::timeval { tv_sec: 0, tv_usec: 0 };
    // SAFETY: all zeroes is an empty set; the descriptor has a place in one, as was just looked at; sets and time are this
    // frame's own and outlast the call.
    unsafe {
        let (mut read, mut write): (libc::fd_set, libc::fd_set) = std::mem::zeroed();
        libc::FD_SET(fd, &raw mut read);
        libc::FD_SET(fd, &raw mut write);
        let none = std::ptr::null_mut();
        if libc::select(fd + 1, &raw mut read, &raw mut write, none, &raw mut at_once) < 0 {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
        }
        Ok((libc::FD_ISSET(fd, &raw const read), libc::FD_ISSET(fd, &raw const write)))
    }
}

/// bind(2) to an address whose `sun_path` is exactly these bytes, however many: what the kernel says of one that is too long no
/// address type can ask.
///
/// # Errors
///
/// What bind(2) says.
pub fn bind_as_is(fd: impl AsFd, sun_path: &[u8]) -> io::Result<()> {
    with_address(sun_path, |address, len| {
        // SAFETY: the address is `len` readable bytes, which the kernel copies.
        unsafe { libc::bind(fd.as_fd().as_raw_fd(), address, len) }
    })
}

/// connect(2), as [`bind_as_is`].
///
/// # Errors
///
/// What connect(2) says.
pub fn connect_as_is(fd: impl AsFd, sun_path: &[u8]) -> io::Result<()> {
    with_address(sun_path, |address, len| {
        // SAFETY: the address is `len` readable bytes, which the kernel copies.
        unsafe { libc::connect(fd.as_fd().as_raw_fd(), address, len) }
    })
}

/// Calls `call` with an address of this family, and its length.
fn with_address(
    sun_path: &[u8],
    call: impl FnOnce(*const libc::sockaddr, libc::socklen_t) -> libc::c_int,
) -> io::Result<()> {
    let mut address = (libc::AF_UNIX as libc::sa_family_t).to_ne_bytes().to_vec();
    address.extend_from_slice(sun_path);
    let len = libc::socklen_t::try_from(address.len()).map_err(|_| Errno::INVAL)?;
    match call(address.as_ptr().cast(), len) {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Most records in one [`recv_many`].
pub const MANY: usize = 64;

/// recvmmsg(2): waits for a record and takes all that are there, at most as many as `lens` and [`MANY`] have room for,
/// each into the next `size` bytes of `buffer`. Returns how many; their lengths are in `lens`.
///
/// # Errors
///
/// What recvmmsg(2) says.
pub fn recv_many(fd: impl AsFd, buffer: &mut [u8], size: usize, lens: &mut [usize]) -> io::Result<usize> {
    // SAFETY: all zeroes is a valid mmsghdr and a valid iovec: no name, no data, no control data.
    let (mut headers, mut iovs): ([libc::mmsghdr; MANY], [libc::iovec; MANY]) = unsafe { std::mem::zeroed() };
    let mut count = 0;
    for ((part, iov), header) in
        buffer.chunks_exact_mut(size.max(1)).take(lens.len()).zip(&mut iovs).zip(&mut headers)
    {
        *iov = libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
        header.msg_hdr.msg_iov = iov;
        header.msg_hdr.msg_iovlen = 1;
        count += 1;
    }
    let flags = libc::MSG_WAITFORONE;
    // SAFETY: the first `count` headers each point at an iovec of theirs, and that at a part of `buffer` of its own, which
    // is borrowed mutably; all of them outlast the call.
    let got = unsafe {
        let none = std::ptr::null_mut();
        libc::recvmmsg(fd.as_fd().as_raw_fd(), headers.as_mut_ptr(), count, flags as _, none)
    };
    let got = usize::try_from(got)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))?;
    for (len, header) in lens.iter_mut().zip(&headers[..got]) {
        *len = header.msg_len as usize;
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

    #[test]
    fn select_tells_what_is_ready() {
        let kind = SocketType::STREAM;
        let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        assert_eq!(select(&b), Ok((false, true)));
        rustix::net::send(&a, b"x", SendFlags::empty()).unwrap();
        assert_eq!(select(&b), Ok((true, true)));
        while rustix::net::send(&a, &[0; 4096], SendFlags::DONTWAIT).is_ok() {}
        assert_eq!(select(&a), Ok((false, false)));
    }

    #[test]
    fn an_address_goes_to_the_kernel_as_it_is() {
        let socket =
            || rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let name = format!("\0as-it-is-{}", std::process::id());
        let (bound, other) = (socket().unwrap(), socket().unwrap());
        bind_as_is(&bound, name.as_bytes()).unwrap();
        assert_eq!(bind_as_is(&other, name.as_bytes()), Err(Errno::ADDRINUSE));
        assert_eq!(connect_as_is(&other, name.as_bytes()), Err(Errno::CONNREFUSED));
        rustix::net::listen(&bound, 1).unwrap();
        connect_as_is(&other, name.as_bytes()).unwrap();
        for long in [109, 126, 127, 4096] {
            assert_eq!(bind_as_is(&other, &vec![b'x'; long]), Err(Errno::INVAL));
            assert_eq!(connect_as_is(socket().unwrap(), &vec![b'x'; long]), Err(Errno::INVAL));
        }
    }

    #[test]
    fn the_longest_paths_are_told_as_they_are() {
        let dir = std::env::temp_dir().join(format!("onecopy-sys-names-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for len in [106, 107, 108] {
            let path = dir.join("x".repeat(len - dir.as_os_str().len() - 1));
            let flags = SocketFlags::CLOEXEC;
            let socket =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap();
            let address = SocketAddrUnix::new(&path).unwrap();
            rustix::net::bind(&socket, &address).unwrap();
            let told = unix_address(rustix::net::getsockname(&socket).unwrap()).unwrap();
            assert_eq!(super::path(&told), Some(path.as_os_str().as_encoded_bytes()), "{len}");
            assert_eq!(told, address, "{len}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn many_records_come_at_once_each_in_its_place() {
        let kind = SocketType::SEQPACKET;
        let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        for record in [&b"one"[..], b"", b"three"] {
            rustix::net::send(&a, record, SendFlags::empty()).unwrap();
        }
        let (mut buffer, mut lens) = ([0; 40], [9; 10]);
        assert_eq!(recv_many(&b, &mut buffer, 4, &mut lens[..2]), Ok(2));
        assert_eq!((&buffer[..3], &lens[..3]), (&b"one"[..], &[3, 0, 9][..]));
        assert_eq!(recv_many(&b, &mut buffer, 4, &mut lens), Ok(1));
        assert_eq!((&buffer[..4], lens[0]), (&b"thre"[..], 4));
        drop(a);
        assert_eq!(recv_many(&b, &mut buffer, 4, &mut lens).map(|_| lens[0]), Ok(0));
    }
}
