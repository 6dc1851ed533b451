//! How much memory the kernel lets this process keep in place for sends (mm_account_pinned_pages(), net/core/skbuff.c).

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use std::os::linux::fs::MetadataExt;

/// The number of the first user namespace (PROC_USER_INIT_INO, include/linux/proc_ns.h).
const FIRST: u64 = 0xEFFF_FFFD;

/// Bytes; `None`: as many as there are.
pub(super) fn limit() -> Option<u64> {
    if is_privileged() { None } else { getrlimit(Resource::Memlock).current }
}

/// Whether capable(CAP_IPC_LOCK) is true of this thread. That asks for the capability in the first user namespace: root of another one has it
/// in name alone. Where /proc does not tell which one this is, the limit counts.
fn is_privileged() -> bool {
    let held = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    held && std::fs::metadata("/proc/self/ns/user").is_ok_and(|namespace| namespace.st_ino() == FIRST)
}
