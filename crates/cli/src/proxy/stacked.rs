//! A connection of this program's own stack, in tokio.

use onecopy::tcp;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// What tokio watches: the descriptor that mirrors what the connection is ready for.
#[derive(Debug)]
struct Watched(tcp::Stream);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        use std::os::fd::AsFd;
        self.0.as_fd().as_raw_fd()
    }
}

/// A connection of the stack's, in tokio.
#[derive(Debug)]
pub struct Stacked(AsyncFd<Watched>);

impl Stacked {
    /// Watches `stream`, in the runtime of the calling thread.
    #[allow(
        deprecated,
        reason = "`new` is deprecated for types whose descriptor may change; ours owns one for life"
    )]
    pub fn new(stream: tcp::Stream) -> io::Result<Stacked> {
        stream.set_nonblocking(true)?;
        stream.poll_fd()?;
        Ok(Stacked(AsyncFd::new(Watched(stream))?))
    }

    /// The connection itself.
    pub fn stream(&self) -> &tcp::Stream {
        &self.0.get_ref().0
    }

    pub async fn readable(&self) -> io::Result<()> {
        self.0.readable().await.map(|mut ready| ready.retain_ready())
    }

    pub async fn writable(&self) -> io::Result<()> {
        self.0.writable().await.map(|mut ready| ready.retain_ready())
    }

    /// Calls `io`, and has the next wait be one if it says that it would block.
    pub fn try_io<R>(
        &self,
        interest: Interest,
        io: impl FnOnce(&tcp::Stream) -> io::Result<R>,
    ) -> io::Result<R> {
        self.0.try_io(interest, |watched| io(&watched.0))
    }
}
