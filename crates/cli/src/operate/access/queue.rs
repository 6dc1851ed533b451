//! What waits for the writer. Who adds an entry wakes him at most once in [`GATHER`], and otherwise only where half of the room is taken:
//! waking a thread for each request, and a write for each line, cost more than a small request.

use super::{Entry, Setup};
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Entries that wait to be taken, at most. (As many may be with the writer.)
pub const WAITING: usize = 4096;

/// How long entries gather before they are written.
pub const GATHER: Duration = Duration::from_millis(50);

/// What the writer is told.
#[derive(Debug)]
pub enum Message {
    Entry(Box<Entry>),
    Again(Setup),
    End(Sender<()>),
    /// Nobody is left who could add anything.
    Gone,
}

#[derive(Debug)]
struct Waiting {
    messages: Vec<Message>,
    /// The writer sleeps until there is something.
    idle: bool,
    /// Something is not to be gathered.
    urgent: bool,
}

/// Messages in the order that they came in.
#[derive(Debug)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    wake: Condvar,
}

impl Queue {
    pub fn new() -> Queue {
        let waiting = Waiting { messages: Vec::with_capacity(WAITING), idle: false, urgent: false };
        Queue { waiting: Mutex::new(waiting), wake: Condvar::new() }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry; false: there is no room for it.
    pub fn add(&self, entry: Box<Entry>) -> bool {
        let mut waiting = self.waiting();
        if waiting.messages.len() >= WAITING {
            return false;
        }
        waiting.messages.push(Message::Entry(entry));
        let wake = std::mem::take(&mut waiting.idle) || waiting.messages.len() == WAITING / 2;
        drop(waiting);
        if wake {
            self.wake.notify_one();
        }
        true
    }

    /// Adds what is to be done at once, behind all that was added before. There is always room for it.
    pub fn tell(&self, message: Message) {
        let mut waiting = self.waiting();
        waiting.messages.push(message);
        (waiting.idle, waiting.urgent) = (false, true);
        drop(waiting);
        self.wake.notify_one();
    }

    /// Waits until there is something, and for what comes soon after it; puts all of it into `room`, which is empty.
    pub fn take(&self, room: &mut Vec<Message>) {
        let mut waiting = self.waiting();
        while waiting.messages.is_empty() {
            waiting.idle = true;
            waiting = self.wake.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        waiting.idle = false;
        let began = Instant::now();
        while !waiting.urgent && waiting.messages.len() < WAITING / 2 {
            let left = GATHER.saturating_sub(began.elapsed());
            if left.is_zero() {
                break;
            }
            (waiting, _) = self.wake.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner);
        }
        waiting.urgent = false;
        std::mem::swap(&mut waiting.messages, room);
    }
}
