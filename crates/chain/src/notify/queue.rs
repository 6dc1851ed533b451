//! Completions: who reaps them, waits for them, or polls.

use super::frontier::Frontier;
use super::outcome::Completion;
use super::ready::{Consumer, Ready};
use super::table::Table;
use onecopy_sync::WeightedArc;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The one consumer of a context's completions. It cannot overflow: a send that could not be told of is refused when it is made
/// ([`Refused::Full`](super::Refused::Full)). Dropped, all its lanes are closed.
pub struct Queue {
    ready: Arc<Ready>,
    table: Arc<Table>,
    /// A copy of the table, as far as it was needed.
    lanes: Vec<Option<WeightedArc<Frontier>>>,
    /// Lanes that were taken from the stack and have completions, the one to be reaped next at the end. All are QUEUED.
    todo: Vec<u32>,
    consumer: Consumer,
}

impl Queue {
    pub(super) fn new(ready: Arc<Ready>, table: Arc<Table>) -> Queue {
        Queue { ready, table, lanes: Vec::new(), todo: Vec::new(), consumer: Consumer::default() }
    }

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
            if count > 0 || !self.consumer.rest(&self.ready) {
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
        !self.todo.is_empty() || self.consumer.wait(&self.ready, limit)
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
        let bell = self.consumer.expose(&self.ready, !self.todo.is_empty())?;
        Ok(bell.as_fd())
    }

    #[cfg(all(test, loom))]
    pub(super) fn poll_once(&mut self) {
        self.consumer.expose(&self.ready, !self.todo.is_empty()).poll();
    }

    /// Has `hook` called when there are completions, after each [`Queue::hook_next`]; from whichever thread frees the
    /// segment, in the middle of that. Can be set once.
    pub(super) fn set_hook(&self, hook: Box<dyn Fn() + Send + Sync>) {
        Consumer::set_hook(&self.ready, hook);
    }

    /// False if there are completions now.
    pub(super) fn hook_next(&self) -> bool {
        self.todo.is_empty() && Consumer::hook_next(&self.ready)
    }

    /// Takes the lanes that are ready; whether there were any.
    fn take(&mut self) -> bool {
        let mut next = self.consumer.take(&self.ready);
        let found = next.is_some();
        while let Some(index) = next {
            self.todo.push(index);
            next = self.lane(index).and_then(|lane| lane.next_ready());
        }
        found
    }

    fn lane(&mut self, index: u32) -> Option<&WeightedArc<Frontier>> {
        let at = index as usize;
        if self.lanes.get(at).is_none_or(Option::is_none) {
            if self.lanes.len() <= at {
                self.lanes.resize(at + 1, None);
            }
            self.lanes[at] = self.table.get(index);
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
            self.table.remove(index);
        }
        reaped.count
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.table.shut();
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("ready", &self.ready).field("todo", &self.todo).finish_non_exhaustive()
    }
}
