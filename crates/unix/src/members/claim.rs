//! The claim on an end that only one process may use after a fork. The first process that uses it gets it.

use onecopy_ring::page::{EndPage, PAGE_LEN};
use onecopy_socket::{Error, Op};
use onecopy_sync::atomic::{AtomicU32, Ordering::Relaxed};
use onecopy_sys::map::Mapping;
use rustix::io::Errno;
use std::sync::{LazyLock, OnceLock};
use std::time::SystemTime;

/// Tells this process from those it forked from and those it forked. 0 until it is needed, and again in each
/// child.
static TOKEN: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(0));

fn token() -> u32 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // A pid would not do: two processes in two pid namespaces may have the same pid.
    let fresh = now.subsec_nanos() << 1 | 1;
    // Two threads may come here at once. The token of the first one stays.
    match TOKEN.compare_exchange(0, fresh, Relaxed, Relaxed) {
        Ok(_) => fresh,
        Err(token) => token,
    }
}

/// Records which process has the end.
#[derive(Debug, Default)]
pub struct Claim {
    /// The page whose word `taken` says who has it: a ticket, which is even, or the owner's token, which is
    /// odd.
    page: OnceLock<EndPage>,
    /// The ticket that the word holds while no process that took part in the owner's last fork has the end.
    /// Older children have older tickets.
    ticket: AtomicU32,
}

impl Claim {
    /// Gives the claim up before a fork. From here on no process has the end, unless a thread of this process
    /// uses it at this moment, so that it is not `idle`: then this process keeps it.
    ///
    /// Returns whether it was idle, or `None` if there is no memory for the word. In that case the child is
    /// told that it cannot have the end.
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

    /// Forgets the token, in the child: this is another process.
    pub fn begin_anew() {
        TOKEN.store(0, Relaxed);
    }

    /// Gives the end up, in the child: it belongs to the parent, or to another child.
    pub fn forgo(&self) {
        // This ticket was never issued.
        let ticket = self.ticket.load(Relaxed).wrapping_add(1 << 31);
        self.ticket.store(ticket, Relaxed);
    }

    /// Takes the end, unless another process has it.
    ///
    /// # Errors
    ///
    /// EBUSY if another process has it.
    #[cold]
    pub fn take(&self, op: Op) -> Result<(), Error> {
        let (me, ticket) = (token(), self.ticket.load(Relaxed));
        // Relaxed: this only decides who has the end. Each process has the state of the socket from the fork.
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
