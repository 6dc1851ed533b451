//! A stack of one link: sockets by name, packets in and out, what is due and what has happened.
//!
//! It has no clock, descriptor or thread. Whoever drives it does this, again and again, and says what time it is:
//!
//! 1. [`Stack::receive`] with each packet that the link has;
//! 2. [`Stack::advance`], when [`Stack::deadline`] has come;
//! 3. the program's calls;
//! 4. [`Stack::event`], until there is none: what whoever waits for a socket should hear;
//! 5. [`Stack::transmit`], until there is none, as far as the link has room.
//!
//! What is sent to an address of this side's never leaves: it comes in by the next [`Stack::advance`], which is due at once then.

pub mod demux;
pub mod isn;
pub mod ports;
pub mod slab;

mod arrive;
mod calls;
mod disconnect;
mod fast_open;
mod lower;
mod memory;
mod room;
mod socket;
mod spare;
mod udp;

pub use room::{RoomId, RoomStats};
pub use socket::Bound;

use crate::ip::Interface;
use crate::key::{Key, Seed};
use crate::tcp::fast_open::{Cache, Keys};
use crate::tcp::memory::Pressure;
use crate::tcp::{self, After, Connection, Context, Wake};
use crate::timers::Wheel;
use demux::{Demux, Ends};
use isn::Isn;
use lower::{Lower, context, lengths};
use onecopy_link::Packet;
use ports::Ports;
use slab::{Id, Slab};
use socket::{Over, Slot};
use spare::Spare;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// What a stack is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the link takes, this side's addresses, the ways to others.
    pub ip: crate::ip::Config,
    /// What holds for all connections.
    pub tcp: tcp::Config,
    /// What holds for all sockets of UDP.
    pub udp: crate::udp::Config,
    /// Where its secrets come from (first sequence numbers, ports, places in tables). Nobody else may know it, or foretell it: draw it from
    /// the system's random numbers, and keep it fixed in tests alone.
    pub seed: Seed,
    /// Sockets, connections, half-open ones and those that are over, all together.
    pub sockets: usize,
    /// Ports that are chosen (net.ipv4.ip_local_port_range).
    pub ports: RangeInclusive<u16>,
}

impl Config {
    /// With Linux's defaults.
    pub fn new(ip: crate::ip::Config, seed: Seed) -> Config {
        let (tcp, udp) = Default::default();
        Config { ip, tcp, udp, seed, sockets: 1 << 20, ports: Ports::RANGE }
    }
}

/// Something has happened to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which.
    pub id: Id,
    /// What.
    pub wake: Wake,
}

/// Whether `id` has these ends.
#[inline]
fn has(sockets: &Slab<Slot>, id: Id, ends: &Ends) -> bool {
    sockets.get(id).and_then(Slot::ends) == Some(ends)
}

/// How much of everything a stack has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Sockets, connections, half-open ones and those that are over: [`Stack::len`].
    pub sockets: usize,
    /// Pairs of ends that packets are looked for.
    pub connections: usize,
    /// Addresses that are listened at.
    pub listeners: usize,
    /// Holds on ports.
    pub ports: usize,
    /// Timers that run.
    pub timers: usize,
    /// Connections in TIME-WAIT.
    pub over: usize,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Stack {
    config: tcp::Config,
    ip: Interface,
    sockets: Slab<Slot>,
    /// What sockets begin with: theirs, too, as long as they change nothing.
    settings: Arc<tcp::Settings>,
    demux: Demux,
    ports: Ports,
    numbers: Isn,
    /// What is known of servers.
    cookies: Cache,
    /// What this side's cookies are made of, where nobody said it.
    own_keys: Keys,
    timers: Wheel,
    /// Sockets that something has happened to; what it was stands with them.
    events: VecDeque<Id>,
    stats: tcp::Stats,
    /// Connections in TIME-WAIT.
    over: u32,
    /// What all connections keep.
    shared: memory::Shared,
    rooms: room::Rooms,
    spare: Spare,
    /// Where the payload of the packet that is being taken in lies, if that is no ordinary memory.
    arriving: Option<RoomId>,
    udp: udp::Udp,
}

impl Stack {
    /// A stack without sockets.
    ///
    /// # Errors
    ///
    /// As [`Interface::new`].
    pub fn new(config: Config) -> Result<Stack, crate::ip::BadConfig> {
        let udp = udp::Udp::new(config.udp, &config.seed, config.ports.clone(), &config.ip);
        Ok(Stack {
            ip: Interface::new(config.ip)?,
            sockets: Slab::new(config.sockets),
            settings: Arc::default(),
            demux: Demux::new(&config.seed),
            ports: Ports::new(&config.seed, config.ports.clone()),
            numbers: Isn::new(&config.seed),
            cookies: Cache::new(Key::derive(&config.seed, "servers")),
            own_keys: Keys::derive(&Key::derive(&config.seed, "cookies")),
            timers: Wheel::new(),
            events: VecDeque::new(),
            stats: tcp::Stats::default(),
            over: 0,
            shared: memory::Shared::default(),
            rooms: room::Rooms::default(),
            spare: Spare::new(config.tcp.memory[2]),
            arriving: None,
            udp,
            config: config.tcp,
        })
    }

