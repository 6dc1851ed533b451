//! A peer that knows the numbers and means ill, beside one that does not.

use crate::net::config;
use onecopy_chain::{Chain, Writer};
use onecopy_inet::stack::isn::Isn;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{Census, Stack, demux::Ends};
use onecopy_inet::tcp::{Error, Received, SendFlags, Side as Way, State};
use onecopy_inet::wire::{Flags, Icmp, Ipv4, Protocol, Seq, Tcp, icmp::Unreachable};
use onecopy_link::{Capabilities, Head, Medium, Packet};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use proptest::prelude::*;
use std::net::{Ipv4Addr, SocketAddr};

#[path = "floods.rs"]
mod floods;
#[path = "shut.rs"]
mod shut;

const VICTIM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const INNOCENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const ATTACKER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 66);
const SECOND: u64 = 1_000_000_000;
const MEMORY: u32 = 262_144;
const BACKLOG: u32 = 8;

fn ones(sum: u32) -> u16 {
    let mut sum = sum;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn words(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]))).sum()
}

fn in_ip(from: Ipv4Addr, protocol: Protocol, bytes: &[u8], pool: &PagePool) -> Packet {
    let mut head = Head::new();
    let ip = Ipv4::new(from, VICTIM, protocol, bytes.len() as u16);
    ip.write(&mut head).unwrap();
    let at = bytes.len().min(60);
    let mut chain = Chain::new();
    Writer::new(pool).append(&mut chain, &bytes[at..]).unwrap();
    Packet::new(&[&head[..], &bytes[..at]].concat(), chain).unwrap()
}

/// What a segment says; options as they are on the wire.
#[derive(Clone, Debug)]
struct Raw {
    ports: (u16, u16),
    seq: Seq,
    ack: Seq,
    flags: u16,
    window: u16,
    options: Vec<u8>,
    len: usize,
}

impl Raw {
    fn packet(&self, from: Ipv4Addr, pool: &PagePool) -> Packet {
        let mut options = self.options.clone();
        options.truncate(40);
        options.resize(options.len().next_multiple_of(4), 0);
        let header = 20 + options.len();
        let mut bytes = Vec::with_capacity(header + self.len);
        bytes.extend(self.ports.0.to_be_bytes());
        bytes.extend(self.ports.1.to_be_bytes());
        bytes.extend(self.seq.0.to_be_bytes());
        bytes.extend(self.ack.0.to_be_bytes());
        bytes.extend(((header as u16 / 4) << 12 | self.flags & 0x1ff).to_be_bytes());
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(options);
        bytes.resize(header + self.len, 0x42);
        let pseudo = words(&from.octets()) + words(&VICTIM.octets()) + 6 + bytes.len() as u32;
        let sum = ones(pseudo + words(&bytes));
        bytes[16..18].copy_from_slice(&sum.to_be_bytes());
        in_ip(from, Protocol::TCP, &bytes, pool)
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Segments on a connection, `count` of them, each `step` behind the one before.
    Segments {
        which: usize,
        flags: u16,
        seq: (u8, i32),
        ack: (u8, i32),
        window: u16,
        options: Options,
        len: usize,
        count: u32,
        step: i32,
    },
    /// On the innocent's connection, without its very numbers.
    Blind {
        flags: u16,
        offset: u32,
        ack: u32,
        len: usize,
        count: u32,
    },
    Syns {
        port: u16,
        count: u16,
    },
    Lie {
        which: usize,
        code: u8,
        mtu: u16,
        offset: u32,
    },
    Handshake,
    Send {
        which: usize,
        len: usize,
    },
    Receive {
        which: usize,
        max: usize,
    },
    Accept,
    Connect,
    Shutdown {
        which: usize,
        way: Way,
    },
    Close {
        which: usize,
    },
    Abort {
        which: usize,
    },
    Run(u64),
}

#[derive(Clone, Debug)]
enum Options {
    None,
    Stamps { ahead: i32, echo: i32 },
    Sack(Vec<(i32, i32)>),
    Bytes(Vec<u8>),
}

struct Scene {
    victim: Stack,
    innocent: Stack,
    pool: PagePool,
    now: u64,
    listener: Id,
    /// What the attacker knows of connections: the victim's name and port, his own port, the numbers.
    known: Vec<Known>,
    good: (Id, Id),
    good_port: u16,
    given: u64,
    got: u64,
    ports: u16,
    /// Segments without data that went to the attacker.
    answers: u64,
    steps: u64,
    heard: Vec<Tcp>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    id: Option<Id>,
    ours: u16,
    theirs: u16,
    /// What the victim has of ours, and where its window ends; what it has sent and heard of.
    next: Seq,
    edge: Seq,
    una: Seq,
    nxt: Seq,
}

impl Scene {
    fn new(wraps: u32) -> Scene {
        let stack = |address, number: u8| {
            let mut config = config(Capabilities::all(Medium::Ip, 1500), address, number);
            config.tcp.rmem = [4096, 65_536, MEMORY];
            config.tcp.wmem = [4096, 16_384, MEMORY];
            Stack::new(config).unwrap()
        };
        // The victim's number for the attacker's first connection is `wraps` before 2^32.
        let at = |address: Ipv4Addr, port| SocketAddr::new(address.into(), port);
        let ends = Ends::new(at(VICTIM, 80), at(ATTACKER, 5000));
        let secret = Isn::new(&[2; 16]).sequence(0, &ends);
        let now = u64::from(0u32.wrapping_sub(wraps).wrapping_sub(secret.0)) * 4000 + 5 * SECOND;
        let (mut victim, mut innocent) = (stack(VICTIM, 2), stack(INNOCENT, 3));
        let listener = victim.tcp_open().unwrap();
        victim.tcp_bind(listener, at(VICTIM, 80), false).unwrap();
        victim.tcp_listen(listener, BACKLOG).unwrap();
        let good = innocent.tcp_open().unwrap();
        assert_eq!(innocent.tcp_connect(now, good, at(VICTIM, 80)), Err(Error::InProgress));
        let mut scene = Scene {
            victim,
            innocent,
            pool: PagePool::new(PoolConfig::new(), Heap::new()).unwrap(),
            now,
            listener,
            known: Vec::new(),
            good: (good, good),
            good_port: 0,
            given: 0,
            got: 0,
            ports: 5000,
            answers: 0,
            steps: 0,
            heard: Vec::new(),
        };
        scene.pass();
        scene.good.1 = scene.victim.tcp_accept(listener).unwrap().0;
        scene.good_port = scene.innocent.tcp_addresses(good).local.unwrap().port();
        scene
    }

