//! Packets in and out: whatever way their bytes lie, and whatever the link does for itself.

mod net;

use net::*;
use onecopy_chain::{Chain, Checksum, Fragment};
use onecopy_inet::ip::{
    BadConfig, Cidr, Config, Input, Interface, NotSent, Outgoing, Reason, Route, Trouble,
};
use onecopy_inet::wire::icmp::Unreachable;
use onecopy_inet::wire::{Icmp, Ip, Ipv4, Mac, Protocol, Tcp, Udp, checksum};
use onecopy_link::pair::Path;
use onecopy_link::{Capabilities, Gso, Medium, Packet, Train};
use onecopy_pool::provider::Opaque;
use onecopy_pool::{DeviceId, PagePool, PoolConfig};
use std::net::{Ipv4Addr, Ipv6Addr};

const BOTH: [Medium; 2] = [Medium::Ethernet, Medium::Ip];

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn whoever_is_asked_answers_with_what_he_was_sent() {
    for medium in BOTH {
        for whole in [true, false] {
            for capabilities in [Capabilities::all(medium, 1500), Capabilities::none(medium, 1500)] {
                let mut net = Net::new(capabilities, Path::new().whole(whole));
                for seq in 0..3 {
                    let (now, about) = (net.now(), Outgoing::new(A, B, Protocol::ICMP));
                    let question = Packet::from(chain(&bytes(1000)));
                    net.a.ip.ping(now, &about, (77, seq), question).unwrap();
                    net.run_for(SECOND);
                }
                let answers: Vec<_> =
                    (0..3).map(|seq| (Input::Echo { from: B.into(), id: 77, seq }, bytes(1000))).collect();
                assert_eq!(net.a.came, answers);
                assert_eq!((net.b.ip.stats().echoes, net.b.ip.stats().icmp), (3, 3));
                assert_balanced(net.a.ip.stats());
                assert_balanced(net.b.ip.stats());
            }
        }
    }
}

/// A segment for A, whole, right.
fn right(medium: Medium, payload: &[u8]) -> Vec<u8> {
    let mut packet = segment(B, A, 5, payload);
    packet.finish().unwrap();
    whole(medium, B, Protocol::TCP, &packet.to_vec().unwrap())
}

#[test]
fn it_is_the_same_packet_whatever_way_its_bytes_lie() {
    for medium in BOTH {
        for (payload, padding) in [(0, 0), (0, 6), (1, 5), (60, 0), (30, 7), (300, 0), (300, 9), (1460, 0)] {
            let payload = bytes(payload);
            let whole = right(medium, &payload);
            let frame = [&whole[..], &[0xee; 9][..padding]].concat();
            let mut moved = 0;
            for at in 0..=frame.len().min(128) {
                let mut ip = interface(medium);
                let mut packet = Packet::new(&frame[..at], chain(&frame[at..])).unwrap();
                let input = ip.input(0, &mut packet);
                assert!(
                    matches!(input, Input::Tcp(Ip::V4(Ipv4 { from: B, to: A, .. }))),
                    "{at}: {:?}",
                    ip.stats()
                );
                assert_eq!(packet.head().len(), Tcp::LEN, "{at}");
                assert_eq!(Tcp::parse(packet.head()).unwrap().0.seq.0, 5);
                assert_eq!(packet.to_vec().unwrap()[Tcp::LEN..], payload, "{at}");
                assert_eq!(ip.stats().tcp, 1);
                moved += usize::from(ip.stats().moved == 0);
            }
            assert!(moved >= 1, "a packet that lies as it should costs nothing");
        }
    }
}

/// Has one that a packet has left to B, of which the next one is believed to be.
fn used(mut ip: Interface) -> Interface {
    ip.output(0, &Outgoing::new(A, B, Protocol::TCP), segment(A, B, 1, b"before")).unwrap();
    while ip.transmit().is_some() {}
    ip
}

