//! What the two processes of a connection ask each other, so that a stall is judged by what both ends do and not by a
//! clock.
//!
//! An end to which nothing happens may wait for a peer that has no CPU, or wait for ever. Its process asks the peer's
//! ([`Line::Ask`]), whose thread answers ([`Line::Is`]) once it has fetched all events there are. Who asked fetches its own
//! events then, and looks whether its end still waits since before it asked. If both wait, neither has anything
//! under way to the other, whatever the time and the load: a wake-up is lost. If the peer is busy, or has not come to it
//! yet, it was the machine.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::Write;
use std::process::ChildStdin;
use std::str::FromStr;
use std::sync::Mutex;

/// A lock whose holder panicked guards a number that is still one.
pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// What an end is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It waits for an event.
    Waits,
    /// It has something to do, and waits for its turn.
    Busy,
    /// It is closed.
    Over,
    /// There is none yet.
    Unknown,
}

const STATES: [(State, &str); 4] =
    [(State::Waits, "waits"), (State::Busy, "busy"), (State::Over, "over"), (State::Unknown, "unknown")];

/// One line between two processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// What is your end of that connection at?
    Ask(u64),
    /// This, and all there is to tell of it.
    Is(u64, State, String),
    /// That did not hold: it is over.
    Wrong(String),
}

impl Line {
    fn id(&self) -> Option<u64> {
        match self {
            Line::Ask(id) | Line::Is(id, ..) => Some(*id),
            Line::Wrong(_) => None,
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Ask(id) => writeln!(f, "ask {id:x}"),
            Line::Is(id, state, tale) => {
                let word = STATES.iter().find(|(s, _)| s == state).map_or("", |(_, word)| word);
                writeln!(f, "is {id:x} {word} {}", tale.replace('\n', "\t"))
            }
            Line::Wrong(what) => writeln!(f, "wrong {}", what.replace('\n', "\t")),
        }
    }
}

impl FromStr for Line {
    type Err = String;

    fn from_str(line: &str) -> Result<Line, String> {
        let no = || format!("what does a process mean by {line:?}?");
        let line = line.strip_suffix('\n').unwrap_or(line);
        if let Some(what) = line.strip_prefix("wrong ") {
            return Ok(Line::Wrong(what.replace('\t', "\n")));
        }
        let mut words = line.splitn(4, ' ');
        let (what, id) = (words.next(), words.next().and_then(|id| u64::from_str_radix(id, 16).ok()));
        let id = id.ok_or_else(no)?;
        match what {
            Some("ask") => Ok(Line::Ask(id)),
            Some("is") => {
                let word = words.next();
                let state = STATES.iter().find(|(_, w)| word == Some(w)).ok_or_else(no)?.0;
                Ok(Line::Is(id, state, words.next().unwrap_or_default().replace('\t', "\n")))
            }
            _ => Err(no()),
        }
    }
}

/// Of the worker whose connection it is.
fn generation(id: u64) -> u32 {
    (id >> 32) as u32
}

/// Where lines go: to the thread that serves the connection, or to the other process.
pub struct Post {
    /// For each thread that serves.
    boxes: Vec<Mutex<Vec<Line>>>,
    /// Which of them has which live connection.
    homes: Mutex<HashMap<u64, usize>>,
    /// Connections whose end here is closed, of each generation that may yet ask.
    over: Mutex<HashMap<u32, HashSet<u64>>>,
    /// Of the survivor: each worker's standard input, by generation. Empty in a worker, who says all to the survivor.
    pub ways: Mutex<HashMap<u32, ChildStdin>>,
}

impl Post {
    /// Between so many threads.
    pub fn new(threads: usize) -> Post {
        Post {
            boxes: (0..threads).map(|_| Mutex::default()).collect(),
            homes: Mutex::default(),
            over: Mutex::default(),
            ways: Mutex::default(),
        }
    }

