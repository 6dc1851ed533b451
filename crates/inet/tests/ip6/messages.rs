//! ICMPv6, and headers that stand between.

use crate::bytes::{MAC_A, MAC_B, icmp, ndp, packet, udp, whole};
use crate::world::{A6, B6, Net, six};
use onecopy_inet::ip::{Input, Interface, Reason, Trouble};
use onecopy_inet::wire::icmpv6::Unreachable;
use onecopy_inet::wire::{Icmpv6, Ipv6, Ndp, Protocol, Tcp, icmp as v4};
use onecopy_link::pair::Path;
use onecopy_link::{Capabilities, Medium};
use std::net::SocketAddr;

const SECOND: u64 = 1_000_000_000;

fn net() -> Net {
    six(Path::new(), 1, Capabilities::all(Medium::Ip, 1500))
}

/// What A answers to these bytes, and why they were dropped, if they were.
fn answer(ip: &mut Interface, now: u64, bytes: &[u8]) -> (Vec<Vec<u8>>, Option<Reason>) {
    let before = ip.stats().clone();
    let _ = ip.input(now, &mut packet(None, bytes));
    let answers = std::iter::from_fn(|| ip.transmit()).map(|mut packet| {
        packet.finish().unwrap();
        packet.to_vec().unwrap()
    });
    let answers = answers.collect();
    let why = ip.stats().drops().find(|(reason, count)| *count > before.dropped(*reason));
    (answers, why.map(|(reason, _)| reason))
}

#[test]
fn whoever_is_asked_answers() {
    let mut net = net();
    let ip = net.a.stack.interface_mut();
    let question = icmp(B6, A6, Icmpv6::Echo { id: 7, seq: 9 }, b"hello");
    let (answers, why) = answer(ip, 0, &question);
    assert_eq!(why, None);
    let [answered] = &answers[..] else { panic!("{answers:?}") };
    let (header, rest) = Ipv6::parse(answered).unwrap();
    assert_eq!((header.from, header.to, header.ttl), (A6, B6, 64));
    assert_eq!(Icmpv6::parse(rest).unwrap(), (Icmpv6::EchoReply { id: 7, seq: 9 }, &b"hello"[..]));
    // The checksum is right: turned round, it is heard as an answer.
    let back = whole(Ipv6 { from: B6, to: A6, ..header }, &[], rest);
    let heard = ip.input(0, &mut packet(None, &back));
    assert_eq!(heard, Input::Echo { from: B6.into(), id: 7, seq: 9 });
    let mut wrong = question.clone();
    wrong[45] ^= 1;
    assert_eq!(answer(ip, 0, &wrong), (vec![], Some(Reason::Checksum)));
    // One to many, and from nobody.
    let all = "ff02::1".parse().unwrap();
    let to_all = icmp(B6, all, Icmpv6::Echo { id: 7, seq: 9 }, b"");
    assert_eq!(answer(ip, 0, &to_all), (vec![], Some(Reason::Broadcast)));
    let nobody = icmp("::".parse().unwrap(), A6, Icmpv6::Echo { id: 7, seq: 9 }, b"");
    assert_eq!(answer(ip, 0, &nobody), (vec![], Some(Reason::Martian)));
}

