//! Sockets of UDP: what programs ask of them.
//!
//! Their names are of the same kind as those of TCP's, and [`Stack::event`] tells of both.

mod arrive;
mod attached;
mod groups;
mod send;

use super::Stack;
use super::demux::{Place, any_like};
use super::ports::{Hold, NoPort, Ports};
use super::slab::Id;
use super::socket::{Bound, Slot};
use crate::key::Seed;
use crate::shard::Share;
use crate::tcp::{Readiness, Wake};
use crate::udp::{Config, Error, Received, Settings, Stats};
pub(super) use attached::Attached;
use groups::Groups;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

/// What all sockets have in common.
#[derive(Debug)]
pub(super) struct Udp {
    pub config: Config,
    groups: Groups,
    ports: Ports,
    /// Which ports its sockets may have.
    share: Option<Share>,
    stats: Stats,
    /// How many there are.
    count: usize,
    /// Bytes that wait to be received, in all: the sum of the inboxes' costs.
    memory: u64,
    /// Those that wait for room to send. Invariant: each that `waits`, once.
    waiting: VecDeque<Id>,
    /// So much room has them go on.
    enough: usize,
    /// Who gets what comes to everybody; empty between calls.
    heard: Vec<Id>,
}

impl Slot {
    fn udp(&self) -> Option<&Attached> {
        if let Slot::Udp(attached) = self { Some(attached) } else { None }
    }

    fn udp_mut(&mut self) -> Option<&mut Attached> {
        if let Slot::Udp(attached) = self { Some(attached) } else { None }
    }
}

impl Udp {
    /// Above what `ip` says.
    pub fn new(config: Config, seed: &Seed, ports: RangeInclusive<u16>, ip: &crate::ip::Config) -> Udp {
        Udp {
            config,
            groups: Groups::new(seed),
            // Which port of UDP comes next says nothing of TCP's.
            ports: Ports::new(&crate::key::Key::derive(seed, "datagrams").seed(), ports),
            stats: Stats::default(),
            count: 0,
            memory: 0,
            waiting: VecDeque::new(),
            enough: (ip.queue / 2).max(1),
            share: ip.share,
            heard: Vec::new(),
        }
    }

    /// It is told when there is room to send again.
    fn wait_for_room(&mut self, id: Id, attached: &mut Attached) {
        if !std::mem::replace(&mut attached.waits, true) {
            self.waiting.push_back(id);
        }
    }

    /// A socket is gone.
    pub fn forget(&mut self, id: Id, mut attached: Attached) {
        self.count -= 1;
        if attached.waits {
            self.waiting.retain(|other| *other != id);
        }
        if let Some(hold) = attached.hold.take() {
            self.groups.remove(hold.local(), attached.remote, id);
            self.ports.release(hold);
        }
        while let Some(received) = attached.socket.inbox.pop(&mut self.memory) {
            self.stats.unread += received.datagrams();
        }
    }

    pub fn rest(&mut self) {
        self.groups.rest();
        self.ports.rest();
        self.waiting.shrink_to_fit();
        self.heard.shrink_to_fit();
    }

    /// Moves a socket to another address or peer: its port stays.
    fn attach(&mut self, id: Id, attached: &mut Attached, local: IpAddr, remote: Option<Place>) {
        let Some(hold) = attached.hold.take() else { return };
        self.groups.remove(hold.local(), attached.remote, id);
        let moved = self.ports.inherit(&hold, local);
        self.ports.release(hold);
        self.groups.add(moved.local(), remote, id);
        attached.hold = Some(moved);
        attached.remote = remote;
    }

    /// Whether sockets here may have it.
    fn owns(&self, port: u16) -> bool {
        owned(self.share)(port)
    }

    /// Takes a port, or chooses one where that is 0.
    fn hold(&mut self, address: IpAddr, port: u16, reuse: bool) -> Result<Hold, NoPort> {
        let own = owned(self.share);
        self.ports.bind_among(address, port, reuse, own)
    }

    /// Gives it a port, where it has none, that it may send to `to` from.
    fn autobind(&mut self, id: Id, attached: &mut Attached, to: IpAddr) -> Result<(), Error> {
        if attached.hold.is_none() {
            let address = attached.asked.map_or(any_like(to), |asked| asked.ip);
            let hold = self.hold(address, 0, attached.reuse);
            let hold = hold.map_err(|_| Error::AddressNotAvailable)?;
            self.groups.add(hold.local(), None, id);
            attached.hold = Some(hold);
        }
        Ok(())
    }
}

/// Whether sockets of who has that share may have a port.
fn owned(share: Option<Share>) -> impl Fn(u16) -> bool {
    move |port| share.is_none_or(|share| share.of_port(port) == share.me())
}

