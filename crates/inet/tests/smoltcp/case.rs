//! Our TCP and smoltcp's, one at either end of a wire: two programs that were written apart, of one RFC.
//! It is one file of some 690 lines: every step looks at both programs, and is told in the words of both.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Writer};
use onecopy_inet::ip;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{Census, Config, Stack};
use onecopy_inet::tcp::{Error, Readiness, Received, SendFlags, Side as Way};
use onecopy_inet::wire::Mac;
use onecopy_link::pair::{End as PairEnd, Pair, PairConfig, Path, Side, Wire};
use onecopy_link::{Capabilities, Link, Medium, Packet};
use onecopy_pool::PagePool;
use smoltcp::iface::{self, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, DeviceCapabilities};
use smoltcp::socket::tcp::{RecvError, Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

use crate::ends::{Cable, Dice, Family, PORT, SECOND, bytes, ensure};

/// For how long a case may last, in virtual time.
const LIMIT: u64 = 3600 * SECOND;
/// Ours is the first end.
const OURS: usize = 0;
const THEIRS: usize = 1;

/// How a case is to be, all of it from its seed.
#[derive(Clone, Debug)]
struct Plan {
    mtu: u32,
    /// From ours to theirs, and back.
    paths: [Path; 2],
    /// Ours connects; else theirs does.
    ours_connects: bool,
    /// Bytes that each sends, of a send, and of a receive at most.
    bytes: [u64; 2],
    piece: [usize; 2],
    read: [usize; 2],
    /// For how long it does not read after it has read, in nanoseconds.
    pause: [u64; 2],
    nodelay: [bool; 2],
    small: bool,
    /// Of theirs.
    buffers: [usize; 2],
    ack_delay: Option<u64>,
    timestamps: bool,
    /// One that ends the connection with a reset once it has received so much, over a wire that loses nothing.
    aborts: Option<(usize, u64)>,
}

impl Plan {
    fn new(seed: u64, family: Family) -> Plan {
        let mut dice = Dice(seed ^ 0xbe51de);
        let dice = &mut dice;
        let total = 1 + dice.size(200_000) as u64;
        let first = if dice.one_in(4) { total } else { dice.roll() % (total + 1) };
        let shares = [first, total - first];
        let aborts = dice.one_in(6).then(|| {
            let end = (dice.roll() % 2) as usize;
            (end, dice.roll() % (shares[1 - end] + 1))
        });
        let (rate, delay) = (1_000_000 << (dice.roll() % 10), 10_000 << (dice.roll() % 13));
        let mut chance =
            |most: u64| if aborts.is_some() { 0.0 } else { (dice.roll() % (most + 1)) as f64 / 1000.0 };
        let impaired = [(); 2].map(|()| (chance(40), chance(30), chance(60), chance(10)));
        let paths = impaired.map(|(loss, duplicate, reorder, corrupt)| {
            Path::new()
                .delay(Duration::from_nanos(delay))
                .jitter(Duration::from_nanos(delay / 5))
                .rate(rate)
                .loss(loss)
                .duplicate(duplicate)
                .reorder(reorder, Duration::from_nanos(delay / 2 + 100_000))
                .corrupt(corrupt)
        });
        let mut two = |least: usize, more: u64| [(); 2].map(|()| least + dice.size(more as usize));
        let (piece, read, buffers) = (two(100, 30_000), two(100, 100_000), two(1500, 100_000));
        // (Whoever is slower than smoltcp's TIME-WAIT, ten seconds, does not get what is unread there any more.)
        let pauses = [OURS, THEIRS].map(|end| {
            let reads = shares[1 - end] / read[end] as u64 + 1;
            if dice.one_in(4) { dice.roll() % 50_000_000.min(5 * SECOND / reads) } else { 0 }
        });
        let mtu = if dice.one_in(4) { 576 + (dice.roll() % 8000) as u32 } else { 1500 };
        Plan {
            mtu: mtu.max(if family == Family::V6 { 1280 } else { 576 }),
            paths,
            ours_connects: dice.one_in(2),
            bytes: shares,
            piece,
            read,
            pause: pauses,
            nodelay: [(); 2].map(|()| dice.one_in(2)),
            small: dice.one_in(4),
            buffers,
            ack_delay: (!dice.one_in(4)).then_some(10),
            timestamps: dice.one_in(2),
            aborts,
        }
    }
}

/// What a program has done.
#[derive(Debug, Default)]
struct Program {
    given: u64,
    got: u64,
    /// When it reads again.
    reads_at: u64,
    shut: bool,
    ended: bool,
    /// It ended the connection with a reset, or was told of one.
    aborted: bool,
    reset: bool,
}

impl Program {
    fn is_over(&self) -> bool {
        self.aborted || self.reset || self.ended && self.shut
    }
}

/// smoltcp, on a link of ours.
struct Theirs {
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    wire: Phy,
}

/// A link as smoltcp has devices.
struct Phy {
    link: PairEnd,
    pool: PagePool,
    mtu: usize,
    now: u64,
    /// The number of its SYN.
    first: Option<u32>,
    /// Pieces of its stream that it has sent last, and when.
    sent: VecDeque<(u64, u64, u64)>,
}

impl Phy {
    /// Notes which bytes of the stream go there.
    fn note(&mut self, tcp: &[u8], len: usize) {
        let Some(number) = tcp.get(4..8).and_then(|number| number.try_into().ok()).map(u32::from_be_bytes)
        else {
            return;
        };
        let first = *self.first.get_or_insert(number);
        if len > 0 {
            let at = number.wrapping_sub(first).wrapping_sub(1);
            self.sent.push_back((at.into(), at as u64 + len as u64, self.now));
            while self.sent.len() > 200 {
                self.sent.pop_front();
            }
        }
    }
}

impl phy::Device for Phy {
    type RxToken<'a> = Came;
    type TxToken<'a> = Goes<'a>;

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = phy::Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }

    fn receive(&mut self, _: Instant) -> Option<(Came, Goes<'_>)> {
        // Its answer needs room.
        if self.link.room(self.now) == 0 {
            return None;
        }
        let packet = self.link.receive(self.now)?.to_vec().ok()?;
        Some((Came(packet), Goes(self)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Goes<'_>> {
        (self.link.room(self.now) > 0).then_some(Goes(self))
    }
}

struct Came(Vec<u8>);

impl phy::RxToken for Came {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, act: F) -> R {
        act(&self.0)
    }
}

struct Goes<'a>(&'a mut Phy);

