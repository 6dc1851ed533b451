//! A socket layer in user space for data that is moved, not looked at.

pub use onecopy_chain as chain;
pub use onecopy_chain::notify;
pub use onecopy_copy as copy;
pub use onecopy_link as link;
pub use onecopy_pool as pool;
pub use onecopy_unix::{Policy, Reader, RecvFlags, SendFlags};

/// Unix sockets over shared memory.
pub mod unix {
    pub use onecopy_unix::*;
    pub use onecopy_unix_dgram::Datagram;

    /// Sockets and listeners for tokio.
    #[cfg(feature = "tokio")]
    pub mod tokio {
        pub use onecopy_unix::tokio::*;
        pub use onecopy_unix_dgram::tokio::*;
    }
}

/// The example in the README is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
