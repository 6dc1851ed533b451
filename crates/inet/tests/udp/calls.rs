//! What programs ask for, and what they are told: as Linux 6.18 does where it was asked the same.

use crate::world::*;
use onecopy_inet::tcp::{self, Readiness, Wake};
use onecopy_inet::udp::{Envelope, Error, MAX_LEN};
use onecopy_inet::wire::Ecn;
use onecopy_link::pair::Path;
use onecopy_link::{Capabilities, Medium};

#[test]
fn a_datagram_keeps_its_bounds_and_says_whose_it_is() {
    for medium in MEDIA {
        let mut world = World::new(medium);
        let b = world.b.bound(B, 53);
        let a = world.a.bound(ANY, 1053);
        world.acquaint();
        world.a.stack.udp_set(a, |settings| (settings.ttl, settings.service) = (9, 0xb8)).unwrap();
        for len in [0, 1, 1000, 1472] {
            assert_eq!(world.send(a, &Envelope::to(at(B, 53)), &pattern(len)), Ok(len));
        }
        let marked = Envelope::to(at(B, 53)).service(0x03);
        world.send(a, &marked, b"marked").unwrap();
        assert_eq!(world.b.stack.udp_readiness(b), Readiness::WRITE);
        world.go();
        assert_eq!(world.b.stack.udp_readiness(b), Readiness::READ | Readiness::WRITE);
        let told: Vec<_> = world.b.events().iter().map(|event| (event.id, event.wake)).collect();
        assert_eq!(told, [(b, Wake::READ)], "once, of all five");
        for len in [0, 1, 1000, 1472] {
            let peeked = bytes(world.b.stack.udp_peek(b).unwrap());
            let one = world.b.stack.udp_receive(b).unwrap();
            assert!(bytes(&one) == pattern(len) && peeked == bytes(&one), "{len} bytes over {medium:?}");
            assert_eq!((one.from, one.to), (at(A, 1053), at(B, 53)));
            assert_eq!((one.ttl, one.service, one.size, one.datagrams()), (9, 0xb8, None, 1));
        }
        assert_eq!(world.b.stack.udp_receive(b).unwrap().ecn(), Ecn::Ce);
        assert_eq!(world.b.stack.udp_receive(b).unwrap_err(), Error::WouldBlock);
        assert!(world.b.stack.udp_peek(b).is_none());
        assert_eq!((world.a.stack.udp_stats().sent, world.b.stack.udp_stats().received), (5, 5));
        world.b.assert_balanced(0);
    }
}

#[test]
fn what_is_longer_than_a_packet_is_refused_and_stays_the_callers() {
    let mut world = World::with(Capabilities::all(Medium::Ip, 9000), Path::new(), 1, |_, _| ());
    let a = world.a.bound(ANY, 0);
    for (len, sent) in [(8972, Ok(8972)), (8973, Err(Error::TooLong)), (MAX_LEN + 1, Err(Error::TooLong))] {
        let mut data = segment(&world.pool, &pattern(len));
        assert_eq!(world.a.stack.udp_send(0, a, &mut data, &Envelope::to(at(B, 1))), sent);
        assert_eq!(data.payload().len(), if sent.is_ok() { 0 } else { len });
    }
    assert_eq!(world.a.stack.udp_stats().refused, 2);
}

