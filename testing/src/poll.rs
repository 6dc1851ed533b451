//! What poll(2) says at this moment.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;

/// Whether poll(2) says POLLIN.
///
/// # Panics
///
/// Where it fails.
pub fn readable(fd: impl AsFd) -> bool {
    says(fd, PollFlags::IN)
}

/// Whether poll(2) says POLLOUT.
///
/// # Panics
///
/// Where it fails.
pub fn writable(fd: impl AsFd) -> bool {
    says(fd, PollFlags::OUT)
}

fn says(fd: impl AsFd, events: PollFlags) -> bool {
    let mut fds = [PollFd::new(&fd, events)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("poll works");
    fds[0].revents().contains(events)
}
