//! Lines of packets: what they say, and that whatever bytes come, there is one.

use onecopy_chain::{Chain, Fragment, Kind, Sum, Writer};
use onecopy_inet::trace::{Last, Printer, Seen, Trace, Tracer, Watch, Way};
use onecopy_inet::wire::arp::Operation;
use onecopy_inet::wire::icmp::Unreachable;
use onecopy_inet::wire::tcp::{Cookie, Timestamps};
use onecopy_inet::wire::*;
use onecopy_link::pair::{Pair, PairConfig};
use onecopy_link::{Gso, Head, Link, Medium, Packet, Sink, Train};
use onecopy_pool::provider::{Heap, Opaque};
use onecopy_pool::{DeviceId, PagePool, PoolConfig};
use proptest::prelude::*;
use std::io;
use std::net::Ipv4Addr;

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const CLIENT: u16 = 4711;
const SERVER: u16 = 80;
/// Where the client's numbers begin: they wrap.
const ISN: u32 = u32::MAX - 2;

fn chain(bytes: &[u8]) -> Chain {
    thread_local!(static POOL: PagePool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap());
    let mut chain = Chain::new();
    POOL.with(|pool| Writer::new(pool).append(&mut chain, bytes)).unwrap();
    chain
}

fn header(protocol: Protocol, len: usize) -> Ipv4 {
    Ipv4 {
        from: A,
        to: B,
        protocol,
        ttl: 64,
        service: 0,
        id: 7,
        dont_fragment: true,
        more_fragments: false,
        offset: 0,
        payload_len: len.min(65515) as u16,
        options_len: 0,
    }
}

/// Behind IP's header: one of `protocol`, from A to B.
fn ip(protocol: Protocol, transport: &Head, payload: &[u8]) -> Packet {
    of(header(protocol, transport.len() + payload.len()), transport, payload)
}

fn of(ip: Ipv4, transport: &Head, payload: &[u8]) -> Packet {
    let mut packet = Packet::new(transport, chain(payload)).unwrap();
    ip.write(packet.head_mut()).unwrap();
    packet
}

fn tcp_head(tcp: &Tcp) -> Head {
    let mut head = Head::new();
    tcp.write(&mut head, Sum::ZERO).unwrap();
    head
}

fn client(flags: Flags, seq: u32, ack: u32) -> Tcp {
    let (seq, ack) = (Seq(ISN).plus(seq), Seq(9000).plus(ack));
    Tcp { from: CLIENT, to: SERVER, seq, ack, flags, window: 229, ..Tcp::default() }
}

fn server(flags: Flags, seq: u32, ack: u32) -> Tcp {
    let Tcp { seq, ack, .. } = client(flags, ack, seq);
    Tcp { from: SERVER, to: CLIENT, seq: ack, ack: seq, flags, window: 1000, ..Tcp::default() }
}

/// A segment the way it goes: the server's from B to A.
fn segment(tcp: Tcp, payload: &[u8]) -> Packet {
    let head = tcp_head(&tcp);
    let mut ip = header(Protocol::TCP, head.len() + payload.len());
    if tcp.from == SERVER {
        (ip.from, ip.to) = (B, A);
    }
    of(ip, &head, payload)
}

/// What is said of one that a client transmits at 12.345678 s, behind the way.
fn said(tracer: &mut Tracer, packet: &Packet) -> String {
    let line = tracer.line(&Seen::of(12_345_678_999, Way::Out, Medium::Ip, packet));
    line.strip_prefix("12.345678 > ").unwrap_or(&line).to_owned()
}

const ENDS: &str = "10.0.0.1.4711 > 10.0.0.2.80: ";
const BACK: &str = "10.0.0.2.80 > 10.0.0.1.4711: ";

