//! Input and output on views of shared memory. rustix takes slices, and a slice of memory that a peer may be
//! writing must not exist; the kernel does not mind.

use crate::map::{Span, Spans};
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::{self, Errno};
use std::mem::MaybeUninit;

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

/// The kernel's list of views. What of it is not used is not written to either, nor moved: a kilobyte costs more than a call that finds nothing.
struct Gathered {
    iov: [MaybeUninit<libc::iovec>; MAX_GATHER],
    /// Entries that are there.
    count: usize,
}

impl Gathered {
    #[inline]
    fn of(spans: &[Span<'_>]) -> Gathered {
        let mut iov = [const { MaybeUninit::uninit() }; MAX_GATHER];
        for (entry, span) in iov.iter_mut().zip(spans) {
            entry.write(libc::iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() });
        }
        Gathered { iov, count: spans.len().min(MAX_GATHER) }
    }

    #[inline]
    fn as_ptr(&mut self) -> *mut libc::iovec {
        self.iov.as_mut_ptr().cast()
    }
}

/// readv(2) or writev(2), by its number. libc's are points at which a thread may be cancelled, which costs a program of several threads two locked
/// instructions a call.
///
/// # Safety
///
/// The first `count` entries of `iov` are there, and valid for what the call does with them.
#[inline]
unsafe fn vectored(number: libc::c_long, fd: impl AsFd, iov: &Gathered) -> io::Result<usize> {
    let (fd, count) = (fd.as_fd().as_raw_fd(), iov.count);
    // SAFETY: the caller's. Both calls take a descriptor, a pointer and a count. Of an argument that has less bits than its register nobody sets the
    // others, and musl reads them: so each is a register's long.
    check(unsafe { libc::syscall(number, libc::c_long::from(fd), iov.iov.as_ptr(), count) } as libc::ssize_t)
}

/// readv(2) into any number of views, the first [`MAX_GATHER`] of them. Returns bytes read.
///
/// # Errors
///
/// What readv(2) says; EFAULT when a view is not writable.
pub fn read_scattered(fd: impl AsFd, spans: &[Span<'_>]) -> io::Result<usize> {
    if spans.iter().any(|span| !span.is_writable()) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the views are writable, as just checked, and valid for their lifetime, which outlasts the call.
    unsafe { vectored(libc::SYS_readv, fd, &Gathered::of(spans)) }
}

/// writev(2) of any number of views, the first [`MAX_GATHER`] of them. Returns bytes written.
///
/// # Errors
///
/// What writev(2) says.
pub fn write_gathered(fd: impl AsFd, spans: &[Span<'_>]) -> io::Result<usize> {
    // SAFETY: the views are valid for reads for their lifetime, which outlasts the call.
    unsafe { vectored(libc::SYS_writev, fd, &Gathered::of(spans)) }
}

/// sendmsg(2) of any number of views, the first [`MAX_GATHER`] of them, with `flags` (MSG_ bits of <sys/socket.h>).
/// Returns bytes sent.
///
/// # Errors
///
/// What sendmsg(2) says.
pub fn send_gathered(fd: impl AsFd, spans: &[Span<'_>], flags: i32) -> io::Result<usize> {
    let mut iov = Gathered::of(spans);
    // SAFETY: all zeroes is a valid msghdr: no name, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov.as_ptr();
    message.msg_iovlen = iov.count as _;
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
