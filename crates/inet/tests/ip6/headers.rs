//! Headers as another eye reads them, and bytes of whatever kind: nothing panics, what is kept is bounded, each packet is counted once.

use crate::bytes::{MAC_A, STRANGER, icmp, ndp, packet, udp, whole};
use crate::world::{A6, B6};
use onecopy_inet::ip::{Cidr, Config, Input, Interface};
use onecopy_inet::wire::ipv6::{Fragment, walk};
use onecopy_inet::wire::ndp::solicited;
use onecopy_inet::wire::{Icmpv6, Ip, Ipv6, Ndp, Protocol, Tcp, Udp, icmp::Quoted};
use onecopy_link::{Capabilities, Head, Medium};
use proptest::prelude::*;
use std::net::Ipv6Addr;

fn ipv6() -> impl Strategy<Value = Ipv6> {
    let about = (any::<u8>(), any::<u8>(), any::<u8>(), 0..1u32 << 20, any::<u16>());
    (any::<[u8; 16]>(), any::<[u8; 16]>(), about).prop_map(
        |(from, to, (protocol, ttl, service, flow, payload_len))| Ipv6 {
            from: from.into(),
            to: to.into(),
            protocol: Protocol(protocol),
            ttl,
            service,
            flow,
            payload_len,
        },
    )
}

/// Something that somebody may well send to A.
fn good(which: u8, len: usize, number: u8) -> Vec<u8> {
    let payload = vec![number; len];
    let from = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number) + 2);
    let about = Ndp {
        target: if number.is_multiple_of(2) { A6 } else { from },
        source_mac: Some(STRANGER),
        target_mac: None,
    };
    match which {
        0 => udp(Protocol::UDP, &[], 9, &payload),
        1 => udp(Protocol(0), &[&[60, 0, 5, 2, 0, 0, 1, 0], &[17, 0, 1, 4, 0, 0, 0, 0]], 9, &payload),
        2 => icmp(from, A6, Icmpv6::Echo { id: 1, seq: 2 }, &payload),
        3 => ndp(from, solicited(A6), Icmpv6::Solicitation, about),
        4 => ndp(
            from,
            A6,
            Icmpv6::Advertisement { flags: 0x60 },
            Ndp { source_mac: None, target_mac: Some(STRANGER), ..about },
        ),
        5 => icmp(
            from,
            A6,
            Icmpv6::TooLong { mtu: 1300 },
            &whole(Ipv6::new(A6, B6, Protocol::TCP, 0), &[], &payload),
        ),
        6 => {
            let mut tcp = Head::new();
            Tcp::default().write(&mut tcp, onecopy_chain::Sum::ZERO).unwrap();
            whole(Ipv6::new(from, A6, Protocol::TCP, 0), &[], &[&tcp, &payload[..]].concat())
        }
        _ => {
            let mut between = Head::new();
            let offset = u16::from(number % 16) * 128;
            let fragment = Fragment { offset, more: !number.is_multiple_of(3), id: u32::from(number / 64) };
            fragment.write(&mut between, Protocol::UDP).unwrap();
            whole(Ipv6::new(B6, A6, Protocol::FRAGMENT, 0), &[&between], &payload[..len & !7])
        }
    }
}

