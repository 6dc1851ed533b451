//! One host of several stacks, and a peer that knows nothing of them: each packet comes to any of the stacks, as chance has it.

use onecopy_chain::Writer;
use onecopy_inet::ip::{self, Cidr};
use onecopy_inet::shard::Share;
use onecopy_inet::stack::demux::Ends;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::stack::{Census, Config, Stack};
use onecopy_inet::tcp::{self, Received, SendFlags, State};
use onecopy_inet::udp::{self, Envelope};
use onecopy_inet::wire::Mac;
use onecopy_link::{Capabilities, Medium, Packet};
use onecopy_pool::provider::Heap;
use onecopy_pool::{PagePool, PoolConfig};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

const SEED: [u8; 16] = [9; 16];
const SECOND: u64 = 1_000_000_000;

fn host(number: u8, share: Option<Share>) -> Stack {
    let own = [
        Cidr::new(IpAddr::from([10, 0, 0, number]), 24).unwrap(),
        Cidr::new(IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, number.into()]), 64).unwrap(),
    ];
    let link = Capabilities::all(Medium::Ethernet, 1500);
    let ip = ip::Config::new(link, Mac([2, 0, 0, 0, 0, number]), &own, SEED);
    Stack::new(Config::new(ip::Config { share, ..ip }, SEED)).unwrap()
}

/// An address of a host, of one family or the other.
fn at(six: bool, number: u8, port: u16) -> SocketAddr {
    let ip = match six {
        true => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, number.into()]),
        false => IpAddr::from([10, 0, 0, number]),
    };
    SocketAddr::new(ip, port)
}

/// Any address of a family.
fn any(six: bool, port: u16) -> SocketAddr {
    let any: IpAddr = if six { [0_u16; 8].into() } else { [0_u8; 4].into() };
    SocketAddr::new(any, port)
}

struct World {
    /// Host 1.
    shards: Vec<Stack>,
    /// Host 2.
    peer: Stack,
    pool: Rc<PagePool>,
    now: u64,
    chance: u64,
    handed: u64,
    /// Of a hundred packets so many are lost.
    loss: u64,
}

impl World {
    fn new(count: u16) -> World {
        let share = |me| Share::new(me, count, &SEED);
        World {
            shards: (0..count).map(|me| host(1, share(me))).collect(),
            peer: host(2, None),
            pool: Rc::new(PagePool::new(PoolConfig::new(), Heap::new()).unwrap()),
            now: SECOND,
            chance: 42,
            handed: 0,
            loss: 0,
        }
    }

    fn share(&self) -> Share {
        *self.shards[0].interface().share().unwrap()
    }

    fn any(&mut self, of: usize) -> usize {
        self.chance = self.chance.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.chance >> 33) as usize % of
    }

    /// (ARP comes: who is not answered by a neighbour gives up after a while.)
    fn is_lost(&mut self, packet: &Packet) -> bool {
        (self.any(100) as u64) < self.loss && packet.head()[12..14] != [8, 6]
    }

    /// Lets all happen that happens now.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            let mut moved = false;
            for at in 0..self.shards.len() {
                while let Some(packet) = self.shards[at].transmit() {
                    if !self.is_lost(&packet) {
                        self.peer.receive(self.now, packet);
                    }
                    moved = true;
                }
                while let Some((to, handed)) = self.shards[at].handed() {
                    assert_ne!(to, at, "nobody hands anything to himself");
                    self.handed += 1;
                    self.shards[to].take_handed(self.now, handed);
                    moved = true;
                }
            }
            while let Some(packet) = self.peer.transmit() {
                let at = self.any(self.shards.len());
                if !self.is_lost(&packet) {
                    self.shards[at].receive(self.now, packet);
                }
                moved = true;
            }
            for stack in self.shards.iter_mut().chain([&mut self.peer]) {
                if stack.deadline().is_some_and(|at| at <= self.now) {
                    stack.advance(self.now);
                    moved = true;
                }
                while stack.event().is_some() {}
            }
            if !moved {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    /// Lets time pass.
    fn pass(&mut self, ns: u64) {
        let until = self.now + ns;
        self.settle();
        loop {
            let next = self.shards.iter().chain([&self.peer]).filter_map(Stack::deadline).min();
            match next {
                Some(next) if next <= until => self.now = next.max(self.now),
                _ => break,
            }
            self.settle();
        }
        self.now = until;
    }

    fn listen(&mut self, to: SocketAddr) -> (Id, Vec<Id>) {
        let listen = |stack: &mut Stack| {
            let id = stack.tcp_open().unwrap();
            stack.tcp_bind(id, to, true).unwrap();
            stack.tcp_listen(id, 4096).unwrap();
            id
        };
        (listen(&mut self.peer), self.shards.iter_mut().map(listen).collect())
    }
}

