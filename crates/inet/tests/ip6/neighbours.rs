//! Who has which address: questions, answers, and strangers who make them up.

use crate::bytes::{MAC_A, MAC_B, STRANGER, ndp, packet};
use crate::world::{A6, B6, Net, six};
use onecopy_inet::ip::{Interface, Outgoing, Reason};
use onecopy_inet::wire::ndp::{group_mac, solicited};
use onecopy_inet::wire::{Ethernet, Icmpv6, Ipv6, Mac, Ndp, Protocol};
use onecopy_link::pair::Path;
use onecopy_link::{Capabilities, Medium, Packet};
use std::net::Ipv6Addr;

const SECOND: u64 = 1_000_000_000;
const ANSWER: Icmpv6 = Icmpv6::Advertisement { flags: 0x60 };

fn net() -> Net {
    six(Path::new(), 1, Capabilities::all(Medium::Ethernet, 1500))
}

fn says(target: Ipv6Addr, mac: Mac) -> Ndp {
    Ndp { target, source_mac: None, target_mac: Some(mac) }
}

fn asks(target: Ipv6Addr, mac: Mac) -> Ndp {
    Ndp { target, source_mac: Some(mac), target_mac: None }
}

/// Why these bytes, in a frame to `to`, were dropped, if they were.
fn hear(ip: &mut Interface, now: u64, to: Mac, bytes: &[u8]) -> Option<Reason> {
    let before = ip.stats().clone();
    let _ = ip.input(now, &mut packet(Some((to, STRANGER)), bytes));
    let why = ip.stats().drops().find(|(reason, count)| *count > before.dropped(*reason));
    why.map(|(reason, _)| reason)
}

/// What leaves: the frame's header, IPv6's and the message.
fn left(ip: &mut Interface) -> Vec<(Ethernet, Ipv6, Icmpv6, Option<Ndp>)> {
    std::iter::from_fn(|| ip.transmit())
        .map(|packet| {
            let bytes = packet.to_vec().unwrap();
            let (frame, rest) = Ethernet::parse(&bytes).unwrap();
            let (ip, rest) = Ipv6::parse(rest).unwrap();
            let (icmp, body) = Icmpv6::parse(rest).unwrap();
            (frame, ip, icmp, Ndp::parse(body).ok())
        })
        .collect()
}

/// Does what is due until then.
fn later(ip: &mut Interface, until: u64) {
    while let Some(at) = ip.deadline().filter(|at| *at <= until) {
        ip.advance(at);
    }
}

/// Sends something that waits for B's hardware address.
fn send(ip: &mut Interface, now: u64) {
    let about = Outgoing::new(A6, B6, Protocol::ICMPV6);
    ip.ping(now, &about, (1, 1), Packet::default()).unwrap();
}

#[test]
fn a_neighbour_is_asked_by_its_group_and_answers() {
    let mut net = net();
    let ip = net.a.stack.interface_mut();
    send(ip, 0);
    let [(frame, header, icmp, Some(ndp))] = left(ip)[..] else { panic!("one question") };
    let group = solicited(B6);
    assert_eq!(group.to_string(), "ff02::1:ff00:2");
    assert_eq!((frame.to, frame.from), (Mac([0x33, 0x33, 0xff, 0, 0, 2]), MAC_A));
    assert_eq!((header.from, header.to, header.ttl), (A6, group, 255));
    assert_eq!((icmp, ndp), (Icmpv6::Solicitation, asks(B6, MAC_A)));
    // It is asked three times, and then there is nobody.
    later(ip, 60 * SECOND);
    assert_eq!((left(ip).len(), ip.stats().dropped(Reason::NeighbourSilent)), (2, 1));
    // The whole of it, with somebody there.
    let mut net = self::net();
    let now = net.now();
    let ip = net.a.stack.interface_mut();
    send(ip, now);
    net.run(3 * SECOND);
    assert_eq!(net.b.stack.interface().stats().echoes, 1);
    assert!(net.a.stack.interface().neighbours().is_reachable(net.now(), B6.into()));
}

#[test]
fn whoever_asks_for_ours_is_answered_and_made_known_to_nobody() {
    let mut net = net();
    let ip = net.a.stack.interface_mut();
    let frame = group_mac(solicited(A6));
    let question = ndp(B6, solicited(A6), Icmpv6::Solicitation, asks(A6, MAC_B));
    assert_eq!(hear(ip, 0, frame, &question), None);
    let [(frame, header, icmp, Some(said))] = left(ip)[..] else { panic!("one answer") };
    assert_eq!((frame.to, header.from, header.to, header.ttl), (MAC_B, A6, B6, 255));
    assert_eq!((icmp, said), (ANSWER, says(A6, MAC_A)));
    assert!(ip.neighbours().is_empty(), "only a packet of ours makes one known");
    // Who wants the address hears that it is taken, as do all.
    let group = group_mac(solicited(A6));
    let nobody = Ndp { target: A6, source_mac: None, target_mac: None };
    let probe = ndp(Ipv6Addr::UNSPECIFIED, solicited(A6), Icmpv6::Solicitation, nobody);
    assert_eq!(hear(ip, 0, group, &probe), None);
    let [(frame, header, icmp, Some(said))] = left(ip)[..] else { panic!("one answer") };
    assert_eq!(
        (frame.to.to_string().as_str(), header.to.to_string().as_str()),
        ("33:33:00:00:00:01", "ff02::1")
    );
    assert_eq!((icmp, said), (Icmpv6::Advertisement { flags: 0x20 }, says(A6, MAC_A)));
    // Who does not say where he is is asked in his turn.
    let silent = ndp(B6, A6, Icmpv6::Solicitation, nobody);
    assert_eq!(hear(ip, 0, MAC_A, &silent), None);
    let [(_, _, Icmpv6::Solicitation, Some(asked))] = left(ip)[..] else { panic!("one question") };
    assert_eq!(asked.target, B6);
    assert_eq!(hear(ip, 0, MAC_A, &ndp(B6, A6, ANSWER, says(B6, MAC_B))), None);
    assert_eq!(left(ip).len(), 1, "what waited");
}

