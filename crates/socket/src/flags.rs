//! Flags of one call, and of one record.

bitflags::bitflags! {
    /// Flags of one send (send(2); NTCOPY is as in the MSG_NTCOPY patches).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// Copies with non-temporal stores, whatever the socket's policy is. Copies of 256 bytes or fewer are cached all
        /// the same ([`STREAM_MIN`](onecopy_copy::STREAM_MIN)), and what goes over the kernel is copied by the kernel.
        const NTCOPY = 1;
        /// Does not wait: sends what there is room for, or fails with EAGAIN.
        const DONTWAIT = 2;
        /// Raises SIGPIPE where a stream's send fails with EPIPE, as send(2) does without MSG_NOSIGNAL. Without
        /// this flag no send raises it, as with std's sockets.
        const SIGPIPE = 4;
        /// More bytes will follow. Between unix sockets this never delays the peer: the bytes are published at once. TCP keeps what fills no segment
        /// for what follows (MSG_MORE).
        const MORE = 8;
        /// A record ends with this send (MSG_EOR). Only stream records need it (`Records::Stream` of unix
        /// sockets): atomic records end with each send, and streams have none.
        const EOR = 16;
    }
}

impl SendFlags {
    /// Returns the flags of the kernel's own send (send(2)) that mean the same, for descriptors that are not ours. It
    /// knows nothing of NTCOPY, and EOR has no meaning there.
    #[doc(hidden)]
    pub fn for_kernel(self) -> rustix::net::SendFlags {
        use rustix::net::SendFlags as Kernel;
        let mut flags = Kernel::empty();
        flags.set(Kernel::DONTWAIT, self.contains(SendFlags::DONTWAIT));
        flags.set(Kernel::MORE, self.contains(SendFlags::MORE));
        flags.set(Kernel::NOSIGNAL, !self.contains(SendFlags::SIGPIPE));
        flags
    }
}

bitflags::bitflags! {
    /// Flags of one receive (recv(2)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RecvFlags: u32 {
        /// Copies without taking.
        const PEEK = 1;
        /// Waits until the buffer is full, the stream ends, or a signal or timeout comes.
        const WAITALL = 2;
        /// Does not wait: takes what is there, or fails with EAGAIN.
        const DONTWAIT = 4;
        /// Returns the length of the record instead of the length that fitted into the buffer (MSG_TRUNC).
        /// Unix streams ignore it. TCP throws as many bytes away as the buffer would take, and says how many (tcp(7)).
        const TRUNC = 8;
    }
}

bitflags::bitflags! {
    /// What a receive of a record returns besides its length (msg_flags of recvmsg(2)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ReceivedFlags: u32 {
        /// The record was longer than the buffer, and the rest is lost (MSG_TRUNC).
        const TRUNC = 1;
        /// A record ends here (MSG_EOR; stream records only).
        const EOR = 2;
        /// There was no record: the peer sends nothing any more. Over the kernel, empty records that are the
        /// last before the end look like the end.
        const END = 4;
        /// Descriptors that came with the record are lost. There was no place for them, or this process could
        /// open no more (MSG_CTRUNC).
        const CTRUNC = 8;
    }
}