impl Stack {
    /// Makes a socket (socket(2)).
    ///
    /// # Errors
    ///
    /// [`Error::NoMemory`] where there are as many as there may be.
    pub fn udp_open(&mut self) -> Result<Id, Error> {
        if self.udp.count >= self.udp.config.sockets {
            return Err(Error::NoMemory);
        }
        let id = self.sockets.insert_with(|_| Slot::Udp(Box::default())).ok_or(Error::NoMemory)?;
        self.udp.count += 1;
        Ok(id)
    }

    /// Whether a port can be chosen that nobody has, in either family.
    pub fn udp_has_port(&self) -> bool {
        self.udp.ports.has_unused(owned(self.udp.share))
    }

    /// Gives it an address (bind(2)): any, one of ours, or that of everybody on a network of ours; port 0 is one that nobody has. `reuse` is
    /// SO_REUSEADDR: those that have it may share one address, and the last one gets what comes.
    ///
    /// # Errors
    ///
    /// [`Error::AddressNotAvailable`], also where the port is another stack's of this host; [`Error::AddressInUse`], [`Error::Invalid`] where it
    /// has one.
    pub fn udp_bind(&mut self, id: Id, address: SocketAddr, reuse: bool) -> Result<(), Error> {
        let ip = address.ip();
        let attached = self.sockets.get_mut(id).and_then(Slot::udp_mut).ok_or(Error::NoSuchSocket)?;
        if attached.hold.is_some() {
            return Err(Error::Invalid);
        }
        if !ip.is_unspecified() && !self.ip.is_local(ip) && !self.ip.is_broadcast(ip) {
            return Err(Error::AddressNotAvailable);
        }
        if address.port() != 0 && !self.udp.owns(address.port()) {
            return Err(Error::AddressNotAvailable);
        }
        let hold = self.udp.hold(ip, address.port(), reuse).map_err(|_| Error::AddressInUse)?;
        self.udp.groups.add(hold.local(), None, id);
        attached.hold = Some(hold);
        (attached.asked, attached.reuse) = (Some(address.into()), reuse);
        Ok(())
    }

