//! Sockets, as over IPv4.

use crate::world::{A, A6, B, B6, Net, receive, send, six};
use onecopy_chain::Writer;
use onecopy_inet::tcp::{Error, State};
use onecopy_inet::udp::{self, Envelope};
use onecopy_link::pair::{Path, Side};
use onecopy_link::{Capabilities, Medium};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 255) as u8).collect()
}

/// `len` bytes from one to the other, whole.
fn transfer(net: &mut Net, len: usize) {
    let listener = net.listen(80);
    let (a, b) = net.connect(listener, 80);
    let (all, mut sent, mut got) = (pattern(len), 0, Vec::new());
    for _ in 0..1_000_000 {
        let now = net.now();
        sent += send(&mut net.a, &net.pool, now, a, &all[sent..]);
        receive(&mut net.b, now, b, &mut got);
        if got.len() == len {
            break;
        }
        if !net.step(now + 300 * SECOND) {
            break;
        }
    }
    if got != all {
        net.report();
        panic!("{} of {len} bytes", got.len());
    }
    let (now, peer) = (net.now(), net.server);
    assert_eq!(net.a.stack.tcp_addresses(a).remote, Some(SocketAddr::new(peer, 80)));
    net.a.stack.tcp_close(now, a);
    net.b.stack.tcp_close(now, b);
    net.run(200 * SECOND);
    assert!(net.a.stack.is_empty(), "{:?}", net.a.stack.census());
}

#[test]
fn bytes_arrive_whatever_the_link_does_for_itself() {
    for medium in [Medium::Ethernet, Medium::Ip] {
        for of in [Capabilities::all(medium, 1500), Capabilities::none(medium, 1280)] {
            transfer(&mut six(Path::new(), 1, of), 3_000_000);
        }
    }
}

#[test]
fn bytes_arrive_through_loss_and_disorder() {
    for seed in 0..5 {
        let path = Path::new().delay(Duration::from_millis(2)).jitter(Duration::from_millis(3)).loss(0.02);
        let of = Capabilities::all(Medium::Ethernet, 1500);
        transfer(&mut six(path, seed, of), 300_000);
    }
}

#[test]
fn segments_leave_room_for_the_longer_header() {
    let mut net = six(Path::new(), 1, Capabilities::none(Medium::Ethernet, 1500));
    let listener = net.listen(80);
    let (a, _) = net.connect(listener, 80);
    let info = net.a.stack.tcp_info(net.now(), a).unwrap();
    // With timestamps.
    assert_eq!((info.snd_mss, info.advmss, info.pmtu), (1428, 1440, 1500));
}

#[test]
fn neither_family_has_the_others_ports() {
    let mut net = six(Path::new(), 1, Capabilities::all(Medium::Ethernet, 1500));
    let any = |six: bool| match six {
        true => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        false => IpAddr::from([0, 0, 0, 0]),
    };
    let listeners = [false, true].map(|six| {
        let id = net.b.stack.tcp_open().unwrap();
        net.b.stack.tcp_bind(id, SocketAddr::new(any(six), 80), false).unwrap();
        net.b.stack.tcp_listen(id, 5).unwrap();
        id
    });
    for (listener, server, client) in
        [(listeners[0], B.into(), IpAddr::from(A)), (listeners[1], B6.into(), A6.into())]
    {
        net.server = server;
        let (_, child) = net.connect(listener, 80);
        assert_eq!(net.b.stack.tcp_addresses(child).remote.unwrap().ip(), client);
    }
    // A socket that has an address of one family connects to no other.
    let id = net.a.stack.tcp_open().unwrap();
    net.a.stack.tcp_bind(id, SocketAddr::new(A.into(), 0), false).unwrap();
    let now = net.now();
    let to = SocketAddr::new(B6.into(), 80);
    assert_eq!(net.a.stack.tcp_connect(now, id, to), Err(Error::AddressFamily));
    let id = net.a.stack.udp_open().unwrap();
    net.a.stack.udp_bind(id, SocketAddr::new(any(false), 0), false).unwrap();
    assert_eq!(net.a.stack.udp_connect(id, to), Err(udp::Error::AddressFamily));
    // Nobody listens there: refused, over the same road.
    let id = net.a.stack.tcp_open().unwrap();
    let _ = net.a.stack.tcp_connect(now, id, SocketAddr::new(B6.into(), 81));
    net.run(SECOND);
    assert_eq!(net.a.stack.tcp_take_error(id), Some(Error::Refused));
    assert_eq!(net.a.stack.tcp_state(id), Some(State::Closed));
}

