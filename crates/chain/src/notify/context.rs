//! Who makes lanes, and the queue that their completions come to.

use super::lane::{Config, Lane};
use super::queue::Queue;
use super::ready::Ready;
use super::refused::Refused;
use super::table::Table;
use std::fmt;
use std::sync::Arc;

/// Makes lanes, from any thread.
#[derive(Clone)]
pub struct Context {
    ready: Arc<Ready>,
    table: Arc<Table>,
}

impl Context {
    /// A context, and the queue that all completions of its lanes come to.
    pub fn new() -> (Context, Queue) {
        let context = Context { ready: Arc::default(), table: Arc::default() };
        let queue = Queue::new(context.ready.clone(), context.table.clone());
        (context, queue)
    }

    /// A lane, for one socket.
    ///
    /// # Errors
    ///
    /// [`Refused::Closed`]: the queue was dropped. [`Refused::Full`]: there are 2^29 lanes.
    pub fn lane(&self, config: Config) -> Result<Lane, Refused> {
        let inner = self.table.add(config.capacity, &self.ready)?;
        Ok(Lane::new(inner, config.limits))
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.ready).finish()
    }
}