    /// Hands packets over until there are none.
    fn pass(&mut self) {
        loop {
            let mut any = false;
            while let Some(packet) = self.victim.transmit() {
                any = true;
                let (ip, rest) = Ipv4::parse(packet.head()).unwrap();
                if ip.to == INNOCENT {
                    self.innocent.receive(self.now, packet);
                } else if ip.protocol == Protocol::TCP {
                    let (tcp, _) = Tcp::parse(rest).unwrap();
                    self.answers += u64::from(packet.payload().payload().is_empty());
                    self.heard.push(tcp);
                }
            }
            while let Some(packet) = self.innocent.transmit() {
                any = true;
                self.victim.receive(self.now, packet);
            }
            if !any {
                break;
            }
        }
        while self.victim.event().is_some() || self.innocent.event().is_some() {}
        self.look();
    }

    /// Takes down what the numbers are, and looks at what is kept.
    fn look(&mut self) {
        for known in &mut self.known {
            let Some(connection) = known.id.and_then(|id| self.victim.tcp_connection(id)) else { continue };
            let (snd, rcv) = (connection.sender(), connection.receiver());
            if connection.state() != State::Closed {
                (known.next, known.edge) = (rcv.nxt(), rcv.edge());
                (known.una, known.nxt) = (snd.una(), snd.nxt());
            }
            // Where the last segment filled holes its pages count once for each of them, and no more holes are there than pages before it
            // (`what_fills_many_holes_keeps_no_more_than_the_buffer`).
            assert!(rcv.held() <= 2 * u64::from(MEMORY) + 16_384, "{} bytes count", rcv.held());
            assert!(connection.queued() <= u64::from(MEMORY) + 70_000);
        }
        let most = 4 + self.known.len() * 2 + 3 * BACKLOG as usize;
        assert!(self.victim.len() <= most, "{} sockets", self.victim.len());
    }

    fn inject(&mut self, raw: &Raw, from: Ipv4Addr) {
        let before = self.answers;
        self.victim.receive(self.now, raw.packet(from, &self.pool));
        self.pass();
        let answers = self.answers - before;
        assert!(answers <= 2, "{answers} answers to {raw:?}");
    }

