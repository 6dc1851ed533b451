//! What packets of IPv6 say, a line each.

use crate::bytes::{MAC_A, MAC_B, icmp, ndp, packet, udp, whole};
use crate::world::{A6, B6};
use onecopy_inet::trace::{Seen, Tracer, Way};
use onecopy_inet::wire::icmpv6::Unreachable;
use onecopy_inet::wire::ipv6::Fragment;
use onecopy_inet::wire::ndp::solicited;
use onecopy_inet::wire::{Flags, Icmpv6, Ipv6, Ndp, Protocol, Seq, Tcp};
use onecopy_link::{Head, Medium};

fn line(tracer: &mut Tracer, bytes: &[u8]) -> String {
    let said = tracer.line(&Seen::of(0, Way::In, Medium::Ip, &packet(None, bytes)));
    let framed = Seen::of(0, Way::In, Medium::Ethernet, &packet(Some((MAC_A, MAC_B)), bytes));
    assert_eq!(tracer.line(&framed), said, "a frame says the same");
    said.strip_prefix("0.000000 < ").unwrap().to_owned()
}

#[test]
fn a_line_is_this_line() {
    let tracer = &mut Tracer::new();
    let tcp = |flags, seq, payload: &[u8]| {
        let mut head = Head::new();
        let tcp = Tcp { from: 80, to: 4711, seq: Seq(seq), flags, window: 229, ..Tcp::default() };
        tcp.write(&mut head, onecopy_chain::Sum::ZERO).unwrap();
        whole(Ipv6 { service: 2, ..Ipv6::new(B6, A6, Protocol::TCP, 0) }, &[], &[&head, payload].concat())
    };
    let ends = "fd00::2.80 > fd00::1.4711:";
    assert_eq!(line(tracer, &tcp(Flags::SYN, 1000, b"")), format!("{ends} [ect0] S 0:0(0) win 229"));
    let data = line(tracer, &tcp(Flags::PSH | Flags::ACK, 1001, b"12345"));
    assert_eq!(data, format!("{ends} [ect0] P. 1:6(5) ack 1 win 229"));
    // Behind other headers, and in parts.
    let datagram = udp(Protocol(0), &[&[17, 0, 1, 4, 0, 0, 0, 0]], 9, b"1234567");
    assert_eq!(line(tracer, &datagram), "fd00::2.53 > fd00::1.9: UDP, length 7");
    let part = |offset, more| {
        let mut between = Head::new();
        Fragment { offset, more, id: 77 }.write(&mut between, Protocol::UDP).unwrap();
        whole(Ipv6::new(B6, A6, Protocol::FRAGMENT, 0), &[&between], &[0, 53, 0, 9, 5, 0, 0, 0])
    };
    let first = "fd00::2.53 > fd00::1.9: UDP, length 1272 (fragment 8@0+, id 77)";
    assert_eq!(line(tracer, &part(0, true)), first);
    assert_eq!(line(tracer, &part(1272, false)), "fd00::2 > fd00::1: udp, length 8 (fragment 8@1272, id 77)");
    // Cut short, and wrong.
    assert_eq!(line(tracer, &datagram[..55]), "fd00::2 > fd00::1: [|udp], length 15 (8 bytes missing)");
    assert_eq!(line(tracer, &datagram[..44]), "fd00::2 > fd00::1: [|ip6], length 23 (19 bytes missing)");
    let bad = udp(Protocol(60), &[&[17, 0, 1, 9, 0, 0, 0, 0]], 9, b"");
    assert_eq!(line(tracer, &bad), "fd00::2 > fd00::1: [bad ip6 extension], length 16");
}

#[test]
fn messages_are_told_as_tcpdump_tells_them() {
    let tracer = &mut Tracer::new();
    let ask = Ndp { target: A6, source_mac: Some(MAC_B), target_mac: None };
    let say = Ndp { target: A6, source_mac: None, target_mac: Some(MAC_A) };
    let question = ndp(B6, solicited(A6), Icmpv6::Solicitation, ask);
    let said = "fd00::2 > ff02::1:ff00:1: ICMP6 neighbor solicitation, who has fd00::1, length 32";
    assert_eq!(line(tracer, &question), said);
    let answer = ndp(B6, A6, Icmpv6::Advertisement { flags: 0xe0 }, say);
    let said = "fd00::2 > fd00::1: ICMP6 neighbor advertisement, tgt is fd00::1 [router solicited override], length 32";
    assert_eq!(line(tracer, &answer), said);
    let quoted = udp(Protocol::UDP, &[], 9, b"");
    let about = " [fd00::2.53 > fd00::1.9: udp]";
    for (what, body, says) in [
        (Icmpv6::Echo { id: 1, seq: 2 }, &[][..], "echo request, id 1, seq 2, length 8"),
        (Icmpv6::EchoReply { id: 1, seq: 2 }, &[1], "echo reply, id 1, seq 2, length 9"),
        (Icmpv6::TooLong { mtu: 1280 }, &quoted, "packet too big, mtu 1280, length 56"),
        (Icmpv6::Unreachable(Unreachable::PORT), &quoted, "unreachable, port, length 56"),
        (Icmpv6::TimeExceeded { code: 1 }, &quoted, "ip reassembly time exceeded, length 56"),
        (
            Icmpv6::ParameterProblem { code: 1, pointer: 6 },
            &quoted,
            "parameter problem - octet 6, code 1, length 56",
        ),
        (Icmpv6::Other { kind: 134, code: 0, rest: [0; 4] }, &[], "type 134, code 0, length 8"),
    ] {
        let about = if body.len() > 1 { about } else { "" };
        assert_eq!(
            line(tracer, &icmp(B6, A6, what, body)),
            format!("fd00::2 > fd00::1: ICMP6 {says}{about}")
        );
    }
}
