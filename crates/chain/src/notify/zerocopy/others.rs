//! Accounts that share the limit of the process: what has completed of one is room for the others.

use super::shared::{Shared, State};
use onecopy_sync::Mutex;
use onecopy_sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

/// Those that have charged the process something. No account's lock is taken while this is held.
static ACCOUNTS: LazyLock<Mutex<Vec<Weak<Shared>>>> = LazyLock::new(Mutex::default);

/// Longest that anybody waits for the list: who has it has it for a few instructions, unless a fork has left that thread behind.
const PATIENCE: Duration = Duration::from_millis(10);

/// Has others look at it before they refuse a send. Where the list cannot be had, they refuse sooner, and nothing is lost.
pub(super) fn list(account: &Arc<Shared>) {
    // Relaxed: it says nothing of other memory.
    if account.listed.load(Ordering::Relaxed) != 0 || account.listed.swap(1, Ordering::Relaxed) != 0 {
        return;
    }
    if let Some(mut accounts) = ACCOUNTS.lock_for(PATIENCE) {
        accounts.retain(|one| one.strong_count() > 0);
        accounts.push(Arc::downgrade(account));
    }
}

/// Takes in what has completed of all others than `but`, and wakes who waits for it. The caller holds no account's lock.
pub(super) fn settle(but: &Arc<Shared>) {
    let Some(accounts) = ACCOUNTS.lock_for(PATIENCE) else { return };
    let others: Vec<_> =
        accounts.iter().filter_map(Weak::upgrade).filter(|one| !Arc::ptr_eq(one, but)).collect();
    drop(accounts);
    for other in others {
        // Who has its lock takes in what has completed; or a fork has left that thread behind.
        let _ = other.try_with(State::settle);
    }
}
