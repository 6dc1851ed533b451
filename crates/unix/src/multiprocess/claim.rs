//! Which process has an end that only one may use after a fork: whoever uses it first.

use crate::{Error, Op};
use onecopy_ring::page::{EndPage, PAGE_LEN};
use onecopy_sync::atomic::{AtomicU32, Ordering::Relaxed};
use onecopy_sys::map::Mapping;
use rustix::io::Errno;
use std::sync::{LazyLock, OnceLock};
use std::time::SystemTime;

/// What tells this process from those it forked from and those it forked: 0 until it is needed, and again in each child.
static TOKEN: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(0));

fn token() -> u32 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // A pid would not do: two processes in two pid namespaces may have the same.
    let fresh = now.subsec_nanos() << 1 | 1;
    // Two threads may come at once: the first one's stays.
    match TOKEN.compare_exchange(0, fresh, Relaxed, Relaxed) {
        Ok(_) => fresh,
        Err(token) => token,
    }
}

/// Which process has it.
#[derive(Debug, Default)]
pub struct Claim {
    /// The word that says so (`taken`): a ticket, which is even, or the token of who has it, which is odd.
    page: OnceLock<EndPage>,
    /// What lies in the word while nobody has it who took part in the last fork of who had it. Older children have older ones.
    ticket: AtomicU32,
}

impl Claim {
    /// Before a fork: from here on nobody has it, unless a thread of this process uses it at this moment, as it does if not `idle`.
    /// False where there is no memory for the word: then the child is told that it cannot have it.
    pub fn put_down(&self, idle: impl FnOnce() -> bool) -> Option<bool> {
        if self.page.get().is_none()
            && let Ok(memory) = Mapping::inherited(PAGE_LEN)
        {
            let _ = self.page.set(EndPage::over(memory));
        }
        let page = self.page.get()?;
        let ticket = self.ticket.load(Relaxed).wrapping_add(2);
        self.ticket.store(ticket, Relaxed);
        let idle = idle();
        page.words().pass.0.taken.store(if idle { ticket } else { token() }, Relaxed);
        Some(idle)
    }

    /// In the child: this is another process.
    pub fn begin_anew() {
        TOKEN.store(0, Relaxed);
    }

    /// In the child: it is the parent's, or another child's.
    pub fn forgo(&self) {
        // A ticket that is none.
        let ticket = self.ticket.load(Relaxed).wrapping_add(1 << 31);
        self.ticket.store(ticket, Relaxed);
    }

    /// Has it, if nobody else does.
    ///
    /// # Errors
    ///
    /// EBUSY.
    #[cold]
    pub fn take(&self, op: Op) -> Result<(), Error> {
        let (me, ticket) = (token(), self.ticket.load(Relaxed));
        // Relaxed: it only decides who; what the socket is at each has from the fork.
        let taken = |page: &EndPage| page.words().pass.0.taken.compare_exchange(ticket, me, Relaxed, Relaxed);
        match self.page.get().map(taken) {
            Some(Ok(_)) => Ok(()),
            Some(Err(who)) if who == me => Ok(()),
            _ => Err(Error::new(op, Errno::BUSY).because(
                "another process uses this datagram socket since a fork; keep each half of a pair in one process, \
                 and bind or connect a socket of its own in the other",
            )),
        }
    }
}
