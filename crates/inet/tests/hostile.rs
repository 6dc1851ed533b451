//! Whatever bytes come: nothing panics, each packet is counted once, and what is handed up is whole.

mod net;

use net::*;
use onecopy_chain::{Checksum, Sum};
use onecopy_inet::ip::{Input, Interface, Outgoing, Reason};
use onecopy_inet::wire::{Icmp, Mac, Protocol, Tcp, Udp, arp::Operation, checksum};
use onecopy_link::{Capabilities, Gso, Medium, Packet, Train};
use proptest::prelude::*;
use std::net::Ipv4Addr;

/// Something that somebody may well send: which, for whom, and with how many bytes of payload.
fn good(medium: Medium, which: u8, host: u8, len: usize) -> Vec<u8> {
    let from = Ipv4Addr::new(10, 0, 0, host);
    let mut packet = Packet::from(chain(&vec![host; len]));
    match which {
        0 | 1 => {
            let mut segment = segment(from, A, 1, &vec![host; len]);
            segment.finish().unwrap();
            whole(medium, from, Protocol::TCP, &segment.to_vec().unwrap())
        }
        2 => {
            let udp = Udp { from: 1, to: 2, payload_len: len as u16 };
            udp.write(packet.head_mut(), checksum::pseudo_v4(from, A, Protocol::UDP, 8 + len as u32))
                .unwrap();
            checksum::leave_unfinished(&mut packet, 0, Udp::CHECKSUM).unwrap();
            packet.finish().unwrap();
            whole(medium, from, Protocol::UDP, &packet.to_vec().unwrap())
        }
        3..=5 => {
            let icmp = match which {
                3 => Icmp::Echo { id: 1, seq: 2 },
                4 => Icmp::EchoReply { id: 1, seq: 2 },
                _ => {
                    let quoted = whole(Medium::Ip, A, Protocol::TCP, &[7; 20]);
                    packet = Packet::from(chain(&quoted));
                    Icmp::TimeExceeded { code: 0 }
                }
            };
            icmp.write(packet.head_mut()).unwrap();
            checksum::leave_unfinished(&mut packet, 0, Icmp::CHECKSUM).unwrap();
            packet.finish().unwrap();
            whole(medium, from, Protocol::ICMP, &packet.to_vec().unwrap())
        }
        _ => {
            let operation = if which == 6 { Operation::REQUEST } else { Operation::REPLY };
            let sender = (Mac([2, 0, 0, 0, 0, host]), from);
            arp(operation, MAC_A, sender, (MAC_A, A)).to_vec().unwrap()
        }
    }
}

#[derive(Clone, Debug)]
struct Hostile {
    which: u8,
    host: u8,
    len: usize,
    changes: Vec<(prop::sample::Index, u8)>,
    /// Its checksums are made right again, so that what is behind them is looked at.
    mended: bool,
    cut: Option<prop::sample::Index>,
    padding: usize,
    /// Where the head ends.
    at: prop::sample::Index,
    known: u8,
    gso: Option<(u16, u8)>,
    /// We send something to that host, too.
    answer: bool,
    wait: u64,
}

fn hostile() -> impl Strategy<Value = Hostile> {
    let index = any::<prop::sample::Index>;
    let bytes = (0..8u8, 0..=255u8, prop_oneof![0..64usize, 0..2000usize]);
    let damage = prop_oneof![
        1 => Just(Vec::new()).boxed(),
        3 => prop::collection::vec((index(), any::<u8>()), 1..4).boxed(),
        1 => prop::collection::vec((index(), any::<u8>()), 200).boxed(),
    ];
    let ends = (any::<bool>(), prop::option::weighted(0.2, index()), prop_oneof![Just(0), 0..40usize]);
    let about = (index(), 0..6u8, prop::option::weighted(0.2, any::<(u16, u8)>()));
    (bytes, damage, ends, about, any::<bool>(), 0..2_000_000_000u64).prop_map(
        |((which, host, len), changes, (mended, cut, padding), (at, known, gso), answer, wait)| Hostile {
            which,
            host,
            len,
            changes,
            mended,
            cut,
            padding,
            at,
            known,
            gso,
            answer,
            wait,
        },
    )
}