    /// What holds for all connections.
    pub fn tcp_config(&self) -> &tcp::Config {
        &self.config
    }

    /// The same, to be changed: what connections do from now on.
    pub fn tcp_config_mut(&mut self) -> &mut tcp::Config {
        &mut self.config
    }

    /// What TCP has counted.
    pub fn tcp_stats(&self) -> &tcp::Stats {
        &self.stats
    }

    /// The network's layer: its addresses, ways and counters.
    pub fn interface(&self) -> &Interface {
        &self.ip
    }

    /// The same, to be changed.
    pub fn interface_mut(&mut self) -> &mut Interface {
        &mut self.ip
    }

    /// The next packet for the link; `None` when there is none.
    #[inline]
    pub fn transmit(&mut self) -> Option<Packet> {
        let packet = self.ip.transmit();
        self.udp_room();
        packet
    }

    /// When [`Stack::advance`] has something to do; `None` when nothing waits.
    pub fn deadline(&self) -> Option<u64> {
        match (self.timers.next(), self.ip.deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Does what is due.
    pub fn advance(&mut self, now: u64) {
        self.ip.advance(now);
        self.hear_complaints(now);
        self.receive_own(now);
        while let Some(index) = self.timers.pop(now) {
            if let Some(id) = self.sockets.id_at(index) {
                self.due(now, id);
            }
        }
    }

    /// The next socket that something has happened to. One that more happens to before it was asked for is told of once.
    pub fn event(&mut self) -> Option<Event> {
        while let Some(id) = self.events.pop_front() {
            let wake = match self.sockets.get_mut(id) {
                Some(Slot::Connection(connected)) => std::mem::take(&mut connected.wake),
                Some(Slot::Listener(listener)) => std::mem::take(&mut listener.wake),
                Some(Slot::Udp(attached)) => attached.take_wake(),
                Some(Slot::Fresh(fresh)) => std::mem::take(&mut fresh.wake),
                _ => continue,
            };
            if !wake.is_empty() {
                return Some(Event { id, wake });
            }
        }
        None
    }

    /// Sockets, connections, half-open ones and those that are over.
    pub fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    /// How much of everything it has. Without sockets, it is nothing at all.
    pub fn census(&self) -> Census {
        Census {
            sockets: self.sockets.len(),
            connections: self.demux.connections(),
            listeners: self.demux.listeners(),
            ports: self.ports.len(),
            timers: self.timers.len(),
            over: self.over as usize,
        }
    }

    /// The connection of these ends.
    #[inline]
    fn connection(&mut self, ends: &Ends) -> Option<Id> {
        self.demux.of_packet(ends, |id, ends| has(&self.sockets, id, ends))
    }

    /// Has packets of these ends be `id`'s, unless they are somebody's.
    fn connect(&mut self, ends: &Ends, id: Id) {
        self.demux.connect(ends, id, |id, ends| has(&self.sockets, id, ends));
    }

    /// Calls `call` of a connection with all that it needs, and sees to what comes of it.
    fn with<R>(
        &mut self,
        now: u64,
        id: Id,
        call: impl FnOnce(&mut Connection, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let pressure = self.shared.pressure(&self.config);
        // (Only who is short has to share.)
        let share = if pressure == Pressure::Short { self.share() } else { u64::MAX };
        let connected = self.sockets.get_mut(id)?.connected_mut()?;
        let lengths = lengths(&self.ip, now, &connected.ends);
        let mut lower = Lower { ip: &mut self.ip, ends: connected.ends, now };
        let mut ctx = context(now, &self.config, &mut self.stats, &mut lower, &self.spare, lengths);
        (ctx.pressure, ctx.memory_share) = (pressure, share);
        ctx.memory_left = self.shared.left(&self.config);
        let room = self.rooms.left(connected);
        connected.connection.set_room(room);
        let result = call(&mut connected.connection, &mut ctx);
        let (wake, news, heard) = (ctx.wake, ctx.news, ctx.heard);
        if heard {
            // The way there is good (RFC 1122, section 2.3.2.1).
            self.ip.confirm(now, connected.ends.remote.ip);
        }
        if connected.connection.is_orphan() {
            // Nobody is there to hear of it, nor of what was not told yet.
            connected.wake = Wake::empty();
        } else if !wake.is_empty() && connected.listener.is_none() {
            if connected.wake.is_empty() {
                self.events.push_back(id);
            }
            connected.wake |= wake;
        }
        self.shared.charge(&self.config, &mut self.stats, id, connected);
        self.rooms.claim(id, connected);
        match connected.connection.deadline() {
            Some(at) => self.timers.set(id.index(), at),
            None => {
                self.timers.cancel(id.index());
            }
        }
        if connected.early.is_some() || news.is_some() {
            self.follow_fast_open(now, id, news);
        }
        Some(result)
    }

    /// What is due of a socket.
    fn due(&mut self, now: u64, id: Id) {
        match self.sockets.get_mut(id) {
            Some(Slot::Connection(_)) => {
                if self.ends_orphan(now, id) {
                    return;
                }
                if let Some(after) = self.with(now, id, |connection, ctx| connection.advance(ctx)) {
                    self.follow(now, id, after);
                }
            }
            Some(Slot::Request(_)) => self.request_due(now, id),
            Some(Slot::TimeWait(over)) => {
                if over.rest.deadline() > now {
                    self.timers.set(id.index(), over.rest.deadline());
                } else {
                    self.forget(id);
                }
            }
            _ => {}
        }
    }

    /// Sees to what a call or a segment left to be done. (A reset is sent before.)
    fn follow(&mut self, now: u64, id: Id, after: After) {
        match after {
            After::Keep | After::Refuse => {}
            After::TimeWait => self.enter_time_wait(now, id),
            After::Ended | After::EndedRefuse => self.ended(id),
        }
    }

    /// A connection has ended: nothing comes for it any more, and where nobody holds it, it is gone.
    fn ended(&mut self, id: Id) {
        self.timers.cancel(id.index());
        let Some(connected) = self.sockets.get_mut(id).and_then(Slot::connected_mut) else { return };
        self.demux.disconnect(&connected.ends, id);
        let orphan = connected.connection.is_orphan();
        // What the program has bound it keeps until it closes (tcp_set_state()).
        if let Some(hold) = connected.hold.take_if(|_| orphan || !connected.asked.has_port()) {
            self.ports.release(hold);
        }
        if orphan {
            self.remove_connection(id);
        }
    }

    /// A connection is over in order: what is left of it is small, and has a name of its own.
    fn enter_time_wait(&mut self, now: u64, id: Id) {
        let Some(connected) = self.sockets.get_mut(id).and_then(Slot::connected_mut) else { return };
        let (ends, hold) = (connected.ends, connected.hold.take());
        if let Some(hold) = hold.as_ref().filter(|_| connected.asked.has_port()) {
            // The program has what it bound, and so has what is left of the connection.
            connected.hold = Some(self.ports.inherit(hold, hold.local().ip));
        }
        let rest = tcp::time_wait::TimeWait::new(now, &self.config, &mut connected.connection);
        connected.connection.over();
        let orphan = connected.connection.is_orphan();
        self.demux.disconnect(&ends, id);
        self.timers.cancel(id.index());
        if orphan
            && let Some(mut gone) = self.remove_connection(id)
            && let Some(hold) = gone.hold.take()
        {
            self.ports.release(hold);
        }
        if self.over >= self.config.max_time_wait || self.sockets.is_full() {
            self.stats.time_wait_overflow += 1;
            if let Some(hold) = hold {
                self.ports.release(hold);
            }
            return;
        }
        let deadline = rest.deadline();
        let over = Box::new(Over { rest, ends, hold });
        let Some(id) = self.sockets.insert_with(|_| Slot::TimeWait(over)) else { return };
        self.over += 1;
        self.connect(&ends, id);
        self.timers.set(id.index(), deadline);
    }

    /// Removes what nobody holds, and gives its name and port back.
    fn forget(&mut self, id: Id) {
        self.timers.cancel(id.index());
        let (ends, hold) = match self.sockets.remove(id) {
            Some(Slot::Connection(connected)) => {
                self.shared.release(&self.config, &connected.charge);
                self.rooms.release(&connected.claim);
                (Some(connected.ends), connected.hold)
            }
            Some(Slot::TimeWait(over)) => {
                self.over -= 1;
                (Some(over.ends), over.hold)
            }
            Some(Slot::Request(pending)) => {
                if let Some(listener) = self.sockets.get_mut(pending.listener).and_then(Slot::listener_mut) {
                    listener.half_open -= 1;
                }
                (Some(pending.ends), None)
            }
            Some(Slot::Listener(listener)) => {
                self.demux.unlisten(listener.hold.local(), id);
                (None, Some(listener.hold))
            }
            Some(Slot::Fresh(fresh)) => (fresh.deferred, fresh.hold),
            Some(Slot::Udp(attached)) => return self.udp.forget(id, *attached),
            None => return,
        };
        if let Some(ends) = ends {
            self.demux.disconnect(&ends, id);
        }
        if let Some(hold) = hold {
            self.ports.release(hold);
        }
    }

    /// Tells who waits for a listener.
    fn wake_listener(&mut self, id: Id, wake: Wake) {
        if let Some(listener) = self.sockets.get_mut(id).and_then(Slot::listener_mut) {
            if listener.wake.is_empty() {
                self.events.push_back(id);
            }
            listener.wake |= wake;
        }
    }

    /// Gives back memory of those that are gone.
    pub fn rest(&mut self) {
        self.sockets.rest();
        self.ip.rest();
        self.demux.rest();
        self.ports.rest();
        self.udp.rest();
        self.shared.rest();
        self.spare.rest();
        self.timers.rest();
        self.events.shrink_to_fit();
    }
}
