//! What a receive of a record returns, and what is left of its frame.

use onecopy_ring::Ring;
use onecopy_ring::consumer::BorrowId;
use onecopy_ring::record::{Frame, HEADER};
use onecopy_socket::{ReceivedFlags, RecvFlags};

/// The most bytes that a receive copies to the heap by itself: a view over the kernel, or small records by reference.
pub const MAX_HEAP: usize = 256 << 10;

/// The result of receiving a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes put into the buffer.
    pub len: usize,
    /// Bytes of the record. Those behind `len` are gone. For stream records it equals `len`.
    pub full: usize,
    /// Whether the record was cut, ended, or never came.
    pub flags: ReceivedFlags,
}

impl Received {
    #[doc(hidden)]
    pub fn end() -> Received {
        Received { flags: ReceivedFlags::END, ..Received::default() }
    }

    /// Whether there is no record, since the peer sends nothing any more.
    pub fn is_end(&self) -> bool {
        self.flags.contains(ReceivedFlags::END)
    }

    /// Returns what a receive returns that returns a number: the bytes received, or with [`RecvFlags::TRUNC`] the
    /// length of the record.
    #[doc(hidden)]
    pub fn returned(&self, flags: RecvFlags) -> usize {
        if flags.contains(RecvFlags::TRUNC) { self.full } else { self.len }
    }

    /// The result for an atomic record of `full` bytes, of which `len` had room.
    #[inline]
    #[doc(hidden)]
    pub fn atomic(len: usize, full: usize) -> Received {
        let flags = if full > len { ReceivedFlags::TRUNC } else { ReceivedFlags::empty() };
        Received { len, full, flags }
    }
}

/// What is left of a frame of which a part was received.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    pub(super) left: usize,
    /// Bytes behind it, up to the next frame.
    pub(super) padding: usize,
    pub(super) end: bool,
}

impl Rest {
    pub fn of(frame: Frame, capacity: usize) -> Rest {
        Rest { left: frame.len, padding: frame.size(capacity) - HEADER - frame.len, end: frame.end }
    }

    /// Writes it as words for other processes. They are never all zeroes.
    pub fn words(&self) -> [u64; 3] {
        [self.left as u64, self.padding as u64, 2 | u64::from(self.end)]
    }

    /// Reads it from words that another process wrote.
    pub fn of_words([left, padding, end]: [u64; 3]) -> Rest {
        let size = |word| usize::try_from(word).unwrap_or(usize::MAX);
        Rest { left: size(left), padding: size(padding), end: end & 1 != 0 }
    }

    /// Returns how many bytes of the ring it takes.
    pub fn size(&self) -> usize {
        self.left.saturating_add(self.padding)
    }
}

/// What a view shows: bytes that were taken from the front of what there is to receive.
pub enum Taken {
    /// They lie where the peer wrote them, until `id` is given back.
    Ring { ring: Ring, id: BorrowId, offset: usize, len: usize },
    /// They are a copy.
    Heap(Vec<u8>),
}
