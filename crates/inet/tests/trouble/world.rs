//! Connections of two stacks, and a plain model of each: what was given, what came, what was told.

use crate::net::{A, B, Host, Net};
use onecopy_chain::notify::{self, Completion, Lane, Segment};
use onecopy_chain::{Chain, Writer};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{Census, Config};
use onecopy_inet::tcp::{Error, Readiness, Received, SendFlags, Settings, Side as Way};
use onecopy_link::Capabilities;
use onecopy_link::pair::{Path, Side};
use std::collections::HashMap;
use std::net::SocketAddr;

const SECOND: u64 = 1_000_000_000;

/// One end of a connection, as its program sees it.
#[derive(Default)]
pub struct End {
    /// None before it is accepted, and after it was closed.
    pub id: Option<Id>,
    /// Bytes that were taken.
    given: u64,
    /// Bytes that were read.
    got: u64,
    /// What was offered by reference and not taken, to be offered again.
    rest: Option<Segment<Chain>>,
    /// Behind what the sends end, by their number; none once it completed.
    sends: Vec<Option<u64>>,
    /// Where the next send by reference would end.
    offered: u64,
    lane: Option<Lane>,
    shut_read: bool,
    pub shut_write: bool,
    /// It was closed, or aborted, by the program.
    gone: bool,
    /// It had an error.
    failed: bool,
    /// All came.
    ended: bool,
}

#[derive(Default)]
pub struct Link {
    /// The client's port, to find out whose what is accepted is.
    port: u16,
    pub ends: [End; 2],
    /// An end was closed, aborted, or its listener was: it may be reset.
    pub may_reset: bool,
    /// It may time out.
    pub may_time_out: bool,
    /// It may be refused.
    may_be_refused: bool,
}

pub struct World {
    pub net: Net,
    pub links: Vec<Link>,
    listeners: [Option<Id>; 2],
    /// What each program believes that it can do: what it was told, less what it found out.
    known: [HashMap<Id, Readiness>; 2],
    notified: (notify::Context, notify::Queue),
    lanes: HashMap<u32, (usize, usize)>,
    advances: u64,
    began: u64,
}

fn pattern(link: usize, end: usize, at: u64) -> u8 {
    let x = (at ^ (link as u64) << 40 ^ (end as u64) << 50).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x >> 56) as u8
}

fn bytes(link: usize, end: usize, at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64).map(|at| pattern(link, end, at)).collect()
}

pub const PORT: [u16; 2] = [8001, 8002];

impl World {
    pub fn new(
        path: Path,
        seed: u64,
        of: Capabilities,
        start: u64,
        change: impl Fn(Side, &mut Config),
    ) -> World {
        let mut world = World {
            net: Net::with(path, seed, of, change),
            links: Vec::new(),
            listeners: [None; 2],
            known: Default::default(),
            notified: notify::Context::new(),
            lanes: HashMap::new(),
            advances: 0,
            began: start,
        };
        world.net.wire.advance(start);
        world.listen(0);
        world.listen(1);
        world
    }

    pub fn host(&mut self, side: usize) -> &mut Host {
        if side == 0 { &mut self.net.a } else { &mut self.net.b }
    }

    pub fn listen(&mut self, side: usize) {
        if self.listeners[side].is_some() {
            return;
        }
        let address = SocketAddr::new([A, B][side].into(), PORT[side]);
        let stack = &mut self.host(side).stack;
        let id = stack.tcp_open().unwrap();
        stack.tcp_bind(id, address, true).unwrap();
        stack.tcp_listen(id, 3).unwrap();
        self.listeners[side] = Some(id);
    }

    pub fn close_listener(&mut self, side: usize) {
        let Some(id) = self.listeners[side].take() else { return };
        let now = self.net.now();
        self.host(side).stack.tcp_close(now, id);
        self.known[side].remove(&id);
        for link in self.links.iter_mut() {
            // Whoever waits there is reset, and whoever comes is refused.
            if link.ends[1 - side].id.is_some() && link.ends[side].id.is_none() {
                link.may_reset = true;
                link.may_be_refused = true;
            }
        }
    }

