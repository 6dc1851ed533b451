//! What waits for the writer: lines, as they are written. Who adds one wakes him at most once in [`GATHER`], and otherwise only where a batch has come
//! together: waking a thread for each request, and a write for each line, cost more than a small request. And the lines are made by who adds
//! them: what he knows lies in his caches, and nothing has to be allocated for it that another thread frees.

use super::output::Output;
use super::{BATCH, Format, Setup};
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of lines that wait to be taken, at most. (As many may be with the writer.)
pub const ROOM: usize = 1 << 20;

/// How long lines gather before they are written.
pub const GATHER: Duration = Duration::from_millis(50);

/// What the writer is told.
#[derive(Debug)]
pub enum Message {
    /// Lines that were added before the next message.
    Lines(Vec<u8>),
    /// What comes from here on goes there.
    Again(Setup, Output),
    End(Sender<()>),
    /// Nobody is left who could add anything.
    Gone,
}

/// All that waits, in the order that it came in.
#[derive(Debug, Default)]
pub struct Waiting {
    pub messages: Vec<Message>,
    /// What was added behind the messages.
    pub lines: Vec<u8>,
    /// Bytes of the lines among the messages.
    before: usize,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.lines.is_empty()
    }
}

#[derive(Debug)]
struct State {
    waiting: Waiting,
    /// The form of the lines that are added from here on.
    format: Format,
    /// The writer sleeps until there is something.
    idle: bool,
    /// Something is not to be gathered.
    urgent: bool,
}

/// Lines and messages in the order that they came in.
#[derive(Debug)]
pub struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

impl Queue {
    pub fn new(format: Format) -> Queue {
        let state = State { waiting: Waiting::default(), format, idle: false, urgent: false };
        Queue { state: Mutex::new(state), wake: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line; false: there is no room for it. `make` makes it in `line`, in a form: the one of the line before, `format`, and then once more if
    /// that is not what it is to be now. So nobody waits for a lock while lines are made.
    pub fn add(
        &self,
        format: &mut Format,
        line: &mut Vec<u8>,
        mut make: impl FnMut(Format, &mut Vec<u8>),
    ) -> bool {
        line.clear();
        make(*format, line);
        let mut state = self.state();
        while state.format != *format {
            *format = state.format;
            drop(state);
            line.clear();
            make(*format, line);
            state = self.state();
        }
        let before = state.waiting.lines.len();
        if state.waiting.before + before + line.len() > ROOM {
            return false;
        }
        state.waiting.lines.extend_from_slice(line);
        let batch = before < BATCH && before + line.len() >= BATCH;
        let wake = std::mem::take(&mut state.idle) || batch;
        drop(state);
        if wake {
            self.wake.notify_one();
        }
        true
    }

    /// Adds what is to be done at once, behind all that was added before. There is always room for it.
    pub fn tell(&self, message: Message) {
        let mut state = self.state();
        if let Message::Again(setup, _) = &message {
            state.format = setup.format;
        }
        let lines = std::mem::take(&mut state.waiting.lines);
        state.waiting.before += lines.len();
        state.waiting.messages.extend([Message::Lines(lines), message]);
        (state.idle, state.urgent) = (false, true);
        drop(state);
        self.wake.notify_one();
    }

    /// Waits until there is something, and for what comes soon after it; puts all of it into `room`, which is empty.
    pub fn take(&self, room: &mut Waiting) {
        let mut state = self.state();
        while state.waiting.is_empty() {
            state.idle = true;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.idle = false;
        let began = Instant::now();
        while !state.urgent && state.waiting.lines.len() < BATCH {
            let left = GATHER.saturating_sub(began.elapsed());
            if left.is_zero() {
                break;
            }
            (state, _) = self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
        state.urgent = false;
        std::mem::swap(&mut state.waiting, room);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn lines_before_a_message_that_nobody_takes_count_too() {
        let queue = Queue::new(Format::Combined);
        let (mut format, mut line) = (Format::Combined, Vec::new());
        let mut add = || queue.add(&mut format, &mut line, |_, line| line.resize(ROOM / 2, b'x'));
        assert!(add());
        queue.tell(Message::End(channel().0));
        assert!(add());
        assert!(!add(), "there is room for two");
        let mut room = Waiting::default();
        queue.take(&mut room);
        assert_eq!((room.messages.len(), room.lines.len()), (2, ROOM / 2));
        assert!(add());
    }
}
