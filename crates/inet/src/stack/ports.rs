//! Who has which port, and which one comes next.

use super::demux::Place;
use crate::key::{self, Key, Seed, Table};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

/// A port that is held, at an address, or at any of its family: given back by [`Ports::release`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a port that is not released stays taken"]
pub struct Hold {
    place: Place,
    reuse: bool,
    listening: bool,
    /// Taken by [`Ports::connect`].
    chosen: bool,
}

const _: () = assert!(size_of::<Hold>() <= 24);

impl Hold {
    /// Where.
    pub fn local(&self) -> Place {
        self.place
    }

    /// Whether it is a listener's.
    pub fn is_listening(&self) -> bool {
        self.listening
    }
}

/// Why no port was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPort {
    /// Somebody has it, and does not share it.
    InUse,
    /// All that could be chosen are somebody's.
    Exhausted,
}

impl fmt::Display for NoPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoPort::InUse => {
                "somebody else has the port; choose another one, or set SO_REUSEADDR on both sockets"
            }
            NoPort::Exhausted => {
                "all ports are in use that could be chosen; close connections, or widen the range"
            }
        })
    }
}

impl std::error::Error for NoPort {}

/// How often a port, or a port at an address, is held.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    all: u32,
    /// By those who do not share.
    alone: u32,
    listening: u32,
    /// By those who were given it by [`Ports::connect`].
    chosen: u32,
}

impl Uses {
    fn add(&mut self, hold: &Hold) {
        self.all += 1;
        self.alone += u32::from(!hold.reuse);
        self.listening += u32::from(hold.listening);
        self.chosen += u32::from(hold.chosen);
    }

    fn take(&mut self, hold: &Hold) {
        self.all -= 1;
        self.alone -= u32::from(!hold.reuse);
        self.listening -= u32::from(hold.listening);
        self.chosen -= u32::from(hold.chosen);
    }
}

/// The ports of one protocol. Who may share one: net/ipv4/inet_connection_sock.c, inet_csk_bind_conflict().
#[derive(Debug)]
pub struct Ports {
    range: RangeInclusive<u16>,
    /// By port, for all addresses of a family together: the place is that of any.
    ports: Table<Place, Uses>,
    places: Table<Place, Uses>,
    /// RFC 6056's F and G.
    offset: Key,
    group: Key,
    /// RFC 6056's table: how many were chosen, for each group of those that are connected to.
    counts: Box<[u32; GROUPS]>,
    /// How many were chosen by [`Ports::bind`].
    binds: u64,
}

/// As many as the kernel has at least (INET_TABLE_PERTURB_SIZE).
const GROUPS: usize = 256;

impl Ports {
    /// Ports that are chosen: as the kernel's net.ipv4.ip_local_port_range.
    pub const RANGE: RangeInclusive<u16> = 32768..=60999;

    /// All free. What is chosen comes from `range`, in an order that comes from `seed`.
    pub fn new(seed: &Seed, range: RangeInclusive<u16>) -> Ports {
        let table = |label| Key::derive(seed, label);
        let start = table("port counts");
        Ports {
            range,
            ports: Table::with_hasher(table("ports")),
            places: Table::with_hasher(table("places")),
            offset: table("port offsets"),
            group: table("port groups"),
            counts: Box::new(std::array::from_fn(|group| start.secret(&group.to_le_bytes()) as u32)),
            binds: 0,
        }
    }

    fn uses(&self, place: Place) -> Uses {
        self.places.get(&place).copied().unwrap_or_default()
    }

    /// What all have that hold the port of `place` at an address of its family.
    fn of(&self, place: Place) -> Uses {
        self.ports.get(&place.any()).copied().unwrap_or_default()
    }

    /// What `place` and others that hold its port meet in. (IPv6's "any" is not IPv4's, as with IPV6_V6ONLY.)
    fn overlap(&self, place: Place) -> Uses {
        if place.ip.is_unspecified() {
            return self.of(place);
        }
        let (here, any) = (self.uses(place), self.uses(place.any()));
        Uses {
            all: here.all + any.all,
            alone: here.alone + any.alone,
            listening: here.listening + any.listening,
            chosen: here.chosen + any.chosen,
        }
    }

    /// Takes `port` at `address`, or one that nobody has where that is 0. `reuse` (SO_REUSEADDR): it is shared with those who share it and
    /// do not listen.
    ///
    /// # Errors
    ///
    /// [`NoPort`].
    pub fn bind(&mut self, address: IpAddr, port: u16, reuse: bool) -> Result<Hold, NoPort> {
        self.bind_among(address, port, reuse, |_| true)
    }

    /// As [`Ports::bind`]; where it chooses, it chooses of those that `good` says.
    ///
    /// # Errors
    ///
    /// [`NoPort`].
    pub fn bind_among(
        &mut self,
        address: IpAddr,
        port: u16,
        reuse: bool,
        good: impl FnMut(u16) -> bool,
    ) -> Result<Hold, NoPort> {
        let port = if port == 0 { self.unused(address, good).ok_or(NoPort::Exhausted)? } else { port };
        let place = Place { ip: address, port };
        let others = self.overlap(place);
        if others.all > 0 && (!reuse || others.alone > 0 || others.listening > 0) {
            return Err(NoPort::InUse);
        }
        Ok(self.hold(Hold { place, reuse, listening: false, chosen: false }))
    }