#[test]
fn a_line_is_this_line() {
    let stamps = Some(Timestamps { value: 1, echo: 2 });
    let mut tcp = client(Flags::PSH | Flags::ACK, 1, 1);
    tcp.options.timestamps = stamps;
    let seen = Seen::of(12_345_678_999, Way::Out, Medium::Ip, &segment(tcp, &[1; 1460]));
    assert_eq!((seen.at_ns(), seen.way(), seen.packet_len()), (12_345_678_999, Way::Out, 1512));
    assert_eq!(
        Tracer::new().line(&seen),
        "12.345678 > 10.0.0.1.4711 > 10.0.0.2.80: P. 1:1461(1460) ack 1 win 229 <nop,nop,TS val 1 ecr 2>"
    );
    assert_eq!(
        Tracer::absolute().line(&seen),
        "12.345678 > 10.0.0.1.4711 > 10.0.0.2.80: P. 4294967294:1458(1460) ack 9001 win 229 <nop,nop,TS val 1 ecr 2>"
    );
    // The same behind Ethernet's header, with padding behind it, and received.
    let mut packet = segment(tcp, &[1; 10]);
    let mac = Mac([2, 0, 0, 0, 0, 1]);
    Ethernet { to: mac, from: mac, kind: EtherType::IPV4 }.write(packet.head_mut()).unwrap();
    packet.payload_mut().payload_mut().concat(&mut chain(&[0; 6])).unwrap();
    let seen = Seen::of(999, Way::In, Medium::Ethernet, &packet);
    let line = Tracer::new().line(&seen);
    assert_eq!(line, format!("0.000000 < {ENDS}P. 1:11(10) ack 1 win 229 <nop,nop,TS val 1 ecr 2>"));
}

#[test]
fn numbers_count_from_the_syn() {
    let mut tracer = Tracer::new();
    let mut say = |tcp: Tcp, len: usize| said(&mut tracer, &segment(tcp, &vec![1; len]));
    let mut syn = client(Flags::SYN, 0, 0);
    syn.options = Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 100, echo: 0 }),
        fast_open: Some(Cookie::new(&[0xab; 4]).unwrap()),
        ..Options::default()
    };
    let options = "<mss 1460,sackOK,TS val 100 ecr 0,nop,wscale 7,FO abababab,nop,nop>";
    assert_eq!(say(syn, 0), format!("{ENDS}S 0:0(0) win 229 {options}"));
    assert_eq!(say(server(Flags::SYN | Flags::ACK, 0, 1), 0), format!("{BACK}S. 0:0(0) ack 1 win 1000"));
    assert_eq!(say(client(Flags::ACK, 1, 1), 1000), format!("{ENDS}. 1:1001(1000) ack 1 win 229"));
    // What is out of order is counted as the other one counts it.
    let mut sack = server(Flags::ACK, 1, 1);
    sack.options.sack.push(Seq(ISN).plus(1001), Seq(ISN).plus(2001));
    sack.options.sack.push(Seq(ISN).plus(3001), Seq(ISN).plus(3002));
    assert_eq!(say(sack, 0), format!("{BACK}. 1:1(0) ack 1 win 1000 <nop,nop,sack 1001:2001 3001:3002>"));
    let all = Flags::all() - Flags::SYN;
    let last = Tcp { urgent: 3, ..client(all, 1001, 5) };
    assert_eq!(say(last, 0), format!("{ENDS}FRP.UEWA 1001:1001(0) ack 5 win 229 urg 3"));
    assert_eq!(say(client(Flags::empty(), 1001, 5), 0), format!("{ENDS}- 1001:1001(0) win 229"));
    // The same ports once more: both ends begin anew, also where the server's SYN is not seen.
    let again = Tcp { seq: Seq(5), ..client(Flags::SYN, 0, 0) };
    assert_eq!(say(again, 0), format!("{ENDS}S 0:0(0) win 229"));
    let third = Tcp { seq: Seq(6), ack: Seq(50_001), ..client(Flags::ACK, 0, 0) };
    assert_eq!(say(third, 0), format!("{ENDS}. 1:1(0) ack 1 win 229"));
    let repeated = Tcp { seq: Seq(5), ..client(Flags::SYN, 0, 0) };
    assert_eq!(say(repeated, 0), format!("{ENDS}S 0:0(0) win 229"));
    let fourth = Tcp { ack: Seq(50_101), ..third };
    assert_eq!(say(fourth, 0), format!("{ENDS}. 1:1(0) ack 101 win 229"), "that was the same SYN");
}

