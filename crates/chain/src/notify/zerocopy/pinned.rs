//! Pages that are charged for sends that keep memory in place: of an account, for show, and of the whole process, for its limit.

use onecopy_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use onecopy_sys::fork;
use std::sync::LazyLock;

/// Pages of all accounts of this process that have a limit, as the kernel counts them in one number for all sockets
/// (mm_account_pinned_pages(), which counts nothing where there is no limit). Relaxed throughout: it says nothing of other memory.
static PROCESS: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(0));

/// How many forks lie between this process and the first one that charged something.
static FORKS: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(0));

/// Whether forks are looked after. (No lock: it might be held while another thread forks.)
static LOOKED_AFTER: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(0));

/// A child has its parent's accounts, and none of the sends that they wait for.
extern "C" fn begin_anew() {
    PROCESS.store(0, Ordering::Relaxed);
    FORKS.store(FORKS.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

extern "C" fn go_on() {}

/// Pages of one account. Changed under its lock, but read without.
pub(super) struct Pinned {
    pages: AtomicU64,
    /// Of these, those that the process is charged, too.
    limited: AtomicU64,
    /// In which process ([`FORKS`]).
    forks: AtomicU32,
}

/// What was charged for a send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Charge {
    pub pages: u32,
    /// The process was charged, too.
    pub limited: bool,
    /// Which process ([`FORKS`], its low bits).
    pub forks: u8,
}

impl Pinned {
    pub fn new() -> Pinned {
        Pinned { pages: AtomicU64::new(0), limited: AtomicU64::new(0), forks: AtomicU32::new(0) }
    }

    /// Pages that are charged.
    pub fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    /// Charges `pages`, of which all accounts of the process together may have `limit`. If that is too many: what it would have come to.
    pub fn charge(&self, pages: u32, limit: Option<u64>) -> Result<Charge, u64> {
        let limited = limit.is_some() && pages > 0;
        if let Some(limit) = limit.filter(|_| limited) {
            if LOOKED_AFTER.swap(1, Ordering::Relaxed) == 0 {
                // Without memory for a handler a child counts what its parent had; it refuses sooner, and loses nothing.
                let _ = fork::around(go_on, go_on, begin_anew);
            }
            take(pages.into(), limit)?;
        }
        let charge = Charge { pages, limited, forks: FORKS.load(Ordering::Relaxed) as u8 };
        self.pages.store(self.pages() + u64::from(pages), Ordering::Relaxed);
        self.limited.store(self.limited_here() + charge.limited_pages(), Ordering::Relaxed);
        Ok(charge)
    }

    /// The send is complete, or was not made after all.
    pub fn give_back(&self, charge: Charge) {
        self.pages.store(self.pages() - u64::from(charge.pages), Ordering::Relaxed);
        let limited = self.limited_here();
        // What a parent was charged, a child does not give back: of its own it may have charged something for the same account.
        let own = charge.forks == FORKS.load(Ordering::Relaxed) as u8;
        let back = if own { charge.limited_pages().min(limited) } else { 0 };
        self.limited.store(limited - back, Ordering::Relaxed);
        give_back(back);
    }

    /// Pages that this process is charged: none of those that its parent was.
    fn limited_here(&self) -> u64 {
        let forks = FORKS.load(Ordering::Relaxed);
        if self.forks.load(Ordering::Relaxed) != forks {
            self.forks.store(forks, Ordering::Relaxed);
            self.limited.store(0, Ordering::Relaxed);
        }
        self.limited.load(Ordering::Relaxed)
    }
}

impl Charge {
    fn limited_pages(self) -> u64 {
        if self.limited { self.pages.into() } else { 0 }
    }
}

/// Adds `pages`, if all come to no more than `limit`; else what they would come to.
fn take(pages: u64, limit: u64) -> Result<(), u64> {
    let mut all = PROCESS.load(Ordering::Relaxed);
    loop {
        let would_be = all + pages;
        if would_be > limit {
            return Err(would_be);
        }
        match PROCESS.compare_exchange(all, would_be, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Ok(()),
            Err(other) => all = other,
        }
    }
}

fn give_back(pages: u64) {
    if pages > 0 {
        PROCESS.fetch_sub(pages, Ordering::Relaxed);
    }
}

impl Drop for Pinned {
    /// Completions of an account that is gone are taken in by nobody.
    fn drop(&mut self) {
        give_back(self.limited_here());
    }
}
