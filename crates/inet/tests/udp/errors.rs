//! What others say of datagrams: port unreachable and its kind, both ways.

use crate::world::*;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::{Readiness, Wake};
use onecopy_inet::udp::{Envelope, Error};
use onecopy_inet::wire::icmp::Unreachable;
use onecopy_inet::wire::{Icmp, Protocol, checksum};
use onecopy_link::{Medium, Packet};
use std::net::SocketAddr;

#[test]
fn who_is_connected_hears_once_that_nobody_has_the_port() {
    for medium in MEDIA {
        let mut world = World::new(medium);
        let (connected, other) = (world.a.connected(at(B, 7)), world.a.bound(ANY, 0));
        // As Linux 6.18: sent, refused, sent, refused where it is received.
        assert_eq!(world.send(connected, &Envelope::CONNECTED, b"x"), Ok(1));
        world.go();
        assert_eq!(world.a.stack.udp_readiness(connected), Readiness::WRITE | Readiness::ERROR);
        let told = world.a.events();
        assert_eq!(told.len(), 1);
        assert_eq!((told[0].id, told[0].wake), (connected, Wake::READ | Wake::WRITE | Wake::ERROR));
        assert_eq!(world.send(connected, &Envelope::CONNECTED, b"x"), Err(Error::Refused));
        assert_eq!(world.send(connected, &Envelope::CONNECTED, b"x"), Ok(1));
        world.go();
        assert_eq!(world.a.stack.udp_receive(connected).unwrap_err().errno(), 111);
        assert_eq!(world.a.stack.udp_receive(connected).unwrap_err(), Error::WouldBlock);
        world.send(connected, &Envelope::CONNECTED, b"x").unwrap();
        world.go();
        assert_eq!(world.a.stack.udp_take_error(connected), Some(Error::Refused), "SO_ERROR");
        assert_eq!(world.a.stack.udp_take_error(connected), None);
        assert_eq!(world.a.stack.udp_readiness(connected), Readiness::WRITE);
        // Who is not connected cannot know which datagram it was.
        assert_eq!(world.send(other, &Envelope::to(at(B, 7)), b"x"), Ok(1));
        world.go();
        assert_eq!(world.send(other, &Envelope::to(at(B, 7)), b"x"), Ok(1));
        assert_eq!(world.a.stack.udp_take_error(other), None);
        let (a, b) = (world.a.stack.udp_stats(), world.b.stack.udp_stats());
        assert_eq!((a.complaints, a.complaints_ignored, b.no_port), (3, 1, 4));
    }
}

/// What a router, or B, says of a datagram of ours.
fn complaint(about: (SocketAddr, SocketAddr), icmp: Icmp) -> Packet {
    let quoted = packet(about.0.ip(), about.1.ip(), Protocol::UDP, &datagram(about.0, about.1, &[0; 1400]));
    let mut message = Packet::from(written(&quoted.to_vec().unwrap()[..28]));
    icmp.write(message.head_mut()).unwrap();
    checksum::leave_unfinished(&mut message, 0, Icmp::CHECKSUM).unwrap();
    message.finish().unwrap();
    packet(B, A, Protocol::ICMP, &message.to_vec().unwrap())
}

fn hear(world: &mut World, id: Id, about: (SocketAddr, SocketAddr), icmp: Icmp) -> Option<Error> {
    let now = world.wire.now();
    world.a.stack.receive(now, complaint(about, icmp));
    world.a.stack.udp_take_error(id)
}

#[test]
fn each_complaint_has_linuxs_errno_and_what_may_pass_is_told_to_who_asked() {
    let mut world = World::new(Medium::Ip);
    let a = world.a.connected(at(B, 7));
    let about = (world.a.local(a), at(B, 7));
    let unreachable = |code| Icmp::Unreachable { code: Unreachable(code), mtu: 0 };
    // The kernel's icmp_err_convert[], and whether it is fatal.
    for (icmp, errno, fatal) in [
        (unreachable(0), 101, false),
        (unreachable(1), 113, false),
        (unreachable(2), 92, true),
        (unreachable(3), 111, true),
        (unreachable(6), 101, true),
        (unreachable(7), 112, true),
        (unreachable(8), 64, true),
        (unreachable(9), 101, true),
        (unreachable(10), 113, true),
        (unreachable(11), 101, false),
        (unreachable(12), 113, false),
        (unreachable(13), 113, true),
        (unreachable(16), 113, false),
        (Icmp::TimeExceeded { code: 0 }, 113, false),
        (Icmp::ParameterProblem { code: 0, pointer: 0 }, 71, true),
    ] {
        for all_errors in [false, true] {
            world.a.stack.udp_set(a, |settings| settings.all_errors = all_errors).unwrap();
            let heard = hear(&mut world, a, about, icmp).map(Error::errno);
            assert_eq!(heard, (fatal || all_errors).then_some(errno), "{icmp:?}, all {all_errors}");
        }
    }
}

