//! Connecting without a thread that waits.

use crate::connection::Connection;
use crate::connection::open::Connecting;
use onecopy_socket::{Error, Op, Result};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;

/// The pause after the first try that found the listener's backlog full, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(32);

/// Connects to a listener, and waits for room in its backlog.
///
/// connect(2) on a unix socket either waits in the kernel, or says EAGAIN, and poll(2) never tells of room
/// there. A thread that waits in the kernel could not be called back: it would connect after its future is
/// dropped, and hold up the end of the runtime. So this tries again after a pause, which grows.
pub async fn connect(mut connecting: Connecting) -> Result<Arc<Connection>> {
    connecting.set_nonblocking()?;
    let mut pause = FIRST_PAUSE;
    loop {
        match connecting.attempt() {
            Err(error) if error.would_block() => tokio::time::sleep(pause).await,
            done => break done?,
        }
        pause = LONGEST_PAUSE.min(pause * 2);
    }
    connecting.finish()
}

/// Returns the error of a connection whose listener went away before it accepted.
pub fn given_up(pending: Error) -> Error {
    let errno = Errno::from_raw_os_error(pending.raw_os_error());
    Error::new(Op::Connect, errno)
        .because("the listener was closed before it accepted; is the server running?")
}
