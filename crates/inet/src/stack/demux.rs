//! Whose a packet is.

use super::slab::Id;
use crate::key::{Key, Seed, Table};
use std::hash::{Hash, Hasher};
use std::net::{Ipv4Addr, SocketAddrV4};

/// The two ends of a connection, as seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Ours.
    pub local: SocketAddrV4,
    /// The other one.
    pub remote: SocketAddrV4,
}

impl Ends {
    /// The bytes of both.
    #[inline]
    pub(super) fn bytes(&self) -> [u8; 12] {
        let ([a, b, c, d], [e, f, g, h]) = (self.local.ip().octets(), self.remote.ip().octets());
        let ([i, j], [k, l]) = (self.local.port().to_be_bytes(), self.remote.port().to_be_bytes());
        [a, b, c, d, e, f, g, h, i, j, k, l]
    }
}

impl Hash for Ends {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        // At once: field by field costs three times as much.
        state.write(&self.bytes());
    }
}

/// Connections by their ends, listeners by theirs.
#[derive(Debug)]
pub struct Demux {
    connections: Table<Ends, Id>,
    /// By address, [`Ipv4Addr::UNSPECIFIED`] for any, and port.
    listeners: Table<SocketAddrV4, Id>,
}

impl Demux {
    /// Nobody yet. Places in the tables come from `seed`.
    pub fn new(seed: &Seed) -> Demux {
        Demux {
            connections: Table::with_hasher(Key::derive(seed, "connections")),
            listeners: Table::with_hasher(Key::derive(seed, "listeners")),
        }
    }

    /// The connection of these ends.
    #[inline]
    pub fn connection(&self, ends: &Ends) -> Option<Id> {
        self.connections.get(ends).copied()
    }

    /// Who listens at this address, else who listens at its port at any.
    #[inline]
    pub fn listener(&self, local: SocketAddrV4) -> Option<Id> {
        let any = || self.listeners.get(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, local.port()));
        self.listeners.get(&local).or_else(any).copied()
    }

    /// Has packets of these ends be `id`'s. False, with nothing done, where they are somebody's.
    pub fn connect(&mut self, ends: Ends, id: Id) -> bool {
        let entry = self.connections.entry(ends);
        let free = matches!(entry, std::collections::hash_map::Entry::Vacant(_));
        entry.or_insert(id);
        free
    }

    /// They are nobody's any more, if they were `id`'s.
    pub fn disconnect(&mut self, ends: &Ends, id: Id) -> bool {
        self.connections.get(ends) == Some(&id) && self.connections.remove(ends).is_some()
    }

    /// Has `id` listen there. False, with nothing done, where somebody does at that very address.
    pub fn listen(&mut self, local: SocketAddrV4, id: Id) -> bool {
        let entry = self.listeners.entry(local);
        let free = matches!(entry, std::collections::hash_map::Entry::Vacant(_));
        entry.or_insert(id);
        free
    }

    /// It listens no more, if it did.
    pub fn unlisten(&mut self, local: SocketAddrV4, id: Id) -> bool {
        self.listeners.get(&local) == Some(&id) && self.listeners.remove(&local).is_some()
    }

    /// Connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Listeners.
    pub fn listeners(&self) -> usize {
        self.listeners.len()
    }

    /// Gives back memory of those that are gone.
    pub fn rest(&mut self) {
        self.connections.shrink_to_fit();
        self.listeners.shrink_to_fit();
    }
}
