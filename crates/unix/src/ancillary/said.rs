//! The identity of the sender, as the receiver was told it.

use onecopy_sys::scm::Ucred;

/// The identity that the receiver was told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said {
    /// The identity of the sender from here on.
    who: Option<Ucred>,
    /// The number of the question that this was the answer to.
    asked: u32,
    /// It was stated for a whole send, however many pieces that has.
    holds: bool,
}

impl Said {
    /// Makes the answer to the question with the number `asked`.
    pub fn new(who: Option<Ucred>, asked: u32) -> Said {
        Said { who, asked, holds: false }
    }

    /// Returns the identity that the receiver was told.
    #[inline]
    pub fn who(&self) -> Option<Ucred> {
        self.who
    }

    /// Notes that the identity was stated for all of a send, or that this send is over.
    pub fn set_holds(&mut self, holds: bool) {
        self.holds = holds;
    }

    /// Whether the identity was stated for all of the send that is under way.
    #[inline]
    pub fn holds(&self) -> bool {
        self.holds
    }

    /// Whether the receiver, which has asked `asked` times, knows that it is `who`.
    pub fn is_known(&self, who: Option<Ucred>, asked: u32) -> bool {
        self.who == who && (who.is_none() || asked == 0 || asked == self.asked)
    }

    /// Returns an identity that nobody has. So the next identity is stated anew, by a mark before the next
    /// byte.
    pub fn anew() -> Said {
        Said { who: Some(Ucred { pid: -1, uid: u32::MAX, gid: u32::MAX }), ..Said::default() }
    }
}