/// Makes IP's checksum right, and that of what it carries.
fn mend(bytes: &mut [u8], network: usize) {
    let Some(bytes) = bytes.get_mut(network..).filter(|bytes| bytes.len() >= 20) else { return };
    let header = (usize::from(bytes[0] & 15) * 4).clamp(20, bytes.len());
    bytes[10..12].fill(0);
    let sum = Sum::of(&bytes[..header]).checksum();
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    let says = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
    let end = says.clamp(header, bytes.len());
    let (ip, behind) = bytes[..end].split_at_mut(header);
    let len = behind.len() as u32;
    let (field, pseudo) = match Protocol(ip[9]) {
        Protocol::TCP => (Tcp::CHECKSUM, Some(Protocol::TCP)),
        Protocol::UDP => (Udp::CHECKSUM, Some(Protocol::UDP)),
        Protocol::ICMP => (Icmp::CHECKSUM, None),
        _ => return,
    };
    if behind.len() < field + 2 {
        return;
    }
    let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
    let pseudo =
        pseudo.map_or(Sum::ZERO, |protocol| checksum::pseudo_v4(address(12), address(16), protocol, len));
    behind[field..field + 2].fill(0);
    let sum = pseudo.then(Sum::of(behind), 0).checksum();
    behind[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn what_is_mended_is_looked_into() {
    for which in [0, 2, 3, 4, 5] {
        for medium in [Medium::Ethernet, Medium::Ip] {
            let mut ip = interface(medium);
            let mut bytes = good(medium, which, 2, 64);
            *bytes.last_mut().unwrap() ^= 1;
            let mut come = |bytes: &[u8]| {
                let at = bytes.len().min(128);
                ip.input(0, &mut Packet::new(&bytes[..at], chain(&bytes[at..])).unwrap());
                ip.stats().drops().find(|(why, _)| *why == Reason::Checksum).map_or(0, |(_, count)| count)
            };
            assert_eq!(come(&bytes), 1, "{which}");
            mend(&mut bytes, medium.header_len());
            assert_eq!(come(&bytes), 1, "{which}, mended");
        }
    }
}

fn packet(medium: Medium, case: &Hostile) -> Packet {
    let mut bytes = good(medium, case.which, case.host, case.len);
    let network = medium.header_len();
    // Near the front, where the headers are.
    for (place, value) in &case.changes {
        let front = bytes.len().min(100);
        bytes[place.index(front)] = *value;
    }
    if case.mended {
        mend(&mut bytes, network);
    }
    if let Some(cut) = case.cut {
        bytes.truncate(cut.index(bytes.len()));
    }
    bytes.extend(vec![0xcc; case.padding]);
    let at = case.at.index(bytes.len().min(128) + 1).min(bytes.len());
    let mut packet = Packet::new(&bytes[..at], chain(&bytes[at..])).unwrap();
    let checksum = match case.known {
        0 => Checksum::Verified,
        1 => Checksum::Known(Sum::of(&bytes[at..])),
        2 => Checksum::Partial { start: 0, offset: 0 },
        _ => Checksum::None,
    };
    let _ = packet.set_checksum(checksum);
    packet.set_gso(case.gso.map(|(size, network)| Gso { train: Train::Tcp, size, network }));
    packet
}

fn drive(medium: Medium, ip: &mut Interface, cases: &[Hostile]) -> Result<(), TestCaseError> {
    let (mut now, mut left) = (0, 0);
    for case in cases {
        now += case.wait;
        ip.advance(now);
        let before = ip.stats().clone();
        let mut packet = packet(medium, case);
        let len = packet.len();
        let input = ip.input(now, &mut packet);
        let after = ip.stats();
        prop_assert_eq!(after.received, before.received + 1);
        let counted = |stats: &onecopy_inet::ip::Stats| {
            stats.tcp + stats.udp + stats.icmp + stats.arp + stats.fragments + stats.dropped_in()
        };
        prop_assert_eq!(counted(after), counted(&before) + 1);
        match input {
            Input::Tcp(header) => {
                let (tcp, rest) = Tcp::parse(packet.head()).expect("it is whole");
                prop_assert!(rest.is_empty() && packet.len() == usize::from(header.payload_len()));
                prop_assert!(packet.len() <= len && header.to() == A);
                prop_assert_eq!(after.tcp, before.tcp + 1);
                let _ = tcp;
            }
            Input::Udp(_) => {
                let (udp, _, rest) = Udp::parse(packet.head()).expect("it is whole");
                let payload = packet.payload().payload().len();
                prop_assert!(rest.is_empty() && payload == usize::from(udp.payload_len));
            }
            Input::Complaint(complaint) => prop_assert_eq!(complaint.local.ip(), A),
            Input::Echo { .. } | Input::Done => {}
        }
        if case.answer {
            let to = Ipv4Addr::new(10, 0, 0, case.host);
            let mut out = segment(A, to, 1, &[1; 3000]);
            out.set_gso(Some(Gso { train: Train::Tcp, size: 1000, network: 0 }));
            let _ = ip.output(now, &Outgoing::new(A, to, Protocol::TCP), out);
        }
        // What it sends to itself is as hostile as the rest, and ends.
        left += std::iter::from_fn(|| ip.input_looped(now)).take(1_000).count() as u64;
        while ip.complaint().is_some() {}
        while let Some(packet) = ip.transmit() {
            prop_assert!(ip.capabilities().takes(&packet).is_ok());
            left += 1;
        }
        prop_assert!(ip.neighbours().len() <= 20);
    }
    // All that was to leave has, or has not, in the end.
    for _ in 0..20 {
        now += SECOND * 10;
        ip.advance(now);
        while ip.complaint().is_some() {}
        left += std::iter::from_fn(|| ip.transmit()).count() as u64;
    }
    prop_assert!(ip.deadline().is_none(), "nobody is asked for ever");
    let stats = ip.stats();
    if (stats.cut, stats.fragmented) == (0, 0) {
        prop_assert_eq!(stats.sent, left + stats.dropped_out());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn each_packet_is_counted_once(
        ethernet in any::<bool>(),
        offloads in any::<bool>(),
        cases in prop::collection::vec(hostile(), 1..40),
    ) {
        let medium = if ethernet { Medium::Ethernet } else { Medium::Ip };
        let capabilities = match offloads {
            true => Capabilities::all(medium, 1500),
            false => Capabilities::none(medium, 1500),
        };
        let mut settings = config(capabilities, MAC_A, A);
        settings.neighbours = 20;
        let mut ip = Interface::new(settings).unwrap();
        drive(medium, &mut ip, &cases)?;
    }

    #[test]
    fn bytes_by_chance_are_dropped(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0..=128usize) {
        for medium in [Medium::Ethernet, Medium::Ip] {
            let mut ip = interface(medium);
            let at = at.min(bytes.len());
            let mut packet = Packet::new(&bytes[..at], chain(&bytes[at..])).unwrap();
            ip.input(0, &mut packet);
            assert_balanced(ip.stats());
        }
    }
}