    /// Begins a connection, from `from` if that is not 0.
    pub fn connect(&mut self, side: usize, from: u16) {
        let now = self.net.now();
        let to = SocketAddr::new([A, B][1 - side].into(), PORT[1 - side]);
        let nobody = self.listeners[1 - side].is_none();
        let stack = &mut self.host(side).stack;
        let id = stack.tcp_open().unwrap();
        if from > 0 {
            stack.tcp_bind(id, SocketAddr::new([A, B][side].into(), from), false).unwrap();
        }
        assert_eq!(stack.tcp_connect(now, id, to), Err(Error::InProgress));
        let port = stack.tcp_addresses(id).local.unwrap().port();
        let mut link = Link { port, may_be_refused: nobody, ..Link::default() };
        link.ends[side].id = Some(id);
        self.known[side].insert(id, Readiness::empty());
        self.links.push(link);
        self.note(side);
    }

    pub fn accept(&mut self, side: usize) {
        let Some(listener) = self.listeners[side] else { return };
        loop {
            let (id, peer) = match self.host(side).stack.tcp_accept(listener) {
                Ok(accepted) => accepted,
                Err(error) => {
                    assert_eq!(error, Error::WouldBlock);
                    self.forget(side, listener, Readiness::READ);
                    return;
                }
            };
            let readiness = self.host(side).stack.tcp_readiness(id);
            // Whoever is new looks at it.
            self.known[side].insert(id, readiness);
            let link = self.links.iter_mut().rev().find(|link| link.port == peer.port()).expect("somebody");
            assert!(link.ends[side].id.is_none() && !link.ends[side].gone, "accepted once");
            link.ends[side].id = Some(id);
        }
    }

    fn forget(&mut self, side: usize, id: Id, what: Readiness) {
        if let Some(known) = self.known[side].get_mut(&id) {
            *known -= what;
        }
    }

    fn failed(&mut self, link: usize, end: usize, error: Error) {
        let of = &mut self.links[link];
        let why = match error {
            Error::Reset | Error::BrokenPipe => of.may_reset || of.may_time_out || of.ends[end].shut_write,
            // Its neighbour was asked for in vain, before it was connected.
            Error::HostUnreachable if of.ends[end].given + of.ends[end].got == 0 => true,
            Error::TimedOut | Error::HostUnreachable => of.may_time_out,
            Error::Refused => of.may_be_refused || of.may_reset,
            _ => false,
        };
        assert!(why, "{error:?} of {link}.{end}, for no reason, at {}", self.net.now());
        if error != Error::BrokenPipe || !of.ends[end].shut_write {
            of.ends[end].failed = true;
            // What it has not acknowledged is lost, and the other end hears of that.
            of.may_reset = true;
        }
    }

    /// Offers what was left before, else `len` bytes more.
    pub fn send(&mut self, link: usize, end: usize, len: usize, by_reference: bool, flags: SendFlags) {
        let now = self.net.now();
        let of = &mut self.links[link].ends[end];
        let Some(id) = of.id else { return };
        let host = if end == 0 { &mut self.net.a } else { &mut self.net.b };
        let writer = Writer::new(&self.net.pool);
        let sent = if of.rest.is_some() || by_reference {
            let mut segment = of.rest.take().unwrap_or_else(|| {
                let mut segment = Segment::new(Chain::new());
                writer.append(segment.payload_mut(), &bytes(link, end, of.given, len)).unwrap();
                if len > 0 {
                    of.offered = of.given + len as u64;
                    if of.lane.is_none() {
                        let lane = self.notified.0.lane(notify::Config::default()).unwrap();
                        self.lanes.insert(lane.index(), (link, end));
                        of.lane = Some(lane);
                    }
                    let lane = of.lane.as_mut().unwrap();
                    let number = of.sends.len() as u64;
                    lane.send_there(&mut segment, number, now).unwrap();
                    of.sends.push(Some(of.offered));
                }
                segment
            });
            let before = segment.payload().len();
            let sent = host.stack.tcp_send(now, id, &mut segment, flags);
            let taken = sent.unwrap_or(0);
            assert_eq!(segment.payload().len(), before - taken, "what was not taken is still there");
            if !segment.payload().is_empty() {
                of.rest = Some(segment);
            }
            (sent, before)
        } else {
            (host.stack.tcp_send_bytes(now, id, &bytes(link, end, of.given, len), &writer, flags), len)
        };
        match sent {
            (Ok(taken), offered) => {
                assert!(!of.shut_write, "it was shut down");
                of.given += taken as u64;
                if taken < offered {
                    self.forget(end, id, Readiness::WRITE);
                } else {
                    // It knows that it could, and tries again.
                    *self.known[end].get_mut(&id).unwrap() |= Readiness::WRITE;
                }
            }
            (Err(Error::WouldBlock), _) => self.forget(end, id, Readiness::WRITE),
            (Err(error), _) => {
                of.rest = None;
                self.failed(link, end, error);
            }
        }
        self.note(end);
    }

