//! A stack with little memory, and the host that it talks to.

use onecopy_chain::Writer;
use onecopy_inet::ip::{self, Cidr};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{Census, Config, Stack};
use onecopy_inet::tcp::{self, Error, Readiness, Received, SendFlags, State};
use onecopy_inet::wire::{Flags, Ipv4, Mac, Seq, Tcp};
use onecopy_link::{Capabilities, Medium, Packet};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::OnceLock;

pub const SECOND: u64 = 1_000_000_000;
pub const LIMITS: [u64; 3] = [1 << 20, 2 << 20, 3 << 20];
/// The sides.
pub const VICTIM: usize = 0;
pub const PEER: usize = 1;
const ADDRESS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

/// A connection, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pair(usize);

/// Bytes that a side of one has given, and got.
#[derive(Default)]
struct Count {
    given: [u64; 2],
    got: [u64; 2],
}

type Drops = Box<dyn Fn(&Tcp, usize) -> bool>;

pub struct World {
    stacks: [Stack; 2],
    pool: PagePool,
    now: u64,
    listener: Id,
    pairs: Vec<([Id; 2], u16, Count)>,
    drops: Vec<Drops>,
    deaf: bool,
    /// Of those ports every so manieth segment with data is lost.
    losses: HashMap<u16, (u64, u64)>,
    /// Flags of what last went to each port.
    last: HashMap<u16, Flags>,
}

/// Bytes that a stream repeats: a prime number of them.
const PERIOD: usize = 65_521;

fn pattern(at: u64, len: usize) -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    let byte = |at: usize| ((at % PERIOD) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0];
    let all = PATTERN.get_or_init(|| (0..2 * PERIOD).map(byte).collect());
    &all[at as usize % PERIOD..][..len.min(PERIOD)]
}

impl World {
    pub fn new(change: impl Fn(&mut tcp::Config)) -> World {
        let stack = |side: usize| {
            let address = Cidr::new(ADDRESS[side], 24).unwrap();
            let seed = [side as u8; 16];
            let capabilities = Capabilities::none(Medium::Ip, 1500);
            let mut config =
                Config::new(ip::Config::new(capabilities, Mac::default(), &[address], seed), seed);
            if side == VICTIM {
                config.tcp.memory = LIMITS;
                change(&mut config.tcp);
            }
            Stack::new(config).unwrap()
        };
        let mut stacks = [stack(VICTIM), stack(PEER)];
        let listener = stacks[VICTIM].tcp_open().unwrap();
        stacks[VICTIM].tcp_bind(listener, SocketAddr::new(ADDRESS[VICTIM].into(), 80), false).unwrap();
        stacks[VICTIM].tcp_listen(listener, 100).unwrap();
        let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
        let (drops, losses, last) = (Vec::new(), HashMap::new(), HashMap::new());
        World { stacks, pool, now: SECOND, listener, pairs: Vec::new(), drops, deaf: false, losses, last }
    }

    pub fn stack(&self, side: usize) -> &Stack {
        &self.stacks[side]
    }

    pub fn memory(&self) -> u64 {
        self.stacks[VICTIM].tcp_memory()
    }

    pub fn ids(&self, pair: Pair) -> [Id; 2] {
        self.pairs[pair.0].0
    }

    pub fn given(&self, side: usize, pair: Pair) -> u64 {
        self.pairs[pair.0].2.given[side]
    }

    pub fn got(&self, side: usize, pair: Pair) -> u64 {
        self.pairs[pair.0].2.got[side]
    }

    pub fn state(&self, side: usize, pair: Pair) -> Option<State> {
        self.stacks[side].tcp_state(self.ids(pair)[side])
    }

    pub fn readiness(&self, side: usize, pair: Pair) -> Readiness {
        self.stacks[side].tcp_readiness(self.ids(pair)[side])
    }

    /// The number of the first byte that a side will send.
    pub fn first_byte(&self, side: usize, pair: Pair) -> Seq {
        self.stacks[side].tcp_connection(self.ids(pair)[side]).unwrap().sender().nxt()
    }

    /// Another connection, which the peer begins.
    pub fn pair(&mut self) -> Pair {
        let id = self.stacks[PEER].tcp_open().unwrap();
        let to = SocketAddr::new(ADDRESS[VICTIM].into(), 80);
        assert_eq!(self.stacks[PEER].tcp_connect(self.now, id, to), Err(Error::InProgress));
        self.settle();
        let (child, _) = self.stacks[VICTIM].tcp_accept(self.listener).unwrap();
        let port = self.stacks[PEER].tcp_addresses(id).local.unwrap().port();
        self.pairs.push(([child, id], port, Count::default()));
        Pair(self.pairs.len() - 1)
    }

    pub fn set(&mut self, side: usize, pair: Pair, change: impl FnOnce(&mut tcp::Settings)) {
        let id = self.ids(pair)[side];
        self.stacks[side].tcp_set(self.now, id, change).unwrap();
    }

    /// What the peer sends and `which` says is lost.
    pub fn drop_from_peer(&mut self, which: impl Fn(&Tcp, usize) -> bool + 'static) {
        self.drops.push(Box::new(which));
    }

    /// Nothing is lost any more.
    pub fn keep_all(&mut self) {
        self.drops.clear();
    }

