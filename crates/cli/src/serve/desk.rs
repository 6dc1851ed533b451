//! Who is connected, so that a shutdown can end the idle at once, wait for the busy, and give up in time.

use super::wire::Wire;
use crate::http::request::Refusal;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug)]
struct Guest {
    wire: Arc<Wire>,
    busy: bool,
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
        book.guests.insert(id, Guest { wire: wire.clone(), busy: false });
        Ok(id)
    }

    /// The connection waits for a request; false: it should end instead.
    pub fn idle(&self, id: u64) -> bool {
        let mut book = self.book();
        if let Some(guest) = book.guests.get_mut(&id) {
            guest.busy = false;
        }
        !book.closing
    }

    /// The connection has a request in hand.
    pub fn busy(&self, id: u64) {
        if let Some(guest) = self.book().guests.get_mut(&id) {
            guest.busy = true;
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
    /// had to be cut.
    pub fn close(&self, grace: Duration) -> usize {
        let deadline = Instant::now() + grace;
        let mut book = self.book();
        book.closing = true;
        for guest in book.guests.values().filter(|guest| !guest.busy) {
            guest.wire.shutdown();
        }
        while !book.guests.is_empty() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { break };
            book = self.left.wait_timeout(book, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        book.guests.values().for_each(|guest| guest.wire.shutdown());
        book.guests.len()
    }
}
