//! Sockets and listeners for tokio.
//!
//! They have the names and the shapes of tokio's own: a program moves over by its `use` lines, `Stream` for
//! `UnixStream`, `Listener` for `UnixListener`, `Datagram` for `UnixDatagram`. What a `Stream` does besides is
//! called as in [`crate::Stream`], and takes the same arguments.
//!
//! # Cancel safety
//!
//! No method awaits anything after it has moved something. So a future that is dropped (by `select!`, by a
//! timeout) has sent nothing and received nothing, and all of them may be used in a loop of `select!`. That
//! is also why sends of streams may send a part, and say how much: to send all, use
//! [`AsyncWriteExt::write_all`](tokio::io::AsyncWriteExt::write_all), which is not cancel safe. What was
//! handed over by value, a [`Loan`](crate::Loan), goes back to its pool unsent with a future that is dropped.
//!
//! # Errors
//!
//! Async methods return [`crate::Error`], which knows why and what to do next. [`std::io::Error`] has an errno
//! or a text, not both. So where tokio's callers match on an errno (the methods `try_` and `poll_`,
//! `AsyncRead`, `AsyncWrite`), the errors have it, and no reason. For a try with a reason, give
//! [`SendFlags::DONTWAIT`](crate::SendFlags::DONTWAIT) or [`RecvFlags::DONTWAIT`](crate::RecvFlags::DONTWAIT)
//! to an async method: it returns EAGAIN at once where it would have to wait.
//!
//! # Panics
//!
//! As in tokio, what makes a socket panics outside of a runtime with I/O (`enable_io`). What has to wait where
//! no readiness tells of room needs the runtime's timer (`enable_time`), and says so.

#[macro_use]
mod methods;
mod connecting;
mod listener;
mod seqpacket;
mod socket;
mod stream;

pub use listener::{Listener, SeqListener};
pub use seqpacket::SeqPacket;
#[doc(hidden)]
pub use socket::StreamSocket;
pub use stream::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, Stream, WriteHalf};