#[test]
fn what_cannot_be_is_not_heard() {
    let mut net = net();
    let ip = net.a.stack.interface_mut();
    let (group, all) = (solicited(A6), "ff02::1".parse().unwrap());
    let good = ndp(B6, group, Icmpv6::Solicitation, asks(A6, MAC_B));
    let mut passed_on = good.clone();
    passed_on[7] = 254;
    let mut no_length = ndp(B6, group, Icmpv6::Solicitation, asks(A6, MAC_B));
    // The option's length is zero; the checksum is made right by its last bytes.
    no_length[65] = 0;
    let last = u16::from_be_bytes([no_length[70], no_length[71]]) + 1;
    no_length[70..].copy_from_slice(&last.to_be_bytes());
    let nobody = |ndp_body| ndp(Ipv6Addr::UNSPECIFIED, group, Icmpv6::Solicitation, ndp_body);
    for (bytes, reason) in [
        (passed_on, Reason::NdpMalformed),
        (no_length, Reason::NdpMalformed),
        (nobody(asks(A6, MAC_B)), Reason::NdpMalformed),
        (ndp(B6, group, Icmpv6::Solicitation, asks(A6, Mac::BROADCAST)), Reason::NdpMalformed),
        (ndp(B6, group, Icmpv6::Solicitation, asks(all, MAC_B)), Reason::NdpMalformed),
        (ndp(B6, A6, Icmpv6::Solicitation, asks(B6, MAC_B)), Reason::ArpUnknown),
        (ndp(B6, all, ANSWER, says(B6, MAC_B)), Reason::NdpMalformed),
        (ndp(B6, A6, ANSWER, says(A6, STRANGER)), Reason::ArpConflict),
        (ndp(B6, A6, ANSWER, says(B6, STRANGER)), Reason::ArpUnknown),
    ] {
        let to = if bytes[24] == 0xff { group_mac(group) } else { MAC_A };
        assert_eq!(hear(ip, 0, to, &bytes), Some(reason), "{bytes:?}");
    }
    // Groups that we are not in.
    let other = ndp(B6, "ff02::2".parse().unwrap(), Icmpv6::Solicitation, asks(A6, MAC_B));
    assert_eq!(hear(ip, 0, Mac([0x33, 0x33, 0, 0, 0, 2]), &other), Some(Reason::OtherStation));
    assert_eq!(hear(ip, 0, group_mac(all), &other), Some(Reason::OtherHost));
    assert_eq!((left(ip).len(), ip.neighbours().len()), (0, 0));
}

#[test]
fn a_neighbour_moves_when_it_says_so_and_not_at_a_strangers_word() {
    let mut net = net();
    let ip = net.a.stack.interface_mut();
    send(ip, 0);
    assert_eq!(hear(ip, 0, MAC_A, &ndp(B6, A6, ANSWER, says(B6, MAC_B))), None);
    assert!(ip.neighbours().is_reachable(0, B6.into()));
    left(ip);
    // A moment later nobody changes it; nor at all who does not say that it is to be changed, who has it be asked.
    let moved = |flags| ndp(B6, A6, Icmpv6::Advertisement { flags }, says(B6, STRANGER));
    assert_eq!(hear(ip, SECOND / 2, MAC_A, &moved(0x20)), Some(Reason::ArpTooSoon));
    assert_eq!(hear(ip, 2 * SECOND, MAC_A, &moved(0)), Some(Reason::ArpTooSoon));
    assert_eq!(ip.neighbours().get(B6.into()), Some(MAC_B));
    assert!(!ip.neighbours().is_reachable(2 * SECOND, B6.into()), "in doubt");
    assert_eq!(hear(ip, 3 * SECOND, MAC_A, &moved(0x20)), None);
    assert_eq!(ip.neighbours().get(B6.into()), Some(STRANGER));
    // It is used, and asked there alone, and does not answer.
    send(ip, 4 * SECOND);
    assert_eq!(left(ip).len(), 1);
    later(ip, 60 * SECOND);
    let questions = left(ip);
    assert_eq!(questions.len(), 3);
    for (frame, header, icmp, _) in questions {
        assert_eq!((frame.to, header.to, icmp), (STRANGER, B6, Icmpv6::Solicitation));
    }
    assert_eq!(ip.neighbours().get(B6.into()), None);
}

#[test]
fn a_flood_of_strangers_makes_nobody_known() {
    let mut net = net();
    let ip = net.a.stack.interface_mut();
    send(ip, 0);
    for number in 0..20_000_u32 {
        let from = Ipv6Addr::from((0xfd00_u128 << 112) + 0x10000 + u128::from(number));
        let mac = Mac([2, 1, 0, 0, (number >> 8) as u8, number as u8]);
        let bytes = match number % 2 {
            0 => ndp(from, solicited(A6), Icmpv6::Solicitation, asks(A6, mac)),
            _ => ndp(from, A6, ANSWER, says(from, mac)),
        };
        let to = if number % 2 == 0 { group_mac(solicited(A6)) } else { MAC_A };
        let _ = hear(ip, u64::from(number), to, &bytes);
    }
    assert_eq!(ip.neighbours().len(), 1);
    later(ip, 60 * SECOND);
    assert!(ip.neighbours().is_empty() && ip.deadline().is_none());
}