#[test]
fn what_is_wrong_with_a_packet_is_counted_as_that() {
    let with = |at: usize, value: u8| {
        let mut packet = right(Medium::Ip, b"payload");
        packet[at] = value;
        // IP's checksum is made right again.
        packet[10..12].fill(0);
        let sum = onecopy_chain::Sum::of(&packet[..20]).checksum();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet
    };
    let from = |address: [u8; 4]| whole(Medium::Ip, address.into(), Protocol::TCP, &[0; 20]);
    let good = right(Medium::Ip, b"payload");
    let mut damaged = good.clone();
    damaged[8] ^= 1;
    let udp = |len: u8| whole(Medium::Ip, B, Protocol::UDP, &[0, 1, 0, 2, 0, len, 0, 0]);
    for (packet, reason) in [
        (good[..19].to_vec(), Reason::Short),
        (vec![], Reason::Short),
        ([&[0x4f], &good[1..40]].concat(), Reason::Short),
        (damaged, Reason::HeaderChecksum),
        (with(0, 0x75), Reason::Version),
        (with(0, 0x44), Reason::Header),
        (with(3, 19), Reason::Header),
        (with(3, 255), Reason::Truncated),
        (with(6, 0x20), Reason::Fragment),
        (with(19, 9), Reason::OtherHost),
        (with(16, 224), Reason::OtherHost),
        (with(19, 255), Reason::Broadcast),
        (from([224, 0, 0, 1]), Reason::Martian),
        (from([127, 0, 0, 1]), Reason::Martian),
        (from([0, 0, 0, 0]), Reason::Martian),
        (from([255, 255, 255, 255]), Reason::Martian),
        (from([10, 0, 0, 255]), Reason::Martian),
        (from([10, 0, 0, 1]), Reason::Martian),
        (with(9, 132), Reason::Protocol),
        (with(26, 9), Reason::Checksum),
        (with(46, 9), Reason::Checksum),
        (with(32, 0x40), Reason::Transport),
        (with(32, 0xf0), Reason::Transport),
        (whole(Medium::Ip, B, Protocol::TCP, &[0; 19]), Reason::Transport),
        (udp(7), Reason::Transport),
        (udp(9), Reason::Transport),
        (whole(Medium::Ip, B, Protocol::ICMP, &[8, 0, 0, 0, 0, 0, 0]), Reason::IcmpMalformed),
        (whole(Medium::Ip, B, Protocol::ICMP, &[8, 0, 0, 0, 0, 0, 0, 0]), Reason::Checksum),
        (whole(Medium::Ip, B, Protocol::ICMP, &[13, 0, 0xf2, 0xff, 0, 0, 0, 0]), Reason::IcmpIgnored),
        (whole(Medium::Ip, B, Protocol::ICMP, &[11, 0, 0xf4, 0xff, 0, 0, 0, 0]), Reason::IcmpMalformed),
    ] {
        for mut ip in [interface(Medium::Ip), used(interface(Medium::Ip))] {
            let mut came = Packet::from(chain(&packet));
            assert_eq!(ip.input(0, &mut came), Input::Done, "{reason:?}");
            assert_eq!(ip.stats().drops().filter(|drop| !drop.0.is_out()).collect::<Vec<_>>(), [(reason, 1)]);
            assert_balanced(ip.stats());
        }
    }
    // Without a checksum there is none to be wrong, and it may be to all.
    let mut ip = interface(Medium::Ip);
    assert!(matches!(ip.input(0, &mut Packet::from(chain(&udp(8)))), Input::Udp(_)));
}

#[test]
fn a_frame_for_all_carries_nothing_for_one() {
    let mut frame = right(Medium::Ethernet, b"payload");
    frame[..6].fill(0xff);
    for mut ip in [interface(Medium::Ethernet), used(interface(Medium::Ethernet))] {
        ip.input(0, &mut Packet::new(&frame, Chain::new()).unwrap());
        assert_eq!(ip.stats().dropped(Reason::Broadcast), 1);
    }
}

