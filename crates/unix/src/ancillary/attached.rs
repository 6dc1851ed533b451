//! The descriptors and identities that travel with a send, and those that come with a receive.

use crate::ancillary::channel::{Fds, MAX_FDS};
use crate::config::Credentials;
use crate::core::Core;
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

/// What a send takes along beside its bytes (cmsg(3), unix(7)): for `send_msg` of each kind of socket.
///
/// ```
/// # fn main() -> onecopy_unix::Result<()> {
/// use onecopy_unix::{Credentials, SendAncillary, SendFlags, Stream};
/// use std::{io::IoSlice, os::fd::AsFd};
/// let (a, _b) = Stream::pair()?;
/// let (log, head, body) = (std::io::stderr(), IoSlice::new(b"head"), IoSlice::new(b"body"));
/// let with = SendAncillary { fds: &[log.as_fd()], credentials: Some(Credentials::own()) };
/// assert_eq!(a.send_msg(&[head, body], with, SendFlags::empty())?, 8);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SendAncillary<'a> {
    /// Descriptors, at most 253 (SCM_RIGHTS). The receiver gets copies.
    pub fds: &'a [BorrowedFd<'a>],
    /// What the sender says it is, in this send alone (SCM_CREDENTIALS): this process, and a user and a group of
    /// it, effective or real. Anything else takes a privilege.
    pub credentials: Option<Credentials>,
}

impl<'a> SendAncillary<'a> {
    /// Takes descriptors along, and nothing else.
    pub fn fds(fds: &'a [BorrowedFd<'a>]) -> SendAncillary<'a> {
        SendAncillary { fds, credentials: None }
    }

    /// Returns the credentials as the kernel takes them.
    #[doc(hidden)]
    pub fn ucred(&self) -> Option<Ucred> {
        self.credentials.map(Ucred::from)
    }

    /// Whether there is nothing to take along.
    #[doc(hidden)]
    pub fn is_empty(&self) -> bool {
        self.fds.is_empty() && self.credentials.is_none()
    }

    /// Checks that it can be sent.
    ///
    /// # Errors
    ///
    /// EINVAL if there are more than 253 descriptors.
    #[inline]
    #[doc(hidden)]
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
    #[doc(hidden)]
    pub fn with(&self, who: Identity) -> With {
        // At most MAX_FDS, as was checked.
        With::new(self.fds.len() as u8, who)
    }
}
