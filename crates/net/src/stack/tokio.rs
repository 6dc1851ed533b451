//! A stack that tokio's reactor drives.

use super::Stack;
use onecopy_socket::tokio::refused;
use onecopy_socket::{Error, Op, Result};
use std::convert::Infallible;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::task::yield_now;

impl Stack {
    /// Drives the stack from the tokio runtime that polls this, for as long as it is polled, with [`Driver::Caller`](crate::Driver::Caller): what
    /// [`Stack::poll_fd`] and [`Stack::drive`] are for a loop of the program's own. No thread of the stack's has to wake the runtime for each
    /// packet then: QUIC by quinn over a TAP is 1.4 times as fast on a machine tried. Spawn it beside the tasks that have the sockets:
    ///
    /// ```no_run
    /// # async fn f() -> onecopy_net::Result<()> {
    /// use onecopy_net::{Driver, Stack};
    /// let stack = Stack::builder().tap("onecopy0").address("10.0.0.2/24").driver(Driver::Caller).build().unwrap();
    /// let driving = tokio::spawn({
    ///     let stack = stack.clone();
    ///     async move { stack.drive_async().await }
    /// });
    /// // ... sockets of `onecopy_net::tcp::tokio` and `onecopy_net::udp::tokio` ...
    /// driving.abort(); // it holds the stack
    /// # Ok(()) }
    /// ```
    ///
    /// A task that keeps its thread busy for long keeps the stack from its timers, too, where the runtime has no other thread.
    ///
    /// # Errors
    ///
    /// It ends by an error alone: EOPNOTSUPP with [`Driver::Thread`](crate::Driver::Thread), of a stack with several shards, and where the kernel carries its
    /// bytes; EMFILE; ENOTCONN once the link is gone; ECANCELED where the runtime shuts down.
    ///
    /// # Panics
    ///
    /// Without a runtime, or if its I/O is not enabled.
    pub async fn drive_async(&self) -> Result<Infallible> {
        let fd = self.poll_fd()?.try_clone_to_owned().map_err(refused(Op::Wait))?;
        #[expect(
            deprecated,
            reason = "`new` is deprecated for types whose descriptor may change; this one is owned for life"
        )]
        let fd = AsyncFd::new(fd).map_err(refused(Op::Wait))?;
        loop {
            let mut ready = fd.readable().await.map_err(refused(Op::Wait))?;
            // What came is taken while it is in the cache: others have their turns after each batch.
            while self.drive(Duration::ZERO)? {
                yield_now().await;
            }
            if !self.is_up() {
                return Err(Error::new(Op::Wait, rustix::io::Errno::NOTCONN).because("the link is gone"));
            }
            ready.clear_ready();
        }
    }
}