    pub fn has_rest(&self, link: usize, end: usize) -> bool {
        self.links[link].ends[end].rest.is_some()
    }

    /// Reads up to `max` bytes; whether there may be more.
    pub fn receive(&mut self, link: usize, end: usize, max: usize) -> bool {
        let now = self.net.now();
        let Some(id) = self.links[link].ends[end].id else { return false };
        let received = self.host(end).stack.tcp_receive(now, id, max);
        let of = &mut self.links[link].ends[end];
        let more = match received {
            Ok(Received::Data(data)) => {
                let mut came = Vec::new();
                data.payload().host().unwrap().slices().for_each(|slice| came.extend_from_slice(slice));
                assert!(came.len() <= max && !came.is_empty());
                assert!(came == bytes(link, 1 - end, of.got, came.len()), "{link}.{end} from {}", of.got);
                of.got += came.len() as u64;
                assert!(of.got <= self.links[link].ends[1 - end].given);
                true
            }
            Ok(Received::End) => {
                let (got, cut) = (of.got, of.shut_read || of.failed || of.gone);
                of.ended = true;
                let other = &self.links[link].ends[1 - end];
                if !cut {
                    assert!(other.shut_write || other.gone, "{link}.{end} ended, and nobody said so");
                    assert_eq!(got, other.given, "{link}.{end} ended early");
                }
                false
            }
            Err(Error::WouldBlock | Error::NotConnected) => {
                self.forget(end, id, Readiness::READ);
                false
            }
            Err(error) => {
                self.failed(link, end, error);
                true
            }
        };
        self.note(end);
        more
    }

    pub fn peek(&mut self, link: usize, end: usize, offset: u64, max: usize) {
        let Some(id) = self.links[link].ends[end].id else { return };
        let got = self.links[link].ends[end].got;
        if let Some(data) = self.host(end).stack.tcp_peek(id, offset, max) {
            let mut seen = Vec::new();
            data.payload().host().unwrap().slices().for_each(|slice| seen.extend_from_slice(slice));
            assert!(seen == bytes(link, 1 - end, got + offset, seen.len()));
        }
    }

    pub fn shutdown(&mut self, link: usize, end: usize, way: Way) {
        let now = self.net.now();
        let Some(id) = self.links[link].ends[end].id else { return };
        let stack = &mut self.host(end).stack;
        let connecting = stack.tcp_state(id) == Some(onecopy_inet::tcp::State::SynSent);
        let done = stack.tcp_shutdown(now, id, way);
        let link = &mut self.links[link];
        let of = &mut link.ends[end];
        match done {
            Ok(()) => {
                // Who reads no more and has sent all resets what comes.
                link.may_reset |= way != Way::Write;
                of.shut_read |= way != Way::Write;
                of.shut_write |= way != Way::Read;
                if connecting {
                    of.failed = true;
                    link.may_reset = true;
                }
            }
            Err(error) => assert_eq!(error, Error::NotConnected),
        }
        self.note(end);
    }

