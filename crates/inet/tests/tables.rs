//! Names that are never another one's, packets that find their owners, ports that are shared by rule.

use onecopy_inet::stack::demux::{Demux, Ends, Place};
use onecopy_inet::stack::ports::{NoPort, Ports};
use onecopy_inet::stack::slab::{Id, Slab};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const SEED: [u8; 16] = *b"a seed of a test";
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const ALSO_HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

fn at(address: IpAddr, port: u16) -> Place {
    Place { ip: address, port }
}

proptest! {
    #[test]
    fn a_name_is_one_values_alone(steps in prop::collection::vec((0..4u8, any::<prop::sample::Index>()), 1..600)) {
        let mut slab = Slab::new(200);
        let (mut live, mut gone) = (BTreeMap::new(), BTreeSet::new());
        for (number, (step, which)) in steps.into_iter().enumerate() {
            match step {
                0 | 1 => {
                    let id = slab.insert_with(|id| (id, number));
                    prop_assert_eq!(id.is_none(), live.len() == 200);
                    if let Some(id) = id {
                        prop_assert!(!gone.contains(&id), "{:?} was another one's", id);
                        prop_assert!(live.insert(id, number).is_none());
                    }
                }
                2 if !live.is_empty() => {
                    let id = *which.get(&live.keys().copied().collect::<Vec<Id>>());
                    prop_assert_eq!(slab.remove(id), live.remove(&id).map(|number| (id, number)));
                    gone.insert(id);
                }
                _ => slab.rest(),
            }
            prop_assert_eq!(slab.len(), live.len());
        }
        for (id, number) in &live {
            prop_assert_eq!(slab.get(*id), Some(&(*id, *number)));
            prop_assert_eq!(slab.id_at(id.index()), Some(*id));
            prop_assert_eq!(Id::from_bits(id.to_bits()), *id);
        }
        for id in &gone {
            prop_assert!(slab.get(*id).is_none() && slab.get_mut(*id).is_none() && slab.remove(*id).is_none());
        }
        prop_assert!(slab.iter().map(|(id, value)| (id, value.1)).eq(live.iter().map(|(id, number)| (*id, *number))
            .collect::<BTreeMap<_, _>>().into_iter()));
    }
}

#[test]
fn connections_come_before_listeners_and_an_address_before_any() {
    let mut ids = Slab::new(10);
    let mut id = || ids.insert_with(|_| ()).unwrap();
    let (one, two, three, four) = (id(), id(), id(), id());
    let mut demux = Demux::new(&SEED);
    let ends = Ends { local: at(HERE, 80), remote: at(ALSO_HERE, 4000) };
    let has = |id: Id, of: &Ends| id == one && *of == ends;
    assert!(demux.connect(&ends, one, has));
    assert!(!demux.connect(&ends, two, has) && !demux.connect(&ends, one, has), "they are somebody's");
    assert_eq!(demux.connection(&ends, has), Some(one));
    assert_eq!(demux.connection(&ends, |_, _| false), None, "who has the same hash need not have these ends");
    let other = Ends { remote: at(ALSO_HERE, 4001), ..ends };
    assert_eq!(demux.connection(&other, has), None);
    let turned = Ends { local: ends.remote, remote: ends.local };
    assert_eq!(demux.connection(&turned, has), None);

    assert!(demux.listen(at(ANY, 80), three) && demux.listen(at(HERE, 80), four));
    assert!(!demux.listen(at(ANY, 80), two));
    assert_eq!(demux.listener(at(HERE, 80)), Some(four));
    assert_eq!(demux.listener(at(ALSO_HERE, 80)), Some(three));
    assert_eq!(demux.listener(at(HERE, 81)), None);

    // Only who has them gives them back.
    assert!(!demux.disconnect(&ends, two) && demux.disconnect(&ends, one));
    assert_eq!(demux.connection(&ends, has), None);
    assert!(!demux.unlisten(at(HERE, 80), three) && demux.unlisten(at(HERE, 80), four));
    assert_eq!(demux.listener(at(HERE, 80)), Some(three));
    assert_eq!((demux.connections(), demux.listeners()), (0, 1));
}

