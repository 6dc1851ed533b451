//! Why a send or a link is refused.

use std::fmt;

/// Why a send or a link was refused. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// As many notifications as there is room for have not been reaped.
    Full {
        /// The room.
        capacity: u32,
    },
    /// The segment carries a notification of another context, task or provider.
    Foreign,
    /// The segment's notification is linked already, and so is this one: two links can't be joined.
    Linked,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Full { capacity } => {
                write!(f, "{capacity} notifications wait to be reaped: reap them, or make the context larger")
            }
            Refused::Foreign => f.write_str(
                "the segment carries a notification of another context, task or provider: transmit it and open a fresh one",
            ),
            Refused::Linked => {
                f.write_str("two linked notifications can't be joined: transmit the segment and open a fresh one")
            }
        }
    }
}

impl std::error::Error for Refused {}
