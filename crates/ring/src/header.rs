//! The page that both sides write.

use crate::lend::LendLine;
use crate::marks::{Entry, MarkQueue};
use onecopy_sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of the header. It is only as large as needed, so that the first bytes sent are in its page. A page
/// that is touched for the first time costs each side a fault, and the machine a page of memory.
pub const HEADER_LEN: usize = 2560;
/// The place of a ring in its memfd is a multiple of this.
pub const PAGE: usize = 4096;

/// A value that has its own cache line, and the next line too: x86 prefetches lines in pairs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Line<T>(pub T);

/// The shared page.
///
/// Most lines have one writer. A few words are written by the other side, but only when somebody goes to
/// sleep, is woken, or leaves. Each of these words is in a line that its reader looks at anyway. So a send
/// that finds the receiver awake touches one shared line besides its data, and so does a receive.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Header {
    /// The line that the sender writes and looks at on each send.
    pub writer: Line<WriterLine>,
    /// The line that the receiver writes and looks at on each receive.
    pub reader: Line<ReaderLine>,
    /// The line that the receiver writes when it makes the ring and when it leaves. It stays in both caches.
    pub info: Line<InfoLine>,
    /// The pages that come back from the receiver of references.
    pub lend: Line<LendLine>,
    /// What the stream carries besides bytes.
    pub marks: MarkQueue,
}

const _: () = assert!(std::mem::size_of::<Header>() == HEADER_LEN || cfg!(loom));

/// What the sender tells, and what a send must know.
#[derive(Debug, Default)]
#[repr(C)]
pub struct WriterLine {
    /// Bytes published since the ring began.
    pub head: AtomicU64,
    /// 0: the sender still sends over the kernel socket. n + 1: the first n bytes of the stream came over the
    /// kernel socket, and all later ones come through the ring.
    pub switch_at: AtomicU64,
    /// [`crate::doorbell::ARMED`] or [`crate::doorbell::RUNG`]; written by both.
    pub armed: AtomicU32,
    /// The lower half of the count of the mark in `latest`. It is stored before that mark's words, and
    /// `marks` is stored after them.
    pub latest_is: AtomicU32,
    /// Marks laid since the ring began.
    pub marks: AtomicU64,
    /// A copy of the last mark that was laid. A receiver that waits for a mark gets it together with `head`,
    /// in one line.
    pub latest: Entry,
}

#[cfg(not(loom))]
const _: () = assert!(std::mem::size_of::<WriterLine>() == 64);

/// What the receiver tells, and what a receive must know.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ReaderLine {
    /// Bytes given back since the ring began: the sender may overwrite everything before this position.
    pub tail: AtomicU64,
    /// Bytes of room that the parked sender waits for. Written by the sender.
    pub wanted: AtomicU64,
    /// [`crate::doorbell::FREE`], [`crate::doorbell::PARKING`] or [`crate::doorbell::PARKED`]; written by
    /// both.
    pub parked: AtomicU32,
    /// Bytes of the parked filler. Written by the sender.
    pub filler: AtomicU32,
    /// Channels for descriptors and credentials that the sender has sent over the control socket. Written by
    /// the sender. It makes a new channel where the last one was lost with the process that had it.
    pub channels: AtomicU32,
    /// How many of the published bytes the receiver had received when it armed. A doorbell is for what comes
    /// after them.
    pub armed_at: AtomicU64,
}

/// What the ring is, for a person with a debugger, and whether the receiver still receives from it.
#[derive(Debug, Default)]
#[repr(C)]
pub struct InfoLine {
    /// "ONECOPY1" in ASCII, little-endian.
    pub magic: AtomicU64,
    /// Bytes of data room.
    pub capacity: AtomicU64,
    /// Bytes of the sender's pools that the receiver maps. The sender sends nothing by reference beyond that.
    pub max_shared: AtomicU64,
    /// [`crate::memory::SHUT`] once the receiver has shut its receiving side down, [`crate::memory::CLOSES`] once it is about to
    /// close; and sends ask the kernel. Each send looks here before it copies. On the writer's line, which a spinning receiver
    /// has just pulled away, it would have to wait.
    pub shut: AtomicU32,
    /// 0: the receiver does not ask for the sender's identity. Any other value: it does. When the value
    /// changes, the receiver asks again, and the sender sends its identity before its next bytes.
    pub asks_identity: AtomicU32,
    /// The connection that the ring is for, where it was made with another ring
    /// ([`crate::memory::Ring::pair`]).
    pub nonce: [AtomicU64; 2],
    /// In a ring that its sender made: [`crate::memory::JOINED`] once the receiver has the ring and will look
    /// for bytes in it.
    pub joined: AtomicU32,
    /// In the ring back to a datagram sender with a lane: 1 once the sender has a name that its receiver is to
    /// learn before the next datagram.
    pub renamed: AtomicU32,
    /// Bytes of data room that a side wants in a ring that it did not make: [`crate::memory::TOO_SMALL`].
    pub wanted: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(std::mem::size_of::<InfoLine>() == 64);
