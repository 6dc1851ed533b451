//! Control messages of AF_UNIX sockets (cmsg(3), unix(7)): descriptors, credentials, pidfds. And who the peer is.
//!
//! rustix receives descriptors and credentials too, but has no pidfds, which would stay open unseen, and its process
//! ids are never 0, which the kernel gives for a process that this one cannot see.

use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::addr::{SocketAddrArg, SocketAddrStorage};
use rustix::net::{SocketAddrAny, SocketAddrUnix};
use std::io::{IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, size_of};

/// Most descriptors in one message (SCM_MAX_FD, linux/include/net/scm.h).
pub const MAX_FDS: usize = 253;

// <asm-generic/socket.h> and <linux/socket.h>; libc does not have them for all targets.
const SO_PEERGROUPS: libc::c_int = 59;
const SO_PASSPIDFD: libc::c_int = 76;
const SO_PEERPIDFD: libc::c_int = 77;
const SCM_PIDFD: libc::c_int = 4;

/// A process, its user and its group (struct ucred).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ucred {
    /// Process id, in the pid namespace of who asks; 0 where it cannot be seen from there.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl Ucred {
    fn raw(self) -> libc::ucred {
        libc::ucred { pid: self.pid, uid: self.uid, gid: self.gid }
    }

    fn of(raw: libc::ucred) -> Ucred {
        Ucred { pid: raw.pid, uid: raw.uid, gid: raw.gid }
    }

    /// Of this process as its peers are told (SO_PEERCRED: cred_to_ucred): with the effective ids, which it may claim too.
    pub fn effective() -> Ucred {
        Ucred {
            pid: rustix::process::getpid().as_raw_nonzero().get(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    /// Of this process: what it may say of itself without a privilege, and what the kernel says of it (current_uid_gid).
    pub fn own() -> Ucred {
        Ucred {
            pid: rustix::process::getpid().as_raw_nonzero().get(),
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
        }
    }
}

/// What one recvmsg(2) brought.
#[derive(Debug, Default)]
pub struct Message {
    /// Bytes; with MSG_TRUNC in the flags the length of the record.
    pub bytes: usize,
    /// Descriptors, with close-on-exec set.
    pub fds: Vec<OwnedFd>,
    /// Of the sender (SCM_CREDENTIALS), where SO_PASSCRED asks for them.
    pub credentials: Option<Ucred>,
    /// Of the sender (SCM_PIDFD), where SO_PASSPIDFD asks for it.
    pub pidfd: Option<OwnedFd>,
    /// The record was longer than the buffer (MSG_TRUNC).
    pub cut: bool,
    /// Control messages, or descriptors of one, were lost (MSG_CTRUNC).
    pub control_cut: bool,
    /// The sender's name, if it has one. (Boxed: most messages have none, and all of them are moved about.)
    pub name: Option<Box<SocketAddrAny>>,
}

/// What is given to room for control messages, in bytes.
const SMALL: usize = 128;
const LARGE: usize = 1152;

/// Aligned as a control message must be.
#[repr(C, align(16))]
struct Room<const N: usize>(MaybeUninit<[u8; N]>);

/// What a receive has room for besides bytes. What has none is lost, and descriptors are not even opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Nothing.
    None,
    /// A few descriptors, credentials and a pidfd.
    Few,
    /// All that there can be.
    All,
}

/// recvmsg(2) with MSG_CMSG_CLOEXEC.
///
/// # Errors
///
/// What recvmsg(2) says.
pub fn recv(
    socket: impl AsFd,
    slices: &mut [IoSliceMut<'_>],
    space: Space,
    flags: rustix::net::RecvFlags,
) -> io::Result<Message> {
    match space {
        Space::None => recv_into(socket, slices, std::ptr::null_mut(), 0, flags),
        Space::Few => {
            let mut room = Room::<SMALL>(MaybeUninit::uninit());
            recv_into(socket, slices, room.0.as_mut_ptr().cast(), SMALL, flags)
        }
        Space::All => {
            let mut room = Room::<LARGE>(MaybeUninit::uninit());
            recv_into(socket, slices, room.0.as_mut_ptr().cast(), LARGE, flags)
        }
    }
}

/// `room` has `len` bytes, aligned; it may be null where that is 0.
fn recv_into(
    socket: impl AsFd,
    slices: &mut [IoSliceMut<'_>],
    room: *mut u8,
    len: usize,
    flags: rustix::net::RecvFlags,
) -> io::Result<Message> {
    // SAFETY: all zeroes is a valid msghdr.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    // (Longer than a unix address, so that a path without its NUL is whole.)
    let mut name = MaybeUninit::<SocketAddrStorage>::uninit();
    header.msg_name = name.as_mut_ptr().cast();
    header.msg_namelen = size_of::<SocketAddrStorage>() as libc::socklen_t;
    header.msg_iov = slices.as_mut_ptr().cast();
    header.msg_iovlen = slices.len() as _;
    header.msg_control = room.cast();
    header.msg_controllen = len as _;
    let flags = flags.bits() as libc::c_int | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: IoSliceMut has the layout of iovec (its documentation), and each one's bytes are borrowed mutably; name and
    // room have the lengths given; all of them outlast the call.
    let got = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, flags) };
    let mut message = Message { bytes: usize::try_from(got).map_err(|_| last())?, ..Message::default() };
    message.cut = header.msg_flags & libc::MSG_TRUNC != 0;
    message.control_cut = header.msg_flags & libc::MSG_CTRUNC != 0;
    // (No name has a length of 0; a family is the least that else there is.)
    if header.msg_namelen as usize >= size_of::<libc::sa_family_t>() {
        let len = header.msg_namelen.min(size_of::<SocketAddrStorage>() as libc::socklen_t);
        // SAFETY: the kernel has written an address of that length there.
        message.name = Some(Box::new(unsafe { SocketAddrAny::read(name.as_ptr(), len) }));
    }
    // SAFETY: the kernel has written whole messages into the first `msg_controllen` bytes of the room (cmsg(3)).
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !next.is_null() {
        // SAFETY: as above: a header lies there.
        let (level, kind, bytes) =
            unsafe { ((*next).cmsg_level, (*next).cmsg_type, (*next).cmsg_len as usize) };
        // SAFETY: asks for no memory.
        let bytes = bytes.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
        // SAFETY: the data of a header follows it.
        let data = unsafe { libc::CMSG_DATA(next) };
        match (level, kind) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for i in 0..bytes / size_of::<libc::c_int>() {
                    // SAFETY: the message's bytes hold that many descriptors, perhaps unaligned.
                    let fd = unsafe { data.cast::<libc::c_int>().add(i).read_unaligned() };
                    // SAFETY: the kernel has just opened it for this message, and nobody else knows of it.
                    message.fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if bytes >= size_of::<libc::ucred>() => {
                // SAFETY: as long as a ucred, all of whose values are valid.
                message.credentials = Some(Ucred::of(unsafe { data.cast::<libc::ucred>().read_unaligned() }));
            }
            (libc::SOL_SOCKET, SCM_PIDFD) if bytes >= size_of::<libc::c_int>() => {
                // SAFETY: as long as a descriptor.
                let fd = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                // A negative one is the error for which there is none (net/core/scm.c: scm_pidfd_recv).
                if fd >= 0 {
                    // SAFETY: opened for this message, as above.
                    message.pidfd = Some(unsafe { OwnedFd::from_raw_fd(fd) });
                }
            }
            _ => {}
        }
        // SAFETY: `header` and `next` are as the kernel left them.
        next = unsafe { libc::CMSG_NXTHDR(&raw const header, next) };
    }
    Ok(message)
}

/// sendmsg(2) with descriptors (at most [`MAX_FDS`]) and what is said of the sender, which the kernel verifies.
///
/// # Errors
///
/// What sendmsg(2) says: EINVAL for too many descriptors, EPERM for credentials that this process may not claim, ESRCH for
/// a process that is not there.
pub fn send(
    socket: impl AsFd,
    slices: &[IoSlice<'_>],
    fds: &[rustix::fd::BorrowedFd<'_>],
    who: Option<Ucred>,
    flags: rustix::net::SendFlags,
) -> io::Result<usize> {
    send_to(socket, None, slices, fds, who, flags)
}

/// As [`send`], to the socket of that name (sendmsg(2) with a `msg_name`).
///
/// # Errors
///
/// As [`send`].
pub fn send_to(
    socket: impl AsFd,
    name: Option<&SocketAddrUnix>,
    slices: &[IoSlice<'_>],
    fds: &[rustix::fd::BorrowedFd<'_>],
    who: Option<Ucred>,
    flags: rustix::net::SendFlags,
) -> io::Result<usize> {
    if fds.len() > MAX_FDS {
        return Err(Errno::INVAL);
    }
    let mut room = Room::<LARGE>(MaybeUninit::uninit());
    // SAFETY: all zeroes is a valid msghdr.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = slices.as_ptr().cast_mut().cast();
    header.msg_iovlen = slices.len() as _;
    let name = name.map(SocketAddrArg::as_any);
    if let Some(name) = &name {
        header.msg_name = name.as_ptr().cast_mut().cast();
        header.msg_namelen = name.addr_len();
    }
    let mut len = 0;
    let mut put = |kind, bytes: usize, fill: &dyn Fn(*mut u8)| {
        // SAFETY: asks for no memory.
        let (whole, space) =
            unsafe { (libc::CMSG_LEN(bytes as u32), libc::CMSG_SPACE(bytes as u32) as usize) };
        debug_assert!(len + space <= LARGE);
        // SAFETY: both messages have room: 24 + 253 * 4 bytes and 24 + 12, rounded up, are less than LARGE; and a message's
        // space is a multiple of its alignment. The header's bytes are written before they are read.
        unsafe {
            let at: *mut libc::cmsghdr = room.0.as_mut_ptr().cast::<u8>().add(len).cast();
            at.write_bytes(0, 1);
            (*at).cmsg_level = libc::SOL_SOCKET;
            (*at).cmsg_type = kind;
            (*at).cmsg_len = whole as _;
            fill(libc::CMSG_DATA(at));
        }
        len += space;
    };
    if let Some(who) = who {
        // SAFETY: `put` gives room for as many bytes as are asked for.
        put(libc::SCM_CREDENTIALS, size_of::<libc::ucred>(), &|to| unsafe {
            to.cast::<libc::ucred>().write_unaligned(who.raw());
        });
    }
    if !fds.is_empty() {
        put(libc::SCM_RIGHTS, std::mem::size_of_val(fds), &|to| {
            for (i, fd) in fds.iter().enumerate() {
                // SAFETY: as above; a borrowed descriptor has the size of a raw one.
                unsafe { to.cast::<libc::c_int>().add(i).write_unaligned(fd.as_raw_fd()) };
            }
        });
    }
    header.msg_control = room.0.as_mut_ptr().cast();
    header.msg_controllen = len as _;
    // SAFETY: IoSlice has the layout of iovec (its documentation) and is only read, as the name is; the messages were written
    // up to `len`, but for bytes of padding that nobody reads; all of them outlast the call.
    let sent =
        unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const header, flags.bits() as libc::c_int) };
    usize::try_from(sent).map_err(|_| last())
}

/// sendmsg(2) with control messages exactly as they stand in `control` (cmsg(3)), however wrong: for who wants to know what the
/// kernel makes of them. What lies behind the numbers of descriptors in there the kernel looks up, not this function.
///
/// # Errors
///
/// What sendmsg(2) says: EBADF, EINVAL.
pub fn send_control(
    socket: impl AsFd,
    bytes: &[u8],
    control: &[u8],
    flags: rustix::net::SendFlags,
) -> io::Result<usize> {
    let slices = [IoSlice::new(bytes)];
    // SAFETY: all zeroes is a valid msghdr.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = slices.as_ptr().cast_mut().cast();
    header.msg_iovlen = slices.len() as _;
    header.msg_control = control.as_ptr().cast_mut().cast();
    header.msg_controllen = control.len() as _;
    // SAFETY: IoSlice has the layout of iovec (its documentation); it and the control bytes are only read, up to the lengths given, and
    // outlast the call.
    let sent =
        unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const header, flags.bits() as libc::c_int) };
    usize::try_from(sent).map_err(|_| last())
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// getsockopt(2) into `value`. Bytes written, or wanted where it says ERANGE.
fn option(socket: impl AsFd, name: libc::c_int, value: &mut [u32]) -> (io::Result<()>, usize) {
    let mut len = std::mem::size_of_val(value) as libc::socklen_t;
    // SAFETY: the value has the length given, and any bytes are valid in it.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    (if done == 0 { Ok(()) } else { Err(last()) }, len as usize)
}

/// SO_PEERCRED: who was at the other end at connect, listen or socketpair.
///
/// # Errors
///
/// What getsockopt(2) says.
pub fn peer_credentials(socket: impl AsFd) -> io::Result<Ucred> {
    let mut value = [0; 3];
    option(socket, libc::SO_PEERCRED, &mut value).0?;
    Ok(Ucred { pid: value[0].cast_signed(), uid: value[1], gid: value[2] })
}

/// SO_PEERGROUPS: the supplementary groups of the same.
///
/// # Errors
///
/// What getsockopt(2) says: ENODATA where there is no peer.
pub fn peer_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let mut value = vec![0; 16];
    loop {
        match option(&socket, SO_PEERGROUPS, &mut value) {
            (Err(Errno::RANGE), len) if len > value.len() * 4 => value.resize(len.div_ceil(4), 0),
            (done, len) => {
                done?;
                value.truncate(len / 4);
                return Ok(value);
            }
        }
    }
}

/// SO_PEERPIDFD (Linux 6.5): a descriptor of the process that SO_PEERCRED names, which no other can take the place of.
///
/// # Errors
///
/// What getsockopt(2) says: ENOPROTOOPT before Linux 6.5; ESRCH or EINVAL where the process is gone; ENODATA where there
/// is no peer.
pub fn peer_pidfd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut value = [0];
    option(socket, SO_PEERPIDFD, &mut value).0?;
    // SAFETY: the kernel has just opened it for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(value[0].cast_signed()) })
}