#[test]
fn both_ends_may_begin_at_once_and_a_reset_teaches_nothing() {
    let mut tracer = Tracer::new();
    let mut say = |tcp: Tcp| said(&mut tracer, &segment(tcp, &[]));
    // Nobody knows this one: its number is 0 in truth, and its SYN's is known.
    assert_eq!(say(client(Flags::SYN, 0, 0)), format!("{ENDS}S 0:0(0) win 229"));
    let reset = Tcp { seq: Seq(0), ..server(Flags::RST | Flags::ACK, 0, 1) };
    assert_eq!(say(reset), format!("{BACK}R. 0:0(0) ack 1 win 1000"));
    assert_eq!(say(server(Flags::SYN, 0, 0)), format!("{BACK}S 0:0(0) win 1000"));
    assert_eq!(say(client(Flags::SYN | Flags::ACK, 0, 1)), format!("{ENDS}S. 0:0(0) ack 1 win 229"));
    assert_eq!(say(server(Flags::ACK, 1, 1)), format!("{BACK}. 1:1(0) ack 1 win 1000"));
    assert_eq!(say(client(Flags::ACK, 0, 1)), format!("{ENDS}. 0:0(0) ack 1 win 229"), "a keep-alive's");
}

#[test]
fn options_are_told_as_they_lie() {
    let raw = |options: &[u8]| {
        let mut bytes = tcp_head(&client(Flags::ACK, 1, 1)).to_vec();
        bytes[12] = ((20 + options.len()) as u8 / 4) << 4;
        bytes.extend(options);
        let packet = ip(Protocol::TCP, &Head::of(&bytes).unwrap(), b"x");
        let line = said(&mut Tracer::new(), &packet);
        let start = format!("{ENDS}. 1:2(1) ack 1 win 229 ");
        line.strip_prefix(&start).unwrap_or(&line).to_owned()
    };
    for (options, told) in [
        (&[1, 3, 3, 7][..], "<nop,wscale 7>"),
        (&[0, 3, 3, 7], "<eol>"),
        (&[4, 2, 1, 1], "<sackOK,nop,nop>"),
        (&[2, 4, 0, 9, 2, 4, 1, 0], "<mss 9,mss 256>"),
        (&[28, 4, 0x00, 30], "<uto 30 s>"),
        (&[28, 4, 0x80, 30], "<uto 30 min>"),
        (&[34, 2, 1, 1], "<FO,nop,nop>"),
        (&[254, 8, 0xf9, 0x89, 1, 2, 3, 4], "<FOEXP 01020304>"),
        (&[254, 4, 0xf9, 0x88], "<unknown-254 0xf988>"),
        (&[30, 2, 30, 2], "<unknown-30,unknown-30>"),
        // Of a length that is not theirs, or that cannot be.
        (&[2, 3, 9, 1], "<unknown-2 0x09,nop>"),
        (&[5, 4, 1, 2], "<unknown-5 0x0102>"),
        (&[1, 1, 1, 8], "<nop,nop,nop,[bad opt]>"),
        (&[8, 1, 1, 1], "<[bad opt]>"),
        (&[8, 10, 1, 1], "<[bad opt]>"),
    ] {
        assert_eq!(raw(options), told, "{options:?}");
    }
}

