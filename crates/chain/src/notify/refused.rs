//! Why a send is refused.

use std::fmt;

/// Why a send or a reference was refused. Nothing was taken, and no completion comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// As many sends as there are slots have not been reaped.
    Full {
        /// The slots.
        capacity: u32,
    },
    /// The lane was closed, or nobody is left to reap its completions.
    Closed,
    /// The segment carries a notification of another context.
    Foreign,
    /// The segment carries as many bytes as [`Limits::bytes`](super::Limits::bytes) allows.
    Bytes {
        /// Bytes that it would carry.
        would_be: u64,
        /// The limit.
        limit: u32,
    },
    /// The segment carries as many sends as [`Limits::sends`](super::Limits::sends) allows.
    Sends {
        /// The limit.
        limit: u32,
    },
    /// The segment's payload does not take these bytes: another kind of memory, or it would be too long.
    Payload,
    /// One send would carry 4 GiB or more: let another one take the rest.
    TooLong {
        /// Bytes that it would carry.
        would_be: u64,
    },
    /// The bytes lie in a device's memory, and the link takes none of it.
    Unreadable,
    /// What is kept back cannot go: the link takes nothing now.
    NoRoom,
    /// Another send was made behind this one, so that it gets no more bytes: let a further one take the rest. (A lane's bytes are in
    /// the order of its sends.)
    Passed {
        /// The send.
        id: u64,
        /// The number of its lane's next one.
        next: u64,
    },
    /// Memory of sends that are not complete: as much is kept in place as may be ([`Allowance::pinned`](super::zerocopy::Allowance::pinned):
    /// RLIMIT_MEMLOCK, unless the program has said otherwise).
    Pinned {
        /// Pages that there would be.
        would_be: u64,
        /// The limit.
        limit: u64,
    },
    /// As many notices wait to be read as may (net.core.optmem_max).
    Unread {
        /// The limit, in notices.
        limit: u32,
    },
    /// The segment's first send has waited for longer than [`Limits::age`](super::Limits::age).
    Age {
        /// Nanoseconds since then.
        age: u64,
    },
}

impl Refused {
    /// Whether the same send on a fresh segment would not be refused for this reason.
    pub fn wants_fresh_segment(self) -> bool {
        !matches!(
            self,
            Refused::Full { .. }
                | Refused::Closed
                | Refused::TooLong { .. }
                | Refused::Passed { .. }
                | Refused::NoRoom
                | Refused::Unreadable
                | Refused::Pinned { .. }
                | Refused::Unread { .. }
        )
    }
}

impl Refused {
    /// The number that Linux gives in the same place (include/uapi/asm-generic/errno.h): ENOBUFS, EFAULT, EPIPE, EINVAL, EAGAIN.
    pub fn errno(self) -> i32 {
        match self {
            Refused::Full { .. } | Refused::Pinned { .. } | Refused::Unread { .. } => 105,
            Refused::Unreadable => 14,
            Refused::Closed => 32,
            Refused::TooLong { .. } | Refused::Passed { .. } => 22,
            _ => 11,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Full { capacity } => {
                write!(f, "{capacity} sends wait for their completions: reap the queue, or make the lane larger")
            }
            Refused::Closed => f.write_str("the lane is closed: open another one on a queue that somebody reaps"),
            Refused::Foreign => f.write_str(
                "the segment carries a notification of another context: transmit it and open a fresh one",
            ),
            Refused::Bytes { would_be, limit } => write!(
                f,
                "the segment would carry {would_be} bytes of {limit}: transmit it and open a fresh one"
            ),
            Refused::Sends { limit } => {
                write!(f, "the segment carries {limit} sends: transmit it and open a fresh one")
            }
            Refused::Payload => f.write_str(
                "the segment does not take these bytes (another kind of memory, or too many): transmit it and open a fresh one",
            ),
            Refused::TooLong { would_be } => {
                write!(f, "a send of {would_be} bytes: one has at most 4 GiB - 1, make it several")
            }
            Refused::Unreadable => f.write_str("the link takes no bytes that lie in a device's memory: copy them to the host first"),
            Refused::NoRoom => f.write_str("the link has no room: come back at its deadline"),
            Refused::Passed { id, next } => write!(
                f,
                "send {id} is not the last one of the lane that it is linked in (the next is {next}): finish it, and open another for the rest"
            ),
            Refused::Pinned { would_be, limit } => write!(
                f,
                "sends would keep {would_be} pages in place, all of the process, of {limit} (RLIMIT_MEMLOCK, if the program has set no other limit): wait for some to complete, \
                 send a copy, or raise the limit (`ulimit -l`; CAP_IPC_LOCK lifts it)"
            ),
            Refused::Unread { limit } => {
                write!(f, "{limit} notices wait to be read: read the socket's error queue, or raise the limit")
            }
            Refused::Age { age } => write!(
                f,
                "the segment's first send has waited for {} us: transmit it and open a fresh one",
                age / 1000
            ),
        }
    }
}

impl std::error::Error for Refused {}
