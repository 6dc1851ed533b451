//! One connection through trouble.

use std::net::SocketAddr;

use onecopy_chain::notify::{self, Completion, Lane, Segment};
use onecopy_chain::{Chain, Writer};
use onecopy_conformance::tools::Dice;
use onecopy_inet::ip;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{Census, Config, Stack};
use onecopy_inet::tcp::{Error, Readiness, Received, SendFlags, Side as Way};
use onecopy_inet::wire::Mac;
use onecopy_link::pair::{Pair, PairConfig, Side, Wire};
use onecopy_pool::PagePool;

use super::ends::{Cable, Family, PORT, SECOND, bytes, ensure};
use super::plan::{Habits, Plan};

/// For how long a case may last, in virtual time: the slowest wires and the longest waits for a packet that was lost again and again.
const LIMIT: u64 = 3600 * SECOND;
/// Sends by reference that wait to be told of, at most.
const PLACES: u64 = 1000;

/// What many cases came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Troubles {
    /// Cases.
    pub cases: u64,
    /// Of these, over IPv6.
    pub six: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Packets that the wires took.
    pub packets: u64,
    /// Of these, lost.
    pub lost: u64,
    /// Arrived twice.
    pub duplicated: u64,
    /// Overtaken by others.
    pub reordered: u64,
    /// With a bit turned over.
    pub corrupted: u64,
    /// Marked (CE): they met congestion.
    pub marked: u64,
    /// Segments that were sent again.
    pub retransmitted: u64,
    /// Sends by reference that were told of.
    pub told: u64,
    /// Sends that had arrived, and whose connection was given up all the same: nobody held it any more, and the answers were lost.
    pub given_up: u64,
    /// Times that something was due.
    pub timers: u64,
    /// The most of them in a case, for 1,000 packets of it.
    pub most_timers: u64,
}

impl Troubles {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Troubles) {
        self.cases += other.cases;
        self.six += other.six;
        self.bytes += other.bytes;
        self.packets += other.packets;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupted += other.corrupted;
        self.marked += other.marked;
        self.retransmitted += other.retransmitted;
        self.told += other.told;
        self.given_up += other.given_up;
        self.timers += other.timers;
        self.most_timers = self.most_timers.max(other.most_timers);
    }
}

struct Host {
    stack: Stack,
    cable: Cable,
    id: Option<Id>,
    habits: Habits,
    dice: Dice,
    /// Bytes that were taken, and that were read.
    given: u64,
    got: u64,
    /// What was offered by reference and not taken.
    rest: Option<Segment<Chain>>,
    lane: Option<Lane>,
    /// Behind what its sends by reference end; none once it was told.
    sends: Vec<Option<u64>>,
    /// It was told that it may send, or receive, and has not found out that it may not.
    may_write: bool,
    may_read: bool,
    /// When it reads again.
    reads_at: u64,
    shut: bool,
    ended: bool,
}

/// The case of `seed`, over IPv4 or IPv6. `pool` is used by no other; `tell`: packets are kept, and shown where it fails.
///
/// # Errors
///
/// None yet: what does not hold is a panic.
pub fn trouble(
    seed: u64,
    family: Family,
    pool: &PagePool,
    tell: bool,
    troubles: &mut Troubles,
) -> Result<(), String> {
    let mut case = Case::new(seed, family, pool, tell);
    let outcome = case.play();
    if let Err(why) = outcome {
        return Err(format!("{why}, over {family:?}, at {} ns\n{}", case.wire.now(), case.report()));
    }
    case.finish(troubles)
}

struct Case<'a> {
    family: Family,
    pool: &'a PagePool,
    wire: Wire,
    hosts: [Host; 2],
    listener: Option<Id>,
    notified: (notify::Context, notify::Queue),
    timers: u64,
    given_up: u64,
    began: u64,
}