#[test]
fn what_the_bytes_do_not_say_stands_behind() {
    let mut tracer = Tracer::new();
    let mut data = client(Flags::ACK, 1, 1);
    let mut packet = segment(data, &vec![1; 100_000]);
    packet.set_gso(Some(Gso { train: Train::Tcp, size: 1460, network: 0 }));
    let line = format!("{ENDS}. 1:100001(100000) ack 1 win 229 (gso 1460)");
    assert_eq!(said(&mut tracer, &packet), line);
    // A device's memory, in a packet that was marked.
    let gpu = PagePool::new(PoolConfig::new(), Opaque::new(DeviceId(1))).unwrap();
    let device = Chain::from(Fragment::new(gpu.alloc().unwrap(), 0, 1000).unwrap());
    data.options.timestamps = Some(Timestamps { value: 3, echo: 4 });
    for (service, mark) in [(1, "[ect1] "), (2, "[ect0] "), (3, "[ce] "), (0, "")] {
        let mut packet = Packet::new(&tcp_head(&data), device.share()).unwrap();
        Ipv4 { service, ..header(Protocol::TCP, 1032) }.write(packet.head_mut()).unwrap();
        let line = format!("{ENDS}{mark}. 1:1001(1000) ack 1 win 229 <nop,nop,TS val 3 ecr 4> (unreadable)");
        assert_eq!(said(&mut tracer, &packet), line);
    }
    // Headers that lie in the payload; one that was damaged; one that was cut.
    let whole = segment(client(Flags::ACK, 1, 1), b"abc").to_vec().unwrap();
    let line = format!("{ENDS}. 1:4(3) ack 1 win 229");
    assert_eq!(said(&mut tracer, &Packet::new(&[], chain(&whole)).unwrap()), line);
    assert_eq!(said(&mut tracer, &Packet::new(&whole[..17], chain(&whole[17..])).unwrap()), line);
    let mut damaged = whole.clone();
    damaged[8] ^= 1;
    let packet = Packet::new(&damaged, Chain::new()).unwrap();
    assert_eq!(said(&mut tracer, &packet), format!("{line} (bad ip checksum)"));
    let cut = |len: usize| Packet::new(&whole[..len], Chain::new()).unwrap();
    assert_eq!(said(&mut tracer, &cut(42)), format!("{line} (1 bytes missing)"));
    let short = "10.0.0.1 > 10.0.0.2: [|tcp], length 23 (4 bytes missing)";
    assert_eq!(said(&mut tracer, &cut(39)), short);
    assert_eq!(said(&mut tracer, &cut(19)), "IP, [|ip], length 19");
    assert_eq!(said(&mut tracer, &cut(0)), "[|ip]");
    let bytes = |bytes: &[u8]| Packet::new(bytes, Chain::new()).unwrap();
    assert_eq!(said(&mut tracer, &bytes(&[0x44; 30])), "IP, [bad ip length], length 30");
    assert_eq!(said(&mut tracer, &bytes(&[0x60; 39])), "IP6, [|ip6], length 39");
    assert_eq!(said(&mut tracer, &bytes(&[0xf0; 40])), "IP version 15, length 40");
    // What IP's header does not count is the link's, also where it looks like a header.
    let mut counted = header(Protocol::TCP, 19);
    let packet = of(counted, &tcp_head(&client(Flags::ACK, 1, 1)), b"abc");
    assert_eq!(said(&mut tracer, &packet), "10.0.0.1 > 10.0.0.2: [|tcp], length 19");
    counted.payload_len = 20;
    let packet = of(counted, &tcp_head(&client(Flags::all(), 1, 1)), b"abc");
    let all = "FSRP.UEWA 4294967294:4294967294(0) ack 9001 win 229 urg 0";
    assert_eq!(said(&mut Tracer::absolute(), &packet), format!("{ENDS}{all}"));
    // Fragments: the first has a header, the others have none.
    let mut first = header(Protocol::TCP, 23);
    (first.more_fragments, first.dont_fragment) = (true, false);
    let packet = of(first, &tcp_head(&client(Flags::ACK, 1, 1)), b"abc");
    assert_eq!(said(&mut tracer, &packet), format!("{line} (fragment 23@0+, id 7)"));
    let later = Ipv4 { offset: 24, ..first };
    let packet = of(later, &Head::new(), &[9; 23]);
    let later = "10.0.0.1 > 10.0.0.2: tcp, length 23 (fragment 23@24+, id 7)";
    assert_eq!(said(&mut tracer, &packet), later);
    let packet = of(header(Protocol(132), 3), &Head::new(), b"abc");
    assert_eq!(said(&mut tracer, &packet), "10.0.0.1 > 10.0.0.2: ip-proto-132, length 3");
}

