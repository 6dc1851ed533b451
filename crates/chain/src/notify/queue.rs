//! Completions: who reaps them, waits for them, or polls.

use super::frontier::Frontier;
use super::lane::{Config, Lane};
use super::ready::{self, Consumer, Ready};
use super::{Completion, Refused};
use onecopy_sync::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What lanes and their consumer share.
pub(super) struct Shared {
    pub(super) ready: Ready,
    table: Mutex<Table>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ready.fmt(f)
    }
}

/// The lanes by their numbers.
#[derive(Debug, Default)]
struct Table {
    lanes: Vec<Option<Arc<Frontier>>>,
    /// Numbers that no lane has.
    free: Vec<u32>,
    /// Nobody reaps any more.
    gone: bool,
}

/// Makes lanes, from any thread.
#[derive(Clone, Debug)]
pub struct Context(Arc<Shared>);

impl Context {
    /// A context, and the queue that all completions of its lanes come to.
    pub fn new() -> (Context, Queue) {
        let shared = Arc::new(Shared { ready: Ready::default(), table: Mutex::new(Table::default()) });
        let queue = Queue {
            shared: shared.clone(),
            lanes: Vec::new(),
            todo: Vec::new(),
            consumer: Consumer::default(),
        };
        (Context(shared), queue)
    }

    /// A lane, for one socket.
    ///
    /// # Errors
    ///
    /// [`Refused::Closed`]: the queue was dropped. [`Refused::Full`]: there are 2^29 lanes.
    pub fn lane(&self, config: Config) -> Result<Lane, Refused> {
        let mut table = self.0.table.lock();
        if table.gone {
            return Err(Refused::Closed);
        }
        let index = match table.free.pop() {
            Some(index) => index,
            None if table.lanes.len() as u32 >= ready::MAX_ITEMS => {
                return Err(Refused::Full { capacity: ready::MAX_ITEMS });
            }
            None => {
                table.lanes.push(None);
                table.lanes.len() as u32 - 1
            }
        };
        let inner = Arc::new(Frontier::new(config.capacity, self.0.clone(), index));
        table.lanes[index as usize] = Some(inner.clone());
        Ok(Lane::new(inner, config.limits))
    }
}

/// The one consumer of a context's completions. It cannot overflow: a send that could not be told of is refused when it is made
/// ([`Refused::Full`]). Dropped, all its lanes are closed.
pub struct Queue {
    shared: Arc<Shared>,
    /// A copy of the table, as far as it was needed.
    lanes: Vec<Option<Arc<Frontier>>>,
    /// Lanes that were taken from the stack and have completions, the one to be reaped next at the end. All are QUEUED.
    todo: Vec<u32>,
    consumer: Consumer,
}

impl Queue {
    /// Gives all completions there are to `each`: each lane's in order, the lane that has waited longest first. Returns how
    /// many.
    pub fn reap(&mut self, each: impl FnMut(Completion)) -> usize {
        self.reap_some(usize::MAX, each)
    }

    /// As [`Queue::reap`], at most `most`.
    pub fn reap_some(&mut self, most: usize, mut each: impl FnMut(Completion)) -> usize {
        let (mut count, mut taken) = (0, false);
        loop {
            while count < most
                && let Some(index) = self.todo.pop()
            {
                count += self.reap_lane(index, most - count, &mut each);
            }
            if count == most {
                return count;
            }
            // Once: producers that are as fast as `each` must not keep the caller here.
            if !taken {
                taken = self.take();
                if taken {
                    continue;
                }
            }
            if count > 0 || !self.consumer.rest(&self.shared.ready) {
                return count;
            }
            taken = false;
        }
    }

    /// All completions there are, in a vector.
    pub fn reap_all(&mut self) -> Vec<Completion> {
        let mut all = Vec::new();
        self.reap(|completion| all.push(completion));
        all
    }

    /// Waits until there are completions, at most `limit`; whether there are. It spins first where that has lately
    /// paid. (A lane that was closed counts as well: then there may be none.)
    pub fn wait(&mut self, limit: Option<Duration>) -> bool {
        !self.todo.is_empty() || self.consumer.wait(&self.shared.ready, limit)
    }

    /// A descriptor that poll(2) and epoll(7) find readable while completions wait, level-triggered; never read or write
    /// it. It stops being readable with the call that reaps nothing. Before the first call of this no completion
    /// costs a system call, and after it only the first one after a call that reaped nothing.
    ///
    /// # Errors
    ///
    /// EMFILE and ENFILE: no descriptor is left.
    #[cfg(not(loom))]
    pub fn fd(&mut self) -> std::io::Result<std::os::fd::BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        let bell = self.consumer.expose(&self.shared.ready, !self.todo.is_empty())?;
        Ok(bell.as_fd())
    }

    #[cfg(all(test, loom))]
    pub(super) fn poll_once(&mut self) {
        self.consumer.expose(&self.shared.ready, !self.todo.is_empty()).poll();
    }

    /// Has `hook` called when there are completions, after each [`Queue::hook_next`]; from whichever thread frees the
    /// segment, in the middle of that. Can be set once.
    pub(super) fn set_hook(&self, hook: Box<dyn Fn() + Send + Sync>) {
        Consumer::set_hook(&self.shared.ready, hook);
    }

    /// False if there are completions now.
    pub(super) fn hook_next(&self) -> bool {
        self.todo.is_empty() && Consumer::hook_next(&self.shared.ready)
    }

    /// Takes the lanes that are ready; whether there were any.
    fn take(&mut self) -> bool {
        let mut next = self.consumer.take(&self.shared.ready);
        let found = next.is_some();
        while let Some(index) = next {
            self.todo.push(index);
            // Relaxed: acquired with the stack. The lane is QUEUED, so nobody pushes it and writes its link.
            let link = self.lane(index).map(|lane| lane.link.load(onecopy_sync::atomic::Ordering::Relaxed));
            next = link.and_then(ready::item);
        }
        found
    }

    fn lane(&mut self, index: u32) -> Option<&Arc<Frontier>> {
        let at = index as usize;
        if self.lanes.get(at).is_none_or(Option::is_none) {
            if self.lanes.len() <= at {
                self.lanes.resize(at + 1, None);
            }
            self.lanes[at].clone_from(&self.shared.table.lock().lanes[at]);
        }
        self.lanes[at].as_ref()
    }

    fn reap_lane(&mut self, index: u32, most: usize, each: &mut impl FnMut(Completion)) -> usize {
        // It was looked up when it was taken.
        let Some(lane) = &self.lanes[index as usize] else { return 0 };
        // If `each` panics, the lane is not forgotten.
        self.todo.push(index);
        let reaped = lane.reap(most, each);
        if !reaped.left {
            self.todo.pop();
        }
        if reaped.over {
            self.lanes[index as usize] = None;
            let mut table = self.shared.table.lock();
            table.lanes[index as usize] = None;
            table.free.push(index);
        }
        reaped.count
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let mut table = self.shared.table.lock();
        table.gone = true;
        // Lanes hold the table and the table its lanes: this is where that ends.
        let lanes = std::mem::take(&mut table.lanes);
        drop(table);
        for lane in lanes.iter().flatten() {
            lane.shut();
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("shared", &self.shared)
            .field("todo", &self.todo)
            .finish_non_exhaustive()
    }
}
