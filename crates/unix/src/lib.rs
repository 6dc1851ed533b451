//! Unix sockets over shared memory.
#![forbid(unsafe_code)]

#[macro_use]
#[doc(hidden)]
pub mod failpoint;
// The hidden modules are for the crates of this workspace that build on a connection. They carry no promise.
mod addr;
#[doc(hidden)]
pub mod ancillary;
mod api;
mod byref;
mod config;
#[doc(hidden)]
pub mod connection;
#[doc(hidden)]
pub mod control;
#[doc(hidden)]
pub mod core;
#[doc(hidden)]
pub mod doorbell;
#[doc(hidden)]
pub mod generation;
#[doc(hidden)]
pub use api::handle;
#[doc(hidden)]
pub mod handshake;
#[doc(hidden)]
pub mod members;
#[doc(hidden)]
pub mod multiprocess;
#[cfg(test)]
mod tests;

#[cfg(any(feature = "mio", feature = "tokio"))]
#[doc(hidden)]
pub use addr::named;
pub use addr::{SocketAddr, ToSocketAddr};
pub use ancillary::attached::{Ancillary, SendAncillary};
pub use api::listener::{Incoming, Listener, SeqListener};
#[cfg(feature = "mio")]
pub use api::mio;
pub use api::seqpacket::SeqPacket;
pub use api::slot::Slot;
#[doc(hidden)]
pub use api::slot::{Commit, Memory};
pub use api::stream::Stream;
#[cfg(feature = "tokio")]
pub use api::tokio;
pub use byref::pool::{Loan, SharedPool};
pub use config::{Config, Credentials, Records};
pub use connection::look::Look;
pub use connection::received::Received;
pub use connection::send_references::NotSent;
#[doc(hidden)]
pub use connection::view::Owner;
pub use connection::view::View;
pub use connection::window::Window;
pub use handshake::invitation::is_invitation;
pub use multiprocess::transfer::NotPassed;
pub use onecopy_chain::notify::zerocopy::Small;
pub use onecopy_copy::{Block, Blocks};
pub use onecopy_socket::{
    Carrier, Error, Learned, Op, Path, Policy, Reader, ReceivedFlags, RecvFlags, Result, SendFlags, Stats,
    Transport, Wait, registry,
};
