//! Input and output on views of shared memory. rustix takes slices, and a slice of memory that a peer may be
//! writing must not exist; the kernel does not mind.

use crate::map::{Span, Spans};
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

/// Views that one call takes; of more, the first ones. (The kernel's limit is 1024, UIO_MAXIOV.)
pub const MAX_GATHER: usize = 64;

/// The first entries of `iov` for these views.
fn gather<'a>(iov: &'a mut [libc::iovec; MAX_GATHER], spans: &[Span<'_>]) -> &'a mut [libc::iovec] {
    let count = spans.len().min(MAX_GATHER);
    for (entry, span) in iov.iter_mut().zip(spans) {
        *entry = libc::iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() };
    }
    &mut iov[..count]
}

const NO_BYTES: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// readv(2) into any number of views, the first [`MAX_GATHER`] of them. Returns bytes read.
///
/// # Errors
///
/// What readv(2) says; EFAULT when a view is not writable.
pub fn read_scattered(fd: impl AsFd, spans: &[Span<'_>]) -> io::Result<usize> {
    if spans.iter().any(|span| !span.is_writable()) {
        return Err(Errno::FAULT);
    }
    let mut iov = [NO_BYTES; MAX_GATHER];
    let iov = gather(&mut iov, spans);
    // SAFETY: the views are writable, as just checked, and valid for their lifetime, which outlasts the call; there are at most 64.
    check(unsafe { libc::readv(fd.as_fd().as_raw_fd(), iov.as_ptr(), iov.len() as libc::c_int) })
}

/// writev(2) of any number of views, the first [`MAX_GATHER`] of them. Returns bytes written.
///
/// # Errors
///
/// What writev(2) says.
pub fn write_gathered(fd: impl AsFd, spans: &[Span<'_>]) -> io::Result<usize> {
    let mut iov = [NO_BYTES; MAX_GATHER];
    let iov = gather(&mut iov, spans);
    // SAFETY: the views are valid for reads for their lifetime, which outlasts the call, and there are at most 64.
    check(unsafe { libc::writev(fd.as_fd().as_raw_fd(), iov.as_ptr(), iov.len() as libc::c_int) })
}

/// sendmsg(2) of any number of views, the first [`MAX_GATHER`] of them, with `flags` (MSG_ bits of <sys/socket.h>).
/// Returns bytes sent.
///
/// # Errors
///
/// What sendmsg(2) says.
pub fn send_gathered(fd: impl AsFd, spans: &[Span<'_>], flags: i32) -> io::Result<usize> {
    let mut iov = [NO_BYTES; MAX_GATHER];
    let iov = gather(&mut iov, spans);
    // SAFETY: all zeroes is a valid msghdr: no name, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = iov.len() as _;
    // SAFETY: `message` points at `iov`, and the views are valid for reads for longer than the call.
    check(unsafe { libc::sendmsg(fd.as_fd().as_raw_fd(), &message, flags) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gathered_is_scattered_again() {
        let (from, to) = rustix::pipe::pipe().unwrap();
        let out = [Span::of_shared(b"one"), Span::EMPTY, Span::of_shared(b"three")];
        assert_eq!(write_gathered(&to, &out), Ok(8));
        let (mut a, mut b) = ([0; 5], [0; 5]);
        assert_eq!(read_scattered(&from, &[Span::of(&mut a), Span::of(&mut b)]), Ok(8));
        assert_eq!((&a, &b), (b"oneth", b"ree\0\0"));
        // What others may be reading is not written.
        assert_eq!(read_scattered(&from, &[Span::of(&mut a), Span::of_shared(&b)]), Err(Errno::FAULT));
    }
}
