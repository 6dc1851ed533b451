//! What was lent is kept for as long as the daemon says, and sent again without asking it: of a small body the question costs
//! more than the bytes.

use super::loan::Loan;
use super::seats::{Loaned, Seats};
use crate::http::request::{Method, Request};
use lru::LruCache;
use std::cell::{Cell, RefCell};
use std::num::NonZeroUsize;
use std::rc::{Rc, Weak};
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
    seat: RefCell<Weak<Loaned>>,
}

impl Kept {
    /// A share of its descriptor, held while it is sent. None: there are too few for that.
    pub fn seat(&self, seats: &Seats) -> Option<Rc<Loaned>> {
        let mut seat = self.seat.borrow_mut();
        if let Some(others) = seat.upgrade() {
            return Some(others);
        }
        let own = Rc::new(seats.one_more()?);
        *seat = Rc::downgrade(&own);
        Some(own)
    }
}

/// The answers of one thread of the proxy, by request target.
#[derive(Debug)]
pub struct Shelf {
    kept: RefCell<LruCache<Box<str>, Rc<Kept>>>,
    /// When the sweeper looks again, as long as there is one.
    next: Cell<Option<Instant>>,
    /// It is to look sooner than that.
    sooner: Notify,
}

impl Shelf {
    /// A shelf for at most so many, one at least.
    pub fn new(most: usize) -> Shelf {
        let most = NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN);
        Shelf { kept: RefCell::new(LruCache::new(most)), next: Cell::default(), sooner: Notify::new() }
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
    pub fn find(&self, target: &str) -> Option<Rc<Kept>> {
        let mut all = self.kept.borrow_mut();
        let kept = all.get(target)?.clone();
        let holds = Instant::now() < kept.until && kept.loan.is_as_lent();
        if !holds {
            all.pop(target);
        }
        holds.then_some(kept)
    }

    /// Keeps an answer for so long, which is sent now with a descriptor from `seat`. It is let go then, asked for or not.
    pub fn keep(
        self: &Rc<Self>,
        target: &str,
        loan: Loan,
        head: Vec<u8>,
        fresh: Duration,
        seat: &Rc<Loaned>,
    ) -> Rc<Kept> {
        let until = Instant::now() + fresh.min(LONGEST);
        let kept = Rc::new(Kept { loan, head, until, seat: RefCell::new(Rc::downgrade(seat)) });
        if !fresh.is_zero() {
            self.kept.borrow_mut().put(target.into(), kept.clone());
            match self.next.get() {
                None => {
                    self.next.set(Some(until));
                    tokio::task::spawn_local(self.clone().sweep());
                }
                Some(next) if until + TOGETHER < next => self.sooner.notify_one(),
                Some(_) => {}
            }
        }
        kept
    }

    async fn sweep(self: Rc<Self>) {
        loop {
            let next = self.let_go(Instant::now());
            self.next.set(next);
            let Some(next) = next else { return };
            tokio::select! {
                () = sleep_until(next) => {}
                () = self.sooner.notified() => {}
            }
        }
    }

    /// Lets go of what is too old. When to look again, if anything is left.
    fn let_go(&self, now: Instant) -> Option<Instant> {
        let mut all = self.kept.borrow_mut();
        let old: Vec<_> =
            all.iter().filter(|(_, kept)| kept.until <= now).map(|(target, _)| target.clone()).collect();
        for target in old {
            all.pop(&target);
        }
        // A look at each that ends would be many: those that end soon go together.
        all.iter().map(|(_, kept)| kept.until).min().map(|next| next.max(now + TOGETHER))
    }
}

/// The shortest time between two looks at what is kept.
const TOGETHER: Duration = Duration::from_millis(100);
