//! TCP: streams and listeners, in the shapes of std's.
//!
//! | module | what |
//! |---|---|
//! | `stream` | [`Stream`]: `options` has what is set of it, `traits` what std's traits make of it, `zerocopy` sends whose buffer comes back |
//! | `listener` | [`Listener`] |
//! | `mio`, `tokio` | the same for runtimes, with the features of these names |
//! | `slot` | [`Slot`]: pages to be written, and sent by reference |

mod listener;
#[cfg(feature = "mio")]
pub mod mio;
mod slot;
mod stream;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use crate::view::View;
pub use listener::{Incoming, Listener};
pub use onecopy_inet::tcp::congestion::Algorithm;
pub use onecopy_inet::tcp::{Info, Settings, State};
pub use slot::Slot;
pub use stream::Stream;

onecopy_socket::byte_stream!(Stream, Listener, View, Slot, std::net::SocketAddr);
