//! TCP: streams and listeners, in the shapes of std's.
//!
//! | module | what |
//! |---|---|
//! | `stream` | [`Stream`]: `options` has what is set of it, `traits` what std's traits make of it, `zerocopy` sends whose buffer comes back |
//! | `listener` | [`Listener`] |
//! | `mio`, `tokio` | the same for runtimes, with the features of these names |
//! | `slot` | [`Slot`]: pages to be written, and sent by reference |
//!
//! An idle connection on a stack of the program's own costs at most 1 KiB of the heap an end, after traffic as well, all tables among them
//! (`crates/net/tests/idle.rs` counts, over 100,000), and a row of the registry. Its descriptor, and what sends without a copy need, are made when they are first asked
//! for. (`crates/inet/tests/idle.rs` holds inet alone to less.)

mod listener;
#[cfg(feature = "mio")]
pub mod mio;
mod slot;
mod stream;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use crate::view::View;
pub use listener::{Incoming, Listener};
pub use onecopy_inet::tcp::config::{Config, EcnUse};
pub use onecopy_inet::tcp::congestion::{Algorithm, SlowStart};
pub use onecopy_inet::tcp::{Info, Settings, State};
/// What [`Config`] says of Fast Open (RFC 7413).
pub mod fast_open {
    pub use onecopy_inet::tcp::fast_open::{Keys, Use};
}
pub use slot::Slot;
pub use stream::Stream;

onecopy_socket::byte_stream!(Stream, Listener, View, Slot, std::net::SocketAddr);
