//! What the kernel would tell of a NIC's fragments, told by a test: no machine of ours has such a NIC.

use super::*;
use onecopy_pool::{DeviceId, DeviceMemory};
use onecopy_sys::fork::{Ended, child};
use std::io::IoSlice;

/// The kernel's side: what it tells of next, and what was given back.
#[derive(Default)]
pub(in crate::kernel) struct Script {
    next: Mutex<VecDeque<io::Result<Received>>>,
    /// Ranges of each call.
    returned: Mutex<Vec<Vec<(u32, u32)>>>,
    /// What it says instead of taking tokens back.
    refuses: Mutex<VecDeque<Errno>>,
    /// Tokens that it says it does not know.
    unknown: u32,
    /// How often it was said that nobody receives any more.
    closed: AtomicUsize,
}

impl Calls for Arc<Script> {
    fn recv(&self, buffer: &mut [u8], most: usize, _: &mut Control) -> Result<Received, NotRead> {
        let received = self.next.lock().pop_front().unwrap_or(Err(Errno::AGAIN)).map_err(untold)?;
        assert!(received.pieces.len() <= most, "there is room for {most}");
        for (n, byte) in buffer.iter_mut().take(100).enumerate() {
            *byte = n as u8;
        }
        Ok(received)
    }

    fn give_back(&self, ranges: &[(u32, u32)]) -> io::Result<u32> {
        if let Some(errno) = self.refuses.lock().pop_front() {
            return Err(errno);
        }
        self.returned.lock().push(ranges.to_vec());
        Ok(ranges.iter().map(|(_, count)| count).sum::<u32>() - self.unknown)
    }

    fn close(&self) {
        self.closed.fetch_add(1, Relaxed);
    }
}

impl Script {
    pub(in crate::kernel) fn tells(&self, pieces: &[Piece]) {
        let len = |piece: &Piece| match piece {
            Piece::Linear(len) => *len as usize,
            Piece::Device(frag) => frag.len as usize,
        };
        let bytes = pieces.iter().map(len).sum();
        self.next.lock().push_back(Ok(Received { bytes, pieces: pieces.to_vec(), cut: false }));
    }

    pub(in crate::kernel) fn fails(&self, errno: Errno) {
        self.next.lock().push_back(Err(errno));
    }

    pub(in crate::kernel) fn returned(&self) -> Vec<Vec<(u32, u32)>> {
        std::mem::take(&mut self.returned.lock())
    }
}

pub(in crate::kernel) const DMABUF: u32 = 7;

pub(in crate::kernel) fn frag(offset: u64, len: u32, token: u32) -> Piece {
    Piece::Device(Frag { offset, len, token, dmabuf: DMABUF, flags: 0 })
}

struct World {
    memory: DeviceMemory,
    script: Arc<Script>,
    placed: Placed,
}

impl World {
    fn new(script: Script) -> World {
        let memory = DeviceMemory::opaque(16, DeviceId(1)).unwrap();
        let (nic, script) = (Arc::new(Nic::pretended(&memory, DMABUF, &Arc::default())), Arc::new(script));
        let placed = Placed::new(&nic, Box::new(Arc::clone(&script))).unwrap();
        World { memory, script, placed }
    }

    /// Where parts lie in the memory, and how long they are; nowhere is the host's.
    fn places(&self, parts: &[Part]) -> Vec<(Option<u64>, usize)> {
        parts.iter().map(|part| (self.memory.place(part), part.len())).collect()
    }

    fn free(&self) -> usize {
        self.placed.home.slots.lock().free.len()
    }

    fn count(&self, name: &str) -> u64 {
        let all = self.placed.home.nic.counts().all();
        all.iter().find(|(known, _)| *known == name).unwrap().1
    }
}

#[test]
fn pieces_come_in_order_of_one_memory_a_call_and_tokens_go_back_once() {
    let world = World::new(Script::default());
    world.memory.write_at(4100, &[IoSlice::new(b"placed")]).unwrap();
    world.script.tells(&[
        Piece::Linear(3),
        frag(4100, 6, 2),
        frag(8192, 4096, 1),
        frag(0, 1, 3),
        Piece::Linear(2),
    ]);
    assert!(world.placed.fill(1 << 20, 100).unwrap_or(false));
    assert_eq!(world.placed.len(), 3 + 6 + 4096 + 1 + 2);
    let host = world.placed.take(1 << 20, 100);
    assert_eq!((world.places(&host), host[0].bytes()), (vec![(None, 3)], Some(&[0, 1, 2][..])));
    // Looked at, they stay.
    let expected = [(Some(4100), 6), (Some(8192), 4096), (Some(0), 1)];
    assert_eq!(world.places(&world.placed.peek(1 << 20, 100)), expected);
    let device = world.placed.take(1 << 20, 100);
    assert_eq!(world.places(&device), expected);
    let mut bytes = [0; 6];
    device[0].page().copy_out(device[0].offset(), &mut bytes).unwrap();
    assert_eq!(&bytes, b"placed");
    let rest = world.placed.take(1 << 20, 100);
    assert_eq!((world.places(&rest), rest[0].bytes()), (vec![(None, 2)], Some(&[3, 4][..])));
    assert!(world.placed.take(1, 1).is_empty() && world.placed.len() == 0);
    // Whoever has another reference keeps it.
    let kept = device[2].clone();
    drop(device);
    world.placed.home().flush();
    assert_eq!(world.script.returned(), [[(1, 2)]]);
    std::thread::spawn(move || drop(kept)).join().unwrap();
    // At the next receive, at the latest.
    assert!(matches!(world.placed.fill(1, 1), Err(NotRead::Errno(Errno::AGAIN))));
    assert_eq!(world.script.returned(), [[(3, 1)]]);
    world.placed.home().flush();
    assert_eq!(world.script.returned(), Vec::<Vec<_>>::new(), "each once");
    let counts =
        ["nic_frags", "nic_bytes", "nic_linear_bytes", "nic_tokens_kept"].map(|name| world.count(name));
    assert_eq!((counts, world.free()), ([3, 4103, 5, 0], 256));
}

