//! The page that both sides write.

use crate::lend::LendLine;
use crate::marks::{Entry, MarkQueue};
use onecopy_sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of the header: no more than it takes, so that what is sent first lies in its page. (A page that is touched for the first time costs
/// each side a fault, and the machine the page.)
pub const HEADER_LEN: usize = 2560;
/// Where a ring begins in its memory: a multiple of this.
pub const PAGE: usize = 4096;

/// One cache line of its own, and the next one too: x86 prefetches lines in pairs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Line<T>(pub T);

/// The shared page. Each line mostly has one writer; the few words that the other side writes change only when
/// somebody goes to sleep, is woken, or leaves, and lie where the side that reads them looks anyway: a send that
/// finds the receiver awake touches one shared line beside its data, and so does a receive.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Header {
    /// What the sender writes, and looks at on each send.
    pub writer: Line<WriterLine>,
    /// What the receiver writes, and looks at on each receive.
    pub reader: Line<ReaderLine>,
    /// Written by the receiver, once when it makes the ring and once when it leaves: it stays in the caches of both.
    pub info: Line<InfoLine>,
    /// Pages that come back from who received them by reference.
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
    /// 0: the sender still sends over the kernel socket. n + 1: the first n bytes of the stream (after the
    /// hello, where there was one) came over the kernel socket, all later ones through the ring.
    pub switch_at: AtomicU64,
    /// [`crate::doorbell::ARMED`] or [`crate::doorbell::RUNG`]; written by both.
    pub armed: AtomicU32,
    /// Whose words lie in `latest`: the lower half of that mark's count, stored before them, as `marks` is after them.
    pub latest_is: AtomicU32,
    /// Marks laid since the ring began.
    pub marks: AtomicU64,
    /// The last mark that was laid, once more: a receiver that waits for one gets it with `head`, in one line.
    pub latest: Entry,
}

#[cfg(not(loom))]
const _: () = assert!(std::mem::size_of::<WriterLine>() == 64);

/// What the receiver tells, and what a receive must know.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ReaderLine {
    /// Bytes given back since the ring began: the sender may overwrite what lies before.
    pub tail: AtomicU64,
    /// Written by the sender. Bytes of room that it waits for, parked.
    pub wanted: AtomicU64,
    /// [`crate::doorbell::FREE`], [`crate::doorbell::PARKING`] or [`crate::doorbell::PARKED`]; written by both.
    pub parked: AtomicU32,
    /// Written by the sender. Bytes of the filler that is parked.
    pub filler: AtomicU32,
    /// Written by the sender. Channels for descriptors and credentials that it has sent over the control socket: it makes a new
    /// one where the last has gone with who had it.
    pub channels: AtomicU32,
    /// What was received when the receiver armed, of what was published: a doorbell is for what comes behind it.
    pub armed_at: AtomicU64,
}

/// What the ring is, for a person with a debugger, and whether it is still received from.
#[derive(Debug, Default)]
#[repr(C)]
pub struct InfoLine {
    /// "ONECOPY1" in ASCII, little-endian.
    pub magic: AtomicU64,
    /// Bytes of data room.
    pub capacity: AtomicU64,
    /// Bytes of the sender's pools that the receiver maps: more than that is not sent by reference.
    pub max_shared: AtomicU64,
    /// 1: the receiver has shut its receiving side down, or is gone; sends ask the kernel. Each send looks here before
    /// it copies: on the writer's line, which a spinning receiver has just pulled away, the look would wait for it.
    pub shut: AtomicU32,
    /// 0: the receiver does not ask who sends. Else it does, and a change asks again: sends say it before their bytes.
    pub asks_identity: AtomicU32,
    /// Which connection it is for, where it was made with another ring ([`crate::memory::Ring::pair`]).
    pub nonce: [AtomicU64; 2],
    /// Of a ring that its sender has made: [`crate::memory::JOINED`] once the receiver has it, and will look for bytes in it.
    pub joined: AtomicU32,
    /// Bytes of data room that a receiver or a sender wants who did not make it: [`crate::memory::TOO_SMALL`].
    pub wanted: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(std::mem::size_of::<InfoLine>() == 64);
