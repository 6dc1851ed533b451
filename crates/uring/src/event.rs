//! What has happened.

use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Fragment};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// What the kernel has said of a request. `token` is what the caller gave it.
#[derive(Debug)]
pub enum Event {
    /// The kernel has taken so many bytes of a send, or says why not. The first step of two where `more` is set: the pages are still the
    /// kernel's.
    Sent {
        /// The caller's name for it.
        token: u64,
        /// Bytes taken.
        result: Result<usize, Errno>,
        /// An [`Event::Notified`] follows (IORING_CQE_F_MORE).
        more: bool,
        /// What was to be sent, where the kernel took nothing of it and no notification follows: it is the caller's again, and was not sent.
        back: Option<Segment<Chain>>,
    },
    /// The second step of a send without a copy: its pages are free (IORING_CQE_F_NOTIF).
    Notified {
        /// The caller's name for it.
        token: u64,
        /// Bytes that the first step took.
        bytes: usize,
        /// What the kernel did with them.
        usage: Usage,
        /// What was to be sent, where the kernel took nothing of it.
        back: Option<Segment<Chain>>,
    },
    /// Bytes have arrived, in a page that is the caller's from here on.
    Received {
        /// The caller's name for it.
        token: u64,
        /// Where they lie.
        data: Fragment,
    },
    /// A receive is over: nothing comes any more before the next [`Ring::receive`](crate::Ring::receive).
    Ended {
        /// The caller's name for it.
        token: u64,
        /// Why.
        end: End,
    },
    /// A connection was accepted, or none was.
    Accepted {
        /// The caller's name for it.
        token: u64,
        /// Its descriptor.
        result: Result<OwnedFd, Errno>,
    },
    /// There is something to be received, or the request to tell so is over ([`Ring::readable`](crate::Ring::readable)).
    Readable {
        /// The caller's name for it.
        token: u64,
    },
    /// There is room to send, or the request to tell so is over ([`Ring::writable`](crate::Ring::writable)).
    Writable {
        /// The caller's name for it.
        token: u64,
    },
    /// The socket has an error, or both of its directions are over, or the request to tell so is over ([`Ring::hung_up`](crate::Ring::hung_up)).
    HungUp {
        /// The caller's name for it.
        token: u64,
        /// It goes on telling.
        more: bool,
    },
    /// A connection is made, or could not be.
    Connected {
        /// The caller's name for it.
        token: u64,
        /// Whether.
        result: Result<(), Errno>,
    },
}

/// Why a receive is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The peer sends no more.
    Stream,
    /// No page was left (ENOBUFS): begin again when some are.
    NoPage,
    /// The kernel gave up for no reason of the socket's: begin again.
    Again,
    /// It was cancelled.
    Cancelled,
    /// The socket has failed.
    Failed(Errno),
}

/// What the kernel did with the bytes of a send without a copy (IORING_SEND_ZC_REPORT_USAGE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// It took them from where they lie.
    Referenced,
    /// It copied them after all.
    Copied,
    /// It says that it copied them, but it says so of each notification that was stacked behind another one, true or not (up to Linux
    /// 6.18 at least: `io_notif_tw_complete()` looks at each one's own marks, which only the first one's are set of).
    Unknown,
}
