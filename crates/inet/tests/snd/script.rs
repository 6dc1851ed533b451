//! The stage: a sender whose packets have 1,000 bytes and are counted from 1, a round trip of 100 ms, and a clock in ms.

use onecopy_inet::tcp::Info;
use onecopy_inet::tcp::congestion::{Algorithm, SlowStart};
use onecopy_inet::tcp::snd::{Ack, AckResult, Sender, State, Timeout, Transmit};
use onecopy_inet::wire::Seq;
use onecopy_inet::wire::tcp::Blocks;
use std::ops::RangeInclusive;

pub const MSS: u32 = 1_000;
/// All numbers wrap a few packets behind this.
pub const ISS: Seq = Seq(u32::MAX - 2_500);
/// What our timestamps were at 0 ms.
const CLOCK: u32 = u32::MAX - 150;

/// Packets, from the first to the last.
pub type Packets = RangeInclusive<u32>;

pub struct Script {
    pub sender: Sender,
    /// ms.
    pub now: u64,
    /// New data waits to be sent.
    pub unsent: bool,
    pub window: u32,
}

impl Script {
    /// Connected at 100 ms, with SACK and without timestamps; the window has 10 packets.
    pub fn new() -> Script {
        Script::with(true)
    }

    /// Connected, with or without SACK.
    pub fn with(sack: bool) -> Script {
        let algorithm = Algorithm::Reno;
        let sender = Sender::new(ISS, algorithm, SlowStart::HyStart, 10);
        let mut script = Script { sender, now: 0, unsent: false, window: 1_000_000 };
        script.sender.set_mss(MSS);
        let syn = Transmit { seq: ISS, syn: true, ..Transmit::default() };
        script.sender.transmitted(0, syn);
        script.now = 100;
        let result = script.ack(0);
        assert!(result.syn_acked && result.acked == 0, "{result:?}");
        script.sender.sack_ok(sack);
        script.sender.established(algorithm, SlowStart::HyStart, 10);
        script
    }

    pub fn ns(&self) -> u64 {
        self.now * 1_000_000
    }

    pub fn at(&mut self, ms: u64) -> &mut Script {
        assert!(ms >= self.now, "time goes on");
        self.now = ms;
        self
    }

    /// The first byte of a packet.
    pub fn seq(packet: u32) -> Seq {
        ISS.plus(1 + (packet - 1) * MSS)
    }

    /// The packets sent so far.
    pub fn sent(&self) -> u32 {
        (self.sender.nxt().since(ISS) as u32 - 1) / MSS
    }

    /// Sends so many packets, each by itself.
    pub fn send(&mut self, count: u32) -> &mut Script {
        for _ in 0..count {
            self.send_at_once(1);
        }
        self
    }

    /// Sends so many packets as one segment.
    pub fn send_at_once(&mut self, count: u32) -> &mut Script {
        let new = Transmit { seq: self.sender.nxt(), len: count * MSS, ..Transmit::default() };
        self.sender.transmitted(self.ns(), new);
        self.check();
        self
    }

    /// All up to this packet is acknowledged.
    pub fn ack(&mut self, packet: u32) -> AckResult {
        self.sack(packet, &[])
    }

    /// And these are selected.
    pub fn sack(&mut self, packet: u32, blocks: &[Packets]) -> AckResult {
        self.say(packet, blocks, |_| {})
    }

    /// An acknowledgement with changes to it.
    pub fn say(&mut self, packet: u32, blocks: &[Packets], change: impl FnOnce(&mut Ack<'_>)) -> AckResult {
        let mut sack = Blocks::default();
        for block in blocks {
            sack.push(Script::seq(*block.start()), Script::seq(*block.end() + 1));
        }
        self.tell(Script::seq(packet + 1), &sack, change)
    }

    /// All before this byte is acknowledged, and these blocks are selected.
    pub fn tell(&mut self, seq: Seq, sack: &Blocks, change: impl FnOnce(&mut Ack<'_>)) -> AckResult {
        let mut ack = Ack {
            seq: Seq(7),
            ack: seq,
            window: self.window,
            sack,
            data: false,
            ece: false,
            echo: None,
            clock: CLOCK.wrapping_add(self.now as u32),
            unsent: self.unsent,
        };
        change(&mut ack);
        let result = self.sender.acknowledge(self.ns(), &ack);
        self.check();
        result
    }

    /// What a segment that was sent then echoes.
    pub fn stamp(ms: u64) -> Option<u32> {
        Some(CLOCK.wrapping_add(ms as u32))
    }

    /// What is sent again now.
    pub fn resent(&mut self) -> Vec<Packets> {
        let mut all = Vec::new();
        while let Some(segment) = self.sender.next_retransmission(64) {
            self.check();
            let first = segment.seq.since(ISS.plus(1)) as u32;
            let (from, until) = (first / MSS + 1, (first + segment.len).div_ceil(MSS));
            assert_eq!(segment.packets, until - from + 1, "{segment:?}");
            self.sender.retransmitted(self.ns(), &segment);
            self.check();
            all.push(from..=until);
            assert!(all.len() < 1_000, "it sends for ever");
        }
        all
    }

    /// How many bytes are sent again now.
    pub fn resent_bytes(&mut self) -> u64 {
        let mut bytes = 0;
        while let Some(segment) = self.sender.next_retransmission(64) {
            self.sender.retransmitted(self.ns(), &segment);
            self.check();
            bytes += u64::from(segment.len);
        }
        bytes
    }

    /// Goes to the deadline; says when that was, and what is to be done.
    pub fn fire(&mut self) -> (u64, Timeout) {
        let deadline = self.sender.deadline().expect("a timer is armed");
        assert!(deadline >= self.ns(), "a deadline that has passed");
        self.now = deadline.div_ceil(1_000_000);
        let timeout = self.sender.on_timer(self.ns(), self.unsent);
        self.check();
        (self.now, timeout)
    }

    /// Goes to the deadline, which has to be this, and sends what is to be sent again.
    pub fn fires(&mut self, at: u64) -> Vec<Packets> {
        let (now, timeout) = self.fire();
        assert_eq!(now, at, "{timeout:?}");
        assert_eq!(timeout, Timeout::Retransmit);
        self.resent()
    }

    pub fn state(&self) -> State {
        self.sender.state()
    }

    pub fn cwnd(&self) -> u32 {
        self.sender.congestion().cwnd()
    }

    pub fn ssthresh(&self) -> u32 {
        self.sender.congestion().ssthresh()
    }

    pub fn info(&self) -> Info {
        let mut info = Info::default();
        self.sender.fill_info(self.ns(), &mut info);
        info
    }

    /// Packets outstanding, selected, lost, and under way again.
    pub fn counts(&self) -> (u32, u32, u32, u32) {
        let info = self.info();
        (info.unacked, info.sacked, info.lost, info.retrans)
    }

    fn check(&self) {
        if let Err(error) = self.sender.audit() {
            panic!("at {} ms: {error}", self.now);
        }
    }
}
