//! What an epoll(7) watches, and which of it may be ready.

/// Bits that say how an entry works, and not what for (EP_PRIVATE_BITS).
pub(crate) const PRIVATE: u32 =
    (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP) as u32;

/// A socket that is watched, and what for.
#[derive(Debug)]
pub(crate) struct Entry {
    pub fd: i32,
    pub events: u32,
    pub data: u64,
    /// It is on the list of those that may be ready.
    pub listed: bool,
}

/// A set of watched sockets.
#[derive(Debug, Default)]
pub(crate) struct Epoll {
    pub entries: Vec<Entry>,
    /// Descriptors of entries that may be ready, first come first served.
    pub list: Vec<i32>,
}

impl Epoll {
    /// Events have come to `fd`.
    pub(crate) fn notify(&mut self, fd: i32, events: u32) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.fd == fd)
            && entry.events & !PRIVATE != 0
            && entry.events & events != 0
            && !entry.listed
        {
            entry.listed = true;
            self.list.push(fd);
        }
    }

    /// `fd` is closed.
    pub(crate) fn forget(&mut self, fd: i32) {
        self.entries.retain(|entry| entry.fd != fd);
        self.list.retain(|listed| *listed != fd);
    }
}
