//! A stream as a descriptor, where std or a loop of the program's own asks for one.

use super::Stream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// As [`Stream::poll_fd`].
///
/// # Panics
///
/// Where no descriptor is left the first time (EMFILE).
impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.fd().unwrap_or_else(|error| panic!("{error}"))
    }
}

/// As [`Stream::poll_fd`].
///
/// # Panics
///
/// As [`AsFd`].
impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
