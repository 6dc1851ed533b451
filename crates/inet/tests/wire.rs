//! What is written is read again, by us and by another eye; and whatever bytes come, nothing panics.

use etherparse::{Ipv4HeaderSlice, NetSlice, SlicedPacket, TcpHeaderSlice, TransportSlice, UdpHeaderSlice};
use onecopy_chain::{Chain, Sum, Writer};
use onecopy_inet::wire::icmp::Unreachable;
use onecopy_inet::wire::tcp::{Blocks, Cookie, NotWritten, Timestamps};
use onecopy_inet::wire::*;
use onecopy_link::{Head, Packet};
use onecopy_pool::{PagePool, PoolConfig, provider::Heap};
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};

const FROM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const TO: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

fn mac() -> impl Strategy<Value = Mac> {
    any::<[u8; 6]>().prop_map(Mac)
}

fn ipv4() -> impl Strategy<Value = Ipv4> {
    let addresses = (any::<u32>(), any::<u32>());
    let bits = (any::<bool>(), any::<bool>(), 0u16..=0x1fff);
    let rest = (any::<u8>(), any::<u8>(), any::<u8>(), any::<u16>(), 0..=65515u16);
    (addresses, bits, rest).prop_map(
        |((from, to), (dont, more, offset), (protocol, ttl, service, id, len))| Ipv4 {
            from: from.into(),
            to: to.into(),
            protocol: Protocol(protocol),
            ttl,
            service,
            id,
            dont_fragment: dont,
            more_fragments: more,
            offset: offset * 8,
            payload_len: len,
            options_len: 0,
        },
    )
}

fn blocks() -> impl Strategy<Value = Blocks> {
    prop::collection::vec(any::<(u32, u32)>(), 0..=4).prop_map(|list| {
        let mut blocks = Blocks::default();
        assert!(list.iter().all(|(from, until)| blocks.push(Seq(*from), Seq(*until))));
        blocks
    })
}

fn cookie() -> impl Strategy<Value = Cookie> {
    (prop::collection::vec(any::<u8>(), 0..=16), any::<bool>()).prop_map(|(mut bytes, experimental)| {
        bytes.truncate(if bytes.len() < 4 { 0 } else { bytes.len() & !1 });
        let mut cookie = Cookie::new(&bytes).unwrap();
        cookie.experimental = experimental;
        cookie
    })
}

fn options() -> impl Strategy<Value = Options> {
    let stamps = any::<(u32, u32)>().prop_map(|(value, echo)| Timestamps { value, echo });
    use prop::option::of as opt;
    (
        opt(any::<u16>()),
        opt(any::<u8>()),
        any::<bool>(),
        opt(stamps),
        blocks(),
        opt(cookie()),
        opt(any::<u16>()),
    )
        .prop_map(|(mss, window_scale, sack_permitted, timestamps, sack, fast_open, user_timeout)| {
            Options {
                mss,
                window_scale,
                sack_permitted,
                timestamps,
                sack,
                fast_open,
                user_timeout,
                ..Options::default()
            }
        })
}

fn tcp() -> impl Strategy<Value = Tcp> {
    let numbers =
        (any::<u16>(), any::<u16>(), any::<u32>(), any::<u32>(), 0u16..512, any::<u16>(), any::<u16>());
    (numbers, options()).prop_map(|((from, to, seq, ack, flags, window, urgent), options)| Tcp {
        from,
        to,
        seq: Seq(seq),
        ack: Seq(ack),
        flags: Flags::from_bits_truncate(flags),
        window,
        urgent,
        options,
    })
}

