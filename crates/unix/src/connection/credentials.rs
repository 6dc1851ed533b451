//! The sender's identity (SCM_CREDENTIALS, unix(7)): stated before the first byte, and again whenever it
//! changes.
//!
//! A receiver asks by a word in its ring's header. A sender that is asked puts its credentials into the
//! channel, where the kernel verifies them. It then lays a mark, or flags a frame, from which on they hold.
//! While nothing changes it states nothing more: each send then costs three calls that ask for the process's
//! own ids, and no message. A sender that is not asked pays one look at a cache line that it has read anyway.

use crate::ancillary::said::Said;
use crate::connection::tx::TxRing;
use crate::core::Core;
use onecopy_ring::Mark;
use onecopy_ring::record::Identity;
use onecopy_socket::{Result, SendFlags};
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::scm::Ucred;
use rustix::fd::BorrowedFd;

/// The statement that must come before the next byte.
#[derive(Clone, Copy, Debug, Default)]
pub struct Saying {
    /// The form in which a frame states it.
    pub(super) who: Identity,
    said: Said,
}

impl Saying {
    #[cold]
    fn find(ring: &TxRing, asked: u32, claim: Option<Ucred>) -> Saying {
        let who = claim.or_else(|| (asked != 0).then(Ucred::effective));
        let known = ring.said.is_known(who, asked);
        let how = match who {
            _ if known => Identity::AsBefore,
            Some(_) => Identity::Said,
            None => Identity::Unsaid,
        };
        Saying { who: how, said: Said::new(who, asked) }
    }
}

impl TxRing {
    /// Returns what must be stated before the next byte, about this process or the identity that it claims.
    #[inline]
    pub fn saying(&self, _core: &Core, claim: Option<Ucred>) -> Saying {
        // Relaxed: whatever tells this thread that it is asked also orders this look behind it.
        let asked = self.producer.header().info.0.asks_identity.load(Relaxed);
        if asked == 0 && self.said.who().is_none() && claim.is_none() {
            return Saying::default();
        }
        Saying::find(self, asked, claim)
    }

    /// Puts what comes with the next frame into the channel, and notes what was stated.
    ///
    /// # Errors
    ///
    /// Those of [`TxRing::channel`] and [`TxRing::send_over`].
    #[cold]
    pub fn put(
        &mut self,
        core: &Core,
        fds: &[BorrowedFd<'_>],
        saying: Saying,
        flags: SendFlags,
    ) -> Result<()> {
        let who = saying.said.who().filter(|_| saying.who == Identity::Said);
        if who.is_some() || !fds.is_empty() {
            self.send_over(core, fds, who, flags)?;
        }
        if saying.who != Identity::AsBefore {
            self.said = saying.said;
        }
        Ok(())
    }

    /// States the sender's identity, if that was asked for and the receiver does not know it. What follows it
    /// in the stream takes at least `then` bytes of room.
    ///
    /// # Errors
    ///
    /// Those of [`TxRing::room`] and [`TxRing::put`].
    #[inline]
    pub fn say_identity(&mut self, core: &Core, then: usize, flags: SendFlags) -> Result<()> {
        if self.said.holds() {
            return Ok(());
        }
        let saying = self.saying(core, None);
        if saying.who == Identity::AsBefore { Ok(()) } else { self.say(core, saying, then, flags) }
    }

    /// Lays a mark for what must be stated, with room for `then` bytes behind it. A mark alone brings
    /// nothing, so a receiver that looked would find nothing to receive.
    ///
    /// # Errors
    ///
    /// Those of [`TxRing::say_identity`].
    #[cold]
    pub fn say(&mut self, core: &Core, saying: Saying, then: usize, flags: SendFlags) -> Result<()> {
        let need = self.producer.stride() + then;
        self.room(core, need, need, flags, &mut None)?;
        self.lay(core, saying, flags)
    }

    /// Lays the mark, as [`TxRing::say`] does, if there is room already.
    ///
    /// # Errors
    ///
    /// Those of [`TxRing::put`].
    #[cold]
    pub fn lay(&mut self, core: &Core, saying: Saying, flags: SendFlags) -> Result<()> {
        self.put(core, &[], saying, flags)?;
        self.producer.mark(0, Mark::Identity { said: saying.who == Identity::Said });
        let stride = self.producer.stride();
        self.producer.publish_marks(stride);
        Ok(())
    }
}
