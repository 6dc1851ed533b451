//! A connection: one end of it, as one process holds it.
//!
//! A [`Connection`] is made of four parts:
//!
//! - a [`Core`] that all others may look at,
//! - a receiving side (`rx`),
//! - a sending side (`tx`),
//! - the handshake that turns a kernel connection into one over shared memory.
//!
//! # The files of this folder
//!
//! A newcomer reads these from top to bottom. They are the plain path of a connection that nobody shares:
//!
//! | file | what is there |
//! |---|---|
//! | `send.rs` | sending bytes into the peer's ring |
//! | `room.rs` | waiting for room in the peer's ring, and parking a filler while there is none |
//! | `receive.rs` | receiving bytes into the caller's buffers, from the ring |
//! | `wait.rs` | the loop in which a receive waits for data, an error or the end |
//! | `idle.rs` | what a receiver does with an empty ring: spin, arm, ask what is in the queue, sleep |
//! | `gather.rs` | small messages that come at once are let gather |
//!
//! What these stand on:
//!
//! | file | what is there |
//! |---|---|
//! | `side.rs` | the lock of one direction, for threads and for processes that share the end |
//! | `tx.rs`, `rx.rs` | the states of the sending and of the receiving side |
//! | `stores.rs` | which stores a sending side takes, and what it learns about them |
//! | `call.rs` | what one call knows: the cursor of a send, the descriptors of a receive |
//! | `send_kernel.rs`, `receive_kernel.rs` | bytes over the kernel: before a switch, or with a plain peer |
//! | `receive_marks.rs` | what a receive of bytes does at a mark |
//! | `decide.rs` | the steps of the upgrade that need both directions |
//! | `handover.rs` | what processes that use a ring one after the other tell each other of it |
//!
//! Records, descriptors and pages:
//!
//! | file | what is there |
//! |---|---|
//! | `send_records.rs`, `receive_records.rs` | sending and receiving records |
//! | `stream_records.rs`, `carry.rs` | stream records that come over the kernel, and a piece of one |
//! | `frames.rs` | frames of records in the ring: reading them, and joining them to a record |
//! | `received.rs` | what a receive of a record returns |
//! | `view.rs`, `view_io.rs` | received bytes that lie where they are until the view is dropped |
//! | `window.rs` | a view at an address that stays, though its bytes move out of the ring |
//! | `look.rs` | looking at them there: blocks by value, search, comparison |
//! | `borrow_records.rs`, `listed_records.rs` | records read in place, and records whose bytes are in pages |
//! | `descriptors.rs` | sending and receiving with descriptors and credentials |
//! | `rights.rs`, `credentials.rs` | the channel of a sending side: descriptors and its identity, before the next byte |
//! | `meet.rs` | what marks and frames announce to a receiving side besides bytes |
//! | `meet_list.rs`, `send_references.rs` | records in pages, and sending pages by reference |
//! | `receive_pieces.rs` | the steps of receiving what came by reference |
//! | `lend.rs`, `chains.rs` | sending pages by reference, and receiving chains |
//! | `reserve.rs` | room in the peer's ring that a program writes in place |
//!
//! The life of a connection:
//!
//! | file | what is there |
//! |---|---|
//! | `open.rs` | how a connection is made: by pair, connect or accept |
//! | `options.rs` | options, names, shutdown, and what happens at the last close |
//! | `wait_shared.rs` | waiting for shared memory before the first byte |
//!
//! # Locks, in the order in which they are taken
//!
//! | lock | guards | held while sleeping |
//! |---|---|---|
//! | `rx` | the receiving side: its state, positions, borrows | never |
//! | `tx` | the sending side: whole sends and reservations, so that they never interleave | yes |
//! | `offer` | the peer's ring, from when there is one until the sender switches to it | never |
//!
//! A receiver only ever *tries* `tx`: a sender that sleeps for want of room must not stop receiving. So
//! connecting a datagram socket may take `tx` first, and then `rx`. The `state` of a datagram socket's pairing comes
//! after both. A thread that holds it only tries them.