fn connect(stack: &mut Stack, now: u64, to: SocketAddr) -> Id {
    let id = stack.tcp_open().unwrap();
    assert_eq!(stack.tcp_connect(now, id, to), Err(tcp::Error::InProgress));
    id
}

fn ends(stack: &Stack, id: Id) -> Ends {
    let bound = stack.tcp_addresses(id);
    Ends::new(bound.local.unwrap(), bound.remote.unwrap())
}

/// One sends `bytes` and the other one gets them.
fn carries(world: &mut World, from: (Option<usize>, Id), to: (Option<usize>, Id), bytes: &[u8]) {
    fn stack(world: &mut World, which: Option<usize>) -> &mut Stack {
        match which {
            Some(at) => &mut world.shards[at],
            None => &mut world.peer,
        }
    }
    let (mut sent, mut got) = (0, Vec::new());
    while got.len() < bytes.len() {
        let (now, pool) = (world.now, Rc::clone(&world.pool));
        let writer = Writer::new(&*pool);
        match stack(world, from.0).tcp_send_bytes(now, from.1, &bytes[sent..], &writer, SendFlags::empty()) {
            Ok(n) => sent += n,
            Err(error) => assert_eq!(error, tcp::Error::WouldBlock),
        }
        world.pass(SECOND / 100);
        let now = world.now;
        while let Ok(Received::Data(data)) = stack(world, to.0).tcp_receive(now, to.1, 1 << 20) {
            data.payload().host().unwrap().slices().for_each(|slice| got.extend_from_slice(slice));
        }
    }
    assert!(got == bytes);
}

#[test]
fn connections_are_made_and_taken_in_the_stack_that_has_them() {
    for (count, six) in [(2, false), (4, false), (3, true)] {
        let mut world = World::new(count);
        let bytes: Vec<u8> = (0..30_000_u32).map(|n| (n / 3) as u8).collect();
        let (peers, ours) = world.listen(any(six, 80));
        let mut taken = vec![0; count.into()];
        // By the host, in each of its stacks.
        for round in 0..8 * usize::from(count) {
            let me = round % usize::from(count);
            let id = connect(&mut world.shards[me], world.now, at(six, 2, 80));
            world.pass(SECOND / 10);
            assert_eq!(world.shards[me].tcp_state(id), Some(State::Established));
            assert_eq!(world.share().of_ends(&ends(&world.shards[me], id)), me);
            let (theirs, _) = world.peer.tcp_accept(peers).unwrap();
            carries(&mut world, (Some(me), id), (None, theirs), &bytes);
            carries(&mut world, (None, theirs), (Some(me), id), &bytes);
            world.shards[me].tcp_close(world.now, id);
            world.peer.tcp_close(world.now, theirs);
        }
        // By the peer: whichever stack has it by the rule accepts it.
        for _ in 0..8 * count {
            let id = connect(&mut world.peer, world.now, at(six, 1, 80));
            world.pass(SECOND / 10);
            assert_eq!(world.peer.tcp_state(id), Some(State::Established));
            let Ends { local, remote } = ends(&world.peer, id);
            let me = world.share().of_ends(&Ends { local: remote, remote: local });
            let (theirs, _) = world.shards[me].tcp_accept(ours[me]).unwrap();
            taken[me] += 1;
            carries(&mut world, (None, id), (Some(me), theirs), &bytes);
            carries(&mut world, (Some(me), theirs), (None, id), &bytes);
            world.peer.tcp_close(world.now, id);
            world.shards[me].tcp_close(world.now, theirs);
        }
        assert!(taken.iter().all(|n| *n > 0), "{taken:?}: all have some");
        assert!(world.handed > 100, "{} handed over", world.handed);
        // Nothing is left, and nobody was reset.
        for (stack, id) in world.shards.iter_mut().zip(ours) {
            stack.tcp_close(world.now, id);
        }
        world.peer.tcp_close(world.now, peers);
        world.pass(200 * SECOND);
        for stack in world.shards.iter().chain([&world.peer]) {
            assert_eq!(stack.census(), Census::default());
            assert_eq!(stack.tcp_stats().resets_out, 0);
        }
        let stats = world.pool.stats();
        assert_eq!(stats.in_flight, stats.in_cache + stats.in_ring, "pages are missing: {stats:?}");
    }
}

