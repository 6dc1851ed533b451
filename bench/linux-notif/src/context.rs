//! Who makes notifications, and reaps them.

use crate::node::Nodes;
use crate::notif::Notif;
use crate::refused::Refused;
use std::fmt;
use std::sync::Arc;

/// An io_uring context, as far as notifications go: its owner makes them and reaps them.
pub struct Context {
    nodes: Arc<Nodes>,
    free: Vec<u32>,
    heads: Vec<u32>,
}

impl Context {
    /// With room for so many notifications that have not been reaped.
    pub fn new(capacity: u32) -> Context {
        let nodes = Nodes::new(capacity);
        Context { free: (0..nodes.capacity()).rev().collect(), nodes: Arc::new(nodes), heads: Vec::new() }
    }

    /// `io_alloc_notif`: a notification of this thread's, with one reference, its head itself.
    ///
    /// # Errors
    ///
    /// [`Refused::Full`].
    pub fn open(&mut self, user_data: u64, report_usage: bool) -> Result<Notif, Refused> {
        let full = Refused::Full { capacity: self.nodes.capacity() };
        let index = self.free.pop().ok_or(full)?;
        self.nodes.open(index, user_data, report_usage);
        Ok(Notif::new(self.nodes.clone(), index))
    }

    /// Gives all notifications that were posted to `each`: its user data, and the COPIED bit where usage was asked for. Chains
    /// in the order they were posted in, each head first and then newest first. Returns how many.
    pub fn reap(&mut self, mut each: impl FnMut(u64, bool)) -> usize {
        let Context { nodes, free, heads } = self;
        nodes.take(heads);
        let mut count = 0;
        while let Some(head) = heads.pop() {
            nodes.finish(head, |index, user_data, copied| {
                free.push(index);
                each(user_data, copied);
                count += 1;
            });
        }
        count
    }

    /// Sleeps until notifications were posted.
    pub fn wait(&mut self) {
        self.nodes.wait();
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({} of {} free)", self.free.len(), self.nodes.capacity())
    }
}
