//! What goes wrong with chains, and what to do next.

use crate::kind::Kind;
use onecopy_pool::{AllocError, DeviceId};
use rustix::io::Errno;
use std::fmt;
use std::io;

/// Why an operation on a chain was refused. Whatever it was, the chain is as it was before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainError {
    /// A fragment of no bytes.
    ZeroSize,
    /// A fragment that is not inside its page, or a page of 4 GiB or more.
    OutOfPage {
        /// Where it would begin, in bytes.
        offset: usize,
        /// Its bytes.
        len: usize,
        /// Bytes of the page.
        page: usize,
    },
    /// A place behind the last byte.
    BeyondEnd {
        /// The place asked for, in bytes from the start.
        at: usize,
        /// Bytes in the chain.
        len: usize,
    },
    /// The bytes of a chain, or those of the pages that it holds, would pass 4 GiB.
    TooLong {
        /// What they would come to.
        bytes: u64,
    },
    /// Bytes to be contiguous that do not fit into one page.
    OverPage {
        /// Bytes that have to lie in one page.
        len: usize,
        /// Bytes of a page of the pool.
        page: usize,
    },
    /// A fragment of another kind of memory than the chain's.
    MixedKinds {
        /// Which fragment it would be, counted from 0.
        index: usize,
        /// Its memory.
        added: Kind,
        /// Its device.
        added_device: Option<DeviceId>,
        /// The chain's memory.
        chain: Kind,
        /// The chain's device.
        chain_device: Option<DeviceId>,
    },
    /// Bytes that may not be looked at (linearized, summed, written) by this CPU or this process.
    Unreadable {
        /// The first fragment that refuses, counted from 0.
        index: usize,
        /// Its memory.
        kind: Kind,
        /// Its device.
        device: Option<DeviceId>,
    },
    /// A checksum that is still to be finished is in the way: the chain would be cut within what it covers, would get a
    /// second one, or its start would pass 64 KiB.
    Unfinished {
        /// Where, in bytes.
        at: usize,
        /// First byte covered.
        start: usize,
    },
    /// The pool has no page.
    NoPage(AllocError),
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |device: &Option<DeviceId>| match device {
            Some(device) => format!(" ({device})"),
            None => String::new(),
        };
        match self {
            ChainError::ZeroSize => f.write_str("a fragment has to have bytes; leave it out"),
            ChainError::OutOfPage { offset, len, page } => write!(
                f,
                "{len} bytes from byte {offset} are not inside a page of {page}; check offset and length"
            ),
            ChainError::BeyondEnd { at, len } => {
                write!(f, "byte {at} is behind the end of a chain of {len} bytes; ask for its length first")
            }
            ChainError::TooLong { bytes } => {
                write!(
                    f,
                    "the chain or its pages would come to {bytes} bytes, past 4 GiB; start another chain"
                )
            }
            ChainError::OverPage { len, page } => write!(
                f,
                "{len} bytes cannot be contiguous in pages of {page}; ask for fewer, or use a pool of larger pages"
            ),
            ChainError::MixedKinds { index, added, added_device, chain, chain_device } => write!(
                f,
                "fragment {index} would be {added}{}, the chain is {chain}{}; keep them in two chains",
                of(added_device),
                of(chain_device)
            ),
            ChainError::Unreadable { index, kind: kind @ Kind::Peer, .. } => {
                write!(f, "fragment {index} is {kind}; copy it out, or hand it to the kernel")
            }
            ChainError::Unreadable { index, kind, device } => write!(
                f,
                "fragment {index} is {kind}{}, which cannot be read here; pass it on by reference",
                of(device)
            ),
            ChainError::Unfinished { at, start } => write!(
                f,
                "at byte {at}, an unfinished checksum that covers all from byte {start} is in the way; finish it first"
            ),
            ChainError::NoPage(error) => write!(f, "no page: {error}"),
        }
    }
}

impl std::error::Error for ChainError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ChainError::NoPage(error) => Some(error),
            _ => None,
        }
    }
}

impl From<AllocError> for ChainError {
    fn from(error: AllocError) -> ChainError {
        ChainError::NoPage(error)
    }
}

impl ChainError {
    /// The errno for it: where the kernel refuses the same, the one that it gives (EFAULT for unreadable fragments).
    pub fn errno(&self) -> Errno {
        match self {
            ChainError::Unreadable { .. } => Errno::FAULT,
            ChainError::TooLong { .. } | ChainError::OverPage { .. } => Errno::MSGSIZE,
            ChainError::NoPage(error) => error.errno(),
            _ => Errno::INVAL,
        }
    }
}

impl From<ChainError> for io::Error {
    /// Of the kind that the errno has; the error itself is inside.
    fn from(error: ChainError) -> io::Error {
        io::Error::new(error.errno().kind(), error)
    }
}