#[test]
fn a_port_that_nobody_has_is_complained_of_to_who_sent_there() {
    for medium in BOTH {
        let mut net = Net::new(Capabilities::all(medium, 1500), Path::new());
        let now = net.now();
        let mut packet = Packet::from(chain(b"anybody?"));
        let udp = Udp { from: 999, to: 53, payload_len: 8 };
        udp.write(packet.head_mut(), checksum::pseudo_v4(A, B, Protocol::UDP, 16)).unwrap();
        checksum::leave_unfinished(&mut packet, 0, Udp::CHECKSUM).unwrap();
        net.a.ip.output(now, &Outgoing::new(A, B, Protocol::UDP), packet).unwrap();
        net.run_for(SECOND);
        let Input::Udp(ip) = net.b.came[0].0 else { panic!("{:?}", net.b.came) };
        let packet = net.b.packets.remove(0);
        assert!(net.b.ip.complain(net.wire.now(), &ip, packet, Unreachable::PORT));
        net.run_for(SECOND);
        let [(Input::Complaint(complaint), _)] = &net.a.came[..] else { panic!("{:?}", net.a.came) };
        assert_eq!(complaint.trouble, Trouble::Unreachable(Unreachable::PORT));
        assert_eq!(complaint.protocol, Protocol::UDP);
        assert_eq!(
            (complaint.local, complaint.remote),
            (std::net::SocketAddr::new(A.into(), 999), std::net::SocketAddr::new(B.into(), 53))
        );
    }
}

/// An ICMP message for A, about a segment of `from`.
fn about(icmp: Icmp, from: Ipv4Addr, protocol: Protocol) -> Vec<u8> {
    let mut packet = Packet::default();
    let tcp = segment(from, B, 4711, b"").to_vec().unwrap();
    packet.head_mut().push(8).unwrap().copy_from_slice(&tcp[..8]);
    let ip = Ipv4 {
        from,
        to: B,
        protocol,
        ttl: 3,
        service: 0,
        id: 0,
        dont_fragment: true,
        more_fragments: false,
        offset: 0,
        payload_len: 1480,
        options_len: 0,
    };
    ip.write(packet.head_mut()).unwrap();
    icmp.write(packet.head_mut()).unwrap();
    checksum::leave_unfinished(&mut packet, 0, Icmp::CHECKSUM).unwrap();
    packet.finish().unwrap();
    whole(Medium::Ip, Ipv4Addr::new(192, 0, 2, 1), Protocol::ICMP, &packet.to_vec().unwrap())
}

#[test]
fn complaints_say_whose_packet_it_was() {
    let unreachable = |code, mtu| Icmp::Unreachable { code, mtu };
    for (icmp, trouble) in [
        (unreachable(Unreachable::HOST, 0), Trouble::Unreachable(Unreachable::HOST)),
        (unreachable(Unreachable::TOO_LONG, 1400), Trouble::TooLong { mtu: 1400 }),
        (unreachable(Unreachable::TOO_LONG, 0), Trouble::TooLong { mtu: 1492 }),
        (Icmp::TimeExceeded { code: 1 }, Trouble::TimeExceeded(1)),
        (Icmp::ParameterProblem { code: 0, pointer: 9 }, Trouble::Parameter(0)),
        (Icmp::Other { kind: 3, code: 4, rest: [7, 7, 5, 0] }, Trouble::TooLong { mtu: 1280 }),
        (Icmp::Other { kind: 11, code: 0, rest: [7; 4] }, Trouble::TimeExceeded(0)),
    ] {
        for at in [0, 20, 28, 56] {
            let packet = about(icmp, A, Protocol::TCP);
            let mut ip = interface(Medium::Ip);
            let mut packet = Packet::new(&packet[..at], chain(&packet[at..])).unwrap();
            let Input::Complaint(complaint) = ip.input(0, &mut packet) else {
                panic!("{icmp:?} {at} {:?}", ip.stats())
            };
            assert_eq!((complaint.trouble, complaint.protocol), (trouble, Protocol::TCP));
            assert_eq!(complaint.local, std::net::SocketAddr::new(A.into(), 4000));
            assert_eq!(complaint.remote, std::net::SocketAddr::new(B.into(), 80));
            assert_eq!(complaint.seq.0, 4711);
        }
    }
    let host = unreachable(Unreachable::HOST, 0);
    for (packet, reason) in [
        (about(host, Ipv4Addr::new(10, 0, 0, 9), Protocol::TCP), Reason::IcmpForeign),
        (about(host, A, Protocol::ICMP), Reason::IcmpForeign),
        (about(Icmp::Other { kind: 5, code: 0, rest: [0; 4] }, A, Protocol::TCP), Reason::IcmpIgnored),
        (about(Icmp::Other { kind: 4, code: 0, rest: [0; 4] }, A, Protocol::TCP), Reason::IcmpIgnored),
    ] {
        let mut ip = interface(Medium::Ip);
        assert_eq!(ip.input(0, &mut Packet::from(chain(&packet))), Input::Done);
        assert_eq!(ip.stats().dropped(reason), 1, "{:?}", ip.stats());
    }
}

