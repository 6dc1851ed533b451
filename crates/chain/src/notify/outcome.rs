//! What is told of a send, and of a segment's bytes.

/// What became of a segment's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// They were transmitted from where they lie (and acknowledged, where that matters).
    Sent,
    /// They were transmitted, but copied on the way.
    Copied,
    /// They were transmitted. Whether they were copied on the way is not known: who carried them says so of others, too, falsely.
    Unknown,
    /// They were freed without having been transmitted.
    Dropped,
}

/// How a send's bytes left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct How {
    /// Some of its bytes were copied on the way after all (the COPIED bit): without a copy gained nothing there.
    pub copied: bool,
    /// Whether some of its bytes were copied is not known, and of none it is known: the kernel says COPIED of each notification that it
    /// stacks behind another one, true or not (io_uring/notif.c: io_notif_tw_complete). Never together with `copied`.
    pub unknown: bool,
    /// Some of its bytes were freed without having been transmitted: reset, cancelled, closed.
    pub dropped: bool,
}

/// The second step of a send: its buffer is the owner's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the send was given.
    pub user_data: u64,
    /// The lane, as [`Lane::index`](super::Lane::index) says; another lane may get the number once this one is closed and all of it reaped.
    pub lane: u32,
    /// The send's number in its lane, from 0.
    pub id: u64,
    /// Bytes of the send that went into segments.
    pub bytes: u32,
    /// How they left.
    pub how: How,
}

/// The first step of a send: what became of the request itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First<R> {
    /// What was accepted, or why not.
    pub result: R,
    /// Whether a notification follows (MORE): exactly one, on an error too. Trust this, not the result.
    pub more: bool,
}
