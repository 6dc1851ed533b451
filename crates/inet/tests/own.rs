//! A host that talks to itself: by its own address, and by 127.0.0.0/8 where it has that. Nothing of it is on the link.

use onecopy_chain::Writer;
use onecopy_inet::ip::{self, Cidr, NotSent, Outgoing, Reason};
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{Config, Stack};
use onecopy_inet::tcp::{Error, Received, SendFlags, State};
use onecopy_inet::udp::{self, Envelope};
use onecopy_inet::wire::{Mac, Protocol};
use onecopy_link::{Capabilities, Medium, Packet};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use std::net::{Ipv4Addr, SocketAddr};

const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const SECOND_OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

fn at(address: Ipv4Addr, port: u16) -> SocketAddr {
    (address, port).into()
}

struct Host {
    stack: Stack,
    pool: PagePool,
    now: u64,
}

fn config(medium: Medium, own: &[(Ipv4Addr, u8)]) -> Config {
    let own: Vec<_> = own.iter().map(|(address, prefix)| Cidr::new(*address, *prefix).unwrap()).collect();
    // A link that takes little: none of it counts here.
    let link = Capabilities { fragments: 1, ..Capabilities::none(medium, 576) };
    Config::new(ip::Config::new(link, Mac([2, 0, 0, 0, 0, 1]), &own, [1; 16]), [1; 16])
}

impl Host {
    fn with(config: Config) -> Host {
        let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
        Host { stack: Stack::new(config).unwrap(), pool, now: 1_000_000_000 }
    }

    fn new(medium: Medium) -> Host {
        Host::with(config(medium, &[(OWN, 24), (SECOND_OWN, 24), (LOOPBACK, 8)]))
    }

