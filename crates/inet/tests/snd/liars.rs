//! Networks that lose, double and reorder, and peers that lie: at random, but everything that is sent arrives in the end, and the counters
//! are what the pieces say after each step.

use crate::script::{ISS, MSS, Script};
use onecopy_inet::tcp::congestion::{Algorithm, SlowStart};
use onecopy_inet::tcp::snd::{Ack, Sender, Timeout, Transmit};
use onecopy_inet::wire::Seq;
use onecopy_inet::wire::tcp::Blocks;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// A small generator of its own, so that a case is its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below.max(1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}

/// How the network and the peer are.
#[derive(Clone, Debug)]
struct World {
    seed: u64,
    /// Per cent of packets, both ways.
    loss: u64,
    double: u64,
    /// ms that a packet takes longer, at most.
    jitter: u64,
    sack: bool,
    timestamps: bool,
    /// Per cent of packets at whose arrival the receiver throws away what is out of order.
    renege: u64,
    /// Packets in a segment, at most.
    gather: u32,
    bytes: u32,
    ece: u64,
}

fn world() -> impl Strategy<Value = World> {
    let network = (any::<u64>(), 0..30u64, 0..20u64, prop_oneof![Just(0), 0..20u64, 0..200u64]);
    let peer = (any::<bool>(), any::<bool>(), prop_oneof![4 => Just(0), 1 => 0..5u64], 0..5u64);
    (network, peer, 1..20u32, 1..200_000u32).prop_map(|(network, peer, gather, bytes)| World {
        seed: network.0 | 1,
        loss: network.1,
        double: network.2,
        jitter: network.3,
        sack: peer.0,
        timestamps: peer.1,
        renege: peer.2,
        gather,
        bytes,
        ece: peer.3,
    })
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Flying {
    /// Bytes counted from the first one, and when it was sent.
    Data {
        from: u32,
        until: u32,
        stamp: u32,
    },
    Ack {
        ack: u32,
        blocks: Vec<(u32, u32)>,
        echo: u32,
    },
}

/// A receiver that says the truth.
#[derive(Default)]
struct Model {
    nxt: u32,
    /// Out of order: from, until.
    held: BTreeMap<u32, u32>,
    echo: u32,
}

impl Model {
    fn take(&mut self, from: u32, until: u32, stamp: u32, sack: bool) -> Flying {
        let mut blocks = Vec::new();
        let holder = self.held.range(..=from).next_back().map(|(from, until)| (*from, *until));
        let twice = until <= self.nxt || holder.is_some_and(|(_, end)| end >= until);
        if twice {
            blocks.push((from, until));
        }
        if from <= self.nxt {
            self.echo = stamp;
        }
        let (mut from, mut until) = (from.max(self.nxt), until);
        if from < until {
            let touching: Vec<u32> =
                self.held.range(..=until).filter(|(_, end)| **end >= from).map(|(from, _)| *from).collect();
            for begin in touching {
                let end = self.held.remove(&begin).unwrap();
                (from, until) = (from.min(begin), until.max(end));
            }
            if from <= self.nxt {
                self.nxt = until;
            } else {
                self.held.insert(from, until);
                blocks.push((from, until));
            }
        } else if let Some((from, until)) = holder.filter(|_| twice) {
            blocks.push((from, until));
        }
        let others: Vec<_> = self.held.iter().map(|(from, until)| (*from, *until)).collect();
        for block in others.into_iter().rev() {
            if blocks.len() < 3 && !blocks.contains(&block) {
                blocks.push(block);
            }
        }
        if !sack {
            blocks.clear();
        }
        Flying::Ack { ack: self.nxt, blocks, echo: self.echo }
    }
}

struct Run {
    world: World,
    dice: Dice,
    sender: Sender,
    now: u64,
    next_id: u64,
    wire: BinaryHeap<Reverse<(u64, u64, Flying)>>,
    peer: Model,
    written: u32,
}

const MS: u64 = 1_000_000;

impl Run {
    fn new(world: World) -> Run {
        let mut script = Script::with(world.sack);
        script.sender.timestamps(world.timestamps);
        let (sender, now) = (script.sender, script.now * MS);
        let dice = Dice(world.seed);
        Run {
            world,
            dice,
            sender,
            now,
            next_id: 0,
            wire: BinaryHeap::new(),
            peer: Model::default(),
            written: 0,
        }
    }

    fn fly(&mut self, what: Flying) {
        if self.dice.chance(self.world.loss) {
            return;
        }
        let copies = 1 + u32::from(self.dice.chance(self.world.double));
        for _ in 0..copies {
            let at = self.now + (50 + self.dice.roll(self.world.jitter + 1)) * MS;
            self.next_id += 1;
            self.wire.push(Reverse((at, self.next_id, what.clone())));
        }
    }

    fn leave(&mut self, segment: &Transmit) {
        let mut from = segment.seq.since(ISS.plus(1)) as u32;
        let until = from + segment.len;
        while from < until {
            let end = until.min(from + MSS);
            self.fly(Flying::Data { from, until: end, stamp: (self.now / MS) as u32 });
            from = end;
        }
    }

    fn new_data(&mut self, packets: u32) -> bool {
        let left = self.world.bytes - self.written;
        let packets = packets.min(self.dice.roll(self.world.gather.into()) as u32 + 1);
        let mut len = left.min(packets * MSS);
        if self.dice.chance(10) {
            len = len.min(1 + self.dice.roll(700) as u32);
        }
        if len == 0 {
            return false;
        }
        let eor = self.dice.chance(10);
        let segment = Transmit { seq: self.sender.nxt(), len, eor, ..Transmit::default() };
        self.sender.transmitted(self.now, segment);
        self.written += len;
        self.leave(&segment);
        true
    }

    fn send(&mut self) {
        while let Some(segment) = self.sender.next_retransmission(64) {
            self.sender.retransmitted(self.now, &segment);
            self.leave(&segment);
        }
        while self.sender.quota() > 0 && self.new_data(self.sender.quota()) {}
    }

    /// Until all is acknowledged.
    fn run(&mut self) -> Result<(), TestCaseError> {
        let mut steps = 0u32;
        self.send();
        while self.sender.has_unacked() || self.written < self.world.bytes {
            steps += 1;
            prop_assert!(steps < 400_000, "no end: {:?}", self.sender);
            let timer = self.sender.deadline();
            let next = self.wire.peek().map(|Reverse((at, ..))| *at);
            prop_assert!(timer.is_some() || next.is_some(), "it waits for nothing: {:?}", self.sender);
            if let Some(timer) = timer.filter(|timer| next.is_none_or(|next| *timer < next)) {
                self.now = self.now.max(timer);
                if self.sender.on_timer(self.now, self.written < self.world.bytes) == Timeout::ProbeNew {
                    self.new_data(1);
                }
            } else if let Some(Reverse((at, _, what))) = self.wire.pop() {
                self.now = self.now.max(at);
                self.arrive(what);
            }
            self.audit()?;
            self.send();
            self.audit()?;
        }
        let mut info = onecopy_inet::tcp::Info::default();
        self.sender.fill_info(self.now, &mut info);
        prop_assert_eq!((info.unacked, info.sacked, info.lost, info.retrans), (0, 0, 0, 0));
        prop_assert_eq!(self.sender.deadline(), None);
        prop_assert_eq!(info.bytes_acked, u64::from(self.world.bytes) + 1);
        prop_assert_eq!(info.bytes_sent, u64::from(self.world.bytes) + info.bytes_retrans);
        prop_assert_eq!(self.peer.nxt, self.world.bytes);
        Ok(())
    }

    fn arrive(&mut self, what: Flying) {
        match what {
            Flying::Data { from, until, stamp } => {
                if self.dice.chance(self.world.renege) {
                    self.peer.held.clear();
                }
                let ack = self.peer.take(from, until, stamp, self.world.sack);
                self.fly(ack);
            }
            Flying::Ack { ack, blocks, echo } => {
                let seq = |byte: u32| ISS.plus(1 + byte);
                let mut sack = Blocks::default();
                for (from, until) in blocks {
                    sack.push(seq(from), seq(until));
                }
                let ack = Ack {
                    seq: Seq(7),
                    ack: seq(ack),
                    window: 1_000_000,
                    sack: &sack,
                    data: false,
                    ece: self.dice.chance(self.world.ece),
                    echo: self.world.timestamps.then_some(echo),
                    clock: (self.now / MS) as u32,
                    unsent: self.written < self.world.bytes,
                };
                let result = self.sender.acknowledge(self.now, &ack);
                if result.new_first {
                    while self.sender.quota() > 0 && self.new_data(self.sender.quota()) {}
                }
            }
        }
    }

    fn audit(&self) -> Result<(), TestCaseError> {
        self.sender.audit().map_err(TestCaseError::fail)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn all_is_acknowledged_in_the_end(world in world()) {
        Run::new(world).run()?;
    }

    /// Each step is a kind and two numbers, which mean what the kind makes of them.
    #[test]
    fn a_liar_gains_nothing(
        sack in any::<bool>(),
        reno in any::<bool>(),
        steps in prop::collection::vec((0..12u8, any::<u32>(), any::<u32>()), 1..300),
    ) {
        let mut tcp = Script::with(sack);
        if !reno {
            tcp.sender.established(Algorithm::Cubic, SlowStart::HyStart, 10);
        }
        tcp.sender.timestamps(true);
        // Some place in what is outstanding, or somewhat beside it.
        let place = |tcp: &Script, number: u32| {
            let out = tcp.sender.nxt().since(tcp.sender.una()) as u32;
            tcp.sender.una().plus(number % (out + 4_000)).minus(2_000)
        };
        let mut blocks = Blocks::default();
        for (kind, a, b) in steps {
            match kind {
                0 | 1 if tcp.sent() < 200_000 => {
                    let len = a % 20_000 + 1;
                    let eor = b % 7 == 0;
                    let new = Transmit { seq: tcp.sender.nxt(), len, eor, ..Transmit::default() };
                    tcp.sender.transmitted(tcp.ns(), new);
                }
                2 => _ = blocks.push(place(&tcp, a), place(&tcp, b)),
                3 => _ = blocks.push(Seq(a), Seq(b)),
                4 => _ = blocks.push(tcp.sender.una().plus(a % 3 * MSS), place(&tcp, b)),
                5 => blocks = Blocks::default(),
                6..=8 => {
                    let ack = match kind {
                        6 => tcp.sender.una(),
                        7 => place(&tcp, a),
                        _ => tcp.sender.una().plus(a % 3 * MSS),
                    };
                    let before = tcp.sender.una();
                    let nxt = tcp.sender.nxt();
                    let result = tcp.tell(ack, &blocks, |ack| {
                        ack.window = if b % 5 == 0 { b % 3_000 } else { 100_000 };
                        ack.ece = b % 11 == 0;
                        ack.data = b % 3 == 0;
                        ack.echo = (b % 4 == 0).then_some(a);
                        ack.unsent = b % 2 == 0;
                    });
                    prop_assert_eq!(result.too_new, ack.after(nxt));
                    prop_assert!(!tcp.sender.una().before(before) && !tcp.sender.una().after(nxt));
                    // However many it says have arrived, no more is let out than the window.
                    prop_assert!(tcp.sender.quota() <= tcp.cwnd());
                }
                9 => drop(tcp.resent_bytes()),
                10 => tcp.now += u64::from(a % 400),
                11 if tcp.sender.deadline().is_some() => {
                    let late = tcp.sender.deadline().unwrap_or(0).div_ceil(MS);
                    tcp.now = tcp.now.max(late);
                    tcp.sender.on_timer(tcp.ns(), b % 2 == 0);
                }
                _ => {}
            }
            prop_assert_eq!(tcp.sender.audit(), Ok(()));
        }
        // Honest in the end.
        let nxt = tcp.sender.nxt();
        tcp.tell(nxt, &Blocks::default(), |_| {});
        prop_assert_eq!((tcp.counts(), tcp.sender.deadline()), ((0, 0, 0, 0), None));
        tcp.sender.rest(tcp.ns());
        prop_assert_eq!(tcp.sender.audit(), Ok(()));
    }
}