#[test]
fn datagrams_are_told_as_tcpdump_tells_them() {
    let mut tracer = Tracer::new();
    let udp = |payload_len: u16| {
        let mut head = Head::new();
        Udp { from: 53, to: 4711, payload_len }.write(&mut head, Sum::ZERO).unwrap();
        head
    };
    let ends = "10.0.0.1.53 > 10.0.0.2.4711: UDP, length";
    let mut packet = ip(Protocol::UDP, &udp(100), &[1; 100]);
    assert_eq!(said(&mut tracer, &packet), format!("{ends} 100"));
    packet.set_gso(Some(Gso { train: Train::Udp, size: 40, network: 0 }));
    assert_eq!(said(&mut tracer, &packet), format!("{ends} 100 (gso 40)"));
    let packet = ip(Protocol::UDP, &udp(101), &[1; 100]);
    assert_eq!(said(&mut tracer, &packet), format!("{ends} 101 (bad udp length: 100 are there)"));
    let packet = ip(Protocol::UDP, &Head::of(&[0; 7]).unwrap(), &[]);
    assert_eq!(said(&mut tracer, &packet), "10.0.0.1 > 10.0.0.2: [|udp], length 7");
    let packet = ip(Protocol::UDP, &Head::of(&[0; 8]).unwrap(), &[]);
    assert_eq!(said(&mut tracer, &packet), "10.0.0.1 > 10.0.0.2: [bad udp length], length 8");
}

#[test]
fn complaints_say_whose_packet_they_are_about() {
    let mut tracer = Tracer::new();
    said(&mut tracer, &segment(client(Flags::SYN, 0, 0), &[]));
    // What is quoted: a header and 8 bytes.
    let about = |protocol: Protocol, transport: &[u8]| {
        let mut head = Head::of(&transport[..8]).unwrap();
        header(protocol, 1480).write(&mut head).unwrap();
        head.to_vec()
    };
    let tcp = about(Protocol::TCP, &tcp_head(&client(Flags::ACK, 1461, 1)));
    let udp = about(Protocol::UDP, &[0x12, 0x67, 0, 53, 0, 20, 0, 0]);
    let ping = about(Protocol::ICMP, &[8, 0, 0, 0, 0, 1, 0, 2]);
    let mut say = |icmp: Icmp, payload: &[u8]| {
        let mut head = Head::new();
        icmp.write(&mut head).unwrap();
        let line = said(&mut tracer, &ip(Protocol::ICMP, &head, payload));
        line.strip_prefix("10.0.0.1 > 10.0.0.2: ICMP ").unwrap_or(&line).to_owned()
    };
    let unreachable = |code: Unreachable| Icmp::Unreachable { code, mtu: 0 };
    let of_tcp = "[10.0.0.1.4711 > 10.0.0.2.80: tcp seq 1461]";
    let of_udp = "[10.0.0.1.4711 > 10.0.0.2.53: udp]";
    let of_ping = "[10.0.0.1 > 10.0.0.2: icmp]";
    for (icmp, payload, told) in [
        (Icmp::Echo { id: 1, seq: 2 }, &b"hello"[..], "echo request, id 1, seq 2, length 13".into()),
        (Icmp::EchoReply { id: 1, seq: 2 }, &[], "echo reply, id 1, seq 2, length 8".into()),
        (unreachable(Unreachable::NETWORK), &ping, format!("net 10.0.0.2 unreachable, length 36 {of_ping}")),
        (unreachable(Unreachable::HOST), &tcp, format!("host 10.0.0.2 unreachable, length 36 {of_tcp}")),
        (
            unreachable(Unreachable::PROTOCOL),
            &udp,
            format!("10.0.0.2 protocol 17 unreachable, length 36 {of_udp}"),
        ),
        (
            unreachable(Unreachable::PORT),
            &udp,
            format!("10.0.0.2 udp port 53 unreachable, length 36 {of_udp}"),
        ),
        (
            Icmp::Unreachable { code: Unreachable::TOO_LONG, mtu: 1400 },
            &tcp,
            format!("10.0.0.2 unreachable - need to frag (mtu 1400), length 36 {of_tcp}"),
        ),
        (unreachable(Unreachable(13)), &tcp, format!("10.0.0.2 unreachable - code 13, length 36 {of_tcp}")),
        (unreachable(Unreachable::PORT), &udp[..27], "0.0.0.0 unreachable - code 3, length 35".into()),
        (Icmp::TimeExceeded { code: 0 }, &tcp, format!("time exceeded in-transit, length 36 {of_tcp}")),
        (Icmp::TimeExceeded { code: 1 }, &udp, format!("ip reassembly time exceeded, length 36 {of_udp}")),
        (Icmp::TimeExceeded { code: 9 }, &[], "time exceeded, code 9, length 8".into()),
        (
            Icmp::ParameterProblem { code: 0, pointer: 20 },
            &tcp,
            format!("parameter problem - octet 20, code 0, length 36 {of_tcp}"),
        ),
        (Icmp::Other { kind: 13, code: 0, rest: [0; 4] }, &[], "type 13, code 0, length 8".into()),
    ] {
        assert_eq!(say(icmp, payload), told);
    }
    let packet = ip(Protocol::ICMP, &Head::of(&[3; 7]).unwrap(), &[]);
    assert_eq!(said(&mut tracer, &packet), "10.0.0.1 > 10.0.0.2: [|icmp], length 7");
}

