//! Whatever comes in IPv6: nothing panics, each packet is counted once, and what is handed up is whole. Checksums are made right again, so that what
//! is behind them is looked at.

use crate::bytes::{MAC_A, MAC_B, icmp, ndp, packet, udp, whole};
use crate::world::{A6, B6};
use onecopy_chain::Sum;
use onecopy_inet::ip::{Cidr, Config, Input, Interface, Reason};
use onecopy_inet::wire::ipv6::{Behind, Fragment, walk};
use onecopy_inet::wire::{Icmpv6, Ip, Ipv6, Ndp, Protocol, Tcp, Udp};
use onecopy_link::{Capabilities, Head, Medium};
use proptest::prelude::*;
use std::net::Ipv6Addr;

const SECOND: u64 = 1_000_000_000;
/// What [`good`] has.
const KINDS: u8 = 13;

/// Something that somebody may well send: which, from whose host, and with how many bytes of payload.
fn good(which: u8, host: u16, len: usize) -> Vec<u8> {
    let from = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host);
    let payload = vec![host as u8; len];
    let options = [17, 0, 1, 4, 0, 0, 0, 0];
    match which {
        0 => {
            let mut head = Head::new();
            Tcp { from: 4000, to: 80, ..Tcp::default() }.write(&mut head, Sum::ZERO).unwrap();
            let ip = Ipv6::new(from, A6, Protocol::TCP, 0);
            mended(whole(ip, &[], &[&head, &payload[..]].concat()))
        }
        1 => udp(Protocol::UDP, &[], 80, &payload),
        // Options for each hop, and for the end.
        2 => udp(Protocol(0), &[&[60, 0, 1, 4, 0, 0, 0, 0], &options], 80, &payload),
        // A way whose every stop lies behind it.
        3 => udp(Protocol(43), &[&[17, 0, 0, 0, 0, 0, 0, 0]], 80, &payload),
        // The first of a packet, another one, and a whole one.
        4..=6 => {
            let mut head = Head::new();
            let more = which < 6;
            let offset = if which == 5 { 64 } else { 0 };
            let fragment = Fragment { id: u32::from(host) % 4, offset, more };
            fragment.write(&mut head, Protocol::UDP).unwrap();
            let ip = Ipv6::new(from, A6, Protocol(44), 0);
            let len = if more { len & !7 } else { len };
            let behind = udp(Protocol::UDP, &[], 80, &payload)[Ipv6::LEN..].to_vec();
            whole(ip, &[&head], &behind[..8 + len])
        }
        7 => {
            ndp(from, A6, Icmpv6::Solicitation, Ndp { target: A6, source_mac: Some(MAC_B), target_mac: None })
        }
        8 => {
            let said = Ndp { target: from, source_mac: None, target_mac: Some(MAC_B) };
            ndp(from, A6, Icmpv6::Advertisement { flags: 0x60 }, said)
        }
        9 => icmp(from, A6, Icmpv6::Echo { id: 1, seq: 2 }, &payload),
        10 => icmp(from, A6, Icmpv6::EchoReply { id: 1, seq: 2 }, &payload),
        _ => {
            let quoted = whole(Ipv6::new(A6, B6, Protocol::TCP, 0), &[], &[7; 20]);
            let what = [Icmpv6::TooLong { mtu: 1400 }, Icmpv6::TimeExceeded { code: 0 }];
            icmp(from, A6, what[usize::from(which) % 2], &quoted)
        }
    }
}

