//! A descriptor that poll(2) finds readable while its count is not zero: eventfd(2).

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{self, Errno};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An eventfd, non-blocking and closed on exec.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// With a count of zero: not readable.
    ///
    /// # Errors
    ///
    /// EMFILE and ENFILE: no descriptor is left.
    pub fn new() -> io::Result<EventFd> {
        Ok(EventFd(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Adds one to the count: readable from here on.
    pub fn ring(&self) {
        // It fails where the count would overflow: then it is readable all the same.
        while io::write(&self.0, &1u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }

    /// Takes the count, which is zero after that; returns it.
    pub fn drain(&self) -> u64 {
        let mut count = [0; 8];
        loop {
            match io::read(&self.0, &mut count) {
                Ok(_) => return u64::from_ne_bytes(count),
                Err(Errno::INTR) => {}
                // EAGAIN: it was zero.
                Err(_) => return 0,
            }
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_add_up_and_are_taken_together() {
        let fd = EventFd::new().unwrap();
        assert_eq!(fd.drain(), 0);
        fd.ring();
        fd.ring();
        assert_eq!(fd.drain(), 2);
        assert_eq!(fd.drain(), 0);
    }
}
