//! Who has which port, and which one comes next.

use crate::key::{Key, Seed, Table};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::RangeInclusive;

/// A port that is held, at an address ([`Ipv4Addr::UNSPECIFIED`]: at any): given back by [`Ports::release`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a port that is not released stays taken"]
pub struct Hold {
    address: Ipv4Addr,
    port: u16,
    reuse: bool,
    listening: bool,
    /// Taken by [`Ports::connect`].
    chosen: bool,
}

const _: () = assert!(size_of::<Hold>() <= 10);

impl Hold {
    /// Where.
    pub fn local(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.address, self.port)
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
    /// By port, for all addresses together.
    ports: Table<u16, Uses>,
    places: Table<SocketAddrV4, Uses>,
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

    fn uses(&self, address: Ipv4Addr, port: u16) -> Uses {
        self.places.get(&SocketAddrV4::new(address, port)).copied().unwrap_or_default()
    }

    fn of(&self, port: u16) -> Uses {
        self.ports.get(&port).copied().unwrap_or_default()
    }

    /// What `address` and others that hold `port` meet in.
    fn overlap(&self, address: Ipv4Addr, port: u16) -> Uses {
        if address.is_unspecified() {
            return self.of(port);
        }
        let (here, any) = (self.uses(address, port), self.uses(Ipv4Addr::UNSPECIFIED, port));
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
    pub fn bind(&mut self, address: Ipv4Addr, port: u16, reuse: bool) -> Result<Hold, NoPort> {
        let port = if port == 0 { self.unused().ok_or(NoPort::Exhausted)? } else { port };
        let others = self.overlap(address, port);
        if others.all > 0 && (!reuse || others.alone > 0 || others.listening > 0) {
            return Err(NoPort::InUse);
        }
        Ok(self.hold(Hold { address, port, reuse, listening: false, chosen: false }))
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
        let others = self.overlap(hold.address, hold.port);
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
    pub fn inherit(&mut self, listener: &Hold, address: Ipv4Addr) -> Hold {
        self.hold(Hold { address, listening: false, chosen: false, ..*listener })
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
        address: Ipv4Addr,
        to: SocketAddrV4,
        reuse: bool,
        mut free: impl FnMut(u16) -> bool,
    ) -> Result<Hold, NoPort> {
        let mut bytes = [0; 10];
        bytes[..4].copy_from_slice(&address.octets());
        bytes[4..8].copy_from_slice(&to.ip().octets());
        bytes[8..].copy_from_slice(&to.port().to_be_bytes());
        let group = self.group.secret(&bytes) as usize % GROUPS;
        let first = (self.offset.secret(&bytes) as u32).wrapping_add(self.counts[group]);
        let found = self.search(first & !1, |port| {
            let uses = self.of(port);
            uses.all == uses.chosen && free(port)
        });
        let (port, tried) = found.ok_or(NoPort::Exhausted)?;
        // Behind the one that was found, and on the same side of odd and even.
        self.counts[group] = self.counts[group].wrapping_add(tried + 2);
        Ok(self.hold(Hold { address, port, reuse, listening: false, chosen: true }))
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

    /// A port that nobody has.
    fn unused(&mut self) -> Option<u16> {
        self.binds = self.binds.wrapping_add(1);
        let first = self.offset.secret(&self.binds.to_le_bytes()) as u32;
        let (port, _) = self.search(first | 1, |port| self.of(port).all == 0)?;
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
        self.ports.entry(hold.port).or_default().add(&hold);
        self.places.entry(hold.local()).or_default().add(&hold);
        hold
    }

    fn change(&mut self, hold: &mut Hold, change: impl FnOnce(&mut Hold)) {
        for uses in [self.ports.get_mut(&hold.port), self.places.get_mut(&hold.local())].into_iter().flatten()
        {
            uses.take(hold);
        }
        change(hold);
        for uses in [self.ports.get_mut(&hold.port), self.places.get_mut(&hold.local())].into_iter().flatten()
        {
            uses.add(hold);
        }
    }

    fn forget(&mut self, hold: &Hold) {
        fn one<K: std::hash::Hash + Eq>(table: &mut Table<K, Uses>, key: K, hold: &Hold) {
            if let std::collections::hash_map::Entry::Occupied(mut entry) = table.entry(key) {
                entry.get_mut().take(hold);
                if entry.get().all == 0 {
                    entry.remove();
                }
            }
        }
        one(&mut self.ports, hold.port, hold);
        one(&mut self.places, hold.local(), hold);
    }
}
