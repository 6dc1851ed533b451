//! Flags of one call.

bitflags::bitflags! {
    /// Flags of one send (send(2), and NTCOPY as the MSG_NTCOPY patches had it).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// Copy with non-temporal stores, whatever the socket's policy says.
        const NTCOPY = 1;
        /// Do not wait: send what there is room for, or fail with EAGAIN.
        const DONTWAIT = 2;
        /// No SIGPIPE when the peer is gone, only EPIPE.
        const NOSIGNAL = 4;
        /// More will follow. It never delays the peer: what is sent is published at once.
        const MORE = 8;
    }
}

bitflags::bitflags! {
    /// Flags of one receive (recv(2)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RecvFlags: u32 {
        /// Copy without taking.
        const PEEK = 1;
        /// Wait until the buffer is full, the stream ends, or a signal or timeout comes.
        const WAITALL = 2;
        /// Do not wait: take what is there, or fail with EAGAIN.
        const DONTWAIT = 4;
    }
}
