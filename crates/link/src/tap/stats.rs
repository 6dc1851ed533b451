//! What a TAP counts.

/// What became of packets. Each that is dropped is counted once, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Packets that were received.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Of them, super-segments.
    pub received_trains: u64,
    /// Of them, those whose headers were shorter than those of the one before, so that some of the payload was moved by the CPU.
    pub moved: u64,
    /// The bytes of payload that were moved so.
    pub moved_bytes: u64,
    /// Packets that the kernel took; those of a super-segment that was cut here count each.
    pub transmitted: u64,
    /// Their bytes.
    pub transmitted_bytes: u64,
    /// Of them, super-segments.
    pub transmitted_trains: u64,

    /// Times that the kernel took no more, and a packet had to wait until the descriptor was writable (EAGAIN).
    pub waited: u64,
    /// Super-segments that were cut here, as the kernel refused one of that kind before.
    pub cut: u64,
    /// Checksums that were finished here, as the kernel refused to do it.
    pub finished: u64,
    /// Packets that the kernel refused (EINVAL) and took when they were cut, or finished: each ended an offload.
    pub offload_refused: u64,

    /// Received, and dropped: there was no page to put it into.
    pub no_page: u64,
    /// Received, and dropped: longer than the device's MTU was when it was opened.
    pub too_long: u64,
    /// Received, and dropped: its checksum is to be put outside of the headers, or it is a super-segment of a kind that nobody asked for.
    pub bad_header: u64,
    /// Not transmitted: not among the [`Capabilities`](crate::Capabilities), or its parts do not fit together.
    pub not_taken: u64,
    /// Not transmitted: there was no room.
    pub full: u64,
    /// Not transmitted: the kernel refused it, cut and finished too (EINVAL).
    pub refused: u64,
    /// Not transmitted: the interface is down (EIO).
    pub down: u64,
    /// Not transmitted: the kernel has no memory (ENOMEM, ENOBUFS).
    pub no_memory: u64,
    /// Not transmitted, or not received: the device is gone (EBADFD).
    pub gone: u64,
    /// Not transmitted, or not received: any other error.
    pub failed: u64,
}
