//! Forks of a process that has datagram sockets over shared memory. Such a socket is one process's: its rings have one
//! sender and one receiver, and its meeting one line. Which one is not known at the fork (of a pair, each process keeps one
//! half and closes the other), so whoever uses it first has it, and the others are told.
//!
//! A socket whose datagrams go over the kernel alone is everybody's, as the kernel's own.

use crate::end::End;
use crate::holders::broken;
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

/// Which process has a socket.
#[derive(Debug, Default)]
pub struct Claim {
    /// The word that says so (`taken`): a ticket, which is even, or the token of who has it, which is odd.
    page: OnceLock<EndPage>,
    /// What lies in the word while nobody has it who took part in the last fork of who had it. Older children have older ones.
    ticket: AtomicU32,
}

impl End {
    /// Whether datagrams come or go through memory that is one process's.
    fn shares(&self) -> bool {
        let counts = self.meet.get().is_some_and(|meeting| meeting.is_counting());
        self.tx_ring.get().is_some() || self.rx_ring.get().is_some() || counts || self.crowd_forks()
    }

    /// Before a fork: from here on nobody has it, unless a thread of this process is sending or receiving at this moment. (One
    /// that comes between the look at `broken` and the lock uses what is nobody's; a child that does so too is not told.)
    pub fn put_down(&self) {
        let shares = self.shares();
        if !shares || self.broken.load(Relaxed) != broken::NOT {
            return; // There is nothing to have, or it is not this process's.
        }
        if self.claim.page.get().is_none()
            && let Ok(memory) = Mapping::inherited(PAGE_LEN)
        {
            let _ = self.claim.page.set(EndPage::over(memory));
        }
        // Without memory for the word the child is told that it cannot have it.
        let Some(page) = self.claim.page.get() else { return };
        let ticket = self.claim.ticket.load(Relaxed).wrapping_add(2);
        self.claim.ticket.store(ticket, Relaxed);
        let idle = self.rx.mutex().try_lock().is_some() && self.tx.mutex().try_lock().is_some();
        page.words().pass.0.taken.store(if idle { ticket } else { token() }, Relaxed);
        if idle {
            self.broken.store(broken::UNCLAIMED, Relaxed);
        }
    }

    /// In the child.
    pub fn pick_up_later(&self) {
        TOKEN.store(0, Relaxed);
        let shares = self.shares();
        if self.broken.load(Relaxed) != broken::NOT && !shares {
            return;
        }
        // What a thread of the parent held nobody will ever unlock here.
        let receives = self.rx.mutex().try_lock().is_some()
            && self.crowd().is_none_or(|crowd| crowd.is_free())
            && self.meet.get().is_none_or(|meeting| meeting.is_free());
        let sends = self.tx.mutex().try_lock().is_some();
        if shares && !(receives && sends) {
            // A ticket that is none: it is the parent's, or another child's.
            let ticket = self.claim.ticket.load(Relaxed).wrapping_add(1 << 31);
            self.claim.ticket.store(ticket, Relaxed);
        }
        if self.broken.load(Relaxed) == broken::NOT {
            let broken = match (shares, receives, sends) {
                (true, ..) => broken::UNCLAIMED,
                (false, false, _) => broken::ORPHAN,
                (false, true, false) => broken::CANNOT_SEND,
                (false, true, true) => broken::NOT,
            };
            self.broken.store(broken, Relaxed);
        }
    }

    /// Has it, if nobody else does.
    #[cold]
    pub fn pick_up(&self, op: Op) -> Result<(), Error> {
        let (me, ticket) = (token(), self.claim.ticket.load(Relaxed));
        // Relaxed: it only decides who; what the socket is at each has from the fork.
        let taken = |page: &EndPage| page.words().pass.0.taken.compare_exchange(ticket, me, Relaxed, Relaxed);
        match self.claim.page.get().map(taken) {
            Some(Ok(_)) => {}
            Some(Err(who)) if who == me => {}
            _ => {
                return Err(Error::new(op, Errno::BUSY).because(
                    "another process uses this datagram socket since a fork; keep each half of a pair in one process, \
                     and bind or connect a socket of its own in the other",
                ));
            }
        }
        self.broken.store(broken::NOT, Relaxed);
        Ok(())
    }
}
