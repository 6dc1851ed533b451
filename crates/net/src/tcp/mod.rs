//! TCP: streams and listeners, in the shapes of std's.
//!
//! | module | what |
//! |---|---|
//! | `endpoint` | the seam below both: a stack of the program's own, or the kernel |
//! | `socket` | what both are on a stack of the program's own |
//! | `stream` | [`Stream`]: `options` has what is set of it, `traits` what std's traits make of it, `zerocopy` sends whose buffer comes back |
//! | `frags` | receiving by reference there |
//! | `listener` | [`Listener`] |
//! | `listeners` | what it is on a stack of several shards |
//! | `mio`, `tokio` | the same for runtimes, with the features of these names |
//! | `slot` | [`Slot`]: pages to be written, and sent by reference |

mod endpoint;
mod frags;
mod listener;
mod listeners;
#[cfg(feature = "mio")]
pub mod mio;
mod slot;
pub(crate) mod socket;
mod stream;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use crate::view::View;
pub(crate) use endpoint::{Connection, Endpoint, Listening, Options, Taking};
pub use listener::{Incoming, Listener};
pub use onecopy_inet::tcp::congestion::Algorithm;
pub use onecopy_inet::tcp::{Info, Settings, State};
pub use slot::Slot;
pub use stream::Stream;

onecopy_socket::byte_stream!(Stream, Listener, View, Slot, std::net::SocketAddr);