#[test]
fn a_fragment_that_is_taken_in_parts_goes_back_with_the_last_of_them() {
    let world = World::new(Script::default());
    world.script.tells(&[frag(4000, 5000, 9), frag(12288, 10, 12)]);
    assert!(world.placed.fill(1 << 20, 2).unwrap_or(false));
    let first = world.placed.take(100, 9);
    assert_eq!(world.places(&first), [(Some(4000), 100)], "it crosses two pages");
    let second = world.placed.take_if(9, |next| Some(next.len() - 1)).unwrap();
    assert_eq!(world.places(&second), [(Some(4100), 4899)]);
    assert!(world.placed.take_if(9, |_| None).is_none());
    let third = world.placed.take(9000, 1);
    assert_eq!(world.places(&third), [(Some(8999), 1)], "one piece was asked for");
    drop((second, first));
    world.placed.home().flush();
    assert!(world.script.returned().is_empty());
    drop(third);
    world.placed.home().flush();
    assert_eq!(world.script.returned(), [[(9, 1)]]);
    // What nobody takes goes back with the connection, and what somebody has when he lets go.
    let World { placed, script, .. } = world;
    let kept = placed.take(4, 9);
    drop(placed.take(100, 9));
    script.tells(&[frag(0, 1, 20)]);
    assert!(placed.fill(1, 1).unwrap_or(false) && script.returned().is_empty());
    drop(placed);
    assert_eq!(script.returned(), [[(20, 1)]]);
    drop(kept);
    assert_eq!(script.returned(), [[(12, 1)]]);
}

#[test]
fn what_cannot_be_is_refused_and_each_of_its_tokens_goes_back() {
    let world = World::new(Script::default());
    let whole = |pieces: Vec<Piece>, bytes, cut| Ok(Received { bytes, pieces, cut });
    let other = Piece::Device(Frag { offset: 0, len: 10, token: 2, dmabuf: DMABUF + 1, flags: 0 });
    for received in [
        // Behind the memory's end, far behind it, and where it overflows.
        whole(vec![frag(0, 10, 1), frag(65530, 10, 2)], 20, false),
        whole(vec![frag(65536, 10, 2), frag(0, 10, 1)], 20, false),
        whole(vec![frag(0, 10, 1), frag(u64::MAX - 5, 10, 2)], 20, false),
        // In another binding's memory.
        whole(vec![other, frag(0, 10, 1)], 20, false),
        // Fewer, or more, than there are bytes; of no bytes.
        whole(vec![frag(0, 10, 1), frag(10, 10, 2)], 21, true),
        whole(vec![frag(0, 10, 1), frag(10, 10, 2)], 19, false),
        whole(vec![frag(0, 10, 1), frag(10, 0, 2)], 10, false),
        // More in the buffer than it has.
        whole(vec![frag(0, 10, 1), Piece::Linear(4000), frag(0, 10, 2)], 4020, false),
    ] {
        world.script.next.lock().push_back(received.clone());
        let refused = world.placed.fill(1000, 100);
        assert!(matches!(refused, Err(NotRead::Errno(Errno::PROTO))), "{received:?}");
        let returned = world.script.returned().concat();
        assert_eq!(returned, [(1, 2)], "{received:?}");
        assert_eq!((world.placed.len(), world.free()), (0, 256), "{received:?}");
    }
    // Messages that were lost, and no piece of them was read.
    world.script.next.lock().push_back(whole(vec![], 10, true));
    assert!(matches!(world.placed.fill(1000, 100), Err(NotRead::Errno(Errno::PROTO))));
    // What is of the call alone is told, and the connection goes on.
    for errno in [Errno::NOMEM, Errno::FAULT, ETOOSMALL] {
        world.script.next.lock().push_back(Err(errno));
        assert!(matches!(world.placed.fill(1000, 100), Err(NotRead::Untold(told)) if told == errno));
    }
    world.script.tells(&[]);
    assert!(matches!(world.placed.fill(1000, 100), Ok(false)), "the end");
}