    /// Thread `home` serves that connection from here on.
    pub fn moves_in(&self, id: u64, home: usize) {
        lock(&self.homes).insert(id, home);
    }

    /// That worker has begun, and may ask.
    pub fn expect(&self, generation: u32) {
        lock(&self.over).entry(generation).or_default();
    }

    /// That connection is closed.
    pub fn is_over(&self, id: u64) {
        // (Many end behind their worker, whom nobody will ask of: what was kept of those would stay.)
        if let Some(over) = lock(&self.over).get_mut(&generation(id)) {
            over.insert(id);
        }
        lock(&self.homes).remove(&id);
    }

    /// A worker that nobody will ask of any more.
    pub fn forget(&self, generation: u32) {
        lock(&self.ways).remove(&generation);
        lock(&self.over).remove(&generation);
    }

    /// What came for thread `home`.
    pub fn fetch(&self, home: usize) -> Vec<Line> {
        std::mem::take(&mut *lock(&self.boxes[home]))
    }

    /// A line that came from the other process.
    pub fn deliver(&self, line: Line) {
        let home = line.id().and_then(|id| lock(&self.homes).get(&id).copied());
        match (home, &line) {
            (Some(home), _) => lock(&self.boxes[home]).push(line),
            // (In this order: what moves out is over before it has no home.)
            (None, Line::Ask(id)) => self.send(&self.without_home(*id)),
            (None, Line::Is(..)) => {}
            (None, Line::Wrong(_)) => lock(&self.boxes[0]).push(line),
        }
    }

    /// What is to be said of a connection that no thread has.
    pub fn without_home(&self, id: u64) -> Line {
        let over = lock(&self.over).get(&generation(id)).is_some_and(|over| over.contains(&id));
        Line::Is(id, if over { State::Over } else { State::Unknown }, String::new())
    }

    /// To the other process; one that is dead hears nothing.
    pub fn send(&self, line: &Line) {
        let text = line.to_string();
        let generation = line.id().map(generation);
        let mut ways = lock(&self.ways);
        // A line at a time, whole.
        let _ = match generation.and_then(|generation| ways.get_mut(&generation)) {
            Some(way) => way.write_all(text.as_bytes()),
            None if crate::is_worker() => std::io::stdout().write_all(text.as_bytes()),
            None => Ok(()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_as_they_went() {
        for line in [
            Line::Ask(u64::MAX),
            Line::Is(7 << 32, State::Waits, "sent 3 of 4,\n two things".into()),
            Line::Wrong("this and\n that".into()),
            Line::Is(1, State::Unknown, String::new()),
        ] {
            assert_eq!(line.to_string().parse(), Ok(line));
        }
        for no in ["", "ask", "ask x", "is 1", "is 1 perhaps", "{\"ended\":1}"] {
            assert!(no.parse::<Line>().is_err(), "{no:?}");
        }
    }

    #[test]
    fn who_is_asked_is_the_thread_that_serves() {
        let post = Post::new(2);
        post.moves_in(5, 1);
        post.deliver(Line::Ask(5));
        assert_eq!(post.fetch(1), [Line::Ask(5)]);
        assert!(post.fetch(0).is_empty() && post.fetch(1).is_empty());
        post.expect(0);
        post.is_over(5);
        assert_eq!(post.without_home(5), Line::Is(5, State::Over, String::new()));
        assert_eq!(post.without_home(6), Line::Is(6, State::Unknown, String::new()));
    }

    #[test]
    fn nothing_is_kept_of_connections_that_end_behind_their_worker() {
        let post = Post::new(1);
        let id = |n: u64| 3 << 32 | n;
        post.expect(3);
        for n in [1, 2] {
            post.moves_in(id(n), 0);
        }
        post.is_over(id(1));
        assert_eq!(post.without_home(id(1)), Line::Is(id(1), State::Over, String::new()));
        post.forget(3);
        post.is_over(id(2));
        assert!(lock(&post.over).is_empty() && lock(&post.homes).is_empty());
    }
}