proptest! {
    #[test]
    fn a_header_is_what_another_eye_reads(ip in ipv6()) {
        let mut head = Head::new();
        ip.write(&mut head).unwrap();
        let (theirs, rest) = etherparse::Ipv6Header::from_slice(&head).unwrap();
        prop_assert!(rest.is_empty());
        prop_assert_eq!((theirs.source, theirs.destination), (ip.from.octets(), ip.to.octets()));
        prop_assert_eq!((theirs.hop_limit, theirs.next_header.0), (ip.ttl, ip.protocol.0));
        prop_assert_eq!((theirs.traffic_class, theirs.flow_label.value()), (ip.service, ip.flow));
        prop_assert_eq!(theirs.payload_length, ip.payload_len);
        prop_assert_eq!(Ipv6::parse(&head).unwrap(), (ip, &[][..]));
    }

    #[test]
    fn a_message_is_read_as_it_was_written(kind in any::<u8>(), code in any::<u8>(), rest in any::<[u8; 4]>(),
        offset in any::<u16>(), more in any::<bool>(), id in any::<u32>(), mac in any::<[u8; 6]>())
    {
        let bytes = [&[kind, code, 0, 0][..], &rest].concat();
        let (icmp, _) = Icmpv6::parse(&bytes).unwrap();
        let mut head = Head::new();
        icmp.write(&mut head, onecopy_chain::Sum::ZERO).unwrap();
        prop_assert_eq!(&head[..], &bytes[..], "{:?}", icmp);
        let fragment = Fragment { offset: offset & !7, more, id };
        let mut head = Head::new();
        fragment.write(&mut head, Protocol(kind)).unwrap();
        prop_assert_eq!(Fragment::parse(&head), Ok((fragment, Protocol(kind))));
        let mac = Some(onecopy_inet::wire::Mac(mac));
        for ndp in [
            Ndp { target: A6, source_mac: mac, target_mac: None },
            Ndp { target: A6, source_mac: mac, target_mac: mac },
        ] {
            let mut head = Head::new();
            ndp.write(&mut head).unwrap();
            prop_assert_eq!(Ndp::parse(&head), Ok(ndp));
        }
    }

    #[test]
    fn whatever_comes_nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), next in any::<u8>(), ip in ipv6()) {
        let _ = (Ipv6::parse(&bytes), Icmpv6::parse(&bytes), Ndp::parse(&bytes), Fragment::parse(&bytes));
        let _ = (Ip::parse_quoted(&bytes), Quoted::parse(&bytes), Udp::parse(&bytes));
        // Headers that are likely.
        let kinds = [0, 43, 44, 60, next];
        let mut likely = bytes.clone();
        for at in (40..likely.len()).step_by(8) {
            likely[at] = kinds[usize::from(likely[at]) % kinds.len()];
            if let Some(len) = likely.get_mut(at + 1) {
                *len %= 3;
            }
        }
        let ip = Ipv6 { protocol: Protocol(kinds[usize::from(next) % 5]), ..ip };
        if let Ok(behind) = walk(&ip, &likely) {
            prop_assert!(behind.at >= Ipv6::LEN && (behind.at <= likely.len() || behind.at == Ipv6::LEN));
        }
    }

    #[test]
    fn each_packet_is_counted_once(
        ethernet in any::<bool>(),
        cases in prop::collection::vec((0..9u8, 0..1800usize, any::<u8>(), prop::collection::vec((0..100usize, any::<u8>()), 0..3)), 1..60),
    ) {
        let medium = if ethernet { Medium::Ethernet } else { Medium::Ip };
        let own = Cidr::new(A6, 64).unwrap();
        let mut config = Config::new(Capabilities::none(medium, 1500), MAC_A, &[own], [3; 16]);
        config.neighbours = 20;
        let mut ip = Interface::new(config).unwrap();
        let mut now = 0;
        for (which, len, number, changes) in cases {
            let mut bytes = good(which, len, number);
            for (at, value) in changes {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            let frame = ethernet.then_some((MAC_A, STRANGER));
            let mut came = packet(frame, &bytes);
            let input = ip.input(now, &mut came);
            match input {
                Input::Tcp(header) => {
                    prop_assert!(Tcp::parse(came.head()).expect("it is whole").1.is_empty());
                    prop_assert_eq!(came.len(), usize::from(header.payload_len()));
                }
                Input::Udp(_) => {
                    let (udp, _, rest) = Udp::parse(came.head()).expect("it is whole");
                    prop_assert!(rest.is_empty());
                    prop_assert_eq!(came.payload().payload().len(), usize::from(udp.payload_len));
                }
                _ => {}
            }
            let stats = ip.stats();
            let counted = stats.tcp + stats.udp + stats.icmp + stats.arp + stats.fragments + stats.dropped_in();
            prop_assert_eq!(stats.received, counted);
            prop_assert!(ip.neighbours().len() <= 20);
            while let Some(packet) = ip.transmit() {
                prop_assert!(ip.capabilities().takes(&packet).is_ok());
            }
            now += u64::from(number) * 100_000_000;
            ip.advance(now);
        }
        for _ in 0..20 {
            now += 10_000_000_000;
            ip.advance(now);
            while ip.transmit().is_some() || ip.complaint().is_some() {}
        }
        prop_assert!(ip.deadline().is_none(), "nobody is asked for ever");
    }
}
