//! Streams and listeners for tokio, with the names and the shapes of tokio's own: a program moves over by its `use` lines, `Stream` for
//! `TcpStream`, `Listener` for `TcpListener`, and says which [`Stack`](crate::Stack) they are of.
//!
//! No method awaits anything after it has moved something: every future may be dropped at any point, and has sent and received nothing then.
//! That is why a send may send a part, and says how much; to send all, use [`AsyncWriteExt::write_all`](tokio::io::AsyncWriteExt::write_all),
//! which is not cancel safe. Async methods return [`crate::Error`], which has the reason; those that tokio's callers ask for an errno (`try_`
//! and `poll_`, `AsyncRead`, `AsyncWrite`) return [`std::io::Error`]. As in tokio, what makes a socket panics outside of a runtime with I/O.
//!
//! The stack is driven by a thread of its own ([`Driver::Thread`](crate::Driver::Thread)), as no call here waits.

mod listener;
mod stream;

pub use listener::Listener;
pub use stream::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, Stream, WriteHalf};