#[test]
fn floods_are_answered_now_and_then() {
    let mut ip = interface(Medium::Ip);
    let mut question = Packet::default();
    Icmp::Echo { id: 1, seq: 1 }.write(question.head_mut()).unwrap();
    checksum::leave_unfinished(&mut question, 0, Icmp::CHECKSUM).unwrap();
    question.finish().unwrap();
    let question = whole(Medium::Ip, B, Protocol::ICMP, question.head());
    let unknown = whole(Medium::Ip, B, Protocol(132), b"12345678");
    for _ in 0..3000 {
        for bytes in [&question, &unknown] {
            ip.input(0, &mut Packet::new(bytes, Chain::new()).unwrap());
            while ip.transmit().is_some() {}
        }
    }
    let stats = ip.stats();
    assert_eq!((stats.echoes, stats.dropped(Reason::IcmpTooMany)), (1000, 2000));
    assert_eq!((stats.complaints, stats.dropped(Reason::Protocol)), (50, 3000));
    assert_balanced(stats);
    ip.input(SECOND / 1000, &mut Packet::new(&unknown, Chain::new()).unwrap());
    assert_eq!(ip.stats().complaints, 51, "and again later");
}

#[test]
fn what_the_link_does_not_do_is_done_before() {
    let payload = bytes(10_300);
    for medium in BOTH {
        for (tcp, checksums) in [(true, true), (false, true), (false, false)] {
            let mut capabilities = Capabilities::all(medium, 1500);
            (capabilities.tcp_segmentation, capabilities.checksum) = (tcp, checksums);
            let mut net = Net::new(capabilities, Path::new());
            for _ in 0..2 {
                let mut packet = segment(A, B, 100, &payload);
                packet.set_gso(Some(Gso { train: Train::Tcp, size: 1000, network: 0 }));
                let now = net.now();
                net.a.ip.output(now, &Outgoing::new(A, B, Protocol::TCP), packet).unwrap();
                net.run_for(SECOND);
            }
            let numbers = sequence(&net.b.came);
            let parts: Vec<u32> = (0..11).map(|part| 100 + part * 1000).collect();
            assert_eq!(numbers, if tcp { vec![100, 100] } else { [parts.clone(), parts].concat() });
            let came: Vec<u8> =
                net.b.came.iter().flat_map(|(_, bytes)| &bytes[Tcp::LEN..]).copied().collect();
            assert_eq!(came, [&payload[..], &payload].concat());
            let stats = net.a.ip.stats();
            assert_eq!(
                (stats.cut, stats.finished),
                (if tcp { 0 } else { 2 }, if checksums { 0 } else { 22 })
            );
            assert_eq!(stats.dropped_out(), 0);
            assert_eq!(net.b.ip.stats().tcp, if tcp { 2 } else { 22 });
            let gso = net.b.packets[0].gso();
            assert_eq!(gso.map(|gso| gso.size), tcp.then_some(1000));
        }
    }
}