#[test]
fn datagrams_go_and_trains_and_the_port_of_nobody_is_told() {
    for of in [Capabilities::all(Medium::Ethernet, 1500), Capabilities::none(Medium::Ip, 1500)] {
        let mut net = six(Path::new(), 1, of);
        let (a, b) = (net.a.stack.udp_open().unwrap(), net.b.stack.udp_open().unwrap());
        net.b.stack.udp_bind(b, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 53), false).unwrap();
        let to = Envelope::to(SocketAddr::new(B6.into(), 53));
        let (now, writer) = (net.now(), Writer::new(&net.pool));
        for (len, gso) in [(0, 0), (1452, 0), (4000, 1000)] {
            let sent = net.a.stack.udp_send_bytes(now, a, &pattern(len), &writer, &to.gso(gso));
            assert_eq!(sent, Ok(len));
        }
        let long = net.a.stack.udp_send_bytes(now, a, &pattern(1453), &writer, &to);
        assert_eq!(long, Err(udp::Error::TooLong));
        // To another one, of this side's choice.
        let lost = Envelope::to(SocketAddr::new(B6.into(), 54));
        let connected = net.a.stack.udp_open().unwrap();
        net.a.stack.udp_connect(connected, lost.to.unwrap()).unwrap();
        net.a.stack.udp_send_bytes(now, connected, b"who?", &writer, &Envelope::CONNECTED).unwrap();
        net.run(3 * SECOND);
        let got = std::iter::from_fn(|| net.b.stack.udp_receive(b).ok());
        let got: Vec<_> = got.map(|got| (got.from.ip(), got.to, got.data.payload().len())).collect();
        let each = |len| (IpAddr::from(A6), to.to.unwrap(), len);
        assert_eq!(got, [0, 1452, 1000, 1000, 1000, 1000].map(each));
        assert_eq!(net.a.stack.udp_take_error(connected), Some(udp::Error::Refused));
    }
}

#[test]
fn the_address_on_the_link_alone_speaks_to_such_ones() {
    let of = Capabilities::all(Medium::Ethernet, 1500);
    let mut net = six(Path::new(), 1, of);
    let local = |number| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, number);
    let interface = net.a.stack.interface();
    assert_eq!(interface.source(local(2).into()), Some(local(1).into()));
    assert_eq!(interface.source(B6.into()), Some(A6.into()));
    // No way leads there.
    assert_eq!(interface.source("2001:db8::1".parse().unwrap()), None);
    net.server = local(2).into();
    transfer(&mut net, 100_000);
    // Without a hardware address there is none.
    let net = six(Path::new(), 1, Capabilities::all(Medium::Ip, 1500));
    assert_eq!(net.a.stack.interface().addresses().len(), 2);
}

#[test]
fn of_several_addresses_the_nearest_one_speaks() {
    let of = Capabilities::all(Medium::Ethernet, 1500);
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let net = Net::with(Path::new(), 1, of, |side, config| {
        if side == Side::A {
            for own in ["2001:db8:1::1", "fd00:1::1", "2001:db8:2::1"] {
                let own = onecopy_inet::ip::Cidr::new(ip(own), 64).unwrap();
                config.ip.addresses.push(own);
            }
            config.ip = config.ip.clone().gateway(ip("fe80::1"));
        }
    });
    let source = |to| net.a.stack.interface().source(ip(to));
    for (to, from) in [
        ("2001:db8:2::9", "2001:db8:2::1"),
        ("2001:db8:1::9", "2001:db8:1::1"),
        ("fd00:1::77", "fd00:1::1"),
        ("2001:db8:2:1::9", "2001:db8:2::1"),
        // Of equals the first one.
        ("3fff::9", "2001:db8:1::1"),
        ("fe80::9", "fe80::ff:fe00:1"),
        ("10.0.0.9", "10.0.0.1"),
    ] {
        assert_eq!(source(to), Some(ip(from)), "to {to}");
    }
}

#[test]
fn a_host_talks_to_itself() {
    let of = Capabilities::all(Medium::Ethernet, 1500);
    let mut net = Net::with(Path::new(), 1, of, |_, config| {
        for own in [IpAddr::from(A6), Ipv6Addr::LOCALHOST.into()] {
            config.ip.addresses.push(onecopy_inet::ip::Cidr::new(own, 128).unwrap());
        }
    });
    let stack = &mut net.a.stack;
    for own in [IpAddr::from(A6), Ipv6Addr::LOCALHOST.into()] {
        let at = SocketAddr::new(own, 80);
        let (listener, client) = (stack.tcp_open().unwrap(), stack.tcp_open().unwrap());
        stack.tcp_bind(listener, at, false).unwrap();
        stack.tcp_listen(listener, 1).unwrap();
        assert_eq!(stack.tcp_connect(0, client, at), Err(Error::InProgress));
        while let Some(now) = stack.deadline().filter(|at| *at < SECOND) {
            stack.advance(now);
        }
        let (_, peer) = stack.tcp_accept(listener).unwrap();
        assert_eq!(peer.ip(), own);
        // A port of nobody is told of, here as elsewhere.
        let udp = stack.udp_open().unwrap();
        stack.udp_connect(udp, at).unwrap();
        let writer = Writer::new(&net.pool);
        stack.udp_send_bytes(0, udp, b"who?", &writer, &Envelope::CONNECTED).unwrap();
        while let Some(now) = stack.deadline().filter(|at| *at < SECOND) {
            stack.advance(now);
        }
        assert_eq!(stack.udp_take_error(udp), Some(udp::Error::Refused));
        stack.tcp_close(0, listener);
    }
    assert_eq!(stack.transmit().map(|packet| packet.len()), None, "nothing leaves");
}
