//! The descriptors and identities that travel with a send, and those that come with a receive.

use crate::ancillary::channel::{Fds, MAX_FDS};
use crate::config::Credentials;
use crate::connection::core::Core;
use onecopy_ring::record::{Identity, With};
use onecopy_socket::{Error, Op, Result};
use onecopy_sys::scm::Ucred;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// The descriptors and credentials that came with a receive.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Ancillary {
    /// Descriptors, with close-on-exec set.
    pub fds: Vec<OwnedFd>,
    /// Some descriptors were lost, because this process could open no more (MSG_CTRUNC).
    pub truncated: bool,
    /// The sender's process, user and group (SCM_CREDENTIALS), if
    /// [`Stream::set_pass_credentials`](crate::Stream::set_pass_credentials) or its like asks for them. That
    /// method says how far they can be relied on.
    pub credentials: Option<Credentials>,
    /// The sender's process (SCM_PIDFD), if [`Stream::set_pass_pidfd`](crate::Stream::set_pass_pidfd) or its
    /// like asks for it and the kernel gives it.
    pub pidfd: Option<OwnedFd>,
}

impl Ancillary {
    #[doc(hidden)]
    pub fn of(fds: Fds, core: &Core) -> Ancillary {
        let who = fds.who.filter(|_| core.passes_credentials()).map(Credentials::from);
        Ancillary { fds: fds.list, truncated: fds.truncated, credentials: who, pidfd: fds.pidfd }
    }
}

/// The descriptors and the identity that a send takes along.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attached<'a> {
    pub fds: &'a [BorrowedFd<'a>],
    /// The identity that the sender claims.
    pub who: Option<Ucred>,
}

impl<'a> Attached<'a> {
    /// Takes descriptors along.
    pub fn fds(fds: &'a [BorrowedFd<'a>]) -> Attached<'a> {
        Attached { fds, who: None }
    }

    /// Checks that it can be sent.
    ///
    /// # Errors
    ///
    /// EINVAL if there are more than 253 descriptors.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.fds.len() > MAX_FDS {
            return Err(Error::new(Op::Send, Errno::INVAL)
                .about("fds")
                .because("at most 253 descriptors go with one send; send the rest with another byte"));
        }
        Ok(())
    }

    /// Returns what a frame with it says.
    #[inline]
    pub fn with(&self, who: Identity) -> With {
        // At most MAX_FDS, as was checked.
        With::new(self.fds.len() as u8, who)
    }
}
