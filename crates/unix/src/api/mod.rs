//! The public types that applications hold. They are thin: the work is done in `connection/`.

#[macro_use]
pub mod convert;
pub mod handle;
pub mod listener;
#[macro_use]
pub mod methods;
#[cfg(feature = "mio")]
#[macro_use]
pub mod mio;
pub mod seqpacket;
pub mod slot;
pub mod stream;
#[cfg(feature = "tokio")]
pub mod tokio;

/// For code that takes streams of any family.
mod any {
    use crate::{Listener, Slot, SocketAddr, Stream, View};

    onecopy_socket::byte_stream!(Stream, Listener, View, Slot, SocketAddr);
}
