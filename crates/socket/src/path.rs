//! Which way the bytes of a socket take.

/// Which way the bytes may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The shortest way that there is. Unix sockets: shared memory if the peer can use it, else the kernel. A stack: the link that it was given,
    /// else the kernel's TCP and UDP.
    #[default]
    Auto,
    /// The kernel's socket only.
    Kernel,
}

/// Which way the bytes of one direction take at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The kernel's socket.
    Kernel,
    /// The ring in shared memory.
    SharedMemory,
    /// A stack of protocols in the program's own process, and its link.
    Stack,
}

/// Which way the bytes of both directions take at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The way of the bytes that this socket sends.
    pub send: Carrier,
    /// The way of the bytes that this socket receives.
    pub receive: Carrier,
}

impl Path {
    /// Returns whether both directions run over shared memory.
    pub fn is_shared_memory(&self) -> bool {
        self.send == Carrier::SharedMemory && self.receive == Carrier::SharedMemory
    }
}