#[test]
fn who_uses_what_is_not_known_is_told_where_it_stands() {
    let mut net = net();
    let ip = net.a.stack.interface_mut();
    let udp = |next: u8, between: &[&[u8]]| udp(Protocol(next), between, 9, b"payload");
    // Known, and passed over: the datagram is a socket's.
    let good = udp(0, &[&[60, 0, 5, 2, 0, 0, 1, 0], &[17, 0, 1, 4, 0, 0, 0, 0]]);
    let mut came = packet(None, &good);
    assert!(matches!(ip.input(0, &mut came), Input::Udp(ip) if ip.payload_len() == 15), "{:?}", ip.stats());
    assert_eq!(came.to_vec().unwrap()[8..], *b"payload");
    for (bytes, reason, told) in [
        (udp(60, &[&[17, 0, 0x80, 4, 0, 0, 0, 0]]), Reason::Extension, Some((2, 42))),
        (udp(60, &[&[17, 0, 0x40, 4, 0, 0, 0, 0]]), Reason::Extension, None),
        (udp(43, &[&[17, 0, 0, 1, 0, 0, 0, 0]]), Reason::Extension, Some((0, 42))),
        (udp(132, &[]), Reason::Protocol, Some((1, 6))),
        (udp(60, &[&[0, 0, 1, 4, 0, 0, 0, 0], &[17, 0, 1, 4, 0, 0, 0, 0]]), Reason::Protocol, Some((1, 40))),
        (udp(59, &[]), Reason::Nothing, None),
        (udp(60, &[&[17, 200, 1, 4, 0, 0, 0, 0]]), Reason::Extension, None),
    ] {
        let (answers, why) = answer(ip, 0, &bytes);
        assert_eq!(why, Some(reason));
        let said = answers.iter().map(|answer| {
            let (header, rest) = Ipv6::parse(answer).unwrap();
            assert_eq!((header.from, header.to), (A6, B6));
            let (icmp, quoted) = Icmpv6::parse(rest).unwrap();
            assert_eq!(quoted, bytes, "all of it, as it came");
            let Icmpv6::ParameterProblem { code, pointer } = icmp else { panic!("{icmp:?}") };
            (code, pointer)
        });
        assert_eq!(said.collect::<Vec<_>>(), told.into_iter().collect::<Vec<_>>(), "{bytes:?}");
    }
    // A flood of them is told now and then.
    let bytes = udp(132, &[]);
    let told = (0..1000).map(|_| answer(ip, 0, &bytes).0.len()).sum::<usize>();
    assert!((1..=50).contains(&told), "{told}");
    // What is quoted does not make the message longer than every link takes.
    let long = whole(Ipv6::new(B6, A6, Protocol(132), 0), &[], &[7; 1400]);
    let (answers, _) = answer(ip, SECOND, &long);
    assert_eq!((answers.len(), answers[0].len()), (1, 1280));
}

#[test]
fn what_is_wrong_with_a_packet_is_counted_as_that() {
    let mut net = net();
    let ip = net.a.stack.interface_mut();
    let good = udp(Protocol::UDP, &[], 9, b"payload");
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let from = |text: &str| whole(Ipv6::new(text.parse().unwrap(), A6, Protocol::TCP, 0), &[], &[0; 20]);
    let mut unsummed = good.clone();
    unsummed[46..48].fill(0);
    for (bytes, reason) in [
        (good[..39].to_vec(), Reason::Short),
        (with(5, 200), Reason::Truncated),
        (with(39, 9), Reason::OtherHost),
        (with(24, 0xff), Reason::OtherHost),
        (from("ff02::1"), Reason::Martian),
        (from("::1"), Reason::Martian),
        (from("::"), Reason::Martian),
        (from("::ffff:10.0.0.2"), Reason::Martian),
        (from("fd00::1"), Reason::Martian),
        (unsummed, Reason::Checksum),
        (with(45, 7), Reason::Transport),
        (with(50, 7), Reason::Checksum),
        (whole(Ipv6::new(B6, A6, Protocol::TCP, 0), &[], &[0; 19]), Reason::Transport),
        (whole(Ipv6::new(B6, A6, Protocol::ICMPV6, 0), &[], &[0; 7]), Reason::IcmpMalformed),
        (
            icmp(B6, A6, Icmpv6::Other { kind: 134, code: 0, rest: [64, 0, 7, 8] }, &[0; 8]),
            Reason::IcmpIgnored,
        ),
        (icmp(B6, A6, Icmpv6::Other { kind: 137, code: 0, rest: [0; 4] }, &[0; 32]), Reason::IcmpIgnored),
        (icmp(B6, A6, Icmpv6::TooLong { mtu: 1279 }, &good), Reason::IcmpIgnored),
        (icmp(B6, A6, Icmpv6::TimeExceeded { code: 0 }, &good), Reason::IcmpForeign),
        (icmp(B6, A6, Icmpv6::TimeExceeded { code: 0 }, &good[..41]), Reason::IcmpMalformed),
    ] {
        assert_eq!(answer(ip, 0, &bytes).1, Some(reason), "{bytes:?}");
    }
    let stats = ip.stats();
    assert_eq!(
        stats.received,
        stats.tcp + stats.udp + stats.icmp + stats.arp + stats.fragments + stats.dropped_in()
    );
}