#[test]
fn what_is_lost_is_sent_again() {
    for seed in 0..8 {
        let mut world = World::new(4);
        (world.chance, world.loss) = (seed, 15);
        let bytes: Vec<u8> = (0..200_000_u32).map(|n| (n / 3) as u8).collect();
        let (peers, ours) = world.listen(any(false, 80));
        for me in 0..4 {
            let id = connect(&mut world.shards[me], world.now, at(false, 2, 80));
            world.pass(100 * SECOND);
            let (theirs, _) = world.peer.tcp_accept(peers).unwrap();
            carries(&mut world, (Some(me), id), (None, theirs), &bytes);
            let id = connect(&mut world.peer, world.now, at(false, 1, 80));
            world.pass(100 * SECOND);
            let Ends { local, remote } = ends(&world.peer, id);
            let me = world.share().of_ends(&Ends { local: remote, remote: local });
            let (theirs, _) = world.shards[me].tcp_accept(ours[me]).unwrap();
            carries(&mut world, (None, id), (Some(me), theirs), &bytes);
        }
    }
}

#[test]
fn who_connects_where_nobody_listens_is_refused_by_the_one_it_is_for() {
    let mut world = World::new(4);
    for _ in 0..32 {
        let id = connect(&mut world.peer, world.now, at(false, 1, 81));
        world.pass(SECOND / 10);
        assert_eq!(world.peer.tcp_take_error(id), Some(tcp::Error::Refused));
        world.peer.tcp_close(world.now, id);
    }
    let resets: Vec<u64> = world.shards.iter().map(|stack| stack.tcp_stats().resets_out).collect();
    assert_eq!(resets.iter().sum::<u64>(), 32);
    assert!(resets.iter().all(|n| *n > 0), "{resets:?}");
}

#[test]
fn a_host_connects_to_itself_within_one_stack() {
    let mut world = World::new(4);
    let (_, ours) = world.listen(any(false, 80));
    for round in 0..32 {
        let me = round % 4;
        let id = connect(&mut world.shards[me], world.now, at(false, 1, 80));
        world.pass(SECOND / 10);
        let (other, _) = world.shards[me].tcp_accept(ours[me]).unwrap();
        carries(&mut world, (Some(me), id), (Some(me), other), &[7; 10_000]);
    }
}

