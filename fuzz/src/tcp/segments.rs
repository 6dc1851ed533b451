//! A stack that gets packets nobody would send: what a real peer sends is changed on its way, or cut, and its checksums are made right again;
//! and messages that the peer makes by hand.

use std::net::SocketAddr;

use super::change::{changed, cut};
use super::hosts::{Host, Link};
use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Writer};
use onecopy_conformance::tools::Dice;
use onecopy_inet::ip::Outgoing;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{Census, Stack};
use onecopy_inet::tcp::{Error, Received, SendFlags, Side};
use onecopy_inet::udp::{self, Envelope};
use onecopy_inet::wire::Protocol;
use onecopy_link::Packet;
use onecopy_pool::PagePool;

const PORT: u16 = 80;
/// Of the victim's sockets of UDP: one for everybody, one for the innocent, and one that nobody has.
const ECHO: u16 = 7;
const QUIET: u16 = 8;
const NOBODY: u16 = 9;
const SECOND: u64 = 1_000_000_000;
/// Connections of the peer at once.
const CROWD: usize = 6;
/// Memory of all of the victim's connections.
const MEMORY: [u64; 3] = [128 << 10, 192 << 10, 256 << 10];
/// What a connection may have beyond it: a packet's pages, and the little that it may always send.
const EACH: u64 = 80 << 10;
/// Packets that are kept to be sent again.
const KEPT: usize = 64;
/// Of the victim, to be quoted.
const QUOTED: usize = 16;
/// Pages of all: what connections, datagrams and fragments may keep, and what is on its way.
const PAGES: u64 = 16 << 20 >> 12;

/// What many scenes came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Strikes {
    /// Scenes.
    pub scenes: u64,
    /// Packets that were changed.
    pub changed: u64,
    /// Of these, those that were for somebody: counted in nothing that is thrown away.
    pub taken: u64,
    /// Of these, those that TCP, UDP, ICMP and NDP took, and those that were put together of fragments.
    pub tcp: u64,
    /// See above.
    pub udp: u64,
    /// See above; NDP's are among them.
    pub icmp: u64,
    /// See above.
    pub ndp: u64,
    /// See above.
    pub reassembled: u64,
    /// Scenes over IPv6.
    pub ipv6: u64,
    /// Connections that were made.
    pub made: u64,
    /// Bytes that went between the innocent and the victim.
    pub innocent: u64,
}

struct Scene<'a> {
    dice: Dice,
    link: Link,
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
    /// What the victim has sent to the peer.
    sent: Vec<Vec<u8>>,
    /// Sockets of UDP: the peer's, the victim's for everybody, and those of the innocent and the victim for each other.
    asks: Id,
    echo: Id,
    quiet: (Id, Id),
    /// Datagrams that the innocent has sent.
    datagrams: u64,
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

fn stream(at: u64, len: u64) -> Vec<u8> {
    (at..at + len).map(|at| (at % 251) as u8).collect()
}

