//! Neighbours in virtual time: who is asked, when, and whom we believe.

mod net;

use net::*;
use onecopy_inet::ip::{Input, NotSent, Outgoing, Reason, Trouble};
use onecopy_inet::neigh::{WAITING, WAITING_ALL, WAITING_EACH};
use onecopy_inet::wire::{Mac, Protocol, arp::Operation, icmp::Unreachable};
use onecopy_link::pair::{Path, Side};
use onecopy_link::{Capabilities, Medium, Packet};
use std::net::{IpAddr, Ipv4Addr};

#[test]
fn the_first_packet_asks_and_the_next_ones_go_at_once() {
    let mut net = Net::ethernet();
    send(&mut net, 1, b"one");
    net.run_for(SECOND);
    send(&mut net, 2, b"two");
    net.run_for(SECOND);
    assert_eq!(sequence(&net.b.came), [1, 2]);
    assert_eq!((net.a.ip.stats().asked, net.b.ip.stats().arp), (1, 1));
    assert_eq!(net.a.ip.neighbours().get(B.into()), Some(MAC_B));
    assert!(net.a.ip.neighbours().is_reachable(net.now(), B.into()));
    // Who was asked asks himself when he has something to say: nobody is known by what he asks.
    assert!(net.b.ip.neighbours().is_empty());
    assert_balanced(net.a.ip.stats());
    assert_balanced(net.b.ip.stats());
}

#[test]
fn of_those_that_wait_the_newest_stay() {
    let mut net = Net::ethernet();
    let last = WAITING as u32 + 2;
    for seq in 1..=last {
        send(&mut net, seq, b"wait");
    }
    net.run_for(SECOND);
    assert_eq!(sequence(&net.b.came), (3..=last).collect::<Vec<_>>());
    assert_eq!(net.a.ip.stats().dropped(Reason::NeighbourQueue), 2);
    assert_eq!(net.a.ip.stats().asked, 1);
}

fn send_to(net: &mut Net, to: Ipv4Addr, seq: u32) -> Result<(), NotSent> {
    let now = net.now();
    net.a.ip.output(now, &Outgoing::new(A, to, Protocol::TCP), segment(A, to, seq, b"wait"))
}

#[test]
fn the_silent_take_nothing_from_others() {
    let mut net = Net::ethernet();
    let silent = |number: usize| Ipv4Addr::new(10, 0, 0, 100 + number as u8);
    let hosts = WAITING_ALL / WAITING + 5;
    for host in 0..hosts {
        for seq in 0..WAITING {
            assert_eq!(send_to(&mut net, silent(host), seq as u32), Ok(()));
        }
    }
    // Some have all of theirs, and the last ones a few.
    let full = WAITING_ALL / WAITING;
    let kept = net.a.ip.stats().dropped(Reason::NeighbourQueue);
    assert_eq!(
        kept as usize,
        (hosts - full) * WAITING - (WAITING_ALL - full * WAITING) - (hosts - full - 1) * WAITING_EACH
    );
    for seq in 1..=5 {
        send(&mut net, seq, b"wait");
    }
    net.run_for(SECOND);
    assert_eq!(sequence(&net.b.came), [3, 4, 5]);
    // Once they are given up there is room again.
    net.run_for(10 * SECOND);
    for seq in 1..=WAITING as u32 {
        assert_eq!(send_to(&mut net, silent(0), seq), Ok(()));
    }
    let lost = net.a.ip.stats().dropped(Reason::NeighbourQueue);
    assert_eq!(lost, kept + 2);
    assert_balanced(net.a.ip.stats());
}

#[test]
fn a_lost_answer_is_asked_for_again_each_second() {
    let mut net = Net::ethernet();
    net.wire.set_path(Side::B, Path::new().loss(1.0));
    send(&mut net, 1, b"lost");
    net.run(SECOND * 9 / 10);
    assert_eq!(net.a.ip.stats().asked, 1);
    net.run(SECOND * 11 / 10);
    assert_eq!(net.a.ip.stats().asked, 2);
    net.wire.set_path(Side::B, Path::new());
    net.run(SECOND * 3);
    assert_eq!((net.a.ip.stats().asked, sequence(&net.b.came)), (3, vec![1]));
}

