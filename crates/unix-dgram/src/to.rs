//! Where a receive puts what it receives.

use onecopy_unix::connection::Connection;
use onecopy_unix::connection::received::Taken;
use std::io::IoSliceMut;
use std::sync::Weak;

/// Where a receive puts a datagram.
pub enum To<'t, 'b> {
    /// Into the caller's buffers.
    Slices(&'t mut [IoSliceMut<'b>]),
    /// Into a view of at most `max` bytes, `of` a lane or of the socket itself.
    View { max: usize, taken: Taken, of: Option<Weak<dyn AsRef<Connection> + Send + Sync>> },
}
