//! Socket options that rustix lacks.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// SO_PEEK_OFF: the next MSG_PEEK starts `at` bytes into the queue, and moves on by what it saw; -1 turns it off.
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
