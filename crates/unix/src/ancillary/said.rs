//! What the receiver was told of who sends.

use onecopy_sys::scm::Ucred;

/// What the receiver was told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said {
    /// Who sends from here on.
    pub(super) who: Option<Ucred>,
    /// To which question that was the answer.
    pub(super) asked: u32,
    /// It was said for a whole send, however many pieces that has.
    pub holds: bool,
}

impl Said {
    /// Something that nobody is, so that whatever is to be said is said anew: a mark before the next byte.
    pub fn anew() -> Said {
        Said { who: Some(Ucred { pid: -1, uid: u32::MAX, gid: u32::MAX }), ..Said::default() }
    }
}