    /// The program lets go of it.
    pub fn close(&mut self, link: usize, end: usize) {
        let now = self.net.now();
        let of = &mut self.links[link];
        // Of what was not read, or comes later, nothing is said but a reset.
        of.may_reset = true;
        let of = &mut of.ends[end];
        let Some(id) = of.id.take() else { return };
        of.gone = true;
        (of.rest, of.lane) = (None, None);
        self.known[end].remove(&id);
        self.host(end).stack.tcp_close(now, id);
        self.note(end);
    }

    pub fn abort(&mut self, link: usize, end: usize) {
        let now = self.net.now();
        let Some(id) = self.links[link].ends[end].id else { return };
        self.links[link].may_reset = true;
        self.links[link].ends[end].failed = true;
        self.host(end).stack.tcp_abort(now, id);
        self.note(end);
    }

    pub fn set(&mut self, link: usize, end: usize, change: impl FnOnce(&mut Settings)) {
        let now = self.net.now();
        let Some(id) = self.links[link].ends[end].id else { return };
        self.host(end).stack.tcp_set(now, id, change).unwrap();
        self.note(end);
    }

    /// Takes the events of a side, and looks that nothing became possible that nobody was told of.
    fn note(&mut self, side: usize) {
        while let Some(event) = self.host(side).stack.event() {
            let readiness = self.host(side).stack.tcp_readiness(event.id);
            if Some(event.id) == self.listeners[side] {
                self.known[side].insert(event.id, readiness);
            } else if let Some(known) = self.known[side].get_mut(&event.id) {
                *known = readiness;
            } else {
                panic!("an event of a socket that nobody has: {event:?}");
            }
        }
        let host = if side == 0 { &self.net.a } else { &self.net.b };
        for (id, known) in &mut self.known[side] {
            let readiness = host.stack.tcp_readiness(*id);
            let mut untold = readiness - *known;
            if host.stack.tcp_settings(*id).is_some_and(|settings| settings.notsent_lowat.is_some()) {
                // It is told when half of it has left, as the kernel does: later, but not never.
                untold -= Readiness::WRITE;
            }
            assert!(
                untold.is_empty(),
                "{untold:?} of {id:?}, and nobody was told, at {}",
                self.net.wire.now()
            );
            *known &= readiness;
        }
        self.reap();
    }

    /// Takes what is told of sends.
    fn reap(&mut self) {
        for Completion { user_data, lane, bytes, how, .. } in self.notified.1.reap_all() {
            let (link, end) = self.lanes[&lane];
            let of = &mut self.links[link];
            let until = of.ends[end].sends[user_data as usize].take().expect("told once");
            assert!(!how.copied || bytes > 0);
            if how.dropped {
                let of = &of.ends[end];
                assert!(
                    of.gone || of.failed || of.id.is_none() || of.shut_write || self.links[link].may_reset
                );
                continue;
            }
            // All of it has been acknowledged.
            let other = of.ends[1 - end].id;
            let came = other.and_then(|id| {
                let now = self.net.now();
                self.host(1 - end).stack.tcp_info(now, id).map(|info| info.bytes_received)
            });
            assert!(came.is_none_or(|came| came >= until), "told before all came: {came:?} < {until}");
        }
    }

    /// Goes on to what is next, at most until `until`.
    pub fn step(&mut self, until: u64) -> bool {
        let now = self.net.now();
        for side in 0..2 {
            self.advances += u64::from(self.host(side).stack.deadline().is_some_and(|at| at <= now));
        }
        let goes_on = self.net.step(until);
        self.note(0);
        self.note(1);
        let packets: u64 = [Side::A, Side::B].iter().map(|side| self.net.wire.stats(*side).received).sum();
        let seconds = (self.net.now() - self.began) / SECOND + 1;
        let most = 1_000 + 8 * packets + 40 * seconds * (self.links.len() as u64 + 1);
        assert!(self.advances < most, "a storm of timers: {} in {seconds} s", self.advances);
        goes_on
    }