#[test]
fn calls_that_cannot_be_fail_as_linuxs_do() {
    let mut world = World::new(Medium::Ip);
    let a = world.a.stack.udp_open().unwrap();
    let mut send = |envelope: &Envelope| world.send(a, envelope, b"x").map_err(Error::errno);
    assert_eq!(send(&Envelope::CONNECTED), Err(89), "EDESTADDRREQ");
    assert_eq!(send(&Envelope::to(at(B, 0))), Err(22), "EINVAL");
    assert_eq!(send(&Envelope::to(at(ALL, 9))), Err(13), "EACCES");
    assert_eq!(send(&Envelope::to(at([255; 4].into(), 9))), Err(13), "EACCES");
    assert_eq!(send(&Envelope::to(at([8, 8, 8, 8].into(), 9))), Err(101), "ENETUNREACH");
    assert_eq!(send(&Envelope::to(at([224, 0, 0, 1].into(), 9))), Err(101), "no groups here");
    assert_eq!(send(&Envelope::to(at([127, 0, 0, 1].into(), 9))), Err(101), "no loopback was configured");
    assert_eq!(send(&Envelope::to(at(B, 9)).source(B)), Err(22), "not ours");
    assert_eq!(send(&Envelope::to(at(B, 9)).source(A)), Ok(1));
    // What is said of one datagram comes before what the socket is bound to, as with IP_PKTINFO.
    let bound = world.a.bound(A, 0);
    let foreign = Envelope::to(at(B, 9)).source(B);
    assert_eq!(world.send(bound, &foreign, b"x").map_err(Error::errno), Err(22), "not ours");

    let stack = &mut world.a.stack;
    assert_eq!(stack.udp_bind(a, at(ANY, 0), false), Err(Error::Invalid), "sending gave it a port");
    assert_eq!(stack.udp_connect(a, at(ALL, 9)).map_err(Error::errno), Err(13));
    assert_eq!(stack.udp_connect(a, at(B, 0)), Err(Error::Invalid));
    let other = stack.udp_open().unwrap();
    assert_eq!(stack.udp_bind(other, at(B, 1), false), Err(Error::AddressNotAvailable));
    stack.udp_close(other);
    assert_eq!(stack.udp_receive(other).unwrap_err().errno(), 9, "EBADF");
    assert_eq!(stack.udp_connect(other, at(B, 1)), Err(Error::NoSuchSocket));
    assert_eq!(stack.udp_disconnect(other), Err(Error::NoSuchSocket));
    assert_eq!(stack.udp_set(other, |_| ()), Err(Error::NoSuchSocket));
    assert_eq!(stack.udp_readiness(other), Readiness::empty());
    stack.udp_close(other);
}

#[test]
fn names_of_udp_and_of_tcp_are_not_taken_for_each_other() {
    let mut world = World::new(Medium::Ip);
    let stack = &mut world.a.stack;
    let (udp, tcp) = (stack.udp_open().unwrap(), stack.tcp_open().unwrap());
    assert_eq!(stack.udp_bind(tcp, at(A, 80), false), Err(Error::NoSuchSocket));
    assert_eq!(stack.udp_receive(tcp).unwrap_err(), Error::NoSuchSocket);
    assert!(stack.tcp_bind(udp, at(A, 80), false).is_err() && stack.tcp_listen(udp, 1).is_err());
    assert!(stack.tcp_connect(0, udp, at(B, 1)).is_err() && stack.tcp_accept(udp).is_err());
    assert_eq!(stack.tcp_receive(0, udp, 1).unwrap_err(), tcp::Error::NoSuchSocket);
    stack.tcp_close(0, udp);
    stack.udp_close(tcp);
    assert_eq!(stack.len(), 2, "neither closes the other's");
    // Each protocol has ports of its own.
    stack.udp_bind(udp, at(A, 80), false).unwrap();
    stack.tcp_bind(tcp, at(A, 80), false).unwrap();
    stack.udp_close(udp);
    stack.tcp_close(0, tcp);
    assert!(stack.is_empty());
}

