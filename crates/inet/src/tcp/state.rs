//! Where a connection is in its life.

use std::fmt;

/// RFC 9293, section 3.3.2. The numbers are Linux's (include/net/tcp_states.h), as TCP_INFO tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Both sides have sent all and know it of each other.
    Established = 1,
    /// SYN was sent.
    SynSent = 2,
    /// SYN was received and answered.
    SynReceived = 3,
    /// Our FIN was sent.
    FinWait1 = 4,
    /// Our FIN was acknowledged.
    FinWait2 = 5,
    /// Over for both; kept so that nothing old is taken for new.
    TimeWait = 6,
    /// There is no connection.
    #[default]
    Closed = 7,
    /// The peer's FIN was received.
    CloseWait = 8,
    /// The peer's FIN was received, then ours was sent.
    LastAck = 9,
    /// Waits for connections.
    Listen = 10,
    /// Both FINs crossed; ours is not acknowledged yet.
    Closing = 11,
}

impl State {
    /// Whether both sides' numbers are known.
    pub fn is_synchronized(self) -> bool {
        !matches!(self, State::Closed | State::Listen | State::SynSent | State::SynReceived)
    }

    /// Whether the program may still send.
    pub fn may_send(self) -> bool {
        matches!(self, State::Established | State::CloseWait)
    }

    /// Whether our FIN has left, or is to leave.
    pub fn has_closed(self) -> bool {
        matches!(self, State::FinWait1 | State::FinWait2 | State::Closing | State::LastAck | State::TimeWait)
    }
}

impl fmt::Display for State {
    /// As `ss` writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::Established => "ESTAB",
            State::SynSent => "SYN-SENT",
            State::SynReceived => "SYN-RECV",
            State::FinWait1 => "FIN-WAIT-1",
            State::FinWait2 => "FIN-WAIT-2",
            State::TimeWait => "TIME-WAIT",
            State::Closed => "UNCONN",
            State::CloseWait => "CLOSE-WAIT",
            State::LastAck => "LAST-ACK",
            State::Listen => "LISTEN",
            State::Closing => "CLOSING",
        })
    }
}