#[test]
fn a_port_that_was_asked_for_says_whose_a_connection_is() {
    let mut world = World::new(4);
    let (peers, _) = world.listen(any(false, 80));
    let mut owners = [false; 4];
    for port in 5000..5016 {
        let (local, to) = (at(false, 1, port), at(false, 2, 80));
        let me = world.shards[0].tcp_whose(any(false, port), to).unwrap();
        owners[me] = true;
        for (shard, stack) in world.shards.iter_mut().enumerate() {
            let id = stack.tcp_open().unwrap();
            stack.tcp_bind(id, local, true).unwrap();
            let said = stack.tcp_connect(world.now, id, to);
            let right = if shard == me { tcp::Error::InProgress } else { tcp::Error::AddressNotAvailable };
            assert_eq!(said, Err(right));
        }
        world.pass(SECOND / 10);
        assert_eq!(world.peer.tcp_accept(peers).unwrap().1, local);
    }
    assert_eq!(owners, [true; 4]);
    // An address alone, and whichever port is this one's.
    for me in 0..4 {
        let stack = &mut world.shards[me];
        let id = stack.tcp_open().unwrap();
        assert_eq!(stack.tcp_bind_address(id, [10, 0, 0, 9].into()), Err(tcp::Error::AddressNotAvailable));
        stack.tcp_bind_address(id, [10, 0, 0, 1].into()).unwrap();
        assert_eq!(stack.tcp_connect(world.now, id, at(false, 2, 80)), Err(tcp::Error::InProgress));
        let ends = ends(stack, id);
        assert_eq!(world.share().of_ends(&ends), me);
    }
}

fn datagram(stack: &mut Stack, now: u64, id: Id, pool: &PagePool, bytes: &[u8], to: SocketAddr) {
    let sent = stack.udp_send_bytes(now, id, bytes, &Writer::new(pool), &Envelope::to(to));
    assert_eq!(sent, Ok(bytes.len()));
}

#[test]
fn datagrams_find_the_stack_that_has_their_port() {
    for six in [false, true] {
        let mut world = World::new(4);
        let pool = Rc::clone(&world.pool);
        let theirs = world.peer.udp_open().unwrap();
        world.peer.udp_bind(theirs, at(six, 2, 53), false).unwrap();
        let mut owners = [0; 4];
        for port in 7000..7032 {
            let me = world.share().of_port(port);
            owners[me] += 1;
            let other = (me + 1) % 4;
            let id = world.shards[other].udp_open().unwrap();
            let refused = world.shards[other].udp_bind(id, at(six, 1, port), false);
            assert_eq!(refused, Err(udp::Error::AddressNotAvailable));
            world.shards[other].udp_close(id);
            let id = world.shards[me].udp_open().unwrap();
            world.shards[me].udp_bind(id, at(six, 1, port), false).unwrap();
            datagram(&mut world.peer, world.now, theirs, &pool, b"hello", at(six, 1, port));
            world.pass(SECOND / 10);
            let received = world.shards[me].udp_receive(id).unwrap();
            assert_eq!((received.from, received.data.payload().len()), (at(six, 2, 53), 5));
            datagram(&mut world.shards[me], world.now, id, &pool, b"hello yourself", at(six, 2, 53));
            world.pass(SECOND / 10);
            assert_eq!(world.peer.udp_receive(theirs).unwrap().from, at(six, 1, port));
            // To ourselves, from another stack.
            let id = world.shards[other].udp_open().unwrap();
            world.shards[other].udp_connect(id, at(six, 1, port)).unwrap();
            let own = world.shards[other].udp_addresses(id).local.unwrap();
            assert_eq!(world.share().of_port(own.port()), other, "a port of its own");
            let sent = world.shards[other].udp_send_bytes(
                world.now,
                id,
                b"it is me",
                &Writer::new(&*pool),
                &Envelope::CONNECTED,
            );
            assert_eq!(sent, Ok(8));
            world.pass(SECOND / 10);
        }
        assert!(owners.iter().all(|n| *n > 0), "{owners:?}");
    }
}