#[test]
fn a_complaint_reaches_the_connection_that_it_is_about() {
    let mut net = net();
    let listener = net.listen(80);
    let (a, _) = net.connect(listener, 80);
    let local = net.a.stack.tcp_addresses(a).local.unwrap();
    let complain = |net: &mut Net, what: Icmpv6, seq: u32| {
        let tcp = Tcp { from: local.port(), to: 80, ..Tcp::default() };
        let mut head = onecopy_link::Head::new();
        tcp.write(&mut head, onecopy_chain::Sum::ZERO).unwrap();
        head[4..8].copy_from_slice(&seq.to_be_bytes());
        let quoted = whole(Ipv6::new(A6, B6, Protocol::TCP, 0), &[], &head);
        // Any router may say so.
        let bytes = icmp("fd00::99".parse().unwrap(), A6, what, &quoted);
        let now = net.now();
        net.a.stack.receive(now, packet(None, &bytes));
    };
    let mss = |net: &Net| net.a.stack.tcp_info(net.now(), a).unwrap().snd_mss;
    assert_eq!(mss(&net), 1428);
    // Something is under way, whose number a router would know.
    let (now, data) = (net.now(), vec![7; 1000]);
    crate::world::send(&mut net.a, &net.pool, now, a, &data);
    let next = net.a.stack.transmit().unwrap();
    let seq = Tcp::parse(&next.head()[Ipv6::LEN..]).unwrap().0.seq.0;
    complain(&mut net, Icmpv6::TooLong { mtu: 1300 }, seq.wrapping_sub(1 << 30));
    assert_eq!(mss(&net), 1428, "a stranger who guesses");
    complain(&mut net, Icmpv6::TooLong { mtu: 1300 }, seq);
    assert_eq!(mss(&net), 1300 - 60 - 12);
    assert_eq!(net.a.stack.tcp_info(net.now(), a).unwrap().pmtu, 1300);
    // Port unreachable says what IPv4's says.
    let ip = net.a.stack.interface_mut();
    let quoted = whole(Ipv6::new(A6, B6, Protocol::UDP, 0), &[], &[0, 9, 0, 53, 0, 8, 0, 0]);
    let bytes = icmp(B6, A6, Icmpv6::Unreachable(Unreachable::PORT), &quoted);
    let Input::Complaint(complaint) = ip.input(0, &mut packet(None, &bytes)) else {
        panic!("{:?}", ip.stats())
    };
    assert_eq!(complaint.trouble, Trouble::Unreachable(v4::Unreachable::PORT));
    let ends = (SocketAddr::new(A6.into(), 9), SocketAddr::new(B6.into(), 53));
    assert_eq!((complaint.local, complaint.remote), ends);
}