impl<'a> Case<'a> {
    fn new(seed: u64, family: Family, pool: &'a PagePool, tell: bool) -> Case<'a> {
        let mut plan = Plan::new(seed);
        plan.link.mtu = plan.link.mtu.max(family.least_mtu());
        let mut dice = Dice(seed ^ 0x5eed);
        let [there, back] = plan.paths.clone();
        let config = PairConfig::new().seed(seed).capabilities(plan.link);
        let Pair { a, b, mut wire } = Pair::new(config.from(Side::A, there).from(Side::B, back));
        wire.advance(plan.start);
        let mut side = 0;
        let hosts = [a, b].map(|link| {
            let (end, number) = (side, side as u8 + 1);
            side += 1;
            let address = family.subnet(end);
            let mac = Mac([2, 0, 0, 0, 0, number]);
            let mut config =
                Config::new(ip::Config::new(plan.link, mac, &[address], plan.seeds[end]), plan.seeds[end]);
            let tcp = &mut config.tcp;
            (tcp.sack, tcp.timestamps) = (plan.sack[end], plan.timestamps[end]);
            (tcp.window_scaling, tcp.ecn) = (plan.window_scaling[end], plan.ecn[end]);
            if plan.small {
                tcp.rmem = [4096, 16_384, 65_536];
                tcp.wmem = [4096, 16_384, 65_536];
            }
            let cable = Cable::new(link, tell);
            Host {
                stack: Stack::new(config).expect("a stack"),
                cable,
                id: None,
                habits: plan.ends[end].clone(),
                dice: Dice(dice.roll()),
                given: 0,
                got: 0,
                rest: None,
                lane: None,
                sends: Vec::new(),
                may_write: false,
                may_read: false,
                reads_at: 0,
                shut: false,
                ended: false,
            }
        });
        let began = wire.now();
        let notified = notify::Context::new();
        Case { family, pool, wire, hosts, listener: None, notified, timers: 0, given_up: 0, began }
    }

    fn play(&mut self) -> Result<(), String> {
        let at = SocketAddr::new(self.family.address(1), PORT);
        let server = &mut self.hosts[1].stack;
        let listener = server.tcp_open().map_err(|e| e.to_string())?;
        server.tcp_bind(listener, at, false).map_err(|e| e.to_string())?;
        server.tcp_listen(listener, 4).map_err(|e| e.to_string())?;
        self.listener = Some(listener);
        self.connect()?;
        let until = self.began + LIMIT;
        while !self.hosts.iter().all(|host| host.ended && host.shut) {
            let moved = self.programs()?;
            if !moved {
                ensure!(self.step(until)?, "it does not go on");
            }
        }
        // Both have all: now they let go, but for who has done so already.
        for end in 0..2 {
            self.close(end);
        }
        if let Some(listener) = self.listener.take() {
            self.hosts[1].stack.tcp_close(self.wire.now(), listener);
        }
        let until = self.wire.now() + LIMIT;
        let empty = |case: &Case<'_>| case.hosts.iter().all(|host| host.stack.is_empty());
        while !empty(self) {
            let moved = self.step(until)?;
            ensure!(moved || empty(self), "something is left, and nothing happens");
        }
        // What is still on the wire.
        let until = self.wire.now() + 60 * SECOND;
        while self.step(until)? {}
        Ok(())
    }

    fn connect(&mut self) -> Result<(), String> {
        let now = self.wire.now();
        let client = &mut self.hosts[0];
        let id = client.stack.tcp_open().map_err(|e| e.to_string())?;
        let begun = client.stack.tcp_connect(now, id, SocketAddr::new(self.family.address(1), PORT));
        ensure!(begun == Err(Error::InProgress), "connect says {begun:?}");
        client.id = Some(id);
        self.set(0);
        Ok(())
    }

    fn set(&mut self, end: usize) {
        let now = self.wire.now();
        let Host { stack, id: Some(id), habits, .. } = &mut self.hosts[end] else { return };
        let _ = stack.tcp_set(now, *id, |settings| {
            (settings.nodelay, settings.cork) = (habits.nodelay, habits.cork);
            (settings.send_buffer, settings.receive_buffer) = (habits.send_buffer, habits.receive_buffer);
            settings.receive_low_water = habits.low_water;
            (settings.notsent_lowat, settings.window_clamp) = (habits.notsent_lowat, habits.window_clamp);
        });
    }

    /// Hands all over that can be, and does what is due; then goes on to what comes next. False where that is behind `until`, or nothing.
    fn step(&mut self, until: u64) -> Result<bool, String> {
        let now = self.wire.now();
        for host in &mut self.hosts {
            if host.stack.deadline().is_some_and(|at| at <= now) {
                self.timers += 1;
                host.stack.advance(now);
            }
            let link = host.cable.link();
            while let Some(packet) = link.receive(now) {
                host.stack.receive(now, packet);
            }
            while link.room(now) > 0
                && let Some(packet) = host.stack.transmit()
            {
                link.transmit(now, packet);
            }
        }
        self.events()?;
        self.reap()?;
        if self.hosts.iter().any(|host| host.wants(now)) {
            return Ok(true);
        }
        let stacks = self.hosts.iter().filter_map(|host| host.stack.deadline());
        let reads = self.hosts.iter().filter(|host| host.may_read && !host.ended).map(|host| host.reads_at);
        let Some(next) = self.wire.next().into_iter().chain(stacks).chain(reads).min() else {
            return Ok(false);
        };
        if next > until {
            return Ok(false);
        }
        let seconds = (now - self.began) / SECOND;
        let most = 200 + 4 * self.packets() + 20 * seconds;
        ensure!(self.timers < most, "a storm of timers: {} in {seconds} s", self.timers);
        self.wire.advance(next.max(now));
        Ok(true)
    }

    fn packets(&self) -> u64 {
        [Side::A, Side::B].iter().map(|side| self.wire.stats(*side).received).sum()
    }

    fn events(&mut self) -> Result<(), String> {
        for end in 0..2 {
            while let Some(event) = self.hosts[end].stack.event() {
                if end == 1 && Some(event.id) == self.listener {
                    self.accept()?;
                    continue;
                }
                let host = &mut self.hosts[end];
                ensure!(Some(event.id) == host.id, "an event of a socket that nobody has: {event:?}");
                host.look(event.id);
                let error = host.stack.tcp_take_error(event.id);
                ensure!(error.is_none(), "end {end} fails: {error:?}");
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<(), String> {
        let Some(listener) = self.listener else { return Ok(()) };
        while let Ok((id, _)) = self.hosts[1].stack.tcp_accept(listener) {
            let host = &mut self.hosts[1];
            ensure!(host.id.is_none(), "two connections were accepted");
            host.id = Some(id);
            self.set(1);
            self.hosts[1].look(id);
        }
        Ok(())
    }

    /// The programs' turn: whether one of them did something.
    fn programs(&mut self) -> Result<bool, String> {
        let now = self.wire.now();
        let mut moved = false;
        for end in 0..2 {
            if self.hosts[end].may_write {
                moved |= self.send(end)?;
            }
            let host = &mut self.hosts[end];
            if host.may_read && !host.ended && host.reads_at <= now {
                moved |= self.receive(end)?;
            }
            let host = &self.hosts[end];
            // (What nobody holds any more is given up after a few timeouts: so its bytes have arrived, and its FIN.)
            let arrived = host.id.and_then(|id| host.stack.tcp_connection(id)).is_some_and(|connection| {
                !connection.sender().has_unacked() && connection.queued() == 0 && connection.unsent() == 0
            });
            if host.habits.hasty && host.ended && host.shut && arrived {
                self.close(end);
            }
        }
        Ok(moved)
    }

    fn send(&mut self, end: usize) -> Result<bool, String> {
        let (now, host) = (self.wire.now(), &mut self.hosts[end]);
        let Some(id) = host.id else { return Ok(false) };
        let left = host.habits.bytes - host.given;
        if left == 0 && host.rest.is_none() {
            if host.shut {
                host.may_write = false;
                return Ok(false);
            }
            host.shut = true;
            host.stack
                .tcp_shutdown(now, id, Way::Write)
                .map_err(|e| format!("shutdown of end {end}: {e}"))?;
            return Ok(true);
        }
        let len = left.min(1 + host.dice.roll() % host.habits.piece as u64);
        let piece = bytes(end, host.given, len);
        let more = host.dice.roll() % 4 < host.habits.more && (piece.len() as u64) < left;
        let flags = if more { SendFlags::MORE } else { SendFlags::empty() };
        let writer = Writer::new(self.pool);
        // (A lane has places for so many that were not told of.)
        let has_place = host.lane.as_ref().is_none_or(|lane| lane.outstanding() < PLACES);
        let by_reference = host.dice.roll() % 4 < host.habits.by_reference && has_place;
        let (sent, offered) = if host.rest.is_some() || by_reference {
            let mut segment = match host.rest.take() {
                Some(rest) => rest,
                None => {
                    let mut segment = Segment::new(Chain::new());
                    writer.append(segment.payload_mut(), piece).map_err(|e| e.to_string())?;
                    if host.lane.is_none() {
                        let lane = self.notified.0.lane(notify::Config::default());
                        host.lane = Some(lane.map_err(|e| format!("{e:?}"))?);
                    }
                    let number = host.sends.len() as u64;
                    let lane = host.lane.as_mut().expect("made");
                    lane.send_there(&mut segment, number << 1 | end as u64, now)
                        .map_err(|e| format!("{e:?}"))?;
                    host.sends.push(Some(host.given + piece.len() as u64));
                    segment
                }
            };
            let before = segment.payload().len();
            let sent = host.stack.tcp_send(now, id, &mut segment, flags);
            let (left, taken) = (segment.payload().len(), sent.unwrap_or(0));
            ensure!(left == before - taken, "of {before} bytes {taken} were taken, and {left} are left");
            host.rest = (left > 0).then_some(segment);
            (sent, before)
        } else {
            (host.stack.tcp_send_bytes(now, id, piece, &writer, flags), piece.len())
        };
        match sent {
            Ok(taken) => {
                host.given += taken as u64;
                host.may_write = taken == offered;
                Ok(true)
            }
            Err(Error::WouldBlock) => {
                host.may_write = false;
                Ok(false)
            }
            Err(error) => Err(format!("end {end} cannot send: {error}")),
        }
    }

    fn receive(&mut self, end: usize) -> Result<bool, String> {
        let (now, host) = (self.wire.now(), &mut self.hosts[end]);
        let Some(id) = host.id else { return Ok(false) };
        match host.stack.tcp_receive(now, id, host.habits.read) {
            Ok(Received::Data(data)) => {
                let chain = data.payload().host().map_err(|e| e.to_string())?;
                for mut slice in chain.slices() {
                    while !slice.is_empty() {
                        let expected = bytes(1 - end, host.got, slice.len() as u64);
                        let (now, later) = slice.split_at(expected.len());
                        ensure!(now == expected, "end {end} got other bytes behind {}", host.got);
                        host.got += now.len() as u64;
                        slice = later;
                    }
                }
                host.reads_at = now + host.habits.pause;
                Ok(true)
            }
            Ok(Received::End) => {
                let (got, given) = (host.got, self.hosts[1 - end].given);
                ensure!(self.hosts[1 - end].shut, "end {end} is told of an end that nobody said");
                ensure!(got == given, "end {end} got {got} of {given} bytes");
                self.hosts[end].ended = true;
                Ok(true)
            }
            Err(Error::WouldBlock) => {
                host.may_read = false;
                Ok(false)
            }
            Err(error) => Err(format!("end {end} cannot receive: {error}")),
        }
    }

    fn close(&mut self, end: usize) {
        let (now, host) = (self.wire.now(), &mut self.hosts[end]);
        host.lane = None;
        if let Some(id) = host.id.take() {
            host.stack.tcp_close(now, id);
        }
    }

    /// Takes what is told of sends.
    fn reap(&mut self) -> Result<(), String> {
        for Completion { user_data, how, .. } in self.notified.1.reap_all() {
            let (end, number) = ((user_data & 1) as usize, (user_data >> 1) as usize);
            let until = self.hosts[end].sends[number].take();
            let until = until.ok_or_else(|| format!("send {number} of end {end} is told of twice"))?;
            if how.dropped {
                let host = &self.hosts[end];
                let let_go = host.id.is_none() && host.stack.tcp_stats().orphans_ended > 0;
                ensure!(let_go, "send {number} of end {end} is said to be dropped");
                ensure!(self.hosts[1 - end].got >= until, "send {number} of end {end} has not come");
                self.given_up += 1;
                continue;
            }
            let (now, other) = (self.wire.now(), &self.hosts[1 - end]);
            let came = other.id.and_then(|id| other.stack.tcp_info(now, id)).map(|info| info.bytes_received);
            ensure!(
                came.is_none_or(|came| came >= until),
                "send {number} of end {end} is told of before it has come"
            );
        }
        Ok(())
    }

    /// Nothing is left, and nothing is missing.
    fn finish(self, troubles: &mut Troubles) -> Result<(), String> {
        let Case { family, pool, wire, hosts, timers, given_up, .. } = self;
        for (end, host) in hosts.iter().enumerate() {
            let left = host.stack.census();
            ensure!(left == Census::default(), "end {end} has {left:?} left");
            let untold = host.sends.iter().filter(|send| send.is_some()).count();
            ensure!(untold == 0, "{untold} sends of end {end} were never told of");
            ensure!(host.given == host.habits.bytes, "end {end} gave {} bytes", host.given);
            troubles.bytes += host.got;
            troubles.told += host.sends.len() as u64;
            troubles.retransmitted += host.stack.tcp_stats().retransmitted;
        }
        let mut packets = 0;
        for side in [Side::A, Side::B] {
            let (stats, left) = (wire.stats(side), wire.in_flight(side));
            ensure!(left == 0, "{left} packets are left on the wire");
            packets += stats.transmitted;
            troubles.lost += stats.lost;
            troubles.duplicated += stats.duplicated;
            troubles.reordered += stats.reordered;
            troubles.corrupted += stats.corrupted;
            troubles.marked += stats.marked;
        }
        drop((hosts, wire));
        let stats = pool.stats();
        let home = stats.in_cache + stats.in_ring;
        ensure!(stats.in_flight == home, "{} pages are missing", stats.in_flight.abs_diff(home));
        troubles.cases += 1;
        troubles.six += u64::from(family == Family::V6);
        troubles.packets += packets;
        troubles.timers += timers;
        troubles.given_up += given_up;
        troubles.most_timers = troubles.most_timers.max(timers * 1000 / packets.max(1));
        Ok(())
    }

    fn report(&mut self) -> String {
        let now = self.wire.now();
        let mut lines = Vec::new();
        for (end, host) in self.hosts.iter_mut().enumerate() {
            let room = host.cable.link().room(now);
            let Host { habits, given, got, ended, shut, may_read, may_write, .. } = host;
            lines.push(format!(
                "the link of end {end} has room for {room}, {:?}, {:?}",
                host.stack.interface().stats(),
                self.wire.stats([Side::A, Side::B][end])
            ));
            lines.push(format!("end {end}: gave {given}, got {got}, shut {shut}, ended {ended}, reads {may_read}, writes {may_write}, {habits:?}"));
            let state = host.id.and_then(|id| host.stack.tcp_state(id));
            let info = host.id.and_then(|id| host.stack.tcp_info(now, id));
            let counted: Vec<_> = host.stack.tcp_stats().each().filter(|(_, count)| *count > 0).collect();
            lines.push(format!("{state:?} {info:?}\n{counted:?}\n{:?}", host.stack.census()));
            lines.push(host.cable.told());
        }
        lines.join("\n")
    }
}

impl Host {
    fn look(&mut self, id: Id) {
        let readiness = self.stack.tcp_readiness(id);
        self.may_read |= readiness.contains(Readiness::READ);
        self.may_write |= readiness.contains(Readiness::WRITE);
    }

    /// Whether its program has something to do now.
    fn wants(&self, now: u64) -> bool {
        let sends = self.may_write && !self.shut;
        self.id.is_some() && (sends || self.may_read && !self.ended && self.reads_at <= now)
    }
}
