//! Two hosts and the wire between them.

use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Writer};
use onecopy_inet::ip::{self, Cidr};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{Config, Event, Stack};
use onecopy_inet::udp::{Envelope, Error, Received, Stats};
use onecopy_inet::wire::{Ipv4, Mac, Protocol, Udp, checksum};
use onecopy_link::pair::{End, Pair, PairConfig, Path, Side, Wire};
use onecopy_link::{Capabilities, Head, Link, Medium, Packet};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

pub const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
pub const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// Of the same host as [`B`].
pub const B2: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));
/// Of everybody on their network.
pub const ALL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 255));
/// Nobody's.
pub const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 99));
pub const SECOND: u64 = 1_000_000_000;
pub const MEDIA: [Medium; 2] = [Medium::Ethernet, Medium::Ip];

pub fn at(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}

pub struct Host {
    pub stack: Stack,
    pub link: End,
}

pub struct World {
    pub a: Host,
    pub b: Host,
    pub wire: Wire,
    pub pool: PagePool,
}

pub fn config(of: Capabilities, addresses: &[IpAddr], number: u8) -> Config {
    let cidrs: Vec<_> = addresses.iter().map(|address| Cidr::new(*address, 24).unwrap()).collect();
    Config::new(ip::Config::new(of, Mac([2, 0, 0, 0, 0, number]), &cidrs, [number; 16]), [number; 16])
}

pub fn pool() -> PagePool {
    PagePool::new(PoolConfig::new(), Heap::new()).unwrap()
}

impl World {
    pub fn new(medium: Medium) -> World {
        World::with(Capabilities::all(medium, 1500), Path::new(), 1, |_, _| ())
    }

    pub fn with(of: Capabilities, path: Path, seed: u64, change: impl Fn(Side, &mut Config)) -> World {
        let Pair { a, b, wire } = Pair::new(PairConfig::new().seed(seed).capabilities(of).both(path));
        let host = |side, link, addresses: &[IpAddr], number| {
            let mut config = config(of, addresses, number);
            change(side, &mut config);
            Host { stack: Stack::new(config).unwrap(), link }
        };
        World { a: host(Side::A, a, &[A], 1), b: host(Side::B, b, &[B, B2], 2), wire, pool: pool() }
    }

    /// Lets all happen that happens now.
    fn settle(&mut self) {
        let now = self.wire.now();
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

    /// Lets time pass.
    pub fn run(&mut self, ns: u64) {
        let until = self.wire.now() + ns;
        loop {
            // What one says, the other one answers at the same time.
            (0..4).for_each(|_| self.settle());
            let next = [self.wire.next(), self.a.stack.deadline(), self.b.stack.deadline()];
            match next.into_iter().flatten().min().filter(|next| *next <= until) {
                Some(next) => self.wire.advance(next.max(self.wire.now())),
                None => break,
            };
        }
        self.wire.advance(until);
        self.settle();
    }

    /// A millisecond: enough for a wire without delay.
    pub fn go(&mut self) {
        self.run(1_000_000);
    }

    /// Has the hosts know each other: of packets for a neighbour that is not known few wait.
    pub fn acquaint(&mut self) {
        let about = ip::Outgoing::new(A, B, Protocol::ICMP);
        self.a.stack.interface_mut().ping(self.wire.now(), &about, (1, 1), Packet::default()).unwrap();
        self.run(SECOND / 10);
    }

    pub fn send(&mut self, id: Id, envelope: &Envelope, bytes: &[u8]) -> Result<usize, Error> {
        self.a.send(&self.pool, self.wire.now(), id, envelope, bytes)
    }

    pub fn answer(&mut self, id: Id, envelope: &Envelope, bytes: &[u8]) -> Result<usize, Error> {
        self.b.send(&self.pool, self.wire.now(), id, envelope, bytes)
    }
}

impl Host {
    /// A socket that is bound.
    pub fn bound(&mut self, address: IpAddr, port: u16) -> Id {
        let id = self.stack.udp_open().unwrap();
        self.stack.udp_bind(id, at(address, port), false).unwrap();
        id
    }

    pub fn connected(&mut self, to: SocketAddr) -> Id {
        let id = self.stack.udp_open().unwrap();
        self.stack.udp_connect(id, to).unwrap();
        id
    }

    pub fn send(
        &mut self,
        pool: &PagePool,
        now: u64,
        id: Id,
        envelope: &Envelope,
        bytes: &[u8],
    ) -> Result<usize, Error> {
        self.stack.udp_send_bytes(now, id, bytes, &Writer::new(pool), envelope)
    }

    /// All that came, and who sent it.
    pub fn all(&mut self, id: Id) -> Vec<(Vec<u8>, SocketAddr)> {
        std::iter::from_fn(|| self.stack.udp_receive(id).ok()).map(|one| (bytes(&one), one.from)).collect()
    }

    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.stack.event()).collect()
    }

    pub fn local(&self, id: Id) -> SocketAddr {
        self.stack.udp_addresses(id).local.unwrap()
    }

    /// Each datagram is in one counter; what waits is what was not fetched.
    pub fn assert_balanced(&self, waiting: u64) {
        let stats: &Stats = self.stack.udp_stats();
        assert_eq!(stats.arrived + stats.copies, stats.queued + stats.dropped(), "{stats:?}");
        assert_eq!(stats.queued, stats.received + stats.unread + waiting, "{stats:?}");
    }
}

pub fn bytes(received: &Received) -> Vec<u8> {
    received.data.payload().host().unwrap().to_vec()
}

pub fn segment(pool: &PagePool, bytes: &[u8]) -> Segment<Chain> {
    let mut chain = Chain::new();
    Writer::new(pool).append(&mut chain, bytes).unwrap();
    Segment::new(chain)
}

/// Bytes of which each one says where it is.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

/// Pages for packets that a test writes itself.
pub fn written(bytes: &[u8]) -> Segment<Chain> {
    thread_local!(static POOL: PagePool = pool());
    POOL.with(|pool| segment(pool, bytes))
}

/// A packet of IP alone, from A's host to B's: these bytes behind IP's header.
pub fn packet(from: IpAddr, to: IpAddr, protocol: Protocol, bytes: &[u8]) -> Packet {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else { panic!("of IPv4") };
    let ip = Ipv4::new(from, to, protocol, bytes.len() as u16);
    let mut head = Head::new();
    ip.write(&mut head).unwrap();
    Packet::new(&head, written(bytes)).unwrap()
}

/// A datagram's bytes, its checksum right.
pub fn datagram(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut packet = Packet::from(written(payload));
    let pseudo = checksum::pseudo(from.ip(), to.ip(), Protocol::UDP, (Udp::LEN + payload.len()) as u32);
    let header = Udp { from: from.port(), to: to.port(), payload_len: payload.len() as u16 };
    header.write(packet.head_mut(), pseudo).unwrap();
    checksum::leave_unfinished(&mut packet, 0, Udp::CHECKSUM).unwrap();
    packet.finish().unwrap();
    packet.to_vec().unwrap()
}
