//! What a connection that is opened with data in the SYN has to know until it is made.

use crate::wire::Seq;
use crate::wire::tcp::Cookie;

/// What only a connection has whose SYN brings data.
#[derive(Debug)]
pub(super) enum FastOpen {
    /// This side has connected.
    Client(Client),
    /// The peer has, and its ACK has not come.
    Server(Server),
}

/// What a SYN said, until it is answered.
#[derive(Debug)]
pub(super) struct Client {
    /// The option it had.
    pub option: Option<Cookie>,
    /// Bytes of data it had.
    pub data: u32,
    /// It was sent again, without both.
    pub again: bool,
    /// The program waits to give more.
    pub waits: bool,
}

/// How the SYN-ACK goes.
#[derive(Debug)]
pub(super) struct Server {
    /// The peer's SYN's place.
    pub irs: Seq,
    /// When it is sent again, and how long that wait is.
    pub due_at: u64,
    pub wait: u64,
    /// When it was sent first, and how often again.
    pub sent_at: u64,
    pub retries: u8,
    /// What its first one says.
    pub cookie: Option<Cookie>,
}

/// What became of a SYN's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SynData {
    /// There was none, or all of it was taken.
    Over,
    /// As that, and more is about to be given.
    MoreComes,
    /// Some is sent again.
    SentAgain,
}