fn icmp() -> impl Strategy<Value = Icmp> {
    let word = any::<u16>;
    prop_oneof![
        (word(), word()).prop_map(|(id, seq)| Icmp::Echo { id, seq }),
        (word(), word()).prop_map(|(id, seq)| Icmp::EchoReply { id, seq }),
        (any::<u8>(), word()).prop_map(|(code, mtu)| Icmp::Unreachable { code: Unreachable(code), mtu }),
        any::<u8>().prop_map(|code| Icmp::TimeExceeded { code }),
        any::<(u8, u8)>().prop_map(|(code, pointer)| Icmp::ParameterProblem { code, pointer }),
        // Timestamps (13 and 14) have a length of their own, which the other eye checks.
        (15u8.., any::<u8>(), any::<[u8; 4]>()).prop_map(|(kind, code, rest)| Icmp::Other {
            kind,
            code,
            rest
        }),
    ]
}

fn chain(bytes: &[u8]) -> Chain {
    let pool = PagePool::new(PoolConfig::new(), Heap::new()).unwrap();
    let mut chain = Chain::new();
    Writer::new(&pool).append(&mut chain, bytes).unwrap();
    chain
}

proptest! {
    #[test]
    fn ethernet_and_arp_are_read_as_they_were_written(to in mac(), from in mac(), kind in any::<u16>(), operation in any::<u16>(),
                                                      sender in any::<u32>(), target in any::<u32>(), padding in 0usize..20) {
        let arp = Arp { operation: arp::Operation(operation), sender_mac: from, sender: sender.into(), target_mac: to, target: target.into() };
        let ethernet = Ethernet { to, from, kind: EtherType(kind) };
        let mut head = Head::new();
        head.push(padding).unwrap();
        arp.write(&mut head).unwrap();
        ethernet.write(&mut head).unwrap();
        prop_assert_eq!(head.len(), Ethernet::LEN + Arp::LEN + padding);
        let (there, rest) = Ethernet::parse(&head).unwrap();
        prop_assert_eq!(there, ethernet);
        let (there, rest) = Arp::parse(rest).unwrap();
        prop_assert_eq!((there, rest.len()), (arp, padding));
        prop_assert!(to.to_string().len() == 17 && to.is_group() == (to.0[0] % 2 == 1));
    }

    #[test]
    fn ipv4_is_what_another_eye_reads(ip in ipv4()) {
        let mut head = Head::new();
        ip.write(&mut head).unwrap();
        let (there, rest) = Ipv4::parse(&head).unwrap();
        prop_assert_eq!((there, rest.len()), (ip, 0));
        let theirs = Ipv4HeaderSlice::from_slice(&head).unwrap();
        prop_assert_eq!(theirs.to_header().calc_header_checksum(), theirs.header_checksum());
        prop_assert_eq!((theirs.total_len(), theirs.identification(), theirs.ttl()), (ip.payload_len + 20, ip.id, ip.ttl));
        prop_assert_eq!(theirs.fragments_offset().value() * 8, ip.offset);
        prop_assert_eq!((theirs.dont_fragment(), theirs.more_fragments()), (ip.dont_fragment, ip.more_fragments));
        prop_assert_eq!((theirs.source_addr(), theirs.destination_addr(), theirs.protocol().0), (ip.from, ip.to, ip.protocol.0));
        prop_assert_eq!(ip.ecn() as u8, theirs.ecn().value());
        prop_assert_eq!(ip.is_fragment(), theirs.is_fragmenting_payload());
        // Any bit that is turned over is found out.
        for bit in 0..160 {
            head[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Ipv4::parse(&head).is_err());
            head[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn tcp_is_what_another_eye_reads(tcp in tcp(), payload in prop::collection::vec(any::<u8>(), 0..300), v4 in any::<bool>()) {
        let len = (tcp.len() + payload.len()) as u32;
        let pseudo = match v4 {
            true => checksum::pseudo_v4(FROM, TO, Protocol::TCP, len),
            false => checksum::pseudo_v6(Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED, Protocol::TCP, len),
        };
        let mut head = Head::new();
        let written = tcp.write(&mut head, pseudo);
        if tcp.options.len() > Options::MAX {
            prop_assert_eq!(written, Err(NotWritten::Options { len: tcp.options.len() }));
            prop_assert!(head.is_empty());
            return Ok(());
        }
        written.unwrap();
        let (there, rest) = Tcp::parse(&head).unwrap();
        prop_assert_eq!((there, rest.len(), head.len()), (tcp, 0, tcp.len()));
        // Finished, its checksum is what they compute.
        let mut packet = Packet::new(&head, chain(&payload)).unwrap();
        checksum::leave_unfinished(&mut packet, 0, Tcp::CHECKSUM).unwrap();
        prop_assert!(checksum::verify(&packet, 0, pseudo).unwrap());
        packet.finish().unwrap();
        prop_assert!(checksum::verify(&packet, 0, pseudo).unwrap());
        let theirs = TcpHeaderSlice::from_slice(packet.head()).unwrap();
        let header = theirs.to_header();
        let sum = match v4 {
            true => header.calc_checksum_ipv4_raw(FROM.octets(), TO.octets(), &payload).unwrap(),
            false => header.calc_checksum_ipv6_raw(Ipv6Addr::LOCALHOST.octets(), Ipv6Addr::UNSPECIFIED.octets(), &payload).unwrap(),
        };
        // A zero is stored in its other form.
        prop_assert!(theirs.checksum() == sum || (sum == 0 && theirs.checksum() == 0xffff));
        prop_assert_eq!((theirs.source_port(), theirs.destination_port(), theirs.window_size()), (tcp.from, tcp.to, tcp.window));
        prop_assert_eq!((theirs.sequence_number(), theirs.acknowledgment_number()), (tcp.seq.0, tcp.ack.0));
        let flags = [theirs.fin(), theirs.syn(), theirs.rst(), theirs.psh(), theirs.ack(), theirs.urg(), theirs.ece(), theirs.cwr(), theirs.ns()];
        let bits = flags.iter().enumerate().map(|(bit, set)| u16::from(*set) << bit).sum();
        prop_assert_eq!(tcp.flags, Flags::from_bits_retain(bits));
        for option in theirs.options_iterator() {
            use etherparse::TcpOptionElement::*;
            match option {
                Ok(MaximumSegmentSize(mss)) => prop_assert_eq!(tcp.options.mss, Some(mss)),
                Ok(WindowScale(shift)) => prop_assert_eq!(tcp.options.window_scale, Some(shift)),
                Ok(SelectiveAcknowledgementPermitted) => prop_assert!(tcp.options.sack_permitted),
                Ok(Timestamp(value, echo)) => prop_assert_eq!(tcp.options.timestamps, Some(Timestamps { value, echo })),
                Ok(SelectiveAcknowledgement(first, more)) => {
                    let theirs: Vec<_> = std::iter::once(first).chain(more.into_iter().flatten()).collect();
                    let ours: Vec<_> = tcp.options.sack.iter().map(|(from, until)| (from.0, until.0)).collect();
                    prop_assert_eq!(theirs, ours);
                }
                Ok(Noop) => {}
                // It knows neither Fast Open nor user timeouts, and stops there; they come last.
                Err(_) => prop_assert!(tcp.options.fast_open.is_some() || tcp.options.user_timeout.is_some()),
            }
        }
        if !payload.is_empty() {
            let mut bytes = packet.to_vec().unwrap();
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            let damaged = Packet::new(&bytes[..head.len()], chain(&bytes[head.len()..])).unwrap();
            prop_assert!(!checksum::verify(&damaged, 0, pseudo).unwrap());
        }
    }

    #[test]
    fn udp_and_icmp_are_what_another_eye_reads(from in any::<u16>(), to in any::<u16>(), icmp in icmp(),
                                               payload in prop::collection::vec(any::<u8>(), 0..300)) {
        let udp = Udp { from, to, payload_len: payload.len() as u16 };
        let pseudo = checksum::pseudo_v4(FROM, TO, Protocol::UDP, (Udp::LEN + payload.len()) as u32);
        let mut head = Head::new();
        udp.write(&mut head, pseudo).unwrap();
        let mut packet = Packet::new(&head, chain(&payload)).unwrap();
        checksum::leave_unfinished(&mut packet, 0, Udp::CHECKSUM).unwrap();
        packet.finish().unwrap();
        let (there, summed, rest) = Udp::parse(packet.head()).unwrap();
        prop_assert_eq!((there, summed, rest.len()), (udp, true, 0));
        let theirs = UdpHeaderSlice::from_slice(packet.head()).unwrap();
        let sum = theirs.to_header().calc_checksum_ipv4_raw(FROM.octets(), TO.octets(), &payload).unwrap();
        prop_assert_eq!((theirs.checksum(), theirs.length()), (sum, 8 + payload.len() as u16));

        let mut head = Head::new();
        icmp.write(&mut head).unwrap();
        let (there, rest) = Icmp::parse(&head).unwrap();
        prop_assert_eq!((there, rest.len()), (icmp, 0));
        let mut packet = Packet::new(&head, chain(&payload)).unwrap();
        checksum::leave_unfinished(&mut packet, 0, Icmp::CHECKSUM).unwrap();
        packet.finish().unwrap();
        prop_assert!(Sum::of(&packet.to_vec().unwrap()).is_valid());
        prop_assert!(etherparse::Icmpv4Slice::from_slice(&packet.to_vec().unwrap()).is_ok());
    }

    /// The contract: any bytes, any length.
    #[test]
    fn whatever_comes_nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), first in any::<[u8; 4]>(), from in 0usize..60) {
        let mut likely = bytes.clone();
        // Versions and lengths that are right lead further in.
        likely.iter_mut().zip([0x45, 0, 0, 40]).for_each(|(byte, right)| *byte = right);
        if let Some(byte) = likely.get_mut(32) {
            *byte = first[0] | 0x50;
        }
        for bytes in [&bytes[..], &likely[..], bytes.get(from..).unwrap_or_default()] {
            let _ = (Ethernet::parse(bytes), Arp::parse(bytes), Ipv4::parse(bytes), Udp::parse(bytes));
            if let Ok((ip, rest)) = Ipv4::parse_quoted(bytes) {
                prop_assert_eq!(rest.len() + 20 + usize::from(ip.options_len), bytes.len());
                let _ = Tcp::parse(rest);
            }
            if let Ok((tcp, rest)) = Tcp::parse(bytes) {
                prop_assert!(rest.len() + Tcp::LEN <= bytes.len());
                // What was understood of it can be written, and is understood alike.
                let mut head = Head::new();
                if tcp.write(&mut head, Sum::ZERO).is_ok() {
                    let (again, _) = Tcp::parse(&head).unwrap();
                    let said = Options { unknown: 0, damaged: false, ..tcp.options };
                    prop_assert_eq!(again, Tcp { options: said, ..tcp });
                }
            }
            let _ = Options::parse(bytes);
            if let Ok((icmp, rest)) = Icmp::parse(bytes) {
                let _ = icmp.quoted(rest);
                let mut head = Head::new();
                icmp.write(&mut head).unwrap();
                prop_assert_eq!(Icmp::parse(&head).unwrap().0, icmp);
            }
        }
    }

    #[test]
    fn a_place_is_before_and_behind_across_the_end_of_numbers(at in any::<u32>(), by in 1u32..1 << 31) {
        let (here, there) = (Seq(at), Seq(at).plus(by));
        prop_assert!(here.before(there) && there.after(here) && !here.after(there) && !here.before(here));
        prop_assert_eq!((there.since(here), here.since(there), there.minus(by)), (by as i32, -(by as i32), here));
    }
}

#[test]
fn a_syn_is_written_as_linux_writes_it() {
    let options = Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 0x0102_0304, echo: 0 }),
        fast_open: Some(Cookie::REQUEST),
        ..Options::default()
    };
    let tcp =
        Tcp { from: 40000, to: 80, seq: Seq(1), flags: Flags::SYN, window: 64240, options, ..Tcp::default() };
    let mut head = Head::new();
    tcp.write(&mut head, Sum::new(0xabcd)).unwrap();
    #[rustfmt::skip]
    let expected = [
        0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0xb0, 0x02, 0xfa, 0xf0, 0xab, 0xcd, 0, 0,
        // mss 1460, sackOK, TS val ecr, nop, wscale 7, fast open, nop, nop
        2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7, 34, 2, 1, 1,
    ];
    assert_eq!(*head, expected);
    // Whole, with its other headers, another eye takes it.
    let ip = Ipv4 {
        from: FROM,
        to: TO,
        protocol: Protocol::TCP,
        ttl: 64,
        service: 0,
        id: 1,
        dont_fragment: true,
        more_fragments: false,
        offset: 0,
        payload_len: head.len() as u16,
        options_len: 0,
    };
    ip.write(&mut head).unwrap();
    Ethernet { to: Mac::BROADCAST, from: Mac([2; 6]), kind: EtherType::IPV4 }.write(&mut head).unwrap();
    let sliced = SlicedPacket::from_ethernet(&head).unwrap();
    assert!(
        matches!(sliced.net, Some(NetSlice::Ipv4(_)))
            && matches!(sliced.transport, Some(TransportSlice::Tcp(_)))
    );
}

