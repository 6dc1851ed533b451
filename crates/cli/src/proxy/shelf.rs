//! What was lent is kept for as long as the daemon says, and sent again without asking it: of a small body the question costs
//! more than the bytes.

use super::loan::Loan;
use super::seats::{Loaned, Seats};
use crate::http::request::{Method, Request};
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// The longest that is believed: what is kept holds a file's room on the disk, or memory, and a descriptor.
const LONGEST: Duration = Duration::from_secs(600);

/// An answer that was lent.
#[derive(Debug)]
pub struct Kept {
    /// Its body.
    pub loan: Loan,
    /// Its head, as the backend wrote it.
    pub head: Vec<u8>,
    until: Instant,
    /// Of all who send it now, together: it may be kept no longer, and its descriptor is open until the last of them is done.
    seat: Mutex<Weak<Loaned>>,
}

impl Kept {
    /// A share of its descriptor, held while it is sent. None: there are too few for that.
    pub fn seat(&self, seats: &Seats) -> Option<Arc<Loaned>> {
        let mut seat = self.seat.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(others) = seat.upgrade() {
            return Some(others);
        }
        let own = Arc::new(seats.one_more()?);
        *seat = Arc::downgrade(&own);
        Some(own)
    }
}

/// The answers of all threads of the proxy, by request target: what one was lent, none needs to ask for.
#[derive(Debug)]
pub struct Shelf {
    /// Held for a look alone. The kernel is asked, and what is let go of is closed, without it.
    book: Mutex<Book>,
    /// The sweeper is to look sooner than it meant to.
    sooner: Notify,
}

#[derive(Debug)]
struct Book {
    kept: LruCache<Box<str>, Arc<Kept>>,
    /// When the sweeper looks again, if there is anything.
    next: Option<Instant>,
}

impl Shelf {
    /// A shelf for at most so many, one at least. Somebody has to [`sweep`](Shelf::sweep) it.
    pub fn new(most: usize) -> Shelf {
        let kept = LruCache::new(NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN));
        Shelf { book: Mutex::new(Book { kept, next: None }), sooner: Notify::new() }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing but its target decides the answer to a request.
    pub fn serves(request: &Request<'_>) -> bool {
        let asks_more = |name: &str| {
            name.eq_ignore_ascii_case("range")
                || name.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("if-"))
        };
        request.method == Method::Get && !request.fields.iter().any(|(name, _)| asks_more(name))
    }

    /// The answer to give again, if there is one and its file was not changed, and is in memory.
    pub fn find(&self, target: &str) -> Option<Arc<Kept>> {
        let kept = self.book().kept.get(target)?.clone();
        if Instant::now() < kept.until && kept.loan.is_as_lent() {
            return Some(kept);
        }
        // Another thread may have got a new one meanwhile.
        let mut book = self.book();
        if book.kept.peek(target).is_some_and(|now| Arc::ptr_eq(now, &kept)) {
            book.kept.pop(target);
        }
        None
    }

    /// Keeps an answer for so long, which is sent now with a descriptor from `seat`. It is let go then, asked for or not.
    pub fn keep(
        &self,
        target: &str,
        loan: Loan,
        head: Vec<u8>,
        fresh: Duration,
        seat: &Arc<Loaned>,
    ) -> Arc<Kept> {
        let until = Instant::now() + fresh.min(LONGEST);
        let kept = Arc::new(Kept { loan, head, until, seat: Mutex::new(Arc::downgrade(seat)) });
        if !fresh.is_zero() {
            let mut book = self.book();
            let gone = book.kept.push(target.into(), kept.clone());
            let sooner = book.next.is_none_or(|next| until + TOGETHER < next);
            if sooner {
                book.next = Some(until);
            }
            drop(book);
            drop(gone);
            if sooner {
                self.sooner.notify_one();
            }
        }
        kept
    }

    /// Lets go of what is too old, for ever.
    pub async fn sweep(&self) {
        loop {
            match self.let_go(Instant::now()) {
                None => self.sooner.notified().await,
                Some(next) => tokio::select! {
                    () = sleep_until(next) => {}
                    () = self.sooner.notified() => {}
                },
            }
        }
    }

    /// Lets go of what is too old. When to look again, if anything is left.
    fn let_go(&self, now: Instant) -> Option<Instant> {
        let mut book = self.book();
        let old = book.kept.iter().filter(|(_, kept)| kept.until <= now);
        let old: Vec<_> = old.map(|(target, _)| target.clone()).collect();
        let gone: Vec<_> = old.iter().filter_map(|target| book.kept.pop(target)).collect();
        // A look at each that ends would be many: those that end soon go together.
        book.next = book.kept.iter().map(|(_, kept)| kept.until).min().map(|next| next.max(now + TOGETHER));
        let next = book.next;
        drop(book);
        drop(gone);
        next
    }
}

/// The shortest time between two looks at what is kept.
const TOGETHER: Duration = Duration::from_millis(100);
