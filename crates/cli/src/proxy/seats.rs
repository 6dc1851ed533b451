//! Who may have how many of the descriptors that the process can open: clients not so many that none is left to serve them with.

use super::line::Forward;
use crate::transport::Transport;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Of the process itself: its log, its listener, certificates that are read again.
const OWN: u64 = 32;

/// Of each thread: its epoll, what wakes it, and what it keeps open for its work.
const OWN_OF_THREAD: u64 = 16;

/// The most lent answers that are kept: to look through them all takes a fraction of a millisecond.
const KEPT: u64 = 4096;

/// How the descriptors are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// For clients: one each, and one more for each that has a body lent.
    pub clients: usize,
    /// Connections to the backend that there is room for.
    pub lines: usize,
    /// Lent answers that may be kept to be sent again.
    pub kept: usize,
}

impl Shares {
    /// Of `limit` descriptors. Connections to the backend get at most half of what the threads leave.
    pub fn of(limit: u64, threads: usize, backends: usize, of_a_line: u64) -> Shares {
        let own = (OWN + OWN_OF_THREAD * threads as u64).min(limit / 4);
        let kept = (limit / 8).min(KEPT);
        let rest = limit - own - kept;
        let room = usize::try_from(rest / 2 / of_a_line).unwrap_or(usize::MAX);
        let lines = backends.min(room).max(1);
        let clients = rest.saturating_sub(lines as u64 * of_a_line).max(1);
        Shares { clients: usize::try_from(clients).unwrap_or(usize::MAX), lines, kept: kept as usize }
    }
}

/// The descriptors that a connection to the backend may have at a time.
pub fn of_a_line(transport: Transport, forward: Forward, direct: bool) -> u64 {
    let line = match (transport, forward) {
        // Itself, the channel that descriptors come through, one that has just come, and while it is made, memory.
        (Transport::Onecopy, _) => 4,
        (Transport::Kernel, Forward::Copy) => 1,
        (Transport::Kernel, Forward::Splice) => 3,
    };
    line + u64::from(direct)
}

/// The places for clients, of all threads together.
#[derive(Debug)]
pub struct Seats {
    clients: Arc<Semaphore>,
    descriptors: Arc<Semaphore>,
    most: usize,
}

/// A client's place, free again when dropped.
#[derive(Debug)]
pub struct Seat {
    _client: OwnedSemaphorePermit,
    _descriptor: OwnedSemaphorePermit,
}

/// The descriptor of a body that was lent, while it is sent. (One that is only kept has its room beside all clients'.)
pub type Loaned = OwnedSemaphorePermit;

impl Seats {
    /// For at most `clients` at once, that have at most `descriptors`.
    pub fn new(clients: usize, descriptors: usize) -> Seats {
        let of = |most: usize| Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Seats { clients: of(clients), descriptors: of(descriptors), most: descriptors }
    }

    /// Waits for a place; `full` is told if descriptors are what is missing.
    pub async fn take(&self, full: impl FnOnce()) -> Option<Seat> {
        let client = self.clients.clone().acquire_owned().await.ok()?;
        let descriptor = match self.descriptors.clone().try_acquire_owned() {
            Ok(descriptor) => descriptor,
            Err(_) => {
                full();
                self.descriptors.clone().acquire_owned().await.ok()?
            }
        };
        Some(Seat { _client: client, _descriptor: descriptor })
    }

    /// A descriptor more for one of the clients, to have a body lent; not one of the last quarter, which is for clients that are
    /// still to come.
    pub fn one_more(&self) -> Option<Loaned> {
        let plenty = self.descriptors.available_permits() > self.most / 4;
        plenty.then(|| self.descriptors.clone().try_acquire_owned().ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn usual_limits() {
        assert_eq!(Shares::of(200, 2, 256, 4), Shares { clients: 65, lines: 15, kept: 25 });
        assert_eq!(
            Shares::of(1 << 20, 2, 256, 4),
            Shares { clients: (1 << 20) - 64 - 1024 - 4096, lines: 256, kept: 4096 }
        );
    }

    proptest! {
        /// What is given out is there, and something is left for the process itself.
        #[test]
        fn no_more_than_there_is(limit in 16u64..1 << 40, threads in 1usize..512, backends in 1usize..1 << 20, each in 1u64..6) {
            let Shares { clients, lines, kept } = Shares::of(limit, threads, backends, each);
            prop_assert!(clients >= 1 && lines >= 1 && lines <= backends);
            prop_assert!(clients as u64 + lines as u64 * each + kept as u64 <= limit - limit.min(64) / 4);
        }
    }
}
