//! Two hosts and the wire between them.

use onecopy_chain::Writer;
use onecopy_inet::ip::{self, Cidr};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{Config, Stack};
use onecopy_inet::tcp::{Error, Received, SendFlags, State};
use onecopy_inet::trace::{Last, Trace};
use onecopy_inet::wire::Mac;
use onecopy_link::pair::{End, Pair, PairConfig, Path, Side, Wire};
use onecopy_link::{Capabilities, Link, Medium};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

pub const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

pub struct Host {
    pub stack: Stack,
    /// With what passed it last, to find out why.
    pub link: Trace<End, Last>,
}

/// Host `a` connects, host `b` listens.
pub struct Net {
    pub a: Host,
    pub b: Host,
    pub wire: Wire,
    pub pool: PagePool,
    /// Where `b` listens.
    pub server: IpAddr,
}

pub fn config(capabilities: Capabilities, address: Ipv4Addr, number: u8) -> Config {
    let cidr = Cidr::new(address, 24).unwrap();
    let mac = Mac([2, 0, 0, 0, 0, number]);
    let ip = ip::Config::new(capabilities, mac, &[cidr], [number; 16]);
    Config::new(ip, [number; 16])
}

impl Net {
    pub fn new(path: Path, seed: u64) -> Net {
        Net::with(path, seed, Capabilities::all(Medium::Ethernet, 1500), |_, _| ())
    }

    pub fn with(path: Path, seed: u64, of: Capabilities, change: impl Fn(Side, &mut Config)) -> Net {
        let Pair { a, b, wire } = Pair::new(PairConfig::new().seed(seed).capabilities(of).both(path));
        let host = |side, link, address, number| {
            let mut config = config(of, address, number);
            change(side, &mut config);
            Host { stack: Stack::new(config).unwrap(), link: Trace::new(link, Last::new(100)) }
        };
        let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
        Net { a: host(Side::A, a, A, 1), b: host(Side::B, b, B, 2), wire, pool, server: B.into() }
    }

    pub fn now(&self) -> u64 {
        self.wire.now()
    }

    /// Lets all happen that happens now.
    pub fn settle(&mut self) {
        let now = self.now();
        for host in [&mut self.a, &mut self.b] {
            host.stack.advance(now);
            while let Some(packet) = host.link.receive(now) {
                host.stack.receive(now, packet);
            }
            while host.link.room(now) > 0
                && let Some(packet) = host.stack.transmit()
            {
                host.link.transmit(now, packet);
            }
        }
    }

    /// Goes on to whatever is next, but not behind `until`; false when there is nothing.
    pub fn step(&mut self, until: u64) -> bool {
        self.settle();
        let next = [self.wire.next(), self.a.stack.deadline(), self.b.stack.deadline()];
        let Some(next) = next.into_iter().flatten().min().filter(|next| *next <= until) else {
            return false;
        };
        let to = next.max(self.now());
        self.wire.advance(to);
        true
    }

    /// Lets time pass.
    pub fn run(&mut self, ns: u64) {
        let until = self.now() + ns;
        while self.step(until) {}
        self.wire.advance(until);
        self.settle();
    }

    pub fn listen(&mut self, port: u16) -> Id {
        let id = self.b.stack.tcp_open().unwrap();
        self.b.stack.tcp_bind(id, SocketAddr::new(self.server, port), false).unwrap();
        self.b.stack.tcp_listen(id, 16).unwrap();
        id
    }

    /// What was counted, and what passed the links last, to find out why.
    pub fn report(&self) {
        for (name, host) in [("a", &self.a), ("b", &self.b)] {
            eprintln!("{name}:\n{}", host.link.watch());
            let counted: Vec<_> = host.stack.tcp_stats().each().filter(|(_, count)| *count > 0).collect();
            let ip = host.stack.interface().stats();
            eprintln!(
                "{counted:?} received {} sent {} {:?}",
                ip.received,
                ip.sent,
                ip.drops().collect::<Vec<_>>()
            );
        }
        eprintln!("wire {:?} {:?}", self.wire.stats(Side::A), self.wire.stats(Side::B));
    }

    /// A connection, both ends of it.
    pub fn connect(&mut self, listener: Id, port: u16) -> (Id, Id) {
        let id = self.a.stack.tcp_open().unwrap();
        let now = self.now();
        let begun = self.a.stack.tcp_connect(now, id, SocketAddr::new(self.server, port));
        assert_eq!(begun, Err(Error::InProgress));
        let limit = now + 300_000_000_000;
        let mut goes_on = true;
        while goes_on {
            goes_on = self.step(limit);
            if self.a.stack.tcp_state(id) == Some(State::Established)
                && let Ok((child, _)) = self.b.stack.tcp_accept(listener)
            {
                return (id, child);
            }
        }
        self.report();
        panic!("no connection in 300 s, seed {}", self.wire.seed());
    }
}

/// Sends as much of `bytes` as there is room for.
pub fn send(host: &mut Host, pool: &PagePool, now: u64, id: Id, bytes: &[u8]) -> usize {
    match host.stack.tcp_send_bytes(now, id, bytes, &Writer::new(pool), SendFlags::empty()) {
        Ok(sent) => sent,
        Err(Error::WouldBlock) => 0,
        Err(error) => panic!("sending: {error}"),
    }
}

/// Receives what there is; true at the end.
pub fn receive(host: &mut Host, now: u64, id: Id, into: &mut Vec<u8>) -> bool {
    loop {
        match host.stack.tcp_receive(now, id, usize::MAX) {
            Ok(Received::Data(data)) => {
                let chain = data.payload();
                chain.host().unwrap().slices().for_each(|slice| into.extend_from_slice(slice));
            }
            Ok(Received::End) => return true,
            Err(Error::WouldBlock) => return false,
            Err(error) => panic!("receiving: {error}"),
        }
    }
}