#[test]
fn frames_that_carry_no_packet() {
    let mac = Mac([2, 0, 0, 0, 0, 9]);
    let line = |kind: EtherType, what: &dyn Fn(&mut Head)| {
        let mut head = Head::new();
        what(&mut head);
        Ethernet { to: Mac::BROADCAST, from: mac, kind }.write(&mut head).unwrap();
        let packet = Packet::new(&head, Chain::new()).unwrap();
        Tracer::new().line(&Seen::of(0, Way::Out, Medium::Ethernet, &packet))
    };
    let arp = |operation: u16| {
        let arp =
            Arp { operation: Operation(operation), sender_mac: mac, sender: A, target_mac: mac, target: B };
        line(EtherType::ARP, &|head| arp.write(head).unwrap())
    };
    assert_eq!(arp(1), "0.000000 > ARP, Request who-has 10.0.0.2 tell 10.0.0.1, length 28");
    assert_eq!(arp(2), "0.000000 > ARP, Reply 10.0.0.1 is-at 02:00:00:00:00:09, length 28");
    assert_eq!(arp(3), "0.000000 > ARP, operation 3 from 10.0.0.1 to 10.0.0.2, length 28");
    let filled = |len: usize| move |head: &mut Head| head.push(len).unwrap().fill(0);
    assert_eq!(line(EtherType::ARP, &filled(27)), "0.000000 > ARP, [|arp], length 27");
    assert_eq!(line(EtherType::ARP, &filled(28)), "0.000000 > ARP, [bad arp version], length 28");
    assert_eq!(line(EtherType::IPV6, &filled(40)), "0.000000 > IP6, [bad ip6 version], length 40");
    let other = "0.000000 > 02:00:00:00:00:09 > ff:ff:ff:ff:ff:ff, ethertype 0x88cc, length 3";
    assert_eq!(line(EtherType(0x88cc), &filled(3)), other);
    let packet = Packet::new(&[0; 13], Chain::new()).unwrap();
    let seen = Seen::of(0, Way::In, Medium::Ethernet, &packet);
    assert_eq!(Tracer::new().line(&seen), "0.000000 < [|ether], length 13");
}

