//! Payload that lies in a device's memory before TCP sees it: what nobody here can read is put in order, acknowledged and received all the
//! same, over a wire that loses, doubles, delays and damages.

use crate::net::{B, Net};
use onecopy_chain::{Chain, Kind, Writer};
use onecopy_inet::stack::RoomId;
use onecopy_inet::tcp::{Error, Received, SendFlags};
use onecopy_link::pair::Path;
use onecopy_link::rx::{Queues, Rule, Sorted};
use onecopy_link::{Link, Medium};
use onecopy_pool::{DeviceId, DeviceMemory};
use std::net::SocketAddr;
use std::time::Duration;

/// Host `b` with memory that is bound to queue 1, to which flows to port 80 are steered.
struct Bound {
    net: Net,
    queues: Queues,
    memory: DeviceMemory,
    room: RoomId,
}

impl Bound {
    fn new(path: Path, seed: u64, pages: u32) -> Bound {
        let mut net = Net::new(path, seed);
        let memory = DeviceMemory::opaque(pages, DeviceId(3)).unwrap();
        let mut queues = Queues::new(Medium::Ethernet);
        queues.set_len(2).unwrap();
        queues.steer(Rule { to: SocketAddr::new(B.into(), 80), queue: 1 }).unwrap();
        queues.bind(&memory, &[1]).unwrap();
        let room = net.b.stack.open_room();
        net.b.stack.set_room(0, room, memory.free());
        Bound { net, queues, memory, room }
    }

    fn step(&mut self) -> bool {
        let now = self.net.now();
        while let Some(packet) = self.net.b.link.receive(now) {
            match self.queues.sort(packet) {
                Sorted::Plain(packet) => self.net.b.stack.receive(now, packet),
                Sorted::Bound(_, packet) | Sorted::Landed(_, packet) => {
                    self.net.b.stack.set_room(now, self.room, self.memory.free());
                    self.net.b.stack.receive_in(now, packet, self.room);
                }
                Sorted::Dropped { .. } => {}
            }
        }
        self.net.b.stack.set_room(now, self.room, self.memory.free());
        self.net.step(now + 1_000_000_000)
    }

    /// What is in a chain of the memory.
    fn read(&self, chain: &Chain) -> Vec<u8> {
        assert_eq!(chain.kind(), Some(Kind::Device));
        assert!(chain.host().is_err() && chain.peer().is_err(), "nobody here reads it");
        let mut all = Vec::new();
        for fragment in chain.fragments() {
            let at = self.memory.place_of(fragment.page(), fragment.offset()).unwrap();
            let mut bytes = vec![0; fragment.len()];
            self.memory.read_at(at, &mut bytes).unwrap();
            all.extend(bytes);
        }
        all
    }
}

fn byte(at: usize) -> u8 {
    ((at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

/// Sends `len` bytes and receives them, keeping up to `keep` chains before they are given back. Returns the world.
fn transfer(path: Path, seed: u64, pages: u32, len: usize, keep: usize) -> Bound {
    let mut world = Bound::new(path, seed, pages);
    let listener = world.net.listen(80);
    let client = world.net.a.stack.tcp_open().unwrap();
    let to = SocketAddr::new(B.into(), 80);
    assert_eq!(world.net.a.stack.tcp_connect(0, client, to), Err(Error::InProgress));
    let (mut server, mut sent, mut got) = (None, 0, 0);
    let mut kept = std::collections::VecDeque::new();
    let mut idle = 0;
    while got < len {
        let now = world.net.now();
        let writer = Writer::new(&world.net.pool);
        while sent < len {
            let data: Vec<u8> = (sent..len.min(sent + 10_000)).map(byte).collect();
            match world.net.a.stack.tcp_send_bytes(now, client, &data, &writer, SendFlags::empty()) {
                Ok(n) => sent += n,
                Err(_) => break,
            }
        }
        server = server.or_else(|| world.net.b.stack.tcp_accept(listener).ok().map(|(id, _)| id));
        while let Some(id) = server
            && let Ok(Received::Data(data)) = world.net.b.stack.tcp_receive(now, id, 1 << 20)
        {
            let bytes = world.read(data.payload());
            for (n, found) in bytes.iter().enumerate() {
                assert_eq!(*found, byte(got + n), "byte {}", got + n);
            }
            got += bytes.len();
            kept.push_back(data);
            if kept.len() > keep {
                kept.pop_front();
            }
        }
        idle = if world.step() { 0 } else { idle + 1 };
        // Who waits for room is given it.
        if idle > 2 {
            kept.clear();
        }
        if idle > 300 {
            world.net.report();
            panic!("{got} of {len} bytes, {:?} {:?}", world.memory, world.queues.stats(1));
        }
    }
    drop(kept);
    world
}

#[test]
fn unreadable_bytes_go_through_all_troubles_of_a_wire() {
    for seed in 0..8 {
        let path = Path::new()
            .delay(Duration::from_millis(2))
            .rate(200_000_000)
            .loss(0.02)
            .duplicate(0.02)
            .reorder(0.05, Duration::from_millis(3))
            .corrupt(0.01)
            .whole(false);
        let world = transfer(path, seed, 256, 600_000, 3);
        let stats = world.queues.stats(1).unwrap();
        assert_eq!((stats.starved, stats.foreign, stats.failed, stats.unsplit), (0, 0, 0, 0), "seed {seed}");
        let tcp = world.net.b.stack.tcp_stats();
        assert!(stats.placed > 400 && tcp.segments_in > 400, "{stats:?}");
    }
}

#[test]
fn nothing_is_dropped_however_small_the_memory_is() {
    for (seed, keep) in [(1, 0), (2, 2), (3, 8)] {
        let world = transfer(Path::new().delay(Duration::from_millis(1)), seed, 16, 200_000, keep);
        assert_eq!(world.queues.stats(1).unwrap().starved, 0, "{keep} kept");
        let room = world.net.b.stack.room_stats(world.room).unwrap();
        assert!(room.narrowed > 0 && room.promised <= world.memory.len() / 2, "{room:?}");
    }
}