    pub fn run(&mut self, ns: u64) {
        let until = self.net.now() + ns;
        while self.step(until) {}
        self.net.wire.advance(until);
        self.net.settle();
        self.note(0);
        self.note(1);
    }

    /// All goes on by what is told: what was given comes, where nobody let go of it.
    pub fn drain(&mut self) {
        for (link, end) in self.pairs() {
            self.set(link, end, |settings| {
                settings.receive_low_water = 1;
                settings.cork = false;
                settings.window_clamp = None;
                settings.notsent_lowat = None;
                settings.receive_buffer = settings.receive_buffer.map(|_| 200_000);
                settings.send_buffer = settings.send_buffer.map(|_| 200_000);
            });
        }
        let until = self.net.now() + 900 * SECOND;
        loop {
            self.accept(0);
            self.accept(1);
            let mut waits = false;
            for (link, end) in self.pairs() {
                let Some(id) = self.links[link].ends[end].id else { continue };
                let known = self.known[end].get(&id).copied().unwrap_or_default();
                if known.contains(Readiness::READ) && !self.links[link].ends[end].ended {
                    while self.receive(link, end, 1 << 16) {}
                }
                if known.contains(Readiness::WRITE) && self.has_rest(link, end) {
                    self.send(link, end, 0, true, SendFlags::empty());
                }
                waits |= self.is_owed(link, end);
            }
            if !waits {
                return;
            }
            if !self.step(until) {
                for (link, end) in self.pairs() {
                    let of = &self.links[link].ends[end];
                    if self.is_owed(link, end) {
                        eprintln!("{link}.{end}: {:?} given {} got {}", of.id, of.given, of.got);
                        let (other, id) = (&self.links[link].ends[1 - end], of.id);
                        eprintln!("other: {:?} given {} got {}", other.id, other.given, other.got);
                        let (other, now) = (other.id, self.net.now());
                        let stack = &self.host(end).stack;
                        eprintln!("{:#?}", id.and_then(|id| stack.tcp_info(now, id)));
                        let stack = &self.host(1 - end).stack;
                        eprintln!("{:#?}", other.and_then(|id| stack.tcp_info(now, id)));
                    }
                }
                self.net.report();
                panic!("it does not go on, at {}", self.net.now());
            }
        }
    }

    fn pairs(&self) -> Vec<(usize, usize)> {
        (0..self.links.len()).flat_map(|link| [(link, 0), (link, 1)]).collect()
    }

    /// Whether an end waits for bytes that will come.
    fn is_owed(&self, link: usize, end: usize) -> bool {
        let of = &self.links[link];
        let (mine, other) = (&of.ends[end], &of.ends[1 - end]);
        let fine = |end: &End| end.id.is_some() && !end.failed && !end.shut_read;
        let owed = mine.got < other.given || other.rest.is_some() && !other.shut_write;
        fine(mine) && fine(other) && !mine.ended && (owed || other.shut_write)
    }

    /// Everybody lets go of everything; nothing is left.
    pub fn end(mut self) {
        for (link, end) in self.pairs() {
            self.close(link, end);
        }
        self.close_listener(0);
        self.close_listener(1);
        let limit = self.net.now() + 4000 * SECOND;
        while !(self.net.a.stack.is_empty() && self.net.b.stack.is_empty()) && self.step(limit) {}
        self.run(10 * SECOND);
        for side in 0..2 {
            let left = self.host(side).stack.census();
            assert_eq!(left, Census::default(), "on side {side} something is left");
        }
        self.reap();
        for (number, link) in self.links.iter().enumerate() {
            for (end, of) in link.ends.iter().enumerate() {
                let untold = of.sends.iter().filter(|send| send.is_some()).count();
                assert_eq!(untold, 0, "of {number}.{end} {untold} sends were never told of");
            }
        }
        let (link_a, link_b) = (self.net.wire.in_flight(Side::A), self.net.wire.in_flight(Side::B));
        assert_eq!((link_a, link_b), (0, 0));
        let stats = self.net.pool.stats();
        assert_eq!(stats.in_flight, stats.in_cache + stats.in_ring, "pages are missing: {stats:?}");
    }
}
