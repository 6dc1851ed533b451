//! A receiver, and who sends to it.

use onecopy_chain::{Chain, Fragment, Writer};
use onecopy_inet::tcp::rcv::{Accepted, AckWhen, Agreed, Arrival, Check, Limits, Moment, Receiver};
use onecopy_inet::wire::tcp::{Seq, Tcp, Timestamps};
use onecopy_inet::wire::{Ecn, Flags};
use onecopy_pool::{PagePool, PoolConfig, provider::Heap};

/// So that a segment nearly fills a page.
pub const MSS: u16 = 3900;
pub const MS: u64 = 1_000_000;

/// Byte `at` of the stream.
pub fn byte(at: u32) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 13) as u8
}

pub fn stream(at: u32, len: u32) -> Vec<u8> {
    (at..at + len).map(byte).collect()
}

pub fn pool(pages: u32) -> PagePool {
    PagePool::new(PoolConfig::new().limit(pages), Heap::new()).unwrap()
}

/// Pages that somebody holds.
pub fn in_use(pool: &PagePool) -> u64 {
    let stats = pool.stats();
    stats.in_flight - stats.in_cache - stats.in_ring
}

pub struct World {
    pub rcv: Receiver,
    pub pool: PagePool,
    pub moment: Moment,
    /// Where the stream begins.
    pub start: Seq,
    /// Whether the receiver gets pages to copy to.
    pub lends: bool,
    pub stamps: Option<Timestamps>,
    pub cut: u16,
    pub ecn: Ecn,
    /// Bytes of the stream that were read.
    pub read: u32,
}

pub fn agreed(limits: &Limits, scaled: bool) -> Agreed {
    let offer = limits.offer(MSS, scaled);
    Agreed { offer, scaled, sack: true, timestamps: None, ecn: false, mss: MSS }
}

impl World {
    pub fn new() -> World {
        let limits = Limits::default();
        World::with(u32::MAX - 2500, &limits, &agreed(&limits, true))
    }

    pub fn with(irs: u32, limits: &Limits, agreed: &Agreed) -> World {
        let moment = Moment { now: 1_000 * MS, stamp: 5000, rto: 200 * MS, srtt: 0 };
        let mut rcv = Receiver::new(&moment, Seq(irs), limits, agreed, MSS);
        rcv.established(&moment);
        World {
            rcv,
            pool: pool(4096),
            moment,
            start: Seq(irs).plus(1),
            lends: true,
            stamps: None,
            cut: 0,
            ecn: Ecn::NotEct,
            read: 0,
        }
    }

    pub fn header(&self, at: u32, flags: Flags) -> Tcp {
        let mut header = Tcp { seq: self.start.plus(at), flags: Flags::ACK | flags, ..Tcp::default() };
        header.options.timestamps = self.stamps;
        header
    }

    pub fn chain(&self, bytes: &[u8]) -> Chain {
        // Each in a page of its own, as from a card.
        let mut chain = Chain::new();
        for piece in bytes.chunks(4096) {
            let mut one = Chain::new();
            Writer::new(&self.pool).append(&mut one, piece).unwrap();
            let whole: Vec<Fragment> = one.into_fragments().collect();
            whole.into_iter().for_each(|fragment| chain.append(fragment).unwrap());
        }
        chain
    }

    /// A segment with these bytes comes, and is taken in; what is due then.
    pub fn give_bytes(&mut self, at: u32, bytes: &[u8], flags: Flags) -> (Accepted, AckWhen) {
        let header = self.header(at, flags);
        assert_eq!(self.rcv.check(&header, bytes.len() as u32), Check::Acceptable);
        let chain = self.chain(bytes);
        self.give_chain(&header, chain)
    }

    pub fn give_chain(&mut self, header: &Tcp, chain: Chain) -> (Accepted, AckWhen) {
        let arrival = Arrival { header, payload: &mut chain.into(), cut: self.cut, ecn: self.ecn };
        let pages = self.lends.then_some(&self.pool as &dyn onecopy_pool::Pages);
        let accepted = self.rcv.accept(&self.moment, arrival, pages);
        (accepted, self.rcv.check_ack(&self.moment))
    }

    /// `len` bytes of the stream come.
    pub fn give(&mut self, at: u32, len: u32) -> (Accepted, AckWhen) {
        self.give_bytes(at, &stream(at, len), Flags::empty())
    }

    /// An ACK leaves: its window (in bytes) and its blocks, as places in the stream.
    pub fn ack(&mut self) -> (u32, Vec<(u32, u32)>) {
        let window = u32::from(self.rcv.window()) << self.rcv.shift();
        let blocks = self.rcv.sack_blocks(4);
        self.rcv.ack_sent();
        assert_eq!(self.rcv.ack_due(), AckWhen::No);
        (window, blocks.iter().map(|(from, end)| (self.place(from), self.place(end))).collect())
    }

    pub fn blocks(&mut self) -> Vec<(u32, u32)> {
        self.ack().1
    }

    pub fn place(&self, seq: Seq) -> u32 {
        seq.since(self.start) as u32
    }

    pub fn nxt(&self) -> u32 {
        self.place(self.rcv.nxt())
    }

    /// The program reads up to `max` bytes.
    pub fn read(&mut self, max: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(taken) = self.rcv.read(&self.moment, max - bytes.len()) {
            bytes.extend(taken.payload().host().unwrap().to_vec());
        }
        self.read += bytes.len() as u32;
        bytes
    }

    /// The program reads all there is, and it is the stream.
    pub fn read_stream(&mut self) -> u32 {
        let at = self.read;
        let bytes = self.read(usize::MAX);
        assert_eq!(bytes, stream(at, bytes.len() as u32));
        bytes.len() as u32
    }

    pub fn wait(&mut self, nanos: u64) {
        self.moment.now += nanos;
        self.moment.stamp += (nanos / MS) as u32;
    }

    /// Data comes and is acknowledged and read until an ACK may wait.
    pub fn settle(&mut self) -> u32 {
        let mut at = self.nxt();
        for _ in 0..1000 {
            let (_, due) = self.give(at, MSS.into());
            at += u32::from(MSS);
            self.read_stream();
            self.ack();
            if matches!(due, AckWhen::At(_)) {
                return at;
            }
        }
        panic!("ACKs are never delayed");
    }
}