#[test]
fn a_silent_neighbour_is_given_up_and_each_of_its_senders_told() {
    let mut net = Net::ethernet();
    net.wire.set_path(Side::A, Path::new().loss(1.0));
    send(&mut net, 7, b"lost");
    send(&mut net, 8, b"lost");
    net.run(SECOND * 29 / 10);
    assert_eq!((net.a.ip.stats().asked, net.a.complaints.len()), (3, 0));
    net.run(SECOND * 31 / 10);
    assert_eq!(net.a.ip.stats().asked, 3);
    assert_eq!(net.a.ip.stats().dropped(Reason::NeighbourSilent), 2);
    let told: Vec<_> = net.a.complaints.iter().map(|complaint| complaint.seq.0).collect();
    assert_eq!(told, [7, 8]);
    let first = net.a.complaints[0];
    assert_eq!(first.trouble, Trouble::Unreachable(Unreachable::HOST));
    assert_eq!((first.local.ip(), first.local.port()), (IpAddr::V4(A), 4000));
    assert_eq!((first.remote.ip(), first.remote.port()), (IpAddr::V4(B), 80));
    assert!(net.a.ip.neighbours().is_empty() && net.a.ip.deadline().is_none());
    // It is asked anew by the next packet.
    net.wire.set_path(Side::A, Path::new());
    send(&mut net, 9, b"there");
    net.run_for(SECOND);
    assert_eq!(sequence(&net.b.came), [9]);
}

#[test]
fn what_was_not_heard_of_for_long_is_asked_alone() {
    let mut net = Net::ethernet();
    send(&mut net, 1, b"");
    net.run_for(60 * SECOND);
    // Nobody asks while nothing goes there.
    assert!(!net.a.ip.neighbours().is_reachable(net.now(), B.into()) && net.a.ip.stats().asked == 1);
    send(&mut net, 2, b"");
    net.run_for(SECOND * 49 / 10);
    assert_eq!((sequence(&net.b.came), net.a.ip.stats().asked), (vec![1, 2], 1));
    net.run_for(SECOND);
    assert_eq!(net.a.ip.stats().asked, 2);
    assert!(net.a.ip.neighbours().is_reachable(net.now(), B.into()));

    // A transport that hears of it spares the question.
    net.run_for(60 * SECOND);
    send(&mut net, 3, b"");
    let now = net.now();
    net.a.ip.confirm(now, B.into());
    net.run_for(10 * SECOND);
    assert_eq!(net.a.ip.stats().asked, 2);

    // One that does not answer is asked three times, by itself, and forgotten.
    net.run_for(60 * SECOND);
    net.wire.set_path(Side::B, Path::new().loss(1.0));
    send(&mut net, 4, b"");
    net.run_for(SECOND * 79 / 10);
    assert_eq!((net.a.ip.stats().asked, net.a.ip.neighbours().len()), (5, 1));
    net.run_for(SECOND);
    assert_eq!((net.a.ip.stats().asked, net.a.ip.neighbours().len()), (5, 0));
    assert_balanced(net.a.ip.stats());
}

#[test]
fn strangers_make_no_entries() {
    let mut ip = interface(Medium::Ethernet);
    for number in 0..1000u16 {
        let [high, low] = number.to_be_bytes();
        let sender = (STRANGER, Ipv4Addr::new(10, 0, 0, 3 + low % 250));
        let operation = if high % 2 == 0 { Operation::REPLY } else { Operation::REQUEST };
        let target = if low % 3 == 0 { (MAC_A, A) } else { (Mac::BROADCAST, sender.1) };
        ip.input(number.into(), &mut arp(operation, MAC_A, sender, target));
    }
    assert!(ip.neighbours().is_empty());
    assert_eq!(ip.stats().arp + ip.stats().dropped(Reason::ArpUnknown), 1000);
    assert_balanced(ip.stats());
    // Our address is ours, whoever says it.
    let mut claim = arp(Operation::REPLY, Mac::BROADCAST, (STRANGER, A), (Mac::BROADCAST, A));
    ip.input(0, &mut claim);
    assert_eq!(ip.stats().dropped(Reason::ArpConflict), 1);
    // And it is defended against who looks whether it is free.
    while ip.transmit().is_some() {}
    let mut probe =
        arp(Operation::REQUEST, Mac::BROADCAST, (STRANGER, Ipv4Addr::UNSPECIFIED), (Mac::default(), A));
    ip.input(0, &mut probe);
    assert!(ip.transmit().is_some() && ip.neighbours().is_empty());
}

