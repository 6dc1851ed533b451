//! Who makes a notification.

use onecopy_sync::atomic::Ordering;
use std::cell::Cell;

/// The kernel's task: the calling thread.
pub(crate) fn current() -> u32 {
    #[expect(clippy::disallowed_types, reason = "a counter of threads, which no model looks at")]
    static TASKS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    thread_local!(static TASK: Cell<u32> = Cell::new(TASKS.fetch_add(1, Ordering::Relaxed)));
    TASK.with(Cell::get)
}
