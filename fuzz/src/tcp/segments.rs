//! A stack that gets segments nobody would send: what a real peer sends is changed on its way, and its checksums are made right again.

use std::net::{Ipv4Addr, SocketAddr};

use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Sum, Writer};
use onecopy_conformance::tools::Dice;
use onecopy_inet::ip::{self, Cidr};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{Census, Config, Stack};
use onecopy_inet::tcp::{Error, Received, SendFlags, Side};
use onecopy_inet::wire::Mac;
use onecopy_link::{Capabilities, Medium, Packet};
use onecopy_pool::PagePool;

const VICTIM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const INNOCENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 66);
const PORT: u16 = 80;
const SECOND: u64 = 1_000_000_000;
/// Connections of the peer at once.
const CROWD: usize = 6;
/// Memory of all of the victim's connections.
const MEMORY: [u64; 3] = [128 << 10, 192 << 10, 256 << 10];
/// What a connection may have beyond it: a packet's pages, and the little that it may always send.
const EACH: u64 = 80 << 10;
/// Packets that are kept to be sent again.
const KEPT: usize = 64;

/// What many scenes came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Strikes {
    /// Scenes.
    pub scenes: u64,
    /// Packets that were changed.
    pub changed: u64,
    /// Of these, those that TCP took for a connection's: counted in nothing that is thrown away.
    pub taken: u64,
    /// Connections that were made.
    pub made: u64,
    /// Bytes that went between the innocent and the victim.
    pub innocent: u64,
}

struct Scene<'a> {
    dice: Dice,
    pool: &'a PagePool,
    now: u64,
    victim: Stack,
    peer: Stack,
    innocent: Stack,
    listener: Id,
    /// The innocent's connection: its end, and the victim's.
    good: (Id, Id),
    given: u64,
    got: u64,
    /// The peer's sockets, and the victim's.
    theirs: Vec<Id>,
    ours: Vec<Id>,
    kept: Vec<Vec<u8>>,
    strikes: Strikes,
    /// Segments without data that the victim has sent to the peer.
    answers: u64,
    /// So many of 8 packets are changed.
    harsh: u64,
}

/// One scene of so many steps.
///
/// # Errors
///
/// What did not hold; the rest is a panic.
pub fn strike(seed: u64, steps: u64, pool: &PagePool, strikes: &mut Strikes) -> Result<(), String> {
    let mut scene = Scene::new(seed, pool)?;
    for _ in 0..steps {
        scene.step()?;
    }
    scene.finish(strikes)
}

fn stack(address: Ipv4Addr, number: u8, small: bool) -> Result<Stack, String> {
    let cidr = Cidr::new(address, 24).ok_or("no address")?;
    let seed = [number; 16];
    let link = Capabilities::none(Medium::Ip, 1500);
    let mut config = Config::new(ip::Config::new(link, Mac::default(), &[cidr], seed), seed);
    if small {
        config.tcp.memory = MEMORY;
        config.tcp.max_orphans = CROWD as u32;
    }
    Stack::new(config).map_err(|e| format!("{e:?}"))
}

fn stream(at: u64, len: u64) -> Vec<u8> {
    (at..at + len).map(|at| (at % 251) as u8).collect()
}

