//! What a send's request is told.

/// The first step of a send: what became of the request itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First<R> {
    /// What was accepted, or why not.
    pub result: R,
    /// Whether a notification follows (IORING_CQE_F_MORE): exactly one, on an error too.
    pub more: bool,
}
