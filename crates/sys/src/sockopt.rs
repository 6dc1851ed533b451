//! Socket options that rustix lacks.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// SO_PEEK_OFF: the next MSG_PEEK starts `at` bytes into the queue, and moves on by what it saw; each byte that is received
/// makes it one less, down to 0. -1 turns it off.
///
/// # Errors
///
/// setsockopt's.
pub fn set_peek_off(fd: BorrowedFd<'_>, at: i32) -> io::Result<()> {
    // SAFETY: the option's value is one c_int, which lives through the call.
    let r = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            (&raw const at).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Where the next MSG_PEEK starts ([`set_peek_off`]).
///
/// # Errors
///
/// getsockopt's.
pub fn peek_off(fd: BorrowedFd<'_>) -> io::Result<i32> {
    let mut at: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is one c_int, as long as `len` says, and both live through the call.
    let r = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            (&raw mut at).cast(),
            &raw mut len,
        )
    };
    if r == 0 { Ok(at) } else { Err(io::Error::last_os_error()) }
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
}
