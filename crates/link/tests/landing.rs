//! Payload that the kernel puts into bound memory itself, and payload that it put there though it belongs elsewhere.

use onecopy_chain::{Chain, Checksum, Kind, Sum, Writer};
use onecopy_link::rx::{Queues, Rule, Sorted};
use onecopy_link::{Gso, Link, Medium, Packet, Registered, Tap, Train};
use onecopy_pool::provider::Heap;
use onecopy_pool::{DeviceId, DeviceMemory, PagePool, PoolConfig};

/// Headers of a segment.
#[derive(Clone, Copy, Debug)]
enum Headers {
    /// With so many words of TCP's options.
    V4(usize),
    V6,
    /// With a VLAN's tag, which nobody steers by.
    Tagged,
    Udp,
}
use Headers::{Tagged, Udp, V4, V6};

impl Headers {
    /// They, to this port, with so much behind them; and where the network's and the transport's begin.
    fn build(self, port: u16, payload: usize) -> (Vec<u8>, usize, usize) {
        let mut head = vec![0; 12];
        if let Tagged = self {
            head.extend([0x81, 0x00, 0, 7]);
        }
        let (kind, ip, transport): ([u8; 2], usize, usize) = match self {
            V4(options) => ([8, 0], 20, 20 + 4 * options),
            Tagged => ([8, 0], 20, 20),
            Udp => ([8, 0], 20, 8),
            V6 => ([0x86, 0xdd], 40, 20),
        };
        head.extend(kind);
        let network = head.len();
        head.resize(network + ip + transport, 0);
        let protocol = if let Udp = self { 17 } else { 6 };
        let said = (transport + payload) as u16;
        match self {
            V6 => {
                (head[network], head[network + 6]) = (0x60, protocol);
                head[network + 4..][..2].copy_from_slice(&said.to_be_bytes());
                head[network + 39] = 2;
            }
            _ => {
                (head[network], head[network + 9]) = (0x45, protocol);
                head[network + 2..][..2].copy_from_slice(&(said + 20).to_be_bytes());
                head[network + 16..][..4].copy_from_slice(&[10, 0, 0, 2]);
            }
        }
        let at = network + ip;
        head[at + 2..][..2].copy_from_slice(&port.to_be_bytes());
        if protocol == 6 {
            head[at + 12] = (transport as u8 / 4) << 4;
        }
        (head, network, at)
    }
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// Its payload lies in the memory, and nobody copied it there.
    Landed,
    /// It lies there, copied.
    Placed,
    /// It came to the bound queue, and its payload, if it has any, lies in the host's memory.
    Host,
    /// It came to another queue.
    Plain,
    Starved,
}

struct World {
    near: Tap,
    far: Tap,
    queues: Queues,
    memory: DeviceMemory,
    pool: PagePool,
    turn: u32,
    /// What is not let go of.
    held: Option<Vec<Packet>>,
}

impl World {
    /// None where the kernel cannot.
    fn new(pages: u32) -> Option<World> {
        let (near, far) = Tap::cable(9000).unwrap();
        let memory = DeviceMemory::opaque(pages, DeviceId(1)).unwrap();
        let registered = match Registered::new(&memory) {
            Ok(registered) => registered,
            Err(why) => {
                println!("lacking: registered buffers of io_uring ({why})");
                return None;
            }
        };
        let mut queues = Queues::new(Medium::Ethernet);
        queues.set_len(2).unwrap();
        queues.steer(Rule { to: "0.0.0.0:80".parse().unwrap(), queue: 1 }).unwrap();
        queues.steer(Rule { to: "[::]:80".parse().unwrap(), queue: 1 }).unwrap();
        queues.bind(&memory, &[1]).unwrap();
        queues.land(registered);
        let pool = PagePool::new(PoolConfig::new().order(4), Heap::new()).unwrap();
        Some(World { near, far, queues, memory, pool, turn: 0, held: None })
    }

    /// It goes over the cable, its sum to be finished.
    fn pass(&mut self, headers: Headers, port: u16, len: usize) -> Came {
        self.pass_as(headers, port, len, true)
    }

