//! Which way the bytes of a socket take.

/// Which way the bytes may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Shared memory where the peer can, else the kernel.
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
}

/// Which way the bytes of both directions take at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// What is sent.
    pub send: Carrier,
    /// What is received.
    pub receive: Carrier,
}

impl Path {
    /// Whether both directions run over shared memory.
    pub fn is_shared_memory(&self) -> bool {
        self.send == Carrier::SharedMemory && self.receive == Carrier::SharedMemory
    }
}
