//! Who sends (SCM_CREDENTIALS, unix(7)): said before the first byte, and again whenever it changes.
//!
//! A receiver asks by a word in its ring's header. A sender that is asked puts its credentials into the channel, where the
//! kernel verifies them, and lays a mark, or flags a frame, from which on they hold. As long as nothing changes no more is
//! said, so that a send costs three calls that ask for the process's own ids, and no message. One that is not asked
//! pays one look at a line that it has read anyway.

use crate::end::End;
use crate::tx::TxRing;
use crate::{Result, SendFlags};
use onecopy_ring::Mark;
use onecopy_ring::record::Who;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::scm::Ucred;
use rustix::fd::BorrowedFd;

/// What the receiver was told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said {
    /// Who sends from here on.
    who: Option<Ucred>,
    /// To which question that was the answer.
    asked: u32,
    /// It was said for a whole send, however many pieces that has.
    pub holds: bool,
}

impl Said {
    /// Something that nobody is, so that whatever is to be said is said anew: a mark before the next byte.
    pub fn anew() -> Said {
        Said { who: Some(Ucred { pid: -1, uid: u32::MAX, gid: u32::MAX }), ..Said::default() }
    }
}

/// What there is to be said before the next byte.
#[derive(Clone, Copy, Debug, Default)]
pub struct Saying {
    /// How a frame puts it.
    pub who: Who,
    said: Said,
}

impl End {
    /// What is to be said before the next byte of this process, or of whom it claims to be.
    #[inline]
    pub fn saying(&self, ring: &TxRing, claim: Option<Ucred>) -> Saying {
        // Relaxed: whatever tells this thread that it is asked orders the look behind it.
        let asked = ring.producer.header().info.0.asks_who.load(Relaxed);
        if asked == 0 && ring.said.who.is_none() && claim.is_none() {
            return Saying::default();
        }
        Saying::find(ring, asked, claim)
    }

    /// Puts what comes with the next frame into the channel, and notes what was said.
    ///
    /// # Errors
    ///
    /// As [`End::channel`] and [`End::send_over`].
    #[cold]
    pub fn put(
        &self,
        ring: &mut TxRing,
        fds: &[BorrowedFd<'_>],
        saying: Saying,
        flags: SendFlags,
    ) -> Result<()> {
        let who = saying.said.who.filter(|_| saying.who == Who::Said);
        if who.is_some() || !fds.is_empty() {
            self.send_over(ring, fds, who, flags)?;
        }
        if saying.who != Who::AsBefore {
            ring.said = saying.said;
        }
        Ok(())
    }

    /// Says who sends, where that is asked and not known: before what of a stream takes at least `then` bytes of room.
    ///
    /// # Errors
    ///
    /// As [`End::room`] and [`End::put`].
    #[inline]
    pub fn say_who(&self, ring: &mut TxRing, then: usize, flags: SendFlags) -> Result<()> {
        if ring.said.holds {
            return Ok(());
        }
        let saying = self.saying(ring, None);
        if saying.who == Who::AsBefore { Ok(()) } else { self.say(ring, saying, then, flags) }
    }

    /// Lays a mark for what is to be said, with room for `then` bytes behind it: for itself alone it says nothing, and who looked
    /// would find nothing to receive.
    ///
    /// # Errors
    ///
    /// As [`End::say_who`].
    #[cold]
    pub fn say(&self, ring: &mut TxRing, saying: Saying, then: usize, flags: SendFlags) -> Result<()> {
        let need = ring.producer.stride() + then;
        self.room(ring, need, need, flags, &mut None)?;
        self.lay(ring, saying, flags)
    }

    /// As [`End::say`], where there is room.
    ///
    /// # Errors
    ///
    /// As [`End::put`].
    #[cold]
    pub fn lay(&self, ring: &mut TxRing, saying: Saying, flags: SendFlags) -> Result<()> {
        self.put(ring, &[], saying, flags)?;
        ring.producer.mark(0, Mark::Who { said: saying.who == Who::Said });
        let stride = ring.producer.stride();
        ring.producer.publish_marks(stride);
        Ok(())
    }
}

impl Saying {
    #[cold]
    fn find(ring: &TxRing, asked: u32, claim: Option<Ucred>) -> Saying {
        let who = claim.or_else(|| (asked != 0).then(Ucred::effective));
        let known = ring.said.who == who && (who.is_none() || asked == 0 || asked == ring.said.asked);
        let how = match who {
            _ if known => Who::AsBefore,
            Some(_) => Who::Said,
            None => Who::Unsaid,
        };
        Saying { who: how, said: Said { who, asked, holds: false } }
    }
}