#[test]
fn a_complaint_finds_who_sent_what_it_is_about() {
    for six in [false, true] {
        let mut world = World::new(4);
        let pool = Rc::clone(&world.pool);
        for round in 0..16 {
            // Where nobody is.
            let me = round % 4;
            let id = world.shards[me].udp_open().unwrap();
            world.shards[me].udp_connect(id, at(six, 2, 9)).unwrap();
            datagram(&mut world.shards[me], world.now, id, &pool, b"anybody?", at(six, 2, 9));
            world.pass(SECOND / 10);
            assert_eq!(world.shards[me].udp_take_error(id), Some(udp::Error::Refused));
            // At ourselves, in another stack.
            let port = (9000..).find(|port| world.share().of_port(*port) != me).unwrap();
            let id = world.shards[me].udp_open().unwrap();
            world.shards[me].udp_connect(id, at(six, 1, port)).unwrap();
            datagram(&mut world.shards[me], world.now, id, &pool, b"anybody?", at(six, 1, port));
            world.pass(SECOND / 10);
            assert_eq!(world.shards[me].udp_take_error(id), Some(udp::Error::Refused));
        }
    }
}

#[test]
fn parts_of_a_packet_meet_wherever_they_come() {
    for six in [false, true] {
        let mut world = World::new(4);
        let pool = Rc::clone(&world.pool);
        let theirs = world.peer.udp_open().unwrap();
        world.peer.udp_set(theirs, |settings| settings.dont_fragment = false).unwrap();
        let bytes: Vec<u8> = (0..20_000_u32).map(|n| (n / 5) as u8).collect();
        for port in 7000..7016 {
            let me = world.share().of_port(port);
            let id = world.shards[me].udp_open().unwrap();
            world.shards[me].udp_bind(id, at(six, 1, port), false).unwrap();
            datagram(&mut world.peer, world.now, theirs, &pool, &bytes, at(six, 1, port));
            world.pass(SECOND / 10);
            let received = world.shards[me].udp_receive(id).unwrap();
            let mut got = Vec::new();
            received.data.payload().host().unwrap().slices().for_each(|slice| got.extend_from_slice(slice));
            assert!(got == bytes);
        }
        let together = world.shards.iter().map(|stack| stack.interface().stats().reassembled);
        let together: Vec<u64> = together.collect();
        assert_eq!(together.iter().sum::<u64>(), 16);
        assert!(together.iter().filter(|n| **n > 0).count() > 1, "{together:?}: not all by one");
    }
}

#[test]
fn what_one_hears_of_a_neighbour_all_know_and_one_answers() {
    for six in [false, true] {
        let mut world = World::new(4);
        let pool = Rc::clone(&world.pool);
        // All of them ask, and whichever hears the answers.
        for me in 0..4 {
            let id = world.shards[me].udp_open().unwrap();
            datagram(&mut world.shards[me], world.now, id, &pool, b"x", at(six, 2, 9));
        }
        world.pass(SECOND / 10);
        for stack in &world.shards {
            assert_eq!(stack.interface().neighbours().get(at(six, 2, 0).ip()), Some(Mac([2, 0, 0, 0, 0, 2])));
            assert!(stack.interface().neighbours().is_reachable(world.now, at(six, 2, 0).ip()));
        }
        // Its question is answered once.
        let sent = |world: &World| -> u64 {
            world
                .shards
                .iter()
                .map(|stack| stack.interface().stats())
                .map(|stats| stats.sent - stats.asked)
                .sum()
        };
        world.pass(100 * SECOND);
        let before = sent(&world);
        let id = world.peer.udp_open().unwrap();
        let asked = world.peer.interface().stats().asked;
        let _ = world.peer.udp_send_bytes(
            world.now,
            id,
            b"x",
            &Writer::new(&*pool),
            &Envelope::to(at(six, 1, 9)),
        );
        world.pass(10 * SECOND);
        let asked = world.peer.interface().stats().asked - asked;
        // And the complaint that nobody has that port.
        assert_eq!(sent(&world) - before, asked + 1);
    }
}