impl phy::TxToken for Goes<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, act: F) -> R {
        let mut packet = vec![0; len];
        let result = act(&mut packet);
        let (network, transport) = headers(&packet);
        let (head, payload) = packet.split_at(transport);
        if transport > network {
            self.0.note(&head[network..], payload.len());
        }
        let mut chain = Chain::new();
        Writer::new(&self.0.pool).append(&mut chain, payload).expect("pages enough");
        let packet = Packet::new(head, chain).expect("headers are short");
        self.0.link.transmit(self.0.now, packet);
        result
    }
}

/// Where IP's headers end, and TCP's; of other packets, which are short, all is IP's.
fn headers(packet: &[u8]) -> (usize, usize) {
    let (network, protocol) = match packet.first().map(|byte| byte >> 4) {
        Some(4) => (usize::from(packet[0] & 15) * 4, packet[9]),
        _ => (40, packet[6]),
    };
    match (protocol, packet.get(network + 12)) {
        (6, Some(byte)) => (network, (network + usize::from(byte >> 4) * 4).min(packet.len())),
        _ => (packet.len().min(128), packet.len().min(128)),
    }
}

/// What many cases came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside {
    /// Cases.
    pub cases: u64,
    /// Of these, connections that were reset by a program.
    pub aborted: u64,
    /// Of these, connections in which smoltcp forgot to send again: see [`Case::they_forgot`].
    pub forgotten: u64,
    /// Bytes that arrived at ours, and at theirs.
    pub bytes: [u64; 2],
    /// Packets that the wires took, and of these lost, damaged, reordered or duplicated.
    pub packets: u64,
    /// See [`Beside::packets`].
    pub troubled: u64,
}

/// The case of `seed`: one connection between our TCP and smoltcp's, over IPv4 or IPv6. `pool` is used by no other; `tell`: packets are kept, and
/// shown where it fails.
///
/// # Errors
///
/// What did not hold, and how far it had come.
pub fn beside(seed: u64, pool: impl Fn() -> PagePool, tell: bool, all: &mut Beside) -> Result<(), String> {
    let family = Family::of(seed);
    let mut case = Case::new(seed, family, &pool, tell);
    match case.play() {
        Ok(true) => case.finish(all),
        Ok(false) => {
            all.cases += 1;
            all.forgotten += 1;
            Ok(())
        }
        Err(why) => Err(format!("{why}, over {family:?}, at {} ns\n{}", case.wire.now(), case.report())),
    }
}