#[test]
fn blocks_are_written_as_many_as_fit() {
    let mut options = Options { timestamps: Some(Timestamps::default()), ..Options::default() };
    assert_eq!((Options::default().room_for_blocks(), options.room_for_blocks()), (4, 3));
    (0..5).for_each(|n| assert_eq!(options.sack.push(Seq(n), Seq(n + 1)), n < 4));
    let tcp = |options| Tcp { options, ..Tcp::default() };
    let mut head = Head::new();
    let refused = tcp(options).write(&mut head, Sum::ZERO).unwrap_err();
    assert_eq!(refused, NotWritten::Options { len: 48 });
    assert!(refused.to_string().contains("leave out"));
    options.sack.truncate(options.room_for_blocks());
    tcp(options).write(&mut head, Sum::ZERO).unwrap();
    assert_eq!((head.len(), Tcp::parse(&head).unwrap().0.options), (60, options));
    head.push(60).unwrap();
    assert!(matches!(tcp(options).write(&mut head, Sum::ZERO), Err(NotWritten::Head(_))));
}

#[test]
fn options_that_make_no_sense_end_them_and_what_came_before_counts() {
    let said = |bytes: &[u8]| Options::parse(bytes);
    let mss = Options { mss: Some(1460), ..Options::default() };
    assert_eq!(said(&[2, 4, 5, 0xb4, 0, 3, 3, 7]), mss, "the end");
    for damaged in [
        &[2, 4, 5, 0xb4, 3, 0, 7][..],
        &[2, 4, 5, 0xb4, 3, 1, 7],
        &[2, 4, 5, 0xb4, 3, 9, 7],
        &[2, 4, 5, 0xb4, 3],
    ] {
        assert_eq!(said(damaged), Options { damaged: true, ..mss }, "{damaged:?}");
    }
    // A length that its kind has not, and kinds that we do not know (MD5, MPTCP).
    for other in [
        &[3, 4, 7, 7][..],
        &[5, 7, 0, 0, 0, 0, 0],
        &[5, 2],
        &[34, 5, 1, 2, 3],
        &[254, 4, 1, 2],
        &[19, 2],
        &[30, 3, 9],
    ] {
        let bytes = [other, &[2, 4, 5, 0xb4]].concat();
        assert_eq!(said(&bytes), Options { unknown: 1, ..mss }, "{other:?}");
    }
    assert_eq!(said(&[2, 4, 1, 1, 2, 4, 5, 0xb4]), mss, "the last one counts");
    assert_eq!(Cookie::new(&[1; 3]), None);
    assert_eq!(Cookie::new(&[1; 18]), None);
    assert_eq!(format!("{:?}", Cookie::new(&[1; 8]).unwrap()), "Cookie(8 bytes)");
}