/// SO_PASSPIDFD (Linux 6.5): whether messages come with a pidfd of their sender.
///
/// # Errors
///
/// What setsockopt(2) says: ENOPROTOOPT before Linux 6.5.
pub fn set_pass_pidfd(socket: impl AsFd, on: bool) -> io::Result<()> {
    let value = libc::c_int::from(on);
    // SAFETY: the option's value is one c_int, which lives through the call.
    let done = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSPIDFD,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(last()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

    fn pair() -> (OwnedFd, OwnedFd) {
        let kind = SocketType::SEQPACKET;
        rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn descriptors_credentials_and_a_pidfd_come_together() {
        let (a, b) = pair();
        sockopt::set_socket_passcred(&b, true).unwrap();
        let pidfds = set_pass_pidfd(&b, true).is_ok();
        for count in [0, 1, MAX_FDS] {
            let fds = vec![a.as_fd(); count];
            let iov = [IoSlice::new(b"abc")];
            assert_eq!(send(&a, &iov, &fds, Some(Ucred::own()), SendFlags::empty()), Ok(3));
            let mut buffer = [0; 2];
            let got = recv(&b, &mut [IoSliceMut::new(&mut buffer)], Space::All, RecvFlags::empty()).unwrap();
            assert_eq!((got.bytes, got.cut, got.control_cut, got.name.is_some()), (2, true, false, false));
            assert_eq!((got.fds.len(), got.credentials), (count, Some(Ucred::own())));
            assert_eq!(got.pidfd.is_some(), pidfds);
            let cloexec = rustix::io::FdFlags::CLOEXEC;
            assert!(got.fds.iter().all(|fd| rustix::io::fcntl_getfd(fd).unwrap().contains(cloexec)));
        }
        let many = vec![a.as_fd(); MAX_FDS + 1];
        assert_eq!(send(&a, &[IoSlice::new(b"x")], &many, None, SendFlags::empty()), Err(Errno::INVAL));
    }

    #[test]
    fn what_has_no_room_is_closed_and_told() {
        let (a, b) = pair();
        send(&a, &[IoSlice::new(b"x")], &[a.as_fd(); 100], None, SendFlags::empty()).unwrap();
        let got = recv(&b, &mut [IoSliceMut::new(&mut [0])], Space::Few, RecvFlags::empty()).unwrap();
        assert!(got.control_cut && got.fds.len() < 100);
    }

    #[test]
    fn who_the_peer_is() {
        let (a, _b) = pair();
        let (real, own) = (peer_credentials(&a).unwrap(), Ucred::own());
        assert_eq!((real.pid, real.uid), (own.pid, own.uid));
        let groups = rustix::process::getgroups().unwrap();
        assert_eq!(peer_groups(&a).unwrap(), groups.iter().map(|g| g.as_raw()).collect::<Vec<_>>());
        match peer_pidfd(&a) {
            Ok(pidfd) => assert!(rustix::io::fcntl_getfd(&pidfd).is_ok()),
            Err(errno) => assert_eq!(errno, Errno::NOPROTOOPT),
        }
    }
}
