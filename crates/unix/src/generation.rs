//! Counts forks: what was made before a fork may belong to another process as well.

use onecopy_sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::LazyLock;

/// How often this process has forked.
static FORKS: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(0));

/// How many forks lie between the first process and this one.
static GENERATION: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(0));

/// Returns a number that changes with each fork, in the child: what was made in another generation belongs to
/// the parent.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// Returns a number that changes with each fork, in the parent too: a child may have what was there before.
pub fn forks() -> u32 {
    FORKS.load(Relaxed)
}

/// Counts a fork that is about to happen.
pub(crate) fn before_fork() {
    FORKS.fetch_add(1, Relaxed);
}

/// Counts the fork, in the child.
pub(crate) fn in_child() {
    GENERATION.fetch_add(1, Relaxed);
}
