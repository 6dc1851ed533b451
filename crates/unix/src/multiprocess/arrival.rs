//! Where an end arrives that another process has passed on, or shares.

use crate::config::Config;
use crate::connection::Connection;
use crate::core::kind::Kind;
use crate::multiprocess::refusal::plain;
use crate::multiprocess::{share, transfer};
use onecopy_socket::Result;
use rustix::fd::OwnedFd;
use rustix::io::FdFlags;
use std::sync::Arc;

/// Goes on with an end that another process has passed on, or becomes one more member of those that hold it.
///
/// # Errors
///
/// Those of [`crate::Stream::from_fds`]; the descriptors are closed.
pub fn take_up(fds: Vec<OwnedFd>, kind: Kind, config: &Config) -> Result<Arc<Connection>> {
    for fd in &fds {
        // Descriptors that come across exec have the flag off.
        rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC).map_err(plain)?;
    }
    match <[OwnedFd; 1]>::try_from(fds) {
        Ok([token]) => share::join_in(&token, kind, config),
        Err(fds) => transfer::go_on(fds, kind, config),
    }
}

/// Implements arriving for a socket, by its `of`.
macro_rules! arriving_methods {
    ($socket:ident) => {
        impl $socket {
            /// Goes on with a socket that another process has let go of by [`into_fds`](Self::into_fds), or
            /// uses one that it shares by [`share_fds`](Self::share_fds).
            ///
            /// # Errors
            ///
            /// Those of [`from_fds_with`](Self::from_fds_with).
            pub fn from_fds(fds: Vec<rustix::fd::OwnedFd>) -> onecopy_socket::Result<$socket> {
                <$socket>::from_fds_with(fds, &crate::config::Config::default())
            }

            /// Does what [`from_fds`](Self::from_fds) does, with `config`. Its sizes of buffers and its kind
            /// of records have no effect here: the socket keeps its own. Without
            /// [`Config::passable`](crate::Config::passable) it cannot be passed on again.
            ///
            /// Nobody who sends descriptors need be trusted. This checks what they are, and reads what they
            /// lead to as it reads a peer's memory. A process that has kept copies of them can break this
            /// connection or write into it, and nothing else. This sets close-on-exec on all of them.
            ///
            /// # Errors
            ///
            /// The descriptors are closed then, and what was shared must be shared anew.
            ///
            /// - EINVAL: these are not what `into_fds` gave, or not all of it, or in another order.
            /// - EALREADY: the socket was taken up before, or this process has the socket that is shared.
            /// - EMSGSIZE: a buffer is larger than [`Config::max_ring`](crate::Config::max_ring).
            /// - EMFILE, ENOMEM.
            pub fn from_fds_with(
                fds: Vec<rustix::fd::OwnedFd>,
                config: &crate::config::Config,
            ) -> onecopy_socket::Result<$socket> {
                Ok(<$socket>::of(crate::multiprocess::arrival::take_up(fds, Kind::$socket, config)?))
            }
        }
    };
}
pub(crate) use arriving_methods;
