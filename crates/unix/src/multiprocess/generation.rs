//! Forks, counted: what was made before one may be another process's as well.

use onecopy_sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::LazyLock;

/// Forks of this process.
static FORKS: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(0));

/// Forks between the first process and this one.
static GENERATION: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(0));

/// Changes with each fork, in the child: what was made in another generation belongs to the parent.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// Changes with each fork, in the parent too: what was there before one may be a child's as well.
pub fn forks() -> u32 {
    FORKS.load(Relaxed)
}

/// This process is about to fork.
pub fn before_fork() {
    FORKS.fetch_add(1, Relaxed);
}

/// This is the child.
pub fn in_child() {
    GENERATION.fetch_add(1, Relaxed);
}