#[test]
fn a_known_neighbour_may_move_but_is_asked_then() {
    let mut net = Net::ethernet();
    send(&mut net, 1, b"");
    net.run_for(SECOND / 2);
    let moved = || arp(Operation::REPLY, Mac::BROADCAST, (STRANGER, B), (Mac::BROADCAST, B));
    // The first answer counts for a second.
    let now = net.now();
    net.a.ip.input(now, &mut moved());
    assert_eq!(net.a.ip.neighbours().get(B.into()), Some(MAC_B));
    assert_eq!(net.a.ip.stats().dropped(Reason::ArpTooSoon), 1);
    net.run_for(SECOND);
    let now = net.now();
    net.a.ip.input(now, &mut moved());
    assert_eq!(net.a.ip.neighbours().get(B.into()), Some(STRANGER));
    assert!(!net.a.ip.neighbours().is_reachable(now, B.into()), "it was not asked");
    // What is said to us alone is no answer either, as long as nobody asked.
    net.run_for(2 * SECOND);
    let now = net.now();
    net.a.ip.input(now, &mut arp(Operation::REPLY, MAC_A, (STRANGER, B), (MAC_A, A)));
    assert!(!net.a.ip.neighbours().is_reachable(now, B.into()));
    // Used, it is asked where it says it is; nobody is there, so all are asked then.
    send(&mut net, 2, b"");
    net.run_for(10 * SECOND);
    assert_eq!(net.a.ip.neighbours().get(B.into()), None);
    send(&mut net, 3, b"");
    net.run_for(SECOND);
    assert_eq!(sequence(&net.b.came), [1, 3]);
}

#[test]
fn neighbours_are_bounded_and_those_in_use_stay() {
    let mut settings = config(Capabilities::all(Medium::Ethernet, 1500), MAC_A, A);
    settings.neighbours = 8;
    let mut ip = onecopy_inet::ip::Interface::new(settings).unwrap();
    let mut go = |now: u64, host: u8| {
        let to = Ipv4Addr::new(10, 0, 0, host);
        let about = Outgoing::new(A, to, Protocol::TCP);
        ip.output(now, &about, segment(A, to, 1, b"")).unwrap();
        let mac = Mac([2, 0, 0, 0, 0, host]);
        let heard = ip.input(now, &mut arp(Operation::REPLY, MAC_A, (mac, to), (MAC_A, A)));
        assert_eq!(heard, Input::Done);
        while ip.transmit().is_some() {}
        (ip.neighbours().len(), ip.neighbours().get(B.into()), ip.neighbours().evicted())
    };
    go(0, 2);
    for host in 3..200 {
        let (len, b, evicted) = go(host.into(), host);
        assert!(len <= 8 && evicted == u64::from(host).saturating_sub(9));
        assert_eq!(b, Some(MAC_B), "it is used again and again");
        go(host.into(), 2);
    }
}

#[test]
fn questions_are_bounded() {
    let mut ip = interface(Medium::Ethernet);
    for host in 3..=254 {
        for again in 0..3 {
            let to = Ipv4Addr::new(10, 0, 0, host);
            ip.output(0, &Outgoing::new(A, to, Protocol::TCP), segment(A, to, again, b"")).unwrap();
        }
    }
    assert_eq!(ip.stats().asked, 250, "252 hosts, once each, but for the bucket");
    assert_eq!(std::iter::from_fn(|| ip.transmit()).count(), 250);
}

#[test]
fn what_comes_by_arp_and_is_none_is_counted() {
    let mut ip = interface(Medium::Ethernet);
    let good = arp(Operation::REQUEST, MAC_A, (MAC_B, B), (MAC_A, A)).to_vec().unwrap();
    for (bytes, reason) in [
        (good[..41].to_vec(), Reason::ArpMalformed),
        ([&good[..14], &[0, 9], &good[16..]].concat(), Reason::ArpMalformed),
        ([&good[..22], &[3], &good[23..]].concat(), Reason::ArpMalformed),
        ([&good[..12], &[0x88, 0xcc], &good[14..]].concat(), Reason::EtherType),
        ([&[2, 0, 0, 0, 0, 9], &good[6..]].concat(), Reason::OtherStation),
        ([&good[..6], &[3], &good[7..]].concat(), Reason::BadStation),
    ] {
        let before = ip.stats().dropped(reason);
        ip.input(0, &mut Packet::new(&bytes, onecopy_chain::Chain::new()).unwrap());
        assert_eq!(ip.stats().dropped(reason), before + 1, "{reason:?}: {:?}", ip.stats());
    }
    assert!(ip.transmit().is_none());
}
