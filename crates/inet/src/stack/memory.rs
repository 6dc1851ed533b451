//! What all connections keep together is bounded: see [`crate::tcp::memory`].

use super::Stack;
use super::slab::Id;
use super::socket::{Connected, Slot};
use crate::tcp::memory::{Memory, Pressure};
use crate::tcp::{After, Connection, Stats, config};
use std::collections::VecDeque;

/// What is kept, and by whom.
#[derive(Debug, Default)]
pub(super) struct Shared {
    memory: Memory,
    /// Connections that nobody holds, and that are not over.
    orphans: u32,
    /// Connections with bytes behind a hole, the first one first; those among them that have none any more are passed over.
    holes: VecDeque<Id>,
}

/// What a connection was charged with.
#[derive(Debug, Default)]
pub(super) struct Charge {
    bytes: u64,
    /// It is counted as one that nobody holds.
    orphan: bool,
    /// It stands in the list of those with holes.
    listed: bool,
}

impl Shared {
    pub fn pressure(&self, config: &config::Config) -> Pressure {
        self.memory.pressure(&config.memory)
    }

    pub fn left(&self, config: &config::Config) -> u64 {
        self.memory.left(&config.memory)
    }

    /// Takes down what a connection keeps now.
    pub fn charge(&mut self, config: &config::Config, stats: &mut Stats, id: Id, connected: &mut Connected) {
        let Connected { connection, charge, .. } = connected;
        let now = connection.memory();
        if now != charge.bytes {
            let became_short = self.memory.change(&config.memory, charge.bytes, now);
            stats.memory_pressures += u64::from(became_short);
            charge.bytes = now;
        }
        if connection.is_orphan() && !charge.orphan {
            charge.orphan = true;
            self.orphans += 1;
        }
        if !charge.listed && connection.receiver().has_holes() {
            charge.listed = true;
            self.holes.push_back(id);
        }
    }

    /// It is gone, and all that it kept.
    pub fn release(&mut self, config: &config::Config, charge: &Charge) {
        self.memory.change(&config.memory, charge.bytes, 0);
        self.orphans -= u32::from(charge.orphan);
    }

    /// Gives memory of its own back, where nothing is in it.
    pub fn rest(&mut self) {
        if self.holes.is_empty() {
            self.holes = VecDeque::new();
        }
    }
}

impl Stack {
    /// Bytes of pages that all connections keep: what has arrived and was not read, and what was given to be sent and is not acknowledged.
    pub fn tcp_memory(&self) -> u64 {
        self.shared.memory.used()
    }

    /// How short memory is for connections.
    pub fn tcp_pressure(&self) -> Pressure {
        self.shared.pressure(&self.config)
    }

    /// There are pages again, of which [`Stack::tcp_send_bytes`] or [`Stack::udp_send_slices`] had none for socket `id`: who waits is told that there is room. Whether
    /// somebody does.
    pub fn pages_came(&mut self, now: u64, id: Id) -> bool {
        match self.sockets.get(id) {
            Some(Slot::Udp(_)) => self.udp_pages_came(id),
            _ => self.with(now, id, Connection::pages_came).unwrap_or(false),
        }
    }

    /// Connections that no program holds any more, and that are not over yet.
    pub fn tcp_orphans(&self) -> u32 {
        self.shared.orphans
    }

    /// What each connection may keep while memory is short.
    pub(super) fn share(&self) -> u64 {
        self.config.memory[1] / (self.demux.connections() as u64).max(1)
    }

    /// Takes down what a new connection keeps.
    pub(super) fn charge(&mut self, id: Id) {
        if let Some(connected) = self.sockets.get_mut(id).and_then(Slot::connected_mut) {
            self.shared.charge(&self.config, &mut self.stats, id, connected);
        }
    }

    /// Removes a connection, and what it kept.
    pub(super) fn remove_connection(&mut self, id: Id) -> Option<Box<Connected>> {
        let Some(Slot::Connection(connected)) = self.sockets.remove(id) else { return None };
        self.shared.release(&self.config, &connected.charge);
        self.rooms.release(&connected.claim);
        Some(connected)
    }

    /// Memory is short: who has kept bytes behind a hole for longest gives them up. They will be sent again (RFC 2018, section 8). One
    /// connection a call, so that a packet does not pay for all of them.
    pub(super) fn take_back(&mut self) {
        if !self.shared.memory.takes_back(&self.config.memory) {
            return;
        }
        let Some(id) = self.shared.holes.pop_front() else { return };
        let Some(connected) = self.sockets.get_mut(id).and_then(Slot::connected_mut) else { return };
        connected.charge.listed = false;
        if connected.connection.give_up_holes() > 0 {
            self.stats.pruned += 1;
        }
        self.charge(id);
    }

    /// A connection that nobody holds has something to do, or nobody holds it from now on: where there are too many of these, or memory is
    /// gone, it is reset (tcp_check_oom()). Whether it was.
    pub(super) fn ends_orphan(&mut self, now: u64, id: Id) -> bool {
        let Some(connected) = self.sockets.get(id).and_then(Slot::connected) else { return false };
        if !connected.connection.is_orphan() {
            return false;
        }
        let many = self.shared.orphans > self.config.max_orphans;
        let may_keep = match self.shared.pressure(&self.config) {
            Pressure::None => u64::MAX,
            Pressure::Short => self.share(),
            Pressure::Full => 0,
        };
        if !many && connected.charge.bytes <= may_keep.max(self.config.wmem[0].into()) {
            return false;
        }
        self.stats.aborted_on_memory += 1;
        let after = self.with(now, id, |connection, ctx| connection.abort(ctx));
        self.follow(now, id, after.unwrap_or(After::Ended));
        true
    }
}