#[test]
fn what_a_router_says_of_a_way_holds_for_all_who_go_there_and_for_ten_minutes() {
    let mut net = net();
    let listener = net.listen(80);
    let (a, _) = net.connect(listener, 80);
    let (other, child) = net.connect(listener, 80);
    let mss = |net: &Net, id| net.a.stack.tcp_info(net.now(), id).unwrap().snd_mss;
    let begun = net.now();
    assert!(net.a.stack.interface_mut().path_shrunk(begun, B6.into(), 1300));
    for id in [a, other] {
        assert_eq!(net.a.stack.tcp_info(begun, id).unwrap().pmtu, 1300);
    }
    // None makes it shorter than every link is, nor longer.
    let ip = net.a.stack.interface_mut();
    assert!(!ip.path_shrunk(begun, B6.into(), 1400));
    assert_eq!(ip.mtu_to(begun, "fd00::3".parse().unwrap()), 1500);
    let longest = |net: &mut Net| {
        let now = net.now();
        crate::world::send(&mut net.a, &net.pool, now, other, &[7; 5000]);
        net.run(SECOND);
        let mut got = Vec::new();
        let now = net.now();
        crate::world::receive(&mut net.b, now, child, &mut got);
        assert_eq!(got.len(), 5000);
        mss(net, other)
    };
    assert_eq!(longest(&mut net), 1300 - 60 - 12);
    net.run(600 * SECOND);
    assert_eq!(longest(&mut net), 1428, "it may be better by now");
}

#[test]
fn a_question_behind_other_headers_is_answered() {
    let mut net = six(Path::new(), 1, Capabilities::all(Medium::Ethernet, 1500));
    let ip = net.a.stack.interface_mut();
    let question = icmp(B6, A6, Icmpv6::Echo { id: 7, seq: 9 }, &[7; 200]);
    let (header, message) = Ipv6::parse(&question).unwrap();
    let between: &[u8] = &[58, 0, 1, 4, 0, 0, 0, 0];
    let question_too = whole(Ipv6 { protocol: Protocol(0), ..header }, &[between], message);
    let there = Ndp { target: B6, source_mac: None, target_mac: Some(MAC_B) };
    let there = ndp(B6, A6, Icmpv6::Advertisement { flags: 0x60 }, there);
    // The first one asks who that is.
    for bytes in [&question_too, &there, &question_too] {
        let _ = ip.input(0, &mut packet(Some((MAC_A, MAC_B)), bytes));
    }
    let left: Vec<_> = std::iter::from_fn(|| ip.transmit()).map(|packet| packet.len() - 14).collect();
    assert_eq!(left, [72, question.len(), question.len()], "{:?}", ip.stats());
}

#[test]
fn what_a_router_says_has_datagrams_sent_in_smaller_parts() {
    for connected in [true, false] {
        let mut net = net();
        let id = net.a.stack.udp_open().unwrap();
        net.a.stack.udp_set(id, |settings| settings.dont_fragment = false).unwrap();
        let to = SocketAddr::new(B6.into(), 53);
        if connected {
            net.a.stack.udp_connect(id, to).unwrap();
        }
        let longest = |net: &mut Net| {
            let writer = onecopy_chain::Writer::new(&net.pool);
            let to = onecopy_inet::udp::Envelope::to(to);
            net.a.stack.udp_send_bytes(0, id, &[7; 5000], &writer, &to).unwrap();
            std::iter::from_fn(|| net.a.stack.transmit()).map(|packet| packet.len()).max()
        };
        assert_eq!(longest(&mut net), Some(1496));
        let local = net.a.stack.udp_addresses(id).local.unwrap();
        let quoted = |port: u16| {
            let ports = [port.to_be_bytes(), 53_u16.to_be_bytes()].concat();
            let quoted = whole(Ipv6::new(A6, B6, Protocol::UDP, 0), &[], &[&ports[..], &[0; 4]].concat());
            packet(None, &icmp("fd00::99".parse().unwrap(), A6, Icmpv6::TooLong { mtu: 1300 }, &quoted))
        };
        net.a.stack.receive(0, quoted(local.port() ^ 1));
        assert_eq!(longest(&mut net), Some(1496), "nobody has sent from there");
        net.a.stack.receive(0, quoted(local.port()));
        assert_eq!(longest(&mut net), Some(1296));
        assert_eq!(net.a.stack.udp_take_error(id), None, "nothing is wrong with what may be cut");
    }
}
