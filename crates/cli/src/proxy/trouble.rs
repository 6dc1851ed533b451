//! What ends an exchange early, and how long is waited for it.

use crate::counters::Counters;
use std::time::Duration;

/// What ends a request early.
#[derive(Debug)]
pub enum Trouble {
    /// The backend cannot be reached, or does not make sense: 502, with the reason.
    Bad(String),
    /// The backend took too long: 504.
    Late,
    /// The backend went away before it had answered anything; a kept connection may be tried afresh.
    Gone,
    /// Too many wait for a backend connection: 503.
    Full,
    /// The backend has no room for one more connection, and said so before it was asked anything: 503.
    Busy,
    /// Part of the answer has been sent and the rest will not come, or the client went away or is too slow:
    /// nothing can be answered any more.
    Broken,
    /// The same, and it was the backend: with the reason, for the operator.
    Cut(String),
    /// The same: it did not go on in time.
    Stuck(String),
}

impl Trouble {
    /// Counts what is the backend's doing.
    pub fn count(&self, counters: &mut Counters) {
        match self {
            Trouble::Bad(_) | Trouble::Gone | Trouble::Cut(_) => counters.backend_bad += 1,
            Trouble::Late | Trouble::Stuck(_) => counters.backend_late += 1,
            Trouble::Full | Trouble::Busy | Trouble::Broken => {}
        }
    }
}

/// The bounds of one exchange.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For the backend: its head, and each wait for more of its body.
    pub backend: Duration,
    /// For the client: how long it may take no byte at all.
    pub client: Duration,
}
