//! Who is connected, so that a shutdown can end the idle at once, wait for the busy, and give up in time.

use super::wire::Wire;
use crate::http::request::Refusal;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long who has just come may take for a first request when the daemon ends.
const FIRST: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Guest {
    wire: Arc<Wire>,
    busy: bool,
    /// It has not said anything yet.
    fresh: bool,
}

#[derive(Debug, Default)]
struct Book {
    guests: HashMap<u64, Guest>,
    next: u64,
    closing: bool,
}

/// The register of connections.
#[derive(Debug, Default)]
pub struct Desk {
    book: Mutex<Book>,
    left: Condvar,
}

impl Desk {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection in, unless `most` are here already or the house is closing.
    pub fn enter(&self, wire: &Arc<Wire>, most: usize) -> Result<u64, Refusal> {
        let refuse = |why| Err(Refusal { status: 503, why });
        let mut book = self.book();
        if book.closing {
            return refuse("the daemon is ending");
        }
        if book.guests.len() >= most {
            return refuse("the daemon has all the connections it can take");
        }
        let id = book.next;
        book.next += 1;
        book.guests.insert(id, Guest { wire: wire.clone(), busy: false, fresh: true });
        Ok(id)
    }

    /// The connection waits for a request; false: it should end instead.
    pub fn idle(&self, id: u64) -> bool {
        let mut book = self.book();
        if let Some(guest) = book.guests.get_mut(&id) {
            guest.busy = false;
            if guest.fresh {
                return true;
            }
        }
        !book.closing
    }

    /// The connection has a request in hand.
    pub fn busy(&self, id: u64) {
        if let Some(guest) = self.book().guests.get_mut(&id) {
            (guest.busy, guest.fresh) = (true, false);
        }
    }

    /// The connection has ended.
    pub fn leave(&self, id: u64) {
        self.book().guests.remove(&id);
        self.left.notify_all();
    }

    /// Whether a shutdown has begun.
    pub fn closing(&self) -> bool {
        self.book().closing
    }

    /// Ends the idle connections, waits up to `grace` for the others, then ends those too. Returns how many
    /// had to be cut. Those that have just come get a moment for their first request: to end them would be to refuse them.
    pub fn close(&self, grace: Duration) -> usize {
        let now = Instant::now();
        let (deadline, first) = (now + grace, now + grace.min(FIRST));
        let mut book = self.book();
        book.closing = true;
        for guest in book.guests.values().filter(|guest| !guest.busy && !guest.fresh) {
            guest.wire.shutdown();
        }
        let mut cut = 0;
        for until in [first, deadline] {
            while !book.guests.is_empty() {
                let Some(left) = until.checked_duration_since(Instant::now()) else { break };
                // By then those have come that were going to.
                if until == deadline && !book.guests.values().any(|guest| guest.busy) {
                    break;
                }
                book = self.left.wait_timeout(book, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            cut = book.guests.values().filter(|guest| guest.busy).count();
            let ending = |guest: &&Guest| until == deadline || !guest.busy;
            book.guests.values().filter(ending).for_each(|guest| guest.wire.shutdown());
        }
        cut
    }
}
