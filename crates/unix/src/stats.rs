//! What a socket has done, told truthfully.

/// Counters of one end since it was made. Bytes are of payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes sent, whichever way.
    pub sent: u64,
    /// Bytes received (taken, not peeked), whichever way.
    pub received: u64,
    /// Bytes that this end copied in user space, into and out of buffers of the caller.
    pub user_copied: u64,
    /// Of `user_copied`: bytes stored with non-temporal stores.
    pub user_copied_nt: u64,
    /// Bytes that the kernel copied at this end's request: over the kernel socket, pread into a slot,
    /// write from a view.
    pub kernel_copied: u64,
    /// Bells rung to wake the peer.
    pub bells: u64,
    /// Fillers parked because the ring was full.
    pub fillers: u64,
    /// Times a blocking call went to sleep.
    pub sleeps: u64,
    /// Times a blocking call spun with success.
    pub spins: u64,
    /// Lies of the peer that were caught.
    pub protocol_errors: u64,
    /// Times shared memory was wanted and refused; the kernel carried on.
    pub fallbacks: u64,
}