#[test]
fn the_connection_of_the_packet_before_is_asked_first_as_long_as_it_is_one() {
    let mut ids = Slab::new(10);
    let (first, second) = (at(ALSO_HERE, 4000), at(ALSO_HERE, 4001));
    let ends = |remote| Ends { local: at(HERE, 80), remote };
    let mut of = |remote| ids.insert_with(|_| ends(remote)).unwrap();
    let (one, two, three) = (of(first), of(second), of(second));
    let asked = std::cell::RefCell::new(Vec::new());
    let has = |id: Id, of: &Ends| {
        asked.borrow_mut().push(id);
        ids.get(id) == Some(of)
    };
    let mut demux = Demux::new(&SEED);
    assert!(demux.connect(&ends(first), one, has) && demux.connect(&ends(second), two, has));
    for (remote, id, all) in [(first, one, &[one][..]), (first, one, &[one]), (second, two, &[one, two])] {
        asked.borrow_mut().clear();
        assert_eq!(demux.of_packet(&ends(remote), has), Some(id));
        assert_eq!(*asked.borrow(), all);
    }
    // The program still holds what is no connection any more: its socket has these ends, and nothing comes for it.
    assert!(demux.disconnect(&ends(second), two));
    assert_eq!(demux.of_packet(&ends(second), has), None);
    assert!(demux.connect(&ends(second), three, has));
    assert_eq!(demux.of_packet(&ends(second), has), Some(three), "who came after it");
}

/// Many, with tables that grow and shrink meanwhile.
#[test]
fn each_of_many_connections_is_found_until_it_is_gone() {
    let mut ids = Slab::new(20_000);
    let mut demux = Demux::new(&SEED);
    let mut all: Vec<(Id, Ends)> = Vec::new();
    for port in 0..20_000 {
        let ends = Ends { local: at(HERE, 80), remote: at(ALSO_HERE, port) };
        let id = ids.insert_with(|_| ends).unwrap();
        assert!(demux.connect(&ends, id, |id, of| ids.get(id) == Some(of)));
        all.push((id, ends));
    }
    for (at, (id, ends)) in all.iter().enumerate() {
        if at % 16 != 0 {
            ids.remove(*id);
            assert!(demux.disconnect(ends, *id) && !demux.disconnect(ends, *id));
        }
    }
    demux.rest();
    assert_eq!(demux.connections(), 20_000 / 16);
    for (at, (id, ends)) in all.iter().enumerate() {
        let found = demux.connection(ends, |id, of| ids.get(id) == Some(of));
        assert_eq!(found, (at % 16 == 0).then_some(*id));
    }
}

/// What Linux says to each pair of sockets that bind one port (inet_csk_bind_conflict()).
#[test]
fn a_port_is_shared_as_linux_shares_it() {
    for (first, second, meet) in
        [(ANY, ANY, true), (ANY, HERE, true), (HERE, ANY, true), (HERE, HERE, true), (HERE, ALSO_HERE, false)]
    {
        for (reuse_first, reuse_second, listens) in [
            (false, false, false),
            (true, false, false),
            (false, true, false),
            (true, true, false),
            (true, true, true),
        ] {
            let mut ports = Ports::new(&SEED, Ports::RANGE);
            let mut held = ports.bind(first, 80, reuse_first).unwrap();
            if listens {
                ports.listen(&mut held).unwrap();
            }
            let shared = !meet || (reuse_first && reuse_second && !listens);
            let got = ports.bind(second, 80, reuse_second);
            assert_eq!(got.is_ok(), shared, "{first} {reuse_first}, {second} {reuse_second}, {listens}");
            match got {
                Ok(hold) => ports.release(hold),
                Err(why) => assert_eq!(why, NoPort::InUse),
            }
            ports.release(held);
            assert!(ports.is_empty());
            let last = ports.bind(second, 80, reuse_second).expect("nobody has it any more");
            ports.release(last);
        }
    }
}

#[test]
fn of_those_who_share_a_port_one_may_listen() {
    let mut ports = Ports::new(&SEED, Ports::RANGE);
    let (mut one, mut two) = (ports.bind(HERE, 80, true).unwrap(), ports.bind(HERE, 80, true).unwrap());
    ports.listen(&mut one).unwrap();
    ports.listen(&mut one).unwrap();
    assert_eq!(ports.listen(&mut two), Err(NoPort::InUse));
    assert!(one.is_listening() && !two.is_listening());
    // Connections of a listener that is gone keep its port, and share it as it did.
    let child = ports.inherit(&one, HERE);
    ports.unlisten(&mut one);
    ports.release(one);
    assert_eq!(ports.bind(HERE, 80, false), Err(NoPort::InUse));
    let again = ports.bind(HERE, 80, true).unwrap();
    ports.set_reuse(&mut two, false);
    assert_eq!(ports.bind(HERE, 80, true), Err(NoPort::InUse));
    for hold in [two, child, again] {
        ports.release(hold);
    }
    assert!(ports.is_empty());
}

#[test]
fn a_port_of_ipv6_is_not_in_the_way_of_ipv4s() {
    let mut ports = Ports::new(&SEED, Ports::RANGE);
    let (any, here) = (IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::LOCALHOST));
    let both = [ports.bind(ANY, 80, false).unwrap(), ports.bind(any, 80, false).unwrap()];
    assert_eq!(ports.bind(here, 80, false), Err(NoPort::InUse));
    assert_eq!(ports.bind(HERE, 80, false), Err(NoPort::InUse));
    let [four, six] = both;
    ports.release(four);
    assert_eq!(ports.bind(here, 80, false), Err(NoPort::InUse));
    let four = ports.bind(HERE, 80, false).unwrap();
    ports.release(six);
    ports.release(four);
    assert!(ports.is_empty());
}