    fn pass_as(&mut self, headers: Headers, port: u16, len: usize, summed: bool) -> Came {
        self.turn += 1;
        let turn = self.turn;
        let data: Vec<u8> =
            (0..len as u32).map(|n| ((n ^ turn).wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let (head, network, transport) = headers.build(port, len);
        let mut chain = Chain::new();
        Writer::new(&self.pool).append(&mut chain, &data).unwrap();
        let mut packet = Packet::new(&head, chain).unwrap();
        let udp = matches!(headers, Udp);
        if summed {
            let offset = if udp { 6 } else { 16 };
            packet.set_checksum(Checksum::Partial { start: transport as u16, offset }).unwrap();
            let train = if udp { Train::Udp } else { Train::Tcp };
            packet.set_gso((len > 1448).then_some(Gso { train, size: 1448, network: network as u8 }));
        }
        self.near.transmit(0, packet);
        let sorted = self.far.receive_sorted(0, &mut self.queues).expect("a packet");
        let device = |packet: &Packet| packet.payload().payload().kind() == Some(Kind::Device);
        let (came, packet) = match sorted {
            Sorted::Landed(1, packet) if device(&packet) => (Came::Landed, packet),
            Sorted::Bound(1, packet) if device(&packet) => (Came::Placed, packet),
            Sorted::Bound(1, packet) => (Came::Host, packet),
            Sorted::Plain(packet) => (Came::Plain, packet),
            Sorted::Dropped { queue: 1, starved: true } => return Came::Starved,
            other => panic!("{other:?}"),
        };
        assert_eq!(packet.head().to_vec(), head, "{headers:?} {len}");
        assert_eq!(packet.gso().is_some(), summed && len > 1448);
        assert!(self.bytes(&packet) == data, "{headers:?} {len} {came:?}");
        if let (false, Came::Placed) = (summed, came) {
            assert_eq!(packet.checksum(), Checksum::Known(Sum::of(&data)));
        }
        self.held.iter_mut().for_each(|held| held.push(packet.share()));
        came
    }

    fn bytes(&self, packet: &Packet) -> Vec<u8> {
        let chain = packet.payload().payload();
        if chain.kind() != Some(Kind::Device) {
            return chain.host().unwrap().slices().flatten().copied().collect();
        }
        let mut all = Vec::new();
        for fragment in chain.fragments() {
            let mut bytes = vec![0; fragment.len()];
            fragment.page().copy_out(fragment.offset(), &mut bytes).unwrap();
            all.extend(bytes);
        }
        all
    }

    /// Until the flow is believed in, as much as it gets.
    fn trust(&mut self) {
        for _ in 0..60 {
            self.pass(V4(3), 80, 20_000);
        }
        assert_eq!(self.pass(V4(3), 80, 20_000), Came::Landed);
    }

    /// Whether all pages are free, but for the one that small pieces are cut from.
    fn all_home(&self) -> bool {
        self.memory.free() + 4096 >= self.memory.len()
    }

    fn misplaced(&self) -> (u64, u64) {
        (self.far.stats().misplaced, self.far.stats().misplaced_bytes)
    }
}

#[test]
fn a_flow_of_long_packets_is_landed_after_some() {
    let Some(mut world) = World::new(256) else { return };
    let first: Vec<Came> = (0..12).map(|_| world.pass(V4(3), 80, 60_000)).collect();
    assert_eq!((&first[..9], &first[9..]), (&[Came::Placed; 9][..], &[Came::Landed; 3][..]));
    let copied = world.memory.copied().into;
    assert_eq!(copied, 9 * 60_000);
    for len in [2048, 2049, 4095, 4096, 4097, 8192, 20_000, 65_000] {
        assert_eq!(world.pass(V4(3), 80, len), Came::Landed, "{len}");
    }
    assert_eq!((world.memory.copied().into, world.misplaced()), (copied, (0, 0)));
    let stats = world.queues.stats(1).unwrap();
    assert_eq!((stats.packets, stats.placed, stats.landed), (20, 20, 11));
    assert_eq!(stats.placed_bytes - stats.landed_bytes, copied);
    assert!(world.all_home(), "all that was drawn and not used");
    // So is IPv6's, once the headers are known.
    let came: Vec<Came> = (0..20).map(|_| world.pass(V6, 80, 30_000)).collect();
    assert_eq!(came.last(), Some(&Came::Landed));
    assert_eq!(world.misplaced(), (1, 30_000 + 8));
}

#[test]
fn what_was_foreseen_wrongly_comes_where_it_belongs() {
    let Some(mut world) = World::new(256) else { return };
    let packets = [
        // Other headers: shorter, longer.
        (V4(0), 80, 30_000, Came::Placed, 30_000 - 12),
        (V4(6), 80, 30_000, Came::Placed, 30_000 + 12),
        (V4(10), 80, 60_000, Came::Placed, 60_000 + 28),
        (V6, 80, 30_000, Came::Placed, 30_000 + 8),
        (V6, 81, 30_000, Came::Plain, 30_000 + 8),
        // Another flow, of headers that are as long, and none at all.
        (V4(3), 81, 60_000, Came::Plain, 60_000),
        (Tagged, 80, 30_000, Came::Plain, 30_000 - 8),
        (Udp, 80, 30_000, Came::Plain, 30_000 - 24),
        // Small ones.
        (V4(3), 80, 2047, Came::Placed, 2047),
        (V4(3), 80, 1, Came::Placed, 1),
        (V4(0), 80, 1, Came::Placed, 0),
        (V4(0), 80, 13, Came::Placed, 1),
        (V4(3), 80, 0, Came::Host, 0),
        (V4(0), 80, 0, Came::Host, 0),
        (V4(6), 80, 0, Came::Host, 12),
        (V4(3), 81, 0, Came::Plain, 0),
    ];
    for (headers, port, len, belongs, misplaced) in packets {
        world.trust();
        let (times, before) = world.misplaced();
        assert_eq!(world.pass(headers, port, len), belongs, "{headers:?} {port} {len}");
        let after = world.misplaced();
        assert_eq!(after, (times + u64::from(misplaced > 0), before + misplaced), "{headers:?} {port} {len}");
    }
    // One whose sum has to be taken: it can be, of what lies in the host's memory.
    world.trust();
    assert_eq!(world.pass_as(V4(3), 80, 8000, false), Came::Placed);
    let stats = world.queues.stats(1).unwrap();
    assert_eq!((stats.starved, stats.unsplit, stats.foreign, stats.failed), (0, 0, 0, 0));
    assert!(world.all_home());
}

#[test]
fn memory_that_is_used_up_is_told_as_ever() {
    let Some(mut world) = World::new(64) else { return };
    world.trust();
    world.held = Some(Vec::new());
    let came: Vec<Came> = (0..14).map(|_| world.pass(V4(3), 80, 20_000)).collect();
    // Five pages each, of 64 (one of which pieces were cut from): no more is landed than what the longest packet leaves room for.
    let count = |kind: Came| came.iter().filter(|came| **came == kind).count();
    assert_eq!((count(Came::Landed) + count(Came::Placed), count(Came::Starved)), (12, 2), "{came:?}");
    assert_eq!(count(Came::Landed), 10, "{came:?}");
    let held = world.held.take().unwrap();
    assert_eq!(world.pass(V4(3), 81, 20_000), Came::Plain, "others have their memory");
    drop(held);
    world.trust();
}

#[test]
fn unbound_memory_keeps_what_it_has_and_gets_nothing_more() {
    let Some(mut world) = World::new(256) else { return };
    world.trust();
    world.held = Some(Vec::new());
    assert_eq!(world.pass(V4(3), 80, 50_000), Came::Landed);
    let held = world.held.take().unwrap();
    let bytes = world.bytes(&held[0]);
    world.queues.unbind(&[1]);
    let free = world.memory.free();
    for _ in 0..20 {
        assert_eq!(world.pass(V4(3), 80, 50_000), Came::Plain);
    }
    assert_eq!((world.memory.free(), world.misplaced()), (free, (0, 0)));
    // Bound anew, to another one.
    let other = DeviceMemory::opaque(256, DeviceId(2)).unwrap();
    world.queues.bind(&other, &[1]).unwrap();
    world.queues.land(Registered::new(&other).unwrap());
    world.trust();
    assert_eq!(world.bytes(&held[0]), bytes);
    drop(held);
    assert!(world.all_home());
}

#[test]
fn memory_that_cannot_be_registered_gets_copies() {
    let Some(mut world) = World::new(64) else { return };
    world.queues.unbind(&[1]);
    // A buffer has up to 1 GiB.
    let large = DeviceMemory::opaque(1 << 18, DeviceId(2)).unwrap();
    world.queues.bind(&large, &[1]).unwrap();
    let why = Registered::new(&large).unwrap_err();
    assert!(why.to_string().contains("1 GiB"), "{why}");
    for _ in 0..20 {
        assert_eq!(world.pass(V4(3), 80, 50_000), Came::Placed);
    }
    assert_eq!(world.queues.stats(1).unwrap().landed, 0);
}

#[test]
fn whatever_comes_in_whatever_order_is_all_there() {
    let Some(mut world) = World::new(200) else { return };
    let mut state = 7_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..60 {
        // A run of one flow, as it is with super-segments, and a stranger or two.
        for _ in 0..random(40) {
            world.pass(V4(3), 80, 2048 + random(60_000) as usize);
        }
        for _ in 0..random(3) {
            let headers = [V4(0), V4(3), V4(random(11) as usize), V6, Tagged, Udp][random(6) as usize];
            let len = [random(100), random(5000), random(65_000)][random(3) as usize] as usize;
            world.pass(headers, 80 + random(2) as u16, len);
        }
        if random(4) == 0 {
            world.held = world.held.take().is_none().then(Vec::new);
        }
        assert!(round % 20 != 19 || world.queues.stats(1).unwrap().landed > 0);
    }
    world.held = None;
    assert!(world.all_home());
}
