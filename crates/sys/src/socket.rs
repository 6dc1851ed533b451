//! What an AF_UNIX socket tells about its queues.

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::{self, Errno};

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
