//! The identity of the sender, as the receiver was told it.

use onecopy_sys::scm::Ucred;

/// The identity that the receiver was told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said {
    /// The identity of the sender from here on.
    pub(super) who: Option<Ucred>,
    /// The number of the question that this was the answer to.
    pub(super) asked: u32,
    /// It was stated for a whole send, however many pieces that has.
    pub holds: bool,
}

impl Said {
    /// Returns an identity that nobody has. So the next identity is stated anew, by a mark before the next
    /// byte.
    pub fn anew() -> Said {
        Said { who: Some(Ucred { pid: -1, uid: u32::MAX, gid: u32::MAX }), ..Said::default() }
    }
}
