//! Who may share an address, and who of them gets what comes: as Linux 6.18 does.

use crate::world::*;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::udp::{Envelope, Error};
use onecopy_link::Medium;
use std::net::{IpAddr, Ipv4Addr};

fn try_bind(host: &mut Host, address: IpAddr, port: u16, reuse: bool) -> Result<Id, Error> {
    let id = host.stack.udp_open().unwrap();
    host.stack.udp_bind(id, at(address, port), reuse).map(|()| id)
}

#[test]
fn an_address_is_shared_by_those_alone_who_all_say_so() {
    for (first, second, there, shared) in [
        ((B, false), (B, false), "the same", false),
        ((B, false), (ANY, false), "any", false),
        ((ANY, false), (B, false), "one of any", false),
        ((B, false), (B2, false), "another one", true),
        ((B, true), (B, false), "one alone says so", false),
        ((B, false), (B, true), "the other alone", false),
        ((B, true), (B, true), "both", true),
        ((B, true), (ANY, true), "both, one of them any", true),
    ] {
        let mut world = World::new(Medium::Ip);
        try_bind(&mut world.b, first.0, 7, first.1).unwrap();
        let again = try_bind(&mut world.b, second.0, 7, second.1);
        assert_eq!(again.is_ok(), shared, "{there}: {again:?}");
        assert!(again.is_ok() || again == Err(Error::AddressInUse));
        assert!(try_bind(&mut world.b, second.0, 8, second.1).is_ok());
    }
}

/// Sends a datagram to each of these, and says who got it.
fn who(world: &mut World, from: Id, to: IpAddr, among: &[Id]) -> Vec<Id> {
    world.send(from, &Envelope::to(at(to, 7)), b"whose?").unwrap();
    world.go();
    among.iter().copied().filter(|id| !world.b.all(*id).is_empty()).collect()
}

#[test]
fn the_last_one_gets_it_and_the_nearest_before_any() {
    let mut world = World::new(Medium::Ethernet);
    let a = world.a.bound(ANY, 1000);
    let mut bind = |address| try_bind(&mut world.b, address, 7, true).unwrap();
    let ids = [bind(B), bind(B), bind(ANY), bind(B), bind(ANY)];
    assert_eq!(who(&mut world, a, B, &ids), [ids[3]], "the last one of that address");
    assert_eq!(who(&mut world, a, B2, &ids), [ids[4]], "the last one of any");
    world.b.stack.udp_close(ids[1]);
    assert_eq!(who(&mut world, a, B, &ids), [ids[3]], "one between has gone");
    world.b.stack.udp_close(ids[3]);
    assert_eq!(who(&mut world, a, B, &ids), [ids[0]], "the one before");
    // One that is connected comes first for its peer, and is not there for others.
    world.b.stack.udp_connect(ids[2], at(A, 1000)).unwrap();
    assert_eq!(who(&mut world, a, B, &ids), [ids[2]]);
    world.b.stack.udp_connect(ids[4], at(A, 1000)).unwrap();
    assert_eq!(who(&mut world, a, B, &ids), [ids[4]], "of those of the same ends the last one");
    world.b.stack.udp_close(ids[4]);
    let other = world.a.bound(ANY, 1001);
    assert_eq!(who(&mut world, other, B, &ids), [ids[0]]);
    world.b.stack.udp_close(ids[0]);
    assert!(who(&mut world, other, B, &ids).is_empty(), "connected to another one");
    assert_eq!(world.b.stack.udp_stats().no_port, 1);
    world.b.assert_balanced(0);
}

#[test]
fn what_is_for_everybody_each_one_gets() {
    for medium in MEDIA {
        let mut world = World::new(medium);
        let a = world.a.bound(ANY, 1000);
        world.a.stack.udp_set(a, |settings| settings.broadcast = true).unwrap();
        assert!(who(&mut world, a, ALL, &[]).is_empty());
        assert_eq!(world.b.stack.udp_stats().unheard, 1);
        let mut bind = |address| try_bind(&mut world.b, address, 7, true).unwrap();
        let ids = [bind(ANY), bind(B), bind(ANY), bind(ALL), bind(ANY)];
        world.b.stack.udp_connect(ids[4], at(A, 1000)).unwrap();
        let got = who(&mut world, a, ALL, &ids);
        assert_eq!(got, [ids[0], ids[2], ids[3]], "not who is bound to one address, or connected");
        assert_eq!(world.b.stack.udp_stats().copies, 2);
        let everybody = IpAddr::V4(Ipv4Addr::BROADCAST);
        assert_eq!(who(&mut world, a, everybody, &ids), [ids[0], ids[2]], "nobody is bound to that one");
        assert_eq!(world.b.stack.interface().stats().complaints, 0, "nobody complains of such ones");
        world.b.assert_balanced(0);
    }
}

#[test]
fn ports_that_are_chosen_are_nobodys_and_end() {
    let mut world =
        World::with(onecopy_link::Capabilities::all(Medium::Ip, 1500), Default::default(), 1, |_, config| {
            config.ports = 5000..=5009;
        });
    let mut ports: Vec<u16> = (0..10)
        .map(|number| {
            let id = world.a.stack.udp_open().unwrap();
            match number % 3 {
                0 => world.a.stack.udp_bind(id, at(ANY, 0), true).unwrap(),
                1 => world.a.stack.udp_connect(id, at(B, 7)).unwrap(),
                _ => assert_eq!(world.send(id, &Envelope::to(at(B, 7)), b"x"), Ok(1)),
            }
            world.a.local(id).port()
        })
        .collect();
    let one = world.a.stack.udp_open().unwrap();
    assert_eq!(world.a.stack.udp_bind(one, at(ANY, 0), true), Err(Error::AddressInUse));
    assert_eq!(world.a.stack.udp_connect(one, at(B, 7)), Err(Error::AddressNotAvailable));
    assert_eq!(world.send(one, &Envelope::to(at(B, 7)), b"x"), Err(Error::AddressNotAvailable));
    assert_ne!(ports, (5000..5010).collect::<Vec<_>>(), "in no order that a stranger knows");
    ports.sort_unstable();
    assert_eq!(ports, (5000..5010).collect::<Vec<_>>());
}