use crate::byref::copies::Copies;
use crate::byref::lender::Lender;
use crate::config::Config;
use crate::connection::rx::Rx;
use crate::connection::side::{Side, SideGuard};
use crate::connection::tx::Tx;
use crate::core::Core;
use crate::core::kind::Kind;
use crate::handshake::upgrade::Handshake;
use crate::members::fork::{Place, register};
use crate::members::patience::{STUCK, stuck};
use onecopy_socket::{Error, Op};

pub mod borrow_records;
pub mod call;
pub mod carry;
pub mod chains;
pub mod credentials;
pub mod decide;
pub mod descriptors;
pub mod frames;
pub mod gather;
pub mod handover;
pub mod idle;
pub mod lend;
pub mod listed_records;
pub mod look;
pub mod meet;
pub mod meet_list;
pub mod open;
pub mod options;
pub mod receive;
mod receive_kernel;
mod receive_marks;
pub mod receive_pieces;
pub mod receive_records;
pub mod received;
pub mod reserve;
pub mod rights;
pub mod room;
pub mod rx;
pub mod send;
mod send_kernel;
pub mod send_records;
pub mod send_references;
pub mod side;
pub mod stores;
pub mod stream_records;
pub mod tx;
pub mod view;
mod view_io;
pub mod wait;
pub mod wait_shared;
pub mod window;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::{Arc, OnceLock, Weak};

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    core: Core,
    rx: Side<Rx>,
    tx: Side<Tx>,
    handshake: Handshake,
    /// What this end lends to the peer, once it has lent something.
    lender: OnceLock<Arc<Lender>>,
    /// The pages that hold chains which were received as copies.
    copies: Copies,
    /// Where forks find this end.
    place: Place,
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

    /// Returns the receiving side, behind its lock.
    #[inline]
    pub fn rx(&self) -> &Side<Rx> {
        &self.rx
    }

    /// Returns the sending side, behind its lock.
    #[inline]
    pub fn tx(&self) -> &Side<Tx> {
        &self.tx
    }

    /// Lets a test keep the pages locked.
    #[cfg(test)]
    pub fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Registers the end: forks prepare it from here on.
    pub fn look_after(self: &Arc<Self>) {
        let one: Weak<Connection> = Arc::downgrade(self);
        register(one, &self.place);
    }

    /// Takes the receiving side. Nobody keeps it for long, except a process that shares the end and is
    /// stopped, or that misbehaves.
    ///
    /// # Errors
    ///
    /// EBUSY.
    #[inline]
    pub fn lock_rx(&self, op: Op) -> Result<SideGuard<'_, Rx>, Error> {
        self.rx.lock_within(|| STUCK).ok_or_else(|| stuck(op))
    }

    /// Sets or clears SO_PASSCRED or SO_PASSPIDFD. Holds the receiving side, so that a ring that is just
    /// being made learns of it.
    ///
    /// # Errors
    ///
    /// What setsockopt(2) says.
    pub fn pass(&self, which: u32, on: bool) -> rustix::io::Result<()> {
        let rx = self.rx.lock_within(|| STUCK).ok_or(Errno::BUSY)?;
        self.pass_under_lock(&rx, which, on)
    }

    /// As [`Connection::pass`], for a caller that holds the receiving side.
    ///
    /// # Errors
    ///
    /// What setsockopt(2) returns.
    pub fn pass_under_lock(&self, rx: &Rx, which: u32, on: bool) -> rustix::io::Result<()> {
        self.pass_over_kernel(which, on)?;
        self.ask_for(which, on);
        let attached = match rx {
            Rx::Undecided(undecided) => undecided.attached(),
            _ => None,
        };
        if let Some(ring) = self.rx_ring().or(attached) {
            self.ask_identity(ring);
        }
        // A datagram socket keeps the option: its doorbells are looked at one message at a time, and it has
        // the kernel's datagrams to pass again once it has left its peer.
        if matches!(rx, Rx::Ring(_)) && self.kind() != Kind::Datagram {
            self.pass_no_doorbells()
        } else {
            Ok(())
        }
    }
}

impl AsFd for Connection {
    /// Returns the control socket.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.fd()
    }
}