#[test]
fn a_cut_packets_numbers_differ() {
    let mut ip = Interface::new(config(Capabilities::none(Medium::Ip, 1500), MAC_A, A)).unwrap();
    let mut ids = |dont_fragment, id| {
        let mut packet = segment(A, B, 1, &bytes(3000));
        packet.set_gso(Some(Gso { train: Train::Tcp, size: 1000, network: 0 }));
        let about = Outgoing { dont_fragment, id, ..Outgoing::new(A, B, Protocol::TCP) };
        ip.output(0, &about, packet).unwrap();
        let next = || ip.transmit().map(|packet| Ipv4::parse(packet.head()).unwrap().0.id);
        std::iter::from_fn(next).collect::<Vec<_>>()
    };
    let first = ids(false, None)[0];
    assert_eq!(ids(false, None), [3, 4, 5].map(|more| first.wrapping_add(more)));
    assert_eq!(ids(true, None), [0, 1, 2]);
    assert_eq!(ids(true, Some(9)), [9, 10, 11]);
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let far = Ipv4Addr::new(192, 0, 2, 1);
    let one = |to, len: usize, about: &dyn Fn(Outgoing) -> Outgoing| {
        let mut capabilities = Capabilities::none(Medium::Ethernet, 1500);
        capabilities.fragments = 2;
        let ip = || Interface::new(config(capabilities, MAC_A, A)).unwrap();
        let [fresh, later] = [ip(), used(ip())].map(|mut ip| {
            let outgoing = about(Outgoing::new(A, to, Protocol::TCP));
            let sent = ip.output(0, &outgoing, segment(A, to, 1, &bytes(len)));
            let stats = ip.stats();
            assert_eq!(stats.dropped_out(), u64::from(sent.is_err()), "{stats:?}");
            sent.map_err(|NotSent(reason)| reason)
        });
        assert_eq!(fresh, later, "whatever was sent before");
        fresh
    };
    let as_it_is = |about| about;
    assert_eq!(one(B, 1460, &as_it_is), Ok(()));
    assert_eq!(one(B, 1461, &as_it_is), Err(Reason::TooLong));
    assert_eq!(one(B, 66_000, &as_it_is), Err(Reason::TooLong));
    assert_eq!(one(far, 1, &as_it_is), Err(Reason::NoRoute));
    assert_eq!(one(A, 65_495, &as_it_is), Ok(()), "to itself, whatever the link takes");
    assert_eq!(one(A, 65_496, &as_it_is), Err(Reason::TooLong));
    assert_eq!(one(Ipv4Addr::new(10, 0, 0, 255), 1, &as_it_is), Err(Reason::BadAddress));
    assert_eq!(one(Ipv4Addr::new(224, 0, 0, 1), 1, &as_it_is), Err(Reason::BadAddress));
    assert_eq!(one(B, 1, &|about| Outgoing { from: B.into(), ..about }), Err(Reason::BadAddress));

    // A device's memory goes where the link takes it, and finishes checksums of it; nowhere else.
    let pool = PagePool::new(PoolConfig::new().limit(4), Opaque::new(DeviceId(1))).unwrap();
    for (unreadable, checksums, refused) in [
        (true, true, None),
        (true, false, Some(Reason::DeviceMemory)),
        (false, true, Some(Reason::DeviceMemory)),
    ] {
        let mut capabilities = Capabilities::all(Medium::Ip, 1500);
        (capabilities.unreadable, capabilities.checksum) = (unreadable, checksums);
        let mut ip = Interface::new(config(capabilities, MAC_A, A)).unwrap();
        let mut packet = segment(A, B, 1, b"");
        let fragment = Fragment::new(pool.alloc().unwrap(), 0, 100).unwrap();
        packet.payload_mut().payload_mut().append(fragment).unwrap();
        let sent = ip.output(0, &Outgoing::new(A, B, Protocol::TCP), packet);
        assert_eq!(sent.err(), refused.map(NotSent));
        assert_eq!(ip.transmit().is_some(), refused.is_none());
    }
}