#[test]
fn a_stranger_who_guesses_wrong_is_not_heard() {
    let mut world = World::new(Medium::Ip);
    let a = world.a.connected(at(B, 7));
    let (ours, peer) = (world.a.local(a), at(B, 7));
    let refused = Icmp::Unreachable { code: Unreachable::PORT, mtu: 0 };
    for about in [(ours, at(B, 8)), (ours, at(B2, 7)), (at(A, ours.port() ^ 1), peer), (at(B, 7), ours)] {
        assert_eq!(hear(&mut world, a, about, refused), None, "{about:?}");
    }
    assert_eq!(hear(&mut world, a, (ours, peer), refused), Some(Error::Refused));
    // What was said of the last peer is nothing to the next.
    world.a.stack.udp_connect(a, at(B, 9)).unwrap();
    assert_eq!(hear(&mut world, a, (ours, peer), refused), None);
}

#[test]
fn what_a_router_says_of_the_way_holds_for_ten_minutes() {
    let mut world = World::new(Medium::Ip);
    let a = world.a.connected(at(B, 7));
    let about = (world.a.local(a), at(B, 7));
    let too_long = |mtu| Icmp::Unreachable { code: Unreachable::TOO_LONG, mtu };
    assert_eq!(hear(&mut world, a, about, too_long(1400)), Some(Error::TooLong));
    let send = |world: &mut World, len| world.send(a, &Envelope::CONNECTED, &pattern(len)).is_ok();
    assert!(send(&mut world, 1372) && !send(&mut world, 1373));
    // Nobody makes it less than 552, and nobody longer again.
    assert_eq!(hear(&mut world, a, about, too_long(100)), Some(Error::TooLong));
    assert_eq!(hear(&mut world, a, about, too_long(1400)), Some(Error::TooLong));
    assert!(send(&mut world, 524) && !send(&mut world, 525));
    let other = Envelope::to(at(B2, 7));
    assert!(world.send(a, &other, &pattern(1472)).is_ok(), "that is another way");
    world.run(599 * SECOND);
    world.a.stack.udp_take_error(a);
    assert!(!send(&mut world, 525));
    world.run(SECOND);
    assert!(send(&mut world, 1472), "it may be better by now");
    // What was said of the way to the last peer is nothing to the next.
    assert_eq!(hear(&mut world, a, about, too_long(600)), Some(Error::TooLong));
    assert!(!send(&mut world, 1472));
    world.a.stack.udp_connect(a, at(B2, 7)).unwrap();
    assert!(send(&mut world, 1472));
    world.a.stack.udp_connect(a, at(B, 7)).unwrap();
    // Whoever lets routers cut has sent nothing that was too long.
    world.a.stack.udp_set(a, |settings| settings.dont_fragment = false).unwrap();
    assert_eq!(hear(&mut world, a, about, too_long(600)), None);
    let mut packet = std::iter::from_fn(|| world.a.stack.transmit()).last().unwrap();
    assert_eq!(packet.head()[6] & 0x40, 0x40, "DF, before that");
    assert!(send(&mut world, 1472));
    packet = world.a.stack.transmit().unwrap();
    assert_eq!(packet.head()[6] & 0x40, 0);
}

#[test]
fn a_flood_to_ports_of_nobody_is_answered_now_and_then() {
    let mut world = World::new(Medium::Ip);
    for port in 0..10_000 {
        world.b.stack.receive(0, packet(A, B, Protocol::UDP, &datagram(at(A, 9), at(B, port), b"knock")));
    }
    assert_eq!(world.b.stack.udp_stats().no_port, 10_000);
    assert_eq!(world.b.stack.interface().stats().complaints, 50, "net.ipv4.icmp_msgs_burst");
    assert_eq!(std::iter::from_fn(|| world.b.stack.transmit()).count(), 50);
    world.b.assert_balanced(0);
}

#[test]
fn a_silent_neighbour_is_told_of_to_who_asked_for_all_errors() {
    for all_errors in [false, true] {
        let mut world = World::new(Medium::Ethernet);
        let a = world.a.connected(at(NOBODY, 7));
        world.a.stack.udp_set(a, |settings| settings.all_errors = all_errors).unwrap();
        world.send(a, &Envelope::CONNECTED, b"x").unwrap();
        world.run(10 * SECOND);
        let heard = world.a.stack.udp_receive(a).unwrap_err();
        assert_eq!(heard, if all_errors { Error::HostUnreachable } else { Error::WouldBlock });
        let stats = world.a.stack.udp_stats();
        assert_eq!((stats.complaints, stats.complaints_ignored), if all_errors { (1, 0) } else { (0, 1) });
    }
}