#[test]
fn a_flood_of_connections_is_forgotten_in_its_order() {
    let mut tracer = Tracer::new();
    let mut say = |port: u16, flags: Flags, seq: u32| {
        let tcp = Tcp { from: port, ..client(flags, seq, 1) };
        let line = said(&mut tracer, &segment(tcp, &[]));
        line.split(' ').nth(4).unwrap().to_owned()
    };
    for port in 1..=1024 {
        assert_eq!(say(port, Flags::SYN, 0), "0:0(0)");
    }
    assert_eq!(say(1, Flags::ACK, 500), "500:500(0)");
    assert_eq!(say(1025, Flags::SYN, 0), "0:0(0)");
    assert_eq!(say(2, Flags::ACK, 500), "500:500(0)");
    // The first is a stranger now: what is seen of it first is 1.
    assert_eq!(say(1, Flags::ACK, 600), "1:1(0)");
    assert_eq!(say(2, Flags::ACK, 700), "1:1(0)", "whose place it took");
}

#[test]
fn a_link_is_watched_in_both_directions() {
    let Pair { a, mut b, wire: _wire } = Pair::new(PairConfig::new());
    let framed = |tcp: Tcp| {
        let mut packet = segment(tcp, &[]);
        let mac = Mac::default();
        Ethernet { to: mac, from: mac, kind: EtherType::IPV4 }.write(packet.head_mut()).unwrap();
        packet
    };
    let mut link = Trace::new(a, Last::new(2));
    assert_eq!((link.capabilities(), link.deadline()), (b.capabilities(), None));
    assert!(link.room(0) > 0 && link.receive(0).is_none());
    link.transmit(1000, framed(client(Flags::SYN, 0, 0)));
    b.transmit(2000, framed(server(Flags::SYN | Flags::ACK, 0, 1)));
    assert_eq!(link.deadline(), Some(2000));
    link.receive(3000).unwrap();
    let both = format!("0.000001 > {ENDS}S 0:0(0) win 229\n0.000003 < {BACK}S. 0:0(0) ack 1 win 1000\n");
    assert_eq!(link.watch().to_string(), both);
    link.transmit(4000, framed(client(Flags::ACK, 1, 1)));
    assert_eq!(b.receive(4000).unwrap().len(), 54);
    let last = format!(
        "(1 packets before)\n0.000003 < {BACK}S. 0:0(0) ack 1 win 1000\n0.000004 > {ENDS}. 1:1(0) ack 1 win 229\n"
    );
    let (_, watch) = link.into_parts();
    assert_eq!((watch.to_string(), watch.packets().len()), (last, 2));
    let mut printer = Printer::new(Tracer::new(), Vec::new());
    watch.packets().for_each(|seen| printer.packet(seen.clone()));
    assert_eq!(printer.lost(), 0);
    assert_eq!(String::from_utf8(printer.into_inner()).unwrap().lines().count(), 2);
    let none: &mut [u8] = &mut [];
    let mut printer = Printer::new(Tracer::new(), io::Cursor::new(none));
    watch.packets().for_each(|seen| printer.packet(seen.clone()));
    assert_eq!(printer.lost(), 2);
    let mut count = 0;
    Trace::new(Sink::new(), |seen: Seen| count += seen.packet_len())
        .transmit(0, segment(client(Flags::ACK, 1, 1), b"abc"));
    assert_eq!(count, 43);
}