struct Case {
    family: Family,
    plan: Plan,
    dice: Dice,
    wire: Wire,
    pool: PagePool,
    stack: Stack,
    cable: Cable,
    /// Ours, and who listens for it.
    id: Option<Id>,
    listener: Option<Id>,
    may: Readiness,
    theirs: Theirs,
    programs: [Program; 2],
    began: u64,
}

fn time(now: u64) -> Instant {
    Instant::from_micros((now / 1000) as i64)
}

impl Case {
    fn new(seed: u64, family: Family, pool: &impl Fn() -> PagePool, tell: bool) -> Case {
        let plan = Plan::new(seed, family);
        let mut dice = Dice(seed ^ 0x5eed);
        let link = Capabilities::none(Medium::Ip, plan.mtu);
        let [there, back] = plan.paths.clone();
        let config = PairConfig::new().seed(seed).capabilities(link).from(Side::A, there).from(Side::B, back);
        let Pair { a, b, mut wire } = Pair::new(config);
        wire.advance(dice.roll() >> 24);
        let secret = u128::from(dice.roll()).wrapping_mul(u128::MAX / 7).to_le_bytes();
        let ip = ip::Config::new(link, Mac([2, 0, 0, 0, 0, 1]), &[family.subnet(OURS)], secret);
        let mut config = Config::new(ip, secret);
        config.tcp.timestamps = plan.timestamps;
        if plan.small {
            config.tcp.rmem = [4096, 16_384, 65_536];
            config.tcp.wmem = [4096, 16_384, 65_536];
        }
        let mut device = Phy {
            link: b,
            pool: pool(),
            mtu: plan.mtu as usize,
            now: wire.now(),
            first: None,
            sent: VecDeque::new(),
        };
        let mut config = (iface::Config::new(HardwareAddress::Ip), config);
        config.0.random_seed = dice.roll();
        let mut interface = Interface::new(config.0, &mut device, time(wire.now()));
        let address = IpCidr::new(family.address(THEIRS).into(), family.prefix());
        interface.update_ip_addrs(|all| all.push(address).expect("room for an address"));
        let room = |len: usize| SocketBuffer::new(vec![0; len]);
        let mut socket = Socket::new(room(plan.buffers[0]), room(plan.buffers[1]));
        socket.set_nagle_enabled(!plan.nodelay[THEIRS]);
        socket.set_ack_delay(plan.ack_delay.map(smoltcp::time::Duration::from_millis));
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Case {
            family,
            dice,
            pool: pool(),
            stack: Stack::new(config.1).expect("a stack"),
            cable: Cable::new(a, tell),
            id: None,
            listener: None,
            may: Readiness::empty(),
            theirs: Theirs { interface, sockets, handle, wire: device },
            programs: Default::default(),
            began: wire.now(),
            wire,
            plan,
        }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.theirs.sockets.get_mut(self.theirs.handle)
    }

    fn begin(&mut self) -> Result<(), String> {
        let (now, stack) = (self.wire.now(), &mut self.stack);
        let ours = stack.tcp_open().map_err(|e| e.to_string())?;
        let [here, there] = [OURS, THEIRS].map(|end| self.family.address(end));
        if self.plan.ours_connects {
            let socket = self.theirs.sockets.get_mut::<Socket<'_>>(self.theirs.handle);
            socket.listen(PORT).map_err(|e| format!("smoltcp cannot listen: {e:?}"))?;
            let begun = stack.tcp_connect(now, ours, SocketAddr::new(there, PORT));
            ensure!(begun == Err(Error::InProgress), "connect says {begun:?}");
            self.id = Some(ours);
            return self.set();
        }
        stack.tcp_bind(ours, SocketAddr::new(here, PORT), false).map_err(|e| e.to_string())?;
        stack.tcp_listen(ours, 4).map_err(|e| e.to_string())?;
        self.listener = Some(ours);
        let Theirs { interface, sockets, handle, .. } = &mut self.theirs;
        let socket = sockets.get_mut::<Socket<'_>>(*handle);
        let to: IpAddress = here.into();
        socket
            .connect(interface.context(), (to, PORT), 50_000)
            .map_err(|e| format!("smoltcp cannot connect: {e:?}"))
    }