#[test]
fn all_ports_of_the_range_are_given_once_and_then_none() {
    let to = at(IpAddr::from([10, 9, 8, 7]), 443);
    for range in [100..=120u16, 100..=119, 65530..=65535, 7..=7] {
        let count = range.clone().count();
        let mut ports = Ports::new(&SEED, range.clone());
        let mut taken = BTreeSet::new();
        for _ in 0..count {
            let hold = ports.connect(HERE, to, false, |port| !taken.contains(&port)).unwrap();
            assert!(range.contains(&hold.local().port) && taken.insert(hold.local().port));
        }
        assert_eq!(ports.connect(HERE, to, false, |port| !taken.contains(&port)), Err(NoPort::Exhausted));
        assert_eq!(ports.bind(HERE, 0, false), Err(NoPort::Exhausted));
        // To another one the same ports are free.
        let hold = ports.connect(HERE, at(ALSO_HERE, 443), false, |_| true).unwrap();
        assert!(taken.contains(&hold.local().port));

        let mut bound = Ports::new(&SEED, range);
        let holds: Vec<_> = (0..count).map(|_| bound.bind(ANY, 0, false).unwrap()).collect();
        assert_eq!(holds.iter().map(|hold| hold.local().port).collect::<BTreeSet<_>>().len(), count);
        // What is bound is nobody's to connect from.
        assert_eq!(bound.connect(HERE, to, false, |_| true), Err(NoPort::Exhausted));
    }
    let empty = RangeOf(2, 1).range();
    assert_eq!(Ports::new(&SEED, empty).bind(ANY, 0, false), Err(NoPort::Exhausted));
}

/// A range without ports, which clippy would not have written out.
struct RangeOf(u16, u16);
impl RangeOf {
    fn range(&self) -> std::ops::RangeInclusive<u16> {
        self.0..=self.1
    }
}

#[test]
fn ports_are_chosen_by_the_seed_and_by_whom_they_go_to() {
    let chosen = |seed: [u8; 16], host: u8| {
        let mut ports = Ports::new(&seed, Ports::RANGE);
        let to = at(IpAddr::from([10, 9, 8, host]), 443);
        (0..20).map(|_| ports.connect(HERE, to, false, |_| true).unwrap().local().port).collect::<Vec<_>>()
    };
    let first = chosen(SEED, 1);
    assert_eq!(first, chosen(SEED, 1));
    assert_ne!(first, chosen([1; 16], 1));
    assert_ne!(first, chosen(SEED, 2));
    // As the kernel: even ones for connections, while there are; each behind the other, so that none comes again soon.
    assert!(first.iter().all(|port| port % 2 == 0));
    assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 20);
    let mut ports = Ports::new(&SEED, Ports::RANGE);
    assert!((0..20).all(|_| ports.bind(ANY, 0, false).unwrap().local().port % 2 == 1));
}

/// Ends of connection `number` of many, from one server's port.
fn ends(number: u32) -> Ends {
    let remote = Ipv4Addr::from_bits(0x0a01_0000 + number / 40_000);
    Ends::new(at(HERE, 443), at(remote.into(), 20_000 + (number % 40_000) as u16))
}

/// O(1): as many connections are looked at for a segment among 100,000 as among 100.
#[test]
fn a_segment_finds_its_connection_by_one_look_however_many_there_are() {
    for count in [100u32, 10_000, 100_000] {
        let (mut demux, mut ids) = (Demux::new(&SEED), Slab::new(count as usize));
        let all: Vec<Id> = (0..count).map(|_| ids.insert_with(|_| ()).unwrap()).collect();
        let has = |id: Id, ends: &Ends| self::ends(id.index()) == *ends;
        for id in &all {
            assert!(demux.connect(&ends(id.index()), *id, has));
        }
        let mut most = 0;
        let mut total = 0u64;
        for id in &all {
            let (found, looked) = demux.connection_counted(&ends(id.index()), has);
            assert_eq!(found, Some(*id));
            (most, total) = (most.max(looked), total + u64::from(looked));
        }
        // (Seven bits of the hash are compared first: now and then they are those of another one.)
        assert!(total <= u64::from(count) * 11 / 10, "{count}: {total} looks");
        assert!(most <= 4, "{count}: {most} looks for one");
        // For one that nobody has there is hardly ever anything to be looked at.
        let strays: u32 = (0..1_000)
            .map(|more| demux.connection_counted(&ends(count + more), has))
            .map(|(found, looked)| {
                assert_eq!(found, None);
                looked
            })
            .sum();
        assert!(strays <= 200, "{count}: {strays} looks for 1,000 strays");
    }
}