impl<'a> Scene<'a> {
    fn new(seed: u64, pool: &'a PagePool) -> Result<Scene<'a>, String> {
        let mut dice = Dice(seed);
        let link = Link::of(&mut dice);
        let mut victim = link.stack(Host::Victim, |config| {
            config.tcp.memory = MEMORY;
            config.tcp.max_orphans = CROWD as u32;
        })?;
        let mut peer = link.stack(Host::Peer, |_| ())?;
        let mut innocent = link.stack(Host::Innocent, |_| ())?;
        let at = |host, port| SocketAddr::new(link.address(host), port);
        // First numbers go up every 4 microseconds: some pass 2^32 while they are used.
        let now = SECOND + (dice.roll() >> 14);
        let listener = victim.tcp_open().map_err(|e| e.to_string())?;
        victim.tcp_bind(listener, at(Host::Victim, PORT), false).map_err(|e| e.to_string())?;
        victim.tcp_listen(listener, 8).map_err(|e| e.to_string())?;
        let good = innocent.tcp_open().map_err(|e| e.to_string())?;
        let _ = innocent.tcp_connect(now, good, at(Host::Victim, PORT));
        let open = |stack: &mut Stack, host, port| {
            let id = stack.udp_open()?;
            stack.udp_bind(id, at(host, port), false)?;
            Ok::<_, udp::Error>(id)
        };
        let sockets = |victim: &mut Stack, innocent: &mut Stack| {
            let (ours, theirs) = (open(victim, Host::Victim, QUIET)?, open(innocent, Host::Innocent, QUIET)?);
            victim.udp_connect(ours, at(Host::Innocent, QUIET))?;
            innocent.udp_connect(theirs, at(Host::Victim, QUIET))?;
            Ok::<_, udp::Error>((open(victim, Host::Victim, ECHO)?, (theirs, ours)))
        };
        let (echo, quiet) = sockets(&mut victim, &mut innocent).map_err(|e| e.to_string())?;
        let asks = open(&mut peer, Host::Peer, 5000).map_err(|e| e.to_string())?;
        let harsh = 1 + dice.roll() % 7;
        let ipv6 = u64::from(link.address(Host::Victim).is_ipv6());
        let mut scene = Scene {
            dice,
            link,
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
            sent: Vec::new(),
            asks,
            echo,
            quiet,
            datagrams: 0,
            strikes: Strikes { scenes: 1, ipv6, ..Strikes::default() },
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
        let at = |host, port| SocketAddr::new(self.link.address(host), port);
        let (victim, closed, peer) =
            (at(Host::Victim, PORT), at(Host::Peer, NOBODY), self.link.address(Host::Peer));
        match (self.below(32), their, our) {
            (0..3, ..) if theirs.len() < CROWD => {
                let id = self.peer.tcp_open().map_err(|e| e.to_string())?;
                let _ = self.peer.tcp_connect(now, id, victim);
                self.theirs.push(id);
            }
            (3, ..) if ours.len() < CROWD => {
                // To a port where nobody listens.
                let id = self.victim.tcp_open().map_err(|e| e.to_string())?;
                let _ = self.victim.tcp_connect(now, id, closed);
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
            (22..25, ..) => {
                // Most are longer than the link takes.
                let port = if self.dice.one_in(8) { NOBODY } else { ECHO };
                let to = Envelope::to(SocketAddr::new(victim.ip(), port));
                let _ = self.peer.udp_send_bytes(now, self.asks, &vec![4; len], &writer, &to);
            }
            (25, ..) => {
                let _ =
                    self.victim.udp_send_bytes(now, self.echo, &vec![5; len], &writer, &Envelope::to(closed));
            }
            (26, ..) => {
                let mut payload = Chain::new();
                writer.append(&mut payload, &vec![6; len]).map_err(|e| e.to_string())?;
                let payload = Packet::new(&[], payload).map_err(|e| format!("{e:?}"))?;
                let protocol = if peer.is_ipv6() { Protocol::ICMPV6 } else { Protocol::ICMP };
                let about = Outgoing { dont_fragment: false, ..Outgoing::new(peer, victim.ip(), protocol) };
                let _ = self.peer.interface_mut().ping(now, &about, (1, len as u16), payload);
            }
            (27..29, ..) => {
                let bytes = self.link.message(&mut self.dice, &self.sent);
                match self.dice.one_in(2) {
                    true => self.strike(bytes)?,
                    false => self.give(&bytes)?,
                }
            }
            _ => {
                let times = [1_000, 1_000_000, 300_000_000, 2_000_000_000];
                let most = times[self.below(4) as usize];
                let ns = self.below(most);
                self.run(ns)?;
            }
        }
        self.pass()?;
        self.echo()?;
        while let Ok((id, from)) = self.victim.tcp_accept(self.listener) {
            if from.ip() == peer && self.ours.len() < 2 * CROWD {
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

    /// What came for everybody's socket goes back, as far as the peer is told of it.
    fn echo(&mut self) -> Result<(), String> {
        let writer = Writer::new(self.pool);
        while let Ok(received) = self.victim.udp_receive(self.echo) {
            let bytes = received.data.payload().host().map_err(|e| e.to_string())?.to_vec();
            let _ = self.victim.udp_send_bytes(
                self.now,
                self.echo,
                &bytes,
                &writer,
                &Envelope::to(received.from),
            );
        }
        self.victim.udp_take_error(self.echo);
        while self.peer.udp_receive(self.asks).is_ok() {}
        self.peer.udp_take_error(self.asks);
        self.pass()
    }

    /// Hands packets over until there are none, those of the peer changed or not.
    fn pass(&mut self) -> Result<(), String> {
        loop {
            let mut any = false;
            while let Some(packet) = self.victim.transmit() {
                any = true;
                let to = self.link.goes_to(packet.head());
                if to != Some(Host::Innocent) {
                    let bytes = bytes_of(packet)?;
                    self.answers += 1;
                    if to.is_none() {
                        self.innocent.receive(self.now, self.packet(&bytes, bytes.len())?);
                    }
                    self.peer.receive(self.now, self.packet(&bytes, bytes.len())?);
                    if self.sent.len() == QUOTED {
                        self.sent.remove(0);
                    }
                    self.sent.push(bytes);
                } else {
                    self.innocent.receive(self.now, packet);
                }
            }
            while let Some(packet) = self.innocent.transmit() {
                any = true;
                // (The peer has nothing to answer where all are asked.)
                self.victim.receive(self.now, packet);
            }
            while let Some(packet) = self.peer.transmit() {
                any = true;
                let bytes = bytes_of(packet)?;
                if self.kept.len() < KEPT {
                    self.kept.push(bytes.clone());
                } else {
                    let at = self.below(KEPT as u64) as usize;
                    self.kept[at].clone_from(&bytes);
                }
                if self.below(8) < self.harsh {
                    self.strike(bytes.clone())?;
                    if self.dice.one_in(2) {
                        continue;
                    }
                }
                self.victim.receive(self.now, self.packet(&bytes, bytes.len())?);
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

    /// As it comes from a link that knows nothing, with so many bytes in its head, as far as there is room.
    fn packet(&self, bytes: &[u8], head: usize) -> Result<Packet, String> {
        let head = head.min(bytes.len()).min(100);
        let mut chain = Chain::new();
        Writer::new(self.pool).append(&mut chain, &bytes[head..]).map_err(|e| e.to_string())?;
        Packet::new(&bytes[..head], Segment::new(chain)).map_err(|e| format!("{e:?}"))
    }

    /// Changes a packet, or cuts it, makes its checksums right, and gives it to the victim.
    fn strike(&mut self, bytes: Vec<u8>) -> Result<(), String> {
        let ip = self.link.header();
        // (One that is cut may be right: then it is taken.)
        let bytes = if self.dice.one_in(8) { bytes } else { changed(&mut self.dice, bytes, ip) };
        if self.dice.one_in(4) {
            let id = self.dice.roll() as u32;
            for bytes in cut(&mut self.dice, bytes, ip, id) {
                self.give(&bytes)?;
            }
            return Ok(());
        }
        self.give(&bytes)
    }

    /// Gives the victim a packet, which is answered by few.
    fn give(&mut self, bytes: &[u8]) -> Result<(), String> {
        let head = 20 + self.below(80) as usize;
        let packet = self.packet(bytes, head)?;
        let thrown = |stack: &Stack| {
            let (tcp, udp) = (stack.tcp_stats(), stack.udp_stats());
            stack.interface().stats().dropped_in()
                + tcp.malformed
                + tcp.no_socket
                + tcp.stray
                + tcp.outside_window
                + udp.dropped()
        };
        let (before, tcp) = (thrown(&self.victim), *self.victim.tcp_stats());
        let ip = self.victim.interface().stats().clone();
        self.victim.receive(self.now, packet);
        let (now, stats) = (self.victim.interface().stats(), self.victim.tcp_stats());
        let mine = &mut self.strikes;
        mine.changed += 1;
        mine.taken += u64::from(thrown(&self.victim) == before);
        mine.tcp += now.tcp - ip.tcp;
        mine.udp += now.udp - ip.udp;
        mine.icmp += now.icmp - ip.icmp;
        mine.ndp += now.ndp - ip.ndp;
        mine.reassembled += now.reassembled - ip.reassembled;
        // What it acknowledges may let much leave; what is sent again has its own limits.
        let segments = stats.segments_out - tcp.segments_out;
        let fresh = segments - (stats.retransmitted - tcp.retransmitted);
        let others = (now.sent - ip.sent).saturating_sub(segments);
        match (fresh, others) {
            (0..=100, 0..=2) => Ok(()),
            _ => Err(format!("{fresh} segments and {others} other packets answer one packet")),
        }
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
        self.datagram()?;
        self.pass()
    }

    /// The innocent sends a datagram, which comes.
    fn datagram(&mut self) -> Result<(), String> {
        let (bytes, writer) = (stream(self.datagrams, 300), Writer::new(self.pool));
        let sent =
            self.innocent.udp_send_bytes(self.now, self.quiet.0, &bytes, &writer, &Envelope::CONNECTED);
        sent.map_err(|e| format!("the innocent's datagram {}: {e}", self.datagrams))?;
        self.pass()?;
        let received = self.victim.udp_receive(self.quiet.1);
        let received = received.map_err(|e| format!("the innocent's datagram {}: {e}", self.datagrams))?;
        if received.data.payload().host().map_err(|e| e.to_string())?.to_vec() != bytes {
            return Err(format!("another datagram than the innocent's {}", self.datagrams));
        }
        self.datagrams += 1;
        Ok(())
    }

    fn look(&self) -> Result<(), String> {
        let (memory, sockets) = (self.victim.tcp_memory(), self.victim.len());
        if memory > MEMORY[2] + EACH * (2 * CROWD as u64 + 9) {
            return Err(format!("{memory} bytes are kept"));
        }
        // Those that the program holds, half-open ones, the accept queue, and what is over or nobody's.
        let pages = self.pool.stats();
        let pages = pages.in_flight - pages.in_cache - pages.in_ring;
        if pages > PAGES {
            return Err(format!("{pages} pages are in use"));
        }
        let neighbours = self.victim.interface().neighbours().len();
        if neighbours > 8 {
            return Err(format!("{neighbours} neighbours are known"));
        }
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
        self.innocent.udp_close(self.quiet.0);
        self.victim.udp_close(self.quiet.1);
        self.victim.udp_close(self.echo);
        self.peer.udp_close(self.asks);
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
        strikes.tcp += mine.tcp;
        strikes.udp += mine.udp;
        strikes.icmp += mine.icmp;
        strikes.ndp += mine.ndp;
        strikes.reassembled += mine.reassembled;
        strikes.ipv6 += mine.ipv6;
        Ok(())
    }
}

/// A packet as it is on the wire.
fn bytes_of(mut packet: Packet) -> Result<Vec<u8>, String> {
    packet.finish().map_err(|e| e.to_string())?;
    packet.to_vec().map_err(|e| e.to_string())
}
