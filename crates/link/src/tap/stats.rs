//! What a TAP counts.

use crate::counters;

counters! {
    /// What became of packets. Each that is dropped is counted once, by the reason.
    pub struct Stats {
        /// Packets that were received.
        received,
        /// Their bytes.
        received_bytes,
        /// Of them, super-segments.
        received_trains,
        /// Of them, those whose headers were shorter than those of the one before, so that some of the payload was moved by the CPU.
        moved,
        /// The bytes of payload that were moved so.
        moved_bytes,
        /// Received packets whose payload was put into a device's memory and did not belong there: another flow's, or of other headers than those of
        /// the one before.
        misplaced,
        /// The bytes of payload that were brought to the host's memory so, by a copy of the device's.
        misplaced_bytes,
        /// Packets that the kernel took; those of a super-segment that was cut here count each.
        transmitted,
        /// Their bytes.
        transmitted_bytes,
        /// Of them, super-segments.
        transmitted_trains,

        /// Bytes of payload that the kernel took from a device's memory itself.
        gathered_bytes,
        /// Calls by which it was asked to, of one packet each or several.
        gathers,
        /// Bytes of payload that were brought from a device's memory to the host's, so that the kernel could gather them.
        staged_bytes,
        /// Nanoseconds that the thread which transmits spent on these copies.
        staging_ns,

        /// Times that the kernel took no more, and a packet had to wait until the descriptor was writable (EAGAIN).
        waited,
        /// Super-segments that were cut here, as the kernel refused one of that kind before.
        cut,
        /// Checksums that were finished here, as the kernel refused to do it.
        finished,
        /// Packets that the kernel refused (EINVAL) and took when they were cut, or finished: each ended an offload.
        offload_refused,

        /// Received, and dropped: there was no page to put it into.
        no_page,
        /// Received, and dropped: longer than the device's MTU was when it was opened.
        too_long,
        /// Received, and dropped: its checksum is to be put outside of the headers, or it is a super-segment of a kind that nobody asked for.
        bad_header,
        /// Not transmitted: not among the [`Capabilities`](crate::Capabilities), or its parts do not fit together.
        not_taken,
        /// Not transmitted: the device did not copy the payload out, or there was no page for it.
        unstaged,
        /// Not transmitted: there was no room.
        full,
        /// Not transmitted: the kernel refused it, cut and finished too (EINVAL).
        refused,
        /// Not transmitted: the interface is down (EIO).
        down,
        /// Not transmitted: the kernel has no memory (ENOMEM, ENOBUFS).
        no_memory,
        /// Not transmitted, or not received: the device is gone (EBADFD).
        gone,
        /// Not transmitted, or not received: any other error.
        failed,
    }
}
