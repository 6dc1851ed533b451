//! Flags of one call, and of one record.

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
        /// A record ends with this send (MSG_EOR). Only stream records need it (`Records::Stream` of unix sockets): atomic
        /// ones end with each send, and streams have none.
        const EOR = 16;
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
        /// Return the length of the record, not of what fitted into the buffer (MSG_TRUNC). Streams ignore it.
        const TRUNC = 8;
    }
}

bitflags::bitflags! {
    /// What a receive of a record says beside its length (msg_flags of recvmsg(2)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ReceivedFlags: u32 {
        /// The record was longer than the buffer, and its rest is gone (MSG_TRUNC).
        const TRUNC = 1;
        /// A record ends here (MSG_EOR; of stream records only).
        const EOR = 2;
        /// No record at all: the peer sends nothing any more. (Over the kernel, records of no bytes that are the last before
        /// the end look like the end.)
        const END = 4;
        /// Descriptors came with it that are gone: there was no place for them, or this process could open no more
        /// (MSG_CTRUNC).
        const CTRUNC = 8;
    }
}
