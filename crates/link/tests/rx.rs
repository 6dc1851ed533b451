//! Receive queues: where packets come to, and what becomes of payload that cannot be placed.

use onecopy_chain::{Chain, Checksum, Fragment, Kind, Writer};
use onecopy_link::rx::{Queues, Rule, Sorted};
use onecopy_link::{Medium, Packet};
use onecopy_pool::provider::Heap;
use onecopy_pool::{DeviceId, DeviceMemory, PagePool, PoolConfig};

/// A segment to port 80 of 10.0.0.2, whose IP header says `said` bytes of payload.
fn head(port: u16, said: usize) -> Vec<u8> {
    let mut bytes = vec![0; 54];
    bytes[12] = 8;
    (bytes[14], bytes[23]) = (0x45, 6);
    bytes[16..18].copy_from_slice(&(40 + said as u16).to_be_bytes());
    bytes[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[36..38].copy_from_slice(&port.to_be_bytes());
    bytes[46] = 0x50;
    bytes
}

struct World {
    queues: Queues,
    memory: DeviceMemory,
    pool: PagePool,
}

impl World {
    fn new(pages: u32) -> World {
        let memory = DeviceMemory::opaque(pages, DeviceId(1)).unwrap();
        let mut queues = Queues::new(Medium::Ethernet);
        queues.set_len(2).unwrap();
        queues.steer(Rule { to: "0.0.0.0:80".parse().unwrap(), queue: 1 }).unwrap();
        queues.bind(&memory, &[1]).unwrap();
        World { queues, memory, pool: PagePool::new(PoolConfig::new(), Heap::new()).unwrap() }
    }

    fn chain(&self, bytes: &[u8]) -> Chain {
        let mut chain = Chain::new();
        Writer::new(&self.pool).append(&mut chain, bytes).unwrap();
        chain
    }

    fn read(&self, chain: &Chain) -> Vec<u8> {
        let mut all = Vec::new();
        for fragment in chain.fragments() {
            let mut bytes = vec![0; fragment.len()];
            let at = self.memory.place_of(fragment.page(), fragment.offset()).unwrap();
            self.memory.read_at(at, &mut bytes).unwrap();
            all.extend(bytes);
        }
        all
    }
}

#[test]
fn payload_is_placed_to_the_byte_and_padding_is_not() {
    let mut world = World::new(64);
    for len in [1, 2, 63, 64, 1448, 4095, 4096, 4097, 10_000, 40_000] {
        let data: Vec<u8> = (0..len).map(|n| (n * 31 + len) as u8).collect();
        let mut landed = data.clone();
        landed.extend([0xee; 5]);
        let packet = Packet::new(&head(80, len), world.chain(&landed)).unwrap();
        let Sorted::Bound(1, packet) = world.queues.sort(packet) else { panic!("{len} bytes") };
        let chain = packet.payload().payload();
        assert_eq!((chain.kind(), chain.len()), (Some(Kind::Device), len));
        assert!(world.read(chain) == data, "{len} bytes");
        // Nobody can sum it any more; it was summed before.
        let whole = onecopy_chain::Sum::of(&data);
        assert_eq!(packet.checksum(), Checksum::Known(whole));
    }
    let stats = world.queues.stats(1).unwrap();
    assert_eq!((stats.placed, stats.packets, stats.unsplit), (10, 10, 0));
    assert!(world.memory.free() + 4096 >= world.memory.len());
}

#[test]
fn what_cannot_be_placed_stays_or_is_dropped_and_is_counted() {
    let mut world = World::new(2);
    // An ACK has nothing to be placed.
    let ack = Packet::new(&head(80, 0), Chain::new()).unwrap();
    assert!(matches!(world.queues.sort(ack), Sorted::Bound(1, _)));
    // Payload of which the head has some.
    let mut longer = head(80, 14);
    longer.extend(b"head");
    let packet = Packet::new(&longer, world.chain(b"and behind")).unwrap();
    let Sorted::Bound(1, packet) = world.queues.sort(packet) else { panic!("kept") };
    assert_eq!(packet.payload().payload().kind(), Some(Kind::Host));
    // Another port, and what is no TCP.
    let other = Packet::new(&head(81, 4), world.chain(b"host")).unwrap();
    assert!(matches!(world.queues.sort(other), Sorted::Plain(_)));
    let mut udp = head(80, 4);
    udp[23] = 17;
    let udp = Packet::new(&udp, world.chain(b"host")).unwrap();
    assert!(matches!(world.queues.sort(udp), Sorted::Plain(_)));
    // More than there is room for.
    let full = Packet::new(&head(80, 9000), world.chain(&[1; 9000])).unwrap();
    assert!(matches!(world.queues.sort(full), Sorted::Dropped { queue: 1, starved: true }));
    assert_eq!(world.memory.free(), world.memory.len(), "nothing of it is kept");
    // What lies on a device already.
    let theirs = DeviceMemory::opaque(1, DeviceId(2)).unwrap();
    let chain = Chain::from(Fragment::from(theirs.alloc(100).unwrap().remove(0)));
    let foreign = Packet::new(&head(80, 100), chain).unwrap();
    assert!(matches!(world.queues.sort(foreign), Sorted::Dropped { queue: 1, starved: false }));
    let stats = world.queues.stats(1).unwrap();
    assert_eq!((stats.packets, stats.placed, stats.unsplit, stats.starved, stats.foreign), (4, 0, 1, 1, 1));
    assert_eq!(world.queues.stats(0).unwrap().packets, 2);
}

#[test]
fn a_rule_with_an_address_goes_before_one_without() {
    let mut world = World::new(64);
    world.queues.set_len(3).unwrap();
    world.queues.steer(Rule { to: "10.0.0.2:80".parse().unwrap(), queue: 2 }).unwrap();
    world.queues.steer(Rule { to: "[::]:80".parse().unwrap(), queue: 0 }).unwrap();
    let sort = |world: &mut World| {
        let packet = Packet::new(&head(80, 4), world.chain(b"data")).unwrap();
        drop(world.queues.sort(packet));
        (0..3).map(|queue| world.queues.stats(queue).unwrap().packets).collect::<Vec<_>>()
    };
    assert_eq!(sort(&mut world), [0, 0, 1]);
    assert!(world.queues.unsteer("10.0.0.2:80".parse().unwrap()));
    assert_eq!(sort(&mut world), [0, 1, 1]);
    // Named again, the last rule for an address counts.
    world.queues.steer(Rule { to: "0.0.0.0:80".parse().unwrap(), queue: 2 }).unwrap();
    assert_eq!(sort(&mut world), [0, 1, 2]);
    assert_eq!(world.queues.rules().len(), 2);
}