#[test]
fn many_tokens_go_back_by_themselves_and_what_the_kernel_does_not_know_is_counted() {
    let world = World::new(Script { unknown: 3, ..Script::default() });
    let each = |n: u32| frag(u64::from(n) * 16, 16, 1 + n * 2);
    world.script.tells(&(0..200).map(each).collect::<Vec<_>>());
    assert!(world.placed.fill(1 << 20, 1024).unwrap_or(false));
    let mut parts = world.placed.take(1 << 20, usize::MAX);
    assert_eq!((parts.len(), world.free()), (200, 56));
    parts.drain(..63);
    assert!(world.script.returned().is_empty());
    parts.drain(..1);
    let returned = world.script.returned();
    assert_eq!((returned.len(), returned[0].len()), (1, 64));
    assert_eq!(world.count("nic_tokens_kept"), 3);
    // No slot, no receive: as many as are free is what it has room for.
    world.script.tells(&(200..320).map(each).collect::<Vec<_>>());
    assert!(world.placed.fill(1 << 20, 1024).unwrap_or(false));
    assert_eq!(world.free(), 0);
    let more = world.placed.take(1 << 20, usize::MAX);
    assert!(matches!(world.placed.fill(1, 1), Err(NotRead::Held)));
    drop((parts, more));
    world.placed.home().flush();
    assert_eq!(world.script.returned().concat().len(), 136 + 120);
    assert!(matches!(world.placed.fill(1, 1), Err(NotRead::Errno(Errno::AGAIN))));
}

#[test]
fn tokens_that_are_refused_for_a_while_go_back_later() {
    let world = World::new(Script::default());
    world.script.tells(&[frag(0, 10, 1), frag(10, 10, 2), frag(20, 10, 4)]);
    assert!(world.placed.fill(1 << 20, 1024).unwrap_or(false));
    drop(world.placed.take(100, 9));
    world.script.refuses.lock().extend([Errno::NOMEM, Errno::INTR, Errno::BADF]);
    for _ in 0..2 {
        world.placed.home().flush();
        assert_eq!((world.placed.home.slots.lock().due.len(), world.count("nic_tokens_kept")), (3, 0));
    }
    // For good.
    world.placed.home().flush();
    assert_eq!((world.placed.home.slots.lock().due.len(), world.count("nic_tokens_kept")), (0, 3));
    world.script.tells(&[frag(0, 10, 5)]);
    assert!(world.placed.fill(1 << 20, 1024).unwrap_or(false));
    drop(world.placed.take(100, 9));
    world.script.refuses.lock().push_back(Errno::NOBUFS);
    world.placed.home().flush();
    assert!(world.script.returned().is_empty());
    world.placed.home().flush();
    assert_eq!(world.script.returned(), [[(5, 1)]]);
}

#[test]
fn short_rests_in_the_host_s_memory_keep_no_buffer() {
    let world = World::new(Script::default());
    let mut kept = Vec::new();
    // More of them than there are buffers.
    for n in 0..100_u32 {
        world.script.tells(&[Piece::Linear(1 + n), frag(0, 1, 1 + n), Piece::Linear(2)]);
        assert!(world.placed.fill(1 << 20, 100).unwrap_or(false));
        let linear = world.placed.take(1 << 20, 100);
        assert_eq!(world.placed.copied(), 3 + n as usize);
        assert!(linear[0].bytes().unwrap().iter().copied().eq((0..100).chain([0]).take(1 + n as usize)));
        drop(world.placed.take(1, 100));
        kept.push((linear, world.placed.take(2, 100)));
    }
    assert_eq!(kept[1].1[0].bytes(), Some(&[2, 3][..]));
    // Each in a page of about its size; long ones in the buffer that they were received into.
    for (len, page) in [(4096, 4096), (4097, 16384), (65536, 65536), (65537, BUFFER)] {
        world.script.tells(&[Piece::Linear(len)]);
        assert!(world.placed.fill(1 << 20, 100).unwrap_or(false));
        assert_eq!(world.placed.take(1 << 20, 1)[0].page().len(), page);
        assert_eq!(world.placed.copied(), if page == BUFFER { 0 } else { len as usize });
    }
}

#[test]
fn pages_are_nobody_elses_as_long_as_anybody_has_a_fragment() {
    let World { memory, script, placed } = World::new(Script::default());
    assert_eq!(memory.free(), 0);
    script.tells(&[frag(0, 10, 1)]);
    assert!(placed.fill(10, 1).unwrap_or(false));
    let parts = placed.take(10, 1);
    drop(placed);
    assert_eq!(memory.free(), 0);
    drop(parts);
    assert_eq!(memory.free(), memory.len());
}

#[test]
fn a_forks_child_closes_nothing_of_its_parents() {
    let world = World::new(Script::default());
    world.script.tells(&[frag(0, 10, 1)]);
    assert!(world.placed.fill(100, 100).unwrap_or(false));
    let World { memory: _memory, script, placed } = world;
    let mut placed = Some(placed);
    let closed = child(|| {
        drop(placed.take());
        (script.closed.load(Relaxed) + script.returned().len()) as i32
    });
    assert_eq!(closed.unwrap().wait(), Ended::Returned(0));
    drop(placed);
    assert_eq!((script.closed.load(Relaxed), script.returned()), (1, vec![vec![(1, 1)]]));
}