#[test]
fn headers_that_lie_about_themselves() {
    let ip = |first: u8, total: u16| {
        let mut bytes = [0; 60];
        bytes[0] = first;
        bytes[2..4].copy_from_slice(&total.to_be_bytes());
        let len = usize::from(first & 15) * 4;
        let sum = Sum::of(&bytes[..len]).checksum();
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes
    };
    assert!(Ipv4::parse(&ip(0x45, 20)).is_ok());
    assert_eq!(Ipv4::parse(&ip(0x4f, 60)).unwrap().0.options_len, 40);
    assert_eq!(Ipv4::parse(&ip(0x65, 20)).unwrap_err(), Malformed::Version);
    assert_eq!(Ipv4::parse(&ip(0x45, 19)).unwrap_err(), Malformed::Length);
    assert_eq!(Ipv4::parse(&ip(0x44, 60)).unwrap_err(), Malformed::Length);
    assert_eq!(Ipv4::parse(&ip(0x4f, 60)[..59]).unwrap_err(), Malformed::Short);
    assert_eq!(Ipv4::parse(&ip(0x45, 20)[..19]).unwrap_err(), Malformed::Short);
    let mut tcp = [0; 24];
    for (words, expected) in [(0, Malformed::Length), (4, Malformed::Length), (7, Malformed::Short)] {
        tcp[12] = words << 4;
        assert_eq!(Tcp::parse(&tcp).unwrap_err(), expected);
    }
    assert_eq!(Udp::parse(&[0, 1, 0, 2, 0, 7, 0, 0]).unwrap_err(), Malformed::Length);
    let (udp, summed, _) = Udp::parse(&[0, 1, 0, 2, 0, 8, 0, 0]).unwrap();
    assert_eq!((udp, summed), (Udp { from: 1, to: 2, payload_len: 0 }, false));
    assert_eq!(Arp::parse(&[0; 28]).unwrap_err(), Malformed::Version);
    assert!(Malformed::Checksum.to_string().contains("damaged"));
}

