//! One end of a connection: what its two directions share.
//!
//! # Locks, in the order in which they are taken
//!
//! | lock | guards | held while sleeping |
//! |---|---|---|
//! | `rx` | the receiving side: what state it is in, positions, borrows | never |
//! | `tx` | the sending side: whole sends and reservations, so that they never interleave | yes |
//! | `offer` | the peer's ring, from when there is one until the sender switches to it | never |
//!
//! A receiver only ever *tries* `tx`: a sender asleep for want of room must not stop receiving. So `Datagram::connect`
//! may take `tx` first, and then `rx`. A datagram socket's `Meeting::state` comes after both; who holds it only tries them.

use crate::byref::copies::Copies;
use crate::byref::lender::Lender;
use crate::config::Config;
use crate::connection::core::Core;
use crate::connection::kind::Kind;
use crate::connection::rx::Rx;
use crate::connection::side::{Side, SideGuard};
use crate::connection::tx::Tx;
use crate::handshake::upgrade::Handshake;
use crate::multiprocess::fork::Place;
use crate::multiprocess::patience::{STUCK, stuck};
use crate::{Error, Op};

pub mod borrow_records;
pub mod call;
pub mod carry;
pub mod chains;
pub mod core;
pub mod decide;
pub mod descriptors;
pub mod frames;
pub mod idle;
pub mod kind;
pub mod lend;
pub mod listed_records;
pub mod open;
pub mod options;
pub mod others;
pub mod receive;
pub mod receive_records;
pub mod received;
pub mod room;
pub mod rx;
pub mod send;
pub mod send_records;
pub mod side;
pub mod stream_records;
pub mod tx;
pub mod wait;
pub mod waiting;

use onecopy_sync::atomic::Ordering::Relaxed;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::{Arc, OnceLock};

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    core: Core,
    pub rx: Side<Rx>,
    pub tx: Side<Tx>,
    pub handshake: Handshake,
    /// What is lent to the peer, once something was.
    pub lender: OnceLock<Arc<Lender>>,
    /// Where chains that are received as copies lie.
    pub copies: Copies,
    /// Where forks find it.
    pub place: Place,
}

impl std::ops::Deref for Connection {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Connection {
    pub fn new(fd: OwnedFd, kind: Kind, config: &Config, rx: Rx, tx: Tx) -> Connection {
        let handshake = Handshake::new(matches!(rx, Rx::Undecided(_)));
        Connection {
            core: Core::new(fd, kind, config),
            rx: Side::new(rx),
            tx: Side::new(tx),
            handshake,
            lender: OnceLock::new(),
            copies: Copies::default(),
            place: Place::default(),
        }
    }

    /// Takes the receiving side. Nobody keeps it for long but a process that shares it and is stopped, or means ill.
    ///
    /// # Errors
    ///
    /// EBUSY.
    #[inline]
    pub fn lock_rx(&self, op: Op) -> Result<SideGuard<'_, Rx>, Error> {
        self.rx.lock_within(|| STUCK).ok_or_else(|| stuck(op))
    }

    /// Sets or clears one of these. Holds the receiving side, so that a ring that is just being made knows it.
    ///
    /// # Errors
    ///
    /// What setsockopt(2) says.
    pub fn pass(&self, which: u32, on: bool) -> rustix::io::Result<()> {
        let rx = self.rx.lock_within(|| STUCK).ok_or(Errno::BUSY)?;
        self.pass_over_kernel(which, on)?;
        let others = self.passes.load(Relaxed) & !which;
        self.passes.store(if on { others | which } else { others }, Relaxed);
        self.asked.fetch_add(1, Relaxed);
        let attached = match &*rx {
            Rx::Undecided(undecided) => undecided.attached(),
            _ => None,
        };
        if let Some(ring) = self.rx_ring.get().or(attached) {
            self.ask_identity(ring);
        }
        // (A look at a datagram socket's doorbells is one of a message each; and it has the kernel's datagrams to pass again once it
        // has left its peer.)
        if matches!(*rx, Rx::Ring(_)) && self.kind != Kind::Datagram {
            self.pass_no_doorbells()
        } else {
            Ok(())
        }
    }
}

impl AsFd for Connection {
    /// The control socket.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