#[test]
fn a_peers_memory_is_looked_at_once() {
    let pool = PagePool::new(PoolConfig::new().limit(1), Heap::new()).unwrap();
    let whole = segment(client(Flags::ACK, 1, 1), &[3; 1000]).to_vec().unwrap();
    let mut page = pool.alloc().unwrap();
    page.bytes_mut().unwrap()[..whole.len()].copy_from_slice(&whole);
    drop(page);
    // The same page, of which somebody else may write pieces.
    let (page, offset, _) = pool.alloc_piece(4096).unwrap().into_parts();
    let chain = Chain::from(Fragment::new(page, offset as usize, whole.len()).unwrap());
    assert_eq!(chain.kind(), Some(Kind::Peer));
    let packet = Packet::new(&[], chain).unwrap();
    let seen = Seen::of(0, Way::Out, Medium::Ip, &packet);
    assert_eq!((seen.front(), seen.is_unreadable()), (&whole[..128], false));
    assert_eq!(said(&mut Tracer::new(), &packet), format!("{ENDS}. 1:1001(1000) ack 1 win 229"));
}

#[test]
fn numbers_count_from_a_syn_that_was_forgotten() {
    for medium in [Medium::Ip, Medium::Ethernet] {
        let mut last = Last::new(1);
        let mut pass = |tcp: Tcp| {
            let mut packet = segment(tcp, &[]);
            if medium == Medium::Ethernet {
                let mac = Mac::default();
                Ethernet { to: mac, from: mac, kind: EtherType::IPV4 }.write(packet.head_mut()).unwrap();
            }
            last.packet(Seen::of(0, Way::Out, medium, &packet));
        };
        pass(client(Flags::SYN, 0, 0));
        pass(server(Flags::SYN | Flags::ACK, 0, 1));
        pass(client(Flags::ACK, 501, 701));
        let line = format!("(2 packets before)\n0.000000 > {ENDS}. 501:501(0) ack 701 win 229\n");
        assert_eq!([last.to_string(), last.to_string()], [&*line, &*line]);
    }
}

/// Bytes of a packet that is right but for some.
fn nearly_right() -> impl Strategy<Value = Vec<u8>> {
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let transport = prop_oneof![
        prop::collection::vec(any::<u8>(), 20..100).prop_map(|bytes| (6, bytes)),
        prop::collection::vec(any::<u8>(), 8..100).prop_map(|bytes| (17, bytes)),
        (any::<u8>(), prop::collection::vec(any::<u8>(), 8..100)).prop_map(|(kind, mut bytes)| {
            bytes[0] = kind % 16;
            (1, bytes)
        }),
    ];
    (transport, damage).prop_map(|((protocol, transport), damage)| {
        let mut head = Head::of(&transport).unwrap();
        header(Protocol(protocol), transport.len()).write(&mut head).unwrap();
        let mut bytes = head.to_vec();
        damage.into_iter().for_each(|(at, value)| *at.get_mut(&mut bytes) = value);
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn there_is_a_line_for_whatever_bytes(
        bytes in prop_oneof![nearly_right(), prop::collection::vec(any::<u8>(), 0..300)],
        at in any::<prop::sample::Index>(),
        gso in prop::option::of(any::<u16>()),
        ethernet in any::<bool>(),
        now in any::<u64>(),
        absolute in any::<bool>(),
    ) {
        let mut bytes = bytes;
        if ethernet {
            bytes.splice(..0, [[2; 12].as_slice(), &[8, if now % 8 == 0 { 6 } else { 0 }]].concat());
        }
        let split = at.index(bytes.len().min(Head::MAX) + 1);
        let mut packet = Packet::new(&bytes[..split], chain(&bytes[split..])).unwrap();
        packet.set_gso(gso.map(|size| Gso { train: Train::Tcp, size, network: 14 }));
        let medium = if ethernet { Medium::Ethernet } else { Medium::Ip };
        let seen = Seen::of(now, Way::In, medium, &packet);
        prop_assert_eq!(seen.front(), &bytes[..bytes.len().min(Head::MAX)]);
        let mut tracer = if absolute { Tracer::absolute() } else { Tracer::new() };
        tracer.clone().learn(&seen);
        let line = tracer.line(&seen);
        let printable = line.chars().all(|char| char == ' ' || char.is_ascii_graphic());
        prop_assert!(printable && line.contains(" < "), "{}", line);
    }
}