    /// Has it send to `to`, and get what comes from there alone (connect(2)). It may be called again; what waits to be received stays.
    /// (The port 0, which Linux takes, is refused: nobody can have it.)
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], [`Error::Access`], [`Error::NetUnreachable`], [`Error::AddressNotAvailable`] where no port is left.
    pub fn udp_connect(&mut self, id: Id, to: SocketAddr) -> Result<(), Error> {
        let attached = self.sockets.get_mut(id).and_then(Slot::udp_mut).ok_or(Error::NoSuchSocket)?;
        if to.port() == 0 {
            return Err(Error::Invalid);
        }
        let source = send::source(&self.ip, attached, to.ip(), None)?;
        self.udp.autobind(id, attached, to.ip())?;
        // What is bound to everybody's address gets what comes there.
        let local = attached.local().map(|local| local.ip).filter(|local| !local.is_unspecified());
        self.udp.attach(id, attached, local.unwrap_or(source), Some(to.into()));
        Ok(())
    }

    /// Has it be connected no more (connect(2) to AF_UNSPEC): it keeps the address and the port that [`Stack::udp_bind`] was told, and no
    /// others: one that was chosen for it is given back, and the next send chooses anew.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSocket`].
    pub fn udp_disconnect(&mut self, id: Id) -> Result<(), Error> {
        let attached = self.sockets.get_mut(id).and_then(Slot::udp_mut).ok_or(Error::NoSuchSocket)?;
        if attached.remote.is_none() {
            return Ok(());
        }
        let any = attached.local().map_or(Ipv4Addr::UNSPECIFIED.into(), |local| any_like(local.ip));
        let asked = attached.asked.unwrap_or(Place { ip: any, port: 0 });
        self.udp.attach(id, attached, asked.ip, None);
        if asked.port == 0
            && let Some(hold) = attached.hold.take()
        {
            self.udp.groups.remove(hold.local(), None, id);
            self.udp.ports.release(hold);
        }
        Ok(())
    }

    /// The next datagram, or train (recvmsg(2)).
    ///
    /// # Errors
    ///
    /// What a complaint said, once; [`Error::WouldBlock`] where nothing waits.
    pub fn udp_receive(&mut self, id: Id) -> Result<Received, Error> {
        let attached = self.sockets.get_mut(id).and_then(Slot::udp_mut).ok_or(Error::NoSuchSocket)?;
        if let Some(error) = attached.socket.take_error() {
            return Err(error);
        }
        let received = attached.socket.inbox.pop(&mut self.udp.memory).ok_or(Error::WouldBlock)?;
        self.udp.stats.received += received.datagrams();
        Ok(received)
    }

    /// The next datagram, or train, which stays (MSG_PEEK).
    pub fn udp_peek(&self, id: Id) -> Option<&Received> {
        self.sockets.get(id)?.udp()?.socket.inbox.first()
    }

    /// What would not wait (poll(2)). With an error neither way does, and as in Linux that alone is said then. A send that found no room
    /// waits until [`Stack::event`] tells of some; one that was not tried yet is not known to.
    pub fn udp_readiness(&self, id: Id) -> Readiness {
        let Some(attached) = self.sockets.get(id).and_then(Slot::udp) else { return Readiness::empty() };
        let mut readiness = Readiness::empty();
        readiness.set(Readiness::READ, !attached.socket.inbox.is_empty());
        // (Not whether there is room just now: nobody would tell those that did not ask when there is some again.)
        readiness.set(Readiness::WRITE, !attached.waits);
        readiness.set(Readiness::ERROR, attached.socket.has_error());
        readiness
    }

    /// What a complaint said, once (SO_ERROR).
    pub fn udp_take_error(&mut self, id: Id) -> Option<Error> {
        self.sockets.get_mut(id)?.udp_mut()?.socket.take_error()
    }

    /// Lets go of a socket (close(2)). What waits to be received is freed; what was sent leaves.
    pub fn udp_close(&mut self, id: Id) {
        if self.sockets.get(id).and_then(Slot::udp).is_some() {
            self.forget(id);
        }
    }

    /// Its addresses. One that is connected has an address of ours; one that is not has what it was bound to, with the port 0 where it
    /// has none any more.
    pub fn udp_addresses(&self, id: Id) -> Bound {
        let attached = self.sockets.get(id).and_then(Slot::udp);
        Bound {
            local: attached.and_then(|attached| attached.local().or(attached.asked)).map(SocketAddr::from),
            remote: attached.and_then(|attached| attached.remote).map(SocketAddr::from),
        }
    }

    /// Its options.
    pub fn udp_settings(&self, id: Id) -> Option<&Settings> {
        Some(&self.sockets.get(id)?.udp()?.socket.settings)
    }

    /// Changes its options (setsockopt(2)).
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSocket`]; [`Error::BadTtl`] with nothing changed.
    pub fn udp_set(&mut self, id: Id, change: impl FnOnce(&mut Settings)) -> Result<(), Error> {
        let attached = self.sockets.get_mut(id).and_then(Slot::udp_mut).ok_or(Error::NoSuchSocket)?;
        let mut settings = attached.socket.settings.clone();
        change(&mut settings);
        settings.settle()?;
        attached.socket.settings = settings;
        Ok(())
    }

    /// Datagrams for it that were dropped, as there was no room (SO_RXQ_OVFL).
    pub fn udp_drops(&self, id: Id) -> Option<u64> {
        Some(self.sockets.get(id)?.udp()?.socket.drops)
    }

    /// Bytes that wait to be received, as they count of its receive buffer (SO_MEMINFO).
    pub fn udp_waiting(&self, id: Id) -> Option<u64> {
        Some(self.sockets.get(id)?.udp()?.socket.inbox.cost())
    }

    /// What holds for all sockets.
    pub fn udp_config(&self) -> &Config {
        &self.udp.config
    }

    /// The same, to be changed.
    pub fn udp_config_mut(&mut self) -> &mut Config {
        &mut self.udp.config
    }

    /// What UDP has counted.
    pub fn udp_stats(&self) -> &Stats {
        &self.udp.stats
    }

    /// Packets have left: who waits for room goes on once there is enough of it.
    #[inline]
    pub(super) fn udp_room(&mut self) {
        if !self.udp.waiting.is_empty() && self.ip.room() >= self.udp.enough {
            self.tell_udp_room();
        }
    }

    /// There are pages again, of which it had none. Whether it waits.
    pub(super) fn udp_pages_came(&mut self, id: Id) -> bool {
        let attached = self.sockets.get_mut(id).and_then(Slot::udp_mut).filter(|attached| attached.waits);
        let Some(attached) = attached else { return false };
        self.udp.waiting.retain(|other| *other != id);
        attached.waits = false;
        attached.wake(id, Wake::WRITE, &mut self.events);
        true
    }

    fn tell_udp_room(&mut self) {
        for id in self.udp.waiting.drain(..) {
            if let Some(attached) = self.sockets.get_mut(id).and_then(Slot::udp_mut) {
                attached.waits = false;
                attached.wake(id, Wake::WRITE, &mut self.events);
            }
        }
    }
}
