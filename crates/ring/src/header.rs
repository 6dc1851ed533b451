//! The page that both sides write.

use onecopy_sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of the header: one page, so that the data begins page-aligned.
pub const HEADER_LEN: usize = 4096;

/// One cache line of its own, and the next one too: x86 prefetches lines in pairs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Line<T>(pub T);

/// The shared page. A line has one writer, except for the bells.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Header {
    /// Written by the sender only.
    pub writer: Line<WriterLine>,
    /// Written by the receiver only.
    pub reader: Line<ReaderLine>,
    /// Written by both; changes only when somebody goes to sleep or is woken.
    pub bells: Line<BellLine>,
    /// Written once, by the receiver who made the ring; read by operators' tools, never by the protocol.
    pub info: Line<InfoLine>,
}

const _: () = assert!(std::mem::size_of::<Header>() <= HEADER_LEN || cfg!(loom));

/// What the sender tells.
#[derive(Debug, Default)]
#[repr(C)]
pub struct WriterLine {
    /// Bytes published since the ring began.
    pub head: AtomicU64,
    /// 0: the sender still sends over the kernel socket. n + 1: the first n bytes of the stream (after the
    /// hello, where there was one) came over the kernel socket, all later ones through the ring.
    pub switch_at: AtomicU64,
}

/// What the receiver tells.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ReaderLine {
    /// Bytes given back since the ring began: the sender may overwrite what lies before.
    pub tail: AtomicU64,
    /// 1: the receiver has shut its receiving side down; the sender's sends fail with EPIPE.
    pub shut: AtomicU32,
}

/// Who must be woken; see [`crate::bell`].
#[derive(Debug, Default)]
#[repr(C)]
pub struct BellLine {
    /// [`crate::bell::ARMED`] or [`crate::bell::RUNG`].
    pub armed: AtomicU32,
    /// [`crate::bell::FREE`], [`crate::bell::PARKING`] or [`crate::bell::PARKED`].
    pub parked: AtomicU32,
    /// Bytes of the filler that is parked.
    pub filler: AtomicU32,
    /// Bytes of room that the parked sender waits for.
    pub wanted: AtomicU64,
}

/// What the ring is, for `onecopy ss` and a person with a debugger.
#[derive(Debug, Default)]
#[repr(C)]
pub struct InfoLine {
    /// "ONECOPY1" in ASCII, little-endian.
    pub magic: AtomicU64,
    /// Bytes of data room.
    pub capacity: AtomicU64,
}
