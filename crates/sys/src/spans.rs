//! Input and output on views of shared memory. rustix takes slices, and a slice of memory that a peer may be
//! writing must not exist; the kernel does not mind.

use crate::map::Spans;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::{self, Errno};

fn iovecs(spans: &Spans<'_>) -> [libc::iovec; 2] {
    spans.map(|span| libc::iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() })
}

fn check(returned: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| last_errno())
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// preadv(2) from byte `offset` of `fd` into the views. Returns bytes read; 0 at the end of the file.
///
/// # Errors
///
/// What preadv(2) says; ESPIPE when `fd` cannot seek; EFAULT when a view is not writable.
pub fn pread(fd: impl AsFd, spans: &Spans<'_>, offset: u64) -> io::Result<usize> {
    if spans.iter().any(|span| !span.is_writable()) {
        return Err(Errno::FAULT);
    }
    let iov = iovecs(spans);
    let offset = libc::off_t::try_from(offset).map_err(|_| Errno::OVERFLOW)?;
    // SAFETY: the views are writable, as just checked, and valid for their lifetime, which outlasts the call.
    check(unsafe { libc::preadv(fd.as_fd().as_raw_fd(), iov.as_ptr(), 2, offset) })
}

/// writev(2) of the views. Returns bytes written.
///
/// # Errors
///
/// What writev(2) says.
pub fn write(fd: impl AsFd, spans: &Spans<'_>) -> io::Result<usize> {
    let iov = iovecs(spans);
    let count = if spans[1].is_empty() { 1 } else { 2 };
    // SAFETY: the views are valid for reads for their lifetime, which outlasts the call.
    check(unsafe { libc::writev(fd.as_fd().as_raw_fd(), iov.as_ptr(), count) })
}

/// sendmsg(2) of the views with `flags` (MSG_ bits of <sys/socket.h>). Returns bytes sent.
///
/// # Errors
///
/// What sendmsg(2) says.
pub fn send(fd: impl AsFd, spans: &Spans<'_>, flags: i32) -> io::Result<usize> {
    let mut iov = iovecs(spans);
    // SAFETY: all zeroes is a valid msghdr: no name, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = if spans[1].is_empty() { 1 } else { 2 };
    // SAFETY: `message` points at `iov`, and the views are valid for reads for longer than the call.
    check(unsafe { libc::sendmsg(fd.as_fd().as_raw_fd(), &message, flags) })
}
