//! When a buffer is its owner's again: once, and not before the last one has let go of it.

use crate::world::*;
use onecopy_chain::Chain;
use onecopy_chain::notify::{Config, Context, Lane, Queue, Segment};
use onecopy_inet::udp::{Envelope, Error};
use onecopy_link::pair::{Path, Side};
use onecopy_link::{Capabilities, Medium};
use onecopy_pool::PagePool;

struct Sends {
    lane: Lane,
    queue: Queue,
    next: u64,
}

impl Sends {
    fn new() -> Sends {
        let (context, queue) = Context::new();
        Sends { lane: context.lane(Config::default()).unwrap(), queue, next: 0 }
    }

    /// A send of so many bytes, numbered from 0.
    fn of(&mut self, pool: &PagePool, len: usize) -> Segment<Chain> {
        let mut data = segment(pool, &pattern(len));
        self.lane.send_there(&mut data, self.next, 0).unwrap();
        self.next += 1;
        data
    }

    /// Those that are over: which, and whether they were dropped.
    fn over(&mut self) -> Vec<(u64, bool)> {
        let mut over = Vec::new();
        self.queue.reap(|one| over.push((one.user_data, one.how.dropped)));
        over
    }
}

#[test]
fn a_send_is_over_when_who_received_it_has_let_go() {
    for medium in MEDIA {
        let mut world = World::new(medium);
        world.acquaint();
        let mut sends = Sends::new();
        let (a, b) = (world.a.bound(ANY, 0), world.b.bound(ANY, 7));
        let to = Envelope::to(at(B, 7));
        for len in [1, 1000, 0, 1472] {
            let mut data = sends.of(&world.pool, len);
            let now = world.wire.now();
            world.a.stack.udp_send(now, a, &mut data, &to).unwrap();
            drop(data);
        }
        world.go();
        assert_eq!(sends.over(), [], "they wait to be received");
        let first = world.b.stack.udp_receive(b).unwrap();
        let second = world.b.stack.udp_receive(b).unwrap();
        assert_eq!(sends.over(), []);
        drop(first);
        assert_eq!(sends.over(), [(0, false)]);
        drop(second);
        assert_eq!(sends.over(), [(1, false)]);
        world.b.stack.udp_close(b);
        assert_eq!(sends.over(), [(2, false), (3, false)], "each has left, whatever became of it there");
        // For a port of nobody, and lost on the way.
        let now = world.wire.now();
        world.a.stack.udp_send(now, a, &mut sends.of(&world.pool, 100), &to).unwrap();
        world.go();
        assert_eq!(sends.over(), [(4, false)]);
        world.wire.set_path(Side::A, Path::new().loss(1.0));
        world.a.stack.udp_send(now, a, &mut sends.of(&world.pool, 100), &to).unwrap();
        world.go();
        assert_eq!(sends.over(), [(5, false)]);
    }
}

#[test]
fn a_train_is_over_with_its_last_datagram() {
    for of in [Capabilities::all(Medium::Ip, 1500), Capabilities::none(Medium::Ip, 1500)] {
        let mut world = World::with(of, Path::new(), 1, |_, _| ());
        let mut sends = Sends::new();
        let (a, b) = (world.a.bound(ANY, 0), world.b.bound(ANY, 7));
        world
            .a
            .stack
            .udp_send(0, a, &mut sends.of(&world.pool, 2500), &Envelope::to(at(B, 7)).gso(1000))
            .unwrap();
        world.go();
        let mut parts: Vec<_> = (0..3).map(|_| world.b.stack.udp_receive(b).unwrap()).collect();
        drop(parts.remove(1));
        drop(parts.remove(0));
        assert_eq!(sends.over(), []);
        drop(parts);
        assert_eq!(sends.over(), [(0, false)]);
        // Two that do not fit are freed, and the one that does keeps it.
        world.b.stack.udp_set(b, |settings| settings.receive_buffer = Some(1)).unwrap();
        world
            .a
            .stack
            .udp_send(0, a, &mut sends.of(&world.pool, 2500), &Envelope::to(at(B, 7)).gso(1000))
            .unwrap();
        world.go();
        assert_eq!((sends.over(), world.b.stack.udp_drops(b)), (vec![], Some(2)));
        world.b.all(b);
        assert_eq!(sends.over(), [(1, false)]);
    }
}

#[test]
fn what_everybody_gets_is_over_with_the_last_of_them() {
    let mut world = World::new(Medium::Ip);
    let mut sends = Sends::new();
    let a = world.a.bound(ANY, 0);
    world.a.stack.udp_set(a, |settings| settings.broadcast = true).unwrap();
    let ids = [(); 3].map(|()| {
        let id = world.b.stack.udp_open().unwrap();
        world.b.stack.udp_bind(id, at(ANY, 7), true).unwrap();
        id
    });
    world.a.stack.udp_send(0, a, &mut sends.of(&world.pool, 100), &Envelope::to(at(ALL, 7))).unwrap();
    world.go();
    for id in ids {
        assert_eq!(sends.over(), []);
        assert_eq!(world.b.all(id).len(), 1);
    }
    assert_eq!(sends.over(), [(0, false)]);
}

/// Packets that wait for a neighbour that is asked for, as Linux has it.
const WAITING: u64 = 101;

#[test]
fn what_never_left_is_said_to_be_dropped() {
    let mut world = World::with(Capabilities::none(Medium::Ethernet, 1500), Path::new(), 1, |_, config| {
        config.ip.queue = 4;
    });
    let mut sends = Sends::new();
    let a = world.a.bound(ANY, 0);
    // Nobody answers: two more for a neighbour than wait for one.
    for _ in 0..WAITING + 2 {
        world.a.stack.udp_send(0, a, &mut sends.of(&world.pool, 100), &Envelope::to(at(NOBODY, 7))).unwrap();
    }
    assert_eq!(sends.over(), [(0, true), (1, true)], "the newest wait for a neighbour");
    world.run(10 * SECOND);
    let silent: Vec<_> = (2..WAITING + 2).map(|send| (send, true)).collect();
    assert_eq!(sends.over(), silent);
    // What is refused stays with the caller, and is over when he lets go of it.
    world.acquaint();
    let now = world.wire.now();
    let to = Envelope::to(at(B, 7));
    let mut long = sends.of(&world.pool, 1473);
    assert_eq!(world.a.stack.udp_send(now, a, &mut long, &to), Err(Error::TooLong));
    assert_eq!(sends.over(), []);
    drop(long);
    assert_eq!(sends.over(), [(WAITING + 2, true)]);
    while world.a.stack.interface().room() > 0 {
        world.send(a, &to, b"x").unwrap();
    }
    let mut data = sends.of(&world.pool, 100);
    assert_eq!(world.a.stack.udp_send(now, a, &mut data, &to), Err(Error::WouldBlock));
    assert_eq!(sends.over(), []);
    world.go();
    assert_eq!(world.a.stack.udp_send(world.wire.now(), a, &mut data, &to), Ok(100));
    world.go();
    assert_eq!(sends.over(), [(WAITING + 3, false)]);
    // Of one that is sent while the socket closes nothing is lost.
    world.a.stack.udp_send(world.wire.now(), a, &mut sends.of(&world.pool, 100), &to).unwrap();
    world.a.stack.udp_close(a);
    assert_eq!(sends.over(), []);
    world.go();
    assert_eq!(sends.over(), [(WAITING + 4, false)]);
}