    /// Whether all that is sent to the peer is lost.
    pub fn drop_to_peer(&mut self, all: bool) {
        self.deaf = all;
    }

    /// Every so manieth segment with data from the peer is lost; 0 for none.
    pub fn lose(&mut self, pair: Pair, each: u64) {
        self.losses.entry(self.pairs[pair.0].1).or_default().0 = each;
    }

    /// Flags of the last segment that a side sent to the other one's port.
    pub fn sent_to_peer(&self, _: usize, pair: Pair) -> Flags {
        self.last[&self.pairs[pair.0].1]
    }

    fn is_lost(&mut self, from: usize, packet: &Packet) -> bool {
        let (_, rest) = Ipv4::parse(packet.head()).unwrap();
        let (tcp, _) = Tcp::parse(rest).unwrap();
        if from == VICTIM {
            self.last.insert(tcp.to, tcp.flags);
            return self.deaf;
        }
        let len = packet.payload().payload().len();
        if let Some((each, count)) = self.losses.get_mut(&tcp.from).filter(|(each, _)| *each > 0 && len > 0) {
            *count += 1;
            if count.is_multiple_of(*each) {
                return true;
            }
        }
        self.drops.iter().any(|which| which(&tcp, len))
    }

    /// Hands packets over until there are none.
    pub fn settle(&mut self) {
        loop {
            let mut any = false;
            for from in [VICTIM, PEER] {
                while let Some(packet) = self.stacks[from].transmit() {
                    any = true;
                    if !self.is_lost(from, &packet) {
                        self.stacks[1 - from].receive(self.now, packet);
                    }
                }
            }
            if !any {
                return;
            }
        }
    }

    pub fn run(&mut self, ns: u64) {
        let until = self.now + ns;
        self.settle();
        loop {
            let next = self.stacks.iter().filter_map(Stack::deadline).min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            self.now = next.max(self.now);
            let now = self.now;
            self.stacks.iter_mut().for_each(|stack| stack.advance(now));
            self.settle();
        }
        self.now = until;
    }

    /// Sends as much of `len` bytes as there is room for.
    pub fn send(&mut self, side: usize, pair: Pair, len: usize) -> Result<usize, Error> {
        let (ids, _, count) = &mut self.pairs[pair.0];
        let mut all = 0;
        while all < len {
            let writer = Writer::new(&self.pool);
            let bytes = pattern(count.given[side], len - all);
            match self.stacks[side].tcp_send_bytes(self.now, ids[side], bytes, &writer, SendFlags::empty()) {
                Ok(sent) => {
                    count.given[side] += sent as u64;
                    all += sent;
                }
                Err(Error::WouldBlock) if all > 0 => break,
                Err(error) => return Err(error),
            }
        }
        self.settle();
        Ok(all)
    }

    /// Reads what there is.
    pub fn read(&mut self, side: usize, pair: Pair) {
        let (ids, _, count) = &mut self.pairs[pair.0];
        loop {
            match self.stacks[side].tcp_receive(self.now, ids[side], 10_000) {
                Ok(Received::Data(data)) => {
                    for slice in data.payload().host().unwrap().slices() {
                        assert!(slice == pattern(count.got[side], slice.len()));
                        count.got[side] += slice.len() as u64;
                    }
                }
                Ok(Received::End) | Err(Error::WouldBlock) => break,
                Err(error) => panic!("receiving: {error}"),
            }
        }
        self.settle();
    }

    /// Sockets that something has happened to.
    pub fn events(&mut self, side: usize) -> Vec<Id> {
        std::iter::from_fn(|| self.stacks[side].event()).map(|event| event.id).collect()
    }

    pub fn close(&mut self, side: usize, pair: Pair) {
        let id = self.ids(pair)[side];
        self.stacks[side].tcp_close(self.now, id);
        self.settle();
    }

    /// What is known of a connection, to find out why.
    pub fn told(&self, pair: Pair) -> String {
        let info = |side: usize| self.stacks[side].tcp_info(self.now, self.ids(pair)[side]);
        let counted: Vec<_> =
            self.stacks[VICTIM].tcp_stats().each().filter(|(_, count)| *count > 0).collect();
        format!("{} bytes, {:?}\n{:?}\n{counted:?}", self.given(PEER, pair), info(VICTIM), info(PEER))
    }

    pub fn disconnect(&mut self, side: usize, pair: Pair) {
        let id = self.ids(pair)[side];
        self.stacks[side].tcp_disconnect(self.now, id).unwrap();
        self.settle();
    }

    pub fn abort(&mut self, side: usize, pair: Pair) {
        let id = self.ids(pair)[side];
        self.stacks[side].tcp_abort(self.now, id);
        self.settle();
    }

    /// Everybody lets go of everything: nothing is left, and nothing is counted.
    pub fn end(mut self) {
        for number in 0..self.pairs.len() {
            self.close(PEER, Pair(number));
            self.close(VICTIM, Pair(number));
        }
        self.stacks[VICTIM].tcp_close(self.now, self.listener);
        self.run(2000 * SECOND);
        for stack in &self.stacks {
            assert_eq!((stack.census(), stack.tcp_memory(), stack.tcp_orphans()), (Census::default(), 0, 0));
        }
        let stats = self.pool.stats();
        assert_eq!(stats.in_flight, stats.in_cache + stats.in_ring, "pages are missing: {stats:?}");
    }
}
