//! Two hosts on a pair, in virtual time.
#![allow(dead_code, reason = "each test program uses some of it")]

use onecopy_chain::notify::Segment;
use onecopy_chain::{Chain, Writer};
use onecopy_inet::ip::{Cidr, Complaint, Config, Input, Interface, Outgoing, Stats};
use onecopy_inet::wire::{Arp, EtherType, Ethernet, Ipv4, Mac, Protocol, Seq, Tcp, arp::Operation, checksum};
use onecopy_link::pair::{End, Pair, PairConfig, Path, Wire};
use onecopy_link::{Capabilities, Head, Link, Medium, Packet};
use onecopy_pool::{PagePool, PoolConfig, provider::Heap};
use std::net::Ipv4Addr;

pub const SECOND: u64 = 1_000_000_000;
pub const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const MAC_A: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const MAC_B: Mac = Mac([2, 0, 0, 0, 0, 2]);
pub const STRANGER: Mac = Mac([2, 0, 0, 0, 0, 0x66]);

pub fn pool() -> PagePool {
    PagePool::new(PoolConfig::new().limit(64), Heap::new()).unwrap()
}

pub fn chain(bytes: &[u8]) -> Segment<Chain> {
    let mut chain = Chain::new();
    let pool = pool();
    bytes.chunks(4096).for_each(|piece| Writer::new(&pool).append(&mut chain, piece).unwrap());
    Segment::new(chain)
}

pub fn config(capabilities: Capabilities, mac: Mac, address: Ipv4Addr) -> Config {
    Config::new(capabilities, mac, &[Cidr::new(address, 24).unwrap()], *b"a seed of a test")
}

pub fn interface(medium: Medium) -> Interface {
    Interface::new(config(Capabilities::all(medium, 1500), MAC_A, A)).unwrap()
}

/// What came to a host: of packets, their bytes from the transport's header on, or what followed an answer's.
pub type Came = (Input, Vec<u8>);

pub struct Host {
    pub ip: Interface,
    pub link: End,
    pub came: Vec<Came>,
    /// Packets, as long as somebody wants them: with what is known of them.
    pub packets: Vec<Packet>,
    pub complaints: Vec<Complaint>,
}

impl Host {
    fn new(link: End, mac: Mac, address: Ipv4Addr) -> Host {
        let ip = Interface::new(config(link.capabilities(), mac, address)).unwrap();
        Host { ip, link, came: Vec::new(), packets: Vec::new(), complaints: Vec::new() }
    }

    fn turn(&mut self, now: u64) {
        self.ip.advance(now);
        while let Some(mut packet) = self.link.receive(now) {
            let input = self.ip.input(now, &mut packet);
            if input != Input::Done {
                self.came.push((input, packet.to_vec().unwrap()));
                self.packets.push(packet);
            }
        }
        self.complaints.extend(std::iter::from_fn(|| self.ip.complaint()));
        while let Some(packet) = self.ip.transmit() {
            self.link.transmit(now, packet);
        }
    }
}

pub struct Net {
    pub a: Host,
    pub b: Host,
    pub wire: Wire,
}

impl Net {
    pub fn new(capabilities: Capabilities, path: Path) -> Net {
        let Pair { a, b, wire } = Pair::new(PairConfig::new().seed(7).capabilities(capabilities).both(path));
        Net { a: Host::new(a, MAC_A, A), b: Host::new(b, MAC_B, B), wire }
    }

    pub fn ethernet() -> Net {
        Net::new(Capabilities::all(Medium::Ethernet, 1500), Path::new())
    }

    pub fn now(&self) -> u64 {
        self.wire.now()
    }

    /// Lets all happen that does until `until`.
    pub fn run(&mut self, until: u64) {
        let mut turns = 0;
        loop {
            let now = self.wire.now();
            // What one says, the other one answers at the same time.
            for _ in 0..4 {
                self.a.turn(now);
                self.b.turn(now);
            }
            let next = [self.wire.next(), self.a.ip.deadline(), self.b.ip.deadline()];
            match next.into_iter().flatten().min() {
                Some(next) if next <= until => self.wire.advance(next.max(now)),
                _ => break,
            };
            turns += 1;
            assert!(turns < 10_000, "it does not come to rest");
        }
        self.wire.advance(until);
    }

    pub fn run_for(&mut self, ns: u64) {
        self.run(self.now() + ns);
    }
}

/// A segment from `from` to `to`, its header in the head, its checksum to be finished.
pub fn segment(from: Ipv4Addr, to: Ipv4Addr, seq: u32, payload: &[u8]) -> Packet {
    let mut packet = Packet::from(chain(payload));
    let tcp = Tcp { from: 4000, to: 80, seq: Seq(seq), ..Tcp::default() };
    let pseudo = checksum::pseudo_v4(from, to, Protocol::TCP, (tcp.len() + payload.len()) as u32);
    tcp.write(packet.head_mut(), pseudo).unwrap();
    checksum::leave_unfinished(&mut packet, 0, Tcp::CHECKSUM).unwrap();
    packet
}

/// Sends a segment from A to B.
pub fn send(net: &mut Net, seq: u32, payload: &[u8]) {
    let now = net.now();
    let about = Outgoing::new(A, B, Protocol::TCP);
    net.a.ip.output(now, &about, segment(A, B, seq, payload)).unwrap();
}

/// The sequence numbers of segments that came.
pub fn sequence(came: &[Came]) -> Vec<u32> {
    let tcp = |(input, bytes): &Came| match input {
        Input::Tcp(_) => Some(Tcp::parse(bytes).unwrap().0.seq.0),
        _ => None,
    };
    came.iter().filter_map(tcp).collect()
}

/// A frame with ARP in it.
pub fn arp(operation: Operation, to: Mac, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Packet {
    let mut packet = Packet::default();
    let (sender_mac, sender) = sender;
    let (target_mac, target) = target;
    let arp = Arp { operation, sender_mac, sender, target_mac, target };
    arp.write(packet.head_mut()).unwrap();
    Ethernet { to, from: sender_mac, kind: EtherType::ARP }.write(packet.head_mut()).unwrap();
    packet
}

/// A packet of these bytes behind an IPv4 header, for A, as the medium has it.
pub fn whole(medium: Medium, from: Ipv4Addr, protocol: Protocol, bytes: &[u8]) -> Vec<u8> {
    let mut head = Head::new();
    let ip = Ipv4::new(from, A, protocol, bytes.len() as u16);
    ip.write(&mut head).unwrap();
    if medium == Medium::Ethernet {
        Ethernet { to: MAC_A, from: MAC_B, kind: EtherType::IPV4 }.write(&mut head).unwrap();
    }
    [&head[..], bytes].concat()
}

/// Each packet that came or was to leave was counted once, in what it came to.
pub fn assert_balanced(stats: &Stats) {
    let came = stats.tcp + stats.udp + stats.icmp + stats.arp + stats.fragments + stats.dropped_in();
    assert_eq!(stats.received, came, "{stats:?}");
}
