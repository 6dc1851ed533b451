//! One socket of UDP, and its addresses.

use crate::stack::demux::Place;
use crate::stack::ports::Hold;
use crate::stack::slab::Id;
use crate::tcp::Wake;
use crate::udp::Socket;
use std::collections::VecDeque;

/// A socket and its addresses.
#[derive(Debug, Default)]
pub(in crate::stack) struct Attached {
    pub(super) socket: Socket,
    /// The port, at the address that datagrams come to.
    pub(super) hold: Option<Hold>,
    /// What the program bound it to, with port 0 where it left the choice: what stays when it is connected no more.
    pub(super) asked: Option<Place>,
    pub(super) reuse: bool,
    pub(super) remote: Option<Place>,
    pub(super) wake: Wake,
    /// It is among those that wait for room to send.
    pub(super) waits: bool,
}

impl Attached {
    /// Where datagrams for it come to.
    pub fn local(&self) -> Option<Place> {
        self.hold.as_ref().map(Hold::local)
    }

    /// What whoever waits was not told yet.
    pub fn take_wake(&mut self) -> Wake {
        std::mem::take(&mut self.wake)
    }

    /// Tells who waits for it.
    pub(super) fn wake(&mut self, id: Id, wake: Wake, events: &mut VecDeque<Id>) {
        if self.wake.is_empty() {
            events.push_back(id);
        }
        self.wake |= wake;
    }
}