    /// Lets all happen that happens now, and nothing leave.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            assert!(self.stack.transmit().is_none(), "it leaves");
            match self.stack.deadline() {
                Some(at) if at <= self.now => self.stack.advance(self.now),
                _ => return,
            }
        }
        panic!("it does not come to rest");
    }

    /// Lets time pass.
    fn pass(&mut self, ns: u64) {
        let until = self.now + ns;
        self.settle();
        while let Some(at) = self.stack.deadline().filter(|at| *at <= until) {
            self.now = at.max(self.now);
            self.settle();
        }
        self.now = until;
    }

    fn listen(&mut self, address: Ipv4Addr, port: u16) -> Id {
        let id = self.stack.tcp_open().unwrap();
        self.stack.tcp_bind(id, at(address, port), false).unwrap();
        self.stack.tcp_listen(id, 16).unwrap();
        id
    }

    fn connect(&mut self, to: SocketAddr) -> Id {
        let id = self.stack.tcp_open().unwrap();
        assert_eq!(self.stack.tcp_connect(self.now, id, to), Err(Error::InProgress));
        self.settle();
        id
    }

    fn receive(&mut self, id: Id, into: &mut Vec<u8>) -> Result<bool, Error> {
        loop {
            match self.stack.tcp_receive(self.now, id, usize::MAX) {
                Ok(Received::Data(data)) => {
                    data.payload().host().unwrap().slices().for_each(|slice| into.extend_from_slice(slice));
                }
                Ok(Received::End) => return Ok(true),
                Err(Error::WouldBlock) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn a_connection_to_itself_brings_every_byte_and_ends_in_order() {
    for medium in [Medium::Ethernet, Medium::Ip] {
        for to in [OWN, SECOND_OWN, LOOPBACK, Ipv4Addr::new(127, 9, 8, 7)] {
            let mut host = Host::new(medium);
            let listener = host.listen(Ipv4Addr::UNSPECIFIED, 80);
            let client = host.connect(at(to, 80));
            assert_eq!(host.stack.tcp_state(client), Some(State::Established), "{to}");
            // As with Linux: from the very address, or from 127.0.0.1.
            let from = if to.is_loopback() { LOOPBACK } else { to };
            let (server, peer) = host.stack.tcp_accept(listener).unwrap();
            assert_eq!(peer.ip(), from);
            assert_eq!(host.stack.tcp_addresses(server).local, Some(at(to, 80)));
            let info = host.stack.tcp_info(host.now, client).unwrap();
            assert_eq!((info.pmtu, info.advmss), (65_535, 65_495));

            let (sent, mut got, mut at) = (bytes(3_000_000), Vec::new(), 0);
            while got.len() < sent.len() {
                let writer = Writer::new(&host.pool);
                match host.stack.tcp_send_bytes(host.now, client, &sent[at..], &writer, SendFlags::empty()) {
                    Ok(count) => at += count,
                    Err(error) => assert!(error == Error::WouldBlock || at == sent.len(), "{error}"),
                }
                host.settle();
                assert!(!host.receive(server, &mut got).unwrap());
                host.pass(50_000_000);
                assert!(host.now < 60_000_000_000, "{to}: {} bytes of {}", got.len(), sent.len());
            }
            assert!(got == sent);
            assert_eq!(host.stack.tcp_stats().timeouts, 0);
            let now = host.now;
            host.stack.tcp_close(now, client);
            host.settle();
            assert!(host.receive(server, &mut got).unwrap());
            host.stack.tcp_close(now, server);
            host.settle();
            assert_eq!(host.stack.census().over, 1);
            let stats = host.stack.interface().stats();
            assert!(
                stats.looped == stats.sent && stats.looped == stats.tcp && stats.looped == stats.received
            );
        }
    }
}

#[test]
fn a_port_of_its_own_that_nobody_listens_on_refuses_at_once() {
    let mut host = Host::new(Medium::Ethernet);
    let client = host.connect(at(OWN, 81));
    assert_eq!(host.stack.tcp_take_error(client), Some(Error::Refused));
}

#[test]
fn a_socket_that_connects_to_itself_is_connected_to_itself() {
    // Simultaneous open, with nobody else.
    let mut host = Host::new(Medium::Ethernet);
    let id = host.stack.tcp_open().unwrap();
    let own = at(OWN, 5000);
    host.stack.tcp_bind(id, own, false).unwrap();
    assert_eq!(host.stack.tcp_connect(host.now, id, own), Err(Error::InProgress));
    host.settle();
    assert_eq!(host.stack.tcp_state(id), Some(State::Established));
    let writer = Writer::new(&host.pool);
    let sent = host.stack.tcp_send_bytes(host.now, id, b"to myself", &writer, SendFlags::empty());
    assert_eq!(sent, Ok(9));
    host.settle();
    let mut got = Vec::new();
    assert_eq!(host.receive(id, &mut got), Ok(false));
    assert_eq!(got, b"to myself");
    host.stack.tcp_close(host.now, id);
    host.pass(200_000_000_000);
    assert!(host.stack.is_empty());
}

#[test]
fn no_address_means_this_host() {
    let mut host = Host::new(Medium::Ethernet);
    let _listener = host.listen(LOOPBACK, 80);
    let client = host.connect(at(Ipv4Addr::UNSPECIFIED, 80));
    assert_eq!(host.stack.tcp_state(client), Some(State::Established));
    assert_eq!(host.stack.tcp_addresses(client).remote, Some(at(LOOPBACK, 80)));
}

#[test]
fn a_full_queue_loses_what_is_sent_again() {
    let mut config = config(Medium::Ip, &[(OWN, 24)]);
    config.ip.queue = 2;
    let mut host = Host::with(config);
    let listener = host.listen(OWN, 80);
    let client = host.connect(at(OWN, 80));
    let (server, _) = host.stack.tcp_accept(listener).unwrap();
    host.stack.tcp_set(host.now, client, |settings| settings.nodelay = true).unwrap();
    let (sent, mut got) = (bytes(5_000), Vec::new());
    for part in sent.chunks(1_000) {
        let writer = Writer::new(&host.pool);
        let given = host.stack.tcp_send_bytes(host.now, client, part, &writer, SendFlags::empty());
        assert_eq!(given, Ok(1_000));
    }
    assert_eq!(host.stack.interface().looped(), 2);
    assert!(host.stack.interface().stats().dropped(Reason::QueueFull) > 0);
    host.pass(10_000_000_000);
    host.receive(server, &mut got).unwrap();
    assert!(got == sent);
}

#[test]
fn datagrams_trains_and_complaints_come_back() {
    for to in [OWN, Ipv4Addr::new(127, 0, 0, 5)] {
        let mut host = Host::new(Medium::Ethernet);
        let server = host.stack.udp_open().unwrap();
        host.stack.udp_bind(server, at(to, 53), false).unwrap();
        let client = host.stack.udp_open().unwrap();
        let envelope = |to, gso| Envelope { to: Some(to), gso: Some(gso), ..Envelope::default() };
        let send = |host: &mut Host, bytes: &[u8], envelope: &Envelope| {
            let writer = Writer::new(&host.pool);
            host.stack.udp_send_bytes(host.now, client, bytes, &writer, envelope)
        };
        // As long as can be, whatever the link takes.
        let place = at(to, 53);
        for (len, gso) in [(0, 0), (1, 0), (65_507, 0), (30_000, 1_000)] {
            assert_eq!(send(&mut host, &bytes(len), &envelope(place, gso)), Ok(len));
            host.settle();
            let mut got = Vec::new();
            for _ in 0..len.div_ceil(if gso == 0 { 65_507 } else { gso.into() }).max(1) {
                let received = host.stack.udp_receive(server).unwrap();
                received
                    .data
                    .payload()
                    .host()
                    .unwrap()
                    .slices()
                    .for_each(|slice| got.extend_from_slice(slice));
            }
            assert!(got == bytes(len));
            assert_eq!(host.stack.udp_receive(server).map(|_| ()), Err(udp::Error::WouldBlock));
        }
        assert_eq!(send(&mut host, &bytes(65_508), &envelope(place, 0)), Err(udp::Error::TooLong));
        let nobody = at(to, 54);
        host.stack.udp_connect(client, nobody).unwrap();
        assert_eq!(send(&mut host, b"anybody?", &envelope(nobody, 0)), Ok(8));
        host.settle();
        assert_eq!(host.stack.udp_take_error(client), Some(udp::Error::Refused));
    }
}

#[test]
fn it_answers_its_own_questions() {
    let mut host = Host::new(Medium::Ethernet);
    let about = Outgoing::new(OWN, OWN, Protocol::ICMP);
    host.stack.interface_mut().ping(host.now, &about, (7, 1), Packet::default()).unwrap();
    host.settle();
    let stats = host.stack.interface().stats();
    assert_eq!((stats.echoes, stats.icmp, stats.looped), (1, 2, 2));
}

#[test]
fn what_is_for_this_host_alone_neither_leaves_nor_comes_by_the_link() {
    let mut host = Host::new(Medium::Ip);
    let about = Outgoing::new(LOOPBACK, ELSEWHERE, Protocol::ICMP);
    let refused = host.stack.interface_mut().ping(host.now, &about, (7, 1), Packet::default());
    assert_eq!(refused, Err(NotSent(Reason::BadAddress)));
    let id = host.stack.tcp_open().unwrap();
    host.stack.tcp_bind(id, at(LOOPBACK, 0), false).unwrap();
    let refused = host.stack.tcp_connect(host.now, id, at(ELSEWHERE, 80));
    assert_eq!(refused, Err(Error::Invalid));
    let id = host.stack.udp_open().unwrap();
    host.stack.udp_bind(id, at(LOOPBACK, 0), false).unwrap();
    let refused = host.stack.udp_connect(id, at(ELSEWHERE, 80));
    assert_eq!(refused, Err(udp::Error::Invalid));

    let mut packet = Packet::default();
    onecopy_inet::wire::Ipv4::new(ELSEWHERE, LOOPBACK, Protocol::UDP, 0).write(packet.head_mut()).unwrap();
    host.stack.receive(host.now, packet);
    assert_eq!(host.stack.interface().stats().dropped(Reason::Martian), 1);

    // Without 127.0.0.0/8 it is nobody's.
    let mut host = Host::with(config(Medium::Ip, &[(OWN, 24)]));
    let id = host.stack.tcp_open().unwrap();
    let none = host.stack.tcp_connect(host.now, id, at(LOOPBACK, 80));
    assert_eq!(none, Err(Error::NetUnreachable));
}
