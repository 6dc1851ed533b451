//! How long calls wait for locks that another process may keep.

use onecopy_socket::{Error, Op};
use rustix::io::Errno;
use std::time::Duration;

/// How long a call that may wait does so for a process that keeps the receiving side.
pub const STUCK: Duration = Duration::from_secs(10);

/// How long a call that may not wait does so, and a call that has something to clean up.
pub const BRIEFLY: Duration = Duration::from_millis(100);

#[cold]
pub fn stuck(op: Op) -> Error {
    Error::new(op, Errno::BUSY).because(
        "another process that shares this socket is in the middle of a receive and does not go on; is it \
         stopped? Continue or end it, and call again",
    )
}

/// How long to wait for a lock that is kept for long only during a fork.
pub const PATIENCE: Duration = Duration::from_secs(1);