#[test]
fn what_waits_to_leave_is_bounded() {
    for medium in BOTH {
        let mut settings = config(Capabilities::all(medium, 1500), MAC_A, A);
        settings.queue = 10;
        let mut ip = Interface::new(settings).unwrap();
        for seq in 0..30 {
            let broadcast = Ipv4Addr::new(10, 0, 0, 255);
            let mut packet = Packet::default();
            let udp = Udp { from: seq, to: 1, payload_len: 0 };
            udp.write(packet.head_mut(), checksum::pseudo_v4(A, broadcast, Protocol::UDP, 8)).unwrap();
            checksum::leave_unfinished(&mut packet, 0, Udp::CHECKSUM).unwrap();
            let sent = ip.output(0, &Outgoing::new(A, broadcast, Protocol::UDP), packet);
            assert_eq!(sent.is_ok(), seq < 10);
        }
        assert_eq!((ip.room(), ip.stats().dropped(Reason::QueueFull)), (0, 20));
        assert_eq!(std::iter::from_fn(|| ip.transmit()).count(), 10);
    }
}

#[test]
fn an_interface_that_cannot_be_is_refused() {
    let all = Capabilities::all(Medium::Ethernet, 1500);
    let cidr = |address: [u8; 4], prefix| Cidr::new(address, prefix).unwrap();
    let with = |mac, address| Interface::new(Config::new(all, mac, &[address], [0; 16])).err();
    let ours = cidr([10, 0, 0, 1], 24);
    assert_eq!(with(Mac::BROADCAST, ours), Some(BadConfig::Mac(Mac::BROADCAST)));
    for bad in
        [cidr([10, 0, 0, 255], 24), cidr([10, 0, 0, 0], 24), cidr([224, 0, 0, 1], 24), cidr([0, 0, 0, 0], 32)]
    {
        assert_eq!(with(MAC_A, bad), Some(BadConfig::Address(bad)));
    }
    let small = Capabilities::all(Medium::Ethernet, 67);
    assert_eq!(Interface::new(config(small, MAC_A, A)).err(), Some(BadConfig::Mtu(67)));
    let gateway = Ipv4Addr::new(10, 0, 1, 1);
    let lost = Config::new(all, MAC_A, &[ours], [0; 16]).gateway(gateway);
    assert_eq!(Interface::new(lost).err(), Some(BadConfig::Gateway(gateway.into())));
    let to_itself = Config::new(all, MAC_A, &[ours], [0; 16]).gateway(A);
    assert_eq!(Interface::new(to_itself).err(), Some(BadConfig::OwnGateway(A.into())));
    let mut mixed = Config::new(all, MAC_A, &[ours], [0; 16]);
    let (to, gateway) = (Cidr::new(Ipv6Addr::from_bits(0xfd01 << 112), 48).unwrap(), B.into());
    mixed.routes.push(Route { to, gateway: Some(gateway) });
    assert_eq!(Interface::new(mixed).err(), Some(BadConfig::Family { to, gateway }));
    let mut many = Config::new(all, MAC_A, &[ours], [0; 16]);
    many.routes = (0..64).map(|net| Route { to: cidr([172, 16, net, 0], 24), gateway: None }).collect();
    assert_eq!(Interface::new(many).err(), Some(BadConfig::Routes));
}

