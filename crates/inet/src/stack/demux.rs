//! Whose a packet is.

use super::slab::Id;
use crate::key::{self, Key, Seed, Table};
use hashbrown::hash_table::{Entry, HashTable};
use std::cell::Cell;
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// An address and a port: of a [`SocketAddr`] what tells one from another (all is on one link, so that a scope says nothing).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address; the unspecified one of its family stands for any of that.
    pub ip: IpAddr,
    /// The port.
    pub port: u16,
}

// Each connection has some.
const _: () = assert!(size_of::<Place>() <= 20);

impl Place {
    /// The same port at any address of its family.
    #[inline]
    pub fn any(self) -> Place {
        Place { ip: any_like(self.ip), ..self }
    }
}

/// The address that stands for any of the family that `ip` is of.
#[inline]
pub(super) fn any_like(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

impl From<SocketAddr> for Place {
    #[inline]
    fn from(address: SocketAddr) -> Place {
        Place { ip: address.ip(), port: address.port() }
    }
}

impl From<Place> for SocketAddr {
    #[inline]
    fn from(place: Place) -> SocketAddr {
        SocketAddr::new(place.ip, place.port)
    }
}

impl Hash for Place {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.ip {
            IpAddr::V4(ip) => {
                let ([a, b, c, d], [e, f]) = (ip.octets(), self.port.to_be_bytes());
                state.write(&[a, b, c, d, e, f]);
            }
            IpAddr::V6(ip) => {
                state.write(&ip.octets());
                state.write_u16(self.port);
            }
        }
    }
}

/// The two ends of a connection, as seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Ours.
    pub local: Place,
    /// The other one, of the same family.
    pub remote: Place,
}

impl Ends {
    /// Of these addresses.
    #[inline]
    pub fn new(local: impl Into<Place>, remote: impl Into<Place>) -> Ends {
        Ends { local: local.into(), remote: remote.into() }
    }

    /// Hands the bytes of both to `with`.
    #[inline]
    pub(crate) fn bytes<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R {
        let ([a, b], [c, d]) = (self.local.port.to_be_bytes(), self.remote.port.to_be_bytes());
        key::of_pair(self.local.ip, self.remote.ip, [a, b, c, d], with)
    }
}

impl Hash for Ends {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        // At once: field by field costs three times as much.
        self.bytes(|bytes| state.write(bytes));
    }
}

/// Connections by their ends, listeners by theirs.
///
/// The ends of a connection lie with it, and only its name is here: each way to find it is asked who has these ends. So the table is a third of
/// what it would be with them, and a look at it leads to where the segment is going anyway.
#[derive(Debug)]
pub struct Demux {
    connections: HashTable<Name>,
    listeners: Table<Place, Id>,
    key: Key,
    /// Whose the last packet was, which the next one often is, too. Invariant: it is in the table.
    last: Option<Id>,
}

/// A connection, as the table has it.
#[derive(Clone, Copy, Debug)]
struct Name {
    /// Of its ends. Those of two connections are hardly ever the same, so that hardly ever a wrong one is looked at.
    hash: u32,
    id: Id,
}

const _: () = assert!(size_of::<Name>() == 12);

/// What the table goes by: it takes a place from the low bits, and what it compares first from the high ones.
#[inline]
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

impl Demux {
    /// Nobody yet. Places in the tables come from `seed`.
    pub fn new(seed: &Seed) -> Demux {
        Demux {
            connections: HashTable::new(),
            listeners: Table::with_hasher(Key::derive(seed, "listeners")),
            key: Key::derive(seed, "connections"),
            last: None,
        }
    }

    fn hash(&self, ends: &Ends) -> u32 {
        self.key.hash_one(ends) as u32
    }

    /// The connection of these ends; `has` says of one whether it has them.
    #[inline]
    pub fn connection(&self, ends: &Ends, has: impl Fn(Id, &Ends) -> bool) -> Option<Id> {
        self.find(ends, has, || ())
    }

    /// The same, and how many connections were looked at for it: what shows that it does not grow with them.
    pub fn connection_counted(&self, ends: &Ends, has: impl Fn(Id, &Ends) -> bool) -> (Option<Id>, u32) {
        let looked = Cell::new(0);
        let found = self.find(ends, has, || looked.set(looked.get() + 1));
        (found, looked.get())
    }

    #[inline]
    fn find(&self, ends: &Ends, has: impl Fn(Id, &Ends) -> bool, look: impl Fn()) -> Option<Id> {
        let hash = self.hash(ends);
        let found = |name: &Name| {
            look();
            name.hash == hash && has(name.id, ends)
        };
        self.connections.find(spread(hash), found).map(|name| name.id)
    }

    /// The same of a packet that has come: the connection that the one before was of is asked first.
    #[inline]
    pub fn of_packet(&mut self, ends: &Ends, has: impl Fn(Id, &Ends) -> bool) -> Option<Id> {
        if let Some(last) = self.last.filter(|last| has(*last, ends)) {
            return Some(last);
        }
        let id = self.connection(ends, has);
        self.last = id.or(self.last);
        id
    }

    /// Who listens at this address, else who listens at its port at any.
    #[inline]
    pub fn listener(&self, local: Place) -> Option<Id> {
        let any = || self.listeners.get(&local.any());
        self.listeners.get(&local).or_else(any).copied()
    }

    /// Has packets of these ends be `id`'s. False, with nothing done, where they are somebody's; `has` says of one whether it has them.
    pub fn connect(&mut self, ends: &Ends, id: Id, has: impl Fn(Id, &Ends) -> bool) -> bool {
        let hash = self.hash(ends);
        let found = |name: &Name| name.hash == hash && (name.id == id || has(name.id, ends));
        let entry = self.connections.entry(spread(hash), found, |name| spread(name.hash));
        let free = matches!(entry, Entry::Vacant(_));
        entry.or_insert(Name { hash, id });
        free
    }

    /// They are nobody's any more, if they were `id`'s.
    pub fn disconnect(&mut self, ends: &Ends, id: Id) -> bool {
        let hash = self.hash(ends);
        self.last = self.last.filter(|last| *last != id);
        let entry = self.connections.find_entry(spread(hash), |name| name.hash == hash && name.id == id);
        entry.map(|entry| entry.remove()).is_ok()
    }

    /// Has `id` listen there. False, with nothing done, where somebody does at that very address.
    pub fn listen(&mut self, local: Place, id: Id) -> bool {
        let entry = self.listeners.entry(local);
        let free = matches!(entry, std::collections::hash_map::Entry::Vacant(_));
        entry.or_insert(id);
        free
    }

    /// It listens no more, if it did.
    pub fn unlisten(&mut self, local: Place, id: Id) -> bool {
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
        self.connections.shrink_to_fit(|name| spread(name.hash));
        self.listeners.shrink_to_fit();
    }
}
