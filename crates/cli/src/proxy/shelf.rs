//! What was lent is kept for as long as the daemon says, and sent again without asking it: of a small body the question costs
//! more than the bytes.

use super::loan::Loan;
use super::seats::{Loaned, Seats};
use crate::http::request::{Method, Request};
use std::collections::HashMap;
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
    kept: Places,
    /// When the sweeper looks again, if there is anything.
    next: Option<Instant>,
}

impl Shelf {
    /// A shelf for at most so many, one at least. Somebody has to [`sweep`](Shelf::sweep) it.
    pub fn new(most: usize) -> Shelf {
        let book = Book { kept: Places::new(most.max(1)), next: None };
        Shelf { book: Mutex::new(book), sooner: Notify::new() }
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
        if book.kept.get(target).is_some_and(|now| Arc::ptr_eq(now, &kept)) {
            book.kept.remove(target);
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
            let gone = book.kept.put(target, kept.clone());
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
        let gone: Vec<_> = old.iter().filter_map(|target| book.kept.remove(target)).collect();
        // A look at each that ends would be many: those that end soon go together.
        book.next = book.kept.iter().map(|(_, kept)| kept.until).min().map(|next| next.max(now + TOGETHER));
        let next = book.next;
        drop(book);
        drop(gone);
        next
    }
}

/// Answers by target, of which one chosen by chance makes room. The one that was not asked for longest would: where all of a few more than there
/// are places for are asked for in turn, as crawlers do, each would then go just before its turn.
#[derive(Debug)]
struct Places {
    kept: HashMap<Arc<str>, Place>,
    /// All targets, in any order.
    targets: Vec<Arc<str>>,
    most: usize,
    chance: u64,
}

#[derive(Debug)]
struct Place {
    kept: Arc<Kept>,
    /// Where its target is in `targets`.
    at: usize,
}

impl Places {
    fn new(most: usize) -> Places {
        Places { kept: HashMap::new(), targets: Vec::new(), most, chance: 0x9E37_79B9_7F4A_7C15 }
    }

    fn get(&self, target: &str) -> Option<&Arc<Kept>> {
        self.kept.get(target).map(|place| &place.kept)
    }

    fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<Kept>)> {
        self.kept.iter().map(|(target, place)| (target, &place.kept))
    }

    fn remove(&mut self, target: &str) -> Option<Arc<Kept>> {
        let Place { kept, at } = self.kept.remove(target)?;
        self.targets.swap_remove(at);
        if let Some(moved) = self.targets.get(at)
            && let Some(place) = self.kept.get_mut(moved)
        {
            place.at = at;
        }
        Some(kept)
    }

    /// Returns what was there for that target, or had to make room.
    fn put(&mut self, target: &str, kept: Arc<Kept>) -> Option<Arc<Kept>> {
        if let Some(place) = self.kept.get_mut(target) {
            return Some(std::mem::replace(&mut place.kept, kept));
        }
        let gone = (self.targets.len() >= self.most).then(|| {
            // Marsaglia's xorshift.
            self.chance ^= self.chance << 13;
            self.chance ^= self.chance >> 7;
            self.chance ^= self.chance << 17;
            let target = self.targets[self.chance as usize % self.targets.len()].clone();
            self.remove(&target)
        });
        let target: Arc<str> = target.into();
        self.kept.insert(target.clone(), Place { kept, at: self.targets.len() });
        self.targets.push(target);
        gone.flatten()
    }
}

/// The shortest time between two looks at what is kept.
const TOGETHER: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Arc<Kept> {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let loan = Loan::take(file.into(), 0, 1, false).unwrap();
        Arc::new(Kept { loan, head: Vec::new(), until: Instant::now(), seat: Mutex::default() })
    }

    #[test]
    fn where_more_are_asked_for_in_turn_than_there_are_places_some_are_found() {
        let (most, asked) = (50, 80);
        let (mut places, mut found) = (Places::new(most), 0);
        for turn in 0..20 * asked {
            let target = (turn % asked).to_string();
            match places.get(&target) {
                Some(_) => found += 1,
                None => drop(places.put(&target, answer())),
            }
        }
        assert_eq!((places.kept.len(), places.targets.len()), (most, most));
        assert!(found > 4 * asked, "{found} of {}", 20 * asked);
    }

    #[test]
    fn what_is_there_for_a_target_is_replaced_and_removed_wherever_it_is() {
        let mut places = Places::new(3);
        let all: Vec<_> = (0..3).map(|_| answer()).collect();
        for (n, kept) in all.iter().enumerate() {
            assert!(places.put(&n.to_string(), kept.clone()).is_none());
        }
        let new = answer();
        assert!(Arc::ptr_eq(&places.put("1", new.clone()).unwrap(), &all[1]));
        assert!(Arc::ptr_eq(places.get("1").unwrap(), &new));
        assert!(Arc::ptr_eq(&places.remove("0").unwrap(), &all[0]));
        assert!(places.remove("0").is_none());
        assert!(Arc::ptr_eq(&places.remove("2").unwrap(), &all[2]));
        assert!(Arc::ptr_eq(&places.remove("1").unwrap(), &new));
        assert!(places.kept.is_empty() && places.targets.is_empty());
    }
}
