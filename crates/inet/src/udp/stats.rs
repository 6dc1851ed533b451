//! What a stack's UDP counts.

use onecopy_link::counters;

counters! {
    /// Counters of all sockets together, in datagrams: a train of 30 counts 30. The names in brackets are the kernel's (`nstat`), where it has
    /// one. What never came here, since its header or its checksum is wrong, is in [`ip::Stats`](crate::ip::Stats).
    ///
    /// `arrived` and `copies` are together what was `queued`, and what was dropped, by its reasons ([`Stats::dropped`]); of what was
    /// queued all was `received`, or `unread`, or waits.
    pub struct Stats {
        /// Came.
        arrived,
        /// Came to everybody, and were given to one more socket.
        copies,
        /// Were given to a socket (UdpInDatagrams).
        queued,
        /// Were fetched by a program.
        received,
        /// Were not fetched when the socket was closed.
        unread,
        /// Dropped: for a port that nobody has (UdpNoPorts). The sender is told, now and then.
        no_port,
        /// Dropped: to everybody, and nobody listens.
        unheard,
        /// Dropped: trains that cannot be (UdpInErrors). Such a train counts as one.
        malformed,
        /// Dropped: the socket's receive buffer is full (UdpRcvbufErrors).
        buffer_full,
        /// Dropped: all sockets together have as much as they may (UdpMemErrors).
        no_memory,
        /// Were sent (UdpOutDatagrams).
        sent,
        /// Calls of send that were refused, since too much waits to leave (UdpSndbufErrors).
        no_room,
        /// Calls of send that were refused for another reason, or whose bytes [`ip`](crate::ip) dropped.
        refused,
        /// Complaints of routers and peers that a socket was told of.
        complaints,
        /// Complaints that nobody was told of: not of a connected socket, or of what may pass.
        complaints_ignored,
    }
}

impl Stats {
    /// Datagrams that came and were dropped.
    pub fn dropped(&self) -> u64 {
        self.no_port + self.unheard + self.malformed + self.buffer_full + self.no_memory
    }
}