    fn set(&mut self) -> Result<(), String> {
        let (Some(id), nodelay) = (self.id, self.plan.nodelay[OURS]) else { return Ok(()) };
        let set = self.stack.tcp_set(self.wire.now(), id, |settings| settings.nodelay = nodelay);
        set.map_err(|e| e.to_string())
    }

    /// False where smoltcp forgot what it had to send again.
    fn play(&mut self) -> Result<bool, String> {
        self.begin()?;
        let until = self.began + LIMIT;
        while !self.programs.iter().all(Program::is_over) {
            let moved = self.programs_do()?;
            if !moved {
                let goes_on = self.step(until)?;
                if !goes_on && self.they_forgot() {
                    return Ok(false);
                }
                ensure!(goes_on, "it stalls");
            }
        }
        let now = self.wire.now();
        for id in self.id.take().into_iter().chain(self.listener.take()) {
            self.stack.tcp_close(now, id);
        }
        // Both let go: neither waits for the other one.
        let until = now + LIMIT;
        while self.socket().state() != State::Closed || !self.stack.is_empty() {
            let moved = self.step(until)?;
            let closed = self.socket().state() == State::Closed && self.stack.is_empty();
            ensure!(moved || closed, "its ends do not agree that it is over");
        }
        Ok(true)
    }

    /// It is smoltcp's turn alone: it has bytes that are not acknowledged, ours has said that there is room for them and has nothing of its own under
    /// way; and smoltcp waits for nothing, or has not sent the byte that ours lacks for ten minutes. Where a window of none and one of some
    /// are told while bytes are under way (overtaken by each other, say), its timer for probes takes the place of the one for sending
    /// again (smoltcp 0.14, socket/tcp.rs, "start/stop the Zero Window Probe timer"; RFC 9293, section 3.8.1).
    fn they_forgot(&mut self) -> bool {
        let now = self.wire.now();
        let waits = self.theirs.interface.poll_at(time(now), &self.theirs.sockets).is_some();
        let info = self.id.and_then(|id| self.stack.tcp_info(now, id));
        let done = info.is_some_and(|info| info.rcv_wnd > 0 && info.unacked == 0 && info.notsent_bytes == 0);
        let (lacks, recent) = (self.programs[OURS].got, now.saturating_sub(600 * SECOND));
        let mut sent = self.theirs.wire.sent.iter();
        let sent = sent.any(|(from, to, at)| (*from..*to).contains(&lacks) && *at > recent);
        done && self.socket().send_queue() > 0 && (!waits || !sent)
    }