    fn run(&mut self, ns: u64) {
        let until = self.now + ns;
        loop {
            let next = [self.victim.deadline(), self.innocent.deadline()].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            self.now = next.max(self.now);
            self.victim.advance(self.now);
            self.innocent.advance(self.now);
            self.pass();
            self.steps += 1;
        }
        self.now = until;
    }

    /// The innocent sends, and the victim's program reads.
    fn talk(&mut self, len: u64) {
        let bytes: Vec<u8> = (self.given..self.given + len).map(|at| (at % 251) as u8).collect();
        let writer = Writer::new(&self.pool);
        match self.innocent.tcp_send_bytes(self.now, self.good.0, &bytes, &writer, SendFlags::empty()) {
            Ok(sent) => self.given += sent as u64,
            Err(error) => assert_eq!(error, Error::WouldBlock),
        }
        self.pass();
        loop {
            match self.victim.tcp_receive(self.now, self.good.1, usize::MAX) {
                Ok(Received::Data(data)) => {
                    for byte in data.payload().host().unwrap().slices().flatten() {
                        assert_eq!(*byte, (self.got % 251) as u8);
                        self.got += 1;
                    }
                }
                Ok(Received::End) => panic!("it ended"),
                Err(error) => {
                    assert_eq!(error, Error::WouldBlock);
                    break;
                }
            }
        }
        self.pass();
    }

