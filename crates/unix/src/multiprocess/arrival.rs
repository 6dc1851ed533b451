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