#[test]
fn a_connected_socket_hears_its_peer_alone() {
    let mut world = World::new(Medium::Ethernet);
    let (peer, other) = (world.b.bound(B, 7), world.b.bound(B, 8));
    let a = world.a.bound(ANY, 1000);
    let here = at(A, 1000);
    world.answer(peer, &Envelope::to(here), b"before").unwrap();
    world.go();
    world.a.stack.udp_connect(a, at(B, 7)).unwrap();
    assert_eq!(world.a.stack.udp_addresses(a).remote, Some(at(B, 7)));
    assert_eq!(world.a.local(a), here, "of the way there now");
    world.answer(other, &Envelope::to(here), b"stranger").unwrap();
    world.answer(peer, &Envelope::to(here), b"peer").unwrap();
    world.go();
    let (old, new) = ((b"before".to_vec(), at(B, 7)), (b"peer".to_vec(), at(B, 7)));
    assert_eq!(world.a.all(a), [old, new], "what waited stays");
    assert_eq!(world.a.stack.udp_stats().no_port, 1, "it was the stranger's");
    // It sends to its peer, or to whom it is told.
    world.send(a, &Envelope::CONNECTED, b"to the peer").unwrap();
    world.send(a, &Envelope::to(at(B, 8)), b"to the other").unwrap();
    world.go();
    assert_eq!(world.b.all(peer), [(b"to the peer".to_vec(), here)]);
    assert_eq!(world.b.all(other), [(b"to the other".to_vec(), here)]);
    // Another peer, and then none.
    world.a.stack.udp_connect(a, at(B, 8)).unwrap();
    world.answer(other, &Envelope::to(here), b"now").unwrap();
    world.go();
    assert_eq!(world.a.all(a), [(b"now".to_vec(), at(B, 8))]);
    world.a.stack.udp_disconnect(a).unwrap();
    assert_eq!(world.a.stack.udp_addresses(a).remote, None);
    assert_eq!(world.a.local(a), at(ANY, 1000), "what it was bound to");
    world.answer(peer, &Envelope::to(here), b"anybody").unwrap();
    world.go();
    assert_eq!(world.a.all(a).len(), 1);
    world.a.assert_balanced(0);
}

#[test]
fn without_a_peer_it_keeps_what_it_was_bound_to_and_no_more() {
    let mut world = World::new(Medium::Ip);
    let stack = &mut world.a.stack;
    // What bind(2) was told, what stays of it, and whether it has a port then: Linux's answers.
    for (bound, left) in [
        (None, None),
        (Some(at(A, 0)), Some(at(A, 0))),
        (Some(at(A, 700)), Some(at(A, 700))),
        (Some(at(ANY, 0)), Some(at(ANY, 0))),
        (Some(at(ANY, 701)), Some(at(ANY, 701))),
    ] {
        let id = stack.udp_open().unwrap();
        if let Some(bound) = bound {
            stack.udp_bind(id, bound, false).unwrap();
        }
        stack.udp_connect(id, at(B, 7)).unwrap();
        let local = stack.udp_addresses(id).local.unwrap();
        assert!(local.ip() == A && local.port() != 0, "{local} while it is connected");
        stack.udp_disconnect(id).unwrap();
        assert_eq!(stack.udp_addresses(id).local, left);
        // The port that it chose is free.
        let other = stack.udp_open().unwrap();
        let free = stack.udp_bind(other, local, false);
        let stays = bound.is_some_and(|bound| bound.port() != 0);
        assert_eq!(free.is_ok(), !stays, "{bound:?}: {free:?}");
        stack.udp_close(id);
        stack.udp_close(other);
    }
}

#[test]
fn there_is_an_end_to_sockets() {
    let mut world = World::with(Capabilities::all(Medium::Ip, 1500), Path::new(), 1, |_, config| {
        config.udp.sockets = 3;
    });
    let stack = &mut world.a.stack;
    let ids: Vec<_> = std::iter::from_fn(|| stack.udp_open().ok()).collect();
    assert_eq!((ids.len(), stack.udp_open()), (3, Err(Error::NoMemory)));
    assert!(stack.tcp_open().is_ok(), "the limit is UDP's");
    stack.udp_close(ids[1]);
    assert!(stack.udp_open().is_ok() && stack.udp_open().is_err());
}

#[test]
fn what_nobody_fetched_is_freed_with_the_socket() {
    let mut world = World::new(Medium::Ip);
    let (a, b) = (world.a.bound(ANY, 0), world.b.bound(ANY, 9));
    for _ in 0..5 {
        world.send(a, &Envelope::to(at(B, 9)), &pattern(100)).unwrap();
    }
    world.go();
    assert_eq!(world.b.stack.udp_waiting(b), Some(5 * (4096 + 768)));
    world.b.assert_balanced(5);
    world.b.stack.udp_close(b);
    world.b.assert_balanced(0);
    assert_eq!(world.b.stack.udp_stats().unread, 5);
    world.a.stack.udp_close(a);
    assert!(world.a.stack.is_empty() && world.b.stack.is_empty());
    let stats = world.pool.stats();
    assert_eq!(stats.in_flight, stats.in_cache + stats.in_ring, "{stats:?}");
}
