//! Forks of a process that has datagram sockets over shared memory.
//!
//! One process uses such a socket: its rings have one sender and one receiver, and its pairing has one line.
//! At the fork nobody knows which process that will be; of a pair, each process keeps one half and closes the
//! other. So the process that uses the socket first claims it, and the others get an error.
//!
//! A socket whose datagrams all go over the kernel belongs to every process, as a kernel socket does.

use crate::socket::Socket;
use onecopy_unix::connection::rx::Rx;
use onecopy_unix::core::broken;
use onecopy_unix::members::claim::Claim;
use onecopy_unix::members::fork::{AtFork, Child, Fork, Over};
use std::sync::Arc;

impl Socket {
    /// Whether datagrams use memory that only one process may use.
    fn shares(&self) -> bool {
        let counts = self.known_pairing().is_some_and(|pairing| pairing.is_counting());
        self.tx_ring().is_some() || self.rx_ring().is_some() || counts || self.fan_in_forks()
    }

    /// Whether no thread receives, and no view holds room of the ring. A process that held on to a view while
    /// another one received would lose what it shows.
    fn has_idle_receiver(&self) -> bool {
        let rx = self.rx().mutex().try_lock();
        rx.is_some_and(|rx| !matches!(rx.value(), Rx::Ring(ring) if ring.is_borrowed()))
    }

    /// Whether no thread sends, and no slot has room in the ring. A child inherits no slot.
    fn has_idle_sender(&self) -> bool {
        self.tx().mutex().try_lock().is_some() && self.slots().are_free()
    }

    /// Runs before a fork. From here on no process has claimed the socket, unless a thread of this one is
    /// sending or receiving right now. A thread that comes between the look at `broken` and the lock uses a
    /// socket that nobody has claimed; a child that does the same is not told.
    pub fn put_down(&self) {
        let shares = self.shares();
        if !shares || self.broken() != broken::NOT {
            return; // There is nothing to claim, or another process has claimed it.
        }
        let idle = || self.has_idle_receiver() && self.has_idle_sender();
        if self.claim().put_down(idle) == Some(true) {
            self.set_broken(broken::UNCLAIMED);
        }
    }

    /// Runs in the child.
    pub fn pick_up_later(&self) {
        Claim::begin_anew();
        let shares = self.shares();
        if self.broken() != broken::NOT && !shares {
            return;
        }
        // A lock that a thread of the parent held is never unlocked here.
        let receives = self.has_idle_receiver()
            && self.fan_in().is_none_or(|fan_in| fan_in.is_free())
            && self.known_pairing().is_none_or(|pairing| pairing.is_free());
        let sends = self.has_idle_sender();
        if shares && !(receives && sends) {
            self.claim().forgo();
        }
        if self.broken() == broken::NOT {
            let broken = match (shares, receives, sends) {
                (true, ..) => broken::UNCLAIMED,
                (false, false, _) => broken::ORPHAN,
                (false, true, false) => broken::CANNOT_SEND,
                (false, true, true) => broken::NOT,
            };
            self.set_broken(broken);
        }
    }
}

impl AtFork for Socket {
    fn before(self: Arc<Self>, _fork: &mut Fork<'_>) -> Box<dyn Over> {
        self.put_down();
        Box::new(PutDown(self))
    }
}

/// A datagram socket, which only one process may use after the fork.
struct PutDown(Arc<Socket>);

impl Over for PutDown {
    fn in_parent(self: Box<Self>) -> Option<Box<dyn FnOnce()>> {
        None
    }

    fn in_child(self: Box<Self>, _child: &mut Child) {
        self.0.pick_up_later();
        // The sleeping threads are the parent's.
        self.0.forget_sleepers();
    }
}