    /// Whether [`Ports::bind_among`] would find one, in either family.
    pub fn has_unused(&self, mut good: impl FnMut(u16) -> bool) -> bool {
        let unused = |ip: IpAddr, port| self.of(Place { ip, port }).all == 0;
        let both =
            |port| unused(Ipv4Addr::UNSPECIFIED.into(), port) && unused(Ipv6Addr::UNSPECIFIED.into(), port);
        self.search(1, |port| good(port) && both(port)).is_some()
    }

    /// Has it be a listener's: of those who share a port only one may listen.
    ///
    /// # Errors
    ///
    /// [`NoPort::InUse`], with nothing done.
    pub fn listen(&mut self, hold: &mut Hold) -> Result<(), NoPort> {
        if hold.listening {
            return Ok(());
        }
        let others = self.overlap(hold.place);
        // Itself among them.
        if others.all > 1 && (!hold.reuse || others.alone > 0 || others.listening > 0) {
            return Err(NoPort::InUse);
        }
        self.change(hold, |hold| hold.listening = true);
        Ok(())
    }

    /// Has it be no listener's any more.
    pub fn unlisten(&mut self, hold: &mut Hold) {
        self.change(hold, |hold| hold.listening = false);
    }

    /// Sets whether it is shared from now on: SO_REUSEADDR, set later.
    pub fn set_reuse(&mut self, hold: &mut Hold, reuse: bool) {
        self.change(hold, |hold| hold.reuse = reuse);
    }

    /// The same port once more, for a connection that a listener got, at `address`. Nobody is asked: its other end makes it another one.
    pub fn inherit(&mut self, listener: &Hold, address: IpAddr) -> Hold {
        let place = Place { ip: address, ..listener.place };
        self.hold(Hold { place, listening: false, chosen: false, ..*listener })
    }

    /// Chooses a port for a connection from `address` to `to`, of those that nobody has bound; `free` says of each whether the connection
    /// would be the only one of its ends. RFC 6056, section 3.3.4, double hash; every other port is tried first, as the kernel does
    /// (net/ipv4/inet_hashtables.c, __inet_hash_connect()), so that [`Ports::bind`] finds those between.
    ///
    /// # Errors
    ///
    /// [`NoPort::Exhausted`].
    pub fn connect(
        &mut self,
        address: IpAddr,
        to: Place,
        reuse: bool,
        mut free: impl FnMut(u16) -> bool,
    ) -> Result<Hold, NoPort> {
        let (group, offset) = key::of_pair(address, to.ip, to.port.to_be_bytes(), |bytes| {
            (self.group.secret(bytes) as usize % GROUPS, self.offset.secret(bytes) as u32)
        });
        let first = offset.wrapping_add(self.counts[group]);
        let found = self.search(first & !1, |port| {
            let uses = self.of(Place { ip: address, port });
            uses.all == uses.chosen && free(port)
        });
        let (port, tried) = found.ok_or(NoPort::Exhausted)?;
        // Behind the one that was found, and on the same side of odd and even.
        self.counts[group] = self.counts[group].wrapping_add(tried + 2);
        Ok(self.hold(Hold { place: Place { ip: address, port }, reuse, listening: false, chosen: true }))
    }

    /// Gives it back.
    pub fn release(&mut self, hold: Hold) {
        self.forget(&hold);
    }

    /// Ports that somebody has.
    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// Whether nobody has any.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Gives back memory of those that are free again.
    pub fn rest(&mut self) {
        self.ports.shrink_to_fit();
        self.places.shrink_to_fit();
    }

    /// A port that nobody has at an address of the family that `address` is of.
    fn unused(&mut self, address: IpAddr, mut good: impl FnMut(u16) -> bool) -> Option<u16> {
        self.binds = self.binds.wrapping_add(1);
        let first = self.offset.secret(&self.binds.to_le_bytes()) as u32;
        let (port, _) =
            self.search(first | 1, |port| good(port) && self.of(Place { ip: address, port }).all == 0)?;
        Some(port)
    }

    /// The first port that `good` likes, from number `first` of the range on, and how far behind that it is: every other one, then those
    /// between. Each is tried once.
    fn search(&self, first: u32, mut good: impl FnMut(u16) -> bool) -> Option<(u16, u32)> {
        let low = u32::from(*self.range.start());
        let count = (u32::from(*self.range.end()) + 1).checked_sub(low).filter(|count| *count > 0)?;
        let first = first % count;
        (0..count).step_by(2).chain((1..count).step_by(2)).find_map(|step| {
            let port = (low + (first + step) % count) as u16;
            good(port).then_some((port, step))
        })
    }

    fn hold(&mut self, hold: Hold) -> Hold {
        self.ports.entry(hold.place.any()).or_default().add(&hold);
        self.places.entry(hold.place).or_default().add(&hold);
        hold
    }

    fn change(&mut self, hold: &mut Hold, change: impl FnOnce(&mut Hold)) {
        for uses in
            [self.ports.get_mut(&hold.place.any()), self.places.get_mut(&hold.place)].into_iter().flatten()
        {
            uses.take(hold);
        }
        change(hold);
        for uses in
            [self.ports.get_mut(&hold.place.any()), self.places.get_mut(&hold.place)].into_iter().flatten()
        {
            uses.add(hold);
        }
    }

    fn forget(&mut self, hold: &Hold) {
        fn one(table: &mut Table<Place, Uses>, key: Place, hold: &Hold) {
            if let std::collections::hash_map::Entry::Occupied(mut entry) = table.entry(key) {
                entry.get_mut().take(hold);
                if entry.get().all == 0 {
                    entry.remove();
                }
            }
        }
        one(&mut self.ports, hold.place.any(), hold);
        one(&mut self.places, hold.place, hold);
    }
}