#[test]
fn a_complaint_says_whose_packet_it_was() {
    let mut head = Head::new();
    let tcp = Tcp { from: 4000, to: 80, seq: Seq(77), ..Tcp::default() };
    tcp.write(&mut head, Sum::ZERO).unwrap();
    let quoted = Ipv4 {
        from: FROM,
        to: TO,
        protocol: Protocol::TCP,
        ttl: 1,
        service: 0,
        id: 9,
        dont_fragment: true,
        more_fragments: false,
        offset: 0,
        payload_len: 1000,
        options_len: 0,
    };
    quoted.write(&mut head).unwrap();
    // A router may leave the checksum as it was.
    head[8] = 0;
    let too_long = Icmp::Unreachable { code: Unreachable::TOO_LONG, mtu: 1400 };
    too_long.write(&mut head).unwrap();
    let (icmp, rest) = Icmp::parse(&head).unwrap();
    assert_eq!(icmp, too_long);
    // Eight bytes of the transport are all that has to be there.
    let said = icmp.quoted(&rest[..28]).unwrap().unwrap();
    assert_eq!((said.ip, said.ports, said.seq), (Ipv4 { ttl: 0, ..quoted }.into(), (4000, 80), 77));
    assert_eq!(icmp.quoted(&rest[..27]), Some(Err(Malformed::Short)));
    assert_eq!(Icmp::Echo { id: 1, seq: 1 }.quoted(rest), None);
    // What a later fragment begins with is payload, and no port.
    for (offset, more_fragments, right) in [(0, true, true), (8, true, false), (1480, false, false)] {
        let mut head = Head::new();
        tcp.write(&mut head, Sum::ZERO).unwrap();
        Ipv4 { offset, more_fragments, ..quoted }.write(&mut head).unwrap();
        assert_eq!(icmp.quoted(&head).unwrap().is_ok(), right, "at {offset}");
    }
}