impl<'a> Scene<'a> {
    fn new(seed: u64, pool: &'a PagePool) -> Result<Scene<'a>, String> {
        let mut dice = Dice(seed);
        let (mut victim, peer) = (stack(VICTIM, 2, true)?, stack(PEER, 66, false)?);
        let mut innocent = stack(INNOCENT, 3, false)?;
        let at = SocketAddr::new(VICTIM.into(), PORT);
        // First numbers go up every 4 microseconds: some pass 2^32 while they are used.
        let now = SECOND + (dice.roll() >> 14);
        let listener = victim.tcp_open().map_err(|e| e.to_string())?;
        victim.tcp_bind(listener, at, false).map_err(|e| e.to_string())?;
        victim.tcp_listen(listener, 8).map_err(|e| e.to_string())?;
        let good = innocent.tcp_open().map_err(|e| e.to_string())?;
        let _ = innocent.tcp_connect(now, good, at);
        let harsh = 1 + dice.roll() % 7;
        let mut scene = Scene {
            dice,
            pool,
            now,
            victim,
            peer,
            innocent,
            listener,
            good: (good, good),
            given: 0,
            got: 0,
            theirs: Vec::new(),
            ours: Vec::new(),
            kept: Vec::new(),
            strikes: Strikes { scenes: 1, ..Strikes::default() },
            answers: 0,
            harsh,
        };
        scene.pass()?;
        scene.good.1 = scene.victim.tcp_accept(listener).map_err(|e| format!("the innocent: {e}"))?.0;
        Ok(scene)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.dice.roll() % end.max(1)
    }

    fn some(&mut self, of: &[Id]) -> Option<Id> {
        (!of.is_empty()).then(|| of[self.below(of.len() as u64) as usize])
    }

    fn step(&mut self) -> Result<(), String> {
        let (now, theirs, ours) = (self.now, self.theirs.clone(), self.ours.clone());
        let len = 1 + self.below(6000) as usize;
        let side = [Side::Read, Side::Write, Side::Both][self.below(3) as usize];
        let (their, our) = (self.some(&theirs), self.some(&ours));
        let writer = Writer::new(self.pool);
        match (self.below(24), their, our) {
            (0..3, ..) if theirs.len() < CROWD => {
                let id = self.peer.tcp_open().map_err(|e| e.to_string())?;
                let _ = self.peer.tcp_connect(now, id, SocketAddr::new(VICTIM.into(), PORT));
                self.theirs.push(id);
            }
            (3, ..) if ours.len() < CROWD => {
                // To a port where nobody listens.
                let id = self.victim.tcp_open().map_err(|e| e.to_string())?;
                let _ = self.victim.tcp_connect(now, id, SocketAddr::new(PEER.into(), 7));
                self.ours.push(id);
            }
            (4..10, Some(id), _) => {
                let _ = self.peer.tcp_send_bytes(now, id, &vec![1; len], &writer, SendFlags::empty());
            }
            (10..13, _, Some(id)) => {
                let _ = self.victim.tcp_send_bytes(now, id, &vec![2; len], &writer, SendFlags::empty());
            }
            (13..15, Some(id), _) => drop(self.peer.tcp_receive(now, id, len)),
            (15..17, _, Some(id)) => drop(self.victim.tcp_receive(now, id, len)),
            (17, Some(id), _) => drop(self.peer.tcp_shutdown(now, id, side)),
            (17, None, Some(id)) | (18, _, Some(id)) => drop(self.victim.tcp_shutdown(now, id, side)),
            (19, Some(id), _) => {
                self.theirs.retain(|other| *other != id);
                self.peer.tcp_close(now, id);
            }
            (20, _, Some(id)) => {
                self.ours.retain(|other| *other != id);
                self.victim.tcp_close(now, id);
            }
            (21, Some(id), _) if self.dice.one_in(4) => self.peer.tcp_abort(now, id),
            _ => {
                let times = [1_000, 1_000_000, 300_000_000, 2_000_000_000];
                let most = times[self.below(4) as usize];
                let ns = self.below(most);
                self.run(ns)?;
            }
        }
        self.pass()?;
        while let Ok((id, peer)) = self.victim.tcp_accept(self.listener) {
            if peer.ip() == PEER && self.ours.len() < 2 * CROWD {
                self.strikes.made += 1;
                self.ours.push(id);
            } else {
                self.victim.tcp_close(now, id);
            }
        }
        if !self.kept.is_empty() && self.dice.one_in(2) {
            // One that was sent before, maybe long ago, and changed or not.
            let at = self.below(self.kept.len() as u64) as usize;
            let bytes = self.kept[at].clone();
            self.strike(bytes)?;
        }
        self.talk(200)?;
        self.look()
    }

    /// Hands packets over until there are none, those of the peer changed or not.
    fn pass(&mut self) -> Result<(), String> {
        loop {
            let mut any = false;
            while let Some(packet) = self.victim.transmit() {
                any = true;
                let to = &packet.head()[16..20];
                if to == INNOCENT.octets() {
                    self.innocent.receive(self.now, packet);
                } else {
                    self.answers += u64::from(packet.payload().payload().is_empty());
                    self.peer.receive(self.now, packet);
                }
            }
            while let Some(packet) = self.innocent.transmit() {
                any = true;
                self.victim.receive(self.now, packet);
            }
            while let Some(mut packet) = self.peer.transmit() {
                any = true;
                packet.finish().map_err(|e| e.to_string())?;
                let bytes = packet.to_vec().map_err(|e| e.to_string())?;
                if self.kept.len() < KEPT {
                    self.kept.push(bytes.clone());
                } else {
                    let at = self.below(KEPT as u64) as usize;
                    self.kept[at].clone_from(&bytes);
                }
                if self.below(8) < self.harsh {
                    self.strike(bytes)?;
                    if self.dice.one_in(2) {
                        continue;
                    }
                }
                self.victim.receive(self.now, packet);
            }
            if !any {
                break;
            }
        }
        while self.victim.event().is_some() || self.peer.event().is_some() || self.innocent.event().is_some()
        {
        }
        Ok(())
    }

    /// Changes a packet, makes its checksums right, and gives it to the victim: it is answered at most twice.
    fn strike(&mut self, bytes: Vec<u8>) -> Result<(), String> {
        let bytes = self.changed(bytes);
        let head = bytes.len().min(20 + self.below(80) as usize);
        let mut chain = Chain::new();
        Writer::new(self.pool).append(&mut chain, &bytes[head..]).map_err(|e| e.to_string())?;
        let packet = Packet::new(&bytes[..head], Segment::new(chain)).map_err(|e| format!("{e:?}"))?;
        let thrown = |stack: &Stack| {
            let tcp = stack.tcp_stats();
            stack.interface().stats().dropped_in()
                + tcp.malformed
                + tcp.no_socket
                + tcp.stray
                + tcp.outside_window
        };
        let (before, answers) = (thrown(&self.victim), self.victim.tcp_stats().segments_out);
        let retransmitted = self.victim.tcp_stats().retransmitted;
        self.victim.receive(self.now, packet);
        self.strikes.changed += 1;
        self.strikes.taken += u64::from(thrown(&self.victim) == before);
        let stats = self.victim.tcp_stats();
        // What it acknowledges may let much leave; what is sent again has its own limits.
        let sent = stats.segments_out - answers - (stats.retransmitted - retransmitted);
        match sent {
            0..=100 => Ok(()),
            _ => Err(format!("{sent} segments answer one packet")),
        }
    }

    fn changed(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        for _ in 0..1 + self.below(3) {
            let ihl = (usize::from(bytes[0] & 15) * 4).clamp(20, 60);
            if bytes.len() < ihl + 20 {
                break;
            }
            let near = [0, 1, u32::MAX, 1460, 65_536, 1 << 31][self.below(6) as usize];
            let random = self.dice.roll();
            let near = if self.dice.one_in(4) { random as u32 } else { near };
            let tcp = &mut bytes[ihl..];
            match random >> 60 {
                0 | 1 => add(&mut tcp[4..8], near),
                2 | 3 => add(&mut tcp[8..12], near),
                4 | 5 => tcp[13] = (random >> 8) as u8,
                6 => tcp[13] ^= 1 << (random % 8),
                7 => tcp[14..16].copy_from_slice(&(random as u16).to_be_bytes()),
                8 => tcp[18..20].copy_from_slice(&(random as u16).to_be_bytes()),
                9 | 10 => bytes = self.with_options(&bytes, ihl),
                11 => bytes.truncate(ihl + 20 + (random as usize % (bytes.len() - ihl - 19))),
                12 => bytes.resize((bytes.len() + random as usize % 3000).min(9000), 3),
                13 => {
                    let at = random as usize % bytes.len().min(100);
                    // (Not who sent it, nor to whom.)
                    if !(12..24).contains(&at) {
                        bytes[at] = (random >> 16) as u8;
                    }
                }
                // Fragments, the type of service, what identifies it.
                14 => bytes[6..8].copy_from_slice(&(random as u16).to_be_bytes()),
                _ => bytes[1] = random as u8,
            }
        }
        self.make_right(bytes)
    }

    /// The same with other options: ones that are known, with any content, or none at all.
    fn with_options(&mut self, bytes: &[u8], ihl: usize) -> Vec<u8> {
        let old = (usize::from(bytes[ihl + 12] >> 4) * 4).clamp(20, bytes.len() - ihl);
        let mut options = Vec::new();
        while options.len() < 36 && !self.dice.one_in(5) {
            let kind = [0, 1, 2, 3, 4, 5, 8, 34, 254, 28][self.below(10) as usize];
            options.push(kind);
            if kind > 1 {
                let right = match kind {
                    2 => 4,
                    3 => 3,
                    4 => 2,
                    5 => 2 + 8 * self.below(5) as u8,
                    8 => 10,
                    _ => 2 + self.below(12) as u8,
                };
                let len = if self.dice.one_in(6) { self.dice.roll() as u8 } else { right };
                options.push(len);
                (2..len.min(40)).for_each(|_| options.push(self.dice.roll() as u8));
            }
        }
        options.truncate(40);
        options.resize(options.len().next_multiple_of(4), 0);
        let mut changed = [&bytes[..ihl + 20], &options, &bytes[ihl + old..]].concat();
        changed[ihl + 12] = ((20 + options.len()) as u8 / 4) << 4 | changed[ihl + 12] & 15;
        changed
    }

    /// Lengths (mostly) and checksums as they should be.
    fn make_right(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        if !self.dice.one_in(16) {
            let len = bytes.len() as u16;
            bytes[2..4].copy_from_slice(&len.to_be_bytes());
        }
        let ihl = (usize::from(bytes[0] & 15) * 4).clamp(20, bytes.len());
        bytes[10..12].fill(0);
        let sum = Sum::of(&bytes[..ihl]).checksum();
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        if bytes.len() >= ihl + 18 {
            bytes[ihl + 16..ihl + 18].fill(0);
            let len = (bytes.len() - ihl) as u16;
            let pseudo = [&bytes[12..20], &[0, 6], &len.to_be_bytes(), &bytes[ihl..]].concat();
            let sum = Sum::of(&pseudo).checksum();
            bytes[ihl + 16..ihl + 18].copy_from_slice(&sum.to_be_bytes());
        }
        bytes
    }

    fn run(&mut self, ns: u64) -> Result<(), String> {
        let until = self.now + ns;
        let mut steps: u64 = 0;
        loop {
            let stacks = [&self.victim, &self.peer, &self.innocent];
            let next = stacks.iter().filter_map(|stack| stack.deadline()).min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            self.now = next.max(self.now);
            let now = self.now;
            for stack in [&mut self.victim, &mut self.peer, &mut self.innocent] {
                stack.advance(now);
            }
            self.pass()?;
            steps += 1;
            if steps > 2_000 + 200 * (ns / SECOND) {
                return Err(format!("a storm of timers: {steps} in {ns} ns"));
            }
        }
        self.now = until;
        Ok(())
    }

    /// The innocent sends, and the victim's program reads it.
    fn talk(&mut self, len: u64) -> Result<(), String> {
        let (bytes, writer) = (stream(self.given, len), Writer::new(self.pool));
        match self.innocent.tcp_send_bytes(self.now, self.good.0, &bytes, &writer, SendFlags::empty()) {
            Ok(sent) => self.given += sent as u64,
            Err(Error::WouldBlock) => {}
            Err(error) => return Err(format!("the innocent cannot send: {error}")),
        }
        self.pass()?;
        loop {
            match self.victim.tcp_receive(self.now, self.good.1, usize::MAX) {
                Ok(Received::Data(data)) => {
                    for slice in data.payload().host().map_err(|e| e.to_string())?.slices() {
                        if slice != stream(self.got, slice.len() as u64) {
                            return Err(format!("other bytes than the innocent's behind {}", self.got));
                        }
                        self.got += slice.len() as u64;
                    }
                }
                Ok(Received::End) => return Err("the innocent's connection ended".into()),
                Err(Error::WouldBlock) => break,
                Err(error) => return Err(format!("the innocent's connection fails: {error}")),
            }
        }
        self.pass()
    }

    fn look(&self) -> Result<(), String> {
        let (memory, sockets) = (self.victim.tcp_memory(), self.victim.len());
        if memory > MEMORY[2] + EACH * (2 * CROWD as u64 + 9) {
            return Err(format!("{memory} bytes are kept"));
        }
        // Those that the program holds, half-open ones, the accept queue, and what is over or nobody's.
        if sockets > 1000 {
            return Err(format!("{sockets} sockets"));
        }
        Ok(())
    }

    /// All let go, and the peer says nothing more: the innocent has all, and nothing is left.
    fn finish(mut self, strikes: &mut Strikes) -> Result<(), String> {
        for _ in 0..10 {
            self.talk(1000)?;
            self.run(SECOND)?;
        }
        self.talk(0)?;
        if self.got != self.given || self.given < 5_000 {
            return Err(format!("of the innocent's {} bytes {} came", self.given, self.got));
        }
        self.strikes.innocent += self.got;
        let now = self.now;
        for id in std::mem::take(&mut self.theirs) {
            self.peer.tcp_abort(now, id);
            self.peer.tcp_close(now, id);
        }
        for id in std::mem::take(&mut self.ours).into_iter().chain([self.listener, self.good.1]) {
            self.victim.tcp_close(now, id);
        }
        self.innocent.tcp_close(now, self.good.0);
        self.kept.clear();
        self.harsh = 0;
        self.run(3000 * SECOND)?;
        for (name, stack) in [("the victim", &self.victim), ("the innocent", &self.innocent)] {
            let (left, memory) = (stack.census(), stack.tcp_memory());
            if left != Census::default() || memory != 0 || stack.tcp_orphans() != 0 {
                return Err(format!("{name} has {left:?} and {memory} bytes left"));
            }
        }
        let Scene { victim, peer, innocent, pool, strikes: mine, .. } = self;
        drop((victim, peer, innocent));
        let stats = pool.stats();
        if stats.in_flight != stats.in_cache + stats.in_ring {
            return Err(format!("pages are missing: {stats:?}"));
        }
        strikes.scenes += mine.scenes;
        strikes.changed += mine.changed;
        strikes.taken += mine.taken;
        strikes.made += mine.made;
        strikes.innocent += mine.innocent;
        Ok(())
    }
}

/// Adds to a number of a header.
fn add(field: &mut [u8], more: u32) {
    let value = field.iter().fold(0u32, |all, byte| all << 8 | u32::from(*byte));
    field.copy_from_slice(&value.wrapping_add(more).to_be_bytes());
}
