//! Whose a datagram is.

use super::super::demux::{Ends, Place};
use super::super::slab::Id;
use crate::key::{Key, Seed, Table};
use std::collections::hash_map::Entry;
use std::hash::Hash;

/// Sockets of one address: the last one gets what comes to one, as with Linux; it is the others' turn when it is gone.
#[derive(Debug)]
struct Group {
    last: Id,
    before: Vec<Id>,
}

/// Connected sockets by their ends, the others by their address.
#[derive(Debug)]
pub(super) struct Groups {
    connected: Table<Ends, Group>,
    bound: Table<Place, Group>,
}

impl Groups {
    /// Nobody yet. Places in the tables come from `seed`.
    pub fn new(seed: &Seed) -> Groups {
        Groups {
            connected: Table::with_hasher(Key::derive(seed, "connected datagrams")),
            bound: Table::with_hasher(Key::derive(seed, "bound datagrams")),
        }
    }

    /// Has `id` get what comes to `local`, from `remote` alone where there is one.
    pub fn add(&mut self, local: Place, remote: Option<Place>, id: Id) {
        match remote {
            Some(remote) => add(&mut self.connected, Ends { local, remote }, id),
            None => add(&mut self.bound, local, id),
        }
    }

    /// It gets nothing more from there.
    pub fn remove(&mut self, local: Place, remote: Option<Place>, id: Id) {
        match remote {
            Some(remote) => remove(&mut self.connected, Ends { local, remote }, id),
            None => remove(&mut self.bound, local, id),
        }
    }

    /// Who is connected so.
    #[inline]
    pub fn connected(&self, ends: &Ends) -> Option<Id> {
        self.connected.get(ends).map(|group| group.last)
    }

    /// Who gets what comes: who is connected so, else who has that address, else who has its port at any.
    #[inline]
    pub fn whose(&self, ends: &Ends) -> Option<Id> {
        self.connected(ends).or_else(|| {
            let any = || self.bound.get(&ends.local.any());
            self.bound.get(&ends.local).or_else(any).map(|group| group.last)
        })
    }

    /// Puts all of those into `ids` who get what comes to everybody at `to`: who has that very address, or its port at any.
    pub fn all(&self, to: Place, ids: &mut Vec<Id>) {
        let places = [to, to.any()];
        for group in places.iter().filter_map(|place| self.bound.get(place)) {
            ids.extend_from_slice(&group.before);
            ids.push(group.last);
        }
    }

    /// Gives back memory of those that are gone.
    pub fn rest(&mut self) {
        self.connected.shrink_to_fit();
        self.bound.shrink_to_fit();
    }
}

fn add<K: Hash + Eq>(table: &mut Table<K, Group>, key: K, id: Id) {
    match table.entry(key) {
        Entry::Vacant(entry) => {
            entry.insert(Group { last: id, before: Vec::new() });
        }
        Entry::Occupied(mut entry) => {
            let group = entry.get_mut();
            group.before.push(std::mem::replace(&mut group.last, id));
        }
    }
}

fn remove<K: Hash + Eq>(table: &mut Table<K, Group>, key: K, id: Id) {
    let Entry::Occupied(mut entry) = table.entry(key) else { return };
    let group = entry.get_mut();
    if group.last != id {
        group.before.retain(|other| *other != id);
        return;
    }
    match group.before.pop() {
        Some(before) => group.last = before,
        None => {
            entry.remove();
        }
    }
}
