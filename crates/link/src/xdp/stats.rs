//! What a link over AF_XDP counts.

use crate::counters;

counters! {
    /// What became of packets. Each that is dropped is counted once, by the reason. Those that begin with `kernel_` are the kernel's own (XDP_STATISTICS), of which the
    /// link hears when it is asked.
    pub struct Stats {
        /// Packets that were received.
        received,
        /// Their bytes.
        received_bytes,
        /// Of them, those in several frames.
        received_several,
        /// Of them, those whose checksum was left unfinished by a sender on this host.
        unfinished,
        /// Packets that were given to the kernel to send.
        transmitted,
        /// Their bytes.
        transmitted_bytes,
        /// Payload bytes that were copied into frames, by the CPU and in user space.
        copied_bytes,
        /// Packets that were sent with their payload where it lay.
        by_reference,
        /// Calls by which the kernel was asked to send.
        sends,
        /// Of them, those after which some of it was left: the device, or the socket's send buffer (SO_SNDBUF), took no more.
        waited,
        /// Of them, those that found the interface down (ENETDOWN); what was to be sent waits.
        down,
        /// Of them, those that failed otherwise.
        failed,
        /// Calls by which a driver that slept was asked to look for frames.
        wakes,

        /// Times that no frame was left to receive into: all are with those who have received them.
        starved,
        /// Received packets whose payload was copied to other pages since then, so that their frames could be received into again.
        copied_out,
        /// The bytes that were copied so, by the CPU and in user space.
        copied_out_bytes,
        /// Received, and dropped: there was no such page either, and the last frames are for acknowledgements.
        no_frame,
        /// Received, and dropped: UDP of more bytes than the MTU, which are datagrams that a sender on this host left to the device to cut apart (UDP_SEGMENT), of a length that
        /// nobody tells. Have it do that itself: `ethtool -K PEER tx-udp-segmentation off`, on the veth's other end.
        trains,
        /// Received, and dropped: the kernel named a frame that it was not given, or bytes outside of it.
        foreign,
        /// Times that a ring's words said what cannot be.
        astray,
        /// Not transmitted: not among the [`Capabilities`](crate::Capabilities), or its parts do not fit together.
        not_taken,
        /// Not transmitted: there was no room.
        full,

        /// Received by the interface, and dropped by the kernel: there was no memory, or the packet was too long for a frame (rx_dropped).
        kernel_dropped,
        /// Likewise: nobody had taken what was received before (rx_ring_full).
        kernel_ring_full,
        /// Likewise: there was no frame to receive into (rx_fill_ring_empty_descs).
        kernel_starved,
        /// Frames to receive into that were refused (rx_invalid_descs).
        kernel_bad_frames,
        /// Packets to send that were refused (tx_invalid_descs).
        kernel_bad_packets,
    }
}