#[test]
fn of_addresses_on_one_network_the_first_one_speaks() {
    let mut settings = config(Capabilities::all(Medium::Ethernet, 1500), MAC_A, A);
    let more = [([10, 0, 0, 9], 24), ([10, 0, 0, 65], 26), ([10, 0, 0, 66], 26)];
    settings.addresses.extend(more.map(|(own, prefix)| Cidr::new(own, prefix).unwrap()));
    let ip = Interface::new(settings).unwrap();
    assert_eq!(ip.source(B.into()), Some(A.into()));
    assert_eq!(ip.source([10, 0, 0, 70].into()), Some([10, 0, 0, 65].into()), "of the longest prefix");
}

#[test]
fn packets_beyond_our_networks_go_to_the_gateway() {
    let mut settings = config(Capabilities::all(Medium::Ethernet, 1500), MAC_A, A).gateway(B);
    settings.addresses.push(Cidr::new(Ipv4Addr::new(172, 16, 0, 1), 16).unwrap());
    let mut ip = Interface::new(settings).unwrap();
    let far = Ipv4Addr::new(192, 0, 2, 1);
    assert_eq!(ip.source(far.into()), Some(A.into()));
    let near = |a, b| std::net::IpAddr::from([172, 16, a, b]);
    assert_eq!(ip.source(near(9, 9)), Some(near(0, 1)));
    ip.output(0, &Outgoing::new(A, far, Protocol::TCP), segment(A, far, 1, b"")).unwrap();
    let question = ip.transmit().unwrap();
    assert_eq!(question.head()[38..42], B.octets());
    ip.input(0, &mut arp(onecopy_inet::wire::arp::Operation::REPLY, MAC_A, (MAC_B, B), (MAC_A, A)));
    let packet = ip.transmit().unwrap();
    assert_eq!((&packet.head()[..6], &packet.head()[30..34]), (&MAC_B.0[..], &far.octets()[..]));
}

#[test]
fn a_devices_memory_is_handed_up_where_somebody_vouches_for_it() {
    let pool = PagePool::new(PoolConfig::new().limit(4), Opaque::new(DeviceId(1))).unwrap();
    for (in_head, checksum, reason) in [
        (40, Checksum::Verified, None),
        (40, Checksum::Partial { start: 20, offset: 16 }, None),
        (40, Checksum::None, Some(Reason::Unreadable)),
        (39, Checksum::Verified, Some(Reason::Unreadable)),
        (41, Checksum::Verified, Some(Reason::Unreadable)),
    ] {
        let whole = right(Medium::Ip, &bytes(100));
        let fragment = Fragment::new(pool.alloc().unwrap(), 0, whole.len() - in_head).unwrap();
        let mut payload = Chain::new();
        payload.append(fragment).unwrap();
        let mut packet = Packet::new(&whole[..in_head], payload).unwrap();
        packet.set_checksum(checksum).unwrap();
        let mut ip = interface(Medium::Ip);
        let input = ip.input(0, &mut packet);
        assert_eq!(matches!(input, Input::Tcp(_)), reason.is_none(), "{:?}", ip.stats());
        if let Some(reason) = reason {
            assert_eq!(ip.stats().dropped(reason), 1, "{:?}", ip.stats());
        }
    }
}

#[test]
fn of_a_super_segment_all_leaves_or_nothing() {
    let mut capabilities = Capabilities::none(Medium::Ip, 1500);
    capabilities.fragments = 1;
    let mut ip = Interface::new(config(capabilities, MAC_A, A)).unwrap();
    // Pages have 4096 bytes: the fifth part lies on two of them.
    for (len, done) in [(4000, Ok(())), (5000, Err(NotSent(Reason::Fragments)))] {
        let mut packet = segment(A, B, 1, &bytes(len));
        packet.set_gso(Some(Gso { train: Train::Tcp, size: 1000, network: 0 }));
        assert_eq!(ip.output(0, &Outgoing::new(A, B, Protocol::TCP), packet), done);
        let left = std::iter::from_fn(|| ip.transmit()).count();
        assert_eq!(left, if done.is_ok() { 4 } else { 0 });
    }
    assert_eq!((ip.stats().cut, ip.stats().finished, ip.stats().dropped_out()), (1, 4, 1));
}