    fn handshake(&mut self) {
        let (ours, first) = (self.ports, Seq(0u32.wrapping_sub(300)));
        self.ports += 1;
        let options = vec![2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
        let mut raw =
            Raw { ports: (ours, 80), seq: first, ack: Seq(0), flags: 2, window: 65535, options, len: 0 };
        self.heard.clear();
        self.inject(&raw, ATTACKER);
        let Some(answer) = self.heard.pop().filter(|tcp| tcp.flags.contains(Flags::SYN)) else { return };
        raw = Raw { seq: first.plus(1), ack: answer.seq.plus(1), flags: 16, options: vec![], ..raw };
        self.inject(&raw, ATTACKER);
        let (next, nxt) = (first.plus(1), answer.seq.plus(1));
        self.known.push(Known { id: None, ours, theirs: 80, next, edge: next.plus(65535), una: nxt, nxt });
    }

    fn known(&self, which: usize) -> Option<Known> {
        (!self.known.is_empty()).then(|| self.known[which % self.known.len()])
    }

    fn id(&self, which: usize) -> Option<Id> {
        self.known(which)?.id
    }

    fn lie(&mut self, which: usize, code: u8, mtu: u16, offset: u32) {
        let Some(known) = self.known(which) else { return };
        let mut head = Head::new();
        let ip = Ipv4::new(VICTIM, ATTACKER, Protocol::TCP, 1000);
        let mut quoted = Packet::default();
        let icmp = match code {
            0..16 => Icmp::Unreachable { code: Unreachable(code), mtu },
            16 => Icmp::TimeExceeded { code: 0 },
            _ => Icmp::ParameterProblem { code: 0, pointer: 0 },
        };
        icmp.write(&mut head).unwrap();
        ip.write(quoted.head_mut()).unwrap();
        let seq = known.una.plus(offset);
        let mut bytes = [&head[..], &quoted.head()[..]].concat();
        bytes.extend(known.theirs.to_be_bytes());
        bytes.extend(known.ours.to_be_bytes());
        bytes.extend(seq.0.to_be_bytes());
        let sum = ones(words(&bytes));
        bytes[2..4].copy_from_slice(&sum.to_be_bytes());
        let packet = in_ip(ATTACKER, Protocol::ICMP, &bytes, &self.pool);
        self.victim.receive(self.now, packet);
        self.pass();
    }

    fn act(&mut self, op: &Op) {
        match op {
            Op::Segments { which, flags, seq, ack, window, options, len, count, step } => {
                for number in 0..*count {
                    let Some(known) = self.known(*which) else { return };
                    let behind = (seq.1).wrapping_add(step.wrapping_mul(number as i32)) as u32;
                    let seq = [known.next, known.edge, Seq(behind)][usize::from(seq.0 % 3)].plus(behind);
                    let ack = [known.una, known.nxt, Seq(0)][usize::from(ack.0 % 3)].plus(ack.1 as u32);
                    let options = match options {
                        Options::None => Vec::new(),
                        Options::Bytes(bytes) => bytes.clone(),
                        Options::Stamps { ahead, echo } => {
                            let (value, echo) = (1u32.wrapping_add(*ahead as u32), *echo as u32);
                            [&[1, 1, 8, 10][..], &value.to_be_bytes(), &echo.to_be_bytes()].concat()
                        }
                        Options::Sack(blocks) => {
                            let mut bytes = vec![1, 1, 5, 2 + 8 * blocks.len() as u8];
                            for (from, len) in blocks {
                                let from = known.una.plus(*from as u32);
                                bytes.extend(from.0.to_be_bytes());
                                bytes.extend(from.plus(*len as u32).0.to_be_bytes());
                            }
                            bytes
                        }
                    };
                    let ports = (known.ours, known.theirs);
                    let raw = Raw { ports, seq, ack, flags: *flags, window: *window, options, len: *len };
                    self.inject(&raw, ATTACKER);
                }
            }
            Op::Blind { flags, offset, ack, len, count } => {
                let connection = self.victim.tcp_connection(self.good.1).unwrap();
                let (next, una) = (connection.receiver().nxt(), connection.sender().una());
                let data = *flags & 6 == 0;
                for number in 0..*count {
                    // Who guesses in the window may reset nothing; data needs an ACK that is right, too.
                    let seq = next.plus(offset.wrapping_add(number).max(1));
                    let ack = if data { una.plus(0x4000_0000 + ack % 0x4000_0000) } else { una.plus(*ack) };
                    let ports = (self.good_port, 80);
                    let raw = Raw { ports, seq, ack, flags: *flags, window: 0, options: vec![], len: *len };
                    self.victim.receive(self.now, raw.packet(INNOCENT, &self.pool));
                    self.pass();
                }
            }
            Op::Syns { port, count } => {
                for number in 0..*count {
                    let ports = (number + 20_000, *port);
                    let seq = Seq(u32::from(number) * 77_777);
                    let raw =
                        Raw { ports, seq, ack: Seq(0), flags: 2, window: 1000, options: vec![], len: 0 };
                    self.inject(&raw, ATTACKER);
                }
            }
            Op::Lie { which, code, mtu, offset } => self.lie(*which, *code, *mtu, *offset),
            Op::Handshake if self.known.len() < 8 => self.handshake(),
            Op::Connect if self.known.len() < 8 => {
                let id = self.victim.tcp_open().unwrap();
                let to = SocketAddr::new(ATTACKER.into(), 7);
                assert_eq!(self.victim.tcp_connect(self.now, id, to), Err(Error::InProgress));
                let theirs = self.victim.tcp_addresses(id).local.unwrap().port();
                let (una, nxt) = (Seq(0), Seq(0));
                let next = Seq(u32::MAX - 100);
                self.known.push(Known { id: Some(id), ours: 7, theirs, next, edge: next, una, nxt });
                self.pass();
            }
            Op::Handshake | Op::Connect => {}
            Op::Send { which, len } => {
                let Some(id) = self.id(*which) else { return };
                let writer = Writer::new(&self.pool);
                let _ = self.victim.tcp_send_bytes(self.now, id, &vec![1; *len], &writer, SendFlags::empty());
                self.pass();
            }
            Op::Receive { which, max } => {
                let Some(id) = self.id(*which) else { return };
                let _ = self.victim.tcp_receive(self.now, id, *max);
                self.pass();
            }
            Op::Accept => {
                while let Ok((id, peer)) = self.victim.tcp_accept(self.listener) {
                    let known =
                        self.known.iter_mut().find(|known| known.ours == peer.port() && known.id.is_none());
                    match known {
                        Some(known) => known.id = Some(id),
                        None => self.victim.tcp_close(self.now, id),
                    }
                }
                self.pass();
            }
            Op::Shutdown { which, way } => {
                let Some(id) = self.id(*which) else { return };
                let _ = self.victim.tcp_shutdown(self.now, id, *way);
                self.pass();
            }
            Op::Close { which } => {
                let Some(id) = self.id(*which) else { return };
                self.victim.tcp_close(self.now, id);
                self.pass();
            }
            Op::Abort { which } => {
                let Some(id) = self.id(*which) else { return };
                self.victim.tcp_abort(self.now, id);
                self.pass();
            }
            Op::Run(ns) => self.run(*ns),
        }
    }

    /// The innocent was not hurt, and of the attacker nothing is left.
    fn end(mut self) {
        for _ in 0..10 {
            self.talk(1000);
            self.run(SECOND);
        }
        self.talk(0);
        assert_eq!(self.got, self.given);
        assert!(self.given >= 10_000);
        assert_eq!(self.innocent.tcp_stats().retransmitted, 0);
        self.act(&Op::Accept);
        for known in self.known.clone() {
            known.id.inspect(|id| self.victim.tcp_close(self.now, *id));
        }
        self.victim.tcp_close(self.now, self.listener);
        self.victim.tcp_close(self.now, self.good.1);
        self.innocent.tcp_close(self.now, self.good.0);
        let began = (self.now, self.steps);
        self.run(2000 * SECOND);
        assert!(self.steps - began.1 < 1000, "{} timers in 2000 s", self.steps - began.1);
        assert_eq!(self.victim.census(), Census::default());
        assert_eq!(self.innocent.census(), Census::default());
        let stats = self.pool.stats();
        assert_eq!(stats.in_flight, stats.in_cache + stats.in_ring, "pages are missing: {stats:?}");
    }
}

fn options() -> impl Strategy<Value = Options> {
    let near = || prop_oneof![-3..3i32, -3000..3000i32, -100_000..100_000i32, any::<i32>()];
    prop_oneof![
        3 => Just(Options::None),
        3 => (prop_oneof![0..100i32, -100..0i32, any::<i32>()], near()).prop_map(|(ahead, echo)| Options::Stamps { ahead, echo }),
        3 => prop::collection::vec((near(), near()), 0..5).prop_map(Options::Sack),
        1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Options::Bytes),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let near = || prop_oneof![3 => Just(0), 3 => -3..3i32, 2 => -3000..3000i32, 1 => -100_000..100_000i32, 1 => any::<i32>()];
    let flags = prop_oneof![4 => Just(16u16), 2 => Just(24), 2 => Just(17), 1 => Just(4), 1 => Just(18), 1 => Just(2), 3 => 0..512u16];
    let len = prop_oneof![3 => Just(0usize), 2 => 1..10usize, 2 => 1..1461usize, 1 => 1461..9000usize];
    let window = prop_oneof![1 => Just(0u16), 1 => 1..100u16, 2 => any::<u16>()];
    let place = || (prop_oneof![6 => Just(0u8), 2 => Just(1), 1 => Just(2)], near());
    let count = prop_oneof![6 => Just(1u32), 1 => 2..100u32];
    let segments =
        (0..8usize, flags.clone(), place(), place(), window, options(), len.clone(), count, near()).prop_map(
            |(which, flags, seq, ack, window, options, len, count, step)| Op::Segments {
                which,
                flags,
                seq,
                ack,
                window,
                options,
                len,
                count,
                step,
            },
        );
    let time = prop_oneof![3 => 0..1_000_000u64, 3 => 0..500_000_000u64, 1 => 0..100_000_000_000u64];
    let way = prop_oneof![Just(Way::Read), Just(Way::Write), Just(Way::Both)];
    prop_oneof![
        20 => segments,
        2 => (flags, 1..60_000u32, any::<u32>(), len, 1..20u32)
            .prop_map(|(flags, offset, ack, len, count)| Op::Blind { flags, offset, ack, len, count }),
        1 => (prop_oneof![Just(80u16), Just(81)], 1..200u16).prop_map(|(port, count)| Op::Syns { port, count }),
        2 => (0..8usize, 0..20u8, any::<u16>(), prop_oneof![Just(0u32), 0..3000u32])
            .prop_map(|(which, code, mtu, offset)| Op::Lie { which, code, mtu, offset }),
        2 => Just(Op::Handshake),
        3 => (0..8usize, 1..100_000usize).prop_map(|(which, len)| Op::Send { which, len }),
        2 => (0..8usize, prop_oneof![Just(0usize), 1..100_000usize]).prop_map(|(which, max)| Op::Receive { which, max }),
        3 => Just(Op::Accept),
        1 => Just(Op::Connect),
        1 => (0..8usize, way).prop_map(|(which, way)| Op::Shutdown { which, way }),
        1 => (0..8usize).prop_map(|which| Op::Close { which }),
        1 => (0..8usize).prop_map(|which| Op::Abort { which }),
        5 => time.prop_map(Op::Run),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 600, failure_persistence: None, ..ProptestConfig::with_cases(
        std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(60)) })]

    /// Nothing panics or grows, nobody is answered more than he sends, and who is beside it notices nothing.
    #[test]
    fn a_hostile_peer_harms_nobody_else(ops in prop::collection::vec(op(), 1..120), wraps in 0..100_000u32) {
        let mut scene = Scene::new(wraps);
        scene.handshake();
        scene.act(&Op::Accept);
        for op in &ops {
            scene.act(op);
            scene.talk(300);
        }
        scene.end();
    }
}