    /// Hands all over that can be, and does what is due; then goes on to what comes next. False where that is behind `until`, or nothing.
    fn step(&mut self, until: u64) -> Result<bool, String> {
        let now = self.wire.now();
        if self.stack.deadline().is_some_and(|at| at <= now) {
            self.stack.advance(now);
        }
        let link = self.cable.link();
        while let Some(packet) = link.receive(now) {
            self.stack.receive(now, packet);
        }
        while link.room(now) > 0
            && let Some(packet) = self.stack.transmit()
        {
            link.transmit(now, packet);
        }
        while let Some(event) = self.stack.event() {
            if Some(event.id) == self.listener {
                if let Ok((id, _)) = self.stack.tcp_accept(event.id) {
                    ensure!(self.id.is_none(), "two connections were accepted");
                    self.id = Some(id);
                    self.set()?;
                    self.may = self.stack.tcp_readiness(id);
                }
            } else if Some(event.id) == self.id {
                self.may |= self.stack.tcp_readiness(event.id);
            }
        }
        let Theirs { interface, sockets, wire, .. } = &mut self.theirs;
        wire.now = now;
        let changed = interface.poll(time(now), wire, sockets) != iface::PollResult::None;
        if changed || self.wants(now) {
            return Ok(true);
        }
        let theirs = self.theirs.interface.poll_at(time(now), &self.theirs.sockets);
        // What is due and cannot be done waits for room on the wire.
        let theirs = theirs
            .map(|at| at.total_micros() as u64 * 1000)
            .map(|at| if at <= now { now + 1_000_000 } else { at });
        let reads = self.programs.iter().map(|program| program.reads_at).filter(|at| *at > now);
        let next = self.wire.next().into_iter().chain(self.stack.deadline()).chain(theirs).chain(reads).min();
        match next {
            Some(next) if next <= until => {
                self.wire.advance(next.max(now));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Whether our program has something to do now. (Theirs is asked each time.)
    fn wants(&self, now: u64) -> bool {
        let program = &self.programs[OURS];
        let sends = self.may.contains(Readiness::WRITE) && !program.shut;
        let reads = self.may.contains(Readiness::READ) && !program.ended && program.reads_at <= now;
        self.id.is_some() && !program.is_over() && (sends || reads)
    }

    fn programs_do(&mut self) -> Result<bool, String> {
        let mut moved = false;
        for end in [OURS, THEIRS] {
            if self.programs[end].is_over() {
                continue;
            }
            if let Some((who, at)) = self.plan.aborts
                && who == end
                && self.programs[end].got >= at
                && self.is_connected(end)
            {
                self.abort(end);
                moved = true;
                continue;
            }
            moved |= if end == OURS { self.ours()? } else { self.theirs()? };
        }
        Ok(moved)
    }

    fn is_connected(&mut self, end: usize) -> bool {
        match end {
            OURS => self.id.is_some_and(|id| {
                self.stack.tcp_connection(id).is_some_and(|of| of.state().is_synchronized())
            }),
            _ => self.socket().may_send() || self.socket().may_recv(),
        }
    }

    fn abort(&mut self, end: usize) {
        let now = self.wire.now();
        self.programs[end].aborted = true;
        match end {
            OURS => {
                if let Some(id) = self.id.take() {
                    let _ = self.stack.tcp_set(now, id, |settings| settings.linger = Some(Duration::ZERO));
                    self.stack.tcp_close(now, id);
                }
            }
            _ => self.socket().abort(),
        }
    }

    /// `end` was told of a reset.
    fn was_reset(&mut self, end: usize, what: &str) -> Result<bool, String> {
        ensure!(self.programs[1 - end].aborted, "end {end} is reset ({what}), and nobody has done that");
        self.programs[end].reset = true;
        Ok(true)
    }

    fn ours(&mut self) -> Result<bool, String> {
        let (now, Some(id)) = (self.wire.now(), self.id) else { return Ok(false) };
        let mut moved = false;
        if self.may.contains(Readiness::WRITE) && !self.programs[OURS].shut {
            let program = &mut self.programs[OURS];
            let left = self.plan.bytes[OURS] - program.given;
            if left == 0 {
                return match self.stack.tcp_shutdown(now, id, Way::Write) {
                    Ok(()) => {
                        program.shut = true;
                        Ok(true)
                    }
                    Err(Error::NotConnected | Error::Reset | Error::BrokenPipe) => {
                        self.was_reset(OURS, "shutdown")
                    }
                    Err(error) => Err(format!("ours cannot shut down: {error}")),
                };
            }
            let len = left.min(1 + self.dice.roll() % self.plan.piece[OURS] as u64);
            let piece = bytes(OURS, program.given, len);
            let writer = Writer::new(&self.pool);
            let sent = if self.dice.one_in(2) {
                let mut segment = Segment::new(Chain::new());
                writer.append(segment.payload_mut(), piece).map_err(|e| e.to_string())?;
                self.stack.tcp_send(now, id, &mut segment, SendFlags::empty())
            } else {
                self.stack.tcp_send_bytes(now, id, piece, &writer, SendFlags::empty())
            };
            match sent {
                Ok(taken) => {
                    program.given += taken as u64;
                    moved = true;
                }
                Err(Error::WouldBlock) => self.may -= Readiness::WRITE,
                Err(Error::Reset | Error::BrokenPipe) => return self.was_reset(OURS, "send"),
                Err(error) => return Err(format!("ours cannot send: {error}")),
            }
        }
        let program = &self.programs[OURS];
        if self.may.contains(Readiness::READ) && !program.ended && program.reads_at <= now {
            match self.stack.tcp_receive(now, id, self.plan.read[OURS]) {
                Ok(Received::Data(data)) => {
                    let came = data.payload().host().map_err(|e| e.to_string())?.to_vec();
                    self.came(OURS, &came)?;
                    moved = true;
                }
                Ok(Received::End) => {
                    self.end(OURS)?;
                    moved = true;
                }
                Err(Error::WouldBlock) => self.may -= Readiness::READ,
                Err(Error::Reset) => return self.was_reset(OURS, "receive"),
                Err(error) => return Err(format!("ours cannot receive: {error}")),
            }
        }
        Ok(moved)
    }

    fn theirs(&mut self) -> Result<bool, String> {
        let (now, mut moved) = (self.wire.now(), false);
        let (mut dice, piece, read) =
            (Dice(self.dice.roll()), self.plan.piece[THEIRS], self.plan.read[THEIRS]);
        let (given, shut) = (self.programs[THEIRS].given, self.programs[THEIRS].shut);
        let left = self.plan.bytes[THEIRS] - given;
        let socket = self.socket();
        if matches!(socket.state(), State::Listen | State::SynSent | State::SynReceived) {
            return Ok(false);
        }
        if !shut && left == 0 {
            socket.close();
            self.programs[THEIRS].shut = true;
            return Ok(true);
        }
        if !shut && socket.can_send() {
            let len = left.min(1 + dice.roll() % piece as u64);
            let taken = socket
                .send_slice(bytes(THEIRS, given, len))
                .map_err(|e| format!("theirs cannot send: {e:?}"))?;
            self.programs[THEIRS].given += taken as u64;
            moved |= taken > 0;
        } else if !shut && !socket.may_send() {
            return self.was_reset(THEIRS, "send");
        }
        if self.programs[THEIRS].ended || self.programs[THEIRS].reads_at > now {
            return Ok(moved);
        }
        let mut buffer = vec![0; read];
        match self.socket().recv_slice(&mut buffer) {
            Ok(0) => {}
            Ok(n) => {
                self.came(THEIRS, &buffer[..n])?;
                moved = true;
            }
            Err(RecvError::Finished) => {
                self.end(THEIRS)?;
                moved = true;
            }
            Err(RecvError::InvalidState) => return self.was_reset(THEIRS, "receive"),
        }
        Ok(moved)
    }

    /// `end` has received these.
    fn came(&mut self, end: usize, mut slice: &[u8]) -> Result<(), String> {
        let program = &mut self.programs[end];
        while !slice.is_empty() {
            let expected = bytes(1 - end, program.got, slice.len() as u64);
            let (now, later) = slice.split_at(expected.len());
            ensure!(now == expected, "end {end} got other bytes behind {}", program.got);
            program.got += now.len() as u64;
            slice = later;
        }
        program.reads_at = self.wire.now() + self.plan.pause[end];
        ensure!(self.programs[end].got <= self.programs[1 - end].given, "end {end} got more than was sent");
        Ok(())
    }

    /// `end` was told of the other one's end.
    fn end(&mut self, end: usize) -> Result<(), String> {
        let (got, other) = (self.programs[end].got, &self.programs[1 - end]);
        ensure!(other.shut, "end {end} is told of an end that nobody said");
        ensure!(got == other.given, "end {end} got {got} of {} bytes", other.given);
        self.programs[end].ended = true;
        Ok(())
    }

    fn finish(self, all: &mut Beside) -> Result<(), String> {
        let left = self.stack.census();
        ensure!(left == Census::default(), "ours has {left:?} left");
        if self.plan.aborts.is_none() {
            for (end, program) in self.programs.iter().enumerate() {
                let (wanted, given) = (self.plan.bytes[end], program.given);
                ensure!(given == wanted, "end {end} gave {given} of {wanted} bytes");
            }
        }
        all.cases += 1;
        all.aborted += u64::from(self.programs.iter().any(|program| program.aborted));
        for (sum, program) in all.bytes.iter_mut().zip(&self.programs) {
            *sum += program.got;
        }
        for side in [Side::A, Side::B] {
            let stats = self.wire.stats(side);
            all.packets += stats.transmitted;
            all.troubled += stats.lost + stats.duplicated + stats.reordered + stats.corrupted;
        }
        Ok(())
    }

    fn report(&mut self) -> String {
        let now = self.wire.now();
        let state = self.socket().state();
        let queues = (self.socket().send_queue(), self.socket().recv_queue());
        let ours = self.id.and_then(|id| self.stack.tcp_state(id));
        let info = self.id.and_then(|id| self.stack.tcp_info(now, id));
        let counted: Vec<_> = self.stack.tcp_stats().each().filter(|(_, count)| *count > 0).collect();
        format!(
            "{:?}\nours: {ours:?}, {:?}, {info:?}, {counted:?}, {:?}\ntheirs: {state:?}, {:?}, queues {queues:?}\n{}",
            self.plan,
            self.programs[OURS],
            self.stack.census(),
            self.programs[THEIRS],
            self.cable.told()
        )
    }
}