/// The same with the checksum of what it carries made right, where that is all there.
fn mended(mut bytes: Vec<u8>) -> Vec<u8> {
    let Ok((ip, _)) = Ipv6::parse(&bytes) else { return bytes };
    let Ok(Behind { protocol, at, fragment, .. }) = walk(&ip, &bytes) else { return bytes };
    if fragment.is_some_and(|fragment| fragment.more || fragment.offset > 0) {
        return bytes;
    }
    let field = match protocol {
        Protocol::TCP => Tcp::CHECKSUM,
        Protocol::UDP => Udp::CHECKSUM,
        Protocol::ICMPV6 => Icmpv6::CHECKSUM,
        _ => return bytes,
    };
    // What is behind the length that is said is padding.
    let end = bytes.len().min(Ipv6::LEN + usize::from(ip.payload_len));
    let Some(message) = bytes.get_mut(at..end).filter(|message| message.len() >= field + 2) else {
        return bytes;
    };
    message[field..field + 2].fill(0);
    let sum = Ip::V6(Ipv6 { protocol, payload_len: 0, ..ip }).pseudo(message.len() as u32);
    let sum = sum.then(Sum::of(message), 0).checksum();
    message[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}

#[derive(Clone, Debug)]
struct Hostile {
    which: u8,
    host: u16,
    len: usize,
    changes: Vec<(prop::sample::Index, u8)>,
    mended: bool,
    cut: Option<prop::sample::Index>,
    padding: usize,
    wait: u64,
}

fn hostile() -> impl Strategy<Value = Hostile> {
    let index = any::<prop::sample::Index>;
    let bytes = (0..KINDS, 0..300u16, prop_oneof![0..64usize, 0..1400usize]);
    let damage = prop_oneof![
        1 => Just(Vec::new()).boxed(),
        4 => prop::collection::vec((index(), any::<u8>()), 1..4).boxed(),
        1 => prop::collection::vec((index(), any::<u8>()), 200).boxed(),
    ];
    let ends = (prop::option::weighted(0.2, index()), prop_oneof![Just(0), 0..40usize]);
    let rest = (prop::bool::weighted(0.8), 0..2_000_000_000u64);
    (bytes, damage, ends, rest).prop_map(|((which, host, len), changes, (cut, padding), (mended, wait))| {
        Hostile { which, host, len, changes, mended, cut, padding, wait }
    })
}

fn bytes(case: &Hostile) -> Vec<u8> {
    let mut bytes = good(case.which, case.host, case.len);
    // Near the front, where the headers are.
    for (place, value) in &case.changes {
        let front = bytes.len().min(100);
        bytes[place.index(front)] = *value;
    }
    if let Some(cut) = case.cut {
        bytes.truncate(cut.index(bytes.len()));
    }
    bytes.extend(vec![0xcc; case.padding]);
    if case.mended { mended(bytes) } else { bytes }
}

fn interface(medium: Medium) -> Interface {
    let own = Cidr::new(A6, 64).unwrap();
    let mut config = Config::new(Capabilities::all(medium, 1500), MAC_A, &[own], *b"a seed of a test");
    config.neighbours = 20;
    Interface::new(config).unwrap()
}

/// Packets that were thrown away for this reason.
fn dropped(ip: &Interface, reason: Reason) -> u64 {
    ip.stats().drops().find(|(other, _)| *other == reason).map_or(0, |(_, count)| count)
}

#[test]
fn what_is_mended_is_looked_into() {
    for which in 0..KINDS {
        for medium in [Medium::Ethernet, Medium::Ip] {
            let frame = (medium == Medium::Ethernet).then_some((MAC_A, MAC_B));
            let mut changed = good(which, 2, 64);
            // A part of a packet has no checksum of its own.
            let is_part = matches!(which, 4 | 5);
            *changed.last_mut().unwrap() ^= 1;
            let mut ip = interface(medium);
            ip.input(0, &mut packet(frame, &changed));
            assert_eq!(dropped(&ip, Reason::Checksum), u64::from(!is_part), "{which} {medium:?}");
            ip.input(0, &mut packet(frame, &mended(changed)));
            assert_eq!(dropped(&ip, Reason::Checksum), u64::from(!is_part), "{which} {medium:?}, mended");
        }
    }
}

fn drive(medium: Medium, cases: &[Hostile]) -> Result<(), TestCaseError> {
    let (mut ip, mut now) = (interface(medium), 0);
    let frame = (medium == Medium::Ethernet).then_some((MAC_A, MAC_B));
    for case in cases {
        now += case.wait;
        ip.advance(now);
        let before = ip.stats().clone();
        let mut packet = packet(frame, &bytes(case));
        let input = ip.input(now, &mut packet);
        let after = ip.stats();
        prop_assert_eq!(after.received, before.received + 1);
        let counted = |stats: &onecopy_inet::ip::Stats| {
            stats.tcp + stats.udp + stats.icmp + stats.arp + stats.fragments + stats.dropped_in()
        };
        prop_assert_eq!(counted(after), counted(&before) + 1);
        match input {
            Input::Tcp(header) => {
                let (_, rest) = Tcp::parse(packet.head()).expect("it is whole");
                prop_assert!(rest.is_empty() && packet.len() == usize::from(header.payload_len()));
                prop_assert_eq!(header.to(), A6);
            }
            Input::Udp(_) => {
                let (udp, _, rest) = Udp::parse(packet.head()).expect("it is whole");
                let payload = packet.payload().payload().len();
                prop_assert!(rest.is_empty() && payload == usize::from(udp.payload_len));
            }
            Input::Complaint(complaint) => prop_assert_eq!(complaint.local.ip(), A6),
            Input::Echo { .. } | Input::Done => {}
        }
        // What it sends to itself is as hostile as the rest, and ends.
        std::iter::from_fn(|| ip.input_looped(now)).take(1_000).for_each(drop);
        while ip.complaint().is_some() {}
        while let Some(packet) = ip.transmit() {
            prop_assert!(ip.capabilities().takes(&packet).is_ok());
        }
        prop_assert!(ip.neighbours().len() <= 20);
    }
    for _ in 0..20 {
        now += SECOND * 10;
        ip.advance(now);
        while ip.complaint().is_some() || ip.transmit().is_some() {}
    }
    prop_assert!(ip.deadline().is_none(), "nobody is asked, and no part is kept, for ever");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn each_packet_of_ipv6_is_counted_once(
        ethernet in any::<bool>(),
        cases in prop::collection::vec(hostile(), 1..40),
    ) {
        drive(if ethernet { Medium::Ethernet } else { Medium::Ip }, &cases)?;
    }
}
